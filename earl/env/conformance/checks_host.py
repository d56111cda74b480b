"""Checks of the host: what it does with strangers, lost streams and SIGTERM, and what the Judge noted."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import monotonic
from typing import Any

from earl.env.base import Action, Ending
from earl.env.conformance.bench import Bench, Subject
from earl.env.conformance.card import Check, CheckOutcome, failed, passed, skipped, warned
from earl.env.conformance.play import EpisodeTrace, difference, replaying, view_of
from earl.errors import DeadlineExceeded

# How long a refusal is waited for; a host that does not answer is detected only by the step's deadline.
REFUSAL_S = 2.0
BACK_S = 15.0
DRAIN_S = 5.0
SLOW_PONG_S = 0.5
# Hosts that take more sessions than this are not filled.
MAX_FILLED = 64
_FAILING = (Ending.ENV_ERROR.name, Ending.INFRA_ERROR.name, Ending.TIMEOUT.name)


async def strangers(subject: Subject) -> CheckOutcome:
    """An environment that is not served, a session that was never begun, and a seq out of turn."""
    bench = subject.bench
    bound_s = min(REFUSAL_S, bench.plan.step_s)
    requests: dict[str, Callable[[], Any]] = {}
    unknown = bench.link.open("no/such/environment", bound_s, bound_s)
    requests["a reset of an environment that it does not serve"] = lambda: unknown.reset(0, {})
    unbegun = bench.link.open(subject.name, bound_s, bound_s)
    requests["a step of a session that was never reset"] = lambda: unbegun.step(Action("x"))
    session = subject.player.open()
    await session.reset(0, subject.player.task)
    requests["a step with seq 5 after the reset"] = lambda: session.wrong_step(5, Action("x"), bound_s)
    unanswered = []
    try:
        for what, ask in requests.items():
            try:
                ending = view_of(await ask())["ending"]
            except DeadlineExceeded:
                unanswered.append(what)
                continue
            if ending not in _FAILING:
                observed = f"{what} is answered with ending {ending}"
                return failed(observed, "answer with done and ENDING_INFRA_ERROR")
    finally:
        for episode in (unknown, unbegun, session):
            episode.close()
    if unanswered:
        remedy = "answer with done and ENDING_INFRA_ERROR: the gateway waits for the whole deadline otherwise"
        return warned(f"no answer to {unanswered[0]}", remedy)
    return passed("an unknown environment, an unknown session and a wrong seq: each refused")


async def capacity(subject: Subject) -> CheckOutcome:
    """Opens as many sessions as the host offers, and one more."""
    bench, count = subject.bench, subject.bench.link.capacity
    if not 1 <= count <= MAX_FILLED:
        reason = f"the host offers {count} sessions; up to {MAX_FILLED} are filled"
        return skipped(reason, "start it with a smaller capacity to see")
    held = [subject.player.open() for _ in range(count)]
    beyond = bench.link.open(subject.name, min(REFUSAL_S, bench.plan.reset_s), REFUSAL_S)
    try:
        results = await asyncio.gather(*(session.reset(0, subject.player.task) for session in held))
        for result in results:
            if result.done:
                observed = f"of {count} sessions that it offers one fails: {view_of(result)['message']}"
                return failed(observed, "offer only what the host can hold")
        try:
            refused = view_of(await beyond.reset(0, subject.player.task))["ending"] in _FAILING
        except DeadlineExceeded:
            return warned("no answer beyond it", "answer with ENDING_INFRA_ERROR")
    finally:
        for session in (*held, beyond):
            session.close()
        await bench.link.fence()
    if not refused:
        observed = f"session {count + 1} of {count} was taken"
        return warned(observed, "answer with ENDING_INFRA_ERROR, or offer more")
    return passed(f"{count} sessions are held, the next is refused")


async def reconnect(subject: Subject) -> CheckOutcome:
    """The stream ends in the middle of two episodes; one of them is held and continues, the other is not."""
    link = subject.bench.link
    trace = max(subject.traces, key=lambda played: len(played.acts))
    half = replaying(trace.acts[: len(trace.acts) // 2])
    held, lost = subject.player.open(), subject.player.open()
    after, other = EpisodeTrace(trace.seed), EpisodeTrace(trace.seed)
    instance, epoch = link.hello.instance, link.epoch
    try:
        await subject.player.continue_play(held, after, half)
        await subject.player.continue_play(lost, other, half)
        lost.forget()
        continuing = asyncio.create_task(subject.player.continue_play(held, after, replaying(trace.acts)))
        await asyncio.sleep(0)
        began = monotonic()
        try:
            await link.drop_stream(BACK_S)
            back_s = monotonic() - began
        finally:
            await asyncio.wait({continuing})
        continuing.result()
        try:
            ending = view_of(await lost.step(Action("x")))["ending"]
        except DeadlineExceeded:
            ending = "none"
    finally:
        held.close()
        lost.close()
    if after.failed:
        observed = f"the episode that Welcome named was lost: {after.failed}"
        return failed(observed, "keep the sessions that Welcome.sessions names")
    if subject.deterministic and (differs := difference(trace, after)):
        observed = f"the continued episode differs: {differs}"
        return failed(observed, "answer a repeated seq with the result that it had")
    if ending not in (*_FAILING, "none"):
        observed = "an episode that Welcome did not name continued"
        return failed(observed, "drop the sessions that Welcome.sessions does not name")
    if link.hello.instance != instance or "reconnect" in link.judge.violations:
        return failed("another instance or epoch came", "keep instance, count epoch")
    return passed(f"back after {back_s:.2g} s with epoch {link.epoch} after {epoch}, the episode continued")


async def drain(subject: Subject) -> CheckOutcome:
    """SIGTERM while an episode is open; it ends the host, so this is the last check."""
    bench, link = subject.bench, subject.bench.link
    if bench.terminate is None:
        return skipped("the host's process is not the examiner's", "send it SIGTERM in mid-episode by hand")
    trace = max(subject.traces, key=lambda played: len(played.acts))
    episode, after = subject.player.open(), EpisodeTrace(trace.seed)
    await subject.player.continue_play(episode, after, replaying(trace.acts[: len(trace.acts) // 2]))
    ending = asyncio.create_task(bench.terminate())
    try:
        async with asyncio.timeout(DRAIN_S):
            await link.drained.wait()
        await subject.player.continue_play(episode, after, replaying(trace.acts))
    except TimeoutError:
        return failed(f"no Drain within {DRAIN_S:g} s of SIGTERM", "send Drain, and let open episodes end")
    finally:
        episode.close()
        await asyncio.wait({ending})
    code = ending.result()
    if after.failed:
        return failed(f"the open episode: {after.failed}", "let open episodes end")
    if code != 0:
        observed = "it did not end" if code is None else f"exit code {code}"
        return failed(f"{observed} after its episodes had", "end with 0 after a drain")
    return passed("Drain was sent, the open episode continued, exit code 0")


# --- what the Judge noted all along ---------------------------------------------------------

_REMEDIES = {
    "hello": "fix the Hello",
    "frames": "send the messages of proto/earl/v1/env.proto, with text in UTF-8",
    "answers": "answer each Reset and Step once, with its session and seq",
    "late": "stop what runs in a session that was closed or cancelled, or throw its result away",
    "numbers": "see what the reward is computed from; declare reward_range as it is",
    "endings": "done goes with an ending, metrics with the last result, a failure with no reward",
    "sizes": "truncate observations; Welcome.max_text_bytes is the bound of a result",
    "progress": "send Progress between a Reset or Step and its Result, with the same session and seq",
}


def noted(bench: Bench) -> list[Check]:
    """The checks that every message of the examination went through."""
    link, judge = bench.link, bench.link.judge
    results = f"of {judge.messages['result']} results"
    observed = {
        "hello": f"{len(link.environments)} environments, capacity {link.hello.capacity}",
        "frames": f"{sum(judge.messages.values())} messages",
        "answers": f"{judge.messages['result']} results",
        "late": "nothing",
        "numbers": results,
        "endings": results,
        "sizes": f"up to {judge.largest_result} of {judge.max_text_bytes} bytes",
        "progress": f"{judge.messages['progress']} messages",
    }
    outcomes = {name: passed(text) for name, text in observed.items()}
    for name in judge.violations.keys() & _REMEDIES.keys():
        count = judge.counted[name]
        in_all = f"; {count} in all" if count > 1 else ""
        outcomes[name] = failed(judge.violations[name][0] + in_all, _REMEDIES[name])
    outcomes["pings"] = _pings(bench)
    return [outcome.on_card(name, link.name) for name, outcome in outcomes.items() if bench.plan.wants(name)]


def _pings(bench: Bench) -> CheckOutcome:
    link = bench.link
    slowest_s = max(link.unanswered_s(), *link.pongs_s, 0.0)
    remedy = "keep the loop free: blocking = True for what computes or waits in plain methods"
    if "pings" in link.judge.violations:
        observed = link.judge.violations["pings"][0]
        return failed(observed, f"answer each Ping at once, with its nonce; {remedy}")
    if slowest_s > link.lease_s:
        observed = f"a Pong after {slowest_s:.1f} s; the gateway gives the host up after {link.lease_s:g}"
        return failed(observed, remedy)
    p99_s = link.pong_p99_s()
    observed = f"{len(link.pongs_s)} answered, p99 {p99_s * 1e3:.2g} ms"
    return warned(observed, remedy) if p99_s > SLOW_PONG_S else passed(observed)
