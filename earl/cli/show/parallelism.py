"""Show and change the parallelism of a running run's stages: degrees, pins, switches."""

from __future__ import annotations

import asyncio
import difflib
import json
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from earl.cli.lib import completion
from earl.cli.lib.find_run import CALL_S, RUNNING, directory_of, with_run
from earl.cli.lib.switches import UNEVEN, devices_text, move_text, switch_text
from earl.errors import ConfigError, IllegalParallelism, ReshapeRefused
from earl.parallelism import STAGES, Parallelism
from earl.rpc.token_file import READERS
from earl.stack.codec import OperatorClient
from earl.stack.status import DeviceMoveState, RunStatus, StageState
from earl.switch_figures import StageSwitch

# Longest wait in one call; afterwards the status tells when a switch has ended.
WAIT_S = 15.0
POLL_S = 0.25


class RunFirst(TyperGroup):
    """Takes `[RUN] [COMMAND ...]`: a first word that is no command names the run, as --run does."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, run_as_option(args, self.commands, is_run))


def is_run(name: str) -> bool:
    """Returns whether a word names a run, by its name in runs/ or by its directory."""
    try:
        directory_of(name)
    except ConfigError:
        return False
    return True


def run_as_option(args: list[str], commands: Collection[str], exists: Callable[[str], bool]) -> list[str]:
    """The arguments with --run before the run's name, if the first word is one. exists: whether a run does.

    A word that names no run is one that is missing, unless it looks like a command.

    >>> run_as_option(["first", "pin", "trainer"], ["set", "pin", "unpin"], lambda name: False)
    ['--run', 'first', 'pin', 'trainer']
    >>> run_as_option(["pni", "trainer"], ["set", "pin", "unpin"], lambda name: False)
    ['pni', 'trainer']
    """
    places = list(word_places(args))
    words = [args[place] for place in places]
    if not words or words[0] in commands:
        return args
    mistyped = words[0] == "help" or difflib.get_close_matches(words[0], commands, n=1)
    if (mistyped or (words[1:] and words[1] not in commands)) and not exists(words[0]):
        return args
    return [*args[: places[0]], "--run", *args[places[0] :]]


def word_places(args: list[str]) -> Iterator[int]:
    """Yields the positions of the arguments that are neither options nor values of options."""
    for place, word in enumerate(args):
        if not word.startswith("-") and (not place or args[place - 1] != "--run"):
            yield place


app = typer.Typer(
    cls=RunFirst, add_completion=False, no_args_is_help=False, subcommand_metavar="[RUN] [COMMAND] [ARGS]..."
)
Run = Annotated[
    Path | None,
    typer.Option("--run", metavar="RUN", help=RUNNING, autocompletion=completion.runs),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Stage = Annotated[str, typer.Argument(metavar="STAGE", help="rollout, reference or trainer.")]


@app.callback(invoke_without_command=True, epilog="Example: earl parallelism tictactoe --json")
def parallelism(ctx: typer.Context, run: Run = None, as_json: AsJson = False) -> None:
    """Show and change the parallelism of a running run's stages.

    Without a command: every stage, its parallelism, the selector's last verdict, its last switch. RUN before
    the command is the same as --run RUN.
    """
    ctx.obj = run
    if ctx.invoked_subcommand is None:
        status = with_run(run, lambda client: client.status(CALL_S), READERS)
        print(json.dumps(as_object(status)) if as_json else "\n".join(stage_paragraphs(status)))


@app.command("set", epilog="Example: earl parallelism set rollout tp=2 --pin")
def set_(
    ctx: typer.Context,
    stage: Stage,
    degrees: Annotated[
        list[str],
        typer.Argument(metavar="DEGREES...", help="tp=2, or tp=2 cp=2; dp follows from the devices."),
    ],
    pin: Annotated[bool, typer.Option("--pin", help="Keep it: the selector leaves the stage alone.")] = False,
    no_wait: Annotated[
        bool, typer.Option("--no-wait", help="Return without waiting for the switch to end.")
    ] = False,
    run: Run = None,
    as_json: AsJson = False,
) -> None:
    """Change a stage's parallelism while its run is running; without --pin it is unpinned.

    Ends with code 1 if the switch was rolled back.
    """
    stage, requested = known_stage(stage), given_degrees(degrees)
    epoch, switch, state = with_run(
        run or ctx.obj, lambda client: change(client, stage, requested, pin, 0.0 if no_wait else WAIT_S)
    )
    if as_json:
        ended = asdict(switch) if switch is not None else None
        print(json.dumps({"epoch": epoch, "outcome": ended, "stage": asdict(state)}))
    elif switch is None and state.switching is not None:
        print(f"{stage} {switch_text(state.switching, runs=True)}")
    elif switch is None:
        print(f"{stage} has {state.running} already")
    elif not switch.rolled_back:
        print(f"{stage} {switch_text(switch)}")
    if switch is not None and switch.rolled_back:
        raise ReshapeRefused(
            f"{stage} stayed {switch.before}, rolled back from {switch.after}: {switch.message}",
            "see the scheduler's log",
        )


@app.command(epilog="Example: earl parallelism move 2 rollout trainer --layout trainer=tp=2")
def move(
    ctx: typer.Context,
    devices: Annotated[int, typer.Argument(metavar="N", min=1, help="How many devices.")],
    giver: Annotated[str, typer.Argument(metavar="FROM", help="The stage that gives them.")],
    taker: Annotated[str, typer.Argument(metavar="TO", help="The stage that takes them.")],
    layout: Annotated[
        list[str] | None,
        typer.Option(
            metavar="STAGE=DEGREES",
            help="Layout of FROM or TO after the move, like trainer=tp=2,cp=2, once for each; "
            "without it a stage keeps its replicas.",
        ),
    ] = None,
    no_wait: Annotated[
        bool, typer.Option("--no-wait", help="Return without waiting for the move to end.")
    ] = False,
    run: Run = None,
    as_json: AsJson = False,
) -> None:
    """Move devices from one stage to another while all work, in a run with stack.pool_devices.

    Ends with code 1 if the move was rolled back, which brings layouts back too.
    """
    giver, taker = known_stage(giver), known_stage(taker)
    layouts = given_layouts(layout or [], giver, taker)
    wait_s = 0.0 if no_wait else WAIT_S
    moved = with_run(run or ctx.obj, lambda client: moving(client, giver, taker, devices, layouts, wait_s))
    if as_json:
        print(json.dumps({"move": asdict(moved) if moved is not None else None}))
    elif moved is None:
        print("no device moves: each stage has what was asked for")
    elif not moved.rolled_back:
        print(move_text(moved))
    if moved is not None and moved.rolled_back:
        raise ReshapeRefused(
            f"the devices are divided {devices_text(moved.holds)}: {moved.message}",
            "see the scheduler's log",
        )


@app.command(epilog="Example: earl parallelism pin trainer")
def pin(ctx: typer.Context, stage: Stage, run: Run = None, as_json: AsJson = False) -> None:
    """Keep a stage's parallelism: the selector does not change it, also after a restart."""
    print_pin(run or ctx.obj, stage, True, as_json)


