"""The samples of a rollout worker's GET /metrics: engines, episodes, arena, transfers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from earl.draft_figures import ACCEPTED, DRAFTED, SOURCES, STEPS, TOKENS, of_source
from earl.obs.catalogue import Sample, transferred
from services.rollout.pool.host_copy import CopyReads
from services.rollout.worker.agent import EpisodeAgent
from services.rollout.worker.gauges import Gauges
from services.rollout.worker.worker import RolloutWorker


def figures(worker: RolloutWorker, gauges: Gauges, agent: EpisodeAgent) -> Iterator[Sample]:
    """Yields the samples; called on the worker's event loop. Engines' figures are those of the last
    heartbeat."""
    for number, engine in enumerate(gauges.engines):
        labels = {"engine": str(number)}
        yield Sample("earl_rollout_generated_tokens_total", float(engine.generated_tokens), labels)
        yield Sample("earl_rollout_prefilled_tokens_total", float(engine.prefilled_tokens), labels)
        yield Sample("earl_rollout_engine_step_seconds_total", engine.step_s, labels)
        yield Sample("earl_rollout_preemptions_total", float(engine.preemptions), labels)
        yield Sample("earl_rollout_engine_version", float(engine.version), labels)
        states = {"running": engine.running, "waiting": engine.waiting, "retained": engine.retained}
        for state, count in states.items():
            yield Sample("earl_rollout_engine_sequences", float(count), {**labels, "state": state})
        uses = {
            "capacity": engine.kv_tokens,
            "used": engine.kv_used_tokens,
            "committed": engine.kv_committed_tokens,
        }
        for use, tokens in uses.items():
            yield Sample("earl_rollout_kv_tokens", float(tokens), {**labels, "use": use})
    for ending, count in gauges.endings.items():
        yield Sample("earl_rollout_episodes_total", float(count), {"ending": ending})
    yield Sample("earl_rollout_env_steps_total", float(agent.steps))
    yield Sample("earl_rollout_env_wait_seconds_total", agent.step_wait_s)
    yield Sample("earl_rollout_capacity_episodes", float(worker.leases.capacity))
    load = worker.load()
    yield Sample("earl_rollout_leased_episodes", float(load.running), {"state": "running"})
    yield Sample("earl_rollout_leased_episodes", float(load.unreported), {"state": "unreported"})
    yield Sample("earl_rollout_arena_used_ratio", load.arena_used_fraction)
    yield Sample("earl_rollout_arena_blocked", float(load.arena_blocked))
    for name, metric in {
        "engines_live": "earl_rollout_engines",
        "asleep": "earl_rollout_asleep",
        "asleep_s": "earl_rollout_asleep_seconds_total",
        "waking_s": "earl_rollout_waking_seconds_total",
        "paced_steps": "earl_rollout_paced_steps_total",
        "late_steps": "earl_rollout_late_steps_total",
        "memory_fraction": "earl_rollout_memory_used_ratio",
        "blocked_sequences": "earl_rollout_blocked_sequences",
        "blocked_context_tokens": "earl_rollout_blocked_context_tokens",
        "contexts_refused": "earl_rollout_contexts_refused_total",
        "moved_sequences": "earl_rollout_moved_sequences_total",
    }.items():
        if name in gauges.latest:
            yield Sample(metric, gauges.latest[name])
    yield from draft_samples(gauges.latest)
    yield from transferred("rollout", gauges.transfers())
    if gauges.copy_reads is not None:
        yield from copy_samples(gauges.copy_reads)


def copy_samples(reads: CopyReads) -> Iterator[Sample]:
    """Yields the counts of versions that were read into a worker's copy, whole and by what changed."""
    for form, count, size_bytes in (
        ("whole", reads.whole, reads.whole_bytes),
        ("changes", reads.changes, reads.changes_bytes),
    ):
        yield Sample("earl_rollout_copied_versions_total", float(count), {"form": form})
        yield Sample("earl_rollout_copied_bytes_total", float(size_bytes), {"form": form})
    yield Sample("earl_rollout_refused_changes_total", float(reads.refused))


def draft_samples(gauges: Mapping[str, float]) -> Iterator[Sample]:
    """Yields the counts of drafts, in all and by source, of a worker with these gauges; none if its engines
    do not draft."""
    for name in (DRAFTED, ACCEPTED, STEPS, TOKENS):
        if name in gauges:
            yield Sample(f"earl_rollout_{name}_total", gauges[name])
    for figure in (DRAFTED, ACCEPTED):
        for source in SOURCES:
            if (name := of_source(source, figure)) in gauges:
                yield Sample(f"earl_rollout_source_{figure}_total", gauges[name], {"source": source})
