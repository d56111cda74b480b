"""The history's checker proves a true history, finds each planted violation, names what is missing."""

from __future__ import annotations

import dataclasses
import json
import random
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import pytest

from earl.history.check import CheckedHistory, Segment, check_segments
from earl.history.state import HistoryState
from tests.support.ledger import RULES, World

Lines = list[list[dict[str, Any]]]


@cache
def walked() -> World:
    """A run with crashes, roll-backs, evaluations and groups that are trained again, to its end."""
    rules = dataclasses.replace(
        RULES, staleness=1, steps=12, group_size=3, replay_reuse=2, replay_age=4, replay_groups=2,
        replay_capacity=5, replay_order="fifo",
    )  # fmt: skip
    world = World(random.Random("history"), rules)
    world.crash_chance = 0.03
    world.restart()
    world.wander(150)
    world.finish()
    return world


def history() -> Lines:
    return [[json.loads(line) for line in segment] for segment in walked().history]


def checked(segments: Lines, numbers: list[int] | None = None) -> CheckedHistory:
    """The report on a history in these lines. numbers: of its segments, 1, 2 … if not given."""

    def encoded(lines: list[dict[str, Any]]) -> Callable[[], Iterator[bytes]]:
        return lambda: (json.dumps(line).encode() + b"\n" for line in lines)

    places = numbers or range(1, len(segments) + 1)
    return check_segments(
        [Segment.of(f"{n:06}", n, encoded(lines)) for n, lines in zip(places, segments, strict=True)]
    )


def rounds(segments: Lines) -> Iterator[list[list[Any]]]:
    """The events of each round that was stored, of the longest segment: they can be changed."""
    longest = max(segments, key=len)
    later = [lines[0]["revision"] for lines in segments[segments.index(longest) + 1 :]]
    for line in longest[1:]:
        if line["r"] <= min(later, default=line["r"]):
            yield line["e"]


def first(segments: Lines, kind: str, where: Callable[[list[Any]], bool] = lambda _: True) -> tuple[Any, int]:
    """The events of the first round that has one of this kind, and its place there."""
    for events in rounds(segments):
        for place, event in enumerate(events):
            if event[0] == kind and where(event):
                return events, place
    raise AssertionError(f"no {kind} in the history")


def purpose_of(segments: Lines, number: int) -> str:
    for lines in segments:
        for line in lines[1:]:
            for event in line["e"]:
                if event[0] == "issued" and event[1] <= number < event[1] + event[2]:
                    return event[4]
    raise AssertionError(number)


def test_the_history_of_a_whole_run_is_proven():
    report = checked(history())
    assert report.verdict == "proven", [*report.violations, *report.gaps]
    assert report.tickets == dict(sorted(walked().ledger.tables.counts().items()))
    assert report.tickets["trained"] > 20 and report.tickets["replayed"] > 10
    assert report.tickets["dropped:rolled_back"] > 0 and report.segments > 3


# --- planted violations ---------------------------------------------------------------------------


def repeat(kind: str) -> Callable[[Lines], None]:
    def plant(segments: Lines) -> None:
        events, place = first(segments, kind)
        events.insert(place, list(events[place]))

    return plant


def leave_out(kind: str) -> Callable[[Lines], None]:
    def plant(segments: Lines) -> None:
        trains = {"planned": "train"}.get(kind)
        events, place = first(
            segments, kind, lambda event: not trains or purpose_of(segments, event[1]) == trains
        )
        del events[place]

    return plant


def change(kind: str, index: int, by: Callable[[Any], Any]) -> Callable[[Lines], None]:
    def plant(segments: Lines) -> None:
        events, place = first(segments, kind)
        events[place][index] = by(events[place][index])

    return plant


def train_an_evaluation(segments: Lines) -> None:
    events, place = first(segments, "evaluated")
    number = events[place][1]
    events[place : place + 1] = [["ready", number, attempt_of(segments, number), 1]]


def attempt_of(segments: Lines, number: int) -> int:
    """The newest attempt at a ticket that is an evaluation's."""
    newest = 0
    for lines in segments:
        for line in lines[1:]:
            for event in line["e"]:
                if event[0] == "leased" and event[1] == number:
                    newest = event[2]
                if event[0] == "evaluated" and event[1] == number:
                    return newest
    return newest


def accept_stale_tokens(segments: Lines) -> None:
    """A ticket of the last version that is trained has tokens of the first."""
    for events in rounds(segments):
        for event in events:
            if event[0] == "ready" and purpose_of(segments, event[1]) == "train" and event[3] > 2:
                event[3] = 0
                return
    raise AssertionError("nothing is trained")


def drop_what_was_trained(segments: Lines) -> None:
    events, _ = first(segments, "commit")
    number = next(event[1] for event in events if event[0] == "trained")
    events.append(["dropped", number, "no_signal"])


def keep_a_live_ticket_in_the_parameters(segments: Lines) -> None:
    lines = max(segments, key=len)
    ticket = next(event[1] for events in rounds(segments) for event in events if event[0] == "issued")
    number = next(n for n, line in enumerate(lines) if n and any(e[0] == "issued" for e in line["e"]))
    version = next(event[2] for events in rounds(segments) for event in events if event[0] == "commit") - 1
    lines[number]["e"] += [
        ["reconcile", version, [[ticket, ticket + 1]], "trainer", 9],
        ["reconciled", version],
    ]


def publish_an_older_version(segments: Lines) -> None:
    events, place = first(segments, "publish", lambda event: event[1] > 2)
    events.insert(place + 1, ["publish", 1])


