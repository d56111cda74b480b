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


def gauge(name: str, help: str, *labels: str) -> Metric:
    return Metric(name, "gauge", help, labels)


def counter(name: str, help: str, *labels: str) -> Metric:
    return Metric(name, "counter", help, labels)


def histogram(name: str, help: str, *labels: str) -> Metric:
    return Metric(name, "histogram", help, labels)


_RPC = [
    counter(
        "earl_rpc_requests_total",
        "Calls that ended, by method and gRPC code; streams count at their end.",
        "method",
        "code",
    ),
    histogram(
        "earl_rpc_request_seconds",
        "Duration of unary calls; those that wait for work (LeaseTickets, NextBatch) contain the wait.",
        "method",
    ),
    gauge("earl_rpc_requests_in_flight", "Calls and streams in progress."),
    gauge("earl_build_info", "Always 1; what runs here.", "version"),
]

_SCHEDULER = [
    gauge("earl_scheduler_phase", "1 for the phase that the run is in.", "phase"),
    gauge("earl_scheduler_done", "1 once the run has ended."),
    gauge("earl_scheduler_step", "Steps of the phase that are done."),
    gauge("earl_scheduler_policy_version", "Version that is being trained."),
    gauge("earl_scheduler_published_version", "Newest version that engines can load."),
    gauge(
        "earl_scheduler_since_commit_seconds",
        "Since the last committed batch, or since this scheduler began.",
    ),
    counter("earl_scheduler_issued_tickets_total", "Tickets issued."),
    gauge(
        "earl_scheduler_tickets",
        "Tickets by state; trained ones that a roll-back gives up become dropped.",
        "state",
    ),
    gauge("earl_scheduler_dropped_tickets", "Dropped tickets by reason.", "reason"),
    counter("earl_scheduler_episodes_total", "Attempts that ended, by how.", "ending"),
    counter("earl_scheduler_out_of_memory_episodes_total", "Attempts lost to an engine's memory."),
    gauge("earl_scheduler_failing_tickets", "Tickets in a row that failed."),
    gauge(
        "earl_scheduler_trajectories", "Trajectories by what a consumer has done with them.", "role", "state"
    ),
    gauge(
        "earl_scheduler_batch_staleness_versions",
        "Versions behind, of the last committed batch.",
        "statistic",
    ),
    gauge("earl_scheduler_batch_reward", "Mean reward of the last committed batch."),
    gauge("earl_scheduler_batch_win_ratio", "Wins in the last committed batch."),
    gauge("earl_scheduler_batch_tokens", "Tokens of the last committed batch."),
    gauge("earl_scheduler_batch_loss", "Loss of the last committed batch."),
    gauge("earl_scheduler_tokens_per_second", "Tokens trained on a second, at the last committed batch."),
    gauge("earl_scheduler_recorded_episodes", "Recorded episodes that the run's warm-up may imitate."),
    gauge("earl_scheduler_teacher_weight_ratio", "Weight of the teacher in the last committed batch."),
    gauge("earl_scheduler_episode_tokens", "Lengths of recent episodes.", "statistic"),
    gauge("earl_scheduler_evaluation_version", "Version that was evaluated last."),
    gauge("earl_scheduler_evaluation_reward", "Mean reward of the last evaluation."),
    gauge("earl_scheduler_evaluation_win_ratio", "Wins in the last evaluation."),
    gauge("earl_scheduler_workers", "Workers that take part.", "stage"),
    gauge("earl_scheduler_worker_silent_seconds", "Since a worker's last heartbeat.", "worker", "stage"),
    gauge(
        "earl_scheduler_parallelism",
        "The parallelism of a stage, by degree; absent while its workers differ.",
        "stage",
        "degree",
    ),
    counter("earl_scheduler_switches_total", "Switches that ended.", "stage", "outcome"),
    histogram(
        "earl_scheduler_switch_stall_seconds",
        "Longest time of a switch in which a worker made nothing.",
        "stage",
    ),
    gauge("earl_scheduler_switch_running", "1 while a stage changes its parallelism.", "stage"),
]

_GATEWAY = [
    gauge("earl_gateway_hosts", "Environment hosts that are attached."),
    gauge("earl_gateway_capacity_sessions", "Sessions that hosts can hold.", "environment"),
    gauge("earl_gateway_open_sessions", "Sessions on hosts.", "environment"),
    gauge("earl_gateway_queued_sessions", "Sessions that wait for a host.", "environment"),
    gauge("earl_gateway_quarantined_hosts", "Hosts kept from an environment.", "environment"),
    counter("earl_gateway_sessions_total", "Sessions opened."),
    counter("earl_gateway_results_total", "Results that were passed on."),
    counter("earl_gateway_failed_sessions_total", "Sessions that failed, by error.", "reason"),
    counter("earl_gateway_refused_messages_total", "Messages that broke a rule.", "reason"),
    counter("earl_gateway_hosts_lost_total", "Hosts that left or were lost."),
    counter("earl_gateway_host_reconnects_total", "Streams of hosts that came back."),
    counter("earl_gateway_moved_sessions_total", "Sessions that were moved to another host."),
    counter("earl_gateway_quarantines_total", "Quarantines that began."),
    histogram("earl_gateway_queue_wait_seconds", "Wait of sessions that found a host."),
    histogram("earl_gateway_reset_seconds", "A reset on its host.", "environment"),
    histogram("earl_gateway_step_seconds", "A step on its host.", "environment"),
]

