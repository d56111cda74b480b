"""One execution of `earl bench NAME`: it is refused early if its result could not be saved, and recorded.

start in runs.jsonl ─► is the tree committed? ─► the benchmark ─► publish ─► end in runs.jsonl
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperCommand

from benchmarks.record.checkout import Checkout, UncommittedTree, checkout, in_record, require_committed
from benchmarks.record.machine import load
from benchmarks.record.progress import Progress, notices_shown
from benchmarks.record.run_log import RunLog

ARGUMENTS = "earl.bench.arguments"
# Exit code of a command that Ctrl-C or SIGTERM has ended (docs/cli.md).
INTERRUPTED = 130


@dataclass(slots=True)
class Execution:
    """A benchmark in progress: how everything was when it started, and what it has saved."""

    state: Checkout
    load: dict[str, float | None]
    started: float = field(default_factory=time.monotonic)
    saved: list[Path] = field(default_factory=list)

    @classmethod
    def begin(cls, state: Checkout | None = None) -> Execution:
        return cls(state or checkout(), load())

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.started


CURRENT: ContextVar[Execution | None] = ContextVar("benchmark in progress", default=None)


class RecordedCommand(TyperCommand):
    """The command of a benchmark, with notices of its phases on a terminal (benchmarks.record.progress).

    `earl bench NAME` is recorded in runs.jsonl; a command that is invoked without `earl bench` in front of
    it, as tests do, is not.
    """

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        given = list(args)
        ctx = super().make_context(info_name, args, parent, **extra)
        ctx.meta[ARGUMENTS] = given
        return ctx

    def invoke(self, ctx: Any) -> Any:
        state = checkout()
        log = RunLog.default(state) if ctx.parent is not None else RunLog(None)
        name = str(ctx.info_name)
        with (
            recorded(name, ctx.meta[ARGUMENTS], ctx.params["results"], state, log),
            notices_shown(Progress(name)),
        ):
            return super().invoke(ctx)


@contextmanager
def recorded(
    name: str, arguments: Sequence[str], results: Path, state: Checkout, log: RunLog
) -> Iterator[Execution]:
    """Runs the block as one execution of the benchmark `name`, between its start and its end in `log`.

    results: directory that the result will be saved to. Raises UncommittedTree before the block runs if that
    is the record and the working tree is not that of a commit; otherwise what the block raises.
    """
    log.start(name, arguments, state)
    execution = Execution.begin(state)
    token = CURRENT.set(execution)
    failure: BaseException | None = None
    try:
        if in_record(results):
            require_committed(state)
        yield execution
    except BaseException as error:
        failure = error
        raise
    finally:
        CURRENT.reset(token)
        outcome, reason = outcome_of(execution, failure)
        log.end(name, outcome, execution.seconds, execution.saved, reason)


def outcome_of(execution: Execution, failure: BaseException | None) -> tuple[str, str]:
    """The outcome as runs.jsonl names it, and the error in one line ("" if there is none)."""
    code = getattr(failure, "exit_code", None) if isinstance(failure, typer.Exit) else None
    if isinstance(failure, UncommittedTree):
        return "refused", str(failure)
    if isinstance(failure, KeyboardInterrupt) or code == INTERRUPTED:
        return "interrupted", ""
    if failure is not None and code != 0:
        return "failed", f"{type(failure).__name__}: {failure}" if code is None else f"exit code {code}"
    if not execution.saved:
        return "nothing_saved", ""
    return ("saved" if all(in_record(path.parent) for path in execution.saved) else "elsewhere"), ""
