"""Pinned versions over engines of this process: exactly the ticket's version, the oldest first."""

from __future__ import annotations

import asyncio
import random
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from earl.config.frozen_schedule import PinnedSchedule
from earl.env.base import Ending, Limits
from earl.errors import DeadlineExceeded, VersionGone
from earl.v1 import scheduler_pb2
from services.rollout.episode.busy_spans import BusySpans
from services.rollout.episode.tokenizer_cache import TokenizerCache
from services.rollout.pool.pool import EnginePool
from services.rollout.worker import pinned_weights, version_holder
from services.rollout.worker.actions import AgentBounds
from services.rollout.worker.agent import EpisodeAgent
from services.rollout.worker.pinned_weights import PinnedWeights
from services.rollout.worker.ticket_codec import decode_episodes
from tests.support.pool import Made, request, running, settle, until
from tests.unit.rollout.worker.test_agent import TICKET, Letters, Says, Sessions
from tests.unit.rollout.worker.test_agent_seats import over

# Tickets of a run with staleness 2; a warm-up makes version 2.
SCHEDULE = PinnedSchedule(first=2, staleness=2)


@asynccontextmanager
async def pinning(engines: int = 2):
    """(pinned weights, the pool, its engines) of a worker that follows what is published."""
    async with running(engines=engines, restarts=3) as (pool, made, _):
        pins = PinnedWeights(pool, SCHEDULE, BusySpans())
        run = asyncio.create_task(pins.run())
        yield pins, pool, made
        run.cancel()
        await asyncio.gather(run, return_exceptions=True)
        await pins.stop()


class Episode:
    """An episode that is pinned to a version, and plays until it is ended."""

    def __init__(self, pins: PinnedWeights, pool: EnginePool, version: int) -> None:
        self.version = version
        self.begun, self._end = asyncio.Event(), asyncio.Event()
        self.task = asyncio.create_task(self._play(pins, pool))

    async def _play(self, pins: PinnedWeights, pool: EnginePool) -> None:
        async with pins.playing(self.version):
            assert pool.version == self.version
            self.begun.set()
            await self._end.wait()
            assert pool.version == self.version

    async def end(self) -> None:
        self._end.set()
        await self.task


def loaded(made: Made) -> list[int]:
    return [engine.version for engine in made if not engine.gone.is_set()]


async def test_engines_have_the_newest_version_before_anyone_asks():
    async with pinning() as (pins, _, made):
        assert pins.offer(4, ["weights/4/trainer-0"]) is False
        await until(lambda: loaded(made) == [4, 4])


async def test_a_newer_version_waits_for_the_episodes_of_the_older_one():
    async with pinning() as (pins, pool, made):
        pins.offer(4, [])
        older = [Episode(pins, pool, 3), Episode(pins, pool, 3)]
        for episode in older:
            await episode.begun.wait()
        newer = Episode(pins, pool, 4)
        pins.offer(5, [])
        await older[0].end()
        await settle()
        assert loaded(made) == [3, 3] and not newer.begun.is_set()
        # Another attempt at a ticket of the older version came after that of the newer one, and is first.
        again = Episode(pins, pool, 3)
        await again.begun.wait()
        await older[1].end()
        await settle()
        assert not newer.begun.is_set()
        await again.end()
        await newer.begun.wait()
        assert loaded(made) == [4, 4]
        await newer.end()


async def test_a_version_that_is_not_published_yet_holds_nobody_up():
    async with pinning() as (pins, pool, made):
        pins.offer(2, [])
        future, now = Episode(pins, pool, 3), Episode(pins, pool, 2)
        await now.begun.wait()
        await now.end()
        await settle()
        assert not future.begun.is_set() and loaded(made) == [2, 2]
        pins.offer(3, [])
        await future.begun.wait()
        await future.end()


