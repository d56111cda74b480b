"""Show and change how the stages of a running run are cut: parallelism, pins, switches."""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from earl.cli.lib import completion
from earl.cli.lib.find_run import CALL_S, with_run
from earl.cli.lib.switches import switch_text
from earl.errors import ConfigError, IllegalParallelism, ReshapeRefused
from earl.parallelism import Parallelism
from earl.reparallelize import StageSwitch
from earl.rpc.token_file import LOOKS
from earl.stack.codec import OperatorClient
from earl.stack.status import RunStatus, StageState

STAGES = ("rollout", "reference", "trainer")
# Of one call, after which the status tells when a switch has ended.
WAIT_S = 15.0
POLL_S = 0.25

app = typer.Typer(add_completion=False, no_args_is_help=False)
WHICH = "A run's directory; else the one in runs/ that goes on."
Run = Annotated[
    Path | None, typer.Option("--run", metavar="RUN_DIR", help=WHICH, autocompletion=completion.runs)
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Stage = Annotated[str, typer.Argument(metavar="STAGE", help="rollout, reference or trainer.")]


@app.callback(invoke_without_command=True, epilog="Example: earl parallelism --run runs/tictactoe --json")
def parallelism(ctx: typer.Context, run: Run = None, as_json: AsJson = False) -> None:
    """Show and change how the stages of a running run are cut.

    Without a command: every stage, its parallelism, what the selector said of it last, its last switch.
    """
    ctx.obj = run
    if ctx.invoked_subcommand is None:
        status = with_run(run, lambda client: client.status(CALL_S), LOOKS)
        print(json.dumps(as_object(status)) if as_json else "\n".join(shown(status)))


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
        bool, typer.Option("--no-wait", help="Do not wait until the switch has ended.")
    ] = False,
    run: Run = None,
    as_json: AsJson = False,
) -> None:
    """Cut a stage otherwise while its run goes on; without --pin it is unpinned.

    Ends with code 1 if the stage had to go back to how it was.
    """
    stage, wanted = known(stage), given(degrees)
    epoch, switch, state = with_run(
        run or ctx.obj, lambda client: change(client, stage, wanted, pin, 0.0 if no_wait else WAIT_S)
    )
    if as_json:
        ended = asdict(switch) if switch is not None else None
        print(json.dumps({"epoch": epoch, "outcome": ended, "stage": asdict(state)}))
    elif switch is None and state.switching is not None:
        print(f"{stage} {switch_text(state.switching, runs=True)}")
    elif switch is None:
        print(f"{stage} is cut into {state.running} already")
    elif not switch.rolled_back:
        print(f"{stage} {switch_text(switch)}")
    if switch is not None and switch.rolled_back:
        raise ReshapeRefused(
            f"{stage} stays {switch.before}, not {switch.after}: {switch.message}", "see the scheduler's log"
        )


@app.command(epilog="Example: earl parallelism pin trainer")
def pin(ctx: typer.Context, stage: Stage, run: Run = None, as_json: AsJson = False) -> None:
    """Keep a stage as it is cut: the selector leaves it alone, also after a restart."""
    pinned(run or ctx.obj, stage, True, as_json)


@app.command(epilog="Example: earl parallelism unpin trainer")
def unpin(ctx: typer.Context, stage: Stage, run: Run = None, as_json: AsJson = False) -> None:
    """Let the selector decide for a stage again."""
    pinned(run or ctx.obj, stage, False, as_json)


def pinned(run: Path | None, stage: str, pin: bool, as_json: bool) -> None:
    stage = known(stage)
    _, _, state = with_run(run, lambda client: change(client, stage, None, pin, 0.0))
    if as_json:
        print(json.dumps({"stage": asdict(state)}))
        return
    print(f"{stage} is {'pinned' if pin else 'not pinned'}: {state.running or 'cut unevenly'}")


# --- arguments ------------------------------------------------------------------------------


def known(stage: str) -> str:
    """Raises ConfigError for a stage that there is not."""
    if stage not in STAGES:
        raise ConfigError(f"there is no stage {stage!r}", f"name one of {', '.join(STAGES)}")
    return stage


def given(degrees: list[str]) -> dict[str, int]:
    """The degrees that were named, those of 1 included. Raises IllegalParallelism."""
    text = ",".join(degrees)
    named = Parallelism.parse(text).as_dict()
    found = {name: degree for name, degree in named.items() if name in text}
    if not found.keys() - {"dp"}:
        raise IllegalParallelism(
            f"{text!r} does not say how a replica is cut", "name its tp (and cp), like tp=2; tp=1 is uncut"
        )
    return found


# --- calls ----------------------------------------------------------------------------------


async def change(
    client: OperatorClient, stage: str, wanted: dict[str, int] | None, pin: bool, wait_s: float
) -> tuple[int, StageSwitch[str] | None, StageState]:
    """(epoch, how the switch ended, the stage then); no such end if it was cut so already or still runs.

    Waits for the switch if wait_s > 0: the scheduler bounds every switch, and each call is bounded here.
    """
    before = state_of(await client.status(CALL_S), stage)
    epoch, ended = await client.set_parallelism(
        stage, wanted, pin=pin, wait_s=wait_s, deadline_s=wait_s + CALL_S
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


def state_of(status: RunStatus, stage: str) -> StageState:
    found = next((one for one in status.stages if one.name == stage), None)
    return found or StageState(stage, "")


# --- as text --------------------------------------------------------------------------------


def as_object(status: RunStatus) -> dict[str, Any]:
    """{"run", "phase", "step", "stages": [...]}; switching and last are null where there is none."""
    return {
        "run": status.run,
        "phase": status.phase,
        "step": status.step,
        "stages": [asdict(one) for one in status.stages],
    }


def shown(status: RunStatus) -> list[str]:
    """The run's stages, a paragraph each."""
    found = [f"{status.run}, {status.phase} {status.step}/{status.steps}"]
    for stage in status.stages:
        pinned = ", pinned" if stage.pinned else ""
        found.append(f"{stage.name:10} {stage.running or 'cut unevenly'}{pinned}")
        if stage.sentence:
            found.append(f"{'':10} {stage.sentence}")
        if stage.switching is not None:
            found.append(f"{'':10} {switch_text(stage.switching, runs=True)}")
        if stage.last is not None:
            found.append(f"{'':10} {switch_text(stage.last)}")
    return found
