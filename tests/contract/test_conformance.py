"""`earl env test` finds what is planted in environments: EARL's own host serves them, over real gRPC."""

import asyncio
import itertools
import os
import random
import sys
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any, ClassVar

import grpc
import pytest

from earl.env import EnvHost, Environment, Observation, StepResult
from earl.env.conformance import checks_host
from earl.env.conformance.bench import Bench, Subject
from earl.env.conformance.card import Card, CheckVerdict
from earl.env.conformance.examine import examine
from earl.env.conformance.plan import ExamPlan
from earl.env.conformance.servicer import LEASE_S, Examiner, examining
from earl.env.conformance.spawned import spawned
from earl.errors import ConfigError, ServiceUnavailable, UnknownEnvironment
from earl.rpc.client import Client

TOKEN = "of this test"
PLAN: dict[str, Any] = {
    "seeds": 3, "episodes": 60, "sessions": 8, "max_steps": 20, "repeats": 200, "step_s": 10.0,
}  # fmt: skip


class Sound(Environment):
    """Nothing is wrong with it: find the number, of which each answer tells a little."""

    name = "test/sound"
    reward_range = (0.0, 1.0)
    blocking = False

    def reset(self, seed, task):
        self.rng = random.Random(seed)
        self.secret = self.rng.randrange(8)
        self.steps_left = 5
        return self.observation("guess")

    def step(self, action):
        self.steps_left -= 1
        right = action == str(self.secret)
        word = "right" if right else f"no {self.rng.randrange(100)}"
        return StepResult(self.observation(word), float(right), done=right or not self.steps_left)

    def observation(self, word):
        return Observation(word, [str(number) for number in range(8)])


class Random(Sound):
    def step(self, action):
        self.rng = random.Random()
        return super().step(action)


class Shared(Sound):
    """Its state is the class's: sessions mix."""

    steps: ClassVar[Any] = {}

    def reset(self, seed, task):
        observation = super().reset(seed, task)
        type(self).steps = {"left": 5}
        return observation

    def step(self, action):
        type(self).steps["left"] -= 1
        return StepResult(
            f"{self.secret} {type(self).steps['left']}", 0.0, done=type(self).steps["left"] <= 0
        )


class Constant(Sound):
    def reset(self, seed, task):
        return super().reset(0, task)


class Leaking(Sound):
    held: ClassVar[list] = []

    def reset(self, seed, task):
        type(self).held.append(os.urandom(128 << 10))
        return super().reset(seed, task)


class LeakingFiles(Sound):
    held: ClassVar[list] = []

    def reset(self, seed, task):
        type(self).held.append(open(os.devnull))  # noqa: SIM115
        return super().reset(seed, task)


class Hanging(Sound):
    async def step(self, action):
        if self.steps_left == 3:
            await asyncio.Event().wait()
        return super().step(action)


class NotANumber(Sound):
    def step(self, action):
        return StepResult(self.observation("x"), float("nan"), done=True)


class Growing(Sound):
    def reset(self, seed, task):
        self.history = ["begin"]
        return " ".join(self.history)

    def step(self, action):
        self.history.append(f"you said {action[:20]}")
        return StepResult(" ".join(self.history), 0.0)


class Transcript(Sound):
    """A bounded episode whose observations are all of it so far, under a line that changes."""

    def reset(self, seed, task):
        super().reset(seed, task)
        self.steps_left, self.history = 15, []
        return Observation("Turn 0 of 15\nguess", list("ab"))

    def step(self, action):
        self.steps_left -= 1
        self.history.append(
            f"> {action[:20]}\nin room {self.rng.randrange(10_000)} you find {self.steps_left} doors"
        )
        text = "\n".join([f"Turn {15 - self.steps_left} of 15", "guess", *self.history])
        return StepResult(Observation(text, list("ab")), self.rng.random() / 20, done=not self.steps_left)


class OnlyNew(Transcript):
    """The same episode, told once: a prompt and a map that come again are no history."""

    def step(self, action):
        result = super().step(action)
        told = [f"Turn {15 - self.steps_left} of 15", "guess", "#" * 40, self.history[-1]]
        return StepResult(Observation("\n".join(told), list("ab")), result.reward, done=result.done)


class PaysForNothing(Sound):
    def step(self, action):
        return super().step(str(self.secret) if action == "" else action)


class PaysForTrying(Sound):
    def step(self, action):
        self.steps_left -= 1
        return StepResult(self.observation("no"), 0.01, done=not self.steps_left)


class SparesNonsense(Sound):
    """Every legal episode loses; a text that is no legal action draws."""

    reward_range = (-1.0, 1.0)

    def step(self, action):
        self.steps_left -= 1
        legal = action in map(str, range(8))
        return StepResult(self.observation("no"), -1.0 if legal else 0.0, done=legal or not self.steps_left)


class Stubborn(Sound):
    """Forgets to count the steps of one of its actions."""

    def step(self, action):
        if action == "3" and self.secret != 3:
            return StepResult(self.observation("look"), 0.0)
        return super().step(action)


class Huge(Sound):
    def step(self, action):
        return StepResult("x" * (2 << 20), 0.0)