async def test_no_more_is_leased_while_episodes_wait_for_their_version():
    async with pinning() as (pins, pool, _):
        pins.offer(3, [])
        older = Episode(pins, pool, 3)
        await older.begun.wait()
        await pins.wait_begun()
        newer, given_up = Episode(pins, pool, 4), Episode(pins, pool, 5)
        await settle()
        leasing = asyncio.create_task(pins.wait_begun())
        pins.offer(4, [])
        await settle()
        assert not leasing.done()
        await older.end()
        await newer.begun.wait()
        await settle()
        assert not leasing.done()  # version 5 is still to come
        given_up.task.cancel()
        await leasing
        await newer.end()


async def test_engines_stay_at_a_version_that_is_needed_when_nobody_plays():
    async with pinning() as (pins, _, made):
        pins.offer(3, [])
        await until(lambda: loaded(made) == [3, 3])
        for newest in (4, 5):
            pins.offer(newest, [])
            await settle()
            assert loaded(made) == [3, 3]
        pins.offer(6, [])  # with staleness 2, no ticket is pinned to version 3 any more
        await until(lambda: loaded(made) == [6, 6])
        assert [engine.calls.count("load") for engine in made] == [2, 2]


async def test_what_a_roll_back_gave_up_is_loaded_again_when_it_is_made_again():
    async with pinning() as (pins, pool, made):
        pins.offer(5, [])
        await until(lambda: loaded(made) == [5, 5])
        assert pins.offer(4, []) is True
        await until(lambda: loaded(made) == [4, 4])
        assert pins.offer(5, []) is False
        episode = Episode(pins, pool, 5)
        await episode.begun.wait()
        assert [engine.calls.count("load") for engine in made] == [3, 3]
        await episode.end()


async def test_a_roll_back_into_the_warm_up_is_followed():
    # Until it has an older version, the scheduler leases nothing to a worker with one that was given up.
    async with pinning() as (pins, pool, made):
        pins.offer(4, [])
        await until(lambda: loaded(made) == [4, 4])
        pins.offer(1, [])
        await until(lambda: loaded(made) == [1, 1])
        assert pool.version == 1
        await pins.wait_begun()


async def test_a_roll_back_to_a_newer_version_changes_nothing():
    async with pinning() as (pins, pool, made):
        pins.offer(5, [])
        episode = Episode(pins, pool, 3)
        await episode.begun.wait()
        assert pins.offer(4, []) is True  # version 3 is in the history of version 4
        second = Episode(pins, pool, 3)
        await second.begun.wait()
        assert [engine.calls.count("load") for engine in made] == [2, 2]
        await episode.end()
        await second.end()


