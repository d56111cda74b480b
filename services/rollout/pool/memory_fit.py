"""Decides whether new engines fit into memory next to the old ones, by what the old ones take. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from earl.parallelism import Parallelism
from services.rollout.engines.contract.engine import EngineStats
from services.rollout.pool.devices import PoolDevices

# Fraction of what is free that stays free: estimates err, and generation continues meanwhile.
MARGIN = 0.1
# Size of a hand-over's arena over the KV in it: slots are taken before the last tokens are known.
ARENA_FACTOR = 1.25
# What a process takes of a CUDA device in addition to weights and KV: its context, its kernels, its
# activations.
CUDA_PROCESS_BYTES = 2 << 30


def fits_with_old(
    stats: Sequence[EngineStats],
    devices: PoolDevices,
    old: Parallelism,
    new: Parallelism,
    host_available_bytes: int,
) -> bool:
    """Returns whether engines of the parallelism `new` fit next to those of `old`.

    stats: of the old engines that answer. host_available_bytes: what the host's processes may still take.

    On the host the new engines take what the old ones do, and as many more copies of the weights as there
    are more engines; KV that is handed over lies there once more. On a CUDA device they take their slice
    of the weights and as many bytes of KV again.
    """
    on_cuda = [engine for engine in stats if engine.memory is not None and not engine.memory.host]
    if on_cuda:
        return all(
            devices.weight_bytes / new.tp + engine.kv_tokens * engine.kv_token_bytes + CUDA_PROCESS_BYTES
            <= (engine.memory.size_bytes - engine.memory.used_bytes) * (1 - MARGIN)
            for engine in on_cuda
            if engine.memory is not None
        )
    used = sum(engine.memory.used_bytes for engine in stats if engine.memory is not None)
    offered = ARENA_FACTOR * sum(
        engine.kv_used_tokens * engine.kv_token_bytes * engine.tp for engine in stats
    )
    more = (new.dp - old.dp) * devices.weight_bytes
    return max(used + more, new.dp * devices.weight_bytes) + offered <= host_available_bytes * (1 - MARGIN)
