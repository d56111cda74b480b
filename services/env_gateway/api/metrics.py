"""The metrics of the gateway's GET /metrics: hosts, sessions, waits, what was refused."""

from __future__ import annotations

from collections.abc import Iterator

from earl.obs.catalogue import Sample
from services.env_gateway.gateway import Gateway

# What the gateway counts, and the metric that shows it.
TOTALS = {
    "sessions": "earl_gateway_sessions_total",
    "results": "earl_gateway_results_total",
    "hosts_lost": "earl_gateway_hosts_lost_total",
    "reconnects": "earl_gateway_host_reconnects_total",
    "moved": "earl_gateway_moved_sessions_total",
    "quarantines": "earl_gateway_quarantines_total",
}
FAILED = "failed: "


def figures(gateway: Gateway, now_s: float) -> Iterator[Sample]:
    """The gateway's samples; called on its own loop. now_s: the time by its clock."""
    counts, pool = gateway.counts, gateway.pool
    attached = sum(host.attached for host in pool.hosts.values())
    yield Sample("earl_gateway_hosts", float(attached))
    for name, listed in pool.listed(now_s).items():
        labels = {"environment": name}
        yield Sample("earl_gateway_capacity_sessions", float(listed.capacity), labels)
        yield Sample("earl_gateway_open_sessions", float(listed.open_sessions), labels)
        yield Sample("earl_gateway_queued_sessions", float(listed.queued), labels)
        yield Sample("earl_gateway_quarantined_hosts", float(listed.quarantined), labels)
    for kind, metric in TOTALS.items():
        yield Sample(metric, float(counts.totals[kind]))
    # From 0 on: an increase of what was never 0 is none.
    failed = {kind for kind in counts.totals if kind.startswith(FAILED)} | {f"{FAILED}EnvHostLost"}
    for kind in sorted(failed):
        reason = kind.removeprefix(FAILED)
        yield Sample("earl_gateway_failed_sessions_total", float(counts.totals[kind]), {"reason": reason})
    for reason, count in counts.refused.items():
        yield Sample("earl_gateway_refused_messages_total", float(count), {"reason": reason})
    yield Sample("earl_gateway_queue_wait_seconds", counts.queue_waits)
    for name, histogram in counts.resets.items():
        yield Sample("earl_gateway_reset_seconds", histogram, {"environment": name})
    for name, histogram in counts.steps.items():
        yield Sample("earl_gateway_step_seconds", histogram, {"environment": name})