@app.command(epilog="Example: earl parallelism unpin trainer")
def unpin(ctx: typer.Context, stage: Stage, run: Run = None, as_json: AsJson = False) -> None:
    """Let the selector decide for a stage again."""
    print_pin(run or ctx.obj, stage, False, as_json)


def print_pin(run: Path | None, stage: str, pin: bool, as_json: bool) -> None:
    stage = known_stage(stage)
    _, _, state = with_run(run, lambda client: change(client, stage, None, pin, 0.0))
    if as_json:
        print(json.dumps({"stage": asdict(state)}))
        return
    print(f"{stage} is {'pinned' if pin else 'not pinned'}: {state.running or UNEVEN}")


# --- arguments ------------------------------------------------------------------------------


def known_stage(stage: str) -> str:
    """The stage's name. Raises ConfigError if there is no such stage."""
    if stage not in STAGES:
        raise ConfigError(f"there is no stage {stage!r}", f"name one of {', '.join(STAGES)}")
    return stage


def given_degrees(degrees: list[str]) -> dict[str, int]:
    """The degrees that were named, those of 1 included. Raises IllegalParallelism."""
    text = ",".join(degrees)
    named = Parallelism.parse(text).as_dict()
    requested = {name: degree for name, degree in named.items() if name in text}
    if not requested.keys() - {"dp"}:
        raise IllegalParallelism(
            f"{text!r} does not name the parallelism of a replica",
            "name its tp (and cp), like tp=2; tp=1 means no sharding",
        )
    return requested


