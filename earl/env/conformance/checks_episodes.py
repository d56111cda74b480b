"""Checks of whole episodes: what they give, and whether they give it again."""

from __future__ import annotations

import asyncio
from time import monotonic

from earl.env.conformance.bench import Subject
from earl.env.conformance.card import Check, CheckVerdict
from earl.env.conformance.play import EpisodeTrace, at_random, difference, replaying, shortly
from earl.errors import EarlError

PASS, WARN, FAIL, SKIP = CheckVerdict.PASS, CheckVerdict.WARN, CheckVerdict.FAIL, CheckVerdict.SKIP

# Episodes of the random policy for each that is compared, and the longest that they may take together.
MORE_EPISODES = 4
POLICY_S = 30.0
_SEEDED = "take all randomness from the seed: random.Random(seed), no clock, no set order, no globals"


async def reset(subject: Subject) -> Check:
    """Begins one episode and looks at its first result."""
    trace = await subject.player.play(0, replaying(()))
    first = trace.last
    if trace.failed:
        remedy = "give a task with --task if it needs one, or mend reset"
        return subject.check("reset", FAIL, trace.failed, remedy)
    if first["done"]:
        return subject.check("reset", FAIL, "the episode is over before it began", "begin one in reset")
    if not first["text"].strip():
        return subject.check("reset", WARN, "the first observation is empty", "say what the task is")
    legal = f", {len(first['legal_actions'])} legal actions" if first["legal_actions"] else ""
    tools = f", {len(subject.tools)} tools" if subject.tools else ""
    return subject.check("reset", PASS, f"{shortly(first['text'])!r}{legal}{tools}")


async def policy(subject: Subject) -> Check:
    """Plays the random policy's episodes; the first of them are kept to be compared with."""
    seeds, played, ends = subject.bench.plan.seeds, [], monotonic() + POLICY_S
    for seed in range(seeds * (1 + MORE_EPISODES)):
        trace = await subject.player.play(seed, at_random(subject.tools, seed))
        played.append(trace)
        if trace.failed:
            observed = f"{trace.failed} with seed {seed} after {len(trace.acts)} random actions"
            remedy = "an environment answers every action: what is illegal costs reward, it raises nothing"
            return subject.check("policy", FAIL, observed, remedy)
        if monotonic() > ends and seed + 1 >= seeds:
            break
    subject.traces = played[:seeds]
    subject.played = played
    return _of_returns(subject, played)


def _of_returns(subject: Subject, played: list[EpisodeTrace]) -> Check:
    returns = [trace.return_ for trace in played]
    ended = sum(trace.ended for trace in played)
    steps = sum(len(trace.acts) for trace in played) / len(played)
    low, high = min(returns), max(returns)
    observed = f"{len(played)} episodes of {steps:.1f} steps, returns {low:g} to {high:g}, {ended} ended"
    figures = {"episodes": len(played), "ended": ended, "min_return": low, "max_return": high}
    if not ended:
        bound = subject.player.bounds.max_steps
        remedy = f"bound the episode with StepResult(..., truncated=True), or raise --max-steps {bound}"
        return subject.check("policy", WARN, observed, remedy, figures)
    if not (subject.info.HasField("min_reward") and subject.info.HasField("max_reward")):
        remedy = "declare reward_range: a reward beyond it is then refused instead of trained on"
        return subject.check("policy", WARN, f"{observed}, no reward_range", remedy, figures)
    if low == high and len(played) > 1:
        remedy = "see that a better episode earns more (--script shows it): equal returns teach nothing"
        return subject.check("policy", WARN, observed, remedy, figures)
    return subject.check("policy", PASS, observed, figures=figures)


async def determinism(subject: Subject) -> Check:
    """The same seeds and actions again, here and in another process."""
    for trace in subject.traces:
        differs = difference(trace, await subject.player.again(trace))
        if differs:
            return subject.check("determinism", FAIL, f"{differs}, in one process", _SEEDED)
    where = "played twice"
    if subject.bench.another is not None:
        async with subject.bench.another() as link:
            for trace in subject.traces:
                differs = difference(trace, await subject.player.on(link).again(trace))
                if differs:
                    return subject.check("determinism", FAIL, f"{differs}, in another process", _SEEDED)
        where = "played twice and in another process"
    subject.deterministic = True
    steps = sum(len(trace.acts) for trace in subject.traces)
    return subject.check("determinism", PASS, f"{len(subject.traces)} seeds, {steps} steps {where}: the same")