PLANTED: dict[str, tuple[Callable[[Lines], None], str]] = {
    "issued twice": (repeat("issued"), "is issued where"),
    "leased twice": (repeat("leased"), "is leased"),
    "an old fence": (change("leased", 3, lambda _: 0), "with fence 0"),
    "an attempt that is not next": (change("leased", 2, lambda n: n + 1), "follows on attempt"),
    "accepted twice": (repeat("ready"), "becomes ready, and is ready"),
    "another attempt accepted": (change("ready", 2, lambda n: n + 1), "is accepted, and"),
    "planned twice": (repeat("planned"), "becomes planned, and is planned"),
    "a group without a member": (leave_out("planned"), "of its group"),
    "a batch inside a batch": (repeat("batch"), "is planned while batch"),
    "planned at another version": (change("batch", 2, lambda n: n + 5), "is planned at version"),
    "trained twice": (repeat("trained"), "is trained"),
    "planned and not trained": (leave_out("trained"), "committed without its tickets"),
    "a batch that is not open": (change("commit", 1, lambda n: n + 7), "is committed, and"),
    "a version left out": (change("commit", 2, lambda n: n + 1), "makes version"),
    "an evaluation that is trained": (train_an_evaluation, "of an evaluation, and ready"),
    "too stale": (accept_stale_tokens, "staleness is"),
    "trained and dropped": (drop_what_was_trained, "becomes dropped, and is trained"),
    "trained and live": (keep_a_live_ticket_in_the_parameters, "which is still"),
    "an older version published": (publish_an_older_version, "is published after version"),
    "a replay of what is not trained": (change("replay", 3, lambda _: 10**6), "again, which is live"),
    "an unknown event": (change("leased", 0, lambda _: "borrowed"), "no kind of event"),
    "a malformed event": (change("leased", 3, lambda _: None), "malformed"),
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_violation_is_found(name: str):
    plant, text = PLANTED[name]
    segments = history()
    plant(segments)
    report = checked(segments)
    assert report.verdict == "violated"
    assert any(text in finding.text for finding in report.violations), report.violations[:3]


def test_a_header_that_was_changed_is_found():
    segments = history()
    segments[-1][0]["state"]["next_ticket"] += 1
    assert "what it begins with is not what was before" in checked(segments).violations[0].text


def test_a_lease_that_outlives_its_bound_is_found_once():
    state = HistoryState()
    state.rules = {"episode_s": 60.0, "lease_s": 30.0}
    state.apply(["issued", 1, 2, 1, "train", 1])
    state.apply(["leased", 1, 1, 1, "rollout-0", 5])
    state.clock_s = 119.0
    state.check_waits()
    state.clock_s = 121.0
    with pytest.raises(ValueError, match="tickets 1 were leased for more than 120 s"):
        state.check_waits()
    state.check_waits()


# --- what is missing ------------------------------------------------------------------------------


def test_a_round_that_is_missing_is_named():
    segments = history()
    longest = max(segments, key=len)
    gone = longest.pop(5)["r"]
    report = checked(segments)
    assert report.verdict == "incomplete"
    assert f"round {gone + 1} follows on round {gone - 1}" in report.gaps[0].text


def test_a_segment_that_is_missing_is_named():
    segments = history()
    numbers = [n for n in range(1, len(segments) + 1) if n != 2]
    del segments[1]
    report = checked(segments, numbers)
    assert report.verdict == "incomplete" and "segment 000002 before it" in report.gaps[0].text
    report = checked(history()[2:], list(range(3, len(history()) + 1)))
    assert report.verdict == "incomplete" and "segments 000001 to 000002" in report.gaps[0].text


def test_a_history_that_begins_in_mid_run_proves_the_rest_alone():
    later = next(n for n, lines in enumerate(history()) if lines[0]["state"]["next_ticket"] > 1)
    report = checked(history()[later:])
    assert report.verdict == "incomplete" and "tickets were issued before it begins" in report.gaps[0].text
    assert report.tickets == dict(sorted(walked().ledger.tables.counts().items()))


def test_a_last_line_that_was_truncated_is_no_fault():
    segments = [list(lines) for lines in walked().history]
    segments[-1].append(b'{"r": 99999, "t": 1.0, "e": [["leas')
    made = [Segment.of(f"{n:06}", n, lambda lines=lines: iter(lines)) for n, lines in enumerate(segments, 1)]
    assert check_segments(made).verdict == "proven"
    segments[-1].insert(2, b"{nothing\n")
    assert "a line that cannot be read" in check_segments(made).gaps[0].text


@pytest.mark.parametrize("header", [{"r": 3}, {"state": {"tickets": 3}}, {"revision": "7"}, {"rules": []}])
def test_a_segment_without_a_header_is_a_gap(header: dict[str, Any]):
    segments = history()
    segments[1][0] = header if "r" in header else segments[1][0] | header
    report = checked(segments)
    assert report.verdict == "incomplete" and "its header cannot be read" in report.gaps[0].text


@pytest.mark.parametrize(
    "line", [{"r": "7", "t": 1.0, "e": []}, {"r": 7, "t": None, "e": []}, {"r": 7, "t": 1.0}]
)
def test_a_line_that_is_no_round_is_a_gap(line: dict[str, Any]):
    segments = history()
    longest = max(segments, key=len)
    longest.insert(3, line)
    report = checked(segments)
    assert report.verdict == "incomplete" and "a line that cannot be read" in report.gaps[0].text
