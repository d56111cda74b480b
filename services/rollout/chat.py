"""Talk to a trained model, or watch it play an episode of its environment."""

from __future__ import annotations

import asyncio
import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from earl.cli.env.games import at_host
from earl.cli.env.play import ending, show
from earl.cli.lib.export_progress import export_progress
from earl.cli.lib.notices import waiting
from earl.cli.lib.policy import DEFAULT, Policy, RunVersion, policy_of
from earl.cli.lib.run_directory import config_of
from earl.config.dtype import DType
from earl.config.mixture import MixtureEntry, entry_of
from earl.config.model import ModelConfig
from earl.config.run import RunConfig
from earl.config.sampling_filters import LEAST_PENALTY, MOST_PENALTY, SamplingFilters
from earl.config.task_set import task_set_of
from earl.env.base import Action
from earl.errors import CheckpointError, ConfigError, ContextTooLong, DeadlineExceeded
from earl.models.export_record import ExportRecord, read_record
from earl.models.spec import load_spec
from earl.models.tokenizer import Tokenizer
from earl.obs.processor import flags
from earl.stack.auto_dtype import Devices, cuda_capabilities
from earl.visible import visible
from services.rollout.engines.contract.engine import EngineSpec, GenerateRequest
from services.rollout.engines.process.client import EngineProcess

app = typer.Typer(add_completion=False)

# Longest conversation, unless the run or the model sets a lower bound.
MOST_TOKENS = 8192
START_S = 300.0
# Bound of the export of a run's weights, which takes about as long as reading and writing them once.
EXPORT_S = 1800.0


@app.command(epilog="Example: earl chat tictactoe --watch --seed 7")
def chat(
    policy: Policy = None,
    watch: Annotated[
        bool, typer.Option("--watch", help="Show it playing an episode of its run's environment.")
    ] = False,
    environment: Annotated[
        str, typer.Option(help="Which of its run's environments, by its label; otherwise the first.")
    ] = "",
    seed: Annotated[int | None, typer.Option(min=0, help="Seed of the sampling, and of the episode.")] = None,
    version: Annotated[int, typer.Option(min=0, help=f"Use this policy version; 0: {DEFAULT}.")] = 0,
    best: Annotated[bool, typer.Option("--best", help="Use the version with the best evaluation.")] = False,
    temperature: Annotated[
        float | None, typer.Option(min=0.0, help="0 always takes the most probable token; else the run's.")
    ] = None,
    top_k: Annotated[
        int | None, typer.Option(min=0, help="Sample from so many likeliest tokens, 0: all; else the run's.")
    ] = None,
    top_p: Annotated[
        float | None,
        typer.Option(
            min=0.0,
            max=1.0,
            help="Sample from the likeliest that have this part of the probability; else the run's.",
        ),
    ] = None,
    min_p: Annotated[
        float | None,
        typer.Option(
            min=0.0,
            max=1.0,
            help="Leave out what is less likely than this times the likeliest; else the run's.",
        ),
    ] = None,
    repetition_penalty: Annotated[
        float | None,
        typer.Option(
            min=LEAST_PENALTY,
            max=MOST_PENALTY,
            help="Above 1 tokens that are there become less likely; else the run's.",
        ),
    ] = None,
    tokens: Annotated[int, typer.Option(min=1, help="Most tokens of an answer.")] = 256,
) -> None:
    """Talk to a trained model, or watch it play an episode of its environment.

    Every line is a message; an empty line or the end of the input ends the conversation. The model reads
    what it read in training: its run's system message, its chat template, and how its answers began.
    """
    chosen_seed = random.randrange(1 << 32) if seed is None else seed
    with exported_model(policy_of(policy, version, best=best)) as (directory, config):
        if watch and config is None:
            raise ConfigError(f"{directory} is a model's directory, and names no environment", "give a run")
        record = read_record(directory)
        heat = temperature
        if heat is None:
            heat = record.temperature if record else 1.0
        given = {"top_k": top_k, "top_p": top_p, "min_p": min_p, "repetition_penalty": repetition_penalty}
        filters = filters_of(record, given)
        entry = entry_of(config.mixture, environment) if config is not None else None
        sampling = Sampling(chosen_seed, heat, tokens, filters)
        asyncio.run(_chat(directory, config, entry, sampling, watch=watch))


