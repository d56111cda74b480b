"""Replays a policy on a trace, and computes the cost of the best sequence of choices. Pure.

    for every step:  the policy decides ─► the costs say how long the step takes ─► the policy observes

Costs may come from another table than the policy's: then the policy errs as it does in a run.

A step lasts concurrency x mean tokens / (tokens_per_device_s x devices) seconds, a switch `switch_cost_s`.
What does not fit at the step's longest length runs out of memory: its time is lost, and the step runs again
with the best that fits, after a switch there and before one back. So nothing is quicker than the oracle.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from earl.errors import ConfigError
from earl.parallelism import Replica
from services.scheduler.selector.decision import Decision, LayoutChoice, Outlook, SelectorPolicy, Workload
from services.scheduler.selector.trace import TraceStep


@dataclass(frozen=True, slots=True)
class Taken:
    """One replayed step. seconds: of the step, with the switch before it and, if `oom`, what that cost."""

    decision: Decision
    seconds: float
    oom: bool


@dataclass(frozen=True, slots=True)
class Totals:
    """regret_vs_oracle: what the policy took longer than the oracle, over the oracle's time."""

    regret_vs_oracle: float
    switches: int
    oom_steps: int
    seconds: float
    oracle_seconds: float


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of one step with each parallelism that its devices allow.

    seconds: by replica. fits: those that do not run out of memory; empty if all do.
    """

    seconds: dict[Replica, float]
    fits: frozenset[Replica]

    @property
    def allowed(self) -> list[Replica]:
        """Replicas that fit; if none fits, all of them."""
        return [replica for replica in self.seconds if replica in self.fits or not self.fits]

    @property
    def best_s(self) -> float:
        return min(self.seconds[replica] for replica in self.allowed)


# (layout, workload, tokens a second and device) of a step that ran.
Learn = Callable[[LayoutChoice, Workload, float], None]


def costs_of(table: Outlook, steps: Iterable[TraceStep]) -> list[Cost]:
    """The cost of each step, where the world is as the table has it. Raises ConfigError as `cost`."""
    return [cost(table, step.devices, step.workload) for step in steps]


def cost(table: Outlook, devices: int, workload: Workload) -> Cost:
    """Computes a step's cost with each layout.

    Raises ConfigError if no layout has so many devices, or none has a throughput.
    """
    seconds: dict[Replica, float] = {}
    fits = set()
    for layout in table.candidates(devices):
        took_s = step_s(table, layout, devices, workload)
        if took_s is None:
            continue
        seconds[layout.replica] = took_s
        if table.predict(layout, workload.max_tokens, workload.concurrency).fits:
            fits.add(layout.replica)
    if not seconds:
        raise ConfigError(
            f"the profile has no throughput of any layout of {devices} devices", "measure it: earl profile"
        )
    return Cost(seconds, frozenset(fits))


def step_s(table: Outlook, layout: LayoutChoice, devices: int, workload: Workload) -> float | None:
    """Seconds of a step at its mean length; None where the profile has no throughput."""
    rate = table.predict(layout, workload.mean_tokens, workload.concurrency).tokens_per_device_s
    return workload.concurrency * workload.mean_tokens / (rate * devices) if rate > 0 else None


def run(
    policy: SelectorPolicy,
    steps: Sequence[TraceStep],
    costs: Sequence[Cost],
    switch_cost_s: float,
    learn: Learn = lambda layout, workload, tokens_per_device_s: None,
) -> Iterator[Taken]:
    """The policy's way through the trace. costs: of each step; learn: told what a step in memory did."""
    for step, here in zip(steps, costs, strict=True):
        decision = policy.decide(step.step, step.devices)
        replica = decision.after.replica
        if replica not in here.seconds:
            raise ConfigError(
                f"step {step.step}: {step.devices} devices do not make {decision.after}, or the "
                "profile has no throughput of it",
                "choose another policy, or profile it",
            )
        seconds = here.seconds[replica] + (switch_cost_s if decision.switched else 0.0)
        oom = replica not in here.fits
        if oom and here.fits:
            seconds += 2 * switch_cost_s + here.best_s
        if not oom:
            work = step.workload.concurrency * step.workload.mean_tokens
            learn(decision.after, step.workload, work / (here.seconds[replica] * step.devices))
        yield Taken(decision, seconds, oom)
        policy.observe(step.workload)


def totals(taken: Sequence[Taken], oracle_seconds: float) -> Totals:
    """The figures of a whole replay."""
    seconds = sum(step.seconds for step in taken)
    return Totals(
        regret_vs_oracle=seconds / oracle_seconds - 1.0,
        switches=sum(step.decision.switched for step in taken),
        oom_steps=sum(step.oom for step in taken),
        seconds=seconds,
        oracle_seconds=oracle_seconds,
    )


def oracle(costs: Sequence[Cost], switch_cost_s: float) -> tuple[list[Replica], float]:
    """The cheapest feasible sequence, that knows the whole trace, and its seconds (dynamic programming).

    costs: of each step, in their order.
    """
    # By replica: seconds so far, if the sequence ends there; and where it came from at each step.
    reached: dict[Replica, float] = {}
    ways: list[dict[Replica, Replica]] = []
    for here in costs:
        if not ways:
            ways.append({replica: replica for replica in here.allowed})
            reached = {replica: here.seconds[replica] for replica in here.allowed}
            continue
        cheapest = min(reached, key=lambda replica: (reached[replica], replica))
        way, now = {}, {}
        for replica in here.allowed:
            stays_s = reached.get(replica, float("inf"))
            switches_s = reached[cheapest] + switch_cost_s
            way[replica] = replica if stays_s <= switches_s else cheapest
            now[replica] = min(stays_s, switches_s) + here.seconds[replica]
        ways.append(way)
        reached = now
    last = min(reached, key=lambda replica: (reached[replica], replica))
    seconds, path = reached[last], [last]
    for way in reversed(ways[1:]):
        path.append(way[path[-1]])
    return path[::-1], seconds
