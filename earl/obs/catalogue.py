"""Every figure that EARL's services show to Prometheus: its name, kind, labels and meaning. Pure.

Names are earl_<service>_<what>_<unit>, in base units (seconds, bytes, tokens, a ratio between 0 and 1);
what only grows ends with _total. A service makes `Sample`s of what it measures anyway; one that is not
here, or has other labels, is refused (see exposition.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from earl.obs.histogram import Histogram
from earl.worker_report import TransferTotals

Kind = Literal["gauge", "counter", "histogram"]


@dataclass(frozen=True, slots=True)
class Metric:
    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Sample:
    """One value of a metric. Example: Sample("earl_gateway_hosts", 3.0)."""

    name: str
    value: float | Histogram
    labels: Mapping[str, str] = field(default_factory=dict)


# Called for every scrape, on the loop that owns what it reads.
Source = Callable[[], Iterable[Sample]]

_RPC = [
    Metric(
        "earl_rpc_requests_total",
        "counter",
        "Calls that ended, by method and gRPC code; streams count at their end.",
        ("method", "code"),
    ),
    Metric(
        "earl_rpc_request_seconds",
        "histogram",
        "Duration of unary calls; those that wait for work (LeaseTickets, NextBatch) contain the wait.",
        ("method",),
    ),
    Metric("earl_rpc_requests_in_flight", "gauge", "Calls and streams in progress."),
    Metric("earl_build_info", "gauge", "Always 1; what runs here.", ("version",)),
]

_SCHEDULER = [
    Metric("earl_scheduler_phase", "gauge", "1 for the phase that the run is in.", ("phase",)),
    Metric("earl_scheduler_done", "gauge", "1 once the run has ended."),
    Metric("earl_scheduler_step", "gauge", "Steps of the phase that are done."),
    Metric("earl_scheduler_policy_version", "gauge", "Version that is being trained."),
    Metric("earl_scheduler_published_version", "gauge", "Newest version that engines can load."),
    Metric(
        "earl_scheduler_since_commit_seconds",
        "gauge",
        "Since the last committed batch, or since this scheduler began.",
    ),
    Metric("earl_scheduler_issued_tickets_total", "counter", "Tickets issued."),
    Metric(
        "earl_scheduler_tickets",
        "gauge",
        "Tickets by state; trained ones that a roll-back gives up become dropped.",
        ("state",),
    ),
    Metric("earl_scheduler_dropped_tickets", "gauge", "Dropped tickets by reason.", ("reason",)),
    Metric("earl_scheduler_episodes_total", "counter", "Attempts that ended, by how.", ("ending",)),
    Metric("earl_scheduler_out_of_memory_episodes_total", "counter", "Attempts lost to an engine's memory."),
    Metric("earl_scheduler_failing_tickets", "gauge", "Tickets in a row that came to nothing."),
    Metric(
        "earl_scheduler_trajectories",
        "gauge",
        "Trajectories by what a consumer has done with them.",
        ("role", "state"),
    ),
    Metric(
        "earl_scheduler_batch_staleness_versions",
        "gauge",
        "Versions behind, of the last committed batch.",
        ("statistic",),
    ),
    Metric("earl_scheduler_batch_reward", "gauge", "Mean reward of the last committed batch."),
    Metric("earl_scheduler_batch_win_ratio", "gauge", "Wins in the last committed batch."),
    Metric("earl_scheduler_batch_tokens", "gauge", "Tokens of the last committed batch."),
    Metric("earl_scheduler_batch_loss", "gauge", "Loss of the last committed batch."),
    Metric(
        "earl_scheduler_tokens_per_second",
        "gauge",
        "Tokens trained on a second, at the last committed batch.",
    ),
    Metric("earl_scheduler_episode_tokens", "gauge", "Lengths of recent episodes.", ("statistic",)),
    Metric("earl_scheduler_evaluation_version", "gauge", "Version that was evaluated last."),
    Metric("earl_scheduler_evaluation_reward", "gauge", "Mean reward of the last evaluation."),
    Metric("earl_scheduler_evaluation_win_ratio", "gauge", "Wins in the last evaluation."),
    Metric("earl_scheduler_workers", "gauge", "Workers that take part.", ("stage",)),
    Metric(
        "earl_scheduler_worker_silent_seconds",
        "gauge",
        "Since a worker's last heartbeat.",
        ("worker", "stage"),
    ),
    Metric(
        "earl_scheduler_parallelism",
        "gauge",
        "The parallelism of a stage, by degree; absent while its workers differ.",
        ("stage", "degree"),
    ),
    Metric("earl_scheduler_switches_total", "counter", "Switches that ended.", ("stage", "outcome")),
    Metric(
        "earl_scheduler_switch_stall_seconds",
        "histogram",
        "Longest time of a switch in which a worker made nothing.",
        ("stage",),
    ),
    Metric("earl_scheduler_switch_running", "gauge", "1 while a stage changes its parallelism.", ("stage",)),
]

_GATEWAY = [
    Metric("earl_gateway_hosts", "gauge", "Environment hosts that are attached."),
    Metric("earl_gateway_capacity_sessions", "gauge", "Sessions that hosts can hold.", ("environment",)),
    Metric("earl_gateway_open_sessions", "gauge", "Sessions on hosts.", ("environment",)),
    Metric("earl_gateway_queued_sessions", "gauge", "Sessions that wait for a host.", ("environment",)),
    Metric("earl_gateway_quarantined_hosts", "gauge", "Hosts kept from an environment.", ("environment",)),
    Metric("earl_gateway_sessions_total", "counter", "Sessions opened."),
    Metric("earl_gateway_results_total", "counter", "Results that were passed on."),
    Metric("earl_gateway_failed_sessions_total", "counter", "Sessions that failed, by error.", ("reason",)),
    Metric("earl_gateway_refused_messages_total", "counter", "Messages that broke a rule.", ("reason",)),
    Metric("earl_gateway_hosts_lost_total", "counter", "Hosts that left or were lost."),
    Metric("earl_gateway_host_reconnects_total", "counter", "Streams of hosts that came back."),
    Metric("earl_gateway_moved_sessions_total", "counter", "Sessions that went on with another host."),
    Metric("earl_gateway_quarantines_total", "counter", "Quarantines that began."),
    Metric("earl_gateway_queue_wait_seconds", "histogram", "Wait of sessions that found a host."),
    Metric("earl_gateway_reset_seconds", "histogram", "A reset on its host.", ("environment",)),
    Metric("earl_gateway_step_seconds", "histogram", "A step on its host.", ("environment",)),
]

_ROLLOUT = [
    Metric("earl_rollout_generated_tokens_total", "counter", "Tokens sampled.", ("engine",)),
    Metric("earl_rollout_prefilled_tokens_total", "counter", "Tokens read as context.", ("engine",)),
    Metric("earl_rollout_engine_step_seconds_total", "counter", "Time in an engine's steps.", ("engine",)),
    Metric(
        "earl_rollout_engine_sequences", "gauge", "Sequences in an engine, by state.", ("engine", "state")
    ),
    Metric("earl_rollout_preemptions_total", "counter", "Sequences put back for want of KV.", ("engine",)),
    Metric("earl_rollout_kv_tokens", "gauge", "KV by use: capacity, used, committed.", ("engine", "use")),
    Metric("earl_rollout_engine_version", "gauge", "Policy version in an engine.", ("engine",)),
    Metric("earl_rollout_engines", "gauge", "Engines that are alive."),
    Metric("earl_rollout_episodes_total", "counter", "Episodes that ended here, by how.", ("ending",)),
    Metric("earl_rollout_leased_episodes", "gauge", "Attempts held, by state.", ("state",)),
    Metric("earl_rollout_capacity_episodes", "gauge", "Attempts that may be held."),
    Metric("earl_rollout_env_steps_total", "counter", "Steps that environments answered."),
    Metric("earl_rollout_env_wait_seconds_total", "counter", "Time that episodes waited for those steps."),
    Metric("earl_rollout_arena_used_ratio", "gauge", "Of the arena that trajectories lie in."),
    Metric("earl_rollout_arena_blocked", "gauge", "1 while finished episodes wait for room in the arena."),
    Metric("earl_rollout_memory_used_ratio", "gauge", "Of the fullest device's memory."),
    Metric(
        "earl_rollout_blocked_sequences", "gauge", "Sequences that no engine can hold in its parallelism."
    ),
    Metric("earl_rollout_blocked_context_tokens", "gauge", "The longest of those."),
    Metric("earl_rollout_contexts_refused_total", "counter", "Turns that no parallelism could hold."),
]


def _stage(service: str, what: str) -> list[Metric]:
    """The metrics that trainer and reference stage both have."""
    return [
        Metric(f"earl_{service}_policy_version", "gauge", "Version of the parameters."),
        Metric(f"earl_{service}_phase_seconds_total", "counter", f"Time of {what}, by phase.", ("phase",)),
        Metric(f"earl_{service}_doing", "gauge", "1 for what rank 0 does now.", ("phase",)),
        Metric(f"earl_{service}_memory_used_ratio", "gauge", "Of the fullest device's memory."),
    ]


def _transfers(service: str) -> list[Metric]:
    """What a service read through the data plane; seconds are of all reads together."""
    return [
        Metric(f"earl_{service}_transfer_bytes_total", "counter", "Bytes read, by path.", ("path",)),
        Metric(f"earl_{service}_transfer_seconds_total", "counter", "Time of reads, by path.", ("path",)),
        Metric(f"earl_{service}_transfers_total", "counter", "Reads, by path.", ("path",)),
        Metric(
            f"earl_{service}_transfer_retries_total", "counter", "Requests sent again, by path.", ("path",)
        ),
    ]


_STAGES = [
    *_stage("trainer", "rank 0 of the trainer"),
    Metric("earl_trainer_batch_id", "gauge", "Batch that was trained last."),
    *_transfers("trainer"),
    *_stage("reference", "rank 0 of the reference stage"),
    Metric("earl_reference_waiting_tokens", "gauge", "Of trajectories that wait for their log-probs."),
    Metric("earl_reference_arena_used_ratio", "gauge", "Of the arena that log-probs lie in."),
    *_transfers("reference"),
    *_transfers("rollout"),
]

METRICS = {metric.name: metric for metric in (*_RPC, *_SCHEDULER, *_GATEWAY, *_ROLLOUT, *_STAGES)}


def transferred(service: str, totals: Iterable[TransferTotals]) -> Iterable[Sample]:
    """Samples of what a service read over each path of the data plane."""
    for total in totals:
        labels = {"path": total.path}
        yield Sample(f"earl_{service}_transfer_bytes_total", total.size_bytes, labels)
        yield Sample(f"earl_{service}_transfer_seconds_total", total.seconds, labels)
        yield Sample(f"earl_{service}_transfers_total", total.transfers, labels)
        yield Sample(f"earl_{service}_transfer_retries_total", total.retries, labels)
