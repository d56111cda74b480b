"""What `earl train`, `earl demo` and the benchmarks share: launch a run in front of a person.

The view goes to standard error, so that standard output carries results alone.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from typing import Any

from typer.core import TyperCommand

from earl.cli.figures import closing_lines, figures
from earl.cli.report.page import write_report
from earl.cli.view import open_view
from earl.config.load import Override, split_overrides
from earl.config.run import RunConfig
from earl.stack.launcher import OnUpdate, Outcome, Signals, launch

INTERRUPTED = 130
# The figures, in the run's directory.
RESULT = "result.json"
OVERRIDES = "earl.overrides"


class OverridableCommand(TyperCommand):
    """A command that takes `--section.key value` anywhere; they are in `ctx.meta[OVERRIDES]`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        rest, overrides = split_overrides(args)
        ctx.meta[OVERRIDES] = overrides
        return super().parse_args(ctx, rest)


def overrides_of(ctx: Any, **top_level: object) -> list[Override]:
    """The command line's overrides, and those keys without a section that were given as options."""
    given = [(key, str(value)) for key, value in top_level.items() if value not in (None, "")]
    return [*ctx.meta.get(OVERRIDES, []), *given]


def run_to_end(config: RunConfig, *, resume: bool, plain: bool, started_at: float) -> Outcome:
    """Launches the stack, shows it, writes the report; Ctrl-C and SIGTERM end it cleanly.

    started_at: time.monotonic() at the command's start. Raises what the launch raises.
    """
    with open_view(plain=plain) as view:
        outcome = asyncio.run(_launch(config, resume, started_at, view.update))
    result = json.dumps(figures(outcome, config.seed), indent=1)
    (outcome.directory / RESULT).write_text(result + "\n", encoding="utf-8")
    sys.stderr.write(f"report: {write_report(outcome.directory)}\n")
    return outcome


async def _launch(config: RunConfig, resume: bool, started_at: float, update: OnUpdate) -> Outcome:
    signals = Signals()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, signals.ask)
    return await launch(config, resume=resume, started_at=started_at, signals=signals, on_update=update)


def resume_hint(outcome: Outcome) -> str:
    return f"resume with: earl train {outcome.directory}/run.toml --resume"


def finish(outcome: Outcome, config: RunConfig, *, as_json: bool) -> int:
    """Says how it went, on standard error and, as one JSON object, on standard output; the exit code."""
    for text in closing_lines(outcome.status):
        sys.stderr.write(f"{text}\n")
    if not outcome.complete:
        reason = outcome.status.message or "stopped"
        sys.stderr.write(f"earl: {reason}; {resume_hint(outcome)}\n")
    if as_json:
        print(json.dumps(figures(outcome, config.seed)), flush=True)
    return 0 if outcome.complete else INTERRUPTED
