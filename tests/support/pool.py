"""A pool over engines that live in this process, for the unit tests of routing, restarts and switches."""

import asyncio
from collections.abc import Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

from earl.errors import ContextTooLong, EngineLost, VersionGone
from earl.models.spec import ModelSpec
from earl.obs.memory import DeviceMemory
from services.rollout.engines.contract.draft_counts import DraftCounts
from services.rollout.engines.contract.engine import (
    Engine,
    EngineSpec,
    EngineStats,
    GenerateRequest,
    Generation,
    KvOffer,
    KvReport,
    KvSession,
    LoadReport,
)
from services.rollout.pool.devices import PoolDevices
from services.rollout.pool.pool import EnginePool, Reading, always_readable
from services.rollout.pool.replicas import Publication

VOCABULARY, CONTEXT, TOKEN_BYTES = 97, 256, 8
MODEL = ModelSpec("llama", 16, 1, 4, 4, 4, 16, VOCABULARY)


def next_token(ids: list[int]) -> int:
    """Returns what the policy says after ids, whichever engine is asked."""
    return (sum(ids) * 31 + len(ids) * 7) % VOCABULARY


def greedy(ids: list[int], new: int) -> list[int]:
    made: list[int] = []
    for _ in range(new):
        made.append(next_token(ids + made))
    return made


class InMemory(Engine):
    """Samples `next_token`, one token a turn of the loop while `answer` is set; dies when told to.

    Computing is slow here: KV is worth moving. A hook, an async function by method name, runs before the
    method does. A session's KV is its tokens.
    """

    def __init__(self, spec: EngineSpec) -> None:
        self.spec = spec
        self.caps: Any = SimpleNamespace(live_reshape=True)
        self.version = 0
        self.asleep = spec.sleeps
        self.gone = asyncio.Event()
        self.answer = asyncio.Event()
        self.hooks: dict[str, Any] = {}
        self.calls: list[str] = []
        self.served: list[str] = []
        self.released: list[str] = []
        self.vanished: set[int] = set()
        self.kv: dict[str, list[int]] = {}
        self.offers: dict[str, dict[str, tuple[int, list[int]]]] = {}
        self.prefilled = self.skew = 0.0
        self.generated = 0
        self.memory: DeviceMemory | None = None
        self.busy: list = []
        self.drafts = DraftCounts()
        self.aborted: set[str] = set()
        self._paused = False
        self._aborts = 0

    async def _begin(self, name: str) -> None:
        self.calls.append(name)
        if name in self.hooks:
            await self.hooks[name]()
        if self.gone.is_set():
            raise EngineLost(f"engine {self.spec.name} is gone")

    async def start(self):
        try:
            await self._begin("start")
        except BaseException:
            self.gone.set()
            raise

    async def stop(self):
        self.calls.append("stop")
        if "stop" in self.hooks:
            await self.hooks["stop"]()
        self.gone.set()

    async def wait_lost(self):
        await self.gone.wait()

    async def generate_all(self, request):
        self.served.append(request.request_id)
        bound = self.spec.kv_tokens
        if bound and len(request.ids) + request.max_new_tokens > bound:
            raise ContextTooLong(f"{len(request.ids)} + {request.max_new_tokens} > {bound}")
        aborts, ids, made = self._aborts, list(request.ids), []
        known = self.kv.get(request.session, [])
        reused = len(known) if known == ids[: len(known)] else 0
        self.prefilled += len(ids) - reused
        finish = "abort"
        while aborts == self._aborts and request.request_id not in self.aborted:
            if self.gone.is_set():
                raise EngineLost(f"engine {self.spec.name} is gone")
            if not self._paused and (self.answer.is_set() or request.request_id.startswith("canary")):
                made.append(next_token(ids + made))
                self.generated += 1
                if request.session:
                    self.kv[request.session] = (ids + made)[:-1]
                if len(made) == request.max_new_tokens:
                    finish = "length"
                    break
            await asyncio.sleep(0)
        return Generation(
            request_id=request.request_id,
            ids=made,
            logprobs=[-0.01 * token + self.skew for token in made],
            versions=[self.version] * len(made),
            finish=finish,
            reused_tokens=reused,
        )

    async def load_weights(self, version, keys, deadline_s=30.0):
        await self._begin("load")
        assert not self.asleep
        if version in self.vanished:
            raise VersionGone(f"version {version}")
        self.version = version
        return LoadReport(version=version, size_bytes=0, read_s=0.0)

    async def abort(self, request_id):
        self.aborted.add(request_id)

    async def release(self, session):
        self.kv.pop(session, None)
        self.released.append(session)

    async def pause(self, keep=True):
        await self._begin("pause")
        self._paused = True
        self._aborts += not keep

    async def resume(self):
        await self._begin("resume")
        self._paused = False

    async def sleep(self):
        await self._begin("sleep")
        self._aborts += 1
        self.asleep, self.version = True, 0
        self.kv.clear()

    async def wake(self):
        await self._begin("wake")
        self.asleep = False

    async def offer_kv(self, name, known, deadline_s):
        await self._begin("offer_kv")
        new = {
            session: (known.get(session, 0), ids[known.get(session, 0) :]) for session, ids in self.kv.items()
        }
        self.offers[name] = {session: part for session, part in new.items() if part[1]}
        sessions = [
            KvSession(session=session, first=first, offset=0, ids=ids)
            for session, (first, ids) in self.offers[name].items()
        ]
        return KvOffer(name=name, keys=[], version=self.version, sessions=sessions, size_bytes=0)

    async def take_kv(self, offer, deadline_s):
        await self._begin("take_kv")
        tokens = 0
        for session in offer.sessions:
            self.kv[session.session] = self.kv.get(session.session, [])[: session.first] + session.ids
            tokens += len(session.ids)
        return KvReport(
            sessions=len(offer.sessions), tokens=tokens, size_bytes=tokens * TOKEN_BYTES, seconds=1e-6
        )

    async def withdraw_kv(self, name):
        self.offers.pop(name, None)

    async def stats(self):
        await self._begin("stats")
        # What it has counted is reported once.
        busy, drafts = self.busy, self.drafts
        self.busy, self.drafts = [], DraftCounts()
        return EngineStats(
            version=self.version, tp=self.spec.tp, running=0, waiting=0, retained=0,
            kv_used_fraction=0.0, steps=self.generated, generated_tokens=self.generated,
            prefilled_tokens=1, reused_tokens=0,
            evicted_sessions=0, step_s=1.0, kv_token_bytes=TOKEN_BYTES // self.spec.tp,
            memory=self.memory, busy=busy, drafts=drafts,
        )  # fmt: skip

    def generate(self, request): ...


