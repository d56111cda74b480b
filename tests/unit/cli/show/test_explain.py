"""`earl explain`: what an engineer reads of a decision, and one line for what there is not."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from earl.cli.lib import switches
from earl.cli.lib.decisions import read_decisions
from earl.cli.show.explain import app
from earl.cli.show.unexplained import outlook_lines
from earl.config.run import RunConfig
from earl.errors import ConfigError
from earl.models.create import create_model
from tests.support.recorded import recorded
from tests.support.selection import selecting, step_of


def decided(directory: Path, *means: float, stage: str = "rollout", longest: float | None = None) -> None:
    """A run whose steps from 1 on had these mean lengths."""
    (directory / "run.json").write_text('{"scheduler": {"selector": "observe", "profile": "table.csv"}}')
    selection = selecting(directory, stage=stage)
    for step, mean in enumerate(means, 1):
        selection.step(step, step_of(mean, stage=stage, longest=longest), now=0.0)
    selection.close()


def told(*arguments: object) -> str:
    """Returns what it prints; raises what it raises."""
    result = CliRunner().invoke(app, [str(one) for one in arguments], standalone_mode=False)
    if result.exception is not None:
        raise result.exception
    return result.output


def table(text: str, head: str) -> list[list[str]]:
    """Cells of the rows below a head, up to an empty line."""
    lines = text.splitlines()
    first = next(at for at, line in enumerate(lines) if line.strip().startswith(head))
    rows = []
    for line in lines[first + 1 :]:
        if not line.strip():
            break
        rows.append([cell.strip() for cell in line.split("   ") if cell.strip()])
    return rows


def test_the_last_decision_and_where_the_verdict_changed(tmp_path: Path) -> None:
    decided(tmp_path, 50.0, 120.0, 130.0, 60.0)
    text = told(tmp_path)
    assert text.startswith("rollout, step 5 (decided after step 4, 2 devices)\n")
    assert "  rollout runs dp2; the selector goes to dp2: lengths decide\n" in text
    assert table(text, "workload")[:4] == [
        ["mean tokens", "60", "60"],
        ["95th percentile", "90", "90"],
        ["longest", "120", "120"],
        ["sequences at once", "16 (most 20)", "16"],
    ]
    beside = "growth +5.0% per step; 90 tokens/s per device measured; 45% of the fullest device's memory"
    assert beside in text
    assert "KV 60% of 100 tokens" in text
    assert table(text, "parallelism") == [
        ["tp2", "120", "1.7 s", "40%"],
        ["dp2", "100", "2 s", "50%", "running, chosen"],
    ]
    grounds = (
        "0.3 s saved per step, over 4 steps; a layout must hold 100 x 1.25 = 125 tokens; a switch costs 1 s"
    )
    assert f"{grounds}; policy test, decided in" in text.replace("\n  ", " ")
    *_, head, first, second = text.splitlines()
    assert head == "rollout: the verdict changed 2 times, steps 2 to 5"
    assert first == "  step 3: goes to tp2: lengths decide"
    assert second == "  step 5: goes to dp2: lengths decide"


def test_a_step_is_told_with_what_did_not_fit_and_why(tmp_path: Path) -> None:
    decided(tmp_path, 50.0, 120.0, longest=900.0)
    text = told(tmp_path, "--step", 3)
    assert text.startswith("rollout, step 3 (decided after step 2")
    marks = "running, does not fit: out of memory"
    assert table(text, "parallelism")[1] == ["dp2", "100", "2 s", "120%", marks]
    assert "urgent: switched without a payback" in text and "changed" not in text


def test_all_of_it_is_one_object(tmp_path: Path) -> None:
    decided(tmp_path, 50.0, 120.0)
    found = json.loads(told(tmp_path, "--json"))
    [line] = found["decisions"]
    assert line["step"] == 3 and line["verdict"]["after"]["tp"] == 2 and len(line["candidates"]) == 2
    assert [(one["step"], one["after"]["tp"]) for one in found["changes"]["rollout"]] == [(3, 2)]
    assert json.loads(told(tmp_path, "--json", "--step", 2))["changes"] == {}


def test_every_stage_is_told_or_the_one_that_is_asked_for(tmp_path: Path) -> None:
    decided(tmp_path, 50.0)
    decided(tmp_path, 60.0, stage="trainer")
    text = told(tmp_path)
    assert "rollout, step 2" in text and "trainer, step 2" in text
    assert "rollout" not in told(tmp_path, "--stage", "trainer")
    with pytest.raises(
        ConfigError, match="no decisions for stage 'gateway'; it has some for rollout, trainer"
    ):
        told(tmp_path, "--stage", "gateway")


def test_a_recorded_run_can_be_explained(tmp_path: Path) -> None:
    recorded(tmp_path)
    text = told(tmp_path)
    assert "rollout, step 13" in text and "the verdict changed" in text
    # 32 leased, as many as two engines hold; 64 episodes in 6 s on two devices.
    assert "32" in table(text, "workload")[3][1]
    # An engine's tokens: of whole episodes while any were leased.
    line = read_decisions(tmp_path)["rollout"][-1]
    assert line.seen.tokens_per_device_s == pytest.approx(line.seen.mean_tokens * 64 / 6 / 2)


# --- what became of it ----------------------------------------------------------------------


def test_what_became_of_a_decision_is_told(tmp_path: Path) -> None:
    decided(tmp_path, 50.0, 120.0, 130.0)
    path = tmp_path / "decisions.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    lines[1]["epoch"], lines[2]["held"] = 3, "rollout is pinned"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert "carried out as epoch 3, which has not ended" in told(tmp_path, "--step", 3)
    assert "not carried out: rollout is pinned" in told(tmp_path, "--step", 4)
    switch = {
        "stage": "rollout", "epoch": 3, "by": "selector", "step": 3, "before": {"dp": 2}, "after": {"tp": 2},
        "reason": "goes to tp2: lengths decide", "stall_s": 0.25, "seconds": 4.5,
    }  # fmt: skip
    other = {**switch, "epoch": 4, "by": "operator", "rolled_back": True, "message": "w: no room"}
    realigned = {**switch, "epoch": 5, "by": "mend", "reason": "rollout-1 had dp4"}
    with (tmp_path / "switches.jsonl").open("w") as file:
        file.write(f'{json.dumps(switch)}\n{{"stage": 3}}\n{json.dumps(other)}\n{json.dumps(realigned)}\n')
    went = "rollout switched from dp2 to tp2 in 4.50 s, stalled 0.25 s (epoch 3)"
    assert went in told(tmp_path, "--step", 3)
    text = told(tmp_path)
    assert f"{went}; selector: goes to tp2: lengths decide\n" in text
    assert "rollout stayed dp2, rolled back from tp2 (epoch 4): w: no room; operator: goes to tp2" in text
    assert "(epoch 5); realignment: rollout-1 had dp4" in text and "mend" not in text
    found = json.loads(told(tmp_path, "--step", 3, "--json"))["decisions"][0]
    assert found["switch"]["stall_s"] == 0.25 and found["epoch"] == 3
    assert json.loads(told(tmp_path, "--step", 2, "--json"))["decisions"][0]["switch"] is None


def test_the_page_shows_who_requested_a_switch_as_the_command_does() -> None:
    script = (Path(switches.__file__).parents[1] / "report" / "web" / "lengths.js").read_text()
    [names] = re.findall(r"^const REQUESTED_BY = \{ (.*) \};$", script, re.MULTILINE)
    assert dict(re.findall(r'(\w+): "(\w+)"', names)) == switches.REQUESTED_BY


# --- what is not there ----------------------------------------------------------------------


def test_what_there_is_not_is_named_with_its_remedy(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"there is no run .*none'.*; earl ls lists the runs"):
        told(tmp_path / "none")
    for scheduler, because in (
        ({"selector": "static", "profile": ""}, 'scheduler.selector is "static"'),
        ({"selector": "observe", "profile": ""}, "it has no profile"),
        ({"selector": "observe", "profile": "x.csv"}, "no training step is complete yet"),
        ({}, "it was made before the selector existed"),
    ):
        (tmp_path / "run.json").write_text(json.dumps({"scheduler": scheduler}))
        text = told(tmp_path)
        assert text.startswith(f"The selector decided nothing in {tmp_path}: {because}.\n")
        assert f"earl profile {tmp_path / 'run.toml'}" in text
        with pytest.raises(ConfigError, match=r"has no decisions .*leave --step out"):
            told(tmp_path, "--step", 3)
    assert json.loads(told(tmp_path, "--json"))["reason"] == because
    decided(tmp_path, 50.0, 120.0)
    with pytest.raises(ConfigError, match="no decision for rollout at step 1; it has some for steps 2 to 3"):
        told(tmp_path, "--step", 1)


def test_without_decisions_it_says_what_was_measured_and_what_a_profile_would_compare(tmp_path: Path) -> None:
    config = RunConfig.model_validate({"name": "r", "environment": {"name": "e"}})
    create_model(tmp_path / "model", config.model, seed=0)
    (tmp_path / "run.json").write_text(config.model_dump_json())
    lines = [
        {
            "step": step,
            "parallelism": {"rollout": {"dp": devices, "tp": 1, "cp": 1, "pp": 1}},
            "load": {"rollout": {"mean_tokens": mean, "max_tokens": 2 * mean, "memory_fraction": 0.25}},
        }
        for step, mean, devices in ((1, 100.0, 2), (2, 900.0, 2))
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    text = told(tmp_path)
    assert "rollout, dp2, step 2" in text and "25% of the fullest device's memory" in text
    assert "mean tokens 100 at the first step, 900 at the last; longest 1,800" in text
    assert "2 devices: a profile would compare it with tp2" in text
    measured = json.loads(told(tmp_path, "--json"))["measured"]["rollout"]
    assert measured["parallelism"] == "dp2" and measured["last_step"]["mean_tokens"] == 900.0
    assert "rollout" not in told(tmp_path, "--stage", "trainer")


def test_without_decisions_it_says_how_long_a_profile_takes_and_what_fits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EARL_CACHE", str(tmp_path / "cache"))
    stages = {"rollout": {"engines": 2, "device": "cpu"}, "trainer": {"ranks": 2, "device": "cpu"}}
    config = RunConfig.model_validate({"name": "r", "environment": {"name": "e"}, **stages})
    create_model(tmp_path / "model", config.model, seed=0)
    (tmp_path / "run.json").write_text(config.model_dump_json())
    line = {"step": 1, "load": {"rollout": {"mean_tokens": 9.0, "max_tokens": 9}}}
    line["parallelism"] = {"rollout": {"dp": 2, "tp": 1, "cp": 1, "pp": 1}}
    (tmp_path / "metrics.jsonl").write_text(json.dumps(line) + "\n")
    text = told(tmp_path)
    assert re.search(r"not measured yet: dp2, tp2; a short profile takes about \d+ s\n", text)
    assert "it decides by tokens/s" in text and "left out" not in text
    profile = json.loads(told(tmp_path, "--json"))["profile"]
    assert profile["error"] is None and set(profile["facts"]["stages"]) == {"rollout", "trainer"}
    (tmp_path / "run.json").write_text("{}")
    assert "What a profile would decide is not known: its run.json is of another version." in told(tmp_path)


def test_what_the_memory_model_leaves_out_is_told_with_what_alone_fits() -> None:
    stage = {"layouts": ["dp2", "tp2"], "lacking": ["tp2"], "predicted_s": 41.0, "excluded": {"dp2": 1.5}}
    assert list(outlook_lines(stage, {"profile_s": 30.0})) == [
        "dp2 is left out by the memory model: 150% of the memory of a rank at the longest context",
        "so the choice is tp2, which alone fits",
        "not measured yet: tp2; a short profile takes about 41 s",
        "no launch takes it by itself: scheduler.profile_s allows 30 s",
        "it decides by tokens/s at the lengths of the run, among the layouts that fit",
    ]
    measured = {"layouts": ["dp2", "tp2"], "lacking": [], "predicted_s": 0.0, "excluded": {}}
    assert list(outlook_lines(measured, {"profile_s": 30.0})) == [
        "every layout is measured on this machine: the next launch decides by that"
    ]
    assert list(outlook_lines(None, {})) == []


def test_steps_that_were_rolled_back_are_not_told(tmp_path: Path) -> None:
    decided(tmp_path, 50.0, 120.0, 130.0)
    again = selecting(tmp_path)
    again.step(2, step_of(70.0), now=0.0)
    again.close()
    (tmp_path / "decisions.jsonl").open("a").write('{"step": 9, "stage": "rollout"}\n{"ste')
    lines = read_decisions(tmp_path)["rollout"]
    assert [(line.step, line.seen.mean_tokens) for line in lines] == [(2, 50.0), (3, 70.0)]
    assert "the verdict was dp2 throughout" in told(tmp_path)


def test_the_command_is_an_app_like_the_others() -> None:
    assert isinstance(app, typer.Typer)
    assert "--step" in CliRunner().invoke(app, ["--help"], env={"COLUMNS": "120"}).output
