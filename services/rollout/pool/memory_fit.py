"""Whether new engines fit into memory beside the old ones, by what the old ones take. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from earl.parallelism import Parallelism
from services.rollout.engines.contract.engine import EngineStats
from services.rollout.pool.layouts import Cuts

# Of what is free: estimates are no measurements, and generation goes on meanwhile.
MARGIN = 0.1
# A hand-over's arena beside the KV in it: slots are taken before the last tokens are known.
ARENA = 1.25
# Of a process on a CUDA device beside weights and KV: its context, its kernels, its activations.
CUDA_PROCESS_BYTES = 2 << 30


def fits_beside(
    stats: Sequence[EngineStats], cuts: Cuts, old: Parallelism, new: Parallelism, host_available_bytes: int
) -> bool:
    """stats: of the old engines that answer. host_available_bytes: what the host's processes may still take.

    On the host the new engines take what the old ones do, and as many more copies of the weights as there
    are more engines; the KV that changes hands lies there once more. On a CUDA device they take their slice
    of the weights and as many bytes of KV again.
    """
    devices = [one for one in stats if one.memory is not None and not one.memory.host]
    if devices:
        return all(
            cuts.weight_bytes / new.tp + one.kv_tokens * one.kv_token_bytes + CUDA_PROCESS_BYTES
            <= (one.memory.size_bytes - one.memory.used_bytes) * (1 - MARGIN)
            for one in devices
            if one.memory is not None
        )
    used = sum(one.memory.used_bytes for one in stats if one.memory is not None)
    offered = ARENA * sum(one.kv_used_tokens * one.kv_token_bytes * one.tp for one in stats)
    more = (new.dp - old.dp) * cuts.weight_bytes
    return max(used + more, new.dp * cuts.weight_bytes) + offered <= host_available_bytes * (1 - MARGIN)
