"""Checks the dashboard's sections, made of a run's files and of what its services say, and their stream."""

from __future__ import annotations

import fcntl
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from earl.cli.lib.concerns import WAIT_S
from earl.cli.lib.gateway_codec import GatewayEnvironment
from earl.cli.report.embedded import embedded
from earl.cli.report.page import write_report
from earl.cli.report.sections.encoding import encoded
from earl.cli.report.sections.history import RunHistory
from earl.cli.report.sections.layouts import bands
from earl.cli.report.sections.series import POINTS, thinned
from earl.cli.report.sections.trajectories import Filters, Trajectories
from earl.dashboard.codec_services import CHARACTERS, fleet
from earl.dashboard.door import Door
from earl.dashboard.feed import FOLLOWERS, Feed
from earl.dashboard.live import CONCERNS, Live
from earl.obs.metrics import LineFile
from earl.stack.record import LaunchRecord, write_record
from earl.stack.run_files import LOCK
from earl.stack.status import EvaluationStatus, LedgerStatus, RoleState, RunStatus, Transfers, WorkerState
from earl.v1 import env_pb2
from services.scheduler.files.samples import SampleFile
from services.scheduler.state.tickets import Purpose
from tests.support.dashboard import Says, Silent, config_of
from tests.support.recorded import recorded, talk, ticket

# --- files ----------------------------------------------------------------------------------


def test_a_run_that_ended_is_shown_from_its_directory_alone(tmp_path: Path):
    recorded(tmp_path, steps=12, layout=(2, 1, 1, 1))
    sections = RunHistory(tmp_path, config_of(tmp_path)).update()
    learning = json.loads(encoded(sections["learning"]))
    assert learning["curves"]["reward_mean"][-1] == [12.0, 1.0] and learning["steps"] == 12
    start, final = learning["evaluations"]
    assert (start["name"], start["step"], final["step"]) == ("start", 0, 12)
    win, low, high = final["win_rate"]
    assert low < win < high and final["gain"][1] is not None and "rewards" not in final
    lengths = json.loads(encoded(sections["lengths"]))
    assert len(lengths["columns"]) == 12 and sum(lengths["columns"][0]["bins"].values()) == 64
    rollout = next(stage for stage in lengths["stages"] if stage["name"] == "rollout")
    assert rollout["ran"] == [{"layout": "dp2", "start": 0.0, "end": 12.0}]
    decided = json.loads(encoded(sections["decisions"]))
    assert decided[0]["stage"] == "rollout" and decided[0]["candidates"][0]["layout"]
    history = decided[0]["history"]
    assert len(history["changes"]) == len(history["chosen"]) - 1 >= 1
    assert history["ran"][0]["layout"] == "dp2" and history["ran"][0]["start"] == 1
    assert len(history["lengths"]["longest"]) == history["ran"][-1]["end"] - 1
    assert [one["title"] for one in sections["missing"]] == ["KL to the reference"]
    phases = [name for name, _ in learning["phases"]]
    assert phases == ["evaluate:start", "train", "evaluate:final"]
    begun = [time_ms for _, time_ms in learning["phases"]]
    assert [time_ms - begun[0] for time_ms in begun] == [0, 5000, 120_000]
    assert sections["endings"]["truncated"] == 6 and sections["faults"]["rows"] == []
    assert sections["moved"][0]["path"] == "shm"


def test_only_what_grew_is_read_and_only_what_changed_is_told(tmp_path: Path):
    recorded(tmp_path, steps=3)
    history = RunHistory(tmp_path, config_of(tmp_path))
    assert set(history.update()) == {
        "learning", "mixture", "lengths", "decisions", "endings", "faults", "missing", "moved",
    }  # fmt: skip
    assert history.update() == {}
    file = LineFile(tmp_path / "endings.jsonl")
    file.write({"time_s": 9.0, "ok": 5})
    assert set(history.update()) == {"endings"}
    # A roll-back takes steps back.
    metrics = LineFile(tmp_path / "metrics.jsonl")
    metrics.write({"step": 2, "phase": "train", "version": 5, "time_s": 40.0, "reward_mean": 0.25})
    assert history.update()["learning"]["curves"]["reward_mean"] == [(1.0, 1 / 3), (2.0, 0.25)]