async def seeds(subject: Subject) -> Check:
    """The first trace's actions with the other seeds."""
    first, *others = subject.traces
    for other in others:
        repeated = await subject.player.play(other.seed, replaying(first.acts))
        if difference(first, repeated):
            return subject.check("seeds", PASS, f"seeds {first.seed} and {other.seed} differ")
    observed = f"{len(subject.traces)} seeds give the same episode"
    remedy = "take what varies from the seed, or let the task vary: equal episodes are learned by heart"
    return subject.check("seeds", WARN, observed, remedy)


async def replay(subject: Subject) -> Check:
    """Every reset and step asked twice: the same result, and the episode goes on as it did before."""
    trace = max(subject.traces, key=lambda played: len(played.acts))
    episode, twice = subject.player.open(), EpisodeTrace(trace.seed)
    try:
        for count in range(len(trace.acts) + 1):
            await subject.player.go_on(episode, twice, replaying(trace.acts[:count]))
            repeated = EpisodeTrace(trace.seed)
            repeated.note(await episode.repeat())
            last = EpisodeTrace(trace.seed, [twice.last])
            if differs := difference(last, repeated):
                what = differs.replace("the reset", f"seq {count}")
                remedy = "keep a session's last result and send it again"
                return subject.check("replay", FAIL, f"repeated: {what}", remedy)
    finally:
        episode.close()
    if subject.deterministic and (differs := difference(trace, twice)):
        return subject.check(
            "replay", FAIL, f"a repeated seq acted again: {differs}", "act once for each seq"
        )
    return subject.check("replay", PASS, f"{len(trace.acts)} steps, each asked twice")


async def sessions(subject: Subject) -> Check:
    """Many sessions at once, each with the seed and actions of a trace that was played alone."""
    count = min(subject.bench.plan.sessions, subject.bench.link.capacity)
    if not subject.deterministic:
        reason = "what is not deterministic cannot be told from what mixes"
        return subject.check("sessions", SKIP, reason)
    traces = [subject.traces[number % len(subject.traces)] for number in range(count)]
    played = await asyncio.gather(*(subject.player.again(trace) for trace in traces), return_exceptions=True)
    for trace, other in zip(traces, played, strict=True):
        if isinstance(other, EarlError):
            return subject.check("sessions", FAIL, f"{other.message}, with {count} at once", other.remedy)
        if isinstance(other, BaseException):
            raise other
        if differs := difference(trace, other):
            remedy = "keep an episode's state in its own object, nothing in the class or module"
            return subject.check("sessions", FAIL, f"with {count} at once: {differs}", remedy)
    return subject.check("sessions", PASS, f"{count} at once, each as it was alone")


async def script(subject: Subject) -> Check:
    """The recorded episodes, and what they returned."""
    recorded = subject.bench.plan.recorded
    if not recorded:
        return subject.check("script", SKIP, "no recorded episodes: give them with --script FILE")
    returns = []
    for number, episode in enumerate(recorded, 1):
        trace = await subject.player.play(episode.seed, replaying(episode.acts), episode.task)
        if trace.failed:
            return subject.check("script", FAIL, f"episode {number}: {trace.failed}", "mend the environment")
        if len(trace.acts) < len(episode.acts):
            observed = f"episode {number} ended after {len(trace.acts)} of {len(episode.acts)} actions"
            return subject.check("script", FAIL, observed, "record it anew with `earl env play --record`")
        if episode.return_ is not None and abs(trace.return_ - episode.return_) > 1e-6:
            observed = f"episode {number} returned {trace.return_:g}, recorded {episode.return_:g}"
            return subject.check("script", FAIL, observed, "record it anew, if the rules were changed")
        returns.append(trace.return_)
    return subject.check(
        "script", PASS, f"{len(returns)} episodes, returns {min(returns):g} to {max(returns):g}"
    )
