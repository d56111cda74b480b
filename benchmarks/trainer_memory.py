"""Peak memory of one training step on long sequences, with and without what saves it.

    for each of: chunked log-probs × activation checkpointing
        a fresh process ─► model, random weights ─► peak so far = baseline
                        ─► one step on one sequence (forward, backward, AdamW) ─► peak − baseline, seconds

The baseline holds the parameters and the optimizer's moments; what the step adds to it are gradients,
activations and log-probs.
"Without chunked log-probs" is the plain expression over all rows at once, as the step would be written
without earl.models.logprobs. A process may map --limit-gib more than at its start; what exceeds that is
reported as "oom", not tried on the machine.
"""

from __future__ import annotations

import itertools
import json
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.children import process_error
from benchmarks.options import RESULTS, AsJson, Dtype, Results, computed_dtype
from benchmarks.record.checkout import ROOT
from benchmarks.record.execution import RecordedCommand
from benchmarks.record.progress import counted
from benchmarks.record.results import publish
from earl.errors import OutOfMemory, ran_out_of_memory

app = typer.Typer(add_completion=False)
# Paths that decide the figures: tools/staleness.py says how much they have changed since a result.
MEASURED_CODE = (
    "services/trainer/step",
    "services/trainer/model",
    "earl/models",
)

GIB = 1 << 30
# SmolLM2-135M's sizes.
SMOLLM2: dict[str, Any] = {"hidden": 576, "heads": 9, "kv_heads": 3, "head_dim": 64, "intermediate": 1536}


@app.command("trainer-memory", cls=RecordedCommand)
def trainer_memory(
    tokens: Annotated[int, typer.Option(min=16, help="Length of the sequence.")] = 16_384,
    layers: Annotated[int, typer.Option(min=1, help="Layers of the model; SmolLM2-135M has 30.")] = 30,
    vocabulary: Annotated[
        int, typer.Option(min=2, help="Vocabulary of the model; SmolLM2's is 49152.")
    ] = 49_152,
    dtype: Dtype = "auto",
    threads: Annotated[int, typer.Option(min=1, help="torch threads.")] = 2,
    limit_gib: Annotated[float, typer.Option(help="Memory that a process may take beyond its start.")] = 16.0,
    as_json: AsJson = False,
    results: Results = RESULTS,
) -> None:
    """Measure the peak memory of a training step on long sequences, with and without what saves it."""
    shape = {
        "tokens": tokens,
        "layers": layers,
        "vocabulary": vocabulary,
        "dtype": computed_dtype(dtype),
        "threads": threads,
    }
    runs: list[dict[str, Any]] = []
    for chunked, checkpointed in counted("cases", list(itertools.product((True, False), repeat=2))):
        case = {"chunked_logprobs": chunked, "activation_checkpointing": checkpointed}
        figures = in_fresh_process({**shape, **case, "limit_gib": limit_gib})
        sys.stderr.write(f"{case}: {figures}\n")
        runs.append({**case, **figures})
    result = {**shape, "limit_gib": limit_gib, "runs": runs, **summary(runs)}
    publish("trainer-memory", result, results, as_json=as_json)