def test_nothing_recorded_yet_is_an_empty_run(tmp_path: Path):
    recorded(tmp_path, steps=1)
    config = config_of(tmp_path)
    for file in tmp_path.glob("*.jsonl"):
        file.unlink()
    sections = RunHistory(tmp_path, config).update()
    assert sections["learning"]["curves"]["win_rate"] == [] and sections["lengths"]["columns"] == []
    assert Trajectories(tmp_path).update(None)["count"] == 0


@given(st.lists(st.floats(-1e6, 1e6), max_size=5 * POINTS))
def test_a_curve_fits_a_screen_and_keeps_its_end_and_its_mean(values: list[float]):
    every = [(float(at), value) for at, value in enumerate(values)]
    shown = thinned(every)
    assert len(shown) <= POINTS
    if every:
        assert shown[-1][0] == every[-1][0]
        assert (
            min(values) - 1e-6 <= min(y for _, y in shown) and max(y for _, y in shown) <= max(values) + 1e-6
        )


def test_bands_are_stretches_of_one_layout():
    assert bands([(0, "dp2"), (1, "dp2"), (2, "tp2"), (3, "dp2")]) == [
        {"layout": "dp2", "start": 0, "end": 2},
        {"layout": "tp2", "start": 2, "end": 3},
        {"layout": "dp2", "start": 3, "end": 4},
    ]


# --- services -------------------------------------------------------------------------------

STATUS = RunStatus(
    run="tictactoe", phase="train", step=3, steps=10, version=7, elapsed_s=30.0,
    ledger=LedgerStatus(issued=100, trained=60, dropped={"too_stale": 4}, pending=6, leased=30),
    workers=(
        WorkerState("rollout-0", "rollout", "dp2", 32, 30, 7, 0.25, {"memory_fraction": 0.5},
                    {"shm": Transfers(1 << 30, 2.0, 1)}),
    ),
    evaluations=(EvaluationStatus("start", 4, 64, 32, 0.5, 0.1, {}),),
)  # fmt: skip


async def test_a_run_that_goes_on_shows_what_its_scheduler_says(tmp_path: Path):
    recorded(tmp_path, steps=3)
    shown = await Live(tmp_path, config_of(tmp_path), Says(STATUS)).sections({})
    run, ledger = shown["run"], shown["ledger"]
    assert (run["state"], run["phase"], run["step"], run["version"]) == ("live", "train", 3, 7)
    assert run["evaluating"] == {"name": "start", "done": 32, "episodes": 64} and run["doing"] == ""
    assert ledger["issued"] == ledger["trained"] + ledger["evaluated"] + 4 + ledger["live"]
    worker = shown["workers"]["rows"][0]
    assert worker["transfers"][0]["gb_per_s"] == (1 << 30) / 2e9 and worker["silent_s"] == 0.2
    slow = replace(STATUS, metrics={"step_spent_s": 12.0, "step_played": 20.0, "step_episodes": 64.0})
    run = (await Live(tmp_path, config_of(tmp_path), Says(slow)).sections({}))["run"]
    assert run["doing"] == "step 4: 20 of 64 episodes played, 0:12 so far"


async def test_a_silent_scheduler_is_said_with_since_when(tmp_path: Path):
    recorded(tmp_path, steps=3)
    services = Says(STATUS)
    live = Live(tmp_path, config_of(tmp_path), services)
    await live.sections({})
    services.said = None
    with (tmp_path / LOCK).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        shown = await live.sections({})
        again = await live.sections({})
    assert shown["run"]["state"] == "silent" and "cannot be reached" in shown["run"]["error"]
    assert shown["run"]["since"] == again["run"]["since"]
    assert shown["workers"]["rows"] and shown["workers"]["heard"] == shown["run"]["since"]
    assert shown["run"]["step"] == 3 and shown["tickets"]["rows"] == []
    assert (await live.sections({}))["run"]["state"] == "ended"


