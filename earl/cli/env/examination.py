"""`earl env test`: the report card of environments, or of a host in any language."""

from __future__ import annotations

import asyncio
import json
import secrets
from contextlib import AbstractContextManager, AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.text import Text

from earl.cli.env.arguments import AsJson, Task, task_of
from earl.cli.lib import completion
from earl.cli.lib.notices import waiting
from earl.env.conformance.card import Card, Check, CheckVerdict
from earl.env.conformance.plan import ExamPlan, check_names, recorded
from earl.errors import ConfigError, DeadlineExceeded
from earl.visible import visible

if TYPE_CHECKING:
    from earl.env.conformance.bench import Subject

STYLES = {
    CheckVerdict.PASS: "green",
    CheckVerdict.WARN: "yellow",
    CheckVerdict.FAIL: "bold red",
    CheckVerdict.SKIP: "dim",
}
HOST_WAIT_S = 300.0
DIAL_WAIT_S = 20.0
DEFAULT = ExamPlan()

Who = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[MODULE:CLASS] [NAME...]",
        help="What to test; NAME limits it to these environments. With --listen or --dial: names only.",
        autocompletion=completion.targets_and_names,
    ),
]
Listen = Annotated[
    str,
    typer.Option(
        "--listen", metavar="HOST:PORT", help="Test the host that dials this address, as its gateway."
    ),
]
Dial = Annotated[
    str,
    typer.Option("--dial", metavar="HOST:PORT", help="Test the host that listens there (EnvHostService)."),
]
Only = Annotated[
    list[str] | None, typer.Option("--only", metavar="CHECK", help="Only this check; may be given again.")
]
Script = Annotated[
    Path | None,
    typer.Option("--script", metavar="FILE", help="Recorded episodes, JSON lines (earl env play --record)."),
]


def test(
    who: Who = None,
    listen: Listen = "",
    dial: Dial = "",
    task: Task = "",
    script: Script = None,
    only: Only = None,
    episodes: Annotated[int, typer.Option(min=1, help="Episodes of the leak check.")] = DEFAULT.episodes,
    seeds: Annotated[int, typer.Option(min=2, help="Episodes that are compared.")] = DEFAULT.seeds,
    max_steps: Annotated[
        int, typer.Option(min=1, help="Steps after which an episode is closed.")
    ] = DEFAULT.max_steps,
    repeats: Annotated[
        int, typer.Option(min=1, help="How often one action is repeated in an episode that does not end.")
    ] = DEFAULT.repeats,
    sessions: Annotated[int, typer.Option(min=1, help="Sessions played at once.")] = DEFAULT.sessions,
    reset_s: Annotated[float, typer.Option(min=0.01, help="Longest reset, in seconds.")] = DEFAULT.reset_s,
    step_s: Annotated[float, typer.Option(min=0.01, help="Longest step, in seconds.")] = DEFAULT.step_s,
    leak_s: Annotated[float, typer.Option(min=1, help="Longest leak check, in seconds.")] = DEFAULT.leak_s,
    total_s: Annotated[
        float, typer.Option(min=1, help="Longest examination, in seconds; the rest is left out.")
    ] = DEFAULT.total_s,
    pid: Annotated[
        int, typer.Option(help="With --listen or --dial: the host's process, for the leak check.")
    ] = 0,
    as_json: AsJson = False,
) -> None:
    """Check an environment: a report card of its behaviour and of its host's messages.

    The host runs in a process of its own and all its messages are checked. Each check passes, warns, fails
    or is skipped, and prints its observation and a remedy. Exit code 1 if any fails, else 12 if there was no
    time for one.
    """
    target, names = _target(list(who or []), listen, dial)
    plan = ExamPlan(
        task=task_of(task),
        seeds=seeds,
        episodes=episodes,
        leak_s=leak_s,
        max_steps=max_steps,
        repeats=repeats,
        total_s=total_s,
        sessions=sessions,
        reset_s=reset_s,
        step_s=step_s,
        only=check_names(only or ()),
        recorded=recorded(script) if script is not None else (),
    )
    console = Console(stderr=as_json, highlight=False, soft_wrap=True, quiet=as_json)
    card = asyncio.run(_examined(target, listen, dial, names, plan, pid, console))
    if as_json:
        print(json.dumps(card.as_object()))
    else:
        console.print(closing(card))
    raise typer.Exit(exit_code(card))