class Fussy(Sound):
    def step(self, action):
        return StepResult(self.observation(str(int(action))), 1.0, done=True)


class Generous(Sound):
    def step(self, action):
        return StepResult(self.observation("right"), 7.0, done=True)


@asynccontextmanager
async def benched(environment: type[Environment], **plan: Any):
    """A host in this process under examination."""
    async with examining("127.0.0.1:0", TOKEN) as examiner:
        stop = asyncio.Event()
        host = EnvHost(examiner.address, environment, 8, name="host", token=TOKEN, drain_s=0.2)
        serving = asyncio.create_task(host.run(stop))
        try:
            yield Bench(await examiner.host(20), ExamPlan(**PLAN | plan), os.getpid())
        finally:
            stop.set()
            await serving


async def carded(environment: type[Environment], *only: str, **plan: Any) -> Card:
    async with benched(environment, only=frozenset(only), **plan) as bench:
        return await examine(bench)


async def refused(examiner: Examiner) -> None:
    """Waits until a host was refused: its examiner then says why, where otherwise none has come."""
    async with asyncio.timeout(20):
        while examiner.refused is None:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


def verdicts(card: Card) -> dict[str, str]:
    return {check.name: check.verdict.value for check in card.checks}


async def test_nothing_is_found_where_nothing_is_wrong(monkeypatch):
    monkeypatch.setattr(checks_host, "SLOW_PONG_S", LEASE_S)  # a busy machine is no slow host
    card = await carded(Sound)
    found = verdicts(card)
    assert card.passed and card.environments == ["test/sound"]
    assert {name for name, verdict in found.items() if verdict == "skip"} == {"script", "drain"}
    assert {name for name, verdict in found.items() if verdict == "warn"} == set()
    assert card.as_object()["counts"]["pass"] == len(found) - 2


PLANTED = [
    (Random, "determinism", "fail", "in one process"),
    (Shared, "sessions", "fail", "at once"),
    (Constant, "seeds", "warn", "give the same episode"),
    (LeakingFiles, "leaks", "fail", "files grow"),
    (NotANumber, "policy", "fail", "reward nan of step 1"),
    (Growing, "observations", "fail", "with no end in sight"),
    (Huge, "policy", "fail", "larger than 1048576"),
    (Fussy, "actions", "fail", "ValueError"),
    (Transcript, "observations", "fail", "the episode so far is repeated"),
    (PaysForNothing, "actions", "fail", "1 of 12 malformed actions earn a reward: empty earns 1"),
    (PaysForTrying, "actions", "warn", "12 of 12 malformed actions earn a reward: empty earns 0.01"),
    (SparesNonsense, "actions", "fail", "nonsense until the end returns 0, the best of 15 legal episodes -1"),
    (
        Stubborn,
        "endless",
        "warn",
        "1 of 10 actions never end the episode, repeated 200 times: the action '3'",
    ),
]


@pytest.mark.parametrize(
    ("environment", "check", "verdict", "words"), PLANTED, ids=[one[0].__name__ for one in PLANTED]
)
async def test_a_planted_fault_is_found(environment: type[Environment], check: str, verdict: str, words: str):
    card = await carded(environment, check)
    (found,) = card.named(check)
    assert (found.verdict, words in found.seen) == (verdict, True), found
    assert found.remedy and card.passed is (verdict != "fail")


async def test_what_is_told_once_is_no_history():
    card = await carded(OnlyNew, "observations")
    assert verdicts(card) == {"observations": "pass"}, card.checks


class Waiting(Sound):
    """Never answers a step."""

    async def step(self, action):
        await asyncio.Event().wait()


async def test_an_examination_ends_in_time_and_says_what_it_did_not_reach():
    card = await carded(Waiting, "reset", "policy", "actions", "speed", "strangers", "frames", total_s=2.0)
    assert verdicts(card) == {
        "reset": "pass", "policy": "skip", "actions": "skip", "speed": "skip",
        "strangers": "skip", "frames": "pass",
    }  # fmt: skip
    assert [check.seen for check in card.named("policy") + card.named("speed")] == [
        "not finished within the 2 s of the examination"
    ] * 2
    subjects = ["policy", "actions", "speed"]
    assert card.unreached == [*(f"{name} of test/sound" for name in subjects), "strangers of host"]
    assert card.as_object()["unreached"] == card.unreached


async def test_a_leak_of_memory_is_found():
    card = await carded(Leaking, "leaks", episodes=240)
    Leaking.held.clear()
    (found,) = card.named("leaks")
    assert (found.verdict, "KiB an episode" in found.seen) == (CheckVerdict.FAIL, True)
    assert 64 << 10 < found.figures["bytes_per_episode"] < 256 << 10


async def test_a_hang_fails_one_check_and_costs_few_bounds():
    card = await carded(Hanging, "policy", "determinism", "actions", "cancel", step_s=1.0)
    (policy,) = card.named("policy")
    assert policy.verdict is CheckVerdict.FAIL
    assert "no result of step 3 within 1 s, with seed" in policy.seen
    assert verdicts(card) == {
        "policy": "fail", "determinism": "skip", "actions": "pass", "cancel": "skip",
    }  # fmt: skip


