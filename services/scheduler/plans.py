"""From a planned batch to what each trainer rank gets, and to what a committed one says of itself. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from services.scheduler.advantages import group_advantages
from services.scheduler.assign import balance
from services.scheduler.dock import NOWHERE, Location
from services.scheduler.records import Batch, Ending, Purpose, Result, Ticket

# Numbers of an environment's last result that are 0 or 1: their means are rates.
INDICATORS = frozenset({"win", "draw", "loss", "illegal"})


class Item(msgspec.Struct, frozen=True):
    """One sequence for one rank. position: in the batch, over all ranks together."""

    position: int
    ticket_id: int
    attempt: int
    group: int
    descriptor_key: str
    advantage: float
    reward: float
    total_tokens: int
    reference: Location = NOWHERE


@dataclass(frozen=True, slots=True)
class Plan:
    """A batch cut over ranks. Tokens of all ranks together."""

    batch: Batch
    ranks: tuple[tuple[Item, ...], ...]
    total_tokens: int
    trained_tokens: int


def cut(
    batch: Batch,
    tickets: Mapping[int, Ticket],
    ranks: int,
    advantage: str,
    references: Mapping[int, Location] | None = None,
) -> Plan:
    """The batch balanced over `ranks` by tokens; the same arguments give the same plan.

    advantage: "grpo" or "mean", within each group; sequences of a warm-up batch all weigh 1.
    references: where tickets' reference log-probs lie, if the run has a reference stage.
    """
    references = references or {}
    members = [tickets[number] for number in batch.tickets]
    results = [ticket.result or Result() for ticket in members]
    advantages = _advantages(batch, members, results, advantage)
    items = [
        Item(
            position=position,
            ticket_id=ticket.id,
            attempt=ticket.attempt,
            group=ticket.group,
            descriptor_key=result.descriptor_key,
            advantage=value,
            reward=result.reward,
            total_tokens=result.total_tokens,
            reference=references.get(ticket.id, NOWHERE),
        )
        for position, (ticket, result, value) in enumerate(zip(members, results, advantages, strict=True))
    ]
    assigned = balance([item.total_tokens for item in items], ranks)
    return Plan(
        batch=batch,
        ranks=tuple(tuple(items[index] for index in indices) for indices in assigned),
        total_tokens=sum(result.total_tokens for result in results),
        trained_tokens=sum(result.trained_tokens for result in results),
    )


def _advantages(batch: Batch, members: Sequence[Ticket], results: Sequence[Result], kind: str) -> list[float]:
    if batch.purpose is not Purpose.TRAIN:
        return [1.0] * len(members)
    groups: dict[int, list[int]] = {}
    for index, ticket in enumerate(members):
        groups.setdefault(ticket.group, []).append(index)
    advantages = [0.0] * len(members)
    for indices in groups.values():
        values = group_advantages([results[index].reward for index in indices], kind)
        for index, value in zip(indices, values, strict=True):
            advantages[index] = value
    return advantages


def summary(batch: Batch, tickets: Sequence[Ticket]) -> dict[str, float]:
    """What a committed batch's trajectories were like; names are those of metrics.jsonl."""
    results = [ticket.result for ticket in tickets if ticket.result is not None]
    if not results:
        return {}
    count = len(results)
    staleness = [batch.version - result.oldest_version for result in results if result.trained_tokens]
    if batch.purpose is not Purpose.TRAIN:
        staleness = []  # imitation has no policy to be stale
    numbers = {
        "sequences": float(count),
        "reward_mean": sum(result.reward for result in results) / count,
        "win_rate": sum(result.win for result in results) / count,
        "tokens": float(sum(result.total_tokens for result in results)),
        "trained_tokens": float(sum(result.trained_tokens for result in results)),
        "length_mean": sum(result.total_tokens for result in results) / count,
        "length_max": float(max(result.total_tokens for result in results)),
        "turns_mean": sum(result.turns for result in results) / count,
        "truncated_episodes": float(sum(result.ending is Ending.TRUNCATED for result in results)),
        "staleness_mean": sum(staleness) / len(staleness) if staleness else 0.0,
        "staleness_max": float(max(staleness, default=0)),
    }
    for name in sorted({name for result in results for name in result.metrics} - {"win"}):
        values = [result.metrics[name] for result in results if name in result.metrics]
        numbers[f"{name}_{'rate' if name in INDICATORS else 'mean'}"] = sum(values) / len(values)
    return numbers