def _target(names: list[str], listen: str, dial: str) -> tuple[str, list[str]]:
    """The "module:Class" to start, "" for a host of the user's, and the environments to test."""
    if listen and dial:
        raise ConfigError(f"--listen {listen} and --dial {dial} are two hosts", "give one of them")
    if listen or dial:
        return "", names
    if not names:
        raise ConfigError(
            "no environment to test is given", "give module:Class, --listen or --dial HOST:PORT"
        )
    target, *names = names
    if ":" not in target:
        raise ConfigError(f"{target!r} does not name an object", 'give "package.module:Class"')
    return target, names


async def _examined(
    target: str, listen: str, dial: str, names: list[str], plan: ExamPlan, pid: int, console: Console
) -> Card:
    from earl.env.conformance.bench import Bench
    from earl.env.conformance.examine import examine
    from earl.env.conformance.servicer import examining
    from earl.env.conformance.spawned import ATTACH_S, spawned
    from earl.rpc.access import Access
    from earl.rpc.token_file import Role
    from earl.rpc.tokens import current

    subject = ""

    def report(check: Check) -> None:
        nonlocal subject
        if check.subject != subject:
            subject = check.subject
            console.print(Text(visible(subject), style="bold"))
        for line in lines(check):
            console.print(line)

    if target:
        secret = secrets.token_hex(16)
        async with examining("127.0.0.1:0", secret) as examiner, AsyncExitStack() as stack:
            with waiting(f"starting a host of {target}", ATTACH_S):
                bench = await stack.enter_async_context(spawned(examiner, target, secret, plan))
            return await examine(bench, names, report, checking)
    allowed = Access.of(Role.ENVIRONMENT)
    secret = current(allowed.token)
    async with examining(listen or "127.0.0.1:0", secret, tls=allowed.tls) as examiner:
        if dial:
            examiner.dial(dial)
        else:
            Console(stderr=True).print(f"waiting for a host to dial {examiner.address}", highlight=False)
        wait_s = DIAL_WAIT_S if dial else HOST_WAIT_S
        with waiting(f"waiting for the host {f'at {dial}' if dial else 'to dial'}", wait_s):
            link = await examiner.host(wait_s)
        return await examine(Bench(link, plan, pid), names, report, checking)


def checking(name: str, subject: Subject) -> AbstractContextManager[None]:
    """Tells which check runs, where it takes long; of the leak check also how far it is."""
    leaks = name == "leaks"
    return waiting(
        f"checking {visible(subject.name)}: {name}",
        subject.bench.leak_s() if leaks else 0.0,
        progress=lambda: subject.leak_episodes if leaks else (0, 0),
    )


def lines(check: Check) -> list[Text]:
    """A check as a person reads it: a line, and its remedy below."""
    mark = Text(f"{check.verdict.value:4}  ", style=STYLES[check.verdict])
    texts = [mark + Text(visible(f"{check.name:13} {check.seen}"), style="")]
    if check.remedy and check.verdict in (CheckVerdict.WARN, CheckVerdict.FAIL):
        texts.append(Text(f"{'':20}-> {check.remedy}", style="dim"))
    return texts


def closing(card: Card) -> Text:
    """The last line: who, how many of each verdict, how long."""
    counts = ", ".join(
        f"{card.count(verdict)} {verdict.value}" for verdict in CheckVerdict if card.count(verdict)
    )
    who = ", ".join(card.environments)
    style = STYLES[CheckVerdict.PASS if card.passed else CheckVerdict.FAIL]
    text = Text(f"{who}: {counts}, in {card.seconds:.1f} s", style=style)
    if card.unreached:
        first, more = ", ".join(card.unreached[:3]), len(card.unreached) - 3
        named = f"{first} and {more} more" if more > 0 else first
        text += Text(f"\nno time for {named}; give more with --total-s", style=STYLES[CheckVerdict.WARN])
    return text


def exit_code(card: Card) -> int:
    """1 if a check failed, else that of DeadlineExceeded if some were not reached, else 0."""
    if not card.passed:
        return 1
    return DeadlineExceeded.exit_code if card.unreached else 0
