"""Launches a run in front of a person, for `earl train`, `earl demo` and the benchmarks.

The view goes to standard error, so that standard output carries results alone.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import Iterator
from typing import Any

import typer
from typer.core import TyperCommand

from earl.cli.lib.exit_code import INTERRUPTED
from earl.cli.lib.figures import closing_lines, figures
from earl.cli.lib.notices import waiting
from earl.cli.lib.status_text import paced_line
from earl.cli.lib.usage import is_unknown_option
from earl.cli.report.page import write_report
from earl.cli.run.view import open_view
from earl.config import keys
from earl.config.load import Override, split_overrides
from earl.config.run import RunConfig
from earl.errors import ConfigError
from earl.obs.processor import flags
from earl.stack import auto_dtype
from earl.stack.begun_bounds import with_begun_bounds
from earl.stack.ending import ending_reason
from earl.stack.launcher import LaunchOutcome, Signals, launch
from earl.stack.run_files import RESULT
from earl.stack.rundir import check_directory, run_path

OVERRIDES = "earl.overrides"
# Signals that stop a run, and the reason that is then shown.
STOPPED_BY = {
    signal.SIGINT: "Ctrl-C",
    signal.SIGTERM: "SIGTERM (which earl stop sends)",
    signal.SIGHUP: "its terminal, which was closed",
}


class OverridableCommand(TyperCommand):
    """A command that takes `--section.key value` anywhere; they are in `ctx.meta[OVERRIDES]`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if ctx.resilient_parsing:  # the shell asks for completions: half a command
            return super().parse_args(ctx, [arg for arg in args if not ("." in arg and arg.startswith("--"))])
        rest, overrides = split_overrides(args)
        ctx.meta[OVERRIDES] = overrides
        try:
            return super().parse_args(ctx, rest)
        except typer.TyperException as error:
            option = getattr(error, "option_name", "")
            candidates = keys.with_last_word(option.lstrip("-").replace("-", "_")) if option else []
            if not candidates or not is_unknown_option(error):
                raise
            remedy = f"did you mean {' or '.join(f'--{key}' for key in candidates)}?"
            raise ConfigError(f"there is no option {option}", remedy) from None


def overrides_of(ctx: Any, **top_level: object) -> list[Override]:
    """The command line's overrides, and those keys without a section that were given as options."""
    given = [(key, str(value)) for key, value in top_level.items() if value not in (None, "")]
    return [*ctx.meta.get(OVERRIDES, []), *given]


def run_to_end(config: RunConfig, *, resume: bool, plain: bool, started_at: float) -> LaunchOutcome:
    """Launches the stack, shows it, writes the report; Ctrl-C and SIGTERM end it cleanly.

    started_at: time.monotonic() at the command's start. Raises what the launch raises, once it is said why a
    run that had begun has failed.
    """
    reasons: list[str] = []

    async def launched() -> LaunchOutcome:
        return await launch(
            config,
            resume=resume,
            started_at=started_at,
            signals=handle_signals(),
            on_update=view.update,
            on_failed=reasons.append,
        )

    config, bounds = with_begun_bounds(config, run_path(config) / "run.json" if resume else None)
    check_directory(config, resume=resume)  # before a screen is drawn
    config, notes = settled_dtypes(config, resume=resume)
    notes = [*bounds, *notes]
    sys.stderr.writelines(f"earl: {note}\n" for note in notes)
    try:
        with open_view(plain=plain, hint=hint(config)) as view:
            outcome = asyncio.run(launched())
    finally:
        sys.stderr.writelines(f"earl: {reason}\n" for reason in reasons)
    if outcome.begun:
        with waiting("writing the report"):
            report = write_results(outcome, config)
        sys.stderr.write(f"report: {report}\n")
    return outcome


def hint(config: RunConfig) -> str:
    """Tells the reader which commands serve while the run is on the screen."""
    page = f" · web page: earl dashboard {config.name}" if config.dashboard.bind else ""
    return f"Ctrl-C saves and stops{page}"


def settled_dtypes(config: RunConfig, *, resume: bool) -> tuple[RunConfig, list[str]]:
    """The configuration with every dtype resolved, and lines that tell what "auto" became and what is slow.

    Raises ConfigError.
    """
    resolved = auto_dtype.settle(config, run_path(config) / "run.json" if resume else None)
    return resolved, auto_dtype.notes(config, resolved, resume=resume, flags=flags())


def handle_signals() -> Signals:
    """Handles Ctrl-C, SIGTERM, SIGHUP and the SIGUSR1 of `earl stop --now` on the running loop. A SIGHUP that
    is ignored, as under nohup, stays so."""
    signals = Signals()
    loop = asyncio.get_running_loop()
    for number, by in STOPPED_BY.items():
        if number is not signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
            loop.add_signal_handler(number, signals.ask, by)
    loop.add_signal_handler(signal.SIGUSR1, signals.rush)
    return signals


def write_results(outcome: LaunchOutcome, config: RunConfig) -> str:
    """Writes the run's figures and its report; the report's path, or why there is none: the run counts."""
    result = json.dumps(figures(outcome, config.seed), indent=1)
    (outcome.directory / RESULT).write_text(result + "\n", encoding="utf-8")
    try:
        return str(write_report(outcome.directory))
    except (ConfigError, OSError) as error:
        return f"not written: {error}"


def resume_hint(outcome: LaunchOutcome) -> str:
    return f"resume with: earl resume {outcome.directory}"


def last_words(outcome: LaunchOutcome) -> Iterator[str]:
    """Yields how it went, a line each, the last of which says how to resume if there is reason to."""
    yield from closing_lines(outcome.status)
    if outcome.status.paced:
        yield paced_line(outcome.status)
    if not outcome.begun:
        yield f"earl: stopped before it began; {outcome.directory} has its logs"
    elif not outcome.complete:
        yield f"earl: {ending_reason('stopped', outcome.status, {})}; {resume_hint(outcome)}"
    else:
        yield f"earl: {ending_reason('complete', outcome.status, {})}"


def finish(outcome: LaunchOutcome, config: RunConfig, *, as_json: bool) -> int:
    """Says how it went, on standard error and, as one JSON object, on standard output; the exit code."""
    for text in last_words(outcome):
        sys.stderr.write(f"{text}\n")
    if as_json:
        print(json.dumps(figures(outcome, config.seed)), flush=True)
    return 0 if outcome.complete else INTERRUPTED
