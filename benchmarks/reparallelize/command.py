"""The cost of changing the parallelism of a stage while it works."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.options import RESULTS, AsJson, Results, whole_numbers
from benchmarks.record.execution import RecordedCommand
from benchmarks.record.progress import phase
from benchmarks.record.results import publish
from benchmarks.reparallelize import trainer
from benchmarks.reparallelize.model import config_of, published, write_model
from benchmarks.reparallelize.rollout import SwitchWork, measure
from earl.parallelism import Parallelism

app = typer.Typer(add_completion=False)
# Paths that decide the figures: tools/staleness.py says how much they have changed since a result.
MEASURED_CODE = (
    "services/rollout/pool",
    "services/rollout/engines",
    "services/trainer/ranks",
    "services/trainer/reshard",
    "earl/dispatch",
)

MEASURES = (
    "live_ms_p50, live_ms_p99 (of vLLM vllm_stall_ms_p50 and so on): from a sequence's last token of an "
    "old engine to its first of a new one, over all sequences of all switches; canaries, the move of "
    "their KV and the prefill of what did not move lie within. decode_ms: a step of the same batch while "
    "no switch runs, the median over the parallelisms in turn (decode_ms_each). live_goal_ms: two such "
    "steps and 60 ms; live_goal_met: whether live_ms_p99 is within it, over 100 stalls or more. "
    "switch_cost_engine_s: the seconds in which old and new engines competed for the same cores "
    "(competing_s of each switch), times the old engines, over all switches. The other seconds of a switch "
    "are its phases (docs/reparallelize.md). "
    "lost_sequences: those that ended short. "
    "token_exact: greedy tokens in float32 are those of the same sequences left alone, but for ties "
    "(log-probs closer than 1e-4), which are counted. max_logprob_diff: over the tokens that both have. Old "
    "and new engines share the machine's cores, as do all engines of the pool. switch_s: from the command "
    "until the new engines are in use and the old ones have ended. standby_mib: what the processes that are "
    "kept ready take (PSS); before a switch their imports are done. trainer_ms_p50, "
    "trainer_ms_worst: from the step boundary until the trainer's ranks can train in another parallelism; "
    "canaries are computed twice within. trainer_phase_ms_p50: the median of each phase of that time, of the "
    "slowest rank. trainer_cpu_ms_p50: processor time of all ranks in a switch, which other programs on the "
    "machine change less. trainer_peak_extra_bytes: what the rank that needed most held in addition to the "
    "larger of both layouts."
)


@app.command(cls=RecordedCommand)
def reparallelize(
    tp_values: Annotated[str, typer.Option("--tp", help="Values of tp in turn.")] = "1,2,4,2,1",
    sequences: Annotated[int, typer.Option(min=1, help="In flight at once.")] = 32,
    prompt_tokens: Annotated[int, typer.Option(min=1, help="Prompt length of each sequence.")] = 512,
    new_tokens: Annotated[int, typer.Option(min=2, help="The most tokens that a sequence generates.")] = 2048,
    turn_tokens: Annotated[
        int, typer.Option(min=1, help="Tokens of a turn; the next turn follows at once.")
    ] = 256,
    engine: Annotated[str, typer.Option(help="torch or vllm.")] = "torch",
    cold: Annotated[
        bool, typer.Option("--cold", help="Stop the old engines first, as where memory does not hold both.")
    ] = False,
    standby: Annotated[
        bool, typer.Option(help="Keep processes ready for the next engines, as rollout.standby does.")
    ] = True,
    layers: Annotated[int, typer.Option(min=1, help="Layers of the model.")] = 8,
    hidden: Annotated[int, typer.Option(min=8, help="Hidden size of the model, which has 8 heads.")] = 1024,
    vocabulary: Annotated[int, typer.Option(min=2, help="Vocabulary of the model.")] = 8192,
    threads: Annotated[int, typer.Option(min=1, help="torch threads of each rank.")] = 1,
    trainer_parallelisms: Annotated[
        str,
        typer.Option(
            "--trainer-parallelisms", help="Parallelisms of the trainer in turn, all of as many ranks."
        ),
    ] = "tp2 cp2 dp2",
    trainer_rounds: Annotated[
        int, typer.Option(min=0, help="How often the trainer goes through them; 0: no trainer.")
    ] = 7,
    trainer_only: Annotated[bool, typer.Option("--trainer-only", help="Measure no engines.")] = False,
    as_json: AsJson = False,
    results: Results = RESULTS,
) -> None:
    """Measure what a change of parallelism costs a stage that works, and whether anything is lost by it."""
    work = SwitchWork(
        sequences,
        prompt_tokens,
        new_tokens,
        turn_tokens,
        tuple(whole_numbers(tp_values)),
        engine,
        threads,
        cold,
        standby=standby,
    )
    if len(work.tp_values) < 2:
        raise typer.BadParameter(f"--tp {tp_values!r} has no switch: give two values of tp or more")
    parallelisms = tuple(trainer_parallelisms.split())
    if not parallelisms or len({Parallelism.parse(text).devices for text in parallelisms}) > 1:
        raise typer.BadParameter(
            f"--trainer-parallelisms {trainer_parallelisms!r} have different numbers of ranks"
        )
    with tempfile.TemporaryDirectory(prefix="earl-bench-reparallelize-") as temporary:
        figures = asyncio.run(
            _measure(
                None if trainer_only else work,
                config_of(layers, hidden, vocabulary, work.context_tokens),
                Path(temporary),
                parallelisms * trainer_rounds,
                threads,
            )
        )
    publish("reparallelize", {"measures": MEASURES, **figures}, results, as_json=as_json)


async def _measure(
    work: SwitchWork | None,
    config: dict[str, Any],
    directory: Path,
    trainer_parallelisms: tuple[str, ...],
    threads: int,
) -> dict[str, Any]:
    model = directory / "model"
    phase("writing the model")
    spec = write_model(model, config)
    figures: dict[str, Any] = {"parameters": spec.parameters}
    async with published(model, spec, directory) as weights:
        if work is not None:
            figures |= await measure(work, model, weights)
        if trainer_parallelisms:
            phase(f"{len(trainer_parallelisms)} switches of a trainer")
            job = trainer.Job(
                str(model), weights.redis_url, str(directory / "trained"), trainer_parallelisms, threads
            )
            figures |= await asyncio.to_thread(trainer.measure, job)
    return figures
