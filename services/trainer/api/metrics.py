"""The metrics of GET /metrics of rank 0, of the trainer or of a frozen model's stage."""

from __future__ import annotations

from collections.abc import Iterator

from earl.obs.catalogue import Sample, transferred
from services.trainer.ranks.activity import Activity

# A stage's own gauges that are shown, by their names in its heartbeats.
GAUGES = {
    "memory_fraction": "memory_used_ratio",
    "waiting_tokens": "waiting_tokens",
    "arena_used_fraction": "arena_used_ratio",
    "paced_steps": "paced_passes_total",
    "late_steps": "late_passes_total",
}


def figures(activity: Activity, service: str) -> Iterator[Sample]:
    """Samples of a stage's activity. service: "trainer", "reference", "teacher" or "reward_model".

    The computing thread writes what is read here, always whole values.
    """
    yield Sample(f"earl_{service}_policy_version", float(activity.version))
    if service == "trainer":
        yield Sample("earl_trainer_batch_id", float(activity.batch_id))
    for phase, seconds in list(activity.total_seconds.items()):
        yield Sample(f"earl_{service}_phase_seconds_total", seconds, {"phase": phase})
    yield Sample(f"earl_{service}_doing", 1.0, {"phase": activity.doing})
    gauges = dict(activity.gauges)
    for name, metric in GAUGES.items():
        if name in gauges:
            yield Sample(f"earl_{service}_{metric}", gauges[name])
    yield from transferred(service, activity.transfers)
