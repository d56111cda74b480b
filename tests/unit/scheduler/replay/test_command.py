"""`earl replay`: over the paper's own figures, its lines, its picture and its mistakes."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from earl.cli.main import report_error
from earl.errors import EarlError
from services.scheduler.profile.rows import COLUMNS, parse
from services.scheduler.profile.table import ProfileTable
from services.scheduler.replay import command as replay_command
from services.scheduler.selector import trace
from services.scheduler.selector.decision import Workload
from services.scheduler.selector.trace import TraceStep
from tests.support.paths import ROOT

EXAMPLES = ROOT / "examples" / "selector"

# EARL (arXiv 2510.05943), 72B on GPUs of 8 a node, as ratios to TP8, which is all that it states: with 32
# responses TP4 is up to 31 % faster where contexts are short, from 16K on TP8 by about 5 %; with 128
# responses and 32K TP4 is out of memory. What a step does beside that ratio is the same for both.
PAPER = {
    (2048, 32): 131, (4096, 32): 125, (8192, 32): 112, (16384, 32): 95, (32768, 32): 95,
    (2048, 128): 125, (4096, 128): 118, (8192, 128): 106, (16384, 128): 95, (32768, 128): None,
}  # fmt: skip
PUBLISHED = "\n".join(
    [
        ",".join(COLUMNS),
        *(f"rollout,2,4,1,1,{length},{load},{rate or 'oom'}," for (length, load), rate in PAPER.items()),
        *(f"rollout,1,8,1,1,{length},{load},100," for length, load in PAPER),
    ]
)
TP4, TP8 = ({"dp": 8 // tp, "tp": tp, "cp": 1, "pp": 1} for tp in (4, 8))


@pytest.fixture
def published(tmp_path: Path) -> Path:
    path = tmp_path / "paper.csv"
    path.write_text(PUBLISHED, encoding="utf-8")
    return path


def written(path: Path, loads: list[tuple[float, float]], spread: float = 1.3) -> Path:
    """A trace of (mean length, concurrency) on 8 devices."""
    steps = [
        TraceStep(at, Workload(mean, mean * 1.2, mean * spread, load), 8)
        for at, (mean, load) in enumerate(loads)
    ]
    path.write_text(trace.dump(steps), encoding="utf-8")
    return path


@pytest.fixture
def growing(tmp_path: Path) -> Path:
    """32 responses whose contexts grow by 8 % a step, from 2K to 27K."""
    return written(tmp_path / "growing.csv", [(2048 * 1.08**at, 32) for at in range(34)])


def earl_replay(profile: Path, trace_file: Path, *arguments: str) -> tuple[int, str, str]:
    """Exit code, standard output and standard error, as `earl replay` has them."""
    given = ["--profile", str(profile), "--trace", str(trace_file), *arguments]
    done = CliRunner().invoke(replay_command.app, given)
    if isinstance(done.exception, EarlError):
        return report_error(done.exception), done.stdout, f"{done.stderr}{done.exception}"
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.exit_code, done.stdout, done.stderr


def lines(profile: Path, trace_file: Path, *arguments: str) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The steps' lines and the totals."""
    code, out, err = earl_replay(profile, trace_file, "--json", *arguments)
    assert code == 0, err
    *steps, totals = map(json.loads, out.splitlines())
    return steps, totals


# --- the published table --------------------------------------------------------------------


def test_as_contexts_grow_tp4_gives_way_to_tp8_once(published, growing):
    steps, totals = lines(published, growing)
    chosen = [one["parallelism"]["tp"] for one in steps]
    assert chosen[1] == 4 and chosen[-1] == 8 and totals["switches"] <= 2
    assert chosen[1:] == sorted(chosen[1:])
    assert totals["oom_steps"] == 0 and 0 <= totals["regret_vs_oracle"] < 0.03


def test_a_load_that_swings_does_not_run_out_of_memory(published, tmp_path):
    swings = [(24000.0, 33 * 2 ** (1 - math.cos(at / 8))) for at in range(100)]
    assert max(load for _, load in swings) > 128
    _, totals = lines(published, written(tmp_path / "t.csv", swings, 1.4))
    assert totals["oom_steps"] == 0 and totals["regret_vs_oracle"] < 0.03
    _, fixed = lines(published, tmp_path / "t.csv", "--policy", "static:tp=4")
    assert fixed["oom_steps"] > 0