async def test_a_return_beyond_what_was_declared_is_found():
    card = await carded(Generous, "reset", "policy", "numbers")
    (found,) = card.named("numbers")
    assert found.verdict is CheckVerdict.FAIL
    assert "is outside of the declared [0, 1]" in found.seen


async def test_each_check_is_announced_and_reported_before_the_next_one_begins():
    noted: list[str] = []
    played: list[tuple[int, int]] = []

    @contextmanager
    def during(name: str, subject: Subject):
        noted.append(f"{name} begins")
        yield
        noted.append(f"{name} ends")
        played.append(subject.leak_episodes)

    async with benched(Sound, only=frozenset({"reset", "leaks"}), episodes=32) as bench:
        await examine(bench, report=lambda check: noted.append(f"{check.name} is reported"), during=during)
    assert noted == [
        "reset begins", "reset ends", "reset is reported",
        "leaks begins", "leaks ends", "leaks is reported",
    ]  # fmt: skip
    assert played == [(0, 0), (32, 32)]


async def test_an_environment_that_is_not_served():
    async with benched(Sound) as bench:
        with pytest.raises(UnknownEnvironment, match="it serves test/sound"):
            await examine(bench, ["test/souns"])


async def test_a_host_that_listens_is_examined_too():
    stop, ready = asyncio.Event(), asyncio.Event()
    host = EnvHost(
        environments=Sound, capacity=8, listen="127.0.0.1:0", name="host", token=TOKEN, drain_s=0.2
    )
    serving = asyncio.create_task(host.run(stop, ready.set))
    async with asyncio.timeout(20):
        await ready.wait()
    async with examining("127.0.0.1:0", TOKEN) as examiner:
        examiner.dial(host.address)
        only = frozenset({"determinism", "reconnect", "cancel", "late", "answers"})
        card = await examine(Bench(await examiner.host(20), ExamPlan(**PLAN, only=only)))
    stop.set()
    await serving
    assert set(verdicts(card).values()) == {"pass"} and len(card.checks) == 5


async def test_a_host_that_does_not_listen():
    async with examining("127.0.0.1:0", TOKEN) as examiner:
        examiner.dial("127.0.0.1:1")
        await refused(examiner)
        with pytest.raises(ServiceUnavailable, match=r"Serve at 127\.0\.0\.1:1"):
            await examiner.host(0.3)


class Losing:
    """A call that fails as it is cancelled, and passes no cancellation on: gRPC's do now and then."""

    async def read(self):
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        none = grpc.aio.Metadata()
        raise grpc.aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, none, none, "nobody listens")

    def cancel(self):
        pass


async def test_an_examiner_closes_although_its_dial_fails_just_then(monkeypatch):
    dialled = asyncio.Event()

    def stream(self, method, **options):
        dialled.set()
        return Losing()

    monkeypatch.setattr(Client, "stream", stream)
    async with examining("127.0.0.1:0", TOKEN) as examiner:
        examiner.dial("127.0.0.1:1")
        await dialled.wait()
        await asyncio.sleep(0)
    assert not asyncio.all_tasks() - {asyncio.current_task()}


# --- in processes of their own --------------------------------------------------------------


class Hashed(Sound):
    """An environment whose text follows from the order of a set, which differs from process to process."""

    def observation(self, word):
        return Observation(
            word + " ".join({f"{a}{b}" for a, b in itertools.product("abc", "def")}), list("abc")
        )


async def test_a_second_process_finds_what_one_cannot(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    plan = ExamPlan(**PLAN, only=frozenset({"determinism", "drain"}))
    async with (
        examining("127.0.0.1:0", TOKEN) as examiner,
        spawned(examiner, "tests.contract.test_conformance:Hashed", TOKEN, plan) as bench,
    ):
        card = await examine(bench)
    assert verdicts(card) == {"determinism": "fail", "drain": "pass"}
    assert "in another process" in card.named("determinism")[0].seen


class Crashing(Sound):
    def step(self, action):
        os._exit(7)


async def test_a_host_that_dies_fails_one_check_and_ends_the_examination(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    plan = ExamPlan(**PLAN, only=frozenset({"policy", "actions", "strangers", "pings"}))
    async with (
        examining("127.0.0.1:0", TOKEN) as examiner,
        spawned(examiner, "tests.contract.test_conformance:Crashing", TOKEN, plan) as bench,
    ):
        card = await examine(bench)
    (policy,) = card.named("policy")
    assert (policy.verdict, "ended with exit code 7, with seed 0" in policy.seen) == (CheckVerdict.FAIL, True)
    assert {name for name, verdict in verdicts(card).items() if verdict == "skip"} == {"actions", "strangers"}


async def test_a_target_that_cannot_be_imported_says_so():
    async with examining("127.0.0.1:0", TOKEN) as examiner:
        with pytest.raises(ConfigError, match=r"'no\.such:Thing' cannot be imported"):
            async with spawned(examiner, "no.such:Thing", TOKEN, ExamPlan()):
                raise AssertionError("it was served")