def filters_of(record: ExportRecord | None, given: Mapping[str, float | None]) -> SamplingFilters:
    """The filters of a model's evaluations, none where there is no record; those that are given replace
    them."""
    values: dict[str, Any] = dict(record.filters) if record is not None else {}
    values |= {name: value for name, value in given.items() if value is not None}
    return SamplingFilters(**values)


@contextmanager
def exported_model(policy: RunVersion | Path) -> Iterator[tuple[Path, RunConfig | None]]:
    """The directory of the model, and the configuration if it is a run's, whose weights are exported first.

    Raises ConfigError, CheckpointError, and DeadlineExceeded after EXPORT_S.
    """
    if isinstance(policy, Path):
        yield policy, None
        return
    config = config_of(policy.run)
    with tempfile.TemporaryDirectory(prefix="earl-chat-") as temporary:
        to = Path(temporary) / "model"
        version = policy.version
        which = [] if version == "default" else [f"--{version}"]
        if isinstance(version, int):
            which = ["--version", str(version)]
        command = [sys.executable, "-m", "earl.cli.main", "export", str(policy.run), "--to", str(to), *which]
        with waiting("writing the checkpoint as a model, MB", progress=export_progress(to, policy.run)):
            try:
                done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=EXPORT_S)
            except subprocess.TimeoutExpired:
                raise DeadlineExceeded(
                    f"the export took longer than {EXPORT_S:g} s",
                    f"run earl export {policy.run} --to DIRECTORY, then earl chat DIRECTORY",
                ) from None
        if done.returncode:
            last = (done.stderr.strip().splitlines() or ["earl export printed nothing; see its code"])[-1]
            message, _, remedy = last.removeprefix("earl: error: ").partition("; ")
            missing = done.returncode == CheckpointError.exit_code
            raise (CheckpointError if missing else ConfigError)(message, remedy)
        yield to, config


@dataclass(frozen=True, slots=True)
class Sampling:
    """The sampling of answers. tokens: most of one answer."""

    seed: int
    temperature: float
    tokens: int
    filters: SamplingFilters


class Conversation:
    """The tokens of a conversation so far, as an episode has them."""

    def __init__(self, engine: EngineProcess, tokenizer: Tokenizer, sampling: Sampling) -> None:
        self._engine, self._tokenizer = engine, tokenizer
        self._sampling = sampling
        self._ids: list[int] = []

    async def answer(self, text: str, role: str = "user") -> AsyncIterator[str]:
        """Yields the model's answer to a message, in parts, as it is sampled. Raises ContextTooLong."""
        ids, tokenizer, sampling = self._ids, self._tokenizer, self._sampling
        ids += tokenizer.encode_observation(text, not ids, role, ids[-1] if ids else None)
        left = self._engine.spec.max_context_tokens - len(ids)
        if left < 1:
            raise ContextTooLong(
                f"the conversation has {len(ids)} tokens, the model takes {len(ids) + left}",
                "begin another one",
            )
        request = GenerateRequest(
            request_id=f"chat/{len(ids)}", ids=list(ids), max_new_tokens=min(sampling.tokens, left),
            temperature=sampling.temperature, seed=sampling.seed, filters=sampling.filters, session="chat",
        )  # fmt: skip
        sampled: list[int] = []
        answer = tokenizer.opening
        if answer:
            yield answer
        async for chunk in self._engine.generate(request):
            sampled += chunk.ids
            longer = tokenizer.opening + tokenizer.decode(sampled)
            # A character may take several tokens: until the last one it is shown as a replacement.
            if not longer.endswith("\N{REPLACEMENT CHARACTER}") and longer.startswith(answer):
                yield longer[len(answer) :]
                answer = longer
        ids += sampled