def given_layouts(layouts: list[str], giver: str, taker: str) -> dict[str, dict[str, int]]:
    """The degrees that were named for giver and taker, by stage. Raises ConfigError, IllegalParallelism."""
    requested: dict[str, dict[str, int]] = {}
    for text in layouts:
        stage, _, degrees = text.partition("=")
        if stage not in (giver, taker) or stage in requested:
            raise ConfigError(
                f"--layout {text}: {stage!r} is not {giver} or {taker}, or is there twice",
                f"name the layout of each of the two at most once, like --layout {taker}=tp=2",
            )
        requested[stage] = given_degrees([degrees])
    return requested


# --- calls ----------------------------------------------------------------------------------


async def change(
    client: OperatorClient, stage: str, requested: dict[str, int] | None, pin: bool, wait_s: float
) -> tuple[int, StageSwitch[str] | None, StageState]:
    """(epoch, the switch's outcome, the stage then); no outcome without a switch or while it is running.

    Waits for the switch if wait_s > 0: the scheduler bounds every switch, and each call is bounded here.
    """
    before = state_of(await client.status(CALL_S), stage)
    epoch, ended = await client.set_parallelism(
        stage, requested, pin=pin, wait_s=wait_s, deadline_s=wait_s + CALL_S
    )
    while True:
        state = state_of(await client.status(CALL_S), stage)
        runs = state.switching is not None and state.switching.epoch == epoch
        if runs and wait_s:
            await asyncio.sleep(POLL_S)
            continue
        began = before.last is None or before.last.epoch != epoch
        if ended is None and began and state.last is not None and state.last.epoch == epoch:
            ended = state.last
        return epoch, ended, state


async def moving(
    client: OperatorClient,
    giver: str,
    taker: str,
    devices: int,
    layouts: Mapping[str, Mapping[str, int]],
    wait_s: float,
) -> DeviceMoveState | None:
    """The move that this asks for, ended unless wait_s is 0; None if there is nothing to move.

    The scheduler bounds every move, and each call is bounded here.
    """
    begun = await client.move_devices(
        giver, taker, devices, layouts=layouts, wait_s=wait_s, deadline_s=wait_s + CALL_S
    )
    latest = begun
    while wait_s and latest is not None and begun is not None and latest.running:
        await asyncio.sleep(POLL_S)
        latest = (await client.status(CALL_S)).move
        if latest is not None and latest.number != begun.number:
            return begun  # the next one has begun, so this one has ended
    return latest


def state_of(status: RunStatus, stage: str) -> StageState:
    return next((state for state in status.stages if state.name == stage), StageState(stage, ""))


# --- as text --------------------------------------------------------------------------------


def as_object(status: RunStatus) -> dict[str, Any]:
    """{"run", "phase", "step", "stages": [...], "move"}; what there is none of is null."""
    return {
        "run": status.run,
        "phase": status.phase,
        "step": status.step,
        "stages": [asdict(stage) for stage in status.stages],
        "move": asdict(status.move) if status.move is not None else None,
    }


def stage_paragraphs(status: RunStatus) -> list[str]:
    """The run's stages, a paragraph each."""
    lines = [f"{status.run}, {status.phase} {status.step}/{status.steps}"]
    if status.move is not None:
        lines.append(move_text(status.move))
    for stage in status.stages:
        pinned = ", pinned" if stage.pinned else ""
        lines.append(f"{stage.name:10} {stage.running or UNEVEN}{pinned}")
        if stage.sentence:
            lines.append(f"{'':10} {stage.sentence}")
        if stage.switching is not None:
            lines.append(f"{'':10} {switch_text(stage.switching, runs=True)}")
        if stage.last is not None:
            lines.append(f"{'':10} {switch_text(stage.last)}")
    return lines
