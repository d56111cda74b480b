"""`earl parallelism` without a run: what it makes of its arguments, and what there is not."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from earl.cli.lib.find_run import RUNS, newest
from earl.cli.show.parallelism import app, given_degrees, given_layouts, stage_paragraphs
from earl.errors import ConfigError, IllegalParallelism, InsecureCall, ServiceUnavailable
from earl.stack.record import LaunchRecord, write_record
from earl.stack.status import RunStatus, StageState
from earl.switch_figures import StageSwitch
from tests.support.runs import tictactoe


def told(*arguments: object) -> str:
    """Returns what it prints; raises what it raises."""
    result = CliRunner().invoke(app, [str(one) for one in arguments], standalone_mode=False)
    if result.exception is not None:
        raise result.exception
    return result.output


@pytest.mark.parametrize(
    ("degrees", "found"),
    [
        (["tp=2"], {"tp": 2}),
        (["tp=1"], {"tp": 1}),
        (["dp=2", "tp=4"], {"dp": 2, "tp": 4}),
        (["tp=2,cp=2"], {"tp": 2, "cp": 2}),
        (["dp2·tp4"], {"dp": 2, "tp": 4}),
    ],
)
def test_degrees_are_those_that_were_named(degrees: list[str], found: dict[str, int]) -> None:
    assert given_degrees(degrees) == found


@pytest.mark.parametrize("degrees", [["tp"], ["tp=0"], ["tp=2", "tp=4"], ["tq=2"], ["dp=4"], [""]])
def test_what_are_no_degrees_is_refused_with_an_example(degrees: list[str]) -> None:
    with pytest.raises(IllegalParallelism) as caught:
        given_degrees(degrees)
    assert caught.value.exit_code == 4 and caught.value.remedy


def test_mistakes_are_named_before_anyone_is_asked() -> None:
    with pytest.raises(
        ConfigError, match="there is no stage 'rollot'; name one of rollout, reference, trainer"
    ):
        told("set", "rollot", "tp=2")
    with pytest.raises(ConfigError, match="there is no stage 'x'"):
        told("pin", "x")
    with pytest.raises(IllegalParallelism, match="'tp=x' is no parallelism"):
        told("set", "rollout", "tp=x")


def test_layouts_of_a_move_are_those_of_its_two_stages() -> None:
    layouts = given_layouts(["trainer=tp=2,cp=2", "rollout=tp1"], "rollout", "trainer")
    assert layouts == {"trainer": {"tp": 2, "cp": 2}, "rollout": {"tp": 1}}
    for wrong in (["reference=tp=2"], ["tp=2"], ["trainer=tp=2", "trainer=tp=1"]):
        with pytest.raises(ConfigError, match="is not rollout or trainer, or is there twice"):
            told("move", 2, "rollout", "trainer", *(f"--layout={text}" for text in wrong))
    with pytest.raises(IllegalParallelism, match="'tq=2' is no parallelism"):
        told("move", 2, "rollout", "trainer", "--layout", "trainer=tq=2")


@pytest.mark.slow
def test_a_run_that_does_not_go_on_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"no run in ./runs is running; name the directory"):
        told()
    with pytest.raises(ConfigError, match="there is no run 'elsewhere'"):
        told("--run", "elsewhere")
    for name in ("old", "new"):
        directory = tmp_path / RUNS / name
        directory.mkdir(parents=True)
        config = tictactoe(tmp_path, scheduler={"bind": "127.0.0.1:9"})
        (directory / "run.json").write_text(config.model_dump_json())
    assert {path.name for path in newest()} == {"old", "new"}
    with pytest.raises(ConfigError, match="no run in"):
        told("unpin", "rollout")
    monkeypatch.setattr("earl.cli.lib.find_run.CALL_S", 0.2)
    with pytest.raises(ServiceUnavailable, match=r"127\.0\.0\.1:9"):
        told("--run", tmp_path / RUNS / "new")


def test_a_token_that_would_travel_in_plain_text_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run may still be running: that none does would be wrong."""
    monkeypatch.chdir(tmp_path)
    for name in ("EARL_TLS_CERT", "EARL_TLS_KEY", "EARL_TLS_CA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("EARL_TOKEN", "secret")
    directory = tmp_path / RUNS / "far"
    directory.mkdir(parents=True)
    config = tictactoe(tmp_path, scheduler={"bind": "192.0.2.1:7000"})
    (directory / "run.json").write_text(config.model_dump_json())
    with pytest.raises(InsecureCall, match="in plain text; set EARL_TLS_CA"):
        told()
    for outcome in ("stopped", ""):  # of a launcher that was killed
        write_record(directory, LaunchRecord(1, "mark", outcome=outcome))
        with pytest.raises(ConfigError, match="no run in"):
            told()


def test_every_stage_is_shown_with_its_last_switch() -> None:
    last = StageSwitch(epoch=3, before="dp2", after="tp2", stall_s=0.25, seconds=1.5)
    stages = (
        StageState("rollout", "tp2", "tp2", "rollout stays with tp2", pinned=True, epoch=3, last=last),
        StageState(
            "trainer",
            "",
            switching=StageSwitch(epoch=4, before="dp2", after="tp2", reason="an operator asked for it"),
        ),
    )
    assert stage_paragraphs(RunStatus("r", "train", 3, 9, stages=stages)) == [
        "r, train 3/9",
        "rollout    tp2, pinned",
        "           rollout stays with tp2",
        "           switched from dp2 to tp2 in 1.50 s, stalled 0.25 s (epoch 3)",
        "trainer    mixed parallelism",
        "           is switching from dp2 to tp2 (epoch 4): an operator asked for it",
    ]
