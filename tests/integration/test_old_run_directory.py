"""A run directory that an earlier EARL made is resumed by this one.

tests/fixtures/run-f82d364.tar.gz is what commit f82d364 left of a small tic-tac-toe run whose processes were
all killed while it trained: checkpoints up to version 116, the ledger in Valkey's append-only file with
tickets in flight, and a rollout stage that an operator had switched from dp2 to tp2 and pinned. Its logs are
left out; the directory above it is written as @RUNS@.
"""

from __future__ import annotations

import json
import re
import tarfile
from pathlib import Path

from tests.support.launched import Launched, assert_ledger_adds_up, launch_in
from tests.support.paths import ROOT

FIXTURE = ROOT / "tests" / "fixtures" / "run-f82d364.tar.gz"
STEPS = 160
RESUMED_AT = 116


def unpacked(directory: Path) -> Launched:
    with tarfile.open(FIXTURE) as archive:
        archive.extractall(directory, filter="data")
    for name in ("run.toml", "run.json"):
        file = directory / "old" / name
        file.write_text(file.read_text().replace("@RUNS@", str(directory)))
    return Launched(directory, name="old")


def lines_of(file: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_a_run_of_an_earlier_version_is_resumed_where_it_was(tmp_path: Path) -> None:
    assert FIXTURE.stat().st_size <= 1 << 20
    with launch_in(tmp_path, forked=True) as launched:
        old = unpacked(tmp_path)
        launched.name = old.name
        before = lines_of(old.run_directory / "metrics.jsonl")
        code, figures = launched.resume().finish()
        assert code == 0, launched.said
        assert_ledger_adds_up(figures)
        after = lines_of(old.run_directory / "metrics.jsonl")
        kept = [line for line in before if int(str(line["version"])) <= RESUMED_AT]
        assert after[: len(kept)] == kept
        versions = [int(str(line["version"])) for line in after]
        assert versions == list(range(versions[0], versions[0] + len(versions)))
        assert after[-1]["step"] == STEPS
        # Its contexts were bounded, and stay so.
        bound = json.loads((old.run_directory / "run.json").read_text())["rollout"]["max_context_tokens"]
        assert f"contexts end at {bound} tokens, as when the run began" in launched.said
        # What the operator asked for in epoch 1 is known: the new worker starts as dp2 and is switched again.
        assert re.search(r"rollout .*from dp2 to tp2 \(epoch 2\)", launched.said)
        launched.assert_nothing_left(whole_history=False)