async def test_an_address_that_another_run_has_now_is_not_asked_for_this_one(tmp_path: Path):
    recorded(tmp_path, steps=3)
    live = Live(tmp_path, config_of(tmp_path), Says(replace(STATUS, run="another")))
    shown = await live.sections(
        {"step": 3, "phase": "train", "version": 6, "ledger.issued": 64, "ledger.dropped:x": 2}
    )
    assert shown["run"]["state"] == "ended" and shown["run"]["phase"] == "train"
    assert shown["ledger"]["issued"] == 64 and shown["ledger"]["dropped"] == {"x": 2}


async def test_why_a_run_failed_is_shown(tmp_path: Path):
    recorded(tmp_path, steps=1)
    (tmp_path / "failure.json").write_text(json.dumps({"error": "EngineLost", "message": "engine 0 died"}))
    shown = await Live(tmp_path, config_of(tmp_path), Silent()).sections({})
    assert shown["run"]["failure"]["error"] == "EngineLost" and shown["hosts"]["state"] == "ended"


async def test_why_a_run_ended_is_said_as_everywhere(tmp_path: Path):
    recorded(tmp_path, steps=1)
    services = Silent()
    assert (await Live(tmp_path, config_of(tmp_path), services).sections({}))["run"]["why"] == ""
    status = RunStatus(message="stopped by Ctrl-C", phase="train", step=3, steps=40)
    write_record(tmp_path, LaunchRecord(1, "mark", outcome="stopped", status=status))
    shown = (await Live(tmp_path, config_of(tmp_path), services).sections({}))["run"]
    assert shown["why"] == "stopped by Ctrl-C after 3 of 40 steps"
    assert '<p id="why" class="faint">stopped by Ctrl-C after 3 of 40 steps</p>' in (
        write_report(tmp_path).read_text()
    )


@pytest.mark.parametrize("outcome", ["complete", "stopped", "failed"])
async def test_a_run_that_ended_shows_its_final_ledger(tmp_path: Path, outcome: Any):
    recorded(tmp_path, steps=1)
    # An earlier launch's.
    result = {"issued": 64, "trained": 16, "evaluated": 0, "dropped": 0, "live": 48}
    (tmp_path / "result.json").write_text(json.dumps(result))
    last = {"step": 1, "ledger.issued": 64, "ledger.pending": 48}
    ledger = LedgerStatus(100, 60, 28, {"too_stale": 2}, pending=1, leased=4, ready=3, planned=2)
    status = replace(STATUS, ledger=ledger, roles=(RoleState("trainer", 3, 2, 60),))
    write_record(tmp_path, LaunchRecord(1, "mark", outcome=outcome, status=status))
    live = (await Live(tmp_path, config_of(tmp_path), Silent()).sections(last))["ledger"]
    shown = [live, embedded(tmp_path, config_of(tmp_path)).sections["ledger"]]
    for page in shown:
        assert (page["issued"], page["trained"], page["evaluated"], page["live"]) == (100, 60, 28, 10)
        assert [page[name] for name in ("pending", "leased", "ready", "planned")] == [1, 4, 3, 2]
        assert page["dropped"] == {"too_stale": 2} and page["final"]
        assert page["roles"] == [{"name": "trainer", "waiting": 3, "leased": 2, "done": 60}]


async def test_a_run_whose_launcher_recorded_no_end_shows_the_ledger_of_its_last_step(tmp_path: Path):
    recorded(tmp_path, steps=1)
    write_record(tmp_path, LaunchRecord(1, "mark", status=STATUS))
    last = {"step": 1, "ledger.issued": 64, "ledger.pending": 48}
    shown = (await Live(tmp_path, config_of(tmp_path), Silent()).sections(last))["ledger"]
    assert (shown["issued"], shown["pending"], shown["step"]) == (64, 48, 1) and "final" not in shown


