"""Checks which rows are handed over, and what is kept of what arrived: against caches of plain lists."""

import threading

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from earl.errors import EngineBusy, EngineError, WeightsIncomplete
from services.rollout.engines.contract.engine import KvOffer, KvSession
from services.rollout.engines.torch.kv_cache import KvCache
from services.rollout.engines.torch.kv_handover import KvInTransit, SlotHandover, SlotRows
from tests.support.sequences import CONTEXT, Run

Row = tuple[int, int]


class Side(Run):
    """A little engine that hands over."""

    def __init__(self, bound: int, keep: bool, drafts: bool = False) -> None:
        super().__init__(bound, keep, drafts)
        self.handover = SlotHandover("unit", self.kv)

    def rows(self, moving: KvInTransit) -> list[list[Row | None]]:
        """Returns what a rank copies, at whatever moment."""
        return [self.cache.rows[one.slot][one.first : one.first + one.count] for one in moving.rows]

    def write(self, moving: KvInTransit, rows: list[list[Row | None]]) -> None:
        for one, part in zip(moving.rows, rows, strict=True):
            self.cache.rows[one.slot][one.first : one.first + one.count] = part

    def begin_take(self, offer: KvOffer) -> KvInTransit:
        moving = self.handover.take(offer, self.version)
        self.cache.move(self.kv.budget.take())
        return moving


def offer_of(moving: KvInTransit, sessions: list[KvSession]) -> KvOffer:
    return KvOffer(name="o", keys=[], version=moving.version, sessions=sessions, size_bytes=0)


class Drawn:
    """The actions of two engines that Hypothesis draws."""

    def __init__(self, data: st.DataObject) -> None:
        self.draw = data.draw
        keep, drafts = self.draw(st.booleans()), self.draw(st.booleans())
        self.old, self.new = (
            Side(self.draw(st.sampled_from([128, 240, 320])), keep, drafts) for _ in range(2)
        )
        self.known: dict[str, int] = {}
        # By session and place, the rows that were offered.
        self.copied: dict[tuple[str, int], Row | None] = {}

    def goes_on(self) -> None:
        """Some of what engines do by themselves."""
        for _ in range(self.draw(st.integers(0, 4))):
            side = self.draw(st.sampled_from([self.old, self.new]))
            action = self.draw(
                st.sampled_from(["submit", "submit", "step", "step", "step", "release", "update"])
            )
            if action == "submit":
                ids = [7] * self.draw(st.integers(0, 40)) + self.draw(
                    st.lists(st.integers(0, 2), min_size=1, max_size=9)
                )
                side.submit(ids, self.draw(st.sampled_from(["", "s", "t", "u"])))
            elif action == "release":
                side.scheduler.release(self.draw(st.sampled_from("stu")))
            elif action == "update":
                # Both, as a pool does, but perhaps while something is on its way.
                self.old.update()
                self.new.update()
            else:
                side.step(self.draw(st.sampled_from([1, 5, 100])))

    def hand_over(self) -> None:
        """One round: offer, copy, offered, take, write, taken; with anything in between."""
        moving = self.old.handover.offer(self.known, self.old.version)
        self.goes_on()
        rows = [list(part) for part in self.old.rows(moving)]
        self.goes_on()
        sessions = self.old.handover.offered(moving)
        for one, part in zip(moving.sessions, rows, strict=True):
            if one in sessions:
                assert [row and row[0] for row in part] == one.ids
                assert not one.fresh or all(row and row[1] == moving.version for row in part)
                self.copied |= {(one.session, one.first + n): row for n, row in enumerate(part)}
        self.goes_on()
        offer = offer_of(moving, sessions)
        try:
            taking = self.new.begin_take(offer)
        except (EngineBusy, WeightsIncomplete):
            return
        assert all(slot in self.new.kv.held for slot in (one.slot for one in taking.rows))
        self.goes_on()
        if self.draw(st.booleans()):
            self.new.write(taking, [[(99, -1)] * one.count for one in taking.rows])
            self.new.handover.fail(taking)
            return
        self.new.write(
            taking,
            [
                [self.copied[session.session, session.first + n] for n in range(len(session.ids))]
                for session in taking.sessions
            ],
        )
        self.goes_on()
        try:
            kept = self.new.handover.taken(taking, self.new.version)
        except WeightsIncomplete:
            return
        for session in kept:
            self.known[session.session] = session.first + len(session.ids)


@settings(max_examples=25)
@given(st.data())
def test_what_arrived_is_what_was_computed(data):
    drawn = Drawn(data)
    for _ in range(data.draw(st.integers(1, 6))):
        drawn.goes_on()
        drawn.hand_over()
    drawn.old.finish()
    drawn.new.finish()


def retained(side: Side, session: str, ids: list[int]) -> int:
    """A session that is idle; how many of its tokens have their KV."""
    side.submit(ids, session)
    while side.busy:
        side.step(100)
    return len(ids) + 11


def moved(old: Side, new: Side, known: dict[str, int] | None = None) -> tuple[KvOffer, KvInTransit]:
    moving = old.handover.offer(known or {}, old.version)
    offer = offer_of(moving, old.handover.offered(moving))
    copied = {one.session: part for one, part in zip(moving.sessions, old.rows(moving), strict=True)}
    taking = new.begin_take(offer)
    new.write(taking, [copied[one.session] for one in taking.sessions])
    new.handover.taken(taking, new.version)
    return offer, taking


