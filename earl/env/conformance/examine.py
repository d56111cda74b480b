"""The examination: every check of the plan, in its order, each bounded, none that stops the others.

    async with examining(...) as examiner:                  (servicer.py)
        bench = Bench(await examiner.host(60), Plan())
        card = await examine(bench)

An environment that hangs fails the check in which it did; after a second one the rest of its checks are
left out, so that a hang costs a few bounds and not one for each check. So are they after its host died.
The whole takes the plan's total_s and little more: a check that is still running then ends, and the card
names it and those after it as not reached.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from time import monotonic

from earl.env.conformance import checks_actions, checks_bounds, checks_episodes, checks_host, checks_seats
from earl.env.conformance.bench import Bench, Subject
from earl.env.conformance.card import Card, Check, CheckOutcome, failed, in_order, skipped
from earl.errors import DeadlineExceeded, EarlError, UnknownEnvironment
from earl.waiting import deadline

Run = Callable[[Subject], Awaitable[CheckOutcome]]
Report = Callable[[Check], None]
# Is entered for as long as a check, by its name, of a subject runs.
During = Callable[[str, Subject], AbstractContextManager[None]]

# In the order in which they are run: `policy` plays the traces that those of COMPARING need.
_EPISODES: dict[str, Run] = {
    "reset": checks_episodes.reset,
    "policy": checks_episodes.policy,
    "determinism": checks_episodes.determinism,
    "seeds": checks_episodes.seeds,
    "replay": checks_episodes.replay,
    "sessions": checks_episodes.sessions,
    "script": checks_episodes.script,
    "actions": checks_actions.actions,
    "endless": checks_actions.endless,
    "observations": checks_bounds.observations,
    "seats": checks_seats.seats,
    "cancel": checks_bounds.cancel,
    "leaks": checks_bounds.leaks,
    "speed": checks_bounds.speed,
}
_HOST: dict[str, Run] = {
    "strangers": checks_host.strangers,
    "capacity": checks_host.capacity,
    "reconnect": checks_host.reconnect,
    "drain": checks_host.drain,
}
_COMPARING = {"determinism", "seeds", "replay", "sessions", "observations", "cancel", "speed"}
_COMPARING |= {"reconnect", "drain"}
# These can do without the episodes of `policy`, but judge more with them.
_USING_PLAY = {"actions"}
_JUDGED_BY_DETERMINISM = {"sessions"}
MAX_HANGS = 2


async def examine(
    bench: Bench,
    names: Sequence[str] = (),
    report: Report = lambda check: None,
    during: During = lambda name, subject: nullcontext(),
) -> Card:
    """The card of a host. names: of environments, all that it serves if empty.

    report: gets each check as soon as it is judged. during: is entered while a check runs. Raises
    UnknownEnvironment.
    """
    served = bench.link.environments
    for name in names:
        if name not in served:
            text = f"{bench.link.name} does not serve {name!r}"
            raise UnknownEnvironment(text, f"it serves {', '.join(sorted(served))}")
    began = monotonic()
    checks: list[Check] = []

    def note(check: Check) -> None:
        checks.append(check)
        report(check)

    bench.ends = began + bench.plan.total_s
    subjects = [Subject(bench, served[name]) for name in names or served]
    unreached: list[str] = []
    for number, subject in enumerate(subjects):
        bench.environments_left = len(subjects) - number
        unreached += await _run(subject, _EPISODES, note, during)
    if bench.plan.wants("pings") and not bench.link.ended:
        await _pinged(bench)
    unreached += await _run(subjects[0], _HOST, note, during)
    for check in checks_host.noted(bench):
        note(check)
    names = [subject.name for subject in subjects]
    return Card(bench.link.name, names, in_order(checks), monotonic() - began, unreached)


async def _pinged(bench: Bench) -> None:
    """Sends one more ping, so that even a short examination has one to judge."""
    try:
        await bench.link.fence(bench.link.lease_s)
    except DeadlineExceeded as error:
        bench.link.judge.violated("pings", error.message)


async def _run(subject: Subject, runs: dict[str, Run], note: Report, during: During) -> list[str]:
    """Runs the checks that the plan selects, and those that they need; returns those without time left."""
    bench, wants = subject.bench, subject.bench.plan.wants
    late = DeadlineExceeded(
        f"not finished within the {bench.plan.total_s:g} s of the examination", "raise --total-s"
    )
    out_of_time = skipped(late.message)
    needed = {name for name in runs if wants(name)}
    if subject.info.seats < 2 and not bench.plan.only:
        needed.discard("seats")
    who = bench.link.name if runs is _HOST else subject.name
    hangs = 0
    unreached: list[str] = []
    for name, run in _with_needs(subject, runs, needed).items():
        if bench.link.ended:
            outcome = skipped("left out: the host is gone")
        elif not bench.left_s():
            outcome = out_of_time
        elif hangs >= MAX_HANGS:
            outcome = skipped("left out: it hangs")
        elif name in _COMPARING and not subject.traces:
            outcome = skipped("the random policy's episodes did not come about")
        else:
            try:
                with during(name, subject):
                    async with deadline(bench.left_s(), late):
                        outcome = await run(subject)
            except EarlError as error:
                hangs += isinstance(error, DeadlineExceeded)
                outcome = out_of_time if error is late else failed(error.message, error.remedy)
        if name in needed:
            note(outcome.on_card(name, who))
            unreached += [f"{name} of {who}"] if outcome is out_of_time else []
    return unreached


def _with_needs(subject: Subject, runs: dict[str, Run], needed: set[str]) -> dict[str, Run]:
    """The checks to run, in their order: those that give what a wanted one needs are run with it."""
    names = set(needed)
    if needed & (_COMPARING | _USING_PLAY):
        names.add("policy")
    if needed & _JUDGED_BY_DETERMINISM:
        names.add("determinism")
    names -= subject.attempted
    subject.attempted |= names
    return {name: run for name, run in (_EPISODES | runs).items() if name in names}
