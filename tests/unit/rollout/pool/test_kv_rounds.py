"""Rounds of a hand-over between engines whose KV is their sessions' tokens: whatever happens between two
rounds, new engines hold beginnings of what the old ones computed, and nothing of sessions that have ended."""

import asyncio
import itertools

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from earl.errors import EngineError, EngineLost
from services.rollout.engines.contract.engine import EngineSpec
from services.rollout.pool import kv_handover
from services.rollout.pool.kv_handover import ALL, KvHandover
from services.rollout.pool.kv_placement import Rates
from tests.support.pool import TOKEN_BYTES, InMemory

CANARY, CALL_S = "canary", 5.0
# Computing is slow, moving costs next to nothing.
CHEAP_MOVES = Rates(bytes_per_s=1e9, round_s=1e-9, prefill_tokens_per_s=1.0)


class Old(InMemory):
    """anew: sessions that began again since they were offered; they are offered whole, as by real engines."""

    def __init__(self, number: int) -> None:
        super().__init__(EngineSpec(name=f"old {number}", model_dir=""))
        self.anew: set[str] = set()

    async def offer_kv(self, name, known, deadline_s):
        offer = await super().offer_kv(
            name, {key: n for key, n in known.items() if key not in self.anew or n == ALL}, deadline_s
        )
        self.anew -= {session.session for session in offer.sessions}
        return offer


class Sessions:
    """Sessions on old engines, and the hand-over of their KV to new ones. tokens: of each, whose last one has
    no KV yet."""

    def __init__(self, old: int, new: int, places: int, rates: Rates = CHEAP_MOVES) -> None:
        self.old = [Old(number) for number in range(old)]
        self.new = [InMemory(EngineSpec(name=f"new {number}", model_dir="")) for number in range(new)]
        self.handover = KvHandover("kv/1", self.old, self.new, places, 0, TOKEN_BYTES, rates, CANARY)
        self.tokens: dict[str, list[int]] = {}
        self._fresh = itertools.count(1)
        self.old[0].kv[CANARY] = [7, 7, 7]

    def grow(self, name: str, count: int) -> None:
        self.tokens.setdefault(name, []).extend(next(self._fresh) for _ in range(count + 1))
        self.engine_of(name).kv[name] = self.tokens[name][:-1]

    def end(self, name: str) -> None:
        if self.tokens.pop(name, None):
            del self.engine_of(name).kv[name]
            self.engine_of(name).anew.add(name)

    def engine_of(self, name: str) -> Old:
        return self.old[ord(name[0]) % len(self.old)]

    @property
    def counts(self) -> dict[str, int]:
        return {name: len(ids) for name, ids in self.tokens.items()}

    def round(self, *, ahead: bool) -> int:
        return asyncio.run(self.handover.round(self.counts, CALL_S, ahead=ahead))

    def check(self) -> None:
        for number, engine in enumerate(self.new):
            for name, ids in engine.kv.items():
                if name == CANARY:
                    assert ids == [7, 7, 7]
                    continue
                assert self.handover.placed[name] == number
                if name in self.handover.moved and name not in self.engine_of(name).anew:
                    moved = self.handover.moved[name]
                    assert moved < len(self.tokens[name]) and ids[:moved] == self.tokens[name][:moved]


names = st.sampled_from("abcdef")
events = st.one_of(
    st.tuples(st.just("grow"), names, st.integers(1, 50)),
    st.tuples(st.just("end"), names, st.just(0)),
    st.tuples(st.sampled_from(["offer_kv", "take_kv"]), names, st.integers(0, 3)),
)


# A session ends after a part of its KV could not be taken.
@example([[("grow", "a", 1)], [("grow", "a", 1), ("take_kv", "a", 0)], [("end", "a", 0)]], 1, 1)
@given(st.lists(st.lists(events, max_size=6), min_size=1, max_size=6), st.integers(1, 3), st.integers(1, 3))
def test_new_engines_hold_beginnings_of_sessions_that_live(rounds, old, new):
    sessions = Sessions(old, new, places=8)
    for number, happened in enumerate(rounds):
        failing: list[tuple[InMemory, str]] = []
        for event, name, count in happened:
            if event == "grow":
                sessions.grow(name, count)
            elif event == "end":
                sessions.end(name)
            else:
                side = sessions.old if event == "offer_kv" else sessions.new
                failing.append((side[count % len(side)], event))
        for engine, method in failing:
            engine.hooks[method] = refuses
        last = number == len(rounds) - 1
        sessions.round(ahead=not last)
        for engine, method in failing:
            engine.hooks.pop(method, None)
        sessions.check()
        assert all(name in sessions.tokens or name == CANARY for engine in sessions.new for name in engine.kv)
        if not failing:
            # Moving costs next to nothing: all KV that there is was moved.
            for name, ids in sessions.tokens.items():
                assert name in sessions.engine_of(name).anew or sessions.handover.moved[name] + 1 == len(ids)
    asyncio.run(sessions.handover.close())
    assert all(engine.offers == {} for engine in sessions.old)


async def refuses() -> None:
    raise EngineError("not now")


def test_rounds_ahead_end_once_little_comes_between_them():
    # A token takes 1 ms, a round less than 100 ms.
    sessions = Sessions(2, 1, 8, Rates(1000.0 * TOKEN_BYTES, 0.1, 1.0))
    added = iter([400, 100, 1, 1])

    def counts() -> dict[str, int]:
        sessions.grow("a", next(added))
        return sessions.counts

    asyncio.run(sessions.handover.catch_up(counts, CALL_S))
    assert list(added) == [1]
    sessions.check()


def test_rounds_ahead_end_when_they_do_not_get_shorter_and_are_bounded():
    def counts() -> dict[str, int]:
        sessions.grow("a", next(added))
        return sessions.counts

    for growth, rounds in ((itertools.repeat(100), 2), (itertools.count(1000, -10), kv_handover.ROUNDS)):
        sessions, added = Sessions(1, 1, 8, Rates(1000.0, 0.1, 1.0)), growth
        del sessions.old[0].kv[CANARY]
        asyncio.run(sessions.handover.catch_up(counts, CALL_S))
        assert sessions.old[0].calls.count("offer_kv") == rounds
        sessions.check()


def test_a_running_session_is_continued_whose_last_tokens_are_not_known():
    sessions = Sessions(1, 1, 8)
    sessions.grow("a", 10)
    before = sessions.counts
    sessions.round(ahead=True)
    sessions.grow("a", 10)
    moved = asyncio.run(sessions.handover.round(before, CALL_S, ahead=True))
    assert moved == 11 and sessions.handover.moved["a"] == 21
    sessions.check()


def test_the_last_round_moves_nothing_that_is_computed_sooner():
    sessions = Sessions(1, 1, 8, Rates(1e9, 1.0, 50.0))
    sessions.grow("a", 100)
    sessions.round(ahead=True)
    sessions.grow("a", 3)
    calls = len(sessions.old[0].calls)
    assert sessions.round(ahead=False) == 0 and len(sessions.old[0].calls) == calls
    assert sessions.handover.moved["a"] == 100


def test_a_new_engine_that_has_died_is_an_error_in_any_round():
    sessions = Sessions(1, 2, 8)
    for name in "abc":
        sessions.grow(name, 10)
    sessions.round(ahead=True)
    sessions.new[1].gone.set()
    for name in "abc":
        sessions.grow(name, 10)
    with pytest.raises(EngineLost):
        sessions.round(ahead=True)