_ROLLOUT = [
    counter("earl_rollout_generated_tokens_total", "Tokens sampled.", "engine"),
    counter("earl_rollout_prefilled_tokens_total", "Tokens read as context.", "engine"),
    counter("earl_rollout_engine_step_seconds_total", "Time in an engine's steps.", "engine"),
    gauge("earl_rollout_engine_sequences", "Sequences in an engine, by state.", "engine", "state"),
    counter("earl_rollout_preemptions_total", "Sequences put back for want of KV.", "engine"),
    gauge("earl_rollout_kv_tokens", "KV by use: capacity, used, committed.", "engine", "use"),
    gauge("earl_rollout_engine_version", "Policy version in an engine.", "engine"),
    gauge("earl_rollout_engines", "Engines that can generate."),
    gauge("earl_rollout_asleep", "1 while the engines sleep, for the trainer works on their devices."),
    counter("earl_rollout_asleep_seconds_total", "Time in which engines slept, until they last woke."),
    counter("earl_rollout_waking_seconds_total", "Time until woken engines had weights."),
    counter("earl_rollout_drafted_tokens_total", "Tokens that engines drafted."),
    counter("earl_rollout_accepted_tokens_total", "Drafted tokens that sampling gave."),
    counter("earl_rollout_source_drafted_tokens_total", "Drafted tokens by their source.", "source"),
    counter("earl_rollout_source_accepted_tokens_total", "Those that sampling gave.", "source"),
    counter("earl_rollout_drafting_steps_total", "Steps of engines that draft, one a sequence."),
    counter("earl_rollout_drafting_tokens_total", "Tokens that those steps sampled."),
    counter("earl_rollout_paced_steps_total", "Steps of engines on paced devices."),
    counter("earl_rollout_late_steps_total", "Those of them that took longer than their pace."),
    counter("earl_rollout_episodes_total", "Episodes that ended here, by how.", "ending"),
    gauge("earl_rollout_leased_episodes", "Attempts held, by state.", "state"),
    gauge("earl_rollout_capacity_episodes", "Attempts that may be held."),
    counter("earl_rollout_env_steps_total", "Steps that environments answered."),
    counter("earl_rollout_env_wait_seconds_total", "Time that episodes waited for those steps."),
    gauge("earl_rollout_arena_used_ratio", "Used share of the arena of trajectories."),
    gauge("earl_rollout_arena_blocked", "1 while finished episodes wait for space in the arena."),
    gauge("earl_rollout_memory_used_ratio", "Used share of the fullest device's memory."),
    gauge("earl_rollout_blocked_sequences", "Sequences that no engine can hold in its parallelism."),
    gauge("earl_rollout_blocked_context_tokens", "The longest of those."),
    counter("earl_rollout_contexts_refused_total", "Turns that no parallelism could hold."),
    counter("earl_rollout_moved_sequences_total", "Sequences moved from one engine to another."),
    counter("earl_rollout_copied_versions_total", "Versions read into the copy, by form.", "form"),
    counter("earl_rollout_copied_bytes_total", "Bytes read for those, by form.", "form"),
    counter("earl_rollout_refused_changes_total", "Versions read whole as their changes were unusable."),
]


def _stage(service: str, what: str) -> list[Metric]:
    """The metrics that trainer and frozen models' stages all have."""
    return [
        gauge(f"earl_{service}_policy_version", "Version of the parameters."),
        counter(f"earl_{service}_phase_seconds_total", f"Time of {what}, by phase.", "phase"),
        gauge(f"earl_{service}_doing", "1 for what rank 0 does now.", "phase"),
        gauge(f"earl_{service}_memory_used_ratio", "Used share of the fullest device's memory."),
    ]


def _transfers(service: str) -> list[Metric]:
    """Metrics of a service's reads through the data plane; seconds are of all reads together."""
    return [
        counter(f"earl_{service}_transfer_bytes_total", "Bytes read, by path.", "path"),
        counter(f"earl_{service}_transfer_seconds_total", "Time of reads, by path.", "path"),
        counter(f"earl_{service}_transfers_total", "Reads, by path.", "path"),
        counter(f"earl_{service}_transfer_retries_total", "Requests sent again, by path.", "path"),
    ]


_STAGES = [
    *_stage("trainer", "rank 0 of the trainer"),
    gauge("earl_trainer_batch_id", "Batch that was trained last."),
    counter("earl_trainer_paced_passes_total", "Passes on paced devices."),
    counter("earl_trainer_late_passes_total", "Those of them that took longer than their pace."),
    *_transfers("trainer"),
    *_stage("reference", "rank 0 of the reference stage"),
    gauge("earl_reference_waiting_tokens", "Tokens of trajectories that wait for their log-probs."),
    gauge("earl_reference_arena_used_ratio", "Used share of the arena of log-probs."),
    *_transfers("reference"),
    *_stage("teacher", "rank 0 of the teacher"),
    gauge("earl_teacher_waiting_tokens", "Tokens of trajectories that wait for their log-probs."),
    gauge("earl_teacher_arena_used_ratio", "Used share of the arena of log-probs."),
    *_transfers("teacher"),
    *_stage("reward_model", "rank 0 of the reward model"),
    gauge("earl_reward_model_waiting_tokens", "Tokens of trajectories that wait for their score."),
    *_transfers("reward_model"),
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
