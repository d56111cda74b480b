"""Checks of the host: what it does with strangers, lost streams and SIGTERM, and what the Judge noted."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import monotonic
from typing import Any

from earl.env.base import Ending
from earl.env.conformance.acts import Act
from earl.env.conformance.bench import Bench, Subject
from earl.env.conformance.card import Check, CheckVerdict
from earl.env.conformance.play import EpisodeTrace, difference, replaying, seen_of
from earl.errors import DeadlineExceeded

PASS, WARN, FAIL, SKIP = CheckVerdict.PASS, CheckVerdict.WARN, CheckVerdict.FAIL, CheckVerdict.SKIP

# How long a refusal is waited for; a host that says nothing is found out only by the step's deadline.
REFUSAL_S = 2.0
BACK_S = 15.0
DRAIN_S = 5.0
SLOW_PONG_S = 0.5
# Hosts that take more sessions than this are not filled.
MAX_FILLED = 64
_FAILING = (Ending.ENV_ERROR.name, Ending.INFRA_ERROR.name, Ending.TIMEOUT.name)


def check(bench: Bench, name: str, verdict: CheckVerdict, observed: str, remedy: str = "") -> Check:
    return Check(name, bench.link.name, verdict, observed, remedy if verdict is not PASS else "")


async def strangers(subject: Subject) -> Check:
    """An environment that is not served, a session that was never begun, and a seq out of turn."""
    bench = subject.bench
    bound_s = min(REFUSAL_S, bench.plan.step_s)
    requests: dict[str, Callable[[], Any]] = {}
    unknown = bench.link.open("no/such/environment", bound_s, bound_s)
    requests["a reset of an environment that it does not serve"] = lambda: unknown.reset(0, {})
    unbegun = bench.link.open(subject.name, bound_s, bound_s)
    requests["a step of a session that was never reset"] = lambda: unbegun.step(Act("x"))
    session = subject.player.open()
    await session.reset(0, subject.player.task)
    requests["a step with seq 5 after the reset"] = lambda: session.wrong_step(5, Act("x"), bound_s)
    silent = []
    try:
        for what, ask in requests.items():
            try:
                ending = seen_of(await ask())["ending"]
            except DeadlineExceeded:
                silent.append(what)
                continue
            if ending not in _FAILING:
                observed = f"{what} is answered with ending {ending}"
                return check(bench, "strangers", FAIL, observed, "answer with done and ENDING_INFRA_ERROR")
    finally:
        for episode in (unknown, unbegun, session):
            episode.close()
    if silent:
        observed = f"no answer to {silent[0]}"
        remedy = "answer with done and ENDING_INFRA_ERROR: the gateway waits for the whole deadline otherwise"
        return check(bench, "strangers", WARN, observed, remedy)
    observed = "an unknown environment, an unknown session and a wrong seq: each refused"
    return check(bench, "strangers", PASS, observed)


async def capacity(subject: Subject) -> Check:
    """As many sessions as were offered, and one more."""
    bench, count = subject.bench, subject.bench.link.capacity
    if not 1 <= count <= MAX_FILLED:
        reason = f"the host offers {count} sessions; up to {MAX_FILLED} are filled"
        return check(bench, "capacity", SKIP, reason, "start it with a smaller capacity to see")
    held = [subject.player.open() for _ in range(count)]
    beyond = bench.link.open(subject.name, min(REFUSAL_S, bench.plan.reset_s), REFUSAL_S)
    try:
        results = await asyncio.gather(*(session.reset(0, subject.player.task) for session in held))
        for result in results:
            if result.done:
                observed = f"of {count} sessions that it offers one fails: {seen_of(result)['message']}"
                return check(bench, "capacity", FAIL, observed, "offer only what the host can hold")
        try:
            refused = seen_of(await beyond.reset(0, subject.player.task))["ending"] in _FAILING
        except DeadlineExceeded:
            return check(bench, "capacity", WARN, "no answer beyond it", "answer with ENDING_INFRA_ERROR")
    finally:
        for session in (*held, beyond):
            session.close()
        await bench.link.fence()
    if not refused:
        observed = f"session {count + 1} of {count} was taken"
        return check(bench, "capacity", WARN, observed, "answer with ENDING_INFRA_ERROR, or offer more")
    return check(bench, "capacity", PASS, f"{count} sessions are held, the next is refused")


async def reconnect(subject: Subject) -> Check:
    """The stream ends in the middle of two episodes; one of them is held and goes on, the other is not."""
    bench, link = subject.bench, subject.bench.link
    trace = max(subject.traces, key=lambda played: len(played.acts))
    half = replaying(trace.acts[: len(trace.acts) // 2])
    held, lost = subject.player.open(), subject.player.open()
    after, other = EpisodeTrace(trace.seed), EpisodeTrace(trace.seed)
    instance, epoch = link.hello.instance, link.epoch
    try:
        await subject.player.go_on(held, after, half)
        await subject.player.go_on(lost, other, half)
        lost.forget()
        going_on = asyncio.create_task(subject.player.go_on(held, after, replaying(trace.acts)))
        await asyncio.sleep(0)
        began = monotonic()
        try:
            await link.drop_stream(BACK_S)
            back_s = monotonic() - began
        finally:
            await asyncio.wait({going_on})
        going_on.result()
        try:
            ending = seen_of(await lost.step(Act("x")))["ending"]
        except DeadlineExceeded:
            ending = "none"
    finally:
        held.close()
        lost.close()
    if after.failed:
        observed = f"the episode that Welcome named was lost: {after.failed}"
        return check(bench, "reconnect", FAIL, observed, "keep the sessions that Welcome.sessions names")
    if subject.deterministic and (differs := difference(trace, after)):
        observed = f"the episode went on otherwise: {differs}"
        return check(bench, "reconnect", FAIL, observed, "answer a repeated seq with the result that it had")
    if ending not in (*_FAILING, "none"):
        observed = "an episode that Welcome did not name went on"
        return check(
            bench, "reconnect", FAIL, observed, "drop the sessions that Welcome.sessions does not name"
        )
    if link.hello.instance != instance or "reconnect" in link.judge.violations:
        return check(bench, "reconnect", FAIL, "another instance or epoch came", "keep instance, count epoch")
    observed = f"back after {back_s:.2g} s with epoch {link.epoch} after {epoch}, the episode went on"
    return check(bench, "reconnect", PASS, observed)


async def drain(subject: Subject) -> Check:
    """SIGTERM while an episode is open; it ends the host, so this is the last check."""
    bench, link = subject.bench, subject.bench.link
    if bench.terminate is None:
        reason = "the host's process is not the examiner's"
        return check(bench, "drain", SKIP, reason, "send it SIGTERM in mid-episode by hand")
    trace = max(subject.traces, key=lambda played: len(played.acts))
    episode, after = subject.player.open(), EpisodeTrace(trace.seed)
    await subject.player.go_on(episode, after, replaying(trace.acts[: len(trace.acts) // 2]))
    ending = asyncio.create_task(bench.terminate())
    try:
        async with asyncio.timeout(DRAIN_S):
            await link.drained.wait()
        await subject.player.go_on(episode, after, replaying(trace.acts))
    except TimeoutError:
        observed = f"no Drain within {DRAIN_S:g} s of SIGTERM"
        return check(bench, "drain", FAIL, observed, "say Drain, and let open episodes end")
    finally:
        episode.close()
        await asyncio.wait({ending})
    code = ending.result()
    if after.failed:
        return check(bench, "drain", FAIL, f"the open episode: {after.failed}", "let open episodes end")
    if code != 0:
        observed = "it did not end" if code is None else f"exit code {code}"
        return check(bench, "drain", FAIL, f"{observed} after its episodes had", "end with 0 after a drain")
    return check(bench, "drain", PASS, "Drain was said, the open episode went on, exit code 0")


# --- what the Judge noted all along ---------------------------------------------------------

_REMEDIES = {
    "hello": "mend the Hello",
    "frames": "send the messages of proto/earl/v1/env.proto, with text in UTF-8",
    "answers": "answer each Reset and Step once, with its session and seq",
    "late": "stop what runs in a session that was closed or cancelled, or throw its result away",
    "numbers": "see what the reward is computed from; declare reward_range as it is",
    "endings": "done goes with an ending, metrics with the last result, a failure with no reward",
    "sizes": "cut observations; Welcome.max_text_bytes is the bound of a result",
    "progress": "say Progress between a Reset or Step and its Result, with the same session and seq",
}


def noted(bench: Bench) -> list[Check]:
    """The checks that every message of the examination went through."""
    link, judge = bench.link, bench.link.judge
    checks = []
    passed = {
        "hello": f"{len(link.environments)} environments, capacity {link.hello.capacity}",
        "frames": f"{sum(judge.messages.values())} messages",
        "answers": f"{judge.messages['result']} results",
        "late": "nothing",
        "numbers": f"of {judge.messages['result']} results",
        "endings": f"of {judge.messages['result']} results",
        "sizes": f"up to {judge.largest_result} of {judge.max_text_bytes} bytes",
        "progress": f"{judge.messages['progress']} messages",
    }
    for name, remedy in _REMEDIES.items():
        if name in judge.violations:
            count = judge.counted[name]
            observed = judge.violations[name][0] + (f"; {count} in all" if count > 1 else "")
            checks.append(check(bench, name, FAIL, observed, remedy))
        else:
            checks.append(check(bench, name, PASS, passed[name]))
    checks.append(_pings(bench))
    return [result for result in checks if bench.plan.wants(result.name)]


def _pings(bench: Bench) -> Check:
    link = bench.link
    slowest, silent = max(link.pongs_s, default=0.0), link.unanswered_s()
    remedy = "keep the loop free: blocking = True for what computes or waits in plain methods"
    if "pings" in link.judge.violations:
        observed = link.judge.violations["pings"][0]
        return check(bench, "pings", FAIL, observed, f"answer each Ping at once, with its nonce; {remedy}")
    if max(slowest, silent) > link.lease_s:
        observed = (
            f"a Pong after {max(slowest, silent):.1f} s; the gateway gives the host up after {link.lease_s:g}"
        )
        return check(bench, "pings", FAIL, observed, remedy)
    p99_s = link.pong_p99_s()
    observed = f"{len(link.pongs_s)} answered, p99 {p99_s * 1e3:.2g} ms"
    return check(bench, "pings", WARN if p99_s > SLOW_PONG_S else PASS, observed, remedy)
