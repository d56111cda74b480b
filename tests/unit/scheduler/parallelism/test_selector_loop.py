"""The selector in a run: what it says, what it writes down, and that it goes on where another left it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from earl.errors import ConfigError
from earl.models.spec import load_spec
from earl.obs.metrics import read_lines
from earl.parallelism import Parallelism
from services.scheduler.monitor.workload import Monitor
from services.scheduler.parallelism import decision_log
from services.scheduler.parallelism.selector_loop import SelectorLoop, kept_profile
from services.scheduler.profile.plan import ProfilePoint
from services.scheduler.profiler.facts import cache_of
from services.scheduler.selector.decision import Decision
from services.scheduler.selector.stage_policies import Observed, SelectorVerdict
from tests.support.disk import full_at
from tests.support.runs import tictactoe
from tests.support.selection import DP2, TP2, LongIsSharded, selecting, step_of

SEARCH_S = 60.0
ROWS = "stage,dp,tp,cp,pp,context_tokens,concurrency,tokens_per_device_s,peak_memory_fraction\n"


# --- what is said ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (DP2, DP2, "rollout decides so: why"),
        (DP2, TP2, "rollout runs dp2; the selector decides so: why"),
        (TP2, TP2, "rollout runs dp2; the selector decides so: why"),
        (TP2, DP2, "rollout runs dp2; the selector decides so: why"),
    ],
)
def test_a_verdict_is_a_sentence(before: Parallelism, after: Parallelism, said: str) -> None:
    assert SelectorVerdict("rollout", DP2, Decision(3, before, after, "decides so: why")).sentence == said
    alone = SelectorVerdict("trainer", Parallelism(), Decision(3, TP2, Parallelism(), "decides so: why"))
    assert alone.sentence == "trainer runs tp1; the selector decides so: why"


# --- what is written ------------------------------------------------------------------------


def test_a_line_has_all_that_the_decision_rests_on(tmp_path: Path) -> None:
    one = selecting(tmp_path)
    one.step(6, step_of(120.0), now=0.0)
    one.close()
    [line] = read_lines(tmp_path / "decisions.jsonl")
    assert (line["step"], line["stage"], line["devices"]) == (7, "rollout", 2)
    assert line["running"] == {"dp": 2, "tp": 1, "cp": 1, "pp": 1}
    assert line["seen"] == {
        "mean_tokens": 120.0, "p95_tokens": 180.0, "max_tokens": 240.0, "concurrency": 16.0,
        "concurrency_most": 20.0, "tokens_per_device_s": 90.0, "memory_fraction": 0.45,
        "kv": {"used_tokens": 60.0, "committed_tokens": 70.0, "total_tokens": 100.0, "used_fraction": 0.6},
    }  # fmt: skip
    assert line["episode_tokens"]["p95"] == 180.0 and line["growth"] == 0.05
    assert line["expected"]["mean_tokens"] == 120.0 and line["headroom"] == "100 x 1.25 = 125 tokens"
    assert [one["parallelism"]["tp"] for one in line["candidates"]] == [1, 2]
    assert line["candidates"][1]["tokens_per_device_s"] == 120.0 and line["candidates"][1]["fits"] is True
    assert line["verdict"] == {
        "before": {"dp": 2, "tp": 1, "cp": 1, "pp": 1}, "after": {"dp": 1, "tp": 2, "cp": 1, "pp": 1},
        "switched": True, "urgent": False, "saving_s": 0.3, "cost_s": 1.0, "horizon_steps": 4.0,
        "reason": "goes to tp2: lengths decide",
    }  # fmt: skip
    assert line["sentence"] == "rollout runs dp2; the selector goes to tp2: lengths decide"
    assert line["decision_ms"] >= 0


def test_only_stages_with_a_profile_are_decided_for(tmp_path: Path) -> None:
    one = selecting(tmp_path)
    one.step(1, step_of(120.0, stage="trainer"), now=0.0)
    assert one.last == {} and (tmp_path / "decisions.jsonl").read_text() == ""


class Lost(LongIsSharded):
    def decide(self, step: int, devices: int) -> Decision:
        raise ConfigError("no parallelism of the profile divides 3 devices", "profile one")


def test_a_profile_without_an_answer_leaves_the_run_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    one = selecting(tmp_path, Lost)
    for step in (1, 2, 3):
        one.step(step, step_of(120.0, running=Parallelism(3)), now=0.0)
    assert one.last == {}
    [said] = [record.getMessage() for record in caplog.records if "nothing is decided" in record.getMessage()]
    assert (
        said == "nothing is decided for rollout: no parallelism of the profile divides 3 devices; profile one"
    )


# --- going on -------------------------------------------------------------------------------


def test_a_scheduler_goes_on_where_another_left(tmp_path: Path) -> None:
    lengths = [50.0, 120.0, 130.0, 60.0, 55.0]
    for name, parts in (("whole", [lengths]), ("parts", [lengths[:3], lengths[3:]])):
        step = 0
        for part in parts:
            one = selecting(tmp_path / name)
            for mean in part:
                step += 1
                one.step(step, step_of(mean), now=0.0)
            one.close()
    lines = [
        [{**line, "decision_ms": 0.0} for line in read_lines(tmp_path / name / "decisions.jsonl")]
        for name in ("whole", "parts")
    ]
    assert lines[0] == lines[1] and len(lines[0]) == 5
    past = decision_log.past(read_lines(tmp_path / "parts" / "decisions.jsonl"), 2)["rollout"]
    assert [one.step for one in past] == [5, 6] and [one.before for one in past] == [TP2, DP2]
    assert past[0].observed == Observed(DP2, step_of(60.0).stages["rollout"].workload, 90.0)


def test_of_a_step_that_was_rolled_back_the_last_line_counts(tmp_path: Path) -> None:
    one = selecting(tmp_path)
    for step, mean in ((1, 50.0), (2, 60.0), (3, 70.0), (2, 500.0)):
        one.step(step, step_of(mean), now=0.0)
    one.close()
    lines = list(read_lines(tmp_path / "decisions.jsonl"))
    damaged: list[dict] = [{}, {"step": "x", "stage": "rollout"}, {**lines[0], "seen": None}]
    past = decision_log.past([*damaged, *lines], 100)["rollout"]
    assert [(one.step, one.observed.workload.mean_tokens) for one in past] == [(2, 50.0), (3, 500.0)]


def test_after_a_roll_back_the_layout_is_that_of_the_steps_that_stayed(tmp_path: Path) -> None:
    """The same whether the scheduler lived through it or began anew."""
    for name in ("lived", "anew"):
        one = selecting(tmp_path / name)
        for step, mean in ((1, 50.0), (2, 120.0), (3, 130.0)):
            one.step(step, step_of(mean), now=0.0)
        if name == "anew":
            one.close()
            one = selecting(tmp_path / name)
        one.step(2, step_of(60.0), now=0.0)
        one.close()
        *_, last = read_lines(tmp_path / name / "decisions.jsonl")
        assert (last["step"], last["verdict"]["switched"]) == (3, False)
        assert last["verdict"]["before"] == last["verdict"]["after"] == DP2.as_dict()


# --- the profile ----------------------------------------------------------------------------


def searched(loop: SelectorLoop) -> None:
    """Waits for the search in a thread of its own that the first step has begun."""
    assert loop._search_result is not None
    loop._search_result.result(SEARCH_S)


def test_without_a_profile_nothing_is_decided_and_the_log_says_how(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    one = SelectorLoop(tmp_path, Monitor(), search=lambda: None)
    one.step(1, step_of(100.0), now=0.0)
    searched(one)
    for step in (2, 3):
        one.step(step, step_of(100.0), now=0.0)
    assert not (tmp_path / "decisions.jsonl").exists()
    [said] = caplog.messages
    assert "no profile of this model" in said and "`earl profile`" in said
    caplog.clear()
    SelectorLoop.open(tictactoe(tmp_path, scheduler={"selector": "static"}), tmp_path, Monitor())
    assert caplog.text == ""


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "cannot be read"),
        ("a,b\n1,2\n", "has no column 'stage'"),
        (ROWS + "rollout,2,1,1,1,64,4,fast,\n", "line 2: tokens_per_device_s is 'fast'"),
    ],
)
def test_a_profile_that_is_none_is_refused(tmp_path: Path, text: str | None, words: str) -> None:
    path = tmp_path / "table.csv"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigError, match=words):
        SelectorLoop.open(tictactoe(tmp_path, scheduler={"profile": str(path)}), tmp_path, Monitor())


TABLE = ROWS + "".join(
    f"rollout,{dp},{tp},1,1,{context},{concurrency},{rate * (1.0 if concurrency > 4 else 0.5)},\n"
    for dp, tp, context, rate in (
        (2, 1, 64, 200.0), (2, 1, 1024, 100.0), (1, 2, 64, 120.0), (1, 2, 1024, 160.0),
    )
    for concurrency in (4, 32)
)  # fmt: skip


def test_a_run_decides_by_its_profile_and_keeps_it(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text(TABLE)
    config = tictactoe(tmp_path, scheduler={"profile": str(path), "switch_cost_s": 0.5})
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    lengths = [64.0] * 3 + [900.0] * 12
    one = SelectorLoop.open(config, run_dir, Monitor())
    for step, mean in enumerate(lengths[:8], 1):
        one.step(step, step_of(mean), now=0.0)
    one.close()
    # The next scheduler has the growth that this one saw, and the same assumed.
    monitor = Monitor()
    two = SelectorLoop.open(config, run_dir, monitor)
    for step, mean in enumerate(lengths[8:], 9):
        two.step(step, step_of(mean), now=0.0)
    two.close()
    lines = list(read_lines(run_dir / "decisions.jsonl"))
    assert [line["step"] for line in lines] == list(range(2, len(lengths) + 2))
    befores = [line["verdict"]["before"]["tp"] for line in lines]
    afters = [line["verdict"]["after"]["tp"] for line in lines]
    assert befores[1:] == afters[:-1] and (afters[0], afters[-1]) == (1, 2)
    assert len({tuple(sorted(line["verdict"]["after"].items())) for line in lines}) == 2
    assert (run_dir / "profile.csv").read_text() == TABLE
    assert all(line["verdict"]["cost_s"] == 0.5 for line in lines if line["verdict"]["switched"])
    assert json.loads((run_dir / "decisions.jsonl").read_text().splitlines()[-1])["policy"] == "earl"


def test_what_runs_need_not_be_in_the_profile(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text(TABLE)
    one = SelectorLoop.open(tictactoe(tmp_path, scheduler={"profile": str(path)}), tmp_path, Monitor())
    one.step(1, step_of(64.0, running=Parallelism(cp=2)), now=0.0)
    decision = one.last["rollout"].decision
    assert decision.after == DP2 and decision.switched and decision.urgent
    one.close()


def test_a_full_disk_ends_no_run_for_its_profile(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "table.csv"
    path.write_text(TABLE)
    with full_at(1):
        one = SelectorLoop.open(tictactoe(tmp_path, scheduler={"profile": str(path)}), tmp_path, Monitor())
        one.step(1, step_of(64.0), now=0.0)
    assert "rollout" in one.last and "profile.csv cannot be written" in caplog.text
    assert not (tmp_path / "profile.csv").exists()  # whole or not at all
    one.step(2, step_of(64.0), now=0.0)
    one.close()
    assert [line["step"] for line in read_lines(tmp_path / "decisions.jsonl")] == [3]


def test_what_earl_profile_kept_is_decided_by(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EARL_CACHE", str(tmp_path / "cache"))
    config, model = tictactoe(tmp_path), tmp_path / "model"
    model.mkdir()
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 16}
    (model / "config.json").write_text(
        json.dumps({"model_type": "llama", "intermediate_size": 64, "num_key_value_heads": 2, **sizes})
    )
    spec = load_spec(model)
    cache = cache_of("rollout", config, spec)
    with cache.held(fresh=False):
        for layout, rate in ((DP2, 200.0), (TP2, 100.0)):
            for context in (64, 1024):
                for _ in range(5):
                    cache.note(layout, ProfilePoint(context, 16), rate, 0.1, 0.2)
    # With other threads it would be as fast as nobody knows.
    assert kept_profile(tictactoe(tmp_path, rollout={"threads": 2}), tmp_path) is None
    one = SelectorLoop.open(config, tmp_path, Monitor())
    one.step(1, step_of(100.0), now=0.0)
    searched(one)
    one.step(2, step_of(100.0), now=0.0)
    assert one.last["rollout"].decision.after == DP2
    assert (tmp_path / "profile.csv").read_text().count("rollout,") == 4
    one.close()
