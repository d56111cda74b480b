"""What it costs to change the parallelism of a stage while it works."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.output import RESULTS, AsJson, Results, publish, whole_numbers
from benchmarks.reparallelize.model import config_of, published, write_model
from benchmarks.reparallelize.rollout import Work, measure

app = typer.Typer(add_completion=False)

MEASURES = (
    "live_ms_p50, live_ms_p99: from a sequence's last token of an old engine to its first of a new one, over "
    "all sequences of all switches; canaries, the move of their KV and the prefill of what did not move lie "
    "within. lost_sequences: those that ended short. token_exact: greedy tokens in float32 are those of the "
    "same sequences left alone, but for ties (log-probs closer than 1e-4), which are counted. "
    "max_logprob_diff: over the tokens that both have. Old and new engines share the machine's cores, as do "
    "all engines of the pool."
)


@app.command()
def reparallelize(
    cuts: Annotated[str, typer.Option(help="Values of tp, one after the other.")] = "1,2,4,2,1",
    sequences: Annotated[int, typer.Option(min=1, help="In flight at once.")] = 32,
    prompt_tokens: Annotated[int, typer.Option(min=1, help="Of each sequence.")] = 512,
    new_tokens: Annotated[int, typer.Option(min=2, help="That a sequence generates at most.")] = 2048,
    turn_tokens: Annotated[int, typer.Option(min=1, help="Of one turn; the next one follows at once.")] = 256,
    engine: Annotated[str, typer.Option(help="torch or vllm.")] = "torch",
    layers: Annotated[int, typer.Option(min=1, help="Of the model.")] = 8,
    hidden: Annotated[int, typer.Option(min=8, help="Of the model, which has 8 heads.")] = 1024,
    vocabulary: Annotated[int, typer.Option(min=2, help="Of the model.")] = 8192,
    threads: Annotated[int, typer.Option(min=1, help="torch threads of each rank.")] = 1,
    as_json: AsJson = False,
    results: Results = RESULTS,
) -> None:
    """What it costs to change the parallelism of a stage while it works, and that nothing is lost by it."""
    work = Work(
        sequences, prompt_tokens, new_tokens, turn_tokens, tuple(whole_numbers(cuts)), engine, threads
    )
    if len(work.cuts) < 2:
        raise typer.BadParameter(f"--cuts {cuts!r} is no switch: give two values of tp or more")
    with tempfile.TemporaryDirectory(prefix="earl-bench-reparallelize-") as temporary:
        found = asyncio.run(
            _measure(work, config_of(layers, hidden, vocabulary, work.context_tokens), Path(temporary))
        )
    publish("reparallelize", {"measures": MEASURES, **found}, results, as_json=as_json)


async def _measure(work: Work, config: dict[str, Any], directory: Path) -> dict[str, Any]:
    model = directory / "model"
    spec = write_model(model, config)
    async with published(model, spec, directory) as at:
        return {"parameters": spec.parameters, **await measure(work, model, at)}
