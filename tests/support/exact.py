"""Deterministic runs that a test kills and takes up again, and what two of them are compared by.

async with Exact(directory, workers=1) as run:
    await run.up()
    await run.until(Moment("batch_planned", 4))      # reading or training
    await run.kill_all()                             # SIGKILL to every process, Valkey included
    await run.up()
    await run.finish()
assert run.outcome() == another.outcome()
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import signal
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from earl.bus import Bus
from earl.bus.streams import TRAJECTORY
from earl.config.run import RunConfig
from earl.parallelism import REFERENCE
from earl.stack import plan
from earl.v1.events_pb2 import Event
from tests.support.runs import tictactoe
from tests.support.stack import Stack

# Both end what hangs. Until the first moment all processes of the run start, too.
FINISH_S = 120.0
MOMENT_S = 120.0


@dataclass(frozen=True, slots=True)
class Moment:
    """An event of this kind and of this version or a later one, the `count`-th."""

    fact: str
    version: int = 0
    count: int = 1


@dataclass(frozen=True, slots=True)
class Outcome:
    """The results that must be equal, bit for bit. steps: version -> digests of tokens, batch and weights.

    evaluations: name -> version, mean reward, win rate. files: SHA-256 of the last checkpoint's tensors
    (parameters and moments) and of the exported model.
    """

    steps: dict[int, tuple[float, float, float]]
    evaluations: dict[str, tuple[int, float, float]]
    files: dict[str, str]


def exact(directory: Path, workers: int, **sections: dict[str, Any]) -> RunConfig:
    """Two warm-up batches that make most moves legal, and four training steps; a checkpoint every two."""
    given: dict[str, dict[str, Any]] = {
        "rollout": {"workers": workers},
        "warmup": {"batches": 2, "batch_episodes": 48, "passes": 8, "minibatches": 2, "lr": 1e-2},
        "scheduler": {"steps": 4},
        "trainer": {
            "checkpoint_every": 2, "minibatches": 2, "passes": 2, "lr": 3e-3, "entropy_coefficient": 0.003,
            "lr_final_fraction": 0.1,
        },
        "evaluation": {"episodes": 4, "every_steps": 2, "at_start": True, "at_end": True},
        # A process less, which nothing here looks at.
        "dashboard": {"bind": ""},
    }  # fmt: skip
    for section, keys in sections.items():
        given[section] = given.get(section, {}) | keys
    return tictactoe(directory, **given).model_copy(update={"deterministic": True})


class Exact:
    """One deterministic run under a test's control, alive over any number of kills.

    as_launched: as for Stack. Of two runs that are compared one has such processes, of every kind whose work
    the test is about: each has a seed of Python's hashes of its own, which nothing may depend on.
    """

    def __init__(
        self,
        directory: Path,
        workers: int = 1,
        *,
        as_launched: bool | Collection[str] = False,
        **sections: Any,
    ) -> None:
        self.stack = Stack(exact(directory, workers, **sections), as_launched=as_launched)
        self._workers = [f"rollout-{index}" for index in range(workers)]
        self._bus: Bus | None = None
        self._after = ""
        self._starting: asyncio.Task[None]

    async def __aenter__(self) -> Exact:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._hang_up()
        await self.stack.__aexit__(*error)

    async def up(self) -> None:
        """Starts what `earl train` starts; what the run left behind is taken up.

        Returns when the bus is there, so that no moment of what follows is missed.
        """
        made = (self.stack.directory / "model").exists()
        valkey = self.stack.processes[plan.VALKEY]
        valkey.ready.clear()
        names = [name for name in self.stack.processes if not made or name != plan.MODEL]
        self._starting = asyncio.create_task(self.stack.up(*names))
        serving = asyncio.create_task(valkey.ready.wait())
        await asyncio.wait([self._starting, serving], return_when=asyncio.FIRST_COMPLETED)
        assert serving.done(), "Valkey did not start"
        self._bus = await Bus.connect(self.stack.redis_url, self.stack.config.name, source="test")
        self._after = await self._bus.last_id()

    async def until(self, moment: Moment) -> bool:
        """Returns at this moment, counted from the one before: True, or False if the run ends first."""
        assert self._bus is not None, "the run is not up"
        seen = asyncio.create_task(_nth(self._bus, self._after, moment))
        over = asyncio.create_task(self._over())
        try:
            async with asyncio.timeout(MOMENT_S):
                await asyncio.wait([seen, over], return_when=asyncio.FIRST_COMPLETED)
            if seen.done():
                self._after = seen.result()
            return seen.done()
        finally:
            seen.cancel()
            over.cancel()

    async def kill_all(self) -> None:
        """SIGKILL to every process of the run, at once."""
        await self._hang_up()
        running = [one for one in self.stack.processes.values() if one.running]
        for process in running:
            process.signal(signal.SIGKILL)
        await asyncio.gather(*(process.wait() for process in running))
        # Whoever was still starting cannot have become ready.
        await asyncio.gather(self._starting, return_exceptions=True)

    async def replace(self, name: str) -> None:
        """SIGKILL to one service; another one takes its place, as the supervisor would have it."""
        await self._starting
        await self.stack.kill(name)
        await self.stack.start(name)

    async def finish(self) -> None:
        """Returns when the run is over."""
        await self._starting
        stage = [REFERENCE] if REFERENCE in self.stack.processes else []
        for name in (plan.TRAINER, *stage, *self._workers):
            code = await self.stack.ended(name, FINISH_S)
            assert code == 0, f"{name} ended with {code}:\n{self.stack.log(name)[-4000:]}"

    def outcome(self) -> Outcome:
        """Outcome of a run that has ended."""
        directory = self.stack.directory
        steps = {}
        for line in (directory / "metrics.jsonl").read_text().splitlines():
            step = json.loads(line)
            digests = tuple(step[f"{name}_digest"] for name in ("tokens", "batch", "weights"))
            before = steps.setdefault(step["version"], digests)
            assert digests == before, f"version {step['version']} was made twice, differently: {line}"
        [last] = [path for path in (directory / "checkpoints").iterdir() if path.name == f"step-{max(steps)}"]
        files = [*sorted(last.glob("*.safetensors")), directory / "model-final" / "model.safetensors"]
        judged = map(json.loads, (directory / "evaluations.jsonl").read_text().splitlines())
        evaluations = {one["name"]: (one["version"], one["mean_reward"], one["win_rate"]) for one in judged}
        return Outcome(
            steps, evaluations, {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
        )

    async def _over(self) -> None:
        await asyncio.shield(self._starting)
        await self.stack.processes[plan.TRAINER].wait()

    async def _hang_up(self) -> None:
        if self._bus is not None:
            await self._bus.close()
            self._bus = None


async def _nth(bus: Bus, after: str, moment: Moment) -> str:
    left = moment.count
    async for entry_id, event in bus.follow(after, trajectories=moment.fact == TRAJECTORY):
        left -= _is(moment, event)
        if not left:
            return entry_id
    raise AssertionError("the bus ended")


def _is(moment: Moment, event: Event) -> bool:
    if event.WhichOneof("fact") != moment.fact:
        return False
    fact = getattr(event, moment.fact)
    return getattr(fact, "version", getattr(fact, "newest_version", 0)) >= moment.version
