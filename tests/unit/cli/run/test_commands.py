"""The command line: help is light, mistakes are one line and an exit code."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from earl.cli.lib.figures import closing_lines
from earl.cli.lib.status_text import progress_of, sparkline
from earl.cli.main import report_error
from earl.cli.run.live_view import LiveView, worker_rates
from earl.cli.run.plain_view import PlainView, status_line
from earl.cli.show import panels
from earl.errors import PortInUse
from earl.stack.status import (
    ConfidenceBounds,
    EvaluationStatus,
    Gain,
    LedgerStatus,
    Lengths,
    ProcessState,
    RoleState,
    RunStatus,
    StageState,
    Transfers,
    WorkerState,
)
from earl.switch_figures import StageSwitch
from tests.support.launched import earl_here
from tests.support.paths import ROOT

TICTACTOE = str(ROOT / "examples" / "tictactoe.toml")


def earl(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "earl.cli.main", *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=60, env={**os.environ, **environment}
    )


def test_help_imports_nothing_heavy():
    done = earl("--help", PYTHONPROFILEIMPORTTIME="1")
    assert done.returncode == 0
    for name in ("train", "demo", "report", "bench", "version"):
        assert f" {name} " in done.stdout
    imports = (line for line in done.stderr.splitlines() if line.startswith("import time"))
    loaded = {line.rsplit("|", 1)[-1].strip() for line in imports}
    assert "earl.cli.lib.lazy" in loaded
    heavy = {"torch", "transformers", "ucxx", "redis", "numpy", "grpc", "earl.cli.run.train", "earl.stack"}
    assert not heavy & loaded


def test_loading_train_imports_neither_torch_nor_redis():
    heavy = "{'torch', 'redis', 'ucxx'}"
    code = f"import sys, earl.cli.run.train, earl.cli.run.demo; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "[]"


def test_help_of_one_command_is_its_own():
    done = earl("train", "--help", COLUMNS="100")
    assert done.returncode == 0
    assert "--resume" in done.stdout and "--section.key" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("--trainer.learning_rate", "1"), 2, "no key trainer.learning_rate; did you mean trainer.lr?"),
        (("--trainer.lr", "fast"), 2, '--trainer.lr "fast" is wrong'),
        (("--model.path", "/no/such/model"), 3, "model.path = '/no/such/model' is not a directory"),
        (("--rollout.tp", "3"), 4, "rollout.tp = 3 does not divide"),
        (("--trainer.lr",), 2, "--trainer.lr has no value"),
    ],
    ids=["unknown key", "wrong value", "missing model", "tp", "no value"],
)
def test_a_mistake_is_one_line_and_an_exit_code(
    arguments: tuple[str, ...], code: int, words: str, tmp_path: Path
):
    done = earl_here(tmp_path, "train", TICTACTOE, "--runs-dir", str(tmp_path), *arguments)
    assert done.returncode == code
    assert done.stdout == ""
    assert done.stderr.startswith("earl: error: ") and done.stderr.count("\n") == 1
    assert words in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_missing_run_file_and_a_run_that_is_not_there(tmp_path: Path):
    done = earl("train", str(tmp_path / "none.toml"))
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    done = earl_here(tmp_path, "train", TICTACTOE, "--runs-dir", str(tmp_path), "--resume")
    assert done.returncode == 2
    assert "there is no run to resume" in done.stderr


def test_an_error_is_one_line_after_its_notes(capsys: pytest.CaptureFixture[str]):
    error = PortInUse("port 1\nis taken", "free it")
    error.add_note("first\nsecond")
    assert report_error(error) == 5
    assert capsys.readouterr().err == "  | first\n  | second\nearl: error: port 1 is taken; free it\n"


# --- what is shown --------------------------------------------------------------------------

STATUS = RunStatus(
    run="demo",
    phase="evaluate:final",
    step=200,
    steps=200,
    version=261,
    ledger=LedgerStatus(
        issued=100, trained=60, evaluated=30, dropped={"group_incomplete": 2}, pending=1, leased=7
    ),
    evaluations=(
        EvaluationStatus(
            "start", 61, 512, 510, 0.5, 0.3, {"illegal": 0.1, "loss": 0.3}, 2,
            ConfidenceBounds(0.46, 0.54), ConfidenceBounds(0.2, 0.4),
        ),
        EvaluationStatus(
            "final",
            261,
            512,
            128,
            0.9375,
            0.9,
            {"illegal": 0.0},
            0,
            ConfidenceBounds(0.88, 0.97),
            ConfidenceBounds(0.8, 1.0),
            Gain(0.41, None, 127),
        ),
    ),
    best_version=61,
    metrics={"reward_mean": 0.25, "logprob_mismatch": 0.0025, "staleness_max": 2.0},
    episode_tokens=Lengths(44.5, 40.0, 53.0, 66.0),
    workers=(
        WorkerState(
            "trainer", "trainer", "1", 1, 1, 261, 0.1, {},
            {"shm": Transfers(3 << 20, 0.001, 0), "ucx-tcp": Transfers(5 << 30, 2.0, 7)},
        ),
    ),
    roles=(RoleState("reference", 1234, 16, 48), RoleState("trainer", 40, 8, 60)),
)  # fmt: skip


def test_an_evaluation_is_counted_in_episodes_and_training_in_steps():
    assert progress_of(STATUS) == (128, 512)
    assert progress_of(RunStatus(phase="train", step=3, steps=9)) == (3, 9)


def test_a_plain_line_says_where_every_trajectory_is():
    line = status_line(STATUS)
    assert "evaluate:final 128/512" in line
    assert "issued 100 = trained 60 + evaluated 30 + dropped 2 + live 8" in line
    assert "final evaluation 0.94 [0.88, 0.97] of 128, gain +0.41" in line
    assert ", reference 1234 waiting 16 in progress 48 done, issued" in line
    assert "reference" not in status_line(replace(STATUS, roles=()))


def test_the_live_view_shows_intervals_lengths_and_mismatch():
    console = Console(file=io.StringIO(), width=120, force_terminal=False, record=True)
    view = LiveView(console)
    view.update([ProcessState("gateway", "ready", 1.0, 0)], STATUS)
    console.print(view._render())
    text = console.export_text()
    for shown in (
        "0.94 [0.88, 0.97]",
        "61 (best)",
        "+0.41",
        "0.0025 nats",
        "max 66",
        "2 versions",
        "shm 3.0 MiB at 3.15 GB/s",
    ):
        assert shown in text
    rows = [line.strip("│ ").split() for line in text.splitlines()]
    assert ["reference", "1,234", "waiting", "16", "in", "progress", "48", "done"] in rows
    assert ["trainer", "40", "waiting", "8", "in", "progress", "60", "done"] in rows


def test_a_worker_says_what_it_read_by_which_path():
    shown = worker_rates(STATUS.workers[0], late=False)
    assert shown == "v261 · shm 3.0 MiB at 3.15 GB/s · ucx-tcp 5.0 GiB at 2.68 GB/s, 7 retries"


def test_a_worker_whose_stage_gave_the_devices_away_is_shown_asleep():
    state = replace(STATUS.workers[0], gauges={"asleep": 1.0})
    assert worker_rates(state, late=False).startswith("v261 · asleep · shm")
    assert panels.worker(state, late=False)[4].endswith(", asleep")


def test_the_closing_lines_are_the_first_and_the_last_evaluation_with_intervals():
    assert list(closing_lines(STATUS)) == [
        "evaluation start, version 61 (best): win rate 0.50 [0.46, 0.54], reward 0.30 [0.20, 0.40], "
        "510 tasks, 2 failed and do not count",
        "evaluation final, version 261: win rate 0.94 [0.88, 0.97], reward 0.90 [0.80, 1.00], "
        "gain +0.41 in reward over the start on the same 127 tasks, ended after 128 of 512",
    ]
    assert list(closing_lines(RunStatus())) == []


def test_a_reward_is_a_score_where_nothing_is_won_or_lost():
    tasks = replace(STATUS, evaluations=tuple(replace(item, metrics={}) for item in STATUS.evaluations))
    assert not tasks.has_winners and STATUS.has_winners
    assert replace(tasks, metrics={"loss_rate": 0.5}).has_winners
    assert not replace(tasks, metrics={"loss": 0.5}).has_winners  # the trainer's
    assert next(iter(closing_lines(tasks))) == (
        "evaluation start, version 61 (best): score 0.30 [0.20, 0.40], 510 tasks, 2 failed and do not count"
    )
    assert "score +0.250" in status_line(tasks) and "win rate" not in status_line(tasks)
    console = Console(file=io.StringIO(), width=120, force_terminal=False, record=True)
    view = LiveView(console)
    view.update([ProcessState("gateway", "ready", 1.0, 0)], tasks)
    console.print(view._render())
    text = console.export_text()
    assert "score" in text and "win rate" not in text


def test_the_plain_view_says_what_changed(tmp_path: Path):
    with open(tmp_path / "out", "w") as file, PlainView(file) as view:
        view.update([ProcessState("gateway", "starting", 0.0, 0)], RunStatus())
        view.update([ProcessState("gateway", "ready", 0.0, 0)], RunStatus())
        view.update([ProcessState("gateway", "ready", 1.0, 0)], STATUS)
        view.update([ProcessState("gateway", "ready", 1.1, 0)], STATUS)
    lines = (tmp_path / "out").read_text().splitlines()
    assert [line.split("] ")[1].split(" ")[0] for line in lines] == ["gateway", "gateway", "evaluate:final"]


def test_the_plain_view_says_what_it_waits_for_and_since_when(tmp_path: Path):
    starting = [ProcessState("gateway", "ready", 9.0, 0), ProcessState("trainer", "starting", 12.4, 0)]
    with open(tmp_path / "out", "w") as file, PlainView(file, every_s=0.0) as view:
        view.update(starting, STATUS)
        view.update([replace(starting[1], state="ready")], STATUS)
    lines = [line.split("] ")[1] for line in (tmp_path / "out").read_text().splitlines()]
    assert lines[2] == "waiting for trainer (starting 12 s)"
    assert lines[-1].startswith("evaluate:final") and not any("waiting" in line for line in lines[3:])


def test_without_a_terminal_a_line_comes_only_when_something_changed(tmp_path: Path):
    with open(tmp_path / "out", "w") as file, PlainView(file, every_s=0.0) as view:
        for step in (1, 1, 1, 2, 2):
            view.update([], replace(STATUS, phase="train", step=step, steps=9))
    lines = (tmp_path / "out").read_text().splitlines()
    assert [line.split("] ")[1].split(",")[0] for line in lines] == ["train 1/9", "train 2/9"]


def test_the_views_say_what_workers_report_once(tmp_path: Path):
    def reported(waits_s: float, words: int) -> RunStatus:
        gauges = {"waits_for_host_s": waits_s, "unknown_words": float(words)}
        worker = WorkerState("rollout-0", "rollout", "tp1", 8, 0, 1, 0.1, gauges, {})
        return replace(STATUS, workers=(worker,))

    with open(tmp_path / "out", "w") as file, PlainView(file) as plain:
        for waits_s, words in ((3.0, 0), (4.0, 0), (0.0, 1), (0.0, 2)):
            plain.update([], reported(waits_s, words))
    told = [line.split("] ")[1] for line in (tmp_path / "out").read_text().splitlines()]
    waits, word = "rollout has waited 3 s for a host", "rollout-0 has read 1 word that model.scratch.words"
    assert sum("waited" in line for line in told) == 1 and any(line.startswith(waits) for line in told)
    assert any(line.startswith(word) for line in told) and any("2 words" in line for line in told)

    console = Console(file=io.StringIO(), width=200, force_terminal=False, record=True)
    view = LiveView(console)
    view.update([ProcessState("gateway", "ready", 1.0, 0)], reported(0.0, 2))
    console.print(view._render())
    text = console.export_text()
    assert (
        "rollout-0 has read 2 words that model.scratch.words does not have" in text and "waited" not in text
    )


DECIDED = replace(
    STATUS,
    stages=(
        StageState(
            "rollout", "dp2", "tp2", "rollout runs dp2; the selector goes to tp2: 0.3 s a step quicker"
        ),
        StageState("trainer", "tp1"),
    ),
)


def test_the_views_show_parallelisms_and_what_the_selector_said(tmp_path: Path):
    console = Console(file=io.StringIO(), width=120, force_terminal=False, record=True)
    view = LiveView(console)
    view.update([ProcessState("gateway", "ready", 1.0, 0)], DECIDED)
    console.print(view._render())
    text = console.export_text()
    assert "rollout runs dp2; the selector goes to tp2: 0.3 s a step quicker" in text
    assert "parallelism  trainer tp1\n" in text
    with open(tmp_path / "out", "w") as file, PlainView(file) as plain:
        for status in (DECIDED, DECIDED, replace(DECIDED, step=201)):
            plain.update([], status)
        [rollout, trainer] = DECIDED.stages
        stays = replace(rollout, chosen="dp2", sentence="rollout stays with dp2: lengths fell")
        plain.update([], replace(DECIDED, stages=(stays, trainer)))
    said = [line.split("] ")[1] for line in (tmp_path / "out").read_text().splitlines()]
    assert [line for line in said if line.startswith("rollout ")] == [rollout.sentence, stays.sentence]


def test_the_views_say_what_was_switched_and_what_is_pinned(tmp_path: Path):
    [rollout, trainer] = DECIDED.stages
    under_way = StageSwitch(epoch=3, before="dp2", after="tp2", reason="lengths grew")
    done = replace(under_way, seconds=4.2, stall_s=0.31, sequences_continued=9, moved_bytes=3 << 20)
    failed = StageSwitch(epoch=4, before="tp2", after="dp2", rolled_back=True, message="rollout-0: no room")
    shots = [
        replace(DECIDED, stages=(replace(rollout, pinned=True), replace(trainer, pinned=True))),
        replace(DECIDED, stages=(replace(rollout, switching=under_way), trainer)),
        replace(DECIDED, stages=(replace(rollout, last=done), trainer)),
        replace(DECIDED, stages=(replace(rollout, last=failed), trainer)),
    ]
    said = [
        "rollout is switching from dp2 to tp2 (epoch 3): lengths grew",
        "rollout switched from dp2 to tp2 in 4.20 s, stalled 0.31 s, 9 sequences continued, 3.0 MiB moved "
        "(epoch 3)",
        "rollout stayed tp2, rolled back from dp2 (epoch 4): rollout-0: no room",
    ]
    console = Console(file=io.StringIO(), width=140, force_terminal=False, record=True)
    view = LiveView(console)
    with open(tmp_path / "out", "w") as file, PlainView(file) as plain:
        for shot in shots:
            for _ in range(2):
                plain.update([], shot)
            view.update([ProcessState("gateway", "ready", 1.0, 0)], shot)
            console.print(view._render())
    screen = console.export_text()
    assert "parallelism  trainer tp1 (pinned)" in screen and "0.3 s a step quicker (pinned)" in screen
    assert all(text in screen for text in said)
    lines = [line.split("] ")[1] for line in (tmp_path / "out").read_text().splitlines()]
    assert [line for line in lines if "epoch" in line] == said


def test_a_sparkline_runs_from_low_to_high():
    assert sparkline([0.0, 0.5, 1.0]) == "▁▅█"
    assert sparkline([1.0, 1.0]) == ""
    assert sparkline([]) == ""
