"""One rank's loop, the same on every rank; rank 0 decides, its commands are broadcast.

    command ─► plan: read own slices ─► all ranks have theirs? ─► train ─► commit ─► publish ─► checkpoint?
       ▲         └── no: abandon the plan, ask again                                             │
       └─ is the checkpoint in flight written? then rank 0 records it ◄──────────────────────────┘
    switch: the same ranks in another parallelism (reshard/), planned (stage/planned_layouts.py) or requested
    reform: a checkpoint, then other processes are the ranks (stage/reform.py)
    where rollout and trainer take turns: state to the device ─► train … publish ─► state out of it ─► ask
    stop (SIGTERM): checkpoint, leave · over (the run is done): checkpoint, model-final, leave
    Where the process ends or somebody asked for it, a checkpoint is waited for.

Promise: a manifest holds exactly the tickets of the batches that its parameters were trained on.
Whatever happens between an optimizer step, its commit and the next manifest's rename, the newest
manifest stays the truth: the ledger is reconciled to it when the trainer starts. Told to stop, the trainer
saves what it trained even if all others are gone: an error that comes from their end is ignored, also if the
stop follows it within seconds.
"""

from __future__ import annotations

import logging
import time
from contextlib import AbstractContextManager, nullcontext

from earl.errors import DataPlaneError, EarlError, OutOfMemory, ReplayLost, TrainerError
from earl.obs import tracing
from earl.ticket_ranges import RangeSet
from services.trainer.api.codec import decode_plan
from services.trainer.checkpoint.final_model import write_final_model
from services.trainer.checkpoint.frozen_weights import FrozenWeights
from services.trainer.checkpoint.manifest import TrainingProgress
from services.trainer.checkpoint.run_checkpoints import RunCheckpoints
from services.trainer.publish.weight_slots import WeightSlots
from services.trainer.rank0 import TrainerRank0
from services.trainer.ranks.activity import (
    ASLEEP,
    OFFLOADING,
    PUBLISHING,
    READING,
    RESTORING,
    SAVING,
    TRAINING,
    WAITING,
    gather_report,
)
from services.trainer.ranks.rank_mesh import RankMesh
from services.trainer.reshard.trainer_state import TrainerChange, canary_logprobs
from services.trainer.retry_budget import RetryBudget
from services.trainer.stage.commands import RankCommand, run_commands
from services.trainer.stage.rank_resources import RankResources
from services.trainer.stage.reform import Reform, begin_reform
from services.trainer.stage.stage_rank0 import carry_out_switch
from services.trainer.step.batch import Columns
from services.trainer.step.digest import batch_digests, weights_digest
from services.trainer.step.plan import TrainingPlan
from services.trainer.step.reader import read_columns
from services.trainer.step.replay_files import ReplayFiles, agree_on_read
from services.trainer.step.state_offload import StateOffload
from services.trainer.step.step import Stepper

log = logging.getLogger(__name__)

# The longest between two plans that could not be trained.
PAUSE_S = 2.0
READ_SLACK_S = 10.0


