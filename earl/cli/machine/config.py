"""Show and check run files: every key, a file with its defaults, its mistakes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic_core import PydanticUndefined
from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from earl.cli.run.launch import OverridableCommand, overrides_of, settled_dtypes
from earl.config import keys
from earl.config.descriptions import comment_of
from earl.config.distribution import placement_text
from earl.config.load import expectation, load_run
from earl.config.paced_check import paced_text
from earl.config.run import RunConfig
from earl.config.units import unit
from earl.errors import ConfigError
from earl.stack.auto_dtype import gpus_here
from earl.stack.placement import place
from earl.stack.plan import plan
from earl.stack.ports import resolve_all
from earl.stack.rundir import check_directory, run_path, to_toml

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    help="Show and check run files: every key, a file with its defaults, its mistakes.",
    epilog="Example: earl config keys trainer.lr",
)

RunFile = Annotated[Path, typer.Argument(metavar="RUN.toml", help="Run file; examples/ has some.")]
# Words of fewer letters are searched for as whole words in descriptions.
PREFIX_LETTERS = 4
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@dataclass(frozen=True, slots=True)
class KeyDescription:
    """One key of a run file. takes: type, unit and bounds in words. default: None if the key is required.

    unit: "" where the value has none. advice: when to change the key.
    """

    key: str
    takes: str
    unit: str
    default: Any
    required: bool
    description: str
    advice: str

    def lines(self) -> Iterator[Text]:
        default = "required" if self.required else f"default {json.dumps(self.default)}"
        yield Text.assemble((self.key, "bold"), f"  {self.takes}; {default}")
        for text in (self.description, self.advice):
            yield Text(text, style="dim")

    def is_named(self, words: str) -> bool:
        """Returns whether the words are a part of the key's name, in any case."""
        return words.lower() in self.key.lower()

    def mentions(self, words: str) -> bool:
        """Returns whether the description or the advice has the words, whole and in any case.

        From PREFIX_LETTERS letters on, the last word may be the begin of a longer one: "shard" is found in
        "sharded", but "tp" is not found in "http".
        """
        end = "" if len(words) >= PREFIX_LETTERS else r"(?!\w)"
        pattern = re.compile(rf"(?<!\w){re.escape(words)}{end}", re.IGNORECASE)
        return any(pattern.search(text) for text in (self.description, self.advice))


def described(words: str) -> list[KeyDescription]:
    """The keys that have `words` in their names, then those whose texts mention them; all without words.

    Raises ConfigError if there is none.
    """
    descriptions: list[KeyDescription] = []
    for key, field in keys.leaves().items():
        required = field.default is PydanticUndefined
        default = None if required else field.default
        key_description = KeyDescription(
            key, expectation(key), unit(key, field) or "", default, required, *comment_of(key)
        )
        if key_description.is_named(words) or key_description.mentions(words):
            descriptions.append(key_description)
    if not descriptions:
        near = keys.closest(words)
        raise ConfigError(
            f"no key has {words!r} in its name or its description",
            f"did you mean {near}?" if near else "leave it out to see all keys",
        )
    return sorted(descriptions, key=lambda description: not description.is_named(words))


@app.command("keys", epilog="Example: earl config keys trainer.lr")
def keys_(
    words: Annotated[
        str,
        typer.Argument(metavar="[WORDS]", help="A part of the keys' names, or words of their descriptions."),
    ] = "",
    as_json: AsJson = False,
) -> None:
    """List the keys of a run file: what each takes, its default, what it means and when to change it."""
    descriptions = described(words)
    if as_json:
        print(json.dumps([asdict(description) for description in descriptions]))
        return
    console = Console(highlight=False, soft_wrap=False)
    for key_description in descriptions:
        first, *texts = key_description.lines()
        console.print(first)
        for text in texts:
            console.print(Padding(text, (0, 0, 0, 4)))


@app.command(
    cls=OverridableCommand, epilog="Example: earl config show examples/tictactoe.toml --trainer.lr 1e-4"
)
def show(ctx: typer.Context, run_file: RunFile, as_json: AsJson = False) -> None:
    """Print a run file with all of its defaults, as the run would use it on this machine.

    Overrides of the command line and dtype "auto" are resolved. The output is a run file.
    """
    config, _ = settled_dtypes(load_run(run_file, overrides_of(ctx)), resume=False)
    table = config.model_dump(mode="json")
    print(json.dumps(table) if as_json else to_toml(table), end="\n" if as_json else "")


@dataclass(frozen=True, slots=True)
class CheckedRun:
    """The processes that a launch of a run file would start. processes: by name, in the order in which they
    start.
    """

    directory: str
    processes: list[str]
    notes: list[str]
    summary: str

    def lines(self) -> list[str]:
        return [*self.notes, f"{self.directory}: {', '.join(self.processes)}", self.summary]


@app.command(cls=OverridableCommand, epilog="Example: earl config check examples/tictactoe.toml")
def check(ctx: typer.Context, run_file: RunFile, as_json: AsJson = False) -> None:
    """Check a run file as a launch would, and show what it would start. Nothing is started.

    A mistake ends with the line and the exit code with which the launch would end. `earl doctor RUN.toml`
    also tests what the machine can do.
    """
    config, notes = settled_dtypes(load_run(run_file, overrides_of(ctx)), resume=False)
    checked = would_start(config, notes)
    print(json.dumps(asdict(checked)) if as_json else "\n".join(checked.lines()))


def would_start(config: RunConfig, notes: list[str]) -> CheckedRun:
    """Plans the processes of a launch.

    Raises ConfigError for a run that exists or devices that it cannot have, PortInUse.
    """
    directory = run_path(config)
    check_directory(config, resume=False)
    resolve_all(config)
    placement = place(config, gpus_here(config))
    rollout, scheduler = config.rollout, config.scheduler
    sizes = " or ".join(map(str, sorted({entry.group_size for entry in config.mixture})))
    return CheckedRun(
        str(directory),
        [spec.name for spec in plan(config, directory / "run.json")],
        [
            *notes,
            *filter(None, [paced_text(config), placement_text(config)]),
            *(placement.lines() if placement.gpus else ()),
        ],
        f"rollout {rollout.workers} x {rollout.engines} engines of tp {rollout.tp}, trainer "
        f"{config.trainer.parallelism}, {scheduler.steps} steps of {scheduler.batch_groups} x {sizes} "
        "episodes",
    )
