"""Checks of whole episodes: what they give, and whether they give it again."""

from __future__ import annotations

import asyncio
from time import monotonic

from earl.env.conformance.bench import Subject
from earl.env.conformance.card import Check, Verdict
from earl.env.conformance.play import Trace, at_random, difference, replaying, shortly
from earl.errors import EarlError

PASS, WARN, FAIL, SKIP = Verdict.PASS, Verdict.WARN, Verdict.FAIL, Verdict.SKIP

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
            said = f"{trace.failed} with seed {seed} after {len(trace.acts)} random actions"
            remedy = "an environment answers every action: what is illegal costs reward, it raises nothing"
            return subject.check("policy", FAIL, said, remedy)
        if monotonic() > ends and seed + 1 >= seeds:
            break
    subject.traces = played[:seeds]
    subject.played = played
    return _of_returns(subject, played)


def _of_returns(subject: Subject, played: list[Trace]) -> Check:
    returns = [trace.return_ for trace in played]
    ended = sum(trace.ended for trace in played)
    steps = sum(len(trace.acts) for trace in played) / len(played)
    low, high = min(returns), max(returns)
    seen = f"{len(played)} episodes of {steps:.1f} steps, returns {low:g} to {high:g}, {ended} ended"
    figures = {"episodes": len(played), "ended": ended, "min_return": low, "max_return": high}
    if not ended:
        bound = subject.player.bounds.max_steps
        remedy = f"bound the episode with StepResult(..., truncated=True), or raise --max-steps {bound}"
        return subject.check("policy", WARN, seen, remedy, figures)
    if not (subject.info.HasField("min_reward") and subject.info.HasField("max_reward")):
        remedy = "declare reward_range: a reward beyond it is then refused instead of trained on"
        return subject.check("policy", WARN, f"{seen}, no reward_range", remedy, figures)
    if low == high and len(played) > 1:
        remedy = "see that a better episode earns more (--script shows it): equal returns teach nothing"
        return subject.check("policy", WARN, seen, remedy, figures)
    return subject.check("policy", PASS, seen, figures=figures)


async def determinism(subject: Subject) -> Check:
    """The same seeds and actions again, here and in another process."""
    for trace in subject.traces:
        found = difference(trace, await subject.player.again(trace))
        if found:
            return subject.check("determinism", FAIL, f"{found}, in one process", _SEEDED)
    where = "played twice"
    if subject.bench.another is not None:
        async with subject.bench.another() as link:
            for trace in subject.traces:
                found = difference(trace, await subject.player.on(link).again(trace))
                if found:
                    return subject.check("determinism", FAIL, f"{found}, in another process", _SEEDED)
        where = "played twice and in another process"
    subject.deterministic = True
    steps = sum(len(trace.acts) for trace in subject.traces)
    return subject.check("determinism", PASS, f"{len(subject.traces)} seeds, {steps} steps {where}: the same")


async def seeds(subject: Subject) -> Check:
    """The first trace's actions with the other seeds."""
    first, *others = subject.traces
    for other in others:
        found = await subject.player.play(other.seed, replaying(first.acts))
        if difference(first, found):
            return subject.check("seeds", PASS, f"seeds {first.seed} and {other.seed} differ")
    seen = f"{len(subject.traces)} seeds give the same episode"
    remedy = "take what varies from the seed, or let the task vary: equal episodes are learned by heart"
    return subject.check("seeds", WARN, seen, remedy)


async def replay(subject: Subject) -> Check:
    """Every reset and step asked twice: the same result, and the episode goes on as it did before."""
    trace = max(subject.traces, key=lambda one: len(one.acts))
    episode, twice = subject.player.open(), Trace(trace.seed)
    try:
        for count in range(len(trace.acts) + 1):
            await subject.player.go_on(episode, twice, replaying(trace.acts[:count]))
            repeated = Trace(trace.seed)
            repeated.note(await episode.repeat())
            last = Trace(trace.seed, [twice.last])
            if found := difference(last, repeated):
                what = found.replace("the reset", f"seq {count}")
                remedy = "keep a session's last result and send it again"
                return subject.check("replay", FAIL, f"repeated: {what}", remedy)
    finally:
        episode.close()
    if subject.deterministic and (found := difference(trace, twice)):
        return subject.check("replay", FAIL, f"a repeated seq acted again: {found}", "act once for each seq")
    return subject.check("replay", PASS, f"{len(trace.acts)} steps, each asked twice")


async def sessions(subject: Subject) -> Check:
    """Many sessions at once, each with the seed and actions of a trace that was played alone."""
    count = min(subject.bench.plan.sessions, subject.bench.link.capacity)
    if not subject.deterministic:
        why = "what is not deterministic cannot be told from what mixes"
        return subject.check("sessions", SKIP, why)
    traces = [subject.traces[number % len(subject.traces)] for number in range(count)]
    played = await asyncio.gather(*(subject.player.again(trace) for trace in traces), return_exceptions=True)
    for trace, other in zip(traces, played, strict=True):
        if isinstance(other, EarlError):
            return subject.check("sessions", FAIL, f"{other.message}, with {count} at once", other.remedy)
        if isinstance(other, BaseException):
            raise other
        if found := difference(trace, other):
            remedy = "keep an episode's state in its own object, nothing in the class or module"
            return subject.check("sessions", FAIL, f"with {count} at once: {found}", remedy)
    return subject.check("sessions", PASS, f"{count} at once, each as it was alone")


async def script(subject: Subject) -> Check:
    """The recorded episodes, and what they returned."""
    recorded = subject.bench.plan.recorded
    if not recorded:
        return subject.check("script", SKIP, "no recorded episodes: give them with --script FILE")
    returns = []
    for number, one in enumerate(recorded, 1):
        trace = await subject.player.play(one.seed, replaying(one.acts), one.task)
        if trace.failed:
            return subject.check("script", FAIL, f"episode {number}: {trace.failed}", "mend the environment")
        if len(trace.acts) < len(one.acts):
            said = f"episode {number} ended after {len(trace.acts)} of {len(one.acts)} actions"
            return subject.check("script", FAIL, said, "record it anew with `earl env play --record`")
        if one.return_ is not None and abs(trace.return_ - one.return_) > 1e-6:
            said = f"episode {number} returned {trace.return_:g}, recorded {one.return_:g}"
            return subject.check("script", FAIL, said, "record it anew, if the rules were changed")
        returns.append(trace.return_)
    return subject.check(
        "script", PASS, f"{len(returns)} episodes, returns {min(returns):g} to {max(returns):g}"
    )