async def test_a_version_that_no_ticket_needs_is_gone(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(version_holder, "RETRY_S", 0.0)
    async with pinning() as (pins, pool, made):
        pins.offer(6, [])
        await until(lambda: loaded(made) == [6, 6])
        for engine in made:
            engine.vanished.add(3)
        with pytest.raises(VersionGone):
            await Episode(pins, pool, 3).task
        after = Episode(pins, pool, 5)
        await after.begun.wait()
        await after.end()


async def test_a_trainer_that_is_away_is_waited_for(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(version_holder, "RETRY_S", 0.0)
    async with pinning() as (pins, pool, made):
        for engine in made:
            engine.vanished.add(4)
        pins.offer(5, [])
        await until(lambda: loaded(made) == [5, 5])
        episode = Episode(pins, pool, 4)
        await until(lambda: made[0].calls.count("load") > 4)
        assert not episode.begun.is_set()
        for engine in made:
            engine.vanished.clear()
        await episode.begun.wait()
        await episode.end()


async def test_an_engine_that_died_while_the_trainer_was_away_plays_on_when_that_is_back():
    async with pinning(engines=1) as (pins, pool, made):
        pins.offer(3, [])
        episode = Episode(pins, pool, 3)
        await episode.begun.wait()
        made.prepare = lambda engine: engine.vanished.add(3)
        made[0].gone.set()
        await until(lambda: len(made) == 2 and "load" in made[1].calls)
        await settle()
        turn = asyncio.create_task(pool.generate(request("a")))
        await settle()
        assert not pool.live and not turn.done()
        made[1].vanished.clear()
        made[1].answer.set()
        pins.offer(3, [])
        assert set((await turn).versions) == {3}
        await episode.end()


async def test_engines_that_load_nothing_end_the_worker(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(pinned_weights, "RETRY_S", 0.0)

    class Pool:
        live, tries = 0, 0

        async def load(self, publication: object) -> None:
            self.tries += 1
            raise DeadlineExceeded("a long step")

    pool = Pool()
    pins = PinnedWeights(pool, SCHEDULE, BusySpans())  # type: ignore[arg-type]
    pins.offer(1, [])
    with pytest.raises(DeadlineExceeded):
        await pins.run()
    assert pool.tries == pinned_weights.ATTEMPTS


@pytest.mark.parametrize("seed", range(8))
async def test_no_two_versions_play_at_once_whatever_is_asked_for_and_all_play(seed: int):
    draw = random.Random(seed)
    async with pinning() as (pins, pool, _):
        newest = 3
        pins.offer(newest, [])
        episodes: list[Episode] = []
        ended = 0
        for _ in range(60):
            what = draw.random()
            if what < 0.5:
                episodes.append(Episode(pins, pool, draw.randint(newest - 2, newest)))
            elif what < 0.6 and all(episode.version > newest - 2 for episode in episodes):
                newest += 1
                pins.offer(newest, [])
            elif what < 0.7 and (waiting := [each for each in episodes if not each.begun.is_set()]):
                waiting[0].task.cancel()
                episodes.remove(waiting[0])
            elif playing := [each for each in episodes if each.begun.is_set()]:
                await playing[0].end()
                episodes.remove(playing[0])
                ended += 1
            for _ in range(draw.randint(0, 4)):
                await asyncio.sleep(0)
            assert len({each.version for each in episodes if each.begun.is_set()}) <= 1
        while episodes:
            await until(lambda: any(each.begun.is_set() for each in episodes))
            first = next(each for each in episodes if each.begun.is_set())
            await first.end()
            episodes.remove(first)
            ended += 1
        assert ended > 10


# --- tickets ----------------------------------------------------------------------------------


class Pins:
    """Counts who is held at which version."""

    def __init__(self) -> None:
        self.held: list[int] = []
        self.playing_now = 0

    @asynccontextmanager
    async def playing(self, version: int):
        self.held.append(version)
        self.playing_now += 1
        yield
        self.playing_now -= 1


def agent(policy: Says, sessions: Sessions, pins: Pins | None) -> EpisodeAgent:
    bounds = AgentBounds(Limits(), 100, 4, TokenizerCache(Letters()))
    return EpisodeAgent(policy, sessions, BusySpans(), {TICKET.label: bounds}, pins=pins)


async def test_a_pinned_ticket_is_played_while_its_version_is_held():
    pins, policy = Pins(), Says(["x."], version=3)
    outcome = await agent(policy, Sessions(over(1.0)), pins).play(
        replace(TICKET, min_version=3, pinned_version=3)
    )
    assert (outcome.ending, pins.held, pins.playing_now) == (Ending.OK, [3], 0)


async def test_other_tickets_hold_no_version():
    pins = Pins()
    for scripted in (False, True):
        await agent(Says(["x."], version=3), Sessions(over(1.0)), pins).play(
            replace(TICKET, min_version=0, scripted=scripted)
        )
    assert pins.held == []


async def test_a_worker_that_takes_the_newest_version_does_not_play_a_pinned_ticket():
    outcome = await agent(Says(["x."], version=3), Sessions(over(1.0)), None).play(
        replace(TICKET, min_version=3, pinned_version=3)
    )
    assert outcome.ending is Ending.INFRA_ERROR and "is pinned to version 3" in outcome.message


def test_the_lease_has_the_version():
    [episode] = decode_episodes([scheduler_pb2.Ticket(ticket_id=1, min_version=4, pinned_version=4)])
    assert episode.pinned_version == 4