class Made(list[InMemory]):
    """Every engine that the pool made, in that order. prepare: is called with each new one."""

    prepare: Any = staticmethod(lambda engine: None)

    def __call__(self, spec: EngineSpec) -> InMemory:
        self.append(InMemory(spec))
        self.prepare(self[-1])
        return self[-1]


@asynccontextmanager
async def running(
    engines=2,
    restarts=1,
    waits=False,
    reading: Reading = always_readable,
    asleep=False,
    most=0,
    **fields: Any,
):
    """(pool, the engines it makes, its run). most: devices that it may ever have. fields: of the engines'
    spec."""
    made = Made()
    base = EngineSpec(name="e", model_dir="", max_context_tokens=CONTEXT, sleeps=asleep, **fields)
    pool = EnginePool(
        PoolDevices(base, engines, MODEL, most=most),
        made,
        restarts=restarts,
        load_s=5.0,
        waits=waits,
        reading=reading,
        asleep=asleep,
    )
    await pool.start()
    watch = asyncio.create_task(pool.run())
    try:
        yield pool, made, watch
    finally:
        await pool.stop()
        await asyncio.gather(watch, return_exceptions=True)
        assert all(engine.gone.is_set() for engine in made)


def request(name: str, session: str = "", new: int = 1, ids: list[int] | None = None) -> GenerateRequest:
    return GenerateRequest(
        request_id=name, ids=ids or [1], max_new_tokens=new, session=session or name, temperature=0.0
    )


def published(version: int, number: int = 0) -> Publication:
    return Publication(number or version, version, ("k",))


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def until(true: Callable[[], object]) -> None:
    """Returns once it is; everything here happens within some turns of the loop."""
    for _ in range(10_000):
        if true():
            return
        await asyncio.sleep(0)
    raise AssertionError("it never came true")
