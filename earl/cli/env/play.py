"""`earl env play`: a person plays an episode in the terminal."""

from __future__ import annotations

import asyncio
import json
import random
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.panel import Panel
from rich.text import Text

from earl.cli.env.arguments import Task, task_of
from earl.cli.env.games import Game, Shown, at_gateway, at_host
from earl.cli.lib import completion
from earl.cli.lib.gateway_codec import signature
from earl.env.base import Action, ToolCall
from earl.env.tool_calls import render
from earl.errors import ConfigError
from earl.visible import visible

HELP = "A line is an action, as it is typed. /3: the third legal action · /call TOOL {JSON} · /quit"

Who = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[MODULE:CLASS] [NAME]",
        help="What to play; with --gateway only the NAME.",
        autocompletion=completion.targets_and_names,
    ),
]
Gateway = Annotated[
    str, typer.Option("--gateway", metavar="HOST:PORT", help="Play an environment of this gateway instead.")
]
Record = Annotated[
    Path | None, typer.Option("--record", metavar="FILE", help="Add the episode to this file, for --script.")
]


def play(
    who: Who = None,
    gateway: Gateway = "",
    seed: Annotated[int | None, typer.Option(min=0, help="Seed of the episode; else a random one.")] = None,
    task: Task = "",
    record: Record = None,
) -> None:
    """Play an episode: shows the agent's observations, and takes every typed line as an action.

    Legal actions and tools are listed if there are any. The end of the input ends the episode.
    """
    given = list(who or [])
    target = "" if gateway or not given else given.pop(0)
    if not target and not gateway:
        raise ConfigError("no environment to play is given", "give module:Class, or --gateway HOST:PORT NAME")
    if len(given) > 1:
        raise ConfigError(f"{' and '.join(given)} cannot be played at once", "name one")
    name = given[0] if given else ""
    chosen_seed = random.randrange(1 << 32) if seed is None else seed
    asyncio.run(_play(target, gateway, name, chosen_seed, task_of(task), record))


async def _play(
    target: str, gateway: str, name: str, seed: int, task: dict[str, Any], record: Path | None
) -> None:
    console = Console(highlight=False, soft_wrap=True)
    async with at_gateway(gateway, name) if gateway else at_host(target, name) as game:
        console.print(Text(f"{game.name}, seed {seed}", style="bold"))
        for tool in game.tools:
            console.print(Text(visible(f"  {signature(tool)}  {tool.get('description', '')}")))
        console.print(Text(HELP, style="dim"))
        played, return_ = await _episode(game, console, seed, task)
    if record is not None and played:
        line = {"seed": seed, "task": task, "actions": played, "return": return_}
        with record.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line, ensure_ascii=False) + "\n")
        console.print(f"added to {record}")


async def _episode(game: Game, console: Console, seed: int, task: dict[str, Any]) -> tuple[list[str], float]:
    """The actions that were taken, and their return."""
    shown = await game.begin(seed, task)
    actions: list[str] = []
    return_ = shown.reward
    while True:
        show(shown, console)
        if shown.done:
            console.print(Text(visible(ending(shown, return_)), style="bold"))
            return actions, return_
        action = None
        while action is None:
            line = await asyncio.to_thread(_read, console)
            if line is None or line.strip() == "/quit":
                console.print(f"left after {len(actions)} actions, return {return_:g}")
                return actions, return_
            try:
                action = action_of(line, shown)
            except ConfigError as error:
                console.print(Text(str(error), style="yellow"))
        shown = await game.act(action)
        actions.append(str(action))
        return_ += shown.reward


def _read(console: Console) -> str | None:
    """The next line; None at the end of the input."""
    if sys.stdin.isatty():
        console.print("> ", end="")
    line = sys.stdin.readline()
    return line.removesuffix("\n") if line else None


def action_of(line: str, shown: Shown) -> Action:
    """Parses a line into an action. Raises ConfigError for a command that is none."""
    if not line.startswith("/"):
        return Action(line)
    word, _, rest = line[1:].partition(" ")
    legal = shown.observation.legal_actions
    if word.isdecimal() and 1 <= int(word) <= len(legal):
        return Action(legal[int(word) - 1])
    if word == "call":
        name, _, text = rest.strip().partition(" ")
        try:
            arguments = json.loads(text or "{}")
        except ValueError as error:
            raise ConfigError(f"{text!r} is not JSON: {error}", 'write /call TOOL {"argument": 1}') from None
        if name and isinstance(arguments, dict):
            call = ToolCall(name, arguments, "call-0")
            return Action(render(call), [call])
    raise ConfigError(f"{line!r} is not a command", HELP)


def show(shown: Shown, console: Console) -> None:
    observation = shown.observation
    text = shown.message if shown.message and not observation.text else observation.text
    title = "tool" if observation.role == "tool" else None
    console.print(Panel(Text(visible(text)), title=title, title_align="left"))
    if observation.legal_actions and not shown.done:
        legal = "  ".join(f"/{number} {action}" for number, action in enumerate(observation.legal_actions, 1))
        console.print(Text(visible(legal), style="cyan"))
    if shown.reward:
        console.print(f"reward {shown.reward:g}")


def ending(shown: Shown, return_: float) -> str:
    metrics = "".join(f", {key} {value:g}" for key, value in sorted(shown.metrics.items()))
    failed = f": {shown.message}" if shown.message else ""
    return f"{shown.ending.name}, return {return_:g}{metrics}{failed}"
