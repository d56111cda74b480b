"""The torch engine's rank 0: which request runs when, and what each step samples.

    waiting ─admit─► slots ─plan─► Batch ─► runner (all ranks) ─► logits ─► sample ─► slots.advance
                       ▲                                                               │ finished
                       └──────────────── next step ◄───────────────────────────────────┴──► replies

Continuous batching: every step takes what runs now, decoding and prefilling together. Weights and
pauses take effect between steps. Synchronous and single-threaded; process.py feeds it.
"""

from __future__ import annotations

import bisect
import time

import numpy as np
import torch

from earl.errors import ContextTooLong, EarlError, EngineError, WeightsIncomplete
from services.rollout.engines.contract import admission, wire
from services.rollout.engines.contract.engine import (
    EngineCaps,
    EngineSpec,
    EngineStats,
    GenerateRequest,
    KvOffer,
    LoadReport,
    Transfer,
)
from services.rollout.engines.contract.sampling import sample
from services.rollout.engines.contract.shard_report import ShardReport
from services.rollout.engines.contract.stats import Busy, PrefillRate, device_memory, totals
from services.rollout.engines.torch.batch import Batch
from services.rollout.engines.torch.kv_handover import Handover, Moving
from services.rollout.engines.torch.ranks import ApplyShard, Followers, Rank, Step
from services.rollout.engines.torch.slots import Slots
from services.rollout.engines.torch.waiting_request import Waiting

# Tokens of one step by device: on a CPU what its caches hold, on a GPU what fills it.
PREFILL_TOKENS = {"cpu": 1024, "cuda": 8192}


