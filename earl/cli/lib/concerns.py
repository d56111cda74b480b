"""Concerns that the workers of a running run report."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from earl.stack.status import WorkerState


def concerns(workers: Sequence[WorkerState], served: Sequence[str] | None = None) -> Iterator[str]:
    """Sentences, without an end mark, from the gauges of the last heartbeats.

    served: environments that hosts serve now; None if nobody has asked.
    """
    waits_s = max((worker.gauges.get("waits_for_host_s", 0.0) for worker in workers), default=0.0)
    if waits_s:
        others = f"hosts serve {', '.join(served)}" if served else "no host is connected"
        yield (
            f"rollout has waited {waits_s:.0f} s for a host that serves the run's environment"
            f"{'' if served is None else f'; {others}'}"
        )
    for worker in workers:
        count = int(worker.gauges.get("unknown_words", 0.0))
        if count:
            yield (
                f"{worker.name} has read {count} word{'s' if count > 1 else ''} that model.scratch.words "
                f"does not have, and the model cannot tell apart; `earl logs {worker.name}` names them"
            )