def test_the_bound_that_a_run_declares_is_known_to_the_policies(published, tmp_path):
    """32,768 tokens x 128 sequences are out of memory with tp 4; 30,000 are not, and no more can come."""
    near = written(tmp_path / "t.csv", [(20000.0, 128.0)] * 10, 1.5)
    unbounded, _ = lines(published, near, "--policy", "safe-static")
    bounded, totals = lines(published, near, "--policy", "safe-static", "--longest", "30000", "--most", "128")
    assert {str(one["parallelism"]) for one in unbounded} == {str(TP8)}
    assert {str(one["parallelism"]) for one in bounded} == {str(TP4)} and totals["oom_steps"] == 0


def test_at_short_contexts_no_load_makes_tp8_the_better(published, tmp_path):
    swings = [(3000.0, 32 * 2 ** (1 - math.cos(at / 8))) for at in range(60)]
    steps, totals = lines(published, written(tmp_path / "t.csv", swings))
    assert all(one["parallelism"] == TP4 for one in steps[5:]) and totals["oom_steps"] == 0


def test_the_decision_that_the_documentation_makes_by_hand_is_made():
    steps, _ = lines(EXAMPLES / "profile.csv", EXAMPLES / "trace.csv")
    page = (ROOT / "docs" / "selector.md").read_text(encoding="utf-8")
    assert steps[26]["switched"] and not steps[25]["switched"]
    assert f"> {steps[26]['reason']}\n" in page


# --- what is printed ------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["earl", "earl-paper", "drift30", "greedy", "safe-static", "static:tp=8"])
def test_a_line_a_step_and_one_of_totals(published, growing, policy):
    steps, totals = lines(published, growing, "--policy", policy, "--switch-cost-s", "3")
    assert [one["step"] for one in steps] == list(range(34))
    table = ProfileTable(parse(PUBLISHED, "paper.csv"), "rollout")
    layouts = {tuple(one.as_dict().items()) for one in table.parallelisms}
    before = None
    for one in steps:
        assert list(one) == ["step", "parallelism", "switched", "reason", "predicted_tokens_per_device_s"]
        assert (
            tuple(one["parallelism"].items()) in layouts and isinstance(one["reason"], str) and one["reason"]
        )
        assert one["switched"] is (before is not None and before != one["parallelism"])
        rate = one["predicted_tokens_per_device_s"]
        assert rate is None if policy.startswith("static") and before is None else rate > 0
        before = one["parallelism"]
    assert list(totals) == ["regret_vs_oracle", "switches", "oom_steps", "seconds", "oracle_seconds"]
    assert totals["switches"] == sum(one["switched"] for one in steps)
    assert totals["regret_vs_oracle"] == pytest.approx(totals["seconds"] / totals["oracle_seconds"] - 1)


def test_seconds_are_those_of_the_formula(published, tmp_path):
    _, totals = lines(
        published, written(tmp_path / "t.csv", [(2048, 32), (8192, 128)]), "--policy", "static:tp=8"
    )
    assert totals["seconds"] == pytest.approx(32 * 2048 / 800 + 128 * 8192 / 800)
    assert totals["oracle_seconds"] == pytest.approx(32 * 2048 / (8 * 131) + 128 * 8192 / (8 * 106))


def test_lines_come_as_the_steps_do(published, growing, capsys, monkeypatch):
    seen = []

    def watched(*arguments):
        for one in run(*arguments):
            yield one
            seen.append(capsys.readouterr().out)

    run = replay_command.run
    monkeypatch.setattr(replay_command, "run", watched)
    replay_command.replay(published, growing, as_json=True)
    assert [json.loads(one)["step"] for one in seen] == list(range(34))
    assert next(iter(json.loads(capsys.readouterr().out))) == "regret_vs_oracle"


def test_without_json_switches_and_totals_are_shown(published, growing):
    code, out, _ = earl_replay(published, growing)
    said = " ".join(out.split())
    assert code == 0 and "earl: 34 steps" in said
    assert said.endswith("; 2 switches, 0 steps out of memory") and "more than the oracle's" in said


def test_a_picture(published, growing, tmp_path):
    picture = tmp_path / "out.PNG"
    code, out, err = earl_replay(published, growing, "--json", "--plot", str(picture))
    assert code == 0 and len(out.splitlines()) == 35 and str(picture) in err
    assert picture.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")