class TrainerRank:
    """One rank of the trainer; the caller (service.py) opens and closes all parts. rank0: on rank 0 only.
    frozen: None unless the run trains against frozen versions."""

    def __init__(
        self,
        resources: RankResources,
        stepper: Stepper,
        slots: WeightSlots,
        rank0: TrainerRank0 | None,
        frozen: FrozenWeights | None = None,
    ) -> None:
        config, run_dir = resources.config, resources.run_dir
        self._config, self._run_dir = config, run_dir
        self._group, self._io, self._dispatcher = resources.group, resources.io, resources.dispatcher
        self._activity, self._requests = resources.activity, resources.requests
        self._stepper = stepper
        self._slots = slots
        self._frozen = frozen
        self._rank0 = rank0
        self._tickets = tracing.TracedTickets(config.name, config.seed, config.obs.traced_fraction)
        self._columns = Columns(turn_rewards=self._config.trainer.turn_rewards)
        self._replays = ReplayFiles(run_dir / "replay", on=config.replay.reuse > 0)
        self._offload = StateOffload.of(stepper)
        self._budget = RetryBudget()
        self._checkpoints = RunCheckpoints(config, run_dir, self._group, self._activity, rank0)
        self.reform: Reform | None = None
        # Version 1 is the model that the run starts from.
        self.progress = TrainingProgress(1, 1, RangeSet(), 0)

    def load(self) -> None:
        """Fills the parameters, from the newest checkpoint if there is one.

        Raises ModelNotFound, CheckpointError.
        """
        self.progress = self._checkpoints.load(self._stepper) or self.progress

    def start(self) -> None:
        """Reconciles the ledger with what was loaded, and publishes it. Raises what the scheduler refuses."""
        self._activity.version = self.progress.version
        self._activity.batch_id = self.progress.next_batch_id - 1
        if self._rank0 is not None:
            self._rank0.reconcile(self.progress)
        with self._activity.phase(PUBLISHING):
            self._publish_version()
            self._slots.settle()
        self._leave_device()

    def run(self) -> None:
        """Works until the run has ended, a stop was requested, or other ranks take over: `reform` has how.

        Raises the first failure.
        """
        handlers = {
            RankCommand.TRAIN: lambda body: self._batch(decode_plan(body, self._mesh.data_ranks)),
            RankCommand.SWITCH: self._switch,
            RankCommand.REFORM: self._reform,
            RankCommand.SAVE: lambda _: self._save(),
            RankCommand.LEAVE: lambda _: self._save(),
            RankCommand.FINISH: lambda _: self._finish(),
        }
        run_commands(self._group, self._next_command, handlers)

    def _next_command(self) -> bytes:
        self._checkpoints.poll()
        if self._rank0 is None:
            return b""
        try:
            # A version that nobody can read would be waited for in vain.
            self._slots.check()
        except EarlError as error:
            self._requests.ignore_if_stopping(error)
        command = self._rank0.next_command(self.progress.version)
        self._checkpoints.mark_best()
        return command

    @property
    def _mesh(self) -> RankMesh:
        return self._stepper.mesh

    # --- one batch ----------------------------------------------------------------------------

    def _batch(self, plan: TrainingPlan) -> None:
        if plan.version != self.progress.version:
            raise TrainerError(
                f"batch {plan.batch_id} trains version {plan.version}, not {self.progress.version}",
                "restart the trainer: the ledger is reconciled to its checkpoint",
            )
        began_ns = time.time_ns()
        with self._activity.phase(READING):
            complete = self._read(plan)
        read_ns = time.time_ns()
        if not complete:
            self._abandon(plan)
            return
        self._take_device()
        try:
            self._slots.retire_early()
        except EarlError as error:
            self._requests.ignore_if_stopping(error)
        updates = self._stepper.optimizer.updates
        try:
            with self._activity.phase(TRAINING):
                metrics = self._stepper.train(plan, self._columns, self._activity.progressed)
        except OutOfMemory as error:
            # With several ranks the others are in the middle of the step; and half a batch is no version.
            if self._group.size > 1 or self._stepper.optimizer.updates != updates:
                raise
            log.warning("batch %d cannot be trained: %s", plan.batch_id, error)
            self._abandon(plan)
            self._leave_device()
            return
        self._budget.trained()
        self._trace(plan, (began_ns, read_ns, time.time_ns()))
        if self._config.exact:
            metrics |= batch_digests(self._columns, self._mesh)
            metrics["weights_digest"] = weights_digest(self._stepper.policy.shards, self._group)
        self._replays.keep(plan, self._columns, writes=self._mesh.counts)
        consumed = self.progress.consumed | RangeSet.of(plan.ticket_ids)
        updates = self._stepper.optimizer.updates
        self.progress = TrainingProgress(plan.version + 1, plan.batch_id + 1, consumed, updates)
        self._activity.version, self._activity.batch_id = self.progress.version, plan.batch_id
        self._report(plan, metrics)
        self._replays.forget(plan, deletes=self._group.leads)
        if plan.publish:
            self._publish()
        if plan.checkpoint or self._checkpoints.is_due(self.progress.version):
            self._checkpoints.begin(self._stepper, self.progress, self._readable())
        self._leave_device()

    # --- the device, where rollout and trainer take turns -------------------------------------

    def _take_device(self) -> None:
        """Brings the state back to the device, if it is not there."""
        if self._offload is not None and self._offload.offloaded:
            self._activity.idle = WAITING
            with self._activity.phase(RESTORING):
                self._offload.restore()

    def _leave_device(self) -> None:
        """Moves the state out of the device. A collective: rank 0 asks for a batch once all ranks have.

        The version is announced and the checkpoint written before: engines that wake load the newest, and
        no copy of the state lies beside them.
        """
        if self._offload is None:
            return
        self._checkpoints.settle()
        try:
            self._slots.settle()
        except EarlError as error:
            self._requests.ignore_if_stopping(error)
        self._activity.idle = ASLEEP
        with self._activity.phase(OFFLOADING):
            self._offload.offload()
            self._group.barrier()

    def _readable(self) -> AbstractContextManager[None]:
        """The state can be read within the block, wherever it lies."""
        return nullcontext() if self._offload is None else self._offload.readable()

    def _publish(self) -> None:
        if self._frozen is not None:
            # It looks for versions among the checkpoints, and keeps those that the checkpoints need.
            self._checkpoints.settle()
        try:
            with self._activity.phase(PUBLISHING):
                self._publish_version()
        except EarlError as error:
            self._requests.ignore_if_stopping(error)

    def _publish_version(self) -> None:
        if self._frozen is not None:
            self._frozen.publish(self.progress.version, self._stepper.policy)
        self._slots.publish(self.progress.version)

    def _trace(self, plan: TrainingPlan, times_ns: tuple[int, int, int]) -> None:
        """Records the spans of the batch's tickets; on rank 0, for all ranks work together."""
        if self._rank0 is None or not tracing.active():
            return
        began_ns, read_ns, trained_ns = times_ns
        for ticket_id in plan.ticket_ids:
            if parent := self._tickets.parent(ticket_id):
                attributes = {"batch": plan.batch_id, "version": plan.version}
                tracing.record("trainer read", parent, began_ns, read_ns, attributes)
                tracing.record("trainer train", parent, read_ns, trained_ns, attributes)

    def _read(self, plan: TrainingPlan) -> bool:
        """Returns whether every rank has its replica's sequences, all fit to be trained on.

        Columns that are not are as good as lost: a plan abandoned often enough has its tickets retried.
        """
        deadline_s = self._config.data_plane.read_s
        readable, lost = True, ()
        try:
            items = plan.ranks[self._mesh.replica]
            work = read_columns(self._dispatcher, self._columns, items, deadline_s, self._replays)
            self._io.run(work, deadline_s + READ_SLACK_S, self._requests.stop)
            self._columns.validate(self._stepper.policy.spec.vocab)
        except EarlError as error:
            readable, lost = False, error.tickets if isinstance(error, ReplayLost) else ()
            if not isinstance(error, (DataPlaneError, TrainerError)):
                self._requests.ignore_if_stopping(error)
            log.warning("batch %d cannot be trained: %s", plan.batch_id, error)
        complete, lost = agree_on_read(self._group, readable, lost)
        if self._rank0 is not None:
            self._rank0.lost_replays = lost
        return complete

    def _abandon(self, plan: TrainingPlan) -> None:
        budget, now_s = self._budget, time.monotonic()
        budget.failed(now_s)
        # Rank 0 knows the scheduler's answer, and all ranks give up at once.
        gives_up = True
        if self._rank0 is not None:
            gives_up = budget.has_ended(now_s, self._rank0.stage.scheduler.lost_after_s)
        if self._group.agree(gives_up):
            raise TrainerError(
                f"{budget.plans} plans in a row could not be trained, the last one batch {plan.batch_id}",
                "are the rollout workers alive? the log names what was missing or wrong",
            )
        if self._rank0 is not None:
            # The scheduler needs a moment to learn which worker is gone.
            self._requests.stop.wait(min(PAUSE_S, 0.1 * 2 ** min(budget.plans, 10)))

    def _report(self, plan: TrainingPlan, metrics: dict[str, float]) -> None:
        """Tells the scheduler that the batch is trained, with figures of all ranks."""
        trained = int(self._columns.trained_tokens().sum())
        tokens = int(self._columns.offsets[-1])
        # Ranks of one replica have the same sequences.
        counted = self._mesh.counts
        counts = [int(count) * counted for count in (tokens, trained, len(self._columns.items))]
        report = gather_report(self._group, self._dispatcher.totals.values(), counts)
        all_tokens, all_trained, sequences = map(float, report.counts)
        seconds = self._activity.seconds
        metrics |= {
            "tokens": all_tokens,
            "trained_tokens": all_trained,
            "sequences": sequences,
            "read_s": seconds[READING],
            "train_s": seconds[TRAINING],
            # Seconds of the version before: this one is published after it is committed.
            "publish_s": seconds.get(PUBLISHING, 0.0),
            "train_tokens_per_s": all_tokens / max(seconds[TRAINING], 1e-9),
            "memory_fraction": report.memory_fraction,
        }
        before = self._activity.gauges
        self._activity.gauges = {name: metrics[name] for name in ("train_s", "read_s", "memory_fraction")}
        if "paced_passes" in metrics:
            for gauge, name in (("paced_steps", "paced_passes"), ("late_steps", "late_passes")):
                self._activity.gauges[gauge] = before.get(gauge, 0.0) + metrics[name]
        self._activity.transfers, self._activity.devices = report.transfers, report.devices
        if self._rank0 is not None:
            self._rank0.commit(plan.batch_id, self.progress.version, metrics)

    def _switch(self, body: bytes) -> None:
        self._take_device()
        change = TrainerChange(self._stepper, self._slots)
        stage = self._rank0.stage if self._rank0 is not None else None
        carry_out_switch(body, change, self._activity, stage)
        self._stepper = change.stepper
        self._offload = StateOffload.of(self._stepper)
        self._leave_device()

    def _reform(self, body: bytes) -> bool:
        stage, stepper = self._rank0.stage if self._rank0 is not None else None, self._stepper
        former, canaries = self._mesh.parallelism, lambda: canary_logprobs(stepper)
        self.reform = begin_reform(body, self._group, former, self._save, canaries, stage)
        return self.reform is not None

    # --- what lasts ---------------------------------------------------------------------------

    def _save(self) -> None:
        """Returns once there is a checkpoint of this version."""
        self._checkpoints.begin(self._stepper, self.progress, self._readable())
        self._checkpoints.settle()
        version = self.progress.version
        self._requests.saved(str(self._checkpoints.path(version)), version)

    def _finish(self) -> None:
        self._take_device()
        self._save()
        with self._activity.phase(SAVING):
            write_final_model(self._run_dir, self._config, self._stepper.policy, self.progress.version)
