"""Requests as bytes, prepared ahead: a thousand workers must use little processor time beside the scheduler.

A message's fields may be written one after another, so a request is what never changes, prepared once, and
behind it what changes.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence

from earl.v1 import common_pb2, scheduler_pb2

# (ticket, attempt, fence)
Ref = tuple[int, int, int]

PREPARED = 256
MOST_TURNS = 12
TURN_TOKENS = (20, 400)
GAUGES = (
    "unreported", "arena_used_fraction", "kv_tokens", "kv_used_tokens", "kv_committed_tokens",
    "memory_fraction", "generated_tokens_per_s", "prefilled_tokens_per_s", "episodes_per_s",
    "steps_per_s", "waited_fraction", "blocked_context_tokens",
)  # fmt: skip


def varint(number: int) -> bytes:
    """Base 128, least significant group first."""
    if number < 0x80:
        return bytes((number,))
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def ref(attempt_ref: Ref) -> bytes:
    """An AttemptRef."""
    ticket, attempt, fence = attempt_ref
    return b"\x08" + varint(ticket) + b"\x10" + varint(attempt) + b"\x18" + varint(fence)


def part(tag: bytes, data: bytes) -> bytes:
    """A field that is a message or bytes."""
    return tag + varint(len(data)) + data


class Results:
    """Finished attempts of one worker. Lengths, turns and rewards are drawn from PREPARED ones."""

    def __init__(self, seed: int) -> None:
        choices = random.Random(seed)
        self._tails = [_tail(choices) for _ in range(PREPARED)]

    def encode(self, worker: bytes, refs: Sequence[Ref], version: int) -> bytes:
        """A CompleteTicketsRequest. worker: see `worker`. version: that sampled every token."""
        sampled = b"\x40" + varint(version) + b"\x48" + varint(version)
        parts = [worker]
        for attempt_ref in refs:
            tail = self._tails[attempt_ref[0] % PREPARED]
            key = b"trajectory/%d/%d" % attempt_ref[:2]
            parts.append(part(b"\x12", part(b"\x0a", ref(attempt_ref)) + tail + sampled + part(b"\x52", key)))
        return b"".join(parts)


def _tail(choices: random.Random) -> bytes:
    turns = [choices.randint(*TURN_TOKENS) for _ in range(choices.randint(1, MOST_TURNS))]
    total, won = sum(turns), choices.random() < 0.5
    return scheduler_pb2.AttemptResult(
        ending=common_pb2.ENDING_OK,
        reward=1.0 if won else choices.random() - 1.0,
        prompt_tokens=turns[0] // 2,
        total_tokens=total,
        trained_tokens=total // 2,
        turns=len(turns),
        metrics={"win": float(won), "illegal": 0.0},
        turn_tokens=turns,
    ).SerializeToString()


def worker(name: str, incarnation: int, stage: int) -> bytes:
    """Field 1 of every request."""
    member = common_pb2.Worker(name=name, incarnation=incarnation, stage=stage, address="127.0.0.1:1")  # type: ignore[arg-type]
    return part(b"\x0a", member.SerializeToString())


def renewals(worker: bytes, refs: Iterable[Ref]) -> bytes:
    """A RenewLeasesRequest."""
    return worker + b"".join(part(b"\x12", ref(attempt_ref)) for attempt_ref in refs)


def lease(worker: bytes, credit: int, wait_s: float, newest_fence: int) -> bytes:
    """A LeaseTicketsRequest."""
    request = scheduler_pb2.LeaseTicketsRequest(credit=credit, wait_s=wait_s, newest_fence=newest_fence)
    return worker + request.SerializeToString()


def heartbeat(worker: bytes) -> bytes:
    """A HeartbeatRequest as rollout workers send them; `state` goes behind it."""
    request = scheduler_pb2.HeartbeatRequest(
        gauges={name: 0.5 for name in GAUGES if name != "blocked_context_tokens"},
        parallelism=common_pb2.Parallelism(dp=1, tp=1, cp=1, pp=1),
    )
    request.transfers.add(path="shm", size_bytes=1 << 30, seconds=1.0, transfers=1 << 10)
    return worker + request.SerializeToString()


def state(running: int, version: int) -> bytes:
    """Fields `running` and `version` of a HeartbeatRequest."""
    return b"\x10" + varint(running) + b"\x18" + varint(version)
