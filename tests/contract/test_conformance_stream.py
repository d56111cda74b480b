"""`earl env test` finds what a host in any language gets wrong: here one that speaks the stream by hand."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest

from earl.env.conformance import checks_host
from earl.env.conformance.bench import Bench
from earl.env.conformance.card import Card, CheckVerdict
from earl.env.conformance.examine import examine
from earl.env.conformance.plan import ExamPlan
from earl.env.conformance.servicer import LEASE_S, examining
from earl.errors import EnvProtocolError
from earl.rpc import auth
from earl.rpc.client import EOF
from earl.v1 import common_pb2, env_pb2
from tests.contract.test_conformance import refused

TOKEN = "of this test"
PLAN: dict[str, Any] = {"seeds": 2, "sessions": 4, "max_steps": 8, "reset_s": 5.0, "step_s": 5.0}
STEPS = 4


class HonestHost:
    """Counts the steps of each session up to STEPS, with no EARL code but the stubs. Subclasses lie."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.instance, self.epoch = 7, 0
        # session → [seq, its answer]
        self.sessions: dict[int, tuple[int, env_pb2.Result]] = {}
        self.out: asyncio.Queue[bytes] = asyncio.Queue()

    def hello(self) -> env_pb2.Hello:
        info = env_pb2.EnvironmentInfo(name="count", schema_hash="s", min_reward=0, max_reward=1)
        identity: dict[str, Any] = {"host": "by hand", "instance": self.instance, "epoch": self.epoch}
        return env_pb2.Hello(protocol=1, environments=[info], capacity=4, **identity)

    def say(self, **message: Any) -> None:
        frame = env_pb2.AttachRequest(messages=[env_pb2.HostMessage(**message)])
        self.out.put_nowait(frame.SerializeToString())

    def received(self, message: env_pb2.GatewayMessage) -> None:
        kind = message.WhichOneof("message")
        getattr(self, f"on_{kind}")(getattr(message, str(kind)))

    def on_welcome(self, welcome: env_pb2.Welcome) -> None:
        self.sessions = {n: state for n, state in self.sessions.items() if n in welcome.sessions}

    def on_ping(self, ping: env_pb2.Ping) -> None:
        self.say(pong=env_pb2.Pong(nonce=ping.nonce))

    def on_close(self, close: env_pb2.Close) -> None:
        self.sessions.pop(close.session, None)

    def on_cancel(self, cancel: env_pb2.Cancel) -> None:
        self.sessions.pop(cancel.session, None)

    def on_reset(self, reset: env_pb2.Reset) -> None:
        if reset.environment != "count" or (reset.session not in self.sessions and len(self.sessions) >= 4):
            return self.refuse(reset.session, 0)
        text = f"seed {reset.seed}"
        result = env_pb2.Result(session=reset.session, observation=env_pb2.Observation(text=text))
        return self.answer(result)

    def on_step(self, step: env_pb2.Step) -> None:
        seq, last = self.sessions.get(step.session, (-1, None))
        if step.seq == seq and last is not None:
            return self.say(result=last)
        if step.seq != seq + 1:
            return self.refuse(step.session, step.seq)
        return self.answer(self.result(step))

    def result(self, step: env_pb2.Step) -> env_pb2.Result:
        result = env_pb2.Result(session=step.session, seq=step.seq)
        result.observation.text = f"{step.seq} of {STEPS}"
        if step.seq == STEPS:
            result.done, result.ending, result.reward = True, common_pb2.ENDING_OK, 1.0
        return result

    def answer(self, result: env_pb2.Result) -> None:
        self.sessions[result.session] = (result.seq, result)
        self.say(result=result)

    def refuse(self, session: int, seq: int) -> None:
        failed = env_pb2.Result(session=session, seq=seq, done=True, message="EnvProtocolError: no")
        failed.ending = common_pb2.ENDING_INFRA_ERROR
        self.say(result=failed)

    async def run(self) -> None:
        """Dials again and again until cancelled."""
        async with grpc.aio.insecure_channel(self.address) as channel:
            attach = channel.stream_stream("/earl.v1.EnvGatewayService/Attach")
            while True:
                self.epoch += 1
                call: Any = attach(metadata=auth.metadata(TOKEN))
                self.out = asyncio.Queue()
                self.say(hello=self.hello())
                writing = asyncio.create_task(self.write(call))
                try:
                    while (raw := await call.read()) is not EOF:
                        for message in env_pb2.AttachResponse.FromString(raw).messages:
                            self.received(message)
                except grpc.aio.AioRpcError:
                    await asyncio.sleep(0.02)  # refused: not at once again
                finally:
                    writing.cancel()
                    await asyncio.wait({writing})

    async def write(self, call: Any) -> None:
        while True:
            await call.write(await self.out.get())


