"""Ranks on several devices: collectives, and a trainer in dp, tp and cp whose steps equal those of one rank.

    this process ─► one process a rank, `python -m benchmarks.gpu.several JOB` ─► rank 0 prints JSON

On a processor the ranks exchange over gloo, on cards over NCCL.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from benchmarks.children import outputs_of
from benchmarks.gpu.check import CheckFigures, CheckSettings, judged
from benchmarks.gpu.models import tiny_config, write_checkpoint
from benchmarks.record.checkout import ROOT
from benchmarks.reparallelize import trainer as moving
from benchmarks.reparallelize.model import published

RANKS = 2
RANKS_S = 150.0
STEPS = 3
# Ranks add up in another order than one does.
TOLERANCE = {"loss": 1e-3, "logprob_max": 1e-3, "update_cosine_min": 0.999}
# Bytes of each rank, for collectives.
MIB = 1 << 20


def run_ranks(job: dict[str, Any], ranks: int) -> dict[str, Any]:
    """Runs a job in so many ranks; returns what rank 0 printed. Raises ProcessFailed, DeadlineExceeded."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    rendezvous = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(ranks)}
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", __name__, json.dumps(job)],
            cwd=ROOT,
            env=os.environ
            | rendezvous
            | {"RANK": str(rank), "LOCAL_RANK": str(rank), "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(ranks)
    ]
    return json.loads(outputs_of(processes, f"the ranks of {job['work']}", RANKS_S)[0].splitlines()[-1])


def collectives(settings: CheckSettings) -> CheckFigures:
    """Sums, parts of sums and exchanges between cards: right, and how fast."""
    job = {"work": "collectives", "device": settings.device, "mib": settings.pick(256, 8, 1)}
    figures = run_ranks(job, RANKS)
    return judged(figures, {}, {"a collective's result is wrong": not all(figures["right"].values())})


def parallel_trainer(settings: CheckSettings) -> CheckFigures:
    """The same batches in dp 2, tp 2 and cp 2, and on one rank."""
    model = settings.directory / "model"
    write_checkpoint(model, tiny_config("qwen3"))
    job = {"device": settings.device, "model": str(model), "steps": settings.pick(STEPS, STEPS, 1)}
    job |= {"work": "train", "expected": str(settings.directory / "expected.safetensors")}
    run_ranks(job | {"parallelism": "dp1"}, 1)
    figures: dict[str, Any] = {}
    faults: dict[str, bool] = {}
    for parallelism in ("dp2", "tp2", "cp2"):
        row = figures[parallelism] = run_ranks(job | {"parallelism": parallelism}, RANKS)
        for key in ("loss", "logprob_max"):
            faults[f"{parallelism}: {key} is {row[key]} off"] = not row[key] <= TOLERANCE[key]
        faults[f"{parallelism}: the update's cosine is {row['update_cosine']}"] = (
            not row["update_cosine"] >= TOLERANCE["update_cosine_min"]
        )
    return judged(figures, TOLERANCE, faults)


def changed_trainer(settings: CheckSettings) -> CheckFigures:
    """A trainer's two ranks change from dp to tp to cp between steps, without going through a file."""
    model = settings.directory / "model"
    spec = write_checkpoint(model, tiny_config("llama"))

    async def measured() -> dict[str, Any]:
        async with published(model, spec, settings.directory) as weights:
            job = moving.Job(
                str(model),
                weights.redis_url,
                str(settings.arenas / "t"),
                ("tp2", "cp2", "dp2"),
                1,
                settings.device,
            )
            return await asyncio.to_thread(moving.measure, job)

    figures = asyncio.run(measured())
    difference = figures["trainer_max_logprob_diff"]
    return judged(
        figures,
        {"trainer_max_logprob_diff": moving.TOLERANCE, "trainer_rolled_back": 0},
        {
            f"{figures['trainer_rolled_back']} changes were rolled back": figures["trainer_rolled_back"] > 0,
            f"log-probs differ by {difference} after a change": difference > moving.TOLERANCE,
        },
    )


# --- in a rank ----------------------------------------------------------------------------------------------


def _collectives(job: dict[str, Any]) -> dict[str, Any]:
    import torch
    import torch.distributed as dist

    from benchmarks.gpu.facts import gb_s, seconds_of
    from services.trainer.ranks.process_group import Group

    group = Group(job["device"])
    count, ranks = job["mib"] * MIB // 4, group.size
    mine = torch.full((count,), float(group.rank + 1), device=group.device)
    out, part = torch.empty_like(mine), torch.empty(count // ranks, device=group.device)
    total = ranks * (ranks + 1) / 2

    def summed() -> torch.Tensor:
        out.copy_(mine)
        dist.all_reduce(out)
        return out

    def scattered() -> torch.Tensor:
        dist.reduce_scatter_tensor(part, mine)
        return part

    def exchanged() -> torch.Tensor:
        dist.all_to_all_single(out, mine)
        return out

    expected = {
        "all_reduce": torch.full_like(mine, total),
        "reduce_scatter": torch.full_like(part, total),
        "all_to_all": torch.arange(1.0, ranks + 1, device=group.device).repeat_interleave(count // ranks),
    }
    work: dict[str, Callable[[], torch.Tensor]] = {
        "all_reduce": summed, "reduce_scatter": scattered, "all_to_all": exchanged,
    }  # fmt: skip
    figures: dict[str, Any] = {"mib": job["mib"], "right": {}}
    for name, collective in work.items():
        figures[f"{name}_gb_s"] = gb_s(4 * count, seconds_of(job["device"], collective))
        figures["right"][name] = group.agree(torch.equal(collective(), expected[name]))
    if group.device.type == "cuda":
        figures["peer_access"] = torch.cuda.can_device_access_peer(group.rank, (group.rank + 1) % ranks)
    group.close()
    return figures


def _train(job: dict[str, Any]) -> dict[str, Any]:
    """Trains in a parallelism. A single rank writes what it computed; several compare theirs with that."""
    from pathlib import Path

    import torch
    from safetensors.torch import load_file, save_file

    from benchmarks.gpu.check import CheckSettings
    from benchmarks.gpu.training import TrainedSteps, run_config, trained_steps
    from earl.parallelism import Parallelism
    from services.trainer.ranks.process_group import Group
    from services.trainer.ranks.runtime import settle

    parallelism = Parallelism.parse(job["parallelism"])
    settings = CheckSettings(job["device"], parallelism.devices, "least", Path(), Path())
    config = run_config(settings, dtype="float32", threads=1)
    settle(config)
    group = Group(job["device"])
    steps = trained_steps(group, Path(job["model"]), config, parallelism, job["steps"])
    if parallelism.devices == 1:
        losses = torch.tensor(steps.losses, dtype=torch.float64)
        tensors = {"losses": losses, "logprobs": torch.from_numpy(steps.logprobs), "update": steps.update}
        save_file(tensors, job["expected"])
        differences = {}
    else:
        tensors = load_file(job["expected"])
        expected = TrainedSteps(tensors["losses"].tolist(), tensors["logprobs"].numpy(), tensors["update"])
        differences = steps.differences(expected)
    group.close()
    return differences


if __name__ == "__main__":
    _job = json.loads(sys.argv[1])
    _figures = {"collectives": _collectives, "train": _train}[_job["work"]](_job)
    if os.environ["RANK"] == "0":
        print(json.dumps(_figures), flush=True)
    from services.trainer.ranks.process_group import leave

    leave(0)
