"""KV that goes from engine to engine (engines/contract/engine.py: offer_kv, take_kv, withdraw_kv)."""

import asyncio
import signal
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest
import pytest_asyncio

from earl.config.data_plane import DataPlaneConfig
from earl.errors import ArenaFull, DataPlaneError, EngineBusy, EngineError, PeerLost, WeightsIncomplete
from services.rollout.engines.contract.engine import EngineSpec, GenerateRequest, KvOffer, TokenChunk
from services.rollout.engines.process.client import EngineProcess
from tests.support import engines
from tests.support.engines import (
    CONTEXT,
    DEVICE,
    MODELS,
    MOST_RANKS,
    ask,
    assert_close,
    needs_ranks,
    prompt,
    recompute,
)
from tests.support.preloaded import preloaded, started_by

pytestmark = pytest.mark.asyncio(loop_scope="module")
run, model_dir, weights = engines.run, engines.model_dir, engines.weights

CALL_S = 20.0
SESSIONS, SLOTS = 4, 6
SESSION_NAMES = ["s", *(f"s{number}" for number in range(SESSIONS))]
OFFER_NAMES = ["first", "second", "third"]


@pytest.fixture(scope="module")
def spec(model_dir, run, tmp_path_factory) -> EngineSpec:
    url, name, config, _ = run
    return EngineSpec(
        name="under-test",
        model_dir=str(model_dir),
        device=DEVICE,
        max_sequences=SLOTS,
        max_context_tokens=CONTEXT,
        redis_url=url,
        run=name,
        data_plane=config.model_dump_json(),
        arena_dir=str(tmp_path_factory.mktemp("arenas")),
    )


@pytest.fixture
def arenas(spec):
    """The files of arenas that exist now."""
    return lambda: sorted(path.name for path in Path(spec.arena_dir).glob("*"))


async def start(spec: EngineSpec, *changes: dict[str, Any]) -> list[EngineProcess]:
    made = [
        EngineProcess(msgspec.structs.replace(spec, name=f"engine-{number}", **fields))
        for number, fields in enumerate(changes)
    ]
    with preloaded():
        await asyncio.gather(*(engine.start() for engine in made))
    return made


async def stop(made: list[EngineProcess]) -> None:
    await asyncio.gather(*(engine.stop() for engine in made))


class EnginesByTp(dict[int, EngineProcess]):
    """Engines by their tp; the test that asks for more ranks than there are GPUs is skipped."""

    def __missing__(self, tp: int) -> EngineProcess:
        needs_ranks(tp)
        raise KeyError(tp)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def by_tp(spec):
    """An engine of each tp, which tests share."""
    values = [tp for tp in (1, 2, 4) if tp <= MOST_RANKS]
    made = await start(spec, *({"tp": tp} for tp in values))
    yield EnginesByTp(zip(values, made, strict=True))
    await stop(made)


@pytest_asyncio.fixture(loop_scope="module")
async def shared(by_tp, arenas):
    """`by_tp`, left as it was."""
    yield by_tp
    for engine in by_tp.values():
        await engine.resume()
        for session in SESSION_NAMES:
            await engine.release(session)
        for name in OFFER_NAMES:
            await engine.withdraw_kv(name)
        stats = await engine.stats()
        assert (stats.retained, stats.kv_used_tokens, stats.running) == (0, 0, 0)
    assert arenas() == []


@pytest_asyncio.fixture(loop_scope="module")
async def fleet(spec):
    """Makes engines of a test's own, which run together: fleet({field: value}, ...)."""
    made: list[EngineProcess] = []

    async def make(*changes: dict[str, Any]) -> list[EngineProcess]:
        made.extend(await start(spec, *changes))
        return made

    yield make
    await stop(made)


def episode(number: int, new: int, salt: int = 0) -> GenerateRequest:
    """Even ones are sampled, odd ones greedy; their prompts are of different lengths."""
    ids = prompt(30 + 7 * number, salt + number)
    return ask(ids, new, session=f"s{number}", seed=number, temperature=1.0 - number % 2)


