"""`python -m services.trainer.probe --job FILE`: how fast trainer or reference stage compute.

    torchrun's agent, if there are more ranks than one ─► each rank: a model with random weights
    point (L, C): a batch of C sequences of L random tokens each, half of them trained, split over replicas
        trainer    one step as in a run: mini-batches, passes, forward, loss, backward, AdamW
        reference  the log-probs of one lease: each replica its sequences, tp ranks together

tokens_per_device_s: tokens of the batch over seconds and ranks. No two sequences begin alike, so nothing is
shared between them (trainer.share_prefixes), as it would be between the answers to one prompt.
"""

from __future__ import annotations

import gc
import os
import sys
import time
from collections.abc import Callable
from typing import Protocol

import numpy as np
import torch

from earl.config.run import RunConfig
from earl.dispatch.layout.box import Box
from earl.errors import EarlError, OutOfMemory, ran_out_of_memory
from earl.models.return_pages import return_pages
from earl.models.spec import ModelSpec, load_spec
from earl.obs.memory import forget_peaks, host_bytes, peak_bytes
from earl.parallelism import REFERENCE, Parallelism
from earl.profiling import (
    ProfileJob,
    ProfileSample,
    Visit,
    answers,
    bound_memory,
    decode,
    encode,
    read_job,
)
from earl.rpc.main import ended_by
from services.trainer.launch import follow_agent, launch
from services.trainer.model.sharded_policy import ShardedPolicy
from services.trainer.ranks.process_group import Group, leave
from services.trainer.ranks.rank_mesh import RankMesh
from services.trainer.ranks.runtime import settle, settle_frozen
from services.trainer.reference.mesh import make_reference_mesh
from services.trainer.reference.policy import MaskedTrajectory, ReferencePolicy, slices
from services.trainer.step.batch import Columns
from services.trainer.step.plan import ReplicaSequence, RoleColumn, TrainingPlan
from services.trainer.step.step import Stepper

# Steps of one visit at most: so many are as good as more.
MOST = 64
WEIGHTS_STD = 0.02
# What a probe may change of a run's step: nothing is to be learned, and no step left out.
GENTLE = {"lr": 1e-6, "kl_limit": 0.0}


class ProbedStage(Protocol):
    def batch(self, tokens: np.ndarray) -> Callable[[], object]:
        """A call that computes this rank's part of these sequences once. tokens: int32[C, L]."""
        ...


class ProbedTrainer:
    """The trainer's step, on random tokens."""

    def __init__(self, spec: ModelSpec, mesh: RankMesh, config: RunConfig) -> None:
        policy = ShardedPolicy.of(spec, mesh, config)
        with torch.no_grad():
            for shard in policy.every_shard:
                _randomise(shard.local)
        self._mesh, self._spec = mesh, spec
        roles = [REFERENCE] if config.trainer.uses_reference else []
        self._columns = tuple(RoleColumn(role, ("probe",)) for role in roles)
        self._stepper = Stepper(policy, config)

    def batch(self, tokens: np.ndarray) -> Callable[[], object]:
        count, length = tokens.shape
        items = [
            ReplicaSequence(n, 1, f"{n}", 1.0 - 2.0 * (n % 2), length, self._columns, position=n)
            for n in range(count)
        ]
        dp, replica = self._mesh.data_ranks, self._mesh.replica
        ranks = tuple(tuple(items[rank::dp]) for rank in range(dp))
        plan = TrainingPlan(1, 1, "policy_gradient", ranks, False, False, 0.0, False)
        columns = Columns(turn_rewards=self._stepper.config.trainer.turn_rewards)
        columns.take(ranks[replica])
        mine = tokens[replica::dp].reshape(-1)
        mask = np.tile(np.arange(length) % 2, len(columns.items))
        columns.sampled["tokens"][:] = mine
        columns.sampled["loss_mask"][:] = mask
        columns.sampled["logprobs"][:] = -np.log(self._spec.vocab) * mask
        return lambda: self._stepper.train(plan, columns)


class ProbedReference:
    """The log-probs of one lease, on random tokens."""

    def __init__(self, spec: ModelSpec, group: Group, config: RunConfig, dp: int, tp: int) -> None:
        self._place = make_reference_mesh(group, dp, tp)
        self._policy = ReferencePolicy(spec, self._place.tensor, group.device, config)
        with torch.no_grad():
            for parameter in self._policy.decoder.parameters():
                _randomise(parameter)

    def batch(self, tokens: np.ndarray) -> Callable[[], object]:
        mask = (np.arange(tokens.shape[1]) % 2).astype(np.uint8)
        place = self._place
        mine = [
            MaskedTrajectory(f"{n}", row, mask)
            for n, row in enumerate(tokens)
            if n % place.dp == place.replica
        ]
        if not mine:
            return lambda: None
        box: Box = slices(np.tile(mask, len(mine)), place.tensor.size)[place.tensor.rank]
        into = np.empty(box.size, np.float32)
        return lambda: self._policy.logprobs(mine, box, into)


