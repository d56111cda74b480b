"""Nothing bulky on the control plane: twice the tokens cost the same bytes of gRPC and Redis.

The two runs play the same games (equal seeds, scripted play); a prefix before every observation makes
each trajectory of the second one twice as long. Counted are, by a relay, all bytes that the rollout
worker and the trainer exchange with the scheduler (tickets, results, batch plans, commits), and all that
Redis received and sent for anybody: ledger, events, descriptors. What depends on the time that a run
takes, not on its work, is kept out of the comparison: heartbeats and lease renewals come too seldom for
a run of this length, and the trainer waits for a plan in one call.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.meter import Meter
from tests.support.runs import tictactoe
from tests.support.stack import Stack
from tests.support.trainer import PlayedTrainer

# Tokens of a turn: the prefix, nine cells, a move of three.
TURN = 12
PREFIX = 100
BATCHES = 4
EPISODES = 256
# Longer than a run takes.
SELDOM_S = 600.0
# The scheduler answers NextBatch after 20 s at the latest.
WAIT_S = 20.0


@dataclass(frozen=True)
class Cost:
    """Figures of one run. bytes_per_trajectory: gRPC and Redis together."""

    tokens: int
    trajectories: int
    grpc_bytes: float
    redis_bytes: float

    @property
    def bytes_per_trajectory(self) -> float:
        return (self.grpc_bytes + self.redis_bytes) / self.trajectories


async def redis_bytes(trainer: PlayedTrainer) -> int:
    stats = await trainer.bus.redis.info("stats")
    return stats["total_net_input_bytes"] + stats["total_net_output_bytes"]


async def play(directory: Path, prefix_tokens: int) -> Cost:
    config = tictactoe(
        directory,
        model={
            "observation_prefix": " ".join(["x"] * prefix_tokens),
            "scratch": {"max_positions": 2048},
        },
        rollout={"max_sequences": 64, "max_context_tokens": 2048, "arena_bytes": 64 << 20},
        scheduler={"heartbeat_s": SELDOM_S, "membership_s": 3 * SELDOM_S, "lease_s": 3 * SELDOM_S},
        warmup={"batches": BATCHES, "batch_episodes": EPISODES},
    )
    stack = Stack(config)
    async with stack:
        await stack.up("valkey", "model", "scheduler", "gateway", "env-0")
        async with (
            Meter(stack.scheduler) as meter,
            PlayedTrainer(stack, scheduler=meter.address, beat_s=SELDOM_S, wait_s=WAIT_S) as trainer,
        ):
            before = await redis_bytes(trainer)
            await stack.start("rollout-0", {"EARL_SCHEDULER": meter.address})
            tokens = trajectories = 0
            for _ in range(BATCHES):
                plan = await trainer.next_batch()
                assert plan is not None
                sequences = await trainer.read(plan)
                tokens += sum(len(one.columns["tokens"]) for one in sequences)
                trajectories += len(sequences)
                # What comes after warm-up waits for weights that are never published: both runs
                # end with the same work done.
                await trainer.commit(plan, publish=False)
            return Cost(tokens, trajectories, meter.size_bytes, await redis_bytes(trainer) - before)


@pytest.mark.slow
async def test_twice_the_tokens_cost_the_same_control_plane_bytes(tmp_path):
    short = await play(tmp_path / "short", PREFIX)
    long = await play(tmp_path / "long", 2 * PREFIX + TURN)
    assert short.trajectories == long.trajectories == BATCHES * EPISODES
    assert 1.95 < long.tokens / short.tokens < 2.05
    ratio = long.bytes_per_trajectory / short.bytes_per_trajectory
    assert abs(ratio - 1) <= 0.05, (short, long)
