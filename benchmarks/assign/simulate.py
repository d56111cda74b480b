"""A fleet of simulated engines that play batches of sequences, event by event. No clock, no randomness.

    versions release a batch ─► the policy takes its sequences
    an engine has an open slot ─► the policy says which sequence begins there
    a sequence ends ─► its group may be complete, the next version trained, another batch released
    every POLL_S ─► the policy may move sequences that run

An engine decodes up to `slots` sequences at once. Each step is one token of each, and takes what its cost
says at that load and those contexts (`services.scheduler.assign.cost`). A prompt, and a context that has
moved there, is computed first, and the engine's other sequences wait. Environments and training take no time:
what is measured is what waits for long sequences.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from benchmarks.assign.traces import SequenceBatch, joined
from benchmarks.assign.versions import Versions
from services.scheduler.assign.plan import EngineKind

# Seconds between two questions to the policy whether sequences move.
POLL_S = 5.0


@dataclass(frozen=True, slots=True)
class FleetTimes:
    """Times of a whole simulated run of some engines.

    seconds: until its last sequence ended. idle_s: worker-seconds in which an engine had nothing to decode,
    the bubble. empty_s: slot-seconds without a sequence, over the slots of an engine. moved: sequences that
    moved while they ran.
    """

    engines: int
    seconds: float
    idle_s: float
    empty_s: float
    moved: int


class Policy(Protocol):
    """Decides where sequences are played. Sequences have numbers from 0 over all batches."""

    def released(self, fleet: SimulatedFleet, numbers: range) -> None:
        """A batch may be played from now on."""
        ...

    def take(self, engine: int, credit: int) -> Iterable[int]:
        """Takes up to `credit` sequences that an engine with so many open slots begins, each as it begins."""
        ...

    def ended(self, number: int) -> None:
        """A sequence has ended."""
        ...

    def poll(self, fleet: SimulatedFleet) -> None:
        """POLL_S have passed."""
        ...


@dataclass(slots=True)
class SimulatedEngine:
    """One engine. steps: decoding steps until now_s. context: tokens of all running sequences. running: heap
    of (step at which it ends, sequence). event: number of the last scheduled end; earlier ones are void."""

    kind: EngineKind
    now_s: float = 0.0
    steps: float = 0.0
    context: float = 0.0
    running: list[tuple[float, int]] = field(default_factory=list)
    idle_s: float = 0.0
    empty_s: float = 0.0
    event: int = 0

    def seconds(self, steps: float) -> float:
        """Seconds of the next steps, in which nothing begins or ends."""
        cost, count = self.kind.cost, len(self.running)
        each = cost.step_s + cost.sequence_s * count + cost.context_s * self.context
        return each * steps + cost.context_s * count * steps * steps / 2

    def pass_to(self, now_s: float) -> None:
        """Decodes until now_s."""
        elapsed_s = now_s - self.now_s
        if elapsed_s <= 0:
            return
        count, cost = len(self.running), self.kind.cost
        self.empty_s += elapsed_s * (1 - count / self.kind.slots)
        if count:
            each = cost.step_s + cost.sequence_s * count + cost.context_s * self.context
            curve = cost.context_s * count
            steps = (
                (math.sqrt(each * each + 2 * curve * elapsed_s) - each) / curve if curve else elapsed_s / each
            )
            self.steps += steps
            self.context += count * steps
        else:
            self.idle_s += elapsed_s
        self.now_s = now_s


class SimulatedFleet:
    """Plays batches of one size under a policy. kind: int (engines,), the index of each engine's kind."""

    def __init__(
        self,
        kinds: Sequence[EngineKind],
        kind: np.ndarray,
        batches: Sequence[SequenceBatch],
        group_size: int,
        staleness: int,
    ) -> None:
        self.kinds, self.kind = kinds, kind
        self.engines = [SimulatedEngine(kinds[number]) for number in kind]
        self.batches, self.group_size = batches, group_size
        self.sequences = joined(batches)
        self._versions = Versions(len(batches[0].prompts) // group_size, group_size, staleness)
        self._prompts: list[int] = self.sequences.prompts.tolist()
        self._responses: list[int] = self.sequences.responses.tolist()
        self.now_s = 0.0
        self._trained = 0
        self._events: list[tuple[float, int, int]] = []
        # By sequence, tokens that it had when it came to its engine, and the engine's steps then.
        self._begun: dict[int, tuple[int, float, float]] = {}
        self._released = 0
        self._moved = 0

    def run(self, policy: Policy) -> FleetTimes:
        """Plays all batches to their end; once."""
        self._release(policy)
        poll_s = POLL_S
        while self._trained < len(self.batches):
            when_s, engine, event = self._events[0]
            if when_s > poll_s:
                self.now_s = poll_s
                policy.poll(self)
                poll_s += POLL_S
                continue
            heapq.heappop(self._events)
            state = self.engines[engine]
            if event != state.event:
                continue
            self.now_s = when_s
            self._end_next(engine, policy)
            while self._versions.train():
                self._trained += 1
                self._release(policy)
            self.fill(engine, policy)
        for state in self.engines:
            state.pass_to(self.now_s)
        return FleetTimes(
            len(self.engines),
            self.now_s,
            sum(state.idle_s for state in self.engines),
            sum(state.empty_s for state in self.engines),
            self._moved,
        )

    def fill(self, engine: int, policy: Policy) -> None:
        """Begins sequences in an engine's open slots."""
        state = self.engines[engine]
        for number in policy.take(engine, state.kind.slots - len(state.running)):
            self._versions.begun(number // self.group_size)
            self._begin(state, engine, number, self._prompts[number], self._responses[number])
        self._schedule(state, engine)

    def move(self, number: int, engine: int, policy: Policy) -> None:
        """Takes a running sequence to another engine, which computes its context again."""
        source, had, steps = self._begun.pop(number)
        state = self.engines[source]
        state.pass_to(self.now_s)
        response = had + state.steps - steps
        state.running = [entry for entry in state.running if entry[1] != number]
        heapq.heapify(state.running)
        state.context -= self._prompts[number] + response
        target = self.engines[engine]
        self._begin(
            target, engine, number, self._prompts[number] + response, self._responses[number] - response
        )
        self._begun[number] = engine, response, target.steps
        self._moved += 1
        self._schedule(target, engine)
        self.fill(source, policy)

    def progress(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(numbers, engines, tokens of the response so far) of the sequences that run."""
        for state in self.engines:
            state.pass_to(self.now_s)
        numbers = np.fromiter(self._begun, int, len(self._begun))
        rows = [
            (engine, had + self.engines[engine].steps - steps) for engine, had, steps in self._begun.values()
        ]
        engines, responses = np.asarray(rows, float).reshape(-1, 2).T
        return numbers, engines.astype(int), responses

    def _begin(self, state: SimulatedEngine, engine: int, number: int, context: float, left: float) -> None:
        state.pass_to(self.now_s)
        state.now_s = max(state.now_s, self.now_s) + state.kind.cost.prompt_s * context
        heapq.heappush(state.running, (state.steps + left, number))
        state.context += context
        self._begun[number] = engine, 0.0, state.steps

    def _end_next(self, engine: int, policy: Policy) -> None:
        state = self.engines[engine]
        end, number = heapq.heappop(state.running)
        count = len(state.running) + 1
        state.empty_s += (self.now_s - state.now_s) * (1 - count / state.kind.slots)
        state.context += count * (end - state.steps)
        state.steps, state.now_s = end, self.now_s
        state.context -= self._prompts[number] + self._responses[number]
        del self._begun[number]
        self._versions.ended(number // self.group_size)
        policy.ended(number)

    def _schedule(self, state: SimulatedEngine, engine: int) -> None:
        state.pass_to(self.now_s)
        state.event += 1
        if state.running:
            when_s = state.now_s + state.seconds(state.running[0][0] - state.steps)
            heapq.heappush(self._events, (when_s, engine, state.event))

    def _release(self, policy: Policy) -> None:
        size = len(self.batches[0].prompts)
        while self._released < min(self._versions.released, len(self.batches)):
            self._versions.issue()
            policy.released(self, range(self._released * size, (self._released + 1) * size))
            self._released += 1
        for engine in range(len(self.engines)):
            self.fill(engine, policy)