def test_a_picture_of_one_step_and_of_steps_out_of_memory(published, tmp_path):
    one = written(tmp_path / "one.csv", [(30000.0, 256.0)])
    assert earl_replay(published, one, "--policy", "static:tp=4", "--plot", str(tmp_path / "a.png"))[0] == 0
    assert (tmp_path / "a.png").stat().st_size > 1000


def test_several_stages_are_told_apart(tmp_path, growing):
    path = tmp_path / "both.csv"
    path.write_text(
        PUBLISHED + "\n" + PUBLISHED.split("\n", 1)[1].replace("rollout", "trainer"), encoding="utf-8"
    )
    code, out, err = earl_replay(path, growing, "--json")
    assert (code, out) == (2, "") and "several stages: rollout, trainer; choose one with --stage" in err
    alone, _ = lines(path, growing, "--stage", "trainer")
    assert alone[-1]["parallelism"] == TP8
    together, totals = lines(path, growing, "--stage", "rollout,trainer")
    assert together[-1]["parallelism"] == {"rollout": TP8, "trainer": TP8} and totals["oom_steps"] == 0


# --- mistakes -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--policy", "best"], 2, "there is no policy 'best'; it is one of earl, earl-paper, drift30"),
        (
            ["--policy", "static:tp=3"],
            2,
            "static:tp=3: the profile has no tp3 for 8 devices; it has tp8, dp2·tp4",
        ),
        (["--policy", "static:four"], 4, "'four' is no parallelism; write degrees"),
        (["--policy", "static:tp=0"], 4, "tp = 0; every degree is at least 1"),
        (["--switch-cost-s", "-1"], 2, "--switch-cost-s is -1.0; give seconds, 0 or more"),
        (["--switch-cost-s", "nan"], 2, "--switch-cost-s is nan; give seconds"),
        (["--switch-cost-s", "inf"], 2, "--switch-cost-s is inf; give seconds"),
        (["--longest", "0"], 2, "--longest is 0; give a number above 0"),
        (["--most", "inf"], 2, "--most is inf; give a number above 0"),
        (["--stage", "trainer"], 2, "no rows of stage 'trainer'; it has rollout"),
        (["--plot", "out.pdf"], 2, "--plot is out.pdf; name a .png file"),
        (["--plot", "no/such/out.png"], 2, "there is no directory no/such; make it"),
    ],
)
def test_a_mistake_is_one_line_and_an_exit_code(published, growing, arguments, code, said):
    found, out, err = earl_replay(published, growing, "--json", *arguments)
    assert (found, out) == (code, "") and said in err


@pytest.mark.parametrize("which", ["profile", "trace"])
@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "cannot be read"),
        (b"", "has no column"),
        (b"\xff\xfe\x00", "cannot be read"),
        (b"hello,world\n1,2\n", "has no column"),
    ],
)
def test_a_file_that_is_none_is_named(published, growing, tmp_path, which, content, said):
    bad = tmp_path / "bad.csv"
    if content is not None:
        bad.write_bytes(content)
    code, out, err = earl_replay(*((bad, growing) if which == "profile" else (published, bad)), "--json")
    assert (code, out) == (2, "") and f"{bad} {said}" in err and "; " in err


def test_a_file_that_is_too_large_is_refused(published, growing, monkeypatch):
    monkeypatch.setattr(replay_command, "MOST_BYTES", 1 << 20)
    with growing.open("ab") as file:
        file.truncate(2 << 20)
    assert "is larger than 1 MiB; leave rows out" in earl_replay(published, growing)[2]


def test_a_cell_that_is_none_is_named_with_its_line(published, growing):
    published.write_text(PUBLISHED.replace(",131,", ",fast,"), encoding="utf-8")
    code, _, err = earl_replay(published, growing)
    assert code == 2 and "paper.csv, line 2: tokens_per_device_s is 'fast'; give a number above 0" in err


def test_devices_that_nothing_divides_are_named(published, tmp_path):
    path = tmp_path / "t.csv"
    path.write_text(trace.dump([TraceStep(0, Workload(9, 9, 9, 9), 6)]), encoding="utf-8")
    code, out, err = earl_replay(published, path, "--json")
    assert (code, out) == (2, "") and "divides 6 devices; profile one that does" in err
