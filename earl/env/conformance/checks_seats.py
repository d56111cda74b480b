"""The check of an environment of which a client may play several seats: all of them are played here."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

from earl.env.base import Action
from earl.env.conformance import policies
from earl.env.conformance.bench import Subject
from earl.env.conformance.card import CheckOutcome, CheckVerdict, failed, passed, skipped, warned
from earl.env.conformance.checks_actions import EARNING_SEEDS, repeated
from earl.env.conformance.checks_episodes import SEEDED
from earl.env.conformance.play import EpisodePlayer, EpisodeTrace, Policy, at_random, difference

_NO_REWARD = (
    "give the seat that makes an illegal move a penalty, or no reward and an end, and the others nothing"
)


async def seats(subject: Subject) -> CheckOutcome:
    """Plays episodes of all seats, again and with nonsense; a failure counts, else the first warning."""
    count = subject.info.seats
    if count < 2:
        return skipped("a client plays one seat of it")
    player = subject.player_of(count)
    traces = [
        await player.play(seed, at_random(subject.tools, seed)) for seed in range(subject.bench.plan.seeds)
    ]
    warning: CheckOutcome | None = None
    async for outcome in _judged(subject, player, traces):
        if outcome.verdict is CheckVerdict.FAIL:
            return outcome
        warning = warning or outcome
    return warning or passed(_summary(traces, count))


async def _judged(
    subject: Subject, player: EpisodePlayer, traces: list[EpisodeTrace]
) -> AsyncIterator[CheckOutcome]:
    """Yields what is wrong, in the order in which it should be mended."""
    if wrong := _of_episodes(player.seats, traces):
        yield wrong
        return
    if differs := await _differing(subject, player, traces):
        yield failed(differs, SEEDED)
    if equal := _equal_returns(player.seats, traces):
        yield warned(equal, "see that a better episode of this seat earns more: equal returns teach nothing")
    for seat in range(player.seats):
        if outcome := await _nonsense(subject, player, seat):
            yield outcome
    stubborn = await repeated(subject, player)
    if stubborn.verdict is not CheckVerdict.PASS:
        yield CheckOutcome(stubborn.verdict, f"all seats repeat it: {stubborn.seen}", stubborn.remedy)


def _of_episodes(count: int, traces: list[EpisodeTrace]) -> CheckOutcome | None:
    """A failure, a wrong number of rewards, a seat that is never asked."""
    for trace in traces:
        if trace.failed:
            remedy = "an environment answers every action of every seat with a result"
            return failed(f"{trace.failed} with seed {trace.seed}, {count} seats played", remedy)
        for step, view in enumerate(trace.views[1:], 1):
            if len(view["rewards"]) != count:
                observed = (
                    f"{len(view['rewards'])} rewards of step {step} with seed {trace.seed}, {count} seats"
                )
                return failed(observed, "give StepResult.rewards, one number for each seat")
    turns = {view["seat"] for trace in traces for view in trace.views if not view["done"]}
    if missing := sorted(set(range(count)) - turns):
        names = ", ".join(map(str, missing))
        observed = f"seat {names} of {count} has no turn in {len(traces)} episodes"
        return failed(observed, "name whose turn it is in Observation.seat")
    return None


async def _differing(subject: Subject, player: EpisodePlayer, traces: list[EpisodeTrace]) -> str:
    """Returns how the same seeds and actions give another episode, here or in another process; "" if not."""
    async with AsyncExitStack() as stack:
        places = [("one process", player)]
        if subject.bench.another is not None:
            link = await stack.enter_async_context(subject.bench.another())
            places.append(("another process", player.on(link)))
        for where, again in places:
            for trace in traces:
                if differs := difference(trace, await again.again(trace)):
                    return f"{differs}, in {where}"
    return ""


def _equal_returns(count: int, traces: list[EpisodeTrace]) -> str:
    if len(traces) < 2:
        return ""
    for seat in range(count):
        returns = {trace.return_of(seat) for trace in traces}
        if len(returns) == 1:
            return f"seat {seat} earns {returns.pop():g} in all of {len(traces)} episodes"
    return ""


async def _nonsense(subject: Subject, player: EpisodePlayer, seat: int) -> CheckOutcome | None:
    """Judges what nonsense at a seat's first turn earns that seat, and others, with every seed."""
    earned: list[float] = []
    others: list[float] = []
    for seed in range(EARNING_SEEDS):
        trace = await player.play(seed, _nonsense_of(seat, at_random(subject.tools, seed)))
        if trace.failed:
            return failed(f"nonsense of seat {seat}: {trace.failed}", "answer it with a result")
        if trace.acts and str(trace.acts[-1]) == policies.NONSENSE:
            rewards = [float(reward) for reward in trace.last["rewards"]]
            earned.append(rewards[seat])
            others.append(max(rewards[:seat] + rewards[seat + 1 :]))
    if earned and min(earned) > 0:
        return failed(f"nonsense of seat {seat} earns it {earned[0]:g}", _NO_REWARD)
    if others and min(others) > 0:
        return warned(f"nonsense of seat {seat} earns another seat {others[0]:g}", _NO_REWARD)
    return None


def _nonsense_of(seat: int, others: Policy) -> Policy:
    """A policy that says nonsense at the seat's first turn, and stops; before it `others` acts."""
    over = False

    def policy(observation: Any, step: int) -> Action | None:
        nonlocal over
        if over:
            return None
        over = observation.seat == seat
        return Action(policies.NONSENSE) if over else others(observation, step)

    return policy


def _summary(traces: list[EpisodeTrace], count: int) -> str:
    ranges = []
    for seat in range(count):
        returns = [trace.return_of(seat) for trace in traces]
        ranges.append(f"seat {seat} {min(returns):g} to {max(returns):g}")
    steps = sum(len(trace.acts) for trace in traces) / len(traces)
    return f"{count} seats in {len(traces)} episodes of {steps:.1f} steps, returns of {', of '.join(ranges)}"