def test_a_round_brings_what_came_since():
    old, new = Side(320, True), Side(320, True)
    tokens = retained(old, "s", [5, 6])
    offer, _ = moved(old, new)
    assert [(one.first, len(one.ids)) for one in offer.sessions] == [(0, tokens)]
    assert new.kv.sessions() == [("s", 0)] and new.table.used_tokens() == tokens
    assert old.handover.offer({"s": tokens}, 0).sessions == ()
    again = retained(old, "s", [*offer.sessions[0].ids, 5, 6, 7])
    assert old.handover.offer({"s": CONTEXT + 1}, 0).sessions == ()
    second, _ = moved(old, new, {"s": tokens})
    assert [(one.first, len(one.ids)) for one in second.sessions] == [(tokens, again - tokens)]
    assert new.table.used_tokens() == again
    # It goes on there, and computes only what is new.
    new.submit([*offer.sessions[0].ids, *second.sessions[0].ids, 1], "s")
    new.step(100)
    assert new.table.reused[0] == again


def test_takers_must_have_the_beginning():
    old, new = Side(320, True), Side(320, True)
    tokens = retained(old, "s", [5, 6])
    first, _ = moved(old, new)
    retained(old, "s", [*first.sessions[0].ids, 5])
    # Its own turn went elsewhere meanwhile: what was taken is gone.
    new.submit([1, 1, 1], "s")
    while new.busy:
        new.step(100)
    offer, taking = moved(old, new, {"s": tokens})
    assert offer.sessions[0].first == tokens and taking.sessions == () and new.kv.sessions() == []


def test_there_is_place_for_all_or_none():
    old, few = Side(320, True), Side(320, True)
    for name in "abcd":
        retained(old, name, [5, 6])
    retained(few, "own", [1])
    with pytest.raises(EngineBusy, match="place for 3 of 4 sessions of offer o"):
        moved(old, few)
    assert few.kv.sessions() == [("own", 0)] and not few.kv.held
    small = Side(40, True)
    with pytest.raises(EngineBusy, match="place for 2 of 4"):
        moved(old, small)
    assert small.table.used_tokens() == 0 and small.kv.budget.committed.sum() == 0
    # What runs there keeps its memory.
    small.submit([3] * 20, "")
    small.step(100)
    moving = old.handover.offer({}, 0)
    with pytest.raises(EngineBusy, match="place for 1 of 2"):
        small.begin_take(offer_of(moving, list(moving.sessions[:2])))
    small.finish()


def test_nothing_is_taken_of_another_version_or_while_weights_change():
    old, new = Side(320, True), Side(320, True)
    tokens = retained(old, "s", [5, 6])
    new.update()
    with pytest.raises(WeightsIncomplete, match="version 1, offer o is of 0"):
        moved(old, new)
    old.update()
    moving = old.handover.offer({}, 1)
    assert not moving.sessions[0].fresh
    taking = new.begin_take(offer_of(moving, old.handover.offered(moving)))
    assert taking.tokens == tokens
    new.update()
    with pytest.raises(EngineError, match="from version 1 to 2"):
        new.handover.taken(taking, new.version)
    assert new.kv.sessions() == [] and not new.kv.held


def test_arriving_kv_counts_against_the_bound():
    old, new = Side(320, True), Side(80, True)
    retained(old, "s", [5] * 40)
    moving = old.handover.offer({}, 0)
    taking = new.begin_take(offer_of(moving, list(moving.sessions)))
    new.submit([1] * 30, "")
    new.step(100)
    assert len(new.scheduler.waiting) == 1 and int(new.kv.budget.committed.sum()) == 56
    new.handover.fail(taking)
    new.finish()


def test_rows_of_another_revision_are_left_out():
    old = Side(320, True)
    retained(old, "s", [5, 6])
    retained(old, "t", [5, 6])
    moving = old.handover.offer({}, 0)
    old.scheduler.release("s")
    retained(old, "s", [5, 6])
    assert [one.session for one in old.handover.offered(moving)] == ["t"]
    assert np.array_equal(old.table.revision[[0, 1]] > 0, [True, False])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_travel_in_place_or_through_host_memory(dtype):
    """A cache that is not the host's copies by torch; here both are on a CPU."""
    caches = [KvCache(2, 3, 40, 2, 8, dtype=dtype, device=torch.device("cpu")) for _ in range(2)]
    old, new = caches
    old.keys[0][1, :, :8] = torch.arange(128, dtype=dtype).view(2, 8, 8)
    old.values[1][2, :, 4:9] = 0.5
    rows = [SlotRows(1, 0, 0, 7), SlotRows(2, 4, 7, 5)]
    arrays = []
    for host in (old.host, None):
        old.host = host
        arrays.append(np.zeros((2, 2, 2, 12, 8), old.host_dtype))
        old.copy_out(rows, arrays[-1], threading.Event())
    assert np.array_equal(*arrays) and arrays[0].any()
    in_place = new.places(rows, None)
    in_place[0][:] = arrays[0][:, :, :, :7]
    assert torch.equal(new.keys[0][1, :, :7], old.keys[0][1, :, :7])
    new.host = None
    staging = np.zeros_like(arrays[0])
    first, second = new.places(rows, staging)
    first[:], second[:] = arrays[0][:, :, :, :7], arrays[0][:, :, :, 7:]
    new.copy_in(rows, staging, threading.Event())
    assert torch.equal(new.values[1][2], old.values[1][2])
    assert not new.keys[0][1, :, 7].any()