class TorchEngine:
    """Everything but the sockets. Replies gather in `outbox`."""

    def __init__(self, spec: EngineSpec, rank: Rank, followers: Followers) -> None:
        self.spec = spec
        self._rank, self._runner, self._followers = rank, rank.runner, followers
        runner, cache = self._runner, self._runner.cache
        self._slots = Slots(
            runner.slots,
            spec.max_context_tokens,
            kv_tokens=spec.kv_tokens,
            rows=cache.rows,
            page=cache.page_tokens,
        )
        self.handover = Handover(spec.name, self._slots)
        # The oldest session's first.
        self._waiting: list[Waiting] = []
        self._streaming: set[str] = set()
        # Monotonic nanoseconds: of each request's first sampled token, of each slot's last one.
        self._began_ns: dict[str, int] = {}
        self._sampled_ns = np.zeros(runner.slots, dtype=np.int64)
        self._budget = spec.prefill_tokens or PREFILL_TOKENS[runner.device.type]
        self.version = spec.initial_version
        self._complete = spec.load_initial
        self._paused = False
        self.outbox: list[wire.Reply] = []
        self._steps = self._generated = self._prefilled = self._reused = 0
        self._busy = Busy()
        self._prefill = PrefillRate()
        # Totals of each rank's transfers, the newest that it reported.
        self.transfers: dict[int, list[Transfer]] = {}

    @property
    def caps(self) -> EngineCaps:
        return EngineCaps(
            # Rows that another tp computed are not bit for bit what this one computes.
            live_reshape=not self.spec.deterministic,
            device=str(self._runner.device),
        )

    @property
    def has_work(self) -> bool:
        """A step would do something."""
        return not self._paused and (bool(self._slots.slot_of) or bool(self._waiting))

    # --- requests -----------------------------------------------------------------------------

    def submit(self, request: GenerateRequest, stream: bool) -> None:
        """Queue a request, or refuse it at once."""
        try:
            self._check(request)
        except EarlError as error:
            self.outbox.append(wire.Refused(request.request_id, wire.WireError.of(error)))
            return
        if stream:
            self._streaming.add(request.request_id)
        self._wait(Waiting.of(request, self._slots.ages.of(request.session)))

    def _wait(self, waiting: Waiting) -> None:
        bisect.insort(self._waiting, waiting, key=lambda one: one.order)

    def _check(self, request: GenerateRequest) -> None:
        admission.check_complete(self.spec, self._complete)
        admission.check_request(request, self.spec, self._runner.spec.vocab)
        admission.check_unused(request, request.request_id in self._slots.slot_of)
        admission.check_room(self.spec, len(self._waiting))
        tokens, memory = len(request.ids) + request.max_new_tokens, self._slots.memory
        if not memory.fits(tokens):
            raise ContextTooLong(
                f"{len(request.ids)} tokens and {request.max_new_tokens} to generate exceed the "
                f"{memory.bound} tokens that the KV cache holds in all",
                "raise rollout.kv_tokens",
            )

    def abort(self, request_id: str) -> None:
        """End a request with what it has; nothing if it is not here."""
        slot = self._slots.slot_of.get(request_id)
        if slot is not None:
            self._finish(slot, "abort")
            return
        for waiting in self._waiting:
            if waiting.request.request_id == request_id:
                self._waiting.remove(waiting)
                self._drop(waiting)
                return

    def _drop(self, waiting: Waiting) -> None:
        """Answer a request that will not be admitted again with what it has."""
        request_id, first = waiting.request.request_id, len(waiting.request.ids)
        if request_id in self._streaming:
            self._streaming.remove(request_id)
            first = len(waiting.ids)  # its tokens were sent
        sampled = first - len(waiting.request.ids)
        self.outbox.append(
            wire.Tokens(
                request_id,
                waiting.ids[first:].tolist(),
                waiting.logprobs[sampled:].tolist(),
                waiting.versions[sampled:].tolist(),
                "abort",
                waiting.reused or 0,
                self._began_ns.pop(request_id, 0),
            )
        )

    def abort_all(self) -> None:
        """`abort` for every request."""
        for request_id in [*self._slots.slot_of, *(one.request.request_id for one in self._waiting)]:
            self.abort(request_id)

    def release(self, session: str) -> None:
        """The session's KV may go."""
        self._slots.release(session)
        for waiting in self._waiting:
            if waiting.reused is not None and waiting.session == session:
                waiting.session = ""

    def pause(self, keep: bool) -> None:
        """No step until resume."""
        self._paused = True
        if not keep:
            self.abort_all()

    def resume(self) -> None:
        """Steps again."""
        self._paused = False

    # --- steps --------------------------------------------------------------------------------

    def step(self) -> bool:
        """Admit what fits and run one batch; what it finished or streams goes to the outbox. False if there
        was none to run: all that is here waits, for example for KV that arrives."""
        self._busy.start()
        now_ns = time.monotonic_ns()
        self._admit(now_ns)
        planned = self._slots.plan(self._budget, now_ns)
        for preempted in self._slots.preempted:
            self._wait(preempted)
        self._slots.preempted.clear()
        if planned is None:
            return False
        batch, complete = planned
        if self._followers.channels:
            self._followers.send(Step(batch.to_bytes()))
        logits = self._runner.forward(batch)
        assert logits is not None  # rank 0
        self._prefilled += int(batch.counts.sum())
        if complete.any():
            self._sample(batch, complete, logits)
        else:
            none = np.zeros(0, dtype=np.int64)
            self._slots.advance(batch, complete, none, none, self.version)
        self._steps += 1
        self._prefill.note(len(batch.slots), int(batch.counts.sum()), self._busy.end())
        return True

    def _admit(self, now_ns: int) -> None:
        """Seat what waits, in its order; what a running sequence is about to compute the prefix of
        waits for it."""
        at = 0
        while at < len(self._waiting) and not self._slots.full:
            waiting = self._waiting[at]
            if self._slots.comes_soon(waiting):
                at += 1
                continue
            slot = self._slots.admit(waiting, self.spec.stop_ids, now_ns)
            if slot is None:
                break
            del self._waiting[at]
            if waiting.reused is None:
                self._reused += int(self._slots.reused[slot])

    def _sample(self, batch: Batch, complete: np.ndarray, logits: torch.Tensor) -> None:
        slots = self._slots
        sampled = batch.slots[complete]
        if not complete.all():
            logits = logits[np.flatnonzero(complete)]
        positions = slots.length[sampled]
        try:
            ids, logprobs = self._draw(logits, slots.temperature[sampled], slots.seed[sampled], positions)
        except FloatingPointError as error:
            self._fail_all(EngineError(f"version {self.version}: {error}", "the weights are broken"))
            return
        first = sampled[positions == slots.prompt[sampled]]
        sampled, stopped, full = slots.advance(batch, complete, ids, logprobs, self.version)
        self._sampled_ns[sampled] = now_ns = time.monotonic_ns()
        self._began_ns.update((slots.id_of(slot), now_ns) for slot in first.tolist())
        self._generated += len(sampled)
        # A sampled token is prefilled by the next step, if there is one: count it once.
        self._prefilled -= int((positions > slots.prompt[sampled]).sum())
        if self._streaming:
            self._stream(sampled, ids, logprobs, ~(stopped | full))
        for slot in sampled[stopped].tolist():
            self._finish(slot, "stop")
        for slot in sampled[full & ~stopped].tolist():
            self._finish(slot, "length")

    def _draw(self, logits: torch.Tensor, *columns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """`sample`; row by row if deterministic, so that its kernels see one shape only."""
        if not self.spec.deterministic:
            return sample(logits, *columns)
        rows = [sample(logits[n : n + 1], *(c[n : n + 1] for c in columns)) for n in range(len(logits))]
        return np.concatenate([ids for ids, _ in rows]), np.concatenate([logprobs for _, logprobs in rows])

    def _stream(self, slots: np.ndarray, ids: np.ndarray, logprobs: np.ndarray, more: np.ndarray) -> None:
        for slot, token, logprob in zip(slots[more], ids[more], logprobs[more], strict=True):
            request_id = self._slots.id_of(slot)
            if request_id in self._streaming:
                reused = int(self._slots.reused[slot])
                self.outbox.append(
                    wire.Tokens(request_id, [int(token)], [float(logprob)], [self.version], "", reused)
                )

    def _finish(self, slot: int, how: str) -> None:
        slots = self._slots
        request_id = slots.id_of(slot)
        first = int(slots.prompt[slot])
        if request_id in self._streaming:
            self._streaming.remove(request_id)
            # Its earlier tokens were sent; an aborted one has sent them all.
            first = int(slots.length[slot]) - (how != "abort")
        span = slice(first, int(slots.length[slot]))
        ids, logprobs, versions = (
            column[slot, span].tolist() for column in (slots.tokens, slots.logprobs, slots.versions)
        )
        began_ns = self._began_ns.pop(request_id, 0)
        ended_ns = int(self._sampled_ns[slot]) if began_ns else 0
        reused = int(slots.reused[slot])
        self.outbox.append(wire.Tokens(request_id, ids, logprobs, versions, how, reused, began_ns, ended_ns))
        slots.finish(slot, time.monotonic_ns() + self._prefill.nanoseconds(int(slots.cached[slot])))

    def _fail_all(self, error: EarlError) -> None:
        """Every request here ends with the error."""
        refusal = wire.WireError.of(error)
        for request_id, slot in list(self._slots.slot_of.items()):
            self._slots.finish(slot)
            self.outbox.append(wire.Refused(request_id, refusal))
        self.outbox.extend(wire.Refused(one.request.request_id, refusal) for one in self._waiting)
        self._waiting.clear()
        self._streaming.clear()
        self._began_ns.clear()
        self._slots.wipe()

    # --- weights ------------------------------------------------------------------------------

    def commit(self, version: int) -> tuple[LoadReport, list[tuple[int, ShardReport]]]:
        """Put the staged version to use on every rank, now, between steps.

        Returns the report and what followers said meanwhile. Raises WeightsIncomplete: without
        effect if the version is not staged, otherwise nothing is generated until a load succeeds.
        """
        clock = time.perf_counter()
        tensors = self._rank.stager.tensors(version)
        size_bytes = sum(array.nbytes for array, _ in tensors.values())
        self._complete = False
        try:
            self._followers.send(ApplyShard(version))
            try:
                self._rank.apply(version)
            finally:
                others = self._followers.await_applied()
        except (EarlError, RuntimeError) as error:
            incomplete = WeightsIncomplete(
                f"engine {self.spec.name} could not apply version {version}: {error}", "load a version again"
            )
            self._fail_all(incomplete)
            raise incomplete from error
        self._complete, self.version = True, version
        if self.spec.kv_on_update == "recompute":
            self._slots.drop_kv()
        else:
            self._slots.age()
        stall_s = time.perf_counter() - clock
        return LoadReport(version=version, size_bytes=size_bytes, read_s=0.0, stall_s=stall_s), others

    # --- hand-over ----------------------------------------------------------------------------

    def begin_take(self, offer: KvOffer) -> Moving:
        """Handover.take, if this engine's weights are whole."""
        admission.check_complete(self.spec, self._complete)
        return self.handover.take(offer, self.version)

    def take_moves(self) -> list[tuple[int, int, int, int]]:
        """What is to be moved in every rank's cache before anything else is written there."""
        moves, self._slots.memory.moves = self._slots.memory.moves, []
        return moves

    # --- figures ------------------------------------------------------------------------------

    def stats(self) -> EngineStats:
        """Counters and gauges; busy periods are handed over once."""
        slots, memory = self._slots, self._slots.memory
        return EngineStats(
            version=self.version,
            tp=self.spec.tp,
            running=len(slots.slot_of),
            waiting=len(self._waiting),
            retained=slots.retained,
            paused=self._paused,
            kv_used_fraction=slots.used_tokens() / max(1, memory.bound),
            steps=self._steps,
            generated_tokens=self._generated,
            prefilled_tokens=self._prefilled,
            reused_tokens=self._reused,
            evicted_sessions=slots.evicted,
            cpu_s=time.process_time(),
            step_s=self._busy.total_ns / 1e9,
            transfers=totals(transfer for rank in self.transfers.values() for transfer in rank),
            busy=self._busy.take(),
            preemptions=slots.preemptions,
            kv_tokens=memory.bound,
            kv_used_tokens=slots.used_tokens(),
            kv_committed_tokens=int(memory.committed.sum()),
            kv_token_bytes=self._runner.cache.token_bytes,
            # Ranks hold alike.
            memory=device_memory(self._runner.device.type, alike=self.spec.tp),
        )
