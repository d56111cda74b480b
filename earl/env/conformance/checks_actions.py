"""Checks of what an agent may write: malformed texts, and the same action again and again."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from dataclasses import dataclass
from time import monotonic

from earl.env.base import Action
from earl.env.conformance import policies
from earl.env.conformance.bench import Subject
from earl.env.conformance.card import CheckOutcome, failed, passed, skipped, warned
from earl.env.conformance.play import EpisodePlayer, EpisodeTrace, replaying, shortly
from earl.errors import EarlError

LONG_ECHO_CHARACTERS = 64 << 10
# Seeds with which a malformed action must earn before it is no luck.
EARNING_SEEDS = 4
# Share of the largest declared return up to which a reward for anything at all does little harm.
TOKEN_SHARE = 0.05
AT_ONCE = 8
# The longest that all repetitions of the `endless` check may take together.
REPEATING_S = 20.0
_NO_REWARD = "give what is no legal action a penalty, or no reward and an end: a model learns what pays"
_TOLERANCE = 1e-9


async def actions(subject: Subject) -> CheckOutcome:
    """Takes one step with each of the malformed texts that models write."""
    texts = policies.malformed(subject.tools)
    traces = {what: await subject.player.play(0, replaying([act])) for what, act in texts.items()}
    raised = [f"{what}: {trace.failed}" for what, trace in traces.items() if trace.failed]
    if raised:
        observed = (
            f"{len(raised)} of {len(texts)} end the episode without a reward: {shortly(raised[0], 160)}"
        )
        return failed(observed, "answer what is malformed with a result: a model learns nothing from errors")
    if earning := await _earning(subject, texts, traces):
        what, reward = max(earning.items(), key=lambda item: item[1])
        observed = f"{len(earning)} of {len(texts)} malformed actions earn a reward: {what} earns {reward:g}"
        best = subject.info.max_reward if subject.info.HasField("max_reward") else 0.0
        return (failed if reward > TOKEN_SHARE * best else warned)(observed, _NO_REWARD)
    if better := await _better_than_play(subject, traces):
        return failed(better, _NO_REWARD)
    echoed = len(traces["huge"].last["text"])
    if echoed > LONG_ECHO_CHARACTERS:
        observed = f"an action of {policies.HUGE_CHARACTERS} characters comes back as {echoed}"
        return warned(observed, "cut what an observation repeats of an action")
    return passed(f"{len(texts)} malformed texts, each answered, none rewarded")


async def _earning(
    subject: Subject, texts: Mapping[str, Action], traces: Mapping[str, EpisodeTrace]
) -> dict[str, float]:
    """Malformed actions that earn a positive reward with every seed, with their reward of the first."""
    earning = {}
    for what, trace in traces.items():
        legal = trace.views[0]["legal_actions"]
        if trace.return_ <= 0 or what in policies.may_be_sound(subject.tools) or str(texts[what]) in legal:
            continue
        for seed in range(1, EARNING_SEEDS):
            if (await subject.player.play(seed, replaying([texts[what]]))).return_ <= 0:
                break
        else:
            earning[what] = trace.return_
    return earning


async def _better_than_play(subject: Subject, traces: Mapping[str, EpisodeTrace]) -> str:
    """Returns how nonsense pays better than all play of listed legal actions; "" if it does not."""
    legal = [trace.return_ for trace in subject.played if trace.ended and trace.views[0]["legal_actions"]]
    if len(legal) < subject.bench.plan.seeds:
        return ""
    nonsense = await _repeat(subject, subject.player, Action(policies.NONSENSE), monotonic() + REPEATING_S)
    returns = {what: trace.return_ for what, trace in traces.items() if trace.ended}
    if nonsense.ended:
        returns["nonsense until the end"] = nonsense.return_
    for what, return_ in returns.items():
        if return_ > max(legal) + _TOLERANCE:
            return f"{what} returns {return_:g}, the best of {len(legal)} legal episodes {max(legal):g}"
    return ""


@dataclass(frozen=True, slots=True)
class RepeatedAction:
    """An episode of one action. steps: how often it was taken. failure: of the environment, "" if none."""

    steps: int
    ended: bool
    failure: str
    return_: float


async def endless(subject: Subject) -> CheckOutcome:
    """Repeats one action until its episode ends, and the next one; several episodes at once."""
    return await repeated(subject, subject.player)


async def repeated(subject: Subject, player: EpisodePlayer) -> CheckOutcome:
    """`endless`, as the player plays: with several seats, each of them repeats the action."""
    most = subject.bench.plan.repeats
    first = await player.play(0, replaying(()))
    left = policies.repeatable(first.observation, subject.tools, random.Random("repeated"))
    taken: dict[str, RepeatedAction] = {}
    ends = monotonic() + REPEATING_S

    async def work() -> None:
        while left:
            what, act = left.popitem()
            taken[what] = await _repeat(subject, player, act, ends)

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(max(1, min(AT_ONCE, subject.bench.link.capacity))):
                group.create_task(work())
    except* EarlError as errors:
        raise errors.exceptions[0] from None
    return _of_repeated(taken, most)


async def _repeat(subject: Subject, player: EpisodePlayer, act: Action, ends: float) -> RepeatedAction:
    """Takes an action until the episode ends, `repeats` times at most, and until `ends` on the clock."""
    episode, steps, return_ = player.open(), 0, 0.0
    trace = EpisodeTrace(0)
    try:
        trace.note(await episode.reset(0, player.task))
        while not episode.done and steps < subject.bench.plan.repeats and monotonic() < ends:
            result = await episode.step(act)
            steps += 1
            return_ += result.reward
            trace.views.clear()
            trace.note(result)
    finally:
        episode.close()
    return RepeatedAction(steps, trace.ended, trace.failed, return_)


def _of_repeated(taken: Mapping[str, RepeatedAction], most: int) -> CheckOutcome:
    longest = max(repeated.steps for repeated in taken.values())
    figures = {"actions": float(len(taken)), "most_steps": float(longest)}
    for what, repeated in taken.items():
        if repeated.failure:
            observed = f"{what}, {repeated.steps} times: {shortly(repeated.failure, 160)}"
            return failed(observed, "answer every action with a result, however often it comes", figures)
    running = {what: repeated.steps for what, repeated in taken.items() if not repeated.ended}
    endless = sorted(what for what, steps in running.items() if steps >= most)
    if endless:
        observed = f"{len(endless)} of {len(taken)} actions never end the episode, repeated {most} times: "
        remedy = "bound the steps in every branch of step (truncated=True); --repeats N allows more of them"
        return warned(observed + shortly(", ".join(endless), 160), remedy, figures)
    if running:
        what, steps = next(iter(running.items()))
        observed = f"there was time for {steps} steps of {what}, which did not end the episode"
        return skipped(f"{observed}; --repeats N asks for fewer than {most}", figures=figures)
    return passed(f"{len(taken)} actions, each until the end: after {longest} steps at most", figures=figures)