class Stream:
    """A request that runs, and what it has said."""

    def __init__(self, engine: EngineProcess, request: GenerateRequest) -> None:
        self.request, self.ids = request, list(request.ids)
        self.chunks: list[TokenChunk] = []
        self._grown = asyncio.Condition()
        self._task = asyncio.create_task(self._run(engine))

    async def _run(self, engine: EngineProcess) -> None:
        async for chunk in engine.generate(self.request):
            async with self._grown:
                self.chunks.append(chunk)
                self.ids += chunk.ids
                self._grown.notify_all()

    @property
    def new(self) -> list[int]:
        return self.ids[len(self.request.ids) :]

    async def has(self, tokens: int) -> None:
        async with self._grown:
            await self._grown.wait_for(lambda: len(self.new) >= tokens)

    async def ended(self) -> str:
        await self._task
        return self.chunks[-1].finish

    def rest(self) -> GenerateRequest:
        """The request that goes on where this one was interrupted."""
        left = self.request.max_new_tokens - len(self.new)
        return msgspec.structs.replace(
            self.request, request_id=self.request.request_id + "+", ids=self.ids, max_new_tokens=left
        )


def lengths(offer: KvOffer) -> dict[str, int]:
    return {one.session: one.first + len(one.ids) for one in offer.sessions}


@pytest.mark.parametrize(("source", "target", "new_tokens"), [(1, 2, 800), (4, 1, 100)])
async def test_sequences_go_on_as_if_nothing_had_been(shared, arenas, source, target, new_tokens):
    """Offered while they are generated, offered again after a pause, continued by the other engine."""
    old, new = shared[source], shared[target]
    salt = 100 * source
    # So many new tokens that none ends before it is paused.
    requests = [episode(number, new_tokens, salt) for number in range(SESSIONS)]
    streams = [Stream(old, request) for request in requests]
    await asyncio.gather(*(stream.has(5) for stream in streams))
    first = await old.offer_kv("first", {}, CALL_S)
    await old.pause()
    taken = await new.take_kv(first, CALL_S)
    tokens = sum(lengths(first).values())
    assert (taken.sessions, taken.tokens) == (SESSIONS, tokens)
    # Two layers of two heads of 32 dimensions, keys and values; four ranks publish, or read, each head twice.
    assert first.size_bytes == tokens * 1024 * (2 if source == 4 else 1)
    assert taken.size_bytes == tokens * 1024
    await old.resume()
    await asyncio.gather(*(stream.has(len(stream.new) + 5) for stream in streams))
    await old.pause(keep=False)
    assert [await stream.ended() for stream in streams] == ["abort"] * SESSIONS
    second = await old.offer_kv("second", lengths(first), CALL_S)
    # Everything but each one's last token, which was sampled and not yet computed.
    assert lengths(second) == {stream.request.session: len(stream.ids) - 1 for stream in streams}
    assert {one.session: one.first for one in second.sessions} == lengths(first)
    again = await new.take_kv(second, CALL_S)
    assert again.tokens == sum(len(one.ids) for one in second.sessions)
    before = await new.stats()
    assert before.retained == SESSIONS and before.kv_used_tokens == sum(lengths(second).values())
    for name in ("first", "second", "second", "never"):
        await old.withdraw_kv(name)
    assert arenas() == []
    rest = await asyncio.gather(*(new.generate_all(stream.rest()) for stream in streams))
    assert (await new.stats()).prefilled_tokens - before.prefilled_tokens == SESSIONS
    await old.resume()
    alone = [msgspec.structs.replace(request, session="") for request in requests]
    wanted = await asyncio.gather(*map(shared[1].generate_all, alone))
    for stream, after, whole in zip(streams, rest, wanted, strict=True):
        assert after.reused_tokens == len(stream.ids) - 1
        assert stream.new + after.ids == whole.ids
        assert_close(after.logprobs, whole.logprobs[len(stream.new) :])


