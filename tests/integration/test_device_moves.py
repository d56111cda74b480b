"""Devices go from one stage to another and back in whole runs of real processes, by the command for it and by
the scheduler's own decisions."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.launched import ROOT, Launched, assert_ledger_adds_up, launch_in

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

POOLED = {
    "stack__pool_devices": "4",
    "rollout__engines": "3",
    "rollout__device": "cpu",
    "trainer__device": "cpu",
    "scheduler__selector": "static",
    "scheduler__steps": "80",
    "scheduler__staleness": "1",
}
# With a reference stage: six devices in one pool of three stages.
REFERRED = POOLED | {
    "stack__pool_devices": "6",
    "trainer__kl_coefficient": "0.05",
    "reference__dp": "2",
    "reference__device": "cpu",
}


def counts(rollout: int, trainer: int, reference: int = 0) -> dict[str, int]:
    return {"rollout": rollout, "trainer": trainer} | ({"reference": reference} if reference else {})


def move(launched: Launched, *words: str) -> subprocess.CompletedProcess[str]:
    command = ["earl.cli.main", "parallelism", "move", *words, "--run", str(launched.run_directory), "--json"]
    return subprocess.run(
        [sys.executable, "-m", *command], capture_output=True, text=True, cwd=ROOT, timeout=200
    )


def moved(launched: Launched, *words: str) -> dict:
    done = move(launched, *words)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["move"]


def test_devices_move_while_both_stages_work(tmp_path: Path):
    with launch_in(tmp_path, forked=True) as launched:
        launched.start(**POOLED).until(r"\] train [1-9]")
        there = moved(launched, "2", "rollout", "trainer")
        assert not there["rolled_back"], there
        assert (there["before"], there["after"]) == (counts(3, 1), counts(1, 3))
        assert there["holds"] == counts(1, 3) and 0 < there["stall_s"] <= there["seconds"]
        kept = json.loads((launched.run_directory / "devices.json").read_text())
        assert kept == counts(1, 3) | {"replicas": {"rollout": "tp1", "trainer": "tp1"}}
        refused = move(launched, "1", "rollout", "trainer")
        assert refused.returncode != 0 and "keeps one device" in refused.stderr
        refused = move(launched, "1", "trainer", "rollout", "--layout", "trainer=tp=8")
        assert refused.returncode != 0 and "cannot have tp8 on 2 devices; use" in refused.stderr
        back = moved(launched, "1", "trainer", "rollout", "--layout", "trainer=cp=2")
        assert back["holds"] == counts(2, 2) and not back["rolled_back"], back
        assert back["layouts"] == {"rollout": "dp2", "trainer": "cp2"}
        code, figures = launched.finish()
        assert code == 0, launched.said
        assert_ledger_adds_up(figures)
        assert figures["dropped"] == 0
        lines = [json.loads(line) for line in (launched.run_directory / "moves.jsonl").open()]
        assert [line["holds"] for line in lines] == [counts(1, 3), counts(2, 2)]
        metrics = [json.loads(line) for line in (launched.run_directory / "metrics.jsonl").open()]
        steps = [line["step"] for line in metrics if line["phase"] == "train"]
        assert steps == list(range(1, 81)), "every step once"
        layouts = [line["parallelism"]["trainer"] for line in metrics]
        assert {(layout["dp"], layout["cp"]) for layout in layouts} == {(1, 1), (3, 1), (1, 2)}


def test_a_run_divides_its_devices_by_what_it_measures(tmp_path: Path):
    lines = ["stage,dp,tp,cp,pp,context_tokens,concurrency,tokens_per_device_s"]
    # On these devices a batch takes far longer to train than to play.
    for stage, rate in (("rollout", 20_000), ("trainer", 100)):
        lines += [f"{stage},1,1,1,1,{tokens},8,{rate}" for tokens in (16, 128)]
    table = tmp_path / "pace.csv"
    table.write_text("\n".join(lines) + "\n")
    with launch_in(tmp_path, forked=True) as launched:
        given = POOLED | {"scheduler__selector": "on", "scheduler__steps": "12", "paced__table": str(table)}
        code, figures = launched.start(**given).finish()
        assert code == 0, launched.said
        assert_ledger_adds_up(figures)
        assert figures["dropped"] == 0
        splits = [json.loads(line) for line in (launched.run_directory / "splits.jsonl").open()]
        moves = [json.loads(line) for line in (launched.run_directory / "moves.jsonl").open()]
        assert moves and not any(move["rolled_back"] for move in moves)
        assert moves[0]["by"] == "selector" and moves[-1]["holds"] == counts(1, 3)
        assert {line["move"] for line in splits} >= {move["number"] for move in moves}
        words = ["explain", str(launched.run_directory), "--json"]
        done = subprocess.run(
            [sys.executable, "-m", "earl.cli.main", *words], capture_output=True, text=True, cwd=ROOT
        )
        assert json.loads(done.stdout)["splits"] == splits[-1:], done.stderr


def test_a_run_reaches_a_division_that_needs_other_replicas(tmp_path: Path):
    lines = ["stage,dp,tp,cp,pp,context_tokens,concurrency,tokens_per_device_s"]
    # Two devices of the trainer do in one replica what eight do apart.
    for stage, cp, rate in (("rollout", 1, 20_000), ("trainer", 1, 100), ("trainer", 2, 400)):
        lines += [f"{stage},1,1,{cp},1,{tokens},{load},{rate}" for tokens in (16, 128) for load in (8, 64)]
    table = tmp_path / "pace.csv"
    table.write_text("\n".join(lines) + "\n")
    with launch_in(tmp_path, forked=True) as launched:
        given = POOLED | {"scheduler__selector": "on", "scheduler__steps": "12", "paced__table": str(table)}
        code, figures = launched.start(**given, scheduler__profile=str(table)).finish()
        assert code == 0, launched.said
        assert_ledger_adds_up(figures)
        assert figures["dropped"] == 0
        moves = [json.loads(line) for line in (launched.run_directory / "moves.jsonl").open()]
        assert moves and not any(move["rolled_back"] for move in moves)
        assert moves[-1]["holds"] == counts(2, 2)
        assert moves[-1]["layouts"] == {"rollout": "dp2", "trainer": "cp2"}
        kept = json.loads((launched.run_directory / "devices.json").read_text())
        assert kept == counts(2, 2) | {"replicas": {"rollout": "tp1", "trainer": "cp2"}}
        splits = [json.loads(line) for line in (launched.run_directory / "splits.jsonl").open()]
        best = next(
            each for each in splits[0]["candidates"] if each["rollout"] == splits[0]["best"]["rollout"]
        )
        assert best["layouts"]["trainer"] == "cp2"
        metrics = [json.loads(line) for line in (launched.run_directory / "metrics.jsonl").open()]
        trained = [line for line in metrics if line["phase"] == "train"]
        assert [line["step"] for line in trained] == list(range(1, 13)), "every step once"
        assert (trained[-1]["parallelism"]["trainer"]["dp"], trained[-1]["parallelism"]["trainer"]["cp"]) == (
            1,
            2,
        )


def test_a_sequence_that_no_layout_of_rollouts_devices_holds_waits_for_devices(tmp_path: Path):
    """46 tokens where an engine of one device holds 32, and one of two 64: rollout begins with one device."""
    lines = ["stage,dp,tp,cp,pp,context_tokens,concurrency,tokens_per_device_s"]
    for stage, tp, rate in (("rollout", 1, 200), ("rollout", 2, 150), ("trainer", 1, 200)):
        lines += [f"{stage},1,{tp},1,1,{tokens},{load},{rate}" for tokens in (16, 128) for load in (8, 64)]
    table = tmp_path / "profile.csv"
    table.write_text("\n".join(lines) + "\n")
    given = POOLED | {
        "environment__name": "relay/digits",
        "environment__serve": "earl.env.adapters.relay:environments",
        "environment__task": "{digits = 40, turns = 1}",
        "model__scratch__words": json.dumps([*"0123456789[].>"]),
        # Pages of the KV cache are of 16 tokens then.
        "model__scratch__hidden_size": "256",
        "rollout__kv_tokens": "32",
        "stack__pool_devices": "3",
        "rollout__engines": "1",
        "trainer__ranks": "2",
        "scheduler__selector": "on",
        "scheduler__profile": str(table),
        "scheduler__steps": "6",
        "evaluation__episodes": "0",
    }
    with launch_in(tmp_path, forked=True) as launched:
        code, figures = launched.start(**given).finish()
        assert code == 0, launched.said
        assert_ledger_adds_up(figures)
        assert figures["dropped"] == 0
        metrics = [json.loads(line) for line in (launched.run_directory / "metrics.jsonl").open()]
        assert not any(line["truncated_episodes"] for line in metrics)
        [move] = [json.loads(line) for line in (launched.run_directory / "moves.jsonl").open()]
        assert move["holds"] == counts(2, 1) and not move["rolled_back"] and move["by"] == "selector"
        assert move["layouts"] == {"rollout": "tp2", "trainer": "tp1"}
        assert "at once: no layout of rollout 1, trainer 2 holds a sequence of 46 tokens" in move["reason"]
        splits = [json.loads(line) for line in (launched.run_directory / "splits.jsonl").open()]
        assert splits[0]["urgent"] and splits[0]["move"] == move["number"]


def test_devices_of_the_reference_stage_move_while_all_stages_work(tmp_path: Path):
    with launch_in(tmp_path, forked=True) as launched:
        launched.start(**REFERRED).until(r"\] train [1-9]")
        there = moved(launched, "1", "reference", "rollout")
        assert not there["rolled_back"], there
        assert (there["before"], there["after"]) == (counts(3, 1, 2), counts(4, 1, 1))
        assert 0 < there["stall_s"] <= there["seconds"]
        kept = json.loads((launched.run_directory / "devices.json").read_text())
        assert kept == counts(4, 1, 1) | {"replicas": dict.fromkeys(counts(1, 1, 1), "tp1")}
        refused = move(launched, "1", "reference", "trainer")
        assert refused.returncode != 0 and "keeps one device" in refused.stderr
        back = moved(launched, "2", "rollout", "reference")
        assert back["holds"] == counts(2, 1, 3) and not back["rolled_back"], back
        other = moved(launched, "1", "reference", "trainer")
        assert other["holds"] == counts(2, 2, 2) and not other["rolled_back"], other
        code, figures = launched.finish()
        assert code == 0, launched.said
        assert_ledger_adds_up(figures)
        assert figures["dropped"] == 0
        metrics = [json.loads(line) for line in (launched.run_directory / "metrics.jsonl").open()]
        steps = [line["step"] for line in metrics if line["phase"] == "train"]
        assert steps == list(range(1, 81)), "every step once"
        assert {line["parallelism"]["reference"]["dp"] for line in metrics} >= {2, 3}


def test_a_reference_stage_that_is_the_slowest_gets_devices(tmp_path: Path):
    lines = ["stage,dp,tp,cp,pp,context_tokens,concurrency,tokens_per_device_s"]
    for stage, rate in (("rollout", 20_000), ("trainer", 20_000), ("reference", 100)):
        lines += [f"{stage},1,1,1,1,{tokens},8,{rate}" for tokens in (16, 128)]
    table = tmp_path / "pace.csv"
    table.write_text("\n".join(lines) + "\n")
    with launch_in(tmp_path, forked=True) as launched:
        chosen = {"scheduler__selector": "on", "scheduler__steps": "12", "paced__table": str(table)}
        code, figures = launched.start(**REFERRED | chosen).finish()
        assert code == 0, launched.said
        assert_ledger_adds_up(figures)
        assert figures["dropped"] == 0
        splits = [json.loads(line) for line in (launched.run_directory / "splits.jsonl").open()]
        moves = [json.loads(line) for line in (launched.run_directory / "moves.jsonl").open()]
        assert moves and not any(move["rolled_back"] for move in moves)
        assert moves[0]["by"] == "selector" and moves[-1]["holds"] == counts(1, 1, 4)
        assert all(split["reference_device_s"] > 0 for split in splits)
