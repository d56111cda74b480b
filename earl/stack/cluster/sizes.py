"""Sizes of the jobs of a run. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from earl.config.run import RunConfig
from earl.errors import ConfigError
from earl.stack.cluster.manager import ClusterNode, JobSize
from earl.stack.placement import StageDemand, demands

# GPUs of a node that nobody knows yet: enough for any job.
MOST_GPUS = 1 << 20
OPEN_KEYS = "rollout.kv_tokens", "rollout.max_context_tokens"


def computing(config: RunConfig) -> list[StageDemand]:
    """The stages whose processes are jobs of their own."""
    return demands(config)


def job_sizes(config: RunConfig, gpus: int) -> dict[str, JobSize]:
    """The size of each job that computes, by its process. gpus: of the node that has the most.

    Raises ConfigError for a stage on GPUs where no node has any, and for one on GPUs whose sizes the run file
    leaves open: the head cannot measure the memory of other nodes' GPUs.
    """
    sizes: dict[str, JobSize] = {}
    for stage in computing(config):
        if stage.device == "cuda" and not gpus:
            raise ConfigError(
                f'{stage.stage}.device = "cuda", and no node has a GPU that its manager knows of',
                f'set {stage.stage}.device = "auto", or name another cluster.partition',
            )
        on_gpus = stage.on_gpus(gpus)
        if on_gpus and not (config.rollout.kv_tokens and config.rollout.max_context_tokens):
            raise ConfigError(
                f"{stage.stage} computes on GPUs of other nodes, and the run file leaves sizes open",
                f"set {' and '.join(OPEN_KEYS)}",
            )
        size = JobSize(config.cluster.cpus, config.cluster.memory_bytes, stage.each if on_gpus else 0)
        sizes |= dict.fromkeys(stage.processes, size)
    return sizes


def gpus_of_nodes(nodes: Sequence[ClusterNode]) -> int:
    """GPUs of the node that has the most."""
    return max((node.gpus for node in nodes), default=0)
