"""Switches of a pool of real engines: turns go on token for token, whatever dies meanwhile."""

import asyncio
from contextlib import asynccontextmanager

import msgspec
import numpy as np
import psutil
import pytest
import torch

from earl.config.scheduler import SwitchDeadlines
from earl.errors import EngineLost
from earl.models.spec import load_spec
from earl.parallelism import Parallelism
from earl.reparallelize import SwitchCommand
from services.rollout.engines.contract.engine import GenerateRequest, Generation
from services.rollout.engines.process.client import EngineProcess
from services.rollout.engines.process.rank_process import RankKind
from services.rollout.pool import kv_handover
from services.rollout.pool import pool as pool_module
from services.rollout.pool.devices import PoolDevices
from services.rollout.pool.pool import EnginePool
from services.rollout.pool.replicas import Publication
from services.rollout.pool.standby import StandbyProcesses
from tests.support import engines
from tests.support.engines import MODELS, ask, assert_close, assert_gone, prompt
from tests.support.preloaded import preloaded

# A pool begins with engines of tp 1 here, and has others soon.
BEGINS = [name for name, fields in engines.ENGINES.items() if fields["tp"] == 1]
pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.parametrize("spec", BEGINS, indirect=True),
]
run, model_dir, spec, weights = engines.run, engines.model_dir, engines.spec, engines.weights

ONE, TWO = Parallelism(2, 1), Parallelism(1, 2)
TURNS, PROMPT, NEW = 4, 24, 900


def command(epoch: int, parallelism: Parallelism) -> SwitchCommand:
    deadlines = SwitchDeadlines(prepare_s=300.0, quiesce_s=20.0, switch_s=20.0, verify_s=20.0)
    return SwitchCommand(epoch, parallelism, deadlines, logprob_tolerance=0.01)


class Engines(list[EngineProcess]):
    """All that the pool made.

    at: by method name, what runs before an engine's next such call; for "load" the keys that it loads.
    """

    def __init__(self, take=lambda kind: None) -> None:
        self.at = {}
        self.take = take

    def __call__(self, spec) -> EngineProcess:
        made = Watched(spec, self.take)
        made.at, made.made = self.at, self
        self.append(made)
        return made


class Watched(EngineProcess):
    """An engine whose processes a test can kill at a given call."""

    at: dict
    made: "Engines"

    async def pause(self, keep=True):
        self.at.pop("pause", lambda engine: None)(self)
        await super().pause(keep)

    async def generate_all(self, request):
        made = await super().generate_all(request)
        new = self is self.made[-1] and request.request_id.startswith("canary")
        if new and (hook := self.at.pop("canary", None)):
            await hook()
        return made

    async def begin_update(self, version):
        self.at.pop("begin_update", lambda engine: None)(self)
        await super().begin_update(version)

    async def load(self, version, keys, deadline_s):
        return await super().load(version, self.at.pop("load", keys), deadline_s)


def kill(engine: EngineProcess) -> None:
    psutil.Process(engine.pids[0]).kill()


@pytest.fixture
def devices(spec, tmp_path):
    base = msgspec.structs.replace(spec, name="pool", load_initial=False, arena_dir=str(tmp_path))
    return PoolDevices(base, 2, load_spec(base.model_dir))


@asynccontextmanager
async def ready(devices, weights, standby=None):
    """A pool with weights of MODELS[0], and what it makes."""
    made = Engines(standby.take) if standby else Engines()
    pool = EnginePool(devices, made, restarts=1, load_s=20.0, standby=standby)
    await pool.start()
    watch = asyncio.create_task(pool.run())
    version, keys = await weights.publish(MODELS[0])
    await pool.load(Publication(1, version, tuple(keys)))
    try:
        yield pool, made
        assert not watch.done()
    finally:
        await pool.stop()
        await asyncio.gather(watch, return_exceptions=True)
        await assert_gone([pid for engine in made for pid in engine.pids])
        await weights.remove(keys)


class Turns:
    """Greedy turns of one session each, long enough to be under way for the rest of a switch."""

    def __init__(self, pool: EnginePool) -> None:
        self._pool = pool
        self._turns: list[tuple[GenerateRequest, asyncio.Task]] = []

    def begin(self) -> None:
        for number in range(TURNS):
            request = ask(prompt(PROMPT, number), NEW, temperature=0.0, session=f"session {number}")
            self._turns.append((request, asyncio.create_task(self._pool.generate(request))))

    async def under_way(self) -> None:
        """Begins them; returns when the engines have made some tokens."""
        before = await self._generated()
        self.begin()
        async with asyncio.timeout(60):
            while await self._generated() < before + 10 * TURNS:
                pass

    async def _generated(self) -> int:
        return sum(one.generated_tokens for one in await self._pool.stats() if one is not None)

    async def end(self, lost: int = 0) -> None:
        """They are what one engine would have made, token for token; but for so many that were lost."""
        ended = await asyncio.wait_for(
            asyncio.gather(*(turn for _, turn in self._turns), return_exceptions=True), 60
        )
        assert len(ended) == TURNS and sum(isinstance(one, EngineLost) for one in ended) <= lost
        for (request, _), made in zip(self._turns, ended, strict=True):
            if isinstance(made, EngineLost):
                continue
            assert isinstance(made, Generation) and (len(made.ids), made.finish) == (NEW, "length")
            assert_close(made.logprobs, likeliest(request.ids, made.ids))
        self._turns.clear()


def likeliest(ids: list[int], new: list[int]) -> np.ndarray:
    """The largest log-prob at the place of each of `new`: a greedy engine's own, but for ties."""
    with torch.no_grad():
        logits = MODELS[0](torch.tensor([ids + new])).logits[0, len(ids) - 1 : -1]
    return logits.log_softmax(-1).max(-1).values.numpy()


