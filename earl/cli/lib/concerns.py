"""Concerns about a running run: what its workers report, and environments that lack a host."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from earl.cli.lib.gateway_codec import GatewayEnvironment
from earl.stack.status import WorkerState
from earl.visible import visible

# An episode that has waited for less is no concern: hosts may only be starting. One of an environment that
# was never served fails after `gateway.lease_s`, 5 s by default.
WAIT_S = 3.0


def concerns(workers: Sequence[WorkerState], served: Sequence[str] | None = None) -> Iterator[str]:
    """Sentences, without an end mark, from the gauges of the last heartbeats.

    served: environments that hosts serve now; None if nobody has asked.
    """
    yield from host_waits(workers, served)
    yield from unknown_words(workers)


def host_waits(workers: Sequence[WorkerState], served: Sequence[str] | None) -> Iterator[str]:
    """Tells how long rollout has waited for a host of the run's environment. served: as of `concerns`."""
    waits_s = max((worker.gauges.get("waits_for_host_s", 0.0) for worker in workers), default=0.0)
    if waits_s:
        others = f"hosts serve {', '.join(served)}" if served else "no host is connected"
        yield (
            f"rollout has waited {waits_s:.0f} s for a host that serves the run's environment"
            f"{'' if served is None else f'; {others}'}"
        )


def unknown_words(workers: Sequence[WorkerState]) -> Iterator[str]:
    """Tells in one sentence which workers have read words that the tokenizer lacks."""
    counts = {
        worker.name: count for worker in workers if (count := int(worker.gauges.get("unknown_words", 0.0)))
    }
    if not counts:
        return
    name, *others = counts
    most = max(counts.values())
    read = f"{name} has read {most} word{'s' if most > 1 else ''}"
    if others:
        workers_text = f"{len(others)} other worker{'s' if len(others) > 1 else ''}"
        read = f"{name} and {workers_text} have read words (at most {most} each)"
    yield (
        f"{read} that model.scratch.words does not have, and the model cannot tell apart; "
        f"`earl logs {name}` names {'its own' if others else 'them'}"
    )


def waits(environment: GatewayEnvironment) -> Iterator[str]:
    """Tells of episodes that no host can take, once one has waited for WAIT_S."""
    count = environment.queued
    if not count or environment.available_hosts or environment.oldest_wait_s < WAIT_S:
        return
    episodes = f"{count:,} episode{'s wait' if count > 1 else ' waits'}"
    yield visible(f"{episodes} for a host of {environment.name}: {unavailable(environment)}")


def unavailable(environment: GatewayEnvironment) -> str:
    """Tells why none of an environment's hosts can take an episode."""
    hosts, quarantined = environment.hosts, environment.quarantined
    if not hosts:
        return "no host serves it"
    hosts_text, verb = ("its host", "is") if hosts == 1 else (f"its {hosts:,} hosts", "are")
    if quarantined >= hosts:
        return f"{hosts_text} {verb} in quarantine"
    others = "draining, reconnecting or without capacity"
    return f"{hosts_text} {verb} {f'in quarantine ({quarantined:,}), ' if quarantined else ''}{others}"


def quarantines(environment: GatewayEnvironment) -> Iterator[str]:
    """Describes which hosts of an environment get no session for a while, and why."""
    for quarantine in environment.quarantines:
        yield visible(f"{environment.name}: {quarantine}")
    # The gateway describes a bounded number of them.
    others = environment.quarantined - len(environment.quarantines)
    if others > 0:
        more = "more " if environment.quarantines else ""
        hosts_text = f"{others:,} {more}host{'s are' if others > 1 else ' is'} in quarantine"
        yield visible(f"{environment.name}: {hosts_text}")


def faults(environment: GatewayEnvironment) -> Iterator[str]:
    """Describes the faults of an environment: their count, the last one and the commonest."""
    if environment.faults:
        last, commonest = environment.last_fault, environment.commonest_fault
        count = f"{environment.faults:,} fault{'s' if environment.faults > 1 else ''}"
        often = f"; {environment.commonest_count:,} times: {commonest}" if commonest != last else ""
        yield visible(f"{environment.name}: {count}, the last: {last}{often}")