async def test_what_goes_wrong_now_is_told_as_the_terminal_words_it(tmp_path: Path):
    recorded(tmp_path, steps=1)
    waiting = replace(STATUS.workers[0], gauges={"waits_for_host_s": 12.0})
    services = Says(replace(STATUS, workers=(waiting,)))
    live = Live(tmp_path, config_of(tmp_path), services)
    told = "rollout has waited 12 s for a host that serves the run's environment"
    # The gateway's answer of this double does not say what hosts serve.
    assert (await live.sections({}))["concerns"] == [told]
    services.fleet = fleet([], env_pb2.ListHostsResponse(), 0.0)
    assert (await live.sections({}))["concerns"] == [f"{told}; no host is connected"]
    waited = {"queued": 2, "quarantined": 0, "oldest_wait_s": WAIT_S}
    entries = [GatewayEnvironment(f"game{i}", "", "", None, [], 0, 0, 0, **waited) for i in range(50)]
    services.fleet = fleet(entries, env_pb2.ListHostsResponse(), 0.0)
    services.said = STATUS
    concerns = (await live.sections({}))["concerns"]
    assert concerns[0] == "2 episodes wait for a host of game0: no host serves it"
    assert len(concerns) == CONCERNS
    # What stops the run comes before words that many workers do not know, in one sentence.
    words = [replace(waiting, name=f"rollout-{i}", gauges={"unknown_words": 1.0 + i}) for i in range(12)]
    services.said = replace(STATUS, workers=(waiting, *words))
    game = replace(entries[0], quarantined=1, quarantines=("host h is in quarantine for 9 s more: boom",))
    services.fleet = fleet([game], env_pb2.ListHostsResponse(), 0.0)
    first, second, third, fourth = (await live.sections({}))["concerns"]
    assert first == f"{told}; no host is connected" and second.startswith(
        "2 episodes wait for a host of game0"
    )
    assert third == "game0: host h is in quarantine for 9 s more: boom"
    assert fourth == (
        "rollout-0 and 11 other workers have read words (at most 12 each) that model.scratch.words does not "
        "have, and the model cannot tell apart; `earl logs rollout-0` names its own"
    )
    services.said = replace(STATUS, workers=(replace(words[0], name="\x1b[2J" + "y" * 1000),))
    *_, last = (await live.sections({}))["concerns"]
    assert last.startswith("␛[2Jyyy") and len(last) == CHARACTERS + 1
    # Of a run that has ended nothing goes wrong now.
    assert (await Live(tmp_path, config_of(tmp_path), Silent()).sections({}))["concerns"] == []


# --- trajectories ---------------------------------------------------------------------------


def test_trajectories_are_found_by_step_reward_and_ending(tmp_path: Path):
    recorded(tmp_path, steps=5)
    kept = Trajectories(tmp_path)
    section = kept.update(8)
    assert section["evaluations"] == ["final", "start"] and section["steps"] == [0, 5]

    def found(**wanted) -> list[int]:
        return [one["step"] for one in kept.listing(Filters(**wanted))["rows"]]

    assert found(kind="training") == [5, 4, 3, 2, 1]
    assert found(kind="training", first=2, last=3) == [3, 2]
    assert set(found(kind="start")) == {0} and len(found(kind="evaluation")) == 4
    assert len(found(reward="positive")) + len(found(reward="zero")) == section["count"]
    assert found(ending="timeout") == []


