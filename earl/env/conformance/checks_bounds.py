"""Checks of what must stay bounded: observations, steps that are cut short, leaks, waits."""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Sequence
from time import monotonic

from earl.env.base import Action
from earl.env.conformance.bench import Subject
from earl.env.conformance.card import CheckOutcome, failed, passed, skipped, warned
from earl.env.conformance.history import LEAST_OBSERVATIONS, RepeatedHistory, repeated_history
from earl.env.conformance.play import EpisodeTrace, View, at_random
from earl.env.conformance.usage import ProcessUsage, trend, usage_of
from earl.errors import EarlError

KIB = 1 << 10
# In an episode that does not end, observations that steadily grow by more than this a step, to more than
# so many times the first, have no bound.
GROWTH_BYTES = 8
GROWN = 2
LONG_BYTES = 64 * KIB
# Repetition in one episode above this costs contexts more than a short list of moves does.
LEAST_REPEATED_BYTES = KIB
# Growth per episode that is a leak, and that may be one.
LEAK_BYTES = 4 * KIB
SUSPECT_BYTES = KIB
LEAK_COUNT = 0.02
# Growth below these over all episodes may be what the allocator keeps.
LEAST_LEAK_BYTES = 2 * KIB * KIB
LEAST_SUSPECT_BYTES = 512 * KIB
AT_ONCE = 8
SAMPLES = 40
# How long a cancelled step may keep its place.
GIVE_BACK_S = 5.0


async def observations(subject: Subject) -> CheckOutcome:
    """Sizes of what was seen, and whether they grow with the steps."""
    longest, fastest = 0, 0.0
    for trace in subject.played:
        lengths = _lengths(trace)
        longest = max(longest, *lengths)
        growth = trend(list(enumerate(lengths)))
        longer = lengths[-1] > GROWN * lengths[0]
        if longer and not trace.last["done"] and growth.grows(GROWTH_BYTES):
            fastest = max(fastest, growth.slope)
    figures = {"longest_bytes": float(longest)}
    if fastest:
        steps = subject.player.bounds.max_steps
        observed = f"grows by {fastest:.0f} bytes a step, {longest} after {steps}, with no end in sight"
        remedy = "show what is new, or the last part: the agent keeps what it has seen"
        return failed(observed, remedy, figures)
    if history := _history(subject):
        figures["repeated_bytes"] = float(history.repeated_bytes)
        share = history.repeated_bytes / history.shown_bytes
        observed = f"the episode so far is repeated: of {history.shown_bytes} bytes in {history.steps} steps"
        observed += f" {share:.0%} had been shown before"
        judge = failed if history.repeated_bytes > LEAST_REPEATED_BYTES else warned
        remedy = "show what is new: every observation stays in the agent's context"
        return judge(observed, remedy, figures)
    if longest > LONG_BYTES:
        return warned(f"up to {longest} bytes", "does a context of the policy hold it?", figures)
    return passed(f"up to {longest} bytes", figures=figures)


def _history(subject: Subject) -> RepeatedHistory | None:
    """The worst of the episodes that repeat themselves, if more than half of those long enough do."""
    shown = [_observation_texts(trace) for trace in subject.played]
    long_enough = [texts for texts in shown if len(texts) >= LEAST_OBSERVATIONS]
    repeating = [history for texts in long_enough if (history := repeated_history(texts))]
    if 2 * len(repeating) <= len(long_enough):
        return None
    return max(repeating, key=lambda history: history.repeated_bytes)


def _observation_texts(trace: EpisodeTrace) -> list[str]:
    """Lists the texts of an episode's observations, without the one that ended it."""
    return [_text_of(view) for view in trace.views if not view["done"]]


def _lengths(trace: EpisodeTrace) -> list[int]:
    """Bytes of each observation; legal actions are not shown to a policy."""
    return [len(_text_of(view).encode()) for view in trace.views]


def _text_of(view: View) -> str:
    """The text of an observation and of its tools' results."""
    parts = [view["text"], *(text for _, text, _ in view["tool_results"])]
    return "\n".join(part for part in parts if part)


async def cancel(subject: Subject) -> CheckOutcome:
    """A step cancelled, a reset cancelled and a session closed while in progress; then an episode."""
    link, trace = subject.bench.link, max(subject.traces, key=lambda played: len(played.acts))
    act = trace.acts[0] if trace.acts else Action("")
    offered = link.capacity
    for stop in ("cancel", "close"):
        for reset_first in (True, False):
            episode = subject.player.open()
            if reset_first:
                await episode.reset(trace.seed, subject.player.task)
                call = asyncio.create_task(episode.step(act))
            else:
                call = asyncio.create_task(episode.reset(trace.seed, subject.player.task))
            await asyncio.sleep(0)  # it is sent now
            getattr(episode, stop)()
            call.cancel()
            await asyncio.wait({call})
            await link.fence()
            if stop == "cancel":
                episode.close()
    await link.until_capacity(offered, GIVE_BACK_S)
    after = await subject.player.again(trace)
    if after.failed:
        return failed(f"after it: {after.failed}", "release what a step held")
    if link.capacity < offered:
        observed = f"{offered - link.capacity} cancelled calls still run after {GIVE_BACK_S:g} s"
        return warned(observed, "make steps async, or bound what they wait for")
    return passed("steps and resets, cancelled and closed; the next episode is whole")