def _device_and_dtype(config: RunConfig | None) -> tuple[str, DType]:
    """The device of a conversation's engine, and the dtype that it computes in.

    A run that samples on CPUs keeps to them; any other takes what this machine has, which need not be the
    run's. The dtype is the run's, or bfloat16 for a model's directory; float32 where bfloat16 is emulated.
    """
    device = "cpu" if config is not None and config.rollout.device == "cpu" else "auto"
    if config is not None and config.rollout_dtype == "float32":
        return device, "float32"
    native = Devices(flags(), cuda_capabilities([device])).native(device)
    return device, "bfloat16" if native else "float32"


@asynccontextmanager
async def _engine_of(
    directory: Path, config: RunConfig | None, stops: frozenset[int], stop_texts: Sequence[str] = ()
) -> AsyncIterator[EngineProcess]:
    context = min(load_spec(directory).max_positions, MOST_TOKENS)
    if config is not None:
        context = min(context, config.context_tokens)
    device, dtype = _device_and_dtype(config)
    spec = EngineSpec(
        name="chat",
        model_dir=str(directory),
        device=device,
        threads=os.cpu_count() or 1,
        dtype=dtype,
        max_sequences=1,
        max_context_tokens=context,
        stop_ids=tuple(sorted(stops)),
        stop_texts=tuple(stop_texts),
        start_s=START_S,
        # What a conversation repeats; one sequence alone is where drafts pay (docs/history.md).
        drafts=True,
    )
    engine = EngineProcess(spec)
    with waiting("starting the engine", START_S):
        await engine.start()
    try:
        yield engine
    finally:
        await engine.stop()


async def _chat(
    directory: Path,
    config: RunConfig | None,
    entry: MixtureEntry | None,
    sampling: Sampling,
    *,
    watch: bool,
) -> None:
    """config, entry: of the model's run and the environment that prompts it; None for a model without one."""
    console = Console(highlight=False, soft_wrap=True)
    prompts = _prompts(directory)
    if config is not None and entry is not None:
        prompts = config.model.model_copy(update={"system": entry.system})
    tokenizer = Tokenizer.load(directory, prompts)
    async with _engine_of(directory, config, tokenizer.stop_ids, prompts.stop_texts) as engine:
        talk = Conversation(engine, tokenizer, sampling)
        if watch and entry is not None:
            await _watch(talk, entry, console, sampling.seed)
        else:
            await _talk(talk, console)


def _prompts(directory: Path) -> ModelConfig:
    """Returns how a model's directory is prompted: as its run did, or by its chat template if it has one."""
    record = read_record(directory)
    if record is not None:
        return record.prompts
    return ModelConfig(chat=(directory / "chat_template.jinja").is_file())


async def _talk(talk: Conversation, console: Console) -> None:
    while True:
        if sys.stdin.isatty():
            console.print("> ", end="", style="bold")
        line = (await asyncio.to_thread(sys.stdin.readline)).rstrip("\n")
        if not line:
            return
        await _print_answer(talk, line, "user", console)


async def _watch(talk: Conversation, entry: MixtureEntry, console: Console, seed: int) -> None:
    async with at_host(entry.section.serve, entry.name) as game:
        console.print(Text(f"{game.name}, seed {seed}", style="bold"))
        shown, return_ = await game.begin(seed, _task(entry, seed)), 0.0
        for _ in range(entry.max_turns):
            show(shown, console)
            if shown.done:
                break
            action = await _print_answer(talk, shown.observation.text, shown.observation.role, console)
            shown = await game.act(Action(action))
            return_ += shown.reward
        console.print(Text(visible(ending(shown, return_)), style="bold"))


def _task(entry: MixtureEntry, seed: int) -> dict[str, Any]:
    """The task of an episode. Of a task set it is a row that the seed chooses, held out if any is."""
    tasks = task_set_of(entry.section, entry.label)
    if tasks is None or not tasks.rows:
        return entry.task
    choices = tasks.held_out or tasks.train
    return entry.task | json.loads(tasks.rows[choices[seed % len(choices)]])


async def _print_answer(talk: Conversation, text: str, role: str, console: Console) -> str:
    """Prints the model's answer while it is sampled; returns it."""
    parts: list[str] = []
    async for part in talk.answer(text, role):
        parts.append(part)
        console.print(Text(visible(part), style="green"), end="")
    console.print()
    return "".join(parts)