async def test_what_arrives_serves_others_and_goes_on_from_there(shared):
    """2 → 4 (ranks that share a key-value head) → 1, in turn; a prefix that arrived is used by others."""
    ids = prompt(50, 7)
    first = await shared[2].generate_all(ask(ids, 8, session="s", temperature=0.0))
    ids = ids + first.ids
    for source, target in ((2, 4), (4, 1)):
        offer = await shared[source].offer_kv("first", {}, CALL_S)
        report = await shared[target].take_kv(offer, CALL_S)
        assert (report.sessions, report.tokens) == (1, len(ids) - 1)
        other = await shared[target].generate_all(ask(ids, 1, temperature=0.0))
        assert other.reused_tokens == (len(ids) - 1) // 16 * 16
        ours = await shared[target].generate_all(ask(ids, 8, session="s", temperature=0.0))
        assert ours.reused_tokens == len(ids) - 1 and ours.ids[:1] == other.ids
        assert_close(ours.logprobs, recompute(MODELS[0], ids, ours.ids))
        ids = ids + ours.ids


async def test_a_session_that_began_anew_is_offered_anew(shared):
    old, new = shared[1], shared[2]
    ids = prompt(40, 8)
    await old.generate_all(ask(ids, 4, session="s"))
    first = await old.offer_kv("first", {}, CALL_S)
    await new.take_kv(first, CALL_S)
    await old.generate_all(ask([*ids[:20], 1, 2, 3], 4, session="s"))
    second = await old.offer_kv("second", lengths(first), CALL_S)
    assert [(one.first, len(one.ids)) for one in second.sessions] == [(0, 26)]
    assert (await new.take_kv(second, CALL_S)).tokens == 26
    # What continues an offer that was not taken here is not whole.
    await old.generate_all(ask([*second.sessions[0].ids, 5, 5, 5], 4, session="s"))
    third = await old.offer_kv("third", lengths(second), CALL_S)
    assert third.sessions[0].first == 26
    await new.release("s")
    report = await new.take_kv(third, CALL_S)
    assert (report.sessions, report.left_out) == (0, ["s"])
    assert (await new.stats()).retained == 0


async def test_an_offer_outlives_its_sessions_and_not_its_engine(shared, fleet, arenas):
    (old,), new = await fleet({}), shared[2]
    for number in range(2):
        await old.generate_all(episode(number, 4, salt=20))
    # No room for an arena: nothing is offered, and the name is free again.
    rank = psutil.Process(old.pids[0])
    unlimited = rank.rlimit(psutil.RLIMIT_FSIZE)
    rank.rlimit(psutil.RLIMIT_FSIZE, (1 << 16, unlimited[1]))
    with pytest.raises(ArenaFull, match="does not fit"):
        await old.offer_kv("first", {}, CALL_S)
    rank.rlimit(psutil.RLIMIT_FSIZE, unlimited)
    offer = await old.offer_kv("first", {}, CALL_S)
    with pytest.raises(EngineError, match="already offers first"):
        await old.offer_kv("first", {}, CALL_S)
    for number in range(2):
        await old.release(f"s{number}")
    await old.generate_all(ask(prompt(200, 5), 4))
    assert (await old.offer_kv("second", {}, CALL_S)).sessions == []
    assert (await new.take_kv(offer, CALL_S)).sessions == 2
    for one in offer.sessions:
        ids = [*one.ids, 3]
        after = await new.generate_all(ask(ids, 4, session=one.session))
        assert after.reused_tokens == len(one.ids)
        assert_close(after.logprobs, recompute(MODELS[0], ids, after.ids))
    # What was not withdrawn goes with the engine.
    assert arenas()
    await old.stop()
    assert arenas() == []
    with pytest.raises(DataPlaneError):
        await new.take_kv(offer, CALL_S)