def in_fresh_process(case: dict[str, Any]) -> dict[str, Any]:
    """The figures of one case; {"oom": True} where it needs more than its limit."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.trainer_memory", json.dumps(case)],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    if done.returncode == -signal.SIGKILL:
        return {"oom": True}  # by the kernel
    if done.returncode:
        raise process_error(f"the step of {case}", done.returncode, done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def summary(runs: list[dict[str, Any]]) -> dict[str, float | None]:
    """peak_gib: with both savings, as the trainer does. vs_*: how many times as much without one or both;
    None where that did not fit."""
    peaks = {(run["chunked_logprobs"], run["activation_checkpointing"]): run.get("peak_gib") for run in runs}
    best = peaks[True, True]

    def times(chunked: bool, checkpointed: bool) -> float | None:
        peak = peaks[chunked, checkpointed]
        return round(peak / best, 2) if peak and best else None

    return {
        "peak_gib": best,
        "vs_no_checkpointing": times(True, False),
        "vs_no_chunks": times(False, True),
        "vs_neither": times(False, False),
    }


def measure(case: dict[str, Any]) -> dict[str, Any]:
    """Figures of one step in this process, which must be fresh. Peaks are resident memory by the kernel."""
    import torch

    from services.trainer.ranks.runtime import keep_pages

    torch.set_num_threads(case["threads"])
    keep_pages()
    step = prepared(case)
    before = peak_bytes()
    limit = int(case["limit_gib"] * GIB)
    # The limit is on what this process maps and writes, not on address space that libraries reserve.
    most = data_bytes() + limit
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))
    started = time.perf_counter()
    try:
        loss = step()
    except (OutOfMemory, RuntimeError, MemoryError) as error:
        if not isinstance(error, OutOfMemory) and not ran_out_of_memory(error):
            raise
        return {"oom": True, "seconds": round(time.perf_counter() - started, 1)}
    seconds = time.perf_counter() - started
    return {
        "oom": False,
        "peak_gib": round((peak_bytes() - before) / GIB, 3),
        "baseline_gib": round(before / GIB, 3),
        "seconds": round(seconds, 1),
        "loss": loss,
    }


def prepared(case: dict[str, Any]) -> Callable[[], float]:
    """A trainer with random weights and one sequence, as a call that trains on it once; returns the loss."""
    import numpy as np
    import torch

    from earl.config.run import RunConfig
    from earl.models import module
    from earl.models.spec import ModelSpec, Rope
    from services.trainer.model.sharded_policy import ShardedPolicy
    from services.trainer.ranks.process_group import Group
    from services.trainer.ranks.rank_mesh import RankMesh
    from services.trainer.step.batch import Columns
    from services.trainer.step.plan import ReplicaSequence, TrainingPlan
    from services.trainer.step.step import Stepper

    if not case["chunked_logprobs"]:
        module.token_logprobs = plain_logprobs
    tokens, vocabulary = case["tokens"], case["vocabulary"]
    spec = ModelSpec(
        "llama",
        layers=case["layers"],
        vocab=vocabulary,
        tied=True,
        max_positions=tokens,
        rope=Rope(1e5),
        **SMOLLM2,
    )
    trainer = {
        "device": "cpu",
        "dtype": case["dtype"],
        "microbatch_tokens": tokens,
        "activation_checkpointing": case["activation_checkpointing"],
    }
    config = RunConfig.model_validate({"name": "m", "environment": {"name": "m"}, "trainer": trainer})
    mesh = RankMesh(Group("cpu"), config.trainer.parallelism, spec)
    policy = ShardedPolicy.of(spec, mesh, config)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for shard in policy.shards:
            if len(shard.shape) > 1:
                shard.local.normal_(0.0, 0.02, generator=generator)
            else:
                shard.local.fill_(1.0)
    stepper = Stepper(policy, config)
    rng = np.random.default_rng(0)
    # Half of an agent's tokens are its own.
    mask = np.arange(tokens) % 64 >= 32
    plan = TrainingPlan(
        1, 1, "policy_gradient", ((ReplicaSequence(1, 1, "m", 1.0, tokens),),), False, False, 0.0, False
    )
    columns = Columns()
    columns.take(plan.ranks[0])
    columns.sampled["tokens"][:] = rng.integers(0, vocabulary, tokens)
    columns.sampled["loss_mask"][:] = mask
    columns.sampled["logprobs"][:] = -np.log(vocabulary) * mask
    return lambda: stepper.train(plan, columns)["loss"]


def plain_logprobs(hidden: Any, weight: Any, targets: Any, temperature: float = 1.0) -> tuple[Any, Any]:
    """The results of earl.models.logprobs.token_logprobs, computed with all logits at once."""
    import torch.nn.functional as F

    distribution = F.log_softmax(F.linear(hidden, weight).float() / temperature, -1)
    entropy = -(distribution.exp() * distribution).sum(-1)
    return distribution.gather(-1, targets[:, None]).squeeze(-1), entropy


def peak_bytes() -> int:
    """Peak resident memory of this process so far, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def data_bytes() -> int:
    """Bytes of private writable memory that this process has mapped, which RLIMIT_DATA limits."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmData")) * 1024


if __name__ == "__main__":
    print(json.dumps(measure(json.loads(sys.argv[1]))), flush=True)
    from services.trainer.ranks.process_group import leave

    leave(0)