class StepProbe:
    """Times a stage's step on one rank; rank 0 reads what to do and tells the others."""

    def __init__(self, job: ProfileJob, config: RunConfig) -> None:
        trains = job.stage == "trainer"
        config = config.model_copy(update={"trainer": config.trainer.model_copy(update=GENTLE)})
        self._ranks = job.dp * job.tp * job.cp
        if trains:
            settle(config)
        else:
            settle_frozen(config, config.reference.threads)
        self._group = Group(config.trainer.device if trains else config.reference.device)
        spec = load_spec(job.model)
        self._stage: ProbedStage = (
            ProbedTrainer(spec, RankMesh(self._group, Parallelism(job.dp, job.tp, job.cp), spec), config)
            if trains
            else ProbedReference(spec, self._group, config, job.dp, job.tp)
        )
        self._random = np.random.default_rng(0)
        self._vocabulary = spec.vocab
        # Seconds of one step, and the most memory, by point; those that were visited.
        self._known: dict[tuple[int, int], tuple[float, float]] = {}
        # Threads, kernels and collectives are set up by the first step, whatever its size.
        self._time(self._stage.batch(self._tokens(self._ranks, 16)), 1)

    def run(self) -> None:
        """Answers visits until the end of input."""
        out = answers()
        if self._group.leads:
            out.write("{}\n")
        while line := self._group.broadcast(sys.stdin.readline().encode() if self._group.leads else b""):
            sample = self.visit(decode(Visit, line))
            if self._group.leads:
                out.write(encode(sample))
        self._group.close()

    def visit(self, visit: Visit) -> ProfileSample:
        """Time one point, for the visit's seconds. A collective. Raises what runs out of memory."""
        point = (visit.context_tokens, visit.concurrency)
        step_s, fraction = self._known.get(point, (float("inf"), 0.0))
        # Rank 0's clock counts.
        steps = int(self._group.broadcast(str(int(min(MOST, max(1.0, visit.seconds / step_s)))).encode()))
        first = point not in self._known
        if first:
            self._forget_peak()
        took = self._time(self._stage.batch(self._tokens(visit.concurrency, visit.context_tokens)), steps)
        if first:
            fraction = self._peak_fraction()
        self._known[point] = (took / steps, fraction)
        rate = visit.concurrency * visit.context_tokens * steps / took / self._ranks
        return ProfileSample(rate, fraction)

    def _tokens(self, count: int, length: int) -> np.ndarray:
        return self._random.integers(0, self._vocabulary, (count, length), dtype=np.int32)

    def _time(self, work: Callable[[], object], steps: int) -> float:
        self._group.barrier()
        started = time.perf_counter()
        for _ in range(steps):
            work()
        self._group.barrier()
        return time.perf_counter() - started

    def _forget_peak(self) -> None:
        # What larger points left is given back.
        gc.collect()
        return_pages()
        if self._group.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
        else:
            forget_peaks([os.getpid()])

    def _peak_fraction(self) -> float:
        """Peak memory as a fraction of the fullest CUDA device, or of the host that ranks on CPUs share.

        A collective.
        """
        if self._group.device.type == "cuda":
            total = torch.cuda.get_device_properties(self._group.device).total_memory
            mine = torch.cuda.max_memory_reserved() / total
            return float(self._group.max(torch.tensor([mine], dtype=torch.float64))[0])
        held = torch.tensor([peak_bytes([os.getpid()])], dtype=torch.float64)
        return float(self._group.sum(held)[0]) / host_bytes()


def _randomise(tensor: torch.Tensor) -> None:
    """Weights as of a model from scratch; norms, which are vectors, are 1."""
    if tensor.dim() > 1:
        tensor.normal_(0.0, WEIGHTS_STD)
    else:
        tensor.fill_(1.0)


def measure(job: ProfileJob) -> int:
    """Runs this rank's measurements; returns its exit code."""
    follow_agent()
    config = RunConfig.model_validate_json(job.run)
    of = config.trainer if job.stage == "trainer" else config.reference
    bound_memory(of.device, job.dp * job.tp * job.cp)
    try:
        StepProbe(job, config).run()
    except EarlError as error:
        return ended_by(error)
    except (MemoryError, OSError, RuntimeError) as error:
        if not ran_out_of_memory(error):
            raise
        sys.stderr.write(f"out of memory: {error}\n")
        return OutOfMemory.exit_code
    return 0


def main() -> int:
    job = read_job(sys.argv)
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    ranks = job.dp * job.tp * job.cp
    if ranks > 1 and "RANK" not in os.environ:
        return launch(sys.argv[1:], ranks, "services.trainer.probe")
    leave(measure(job))


if __name__ == "__main__":
    sys.exit(main())