@pytest.mark.slow
async def test_kv_of_older_weights_serves_its_own_session_only(fleet, weights):
    old, new = await fleet({}, {})
    ids = prompt(40)
    first = await old.generate_all(ask(ids, 4, session="s"))
    before = await old.offer_kv("before", {}, CALL_S)
    version, keys = await weights.publish(MODELS[1])
    await old.load_weights(version, keys)
    offer = await old.offer_kv("after", {}, CALL_S)
    with pytest.raises(WeightsIncomplete, match=f"version 0, offer after is of {version}"):
        await new.take_kv(offer, CALL_S)
    await new.load_weights(version, keys)
    await weights.remove(keys)
    with pytest.raises(WeightsIncomplete, match=f"version {version}, offer before is of 0"):
        await new.take_kv(before, CALL_S)
    assert (await new.take_kv(offer, CALL_S)).sessions == 1
    other = await new.generate_all(ask([*ids, 1], 2))
    assert other.reused_tokens == 0
    own = await new.generate_all(ask(ids + first.ids, 2, session="s"))
    assert own.reused_tokens == len(ids) + 3


@pytest.mark.slow
async def test_all_find_a_place_or_none(fleet):
    """Refuses by slots and by tokens; what is refused leaves nothing behind."""
    old, few, small = await fleet({}, {"max_sequences": 2}, {"kv_tokens": 128})
    await asyncio.gather(*(old.generate_all(episode(number, 2)) for number in range(3)))
    offer = await old.offer_kv("o", {}, CALL_S)
    for engine, places in ((few, 2), (small, 1)):
        own = await engine.generate_all(ask(prompt(20, 9), 2))
        with pytest.raises(EngineBusy, match="of 3 sessions of offer o"):
            await engine.take_kv(offer, CALL_S)
        stats = await engine.stats()
        assert (stats.retained, stats.kv_used_tokens) == (0, 0)
        part = msgspec.structs.replace(offer, sessions=offer.sessions[:places])
        assert (await engine.take_kv(part, CALL_S)).sessions == places
        again = await engine.generate_all(ask(prompt(20, 9), 2))
        assert_close(again.logprobs, own.logprobs)


@pytest.mark.slow
async def test_bfloat16_travels(fleet):
    old, new = await fleet(*({"tp": tp, "dtype": "bfloat16"} for tp in (1, 2)))
    request = episode(1, 40)
    whole = await old.generate_all(request)
    await old.release("s1")
    stream = Stream(old, episode(1, 40))
    await stream.has(10)
    await old.pause(keep=False)
    await stream.ended()
    report = await new.take_kv(await old.offer_kv("o", {}, CALL_S), CALL_S)
    assert report.size_bytes == (len(stream.ids) - 1) * 512
    rest = await new.generate_all(stream.rest())
    assert rest.reused_tokens == len(stream.ids) - 1
    # Logits of bfloat16 tie often: they are compared as far as the tokens agree.
    after = whole.logprobs[len(stream.new) :]
    assert abs(rest.logprobs[0] - after[0]) < 0.05


@pytest.mark.slow
async def test_a_source_that_dies_is_an_error_and_no_harm(fleet):
    """Frozen in mid-take, so that the read hangs, and then killed; over the wire, while others run."""
    config = DataPlaneConfig(transport="ucx").model_dump_json()
    old, new = await fleet(*({"data_plane": config} for _ in range(2)))
    await asyncio.gather(*(old.generate_all(episode(number, 2)) for number in range(SESSIONS)))
    offer = await old.offer_kv("o", {}, CALL_S)
    busy = Stream(new, ask(prompt(9), 200, temperature=0.0))
    await busy.has(1)
    serving = [child for pid in old.pids for child in started_by(pid)]
    assert serving
    for process in serving:
        process.send_signal(signal.SIGSTOP)
    take = asyncio.create_task(new.take_kv(offer, CALL_S))
    await new.stats()
    assert not take.done()
    for process in [*serving, *map(psutil.Process, old.pids)]:
        process.kill()
    with pytest.raises(PeerLost):
        await take
    assert await busy.ended() == "length"
    assert_close(
        [c.logprobs[0] for c in busy.chunks if c.ids], recompute(MODELS[0], busy.request.ids, busy.new)
    )
    stats = await new.stats()
    assert (stats.retained, stats.kv_used_tokens) == (0, 0)
    again = await new.generate_all(episode(1, 8))
    assert again.reused_tokens == 0
    assert_close(again.logprobs, recompute(MODELS[0], episode(1, 8).ids, again.ids))
