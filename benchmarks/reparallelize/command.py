"""What it costs to change the parallelism of a stage while it works."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.options import RESULTS, AsJson, Results, whole_numbers
from benchmarks.record.execution import RecordedCommand
from benchmarks.record.results import publish
from benchmarks.reparallelize import trainer
from benchmarks.reparallelize.model import config_of, published, write_model
from benchmarks.reparallelize.rollout import Work, measure
from earl.parallelism import Parallelism

app = typer.Typer(add_completion=False)
# Paths that decide the figures: tools/staleness.py says how much they have changed since a result.
MEASURED_CODE = (
    "services/rollout/pool",
    "services/rollout/engines",
    "services/trainer/reshard",
    "earl/dispatch",
)

MEASURES = (
    "live_ms_p50, live_ms_p99 (of vLLM vllm_stall_ms_p50 and so on): from a sequence's last token of an "
    "old engine to its first of a new one, over all sequences of all switches; canaries, the move of "
    "their KV and the prefill of what did not move lie within. lost_sequences: those that ended short. "
    "token_exact: greedy tokens in float32 are those of the same sequences left alone, but for ties "
    "(log-probs closer than 1e-4), which are counted. max_logprob_diff: over the tokens that both have. Old "
    "and new engines share the machine's cores, as do all engines of the pool. trainer_ms_p50, "
    "trainer_ms_worst: from the step boundary on until the trainer's ranks can go on in another cut; "
    "canaries are computed twice within. trainer_peak_extra_bytes: what the rank that needed most held "
    "beside the larger of both cuts."
)


@app.command(cls=RecordedCommand)
def reparallelize(
    cuts: Annotated[str, typer.Option(help="Values of tp, one after the other.")] = "1,2,4,2,1",
    sequences: Annotated[int, typer.Option(min=1, help="In flight at once.")] = 32,
    prompt_tokens: Annotated[int, typer.Option(min=1, help="Of each sequence.")] = 512,
    new_tokens: Annotated[int, typer.Option(min=2, help="That a sequence generates at most.")] = 2048,
    turn_tokens: Annotated[int, typer.Option(min=1, help="Of one turn; the next one follows at once.")] = 256,
    engine: Annotated[str, typer.Option(help="torch or vllm.")] = "torch",
    cold: Annotated[
        bool, typer.Option("--cold", help="As where memory does not hold both: old engines end first.")
    ] = False,
    layers: Annotated[int, typer.Option(min=1, help="Of the model.")] = 8,
    hidden: Annotated[int, typer.Option(min=8, help="Of the model, which has 8 heads.")] = 1024,
    vocabulary: Annotated[int, typer.Option(min=2, help="Of the model.")] = 8192,
    threads: Annotated[int, typer.Option(min=1, help="torch threads of each rank.")] = 1,
    trainer_cuts: Annotated[
        str, typer.Option(help="Of as many trainer ranks as these need, one after the other.")
    ] = "tp2 cp2 dp2",
    trainer_rounds: Annotated[int, typer.Option(min=0, help="Times; 0: no trainer.")] = 3,
    trainer_only: Annotated[bool, typer.Option("--trainer-only", help="No engines.")] = False,
    as_json: AsJson = False,
    results: Results = RESULTS,
) -> None:
    """What it costs to change the parallelism of a stage while it works, and that nothing is lost by it."""
    work = Work(
        sequences, prompt_tokens, new_tokens, turn_tokens, tuple(whole_numbers(cuts)), engine, threads, cold
    )
    if len(work.cuts) < 2:
        raise typer.BadParameter(f"--cuts {cuts!r} is no switch: give two values of tp or more")
    wanted = tuple(trainer_cuts.split())
    if not wanted or len({Parallelism.parse(cut).devices for cut in wanted}) > 1:
        raise typer.BadParameter(f"--trainer-cuts {trainer_cuts!r} are of unlike numbers of ranks")
    with tempfile.TemporaryDirectory(prefix="earl-bench-reparallelize-") as temporary:
        found = asyncio.run(
            _measure(
                None if trainer_only else work,
                config_of(layers, hidden, vocabulary, work.context_tokens),
                Path(temporary),
                wanted * trainer_rounds,
                threads,
            )
        )
    publish("reparallelize", {"measures": MEASURES, **found}, results, as_json=as_json)


async def _measure(
    work: Work | None, config: dict[str, Any], directory: Path, trainer_cuts: tuple[str, ...], threads: int
) -> dict[str, Any]:
    model = directory / "model"
    spec = write_model(model, config)
    found: dict[str, Any] = {"parameters": spec.parameters}
    async with published(model, spec, directory) as at:
        if work is not None:
            found |= await measure(work, model, at)
        if trainer_cuts:
            job = trainer.Job(str(model), at.redis_url, str(directory / "trained"), trainer_cuts, threads)
            found |= await asyncio.to_thread(trainer.measure, job)
    return found
