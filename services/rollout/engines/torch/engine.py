"""The torch engine's rank 0: steps of what the scheduler runs, and what each of them samples.

    submit ─► scheduler ─schedule─► Batch ─► runner (all ranks) ─► logits ─► sample ─► scheduler.advance
                  ▲                                                                       │ finished
                  └──────────────── next step ◄───────────────────────────────────────────┴──► replies

Continuous batching: every step takes what runs now, decoding and prefilling together. Weights and
pauses take effect between steps. Synchronous and single-threaded; leader.py feeds it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable

import numpy as np
import torch

from earl.errors import (
    ContextTooLong,
    EarlError,
    EngineError,
    OutOfMemory,
    ReshapeRefused,
    ran_out_of_memory,
)
from earl.obs.memory import rank_devices
from earl.worker_report import TransferTotals, totals_by_path
from services.rollout.engines.contract import admission, wire
from services.rollout.engines.contract.draft_counts import DraftCounts
from services.rollout.engines.contract.engine import (
    EngineCaps,
    EngineSpec,
    EngineStats,
    Finish,
    GenerateRequest,
    Generation,
    KvOffer,
)
from services.rollout.engines.contract.local_engine import LocalEngine
from services.rollout.engines.contract.sampling import sample, sample_by_row
from services.rollout.engines.contract.shard_report import ShardReport
from services.rollout.engines.contract.stats import BusyClock, PrefillRate, device_memory
from services.rollout.engines.contract.stop_texts import stop_texts_of
from services.rollout.engines.torch.batch import StepBatch
from services.rollout.engines.torch.kv_handover import KvInTransit, SlotHandover
from services.rollout.engines.torch.paced_steps import PacedSteps
from services.rollout.engines.torch.ranks import (
    ApplyShard,
    EngineRank,
    Followers,
    ReleaseMemory,
    RunStep,
    TakeMemory,
)
from services.rollout.engines.torch.scheduler import SequenceScheduler
from services.rollout.engines.torch.waiting_request import WaitingRequest

log = logging.getLogger(__name__)

# Tokens of one step by device: on a CPU what its caches hold, on a GPU what fills it.
PREFILL_TOKENS = {"cpu": 1024, "cuda": 8192}


class TorchEngine(LocalEngine):
    """Rank 0 without its sockets. Replies gather in `outbox` until the leader's loop sends them."""

    def __init__(self, spec: EngineSpec, rank: EngineRank, followers: Followers) -> None:
        super().__init__(spec, rank.runner.spec.vocab)
        self._rank, self._runner, self._followers = rank, rank.runner, followers
        runner, cache = self._runner, self._runner.cache
        self._scheduler = SequenceScheduler(
            runner.slots,
            spec.max_context_tokens,
            spec.stop_ids,
            kv_tokens=spec.kv_tokens,
            rows=cache.rows,
            page=cache.page_tokens,
            drafts=spec.drafts,
            stop_texts=stop_texts_of(spec),
        )
        self._table, self._kv = self._scheduler.table, self._scheduler.kv
        self.handover = SlotHandover(spec.name, self._kv)
        self._streaming: set[str] = set()
        # Monotonic nanoseconds: of each request's first sampled token, of each slot's last one.
        self._began_ns: dict[str, int] = {}
        self._sampled_ns = np.zeros(runner.slots, dtype=np.int64)
        self._budget = spec.prefill_tokens or PREFILL_TOKENS[runner.device.type]
        self._draw = sample_by_row if spec.deterministic else sample
        # Followers' reports that came while weights were applied, by rank.
        self.reports: list[tuple[int, ShardReport]] = []
        self._steps = self._generated = self._prefilled = 0
        self._busy = BusyClock()
        self._prefill = PrefillRate()
        self._paced = PacedSteps(spec)
        # Totals of each rank's transfers, the newest that it reported.
        self.transfers: dict[int, list[TransferTotals]] = {}

    @property
    def caps(self) -> EngineCaps:
        return EngineCaps(
            # Rows that another tp computed are not bit for bit what this one computes.
            live_reshape=not self.spec.deterministic,
            device=str(self._runner.device),
        )

    @property
    def has_work(self) -> bool:
        """Returns whether a step could do something."""
        return not self._paused and self._scheduler.has_work

    # --- requests -----------------------------------------------------------------------------

    def _queue(self, request: GenerateRequest, stream: bool) -> None:
        admission.check_unused(request, request.request_id in self._table.slot_of)
        tokens, budget = len(request.ids) + request.max_new_tokens, self._kv.budget
        if not budget.fits(tokens):
            raise ContextTooLong(
                f"{len(request.ids)} tokens and {request.max_new_tokens} to generate exceed the "
                f"{budget.bound} tokens that the KV cache holds in all",
                "raise rollout.kv_tokens",
            )
        self._paced.check_length(tokens)
        if stream:
            self._streaming.add(request.request_id)
        self._scheduler.add(request)

    @property
    def _waiting(self) -> int:
        return len(self._scheduler.waiting)

    @property
    def _request_ids(self) -> Iterable[str]:
        return [*self._table.slot_of, *(entry.request.request_id for entry in self._scheduler.waiting)]

    def abort(self, request_id: str) -> None:
        slot = self._table.slot_of.get(request_id)
        if slot is not None:
            self._finish(slot, "abort")
        elif (waiting := self._scheduler.withdraw(request_id)) is not None:
            self._drop(waiting)

    def _drop(self, waiting: WaitingRequest) -> None:
        """Answers a request that will not be admitted again with what it has."""
        request_id, first = waiting.request.request_id, len(waiting.request.ids)
        if request_id in self._streaming:
            self._streaming.remove(request_id)
            first = len(waiting.ids)  # its tokens were sent
        sampled = first - len(waiting.request.ids)
        self.outbox.append(
            Generation(
                request_id,
                waiting.ids[first:].tolist(),
                waiting.logprobs[sampled:].tolist(),
                waiting.versions[sampled:].tolist(),
                "abort",
                waiting.reused or 0,
                self._began_ns.pop(request_id, 0),
            )
        )

    def release(self, session: str) -> None:
        self._scheduler.release(session)

    # --- steps --------------------------------------------------------------------------------

    def step(self) -> bool:
        """Runs one batch; finished requests and streamed tokens go to the outbox. False if there was none to
        run: every request waits, for example for KV that arrives."""
        self._busy.start()
        planned = self._scheduler.schedule(self._budget, time.monotonic_ns())
        if planned is None:
            return False
        batch, complete = planned
        if self._followers.channels:
            self._followers.send(RunStep(batch.to_bytes()))
        reason = ""
        try:
            self._compute(batch, complete)
        except (RuntimeError, MemoryError) as error:
            # Other ranks are beyond this step or wait in it: this one cannot repeat it.
            if self._followers.channels or not ran_out_of_memory(error):
                raise
            reason = f"{type(error).__name__}: {error}".splitlines()[0]
        reason = reason or self._paced.shortage(batch)
        if reason:
            # The error is gone by now, and with it the tensors that its frames held.
            self._refuse_largest(batch, reason)
        self._paced.wait(batch, self._busy.running_s)
        took_ns, rows = self._busy.end(), int(batch.counts.sum())
        self._prefill.note(len(batch.slots), rows - int(batch.drafts.sum()), took_ns)
        if self._scheduler.drafter is not None:
            self._scheduler.drafter.policy.took(rows, took_ns / 1e9)
        return True

    def _compute(self, batch: StepBatch, complete: np.ndarray) -> None:
        logits = self._runner.forward(batch)
        assert logits is not None  # rank 0
        if complete.any():
            self._sample(batch, complete, logits)
        else:
            none = np.zeros(0, dtype=np.int64)
            self._scheduler.advance(batch, complete, none, none, self.version)
        self._prefilled += int((batch.counts - batch.drafts).sum())
        self._steps += 1

    def _refuse_largest(self, batch: StepBatch, reason: str) -> None:
        """Ends the request that the step spends most rows on, of equals the longest, for lack of memory; the
        others continue."""
        running = self._table.slot_of.values()
        order = batch.slots[np.lexsort((batch.starts, batch.counts))].tolist()
        # On paced devices the step was computed, and may have ended some.
        slot = next((slot for slot in reversed(order) if slot in running), None)
        if slot is None:
            return
        request_id, tokens = self._table.request_id(slot), int(self._table.length[slot])
        refusal = OutOfMemory(
            f"engine {self.spec.name} has no memory for a step of {int(batch.counts.sum())} tokens, most of "
            f"them of a sequence of {tokens}: {reason}",
            "lower rollout.kv_tokens, rollout.max_sequences or rollout.max_context_tokens",
        )
        log.warning("%s", refusal)
        self._scheduler.finish(slot)
        self._streaming.discard(request_id)
        self._began_ns.pop(request_id, None)
        self.outbox.append(wire.RequestRefused(request_id, wire.WireError.of(refusal)))
        if self._runner.device.type == "cuda":
            torch.cuda.empty_cache()

    def _sample(self, batch: StepBatch, complete: np.ndarray, logits: torch.Tensor) -> None:
        table = self._table
        of, behind = batch.sampled_rows()
        rows = complete[of]
        if not rows.all():
            logits, of, behind = logits[np.flatnonzero(rows)], of[rows], behind[rows]
        slots = batch.slots[of]
        positions, columns = table.length[slots] + behind, table.sampling.rows(slots)
        # Drafts stand behind their sequence in the table: each row sees those before it.
        contexts = table.contexts(slots, positions) if columns.penalises else ()
        try:
            ids, logprobs = self._draw(logits, columns, positions, contexts)
        except FloatingPointError as error:
            self._fail_all(EngineError(f"version {self.version}: {error}", "the weights are broken"))
            return
        sampled = batch.slots[complete]
        began = table.length[sampled] == table.prompt[sampled]
        sampled, added, stopped, full = self._scheduler.advance(batch, complete, ids, logprobs, self.version)
        self._sampled_ns[sampled] = now_ns = time.monotonic_ns()
        self._began_ns.update((table.request_id(slot), now_ns) for slot in sampled[began].tolist())
        self._generated += int(added.sum())
        # A sampled token is prefilled by the next step, if there is one: count it once.
        self._prefilled -= int((~began).sum())
        if self._streaming:
            self._stream(sampled, added, ~(stopped | full))
        for place in np.flatnonzero(stopped | full).tolist():
            self._finish(int(sampled[place]), "stop" if stopped[place] else "length", int(added[place]))

    def _stream(self, slots: np.ndarray, added: np.ndarray, more: np.ndarray) -> None:
        """Sends the tokens [N] that the sequences have more, of those that have not ended."""
        table = self._table
        for slot, tokens in zip(slots[more].tolist(), added[more].tolist(), strict=True):
            request_id = table.request_id(slot)
            if request_id in self._streaming:
                columns = table.sampled(slot, int(table.length[slot]) - tokens)
                self.outbox.append(Generation(request_id, *columns, "", int(table.reused[slot])))

    def _finish(self, slot: int, how: Finish, tokens: int = 0) -> None:
        """Answers and ends the slot's request. tokens: of the step that ended it."""
        table = self._table
        request_id = table.request_id(slot)
        first = int(table.prompt[slot])
        if request_id in self._streaming:
            self._streaming.remove(request_id)
            # Those of earlier steps were sent.
            first = int(table.length[slot]) - tokens
        columns = table.sampled(slot, first)
        began_ns = self._began_ns.pop(request_id, 0)
        ended_ns = int(self._sampled_ns[slot]) if began_ns else 0
        reused = int(table.reused[slot])
        self.outbox.append(Generation(request_id, *columns, how, reused, began_ns, ended_ns))
        recompute_ns = self._prefill.nanoseconds(int(table.cached[slot]))
        self._scheduler.finish(slot, time.monotonic_ns() + recompute_ns)

    def _fail_all(self, error: EarlError) -> None:
        refusal = wire.WireError.of(error)
        for request_id, slot in list(self._table.slot_of.items()):
            self._scheduler.finish(slot)
            self.outbox.append(wire.RequestRefused(request_id, refusal))
        waiting, self._scheduler.waiting = self._scheduler.waiting, []
        self.outbox.extend(wire.RequestRefused(entry.request.request_id, refusal) for entry in waiting)
        self._streaming.clear()
        self._began_ns.clear()
        self._kv.wipe()

    # --- weights ------------------------------------------------------------------------------

    def _take_staged(self, version: int) -> int:
        """The version's bytes on this rank."""
        return self._rank.stager.take(version).size_bytes

    def _apply(self, version: int, staged: int) -> int:
        """Applies a staged version on every rank."""
        self._followers.send(ApplyShard(version))
        try:
            self._rank.apply(version)
            self.reports.append((0, ShardReport(0, None, None, self._rank.data.transfers)))
        except RuntimeError as error:
            raise EngineError(str(error)) from error
        finally:
            self.reports += self._followers.await_applied()
        return staged

    def _outdate_kv(self) -> None:
        self._kv.outdate()

    def _drop_kv(self) -> None:
        self._kv.drop_all()

    # --- sleep --------------------------------------------------------------------------------

    def _check_sleep(self) -> None:
        if self._kv.held:
            raise ReshapeRefused(
                f"engine {self.spec.name} takes over KV of other engines", "wait until that has ended"
            )

    def _release_memory(self) -> None:
        self._kv.wipe()
        # What was to be given back is gone with all of the memory.
        self.take_moves()
        self._on_all_ranks(ReleaseMemory(), self._rank.release_memory)

    def _take_memory(self) -> None:
        self._on_all_ranks(TakeMemory(), self._runner.take_memory)

    def _on_all_ranks(self, order: ReleaseMemory | TakeMemory, work: Callable[[], None]) -> None:
        self._followers.send(order)
        try:
            work()
        finally:
            self.reports += self._followers.await_applied()

    # --- hand-over ----------------------------------------------------------------------------

    def begin_take(self, offer: KvOffer) -> KvInTransit:
        """SlotHandover.take. Raises WeightsIncomplete if no version is completely loaded."""
        admission.check_complete(self.spec, self._complete)
        return self.handover.take(offer, self.version)

    def take_moves(self) -> list[tuple[int, int, int, int]]:
        """The moves that every rank's cache must do before anything else is written there."""
        moves, self._kv.budget.moves = self._kv.budget.moves, []
        return moves

    # --- figures ------------------------------------------------------------------------------

    def stats(self) -> EngineStats:
        """Counters and gauges; busy periods are handed over once."""
        scheduler, table, budget = self._scheduler, self._table, self._kv.budget
        paced_steps, late_steps = self._paced.take()
        return EngineStats(
            version=self.version,
            tp=self.spec.tp,
            running=len(table.slot_of),
            waiting=len(scheduler.waiting),
            retained=self._kv.idle,
            kv_used_fraction=table.used_tokens() / max(1, budget.bound),
            steps=self._steps,
            generated_tokens=self._generated,
            prefilled_tokens=self._prefilled,
            reused_tokens=scheduler.reused_tokens,
            evicted_sessions=self._kv.evicted,
            step_s=self._busy.total_ns / 1e9,
            transfers=totals_by_path(transfer for rank in self.transfers.values() for transfer in rank),
            busy=self._busy.take(),
            preemptions=scheduler.preemptions,
            kv_tokens=budget.bound,
            kv_used_tokens=table.used_tokens(),
            kv_committed_tokens=int(budget.committed.sum()),
            kv_token_bytes=self._runner.cache.token_bytes,
            # All ranks hold as much as this one.
            memory=device_memory(self._runner.device.type, alike=self.spec.tp),
            devices=rank_devices(self._runner.device.type, self.spec.tp),
            asleep=self._asleep,
            paced_steps=paced_steps,
            late_steps=late_steps,
            session_tokens=table.session_tokens(),
            drafts=scheduler.drafter.take() if scheduler.drafter is not None else DraftCounts(),
        )