@asynccontextmanager
async def dialling(host: HonestHost) -> AsyncIterator[None]:
    """The host dials as long as this lasts. It is cancelled until it has ended: a cancellation that meets the
    end of its call may be lost."""
    running = asyncio.create_task(host.run())
    try:
        yield
    finally:
        async with asyncio.timeout(20):
            while not running.done():
                running.cancel()
                await asyncio.wait({running}, timeout=0.5)


@asynccontextmanager
async def benched(host: type[HonestHost], *only: str, lease_s: float = 5.0, **plan: Any):
    bounds: dict[str, Any] = {"lease_s": lease_s, "max_text_bytes": 64 << 10}
    async with examining("127.0.0.1:0", TOKEN, **bounds) as examiner, dialling(host(examiner.address)):
        yield Bench(await examiner.host(20), ExamPlan(**PLAN | plan, only=frozenset(only)))


async def carded(host: type[HonestHost], *only: str, **options: Any) -> Card:
    async with benched(host, *only, **options) as bench:
        return await examine(bench)


async def test_an_honest_host_passes(monkeypatch):
    monkeypatch.setattr(checks_host, "SLOW_PONG_S", LEASE_S)  # a busy machine is no slow host
    card = await carded(HonestHost)
    assert card.passed, [check for check in card.checks if check.verdict is CheckVerdict.FAIL]
    skipped = {check.name for check in card.checks if check.verdict is CheckVerdict.SKIP}
    warned = {check.name for check in card.checks if check.verdict is CheckVerdict.WARN}
    assert (skipped, warned) == ({"script", "leaks", "drain"}, {"policy"})  # every return is 1


# --- what may be wrong -----------------------------------------------------------------------


class LateResult(HonestHost):
    """Answers a step that was cancelled, once the gateway can know that it was."""

    cancelled: env_pb2.Cancel | None = None

    def on_cancel(self, cancel):
        super().on_cancel(cancel)
        self.cancelled = cancel

    def on_ping(self, ping):
        super().on_ping(ping)
        if self.cancelled is not None:
            late = env_pb2.Result(session=self.cancelled.session, seq=self.cancelled.seq, reward=0.5)
            self.cancelled = None
            self.say(result=late)


class LateAfterClose(HonestHost):
    closed = 0

    def on_close(self, close):
        super().on_close(close)
        self.closed = close.session

    def on_ping(self, ping):
        super().on_ping(ping)
        if self.closed:
            self.say(result=env_pb2.Result(session=self.closed, seq=1))
            self.closed = 0


class ForeignSession(HonestHost):
    def on_step(self, step):
        self.say(result=env_pb2.Result(session=step.session + 1_000_000, seq=step.seq, reward=9))
        super().on_step(step)


class WrongSeq(HonestHost):
    def on_step(self, step):
        self.say(result=env_pb2.Result(session=step.session, seq=step.seq + 1, reward=9))
        super().on_step(step)


class Twice(HonestHost):
    def answer(self, result):
        super().answer(result)
        self.say(result=result)


class AnotherAnswer(HonestHost):
    """A repeated seq acts again."""

    acted = 0

    def on_step(self, step):
        self.acted += 1
        text = f"act {self.acted}"
        result = env_pb2.Result(
            session=step.session, seq=step.seq, observation=env_pb2.Observation(text=text)
        )
        self.answer(result)


class NotANumber(HonestHost):
    def result(self, step):
        result = super().result(step)
        result.reward = float("inf")
        return result


class NotANumberMetric(HonestHost):
    def result(self, step):
        result = super().result(step)
        if result.done:
            result.metrics["win"] = float("nan")
        return result


class OutOfRange(HonestHost):
    def result(self, step):
        result = super().result(step)
        result.reward *= 3
        return result


class RewardedFailure(HonestHost):
    def result(self, step):
        result = super().result(step)
        if result.done:
            result.ending = common_pb2.ENDING_ENV_ERROR
        return result


class NoEnding(HonestHost):
    def result(self, step):
        result = super().result(step)
        result.ending = common_pb2.ENDING_UNSPECIFIED
        return result


class Oversized(HonestHost):
    def result(self, step):
        result = super().result(step)
        result.observation.text = "x" * (64 << 10)
        return result


class BadUtf8(HonestHost):
    def say(self, **message):
        frame = env_pb2.AttachRequest(messages=[env_pb2.HostMessage(**message)]).SerializeToString()
        self.out.put_nowait(frame.replace(b"2 of", b"\xff\xfe\xfd\xfc"))


class StrayProgress(HonestHost):
    def answer(self, result):
        super().answer(result)
        self.say(progress=env_pb2.Progress(session=result.session, seq=result.seq, message="still"))


