"""Snapshots of a run as tests hold them: one of a busy run, and a source of several in turn."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from earl.cli.lib.gateway_codec import GatewayEnvironment, HostLatency
from earl.cli.lib.snapshot import RunSnapshot, RunState
from earl.stack.status import (
    LedgerStatus,
    Lengths,
    ProcessState,
    RoleState,
    RunStatus,
    StageState,
    TicketLease,
    Transfers,
    WorkerState,
)
from earl.switch_figures import StageSwitch

ROLLOUT = WorkerState(
    "rollout-0", "rollout", "dp2", 64, 48, 31, 0.2,
    {"generated_tokens_per_s": 5120.0, "kv_tokens": 4096.0, "kv_used_fraction": 0.25, "engine_waiting": 3.0,
     "engine_running": 45.0, "memory_fraction": 0.4},
    {"shm": Transfers(3 << 20, 0.001, 0)},
)  # fmt: skip
TRAINER = WorkerState("trainer", "trainer", "dp2", 2, 2, 31, 0.1, {"memory_fraction": 0.5}, {})
SWITCH = StageSwitch(epoch=3, before="dp2", after="tp2", reason="lengths grew", seconds=4.2, stall_s=0.31)
SENTENCE = "rollout runs dp2; the selector goes to tp2: 0.3 s quicker"
STATUS = RunStatus(
    run="growing",
    phase="train",
    step=30,
    steps=140,
    version=31,
    ledger=LedgerStatus(1000, 800, 64, {"group_incomplete": 2}, pending=8, leased=48, ready=62, planned=16),
    workers=(ROLLOUT, TRAINER),
    roles=(RoleState("trainer", 62, 16, 800),),
    stages=(
        StageState("rollout", "dp2", "tp2", SENTENCE, last=SWITCH),
        StageState("trainer", "dp2", pinned=True),
    ),
    metrics={"reward_mean": 0.25, "tokens_per_s": 4310.0, "train_tokens_per_s": 9000.0, "staleness_mean": 0.5,
             "staleness_max": 1.0},
    episode_tokens=Lengths(44.5, 40.0, 53.0, 66.0),
    elapsed_s=61.0,
)  # fmt: skip
GAMES = GatewayEnvironment(
    "open_spiel/tic_tac_toe", "", "h", None, [], 2, 128, 48, 3, 0,
    HostLatency(64, 0.0012, 0.0031), HostLatency(640, 0.0004, 0.002),
)  # fmt: skip
SNAPSHOT = RunSnapshot(
    Path("runs/growing"),
    RunState.RUNNING,
    STATUS,
    (ProcessState("scheduler", "ready", 61.0, 0, 100), ProcessState("rollout-0", "ready", 58.0, 1, 101)),
    (GAMES,),
    {"gateway metrics": "http://127.0.0.1:9100/metrics"},
    elapsed_s=61.0,
    leases=(TicketLease(912, "rollout-0", 75.0, 2, "train"), TicketLease(940, "rollout-1", 12.0, 1, "final")),
)


class Snapshots:
    """Each snapshot once, the last one from then on."""

    def __init__(self, snapshots: Sequence[RunSnapshot]) -> None:
        self.left = list(snapshots)
        self.taken = 0
        self.closed = False
        # Stages that were to be pinned, or unpinned.
        self.asked: list[tuple[str, bool]] = []

    async def snapshot(self) -> RunSnapshot:
        self.taken += 1
        return self.left.pop(0) if len(self.left) > 1 else self.left[0]

    async def pin(self, stage: str, *, pin: bool, deadline_s: float) -> None:
        self.asked.append((stage, pin))

    async def close(self) -> None:
        self.closed = True