def test_text_siblings_and_the_same_task_are_found(tmp_path: Path):
    samples = SampleFile(tmp_path / "samples.jsonl")
    for number, reward in ((1, 0.0), (2, 1.0), (3, 1.0)):
        one = structs.replace(ticket(number, Purpose.TRAIN, 1, 2, reward), group=1 if number < 3 else 2)
        assert one.result is not None
        samples.observe(0, one, one.result, talk(f"question {number}", reward))
    samples.trained(1, [1, 2, 3])
    for number, name in ((8, "start"), (9, "final")):
        one = ticket(number, Purpose.EVALUATE, 5, 2, 1.0, name)
        assert one.result is not None
        samples.observe(0, one, one.result, talk("held out", 1.0))
    samples.close()
    kept = Trajectories(tmp_path)
    kept.update(9)
    assert [one["ticket"] for one in kept.listing(Filters(text="QUESTION 2"))["rows"]] == [2]
    assert kept.listing(Filters(text="nowhere"))["count"] == 0
    first, last = kept.whole(1), kept.whole(9)
    assert first is not None and last is not None
    assert [one["ticket"] for one in first["siblings"]] == [1, 2] and first["siblings"][0]["said"]
    assert [one["evaluation"] for one in last["evaluated"]] == ["start", "final"] and not last["siblings"]


def test_what_was_said_is_text_whatever_it_looks_like(tmp_path: Path):
    evil = '<script>fetch("//evil")</script>\x1b[2J\x1b]0;owned\x07\u202e'
    recorded(tmp_path, steps=2, text=evil)
    kept = Trajectories(tmp_path)
    kept.update(5)
    number = kept.listing(Filters(kind="training"))["rows"][0]["ticket"]
    whole = kept.whole(number)
    assert whole is not None
    text = whole["turns"][1]["text"]
    assert text.startswith("<script>") and "\x1b" not in text and "␛[2J" in text and "␇" in text
    assert kept.whole(10**9) is None


def test_a_thinned_file_is_read_anew(tmp_path: Path):
    recorded(tmp_path, steps=2)
    kept = Trajectories(tmp_path)
    before = kept.update(5)["count"]
    samples = SampleFile(tmp_path / "samples.jsonl", limit_bytes=1)
    one = ticket(900, Purpose.TRAIN, 1, 5, 1.0)
    assert one.result is not None
    samples.observe(2, one, one.result, talk("x", 1.0))
    samples.trained(3, [one.id])
    samples.close()
    assert kept.update(5)["count"] < before


# --- the stream -----------------------------------------------------------------------------


async def events(feed: Feed, last: str, count: int) -> list[tuple[str, str]]:
    """(id, section) of the first `count` events after `last`."""
    found = []
    following = feed.follow(last)
    async for event in following:
        fields = dict(line.split(": ", 1) for line in event.decode().splitlines() if ": " in line)
        if "event" in fields:
            found.append((fields["id"], fields["event"]))
            json.loads(fields["data"])
        if len(found) == count:
            break
    await following.aclose()
    return found


async def test_a_follower_is_told_all_and_one_that_comes_back_what_changed(tmp_path: Path):
    feed = Feed()
    feed.put("a", {"x": math.nan})
    feed.put("b", [1, 2])
    found = await events(feed, "", 2)
    assert [name for _, name in found] == ["a", "b"]
    feed.put("b", [1, 2])  # the same: nothing to tell
    feed.put("a", {"x": 1.0})
    last = found[-1][0]
    assert [name for _, name in await events(feed, last, 1)] == ["a"]
    assert [name for _, name in await events(feed, "other.9", 2)] == ["b", "a"]
    assert [name for _, name in await events(feed, "garbage", 2)] == ["b", "a"]


async def test_a_slow_follower_gets_the_latest_and_no_backlog(tmp_path: Path):
    feed = Feed()
    following = feed.follow("")
    await anext(following)
    for value in range(1000):
        feed.put("a", value)
    event = await anext(following)
    assert b"data: 999\n" in event
    assert feed.followers == 1 and feed.watched.is_set() and not feed.full and FOLLOWERS > 1
    feed.close()
    assert [event async for event in following] == []
    assert feed.followers == 0 and not feed.watched.is_set()


def test_a_door_for_a_directory_that_takes_no_file(tmp_path: Path):
    from earl.dashboard.door import key_of

    assert len(key_of(tmp_path / "missing")) == 32
    links: list[str] = []
    door = Door(key_of(tmp_path), links.append)
    assert door.redeem("") is None and door.redeem("é") is None and len(links) == 1