class WrongPong(HonestHost):
    def on_ping(self, ping):
        super().on_ping(ping)
        self.say(pong=env_pb2.Pong(nonce=ping.nonce + 1_000))


class NoSchema(HonestHost):
    def hello(self):
        hello = super().hello()
        hello.environments[0].schema_hash = ""
        return hello


class BadTools(HonestHost):
    def hello(self):
        hello = super().hello()
        hello.environments[0].tools_json = '[{"type": "function", "function": {"description": "x"}}]'
        return hello


class OtherSchema(HonestHost):
    def hello(self):
        hello = super().hello()
        hello.environments[0].schema_hash = f"s{self.epoch}"
        return hello


class TakesAnything(HonestHost):
    def refuse(self, session, seq):
        self.say(result=env_pb2.Result(session=session, seq=seq, reward=1))


class Forgetful(HonestHost):
    def on_welcome(self, welcome):
        self.sessions.clear()


class Keeping(HonestHost):
    def on_welcome(self, welcome):
        pass


PLANTED = [
    (LateResult, ("cancel", "late"), "late", "after the Pong that followed its Cancel"),
    (LateAfterClose, ("cancel", "late"), "late", "after the Pong that followed its Close"),
    (ForeignSession, ("policy", "answers"), "answers", "which this host never had"),
    (WrongSeq, ("policy", "answers"), "answers", "which was not asked"),
    (Twice, ("policy", "answers"), "answers", "2 results for"),
    (AnotherAnswer, ("replay", "answers"), "replay", "repeated: text of"),
    (AnotherAnswer, ("replay", "answers"), "answers", "answered again with another result"),
    (NotANumber, ("policy", "numbers"), "numbers", "reward inf"),
    (NotANumberMetric, ("policy", "numbers"), "numbers", "metric win = nan"),
    (OutOfRange, ("policy", "numbers"), "numbers", "return 3 of"),
    (RewardedFailure, ("policy", "endings"), "endings", "a reward of 1 with ending ENV_ERROR"),
    (NoEnding, ("policy", "endings"), "endings", "done with ending 0"),
    (Oversized, ("policy", "sizes"), "sizes", "at most 65536"),
    (StrayProgress, ("policy", "progress"), "progress", "answered before it"),
    (WrongPong, ("policy", "pings"), "pings", "which no Ping had"),
    (NoSchema, ("hello",), "hello", "schema_hash of count is empty"),
    (BadTools, ("hello",), "hello", "it has no name"),
    (OtherSchema, ("reconnect", "hello"), "hello", "was 's1' and is 's2' now"),
    (TakesAnything, ("strangers",), "strangers", "is answered with ending NONE"),
    (Forgetful, ("reconnect",), "reconnect", "the episode that Welcome named was lost"),
    (Keeping, ("reconnect",), "reconnect", "an episode that Welcome did not name continued"),
]


@pytest.mark.parametrize(
    ("host", "only", "check", "words"), PLANTED, ids=[f"{one[0].__name__} {one[2]}" for one in PLANTED]
)
async def test_a_planted_fault_is_found(
    host: type[HonestHost], only: tuple[str, ...], check: str, words: str
):
    card = await carded(host, *only)
    (found,) = card.named(check)
    assert (found.verdict, words in found.seen) == (CheckVerdict.FAIL, True), found
    assert found.remedy and not card.passed


async def test_text_that_is_not_utf8_is_found_and_ends_the_stream():
    card = await carded(BadUtf8, "policy", "frames", step_s=1.0)
    assert not card.passed
    (frames,) = card.named("frames")
    assert frames.verdict is CheckVerdict.FAIL and "bytes are no AttachRequest" in frames.seen


class Mute(HonestHost):
    def on_ping(self, ping):
        pass


async def test_a_host_that_leaves_pings_unanswered_is_found():
    card = await carded(Mute, "reset", "pings", lease_s=0.2)
    (pings,) = card.named("pings")
    assert (pings.verdict, pings.seen) == (CheckVerdict.FAIL, "no Pong from by hand within 0.2 s")


class NoInstance(HonestHost):
    instance = 0

    def hello(self):
        hello = super().hello()
        hello.instance = 0
        return hello


class FirstWords(HonestHost):
    def say(self, **message):
        if "hello" in message:
            message = {"pong": env_pb2.Pong()}
        super().say(**message)


@pytest.mark.parametrize(
    ("host", "words"), [(NoInstance, "instance is 0"), (FirstWords, "first message of a host is not Hello")]
)
async def test_a_host_that_cannot_be_examined_says_why(host: type[HonestHost], words: str):
    async with examining("127.0.0.1:0", TOKEN) as examiner, dialling(host(examiner.address)):
        await refused(examiner)
        with pytest.raises(EnvProtocolError, match=words):
            await examiner.host(0.3)