async def leaks(subject: Subject) -> CheckOutcome:
    """Many episodes, and what the host's process holds meanwhile."""
    bench, plan = subject.bench, subject.bench.plan
    if not bench.pid or usage_of(bench.pid) is None:
        observed = (
            "the host's process is not known" if not bench.pid else f"process {bench.pid} cannot be read"
        )
        return skipped(observed, "give --pid, of a process of yours on this machine")
    ends = monotonic() + bench.leak_s()
    every = max(AT_ONCE, plan.episodes // SAMPLES)
    samples: list[tuple[int, ProcessUsage]] = []
    played = 0
    while played < plan.episodes and (monotonic() < ends or len(samples) < 4):
        seeds = range(played, min(played + every, plan.episodes))
        await _play_all(subject, seeds)
        played += len(seeds)
        subject.leak_episodes = played, plan.episodes
        usage = usage_of(bench.pid)
        if usage is not None:
            samples.append((played, usage))
    return _of_samples(subject, samples, played)


async def _play_all(subject: Subject, seeds: Sequence[int]) -> None:
    """An episode of the random policy for each seed, AT_ONCE at a time, as many as the host takes."""
    left = list(reversed(seeds))

    async def play() -> None:
        while left:
            seed = left.pop()
            await subject.player.play(seed, at_random(subject.tools, seed))

    at_once = max(1, min(AT_ONCE, subject.bench.link.capacity))
    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(at_once):
                group.create_task(play())
    except* EarlError as errors:
        raise errors.exceptions[0] from None


def _of_samples(subject: Subject, samples: list[tuple[int, ProcessUsage]], played: int) -> CheckOutcome:
    first, last = samples[0][1], samples[-1][1]
    memory = trend([(episodes, usage.memory_bytes) for episodes, usage in samples])
    figures = {"episodes": float(played), "bytes_per_episode": memory.slope}
    counted = []
    for name in ("files", "threads", "processes"):
        growth = trend([(episodes, getattr(usage, name)) for episodes, usage in samples])
        figures[f"{name}_per_episode"] = growth.slope
        if growth.grows(LEAK_COUNT):
            counted.append(f"{name} grow from {getattr(first, name)} to {getattr(last, name)}")
    size = f"memory {first.memory_bytes / KIB / KIB:.1f} to {last.memory_bytes / KIB / KIB:.1f} MiB"
    grown_bytes = memory.slope * played
    if grown_bytes > LEAST_LEAK_BYTES and memory.grows(LEAK_BYTES):
        counted.insert(0, f"{size}, {memory.slope / KIB:.1f} KiB an episode")
    over = f" over {played} episodes"
    remedy = "release in close() what reset and step take; keep nothing of an episode in the class or module"
    if counted:
        return failed("; ".join(counted) + over, remedy, figures)
    if grown_bytes > LEAST_SUSPECT_BYTES and memory.grows(SUSPECT_BYTES):
        remedy = f"see with --episodes 5000 whether it continues; {remedy}"
        return warned(f"{size}, {memory.slope / KIB:.1f} KiB an episode{over}", remedy, figures)
    if played < subject.bench.plan.episodes:
        observed = f"no trend{over}; there was no time for {subject.bench.plan.episodes}"
        return warned(observed, "give it longer with --leak-s and --total-s", figures)
    return passed(f"{size}, no trend{over}", figures=figures)


async def speed(subject: Subject) -> CheckOutcome:
    """Times of the random policy's resets and steps, one session at a time."""
    plan = subject.bench.plan
    resets = [trace.reset_s for trace in subject.played]
    steps = [step_s for trace in subject.played for step_s in trace.steps_s] or [0.0]
    figures: dict[str, float] = {}
    parts = []
    for name, times in (("reset", resets), ("step", steps)):
        p50, p99 = statistics.median(times), quantile(times, 0.99)
        figures |= {f"{name}_p50_ms": p50 * 1e3, f"{name}_p99_ms": p99 * 1e3}
        parts.append(f"{name} {p50 * 1e3:.2g} ms, p99 {p99 * 1e3:.2g}")
    observed = "; ".join(parts)
    if figures["step_p99_ms"] > plan.step_s * 500 or figures["reset_p99_ms"] > plan.reset_s * 500:
        remedy = "raise environment.step_s and reset_s, or report_progress from what takes long"
        return warned(observed, remedy, figures)
    return passed(observed, figures=figures)


def quantile(values: Sequence[float], share: float) -> float:
    """The value that `share` of them do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