async def test_turns_of_sessions_that_move_go_on(devices, weights):
    async with ready(devices, weights) as (pool, _):
        turns, router = Turns(pool), pool.router
        await turns.under_way()
        engines = router.replicas.all
        for name, (engine, _, _) in router.sequences(engines).items():
            assert await router.move(name, engines[1 - engine])
        await turns.end()
        assert router.moved == TURNS


@pytest.mark.slow
async def test_turns_go_on_through_two_switches(devices, weights, monkeypatch):
    # The tokens are few, and the machine may be slow: KV goes along all the same.
    monkeypatch.setattr(kv_handover, "worth_moving", lambda tokens, *_: set(tokens))
    async with ready(devices, weights) as (pool, made):
        turns = Turns(pool)
        for epoch, parallelism in ((1, TWO), (2, ONE)):
            made.at["canary"] = turns.under_way
            report = await pool.reparallelize(command(epoch, parallelism))
            assert not report.rolled_back and not report.cold, report.message
            assert report.sequences_continued == TURNS and report.max_logprob_difference < 1e-4
            if all(engine.caps.live_reshape for engine in made):
                assert report.moved_bytes > 0 and report.kv_recomputed_tokens < PROMPT
            else:
                assert report.moved_bytes == 0 and report.kv_recomputed_tokens > TURNS * PROMPT
            assert (pool.parallelism, pool.epoch, pool.live) == (parallelism, epoch, parallelism.dp)
            assert [engine.spec.tp for engine in made if not engine._lost.is_set()] == [
                parallelism.tp
            ] * parallelism.dp
            await turns.end()


@pytest.mark.slow
async def test_a_new_engine_killed_while_it_loads_leaves_the_old_ones(devices, weights):
    async with ready(devices, weights) as (pool, made):
        turns = Turns(pool)
        turns.begin()
        made.at["begin_update"] = kill
        report = await pool.reparallelize(command(1, TWO))
        assert report.rolled_back and "prepare failed" in report.message
        assert (pool.parallelism, pool.live) == (ONE, 2)
        await turns.end()


@pytest.mark.slow
async def test_a_new_engine_killed_when_turns_are_interrupted_leaves_the_old_ones(devices, weights):
    async with ready(devices, weights) as (pool, made):
        turns = Turns(pool)
        made.at["canary"] = turns.under_way
        made.at["pause"] = lambda _: kill(made[-1])
        report = await pool.reparallelize(command(1, TWO))
        assert report.rolled_back and report.sequences_continued == TURNS and report.stall_s > 0
        assert (pool.parallelism, pool.live) == (ONE, 2)
        await turns.end()


@pytest.mark.slow
async def test_an_old_engine_killed_when_it_is_interrupted_costs_its_own_turns(devices, weights):
    async with ready(devices, weights) as (pool, made):
        turns = Turns(pool)
        made.at["canary"] = turns.under_way
        made.at["pause"] = kill
        report = await pool.reparallelize(command(1, TWO))
        assert not report.rolled_back and report.sequences_continued == TURNS // 2, report.message
        assert (pool.parallelism, pool.live) == (TWO, 1)
        await turns.end(lost=TURNS // 2)


@pytest.mark.slow
async def test_other_logprobs_leave_the_old_engines(devices, weights):
    async with ready(devices, weights) as (pool, made):
        turns = Turns(pool)
        turns.begin()
        _, others = await weights.publish(MODELS[1])
        made.at["load"] = others
        report = await pool.reparallelize(command(1, TWO))
        assert report.rolled_back and "tp2: engine pool/engine-0-epoch-1 differs by" in report.message
        assert len(made) == 3 and pool.live == 2
        await turns.end()
        await weights.remove(others)


@pytest.mark.slow
async def test_without_memory_for_both_the_old_engines_end_first(devices, weights, monkeypatch):
    monkeypatch.setattr(pool_module, "fits_with_old", lambda *_: False)
    async with ready(devices, weights) as (pool, _):
        turns = Turns(pool)
        turns.begin()
        report = await pool.reparallelize(command(1, TWO))
        assert not report.rolled_back and report.cold, report.message
        assert report.sequences_continued == TURNS and pool.parallelism == TWO
        await turns.end()


# --- processes that are kept ready ----------------------------------------------------------


async def test_new_engines_are_processes_that_were_ready(devices, weights):
    standby = StandbyProcesses(RankKind.of(devices.base), 2)
    with preloaded():
        async with ready(devices, weights, standby) as (pool, made):
            waiting = await taken_and_filled(pool, made, standby)
    await assert_gone(waiting)


async def taken_and_filled(pool: EnginePool, made: Engines, standby: StandbyProcesses) -> list[int]:
    """Switches when one of two that were ready has died; returns those that are ready afterwards."""
    await standby.filled(60.0)
    first = standby.pids
    assert len(first) == 2 and not set(first) & {pid for engine in made for pid in engine.pids}
    psutil.Process(first[0]).kill()
    async with asyncio.timeout(10):
        while True:
            if first[0] not in standby.pids:
                break
            await asyncio.sleep(0.01)
    outcome = await pool.reparallelize(command(1, TWO))
    assert not outcome.rolled_back, outcome.message
    # One of them had died: the other rank's process was started anew.
    (engine,) = made[2:]
    assert first[1] == engine.pids[0] and len(set(engine.pids) - set(first)) == 1
    await standby.filled(60.0)
    second = standby.pids
    assert len(second) == 2 and not set(second) & set(first)
    made_tokens = await pool.generate(GenerateRequest(request_id="a", ids=prompt(8), max_new_tokens=4))
    assert len(made_tokens.ids) == 4
    return second
