"""Checks of whole episodes: what they give, and whether they give it again."""

from __future__ import annotations

import asyncio
from time import monotonic

from earl.env.conformance.bench import Subject
from earl.env.conformance.card import CheckOutcome, failed, passed, skipped, warned
from earl.env.conformance.play import EpisodeTrace, at_random, difference, replaying, shortly
from earl.errors import EarlError

# Episodes of the random policy for each that is compared, and the longest that they may take together.
MORE_EPISODES = 4
POLICY_S = 30.0
SEEDED = "take all randomness from the seed: random.Random(seed), no clock, no set order, no globals"


async def reset(subject: Subject) -> CheckOutcome:
    """Begins one episode and looks at its first result."""
    trace = await subject.player.play(0, replaying(()))
    first = trace.last
    if trace.failed:
        return failed(trace.failed, "give a task with --task if it needs one, or fix reset")
    if first["done"]:
        return failed("the episode is over before it began", "begin one in reset")
    if not first["text"].strip():
        return warned("the first observation is empty", "state the task in it")
    legal = f", {len(first['legal_actions'])} legal actions" if first["legal_actions"] else ""
    tools = f", {len(subject.tools)} tools" if subject.tools else ""
    return passed(f"{shortly(first['text'])!r}{legal}{tools}")


async def policy(subject: Subject) -> CheckOutcome:
    """Plays the random policy's episodes; the first of them are kept to be compared with."""
    seeds, played, ends = subject.bench.plan.seeds, [], monotonic() + POLICY_S
    for seed in range(seeds * (1 + MORE_EPISODES)):
        trace = await subject.player.play(seed, at_random(subject.tools, seed))
        played.append(trace)
        if trace.failed:
            remedy = "an environment answers every action: what is illegal costs reward, it raises nothing"
            return failed(f"{trace.failed} with seed {seed} after {len(trace.acts)} random actions", remedy)
        if monotonic() > ends and seed + 1 >= seeds:
            break
    subject.traces = played[:seeds]
    subject.played = played
    return _of_returns(subject, played)


def _of_returns(subject: Subject, played: list[EpisodeTrace]) -> CheckOutcome:
    returns = [trace.return_ for trace in played]
    ended = sum(trace.ended for trace in played)
    steps = sum(len(trace.acts) for trace in played) / len(played)
    low, high = min(returns), max(returns)
    observed = f"{len(played)} episodes of {steps:.1f} steps, returns {low:g} to {high:g}, {ended} ended"
    figures = {"episodes": len(played), "ended": ended, "min_return": low, "max_return": high}
    if not ended:
        bound = subject.player.bounds.max_steps
        remedy = f"bound the episode with StepResult(..., truncated=True), or raise --max-steps {bound}"
        return warned(observed, remedy, figures)
    if not (subject.info.HasField("min_reward") and subject.info.HasField("max_reward")):
        remedy = "declare reward_range: a reward beyond it is then refused instead of trained on"
        return warned(f"{observed}, no reward_range", remedy, figures)
    if low == high and len(played) > 1:
        remedy = "see that a better episode earns more (--script shows it): equal returns teach nothing"
        return warned(observed, remedy, figures)
    return passed(observed, figures=figures)


async def determinism(subject: Subject) -> CheckOutcome:
    """The same seeds and actions again, here and in another process."""
    for trace in subject.traces:
        differs = difference(trace, await subject.player.again(trace))
        if differs:
            return failed(f"{differs}, in one process", SEEDED)
    where = "played twice"
    if subject.bench.another is not None:
        async with subject.bench.another() as link:
            for trace in subject.traces:
                differs = difference(trace, await subject.player.on(link).again(trace))
                if differs:
                    return failed(f"{differs}, in another process", SEEDED)
        where = "played twice and in another process"
    subject.deterministic = True
    steps = sum(len(trace.acts) for trace in subject.traces)
    return passed(f"{len(subject.traces)} seeds, {steps} steps {where}: the same")


async def seeds(subject: Subject) -> CheckOutcome:
    """The first trace's actions with the other seeds."""
    first, *others = subject.traces
    for other in others:
        repeated = await subject.player.play(other.seed, replaying(first.acts))
        if difference(first, repeated):
            return passed(f"seeds {first.seed} and {other.seed} differ")
    remedy = "take what varies from the seed, or let the task vary: equal episodes are learned by heart"
    return warned(f"{len(subject.traces)} seeds give the same episode", remedy)


async def replay(subject: Subject) -> CheckOutcome:
    """Every reset and step asked twice: the same result, and the episode continues as it did before."""
    trace = max(subject.traces, key=lambda played: len(played.acts))
    episode, twice = subject.player.open(), EpisodeTrace(trace.seed)
    try:
        for count in range(len(trace.acts) + 1):
            await subject.player.continue_play(episode, twice, replaying(trace.acts[:count]))
            repeated = EpisodeTrace(trace.seed)
            repeated.note(await episode.repeat())
            last = EpisodeTrace(trace.seed, [twice.last])
            if differs := difference(last, repeated):
                what = differs.replace("the reset", f"seq {count}")
                return failed(f"repeated: {what}", "keep a session's last result and send it again")
    finally:
        episode.close()
    if subject.deterministic and (differs := difference(trace, twice)):
        return failed(f"a repeated seq acted again: {differs}", "act once for each seq")
    return passed(f"{len(trace.acts)} steps, each asked twice")


async def sessions(subject: Subject) -> CheckOutcome:
    """Many sessions at once, each with the seed and actions of a trace that was played alone."""
    count = min(subject.bench.plan.sessions, subject.bench.link.capacity)
    if not subject.deterministic:
        return skipped("what is not deterministic cannot be told from what mixes")
    traces = [subject.traces[number % len(subject.traces)] for number in range(count)]
    played = await asyncio.gather(*(subject.player.again(trace) for trace in traces), return_exceptions=True)
    for trace, other in zip(traces, played, strict=True):
        if isinstance(other, EarlError):
            return failed(f"{other.message}, with {count} at once", other.remedy)
        if isinstance(other, BaseException):
            raise other
        if differs := difference(trace, other):
            remedy = "keep an episode's state in its own object, nothing in the class or module"
            return failed(f"with {count} at once: {differs}", remedy)
    return passed(f"{count} at once, each as it was alone")


async def script(subject: Subject) -> CheckOutcome:
    """The recorded episodes, and what they returned."""
    recorded = subject.bench.plan.recorded
    if not recorded:
        return skipped("no recorded episodes: give them with --script FILE")
    returns = []
    for number, episode in enumerate(recorded, 1):
        trace = await subject.player.play(episode.seed, replaying(episode.acts), episode.task)
        if trace.failed:
            return failed(f"episode {number}: {trace.failed}", "fix the environment")
        if len(trace.acts) < len(episode.acts):
            observed = f"episode {number} ended after {len(trace.acts)} of {len(episode.acts)} actions"
            return failed(observed, "record it again with `earl env play --record`")
        if episode.return_ is not None and abs(trace.return_ - episode.return_) > 1e-6:
            observed = f"episode {number} returned {trace.return_:g}, recorded {episode.return_:g}"
            return failed(observed, "record it again, if the rules were changed")
        returns.append(trace.return_)
    return passed(f"{len(returns)} episodes, returns {min(returns):g} to {max(returns):g}")
