"""The torch engine's rank 0: which request runs when, and what each step samples.

    waiting ─admit─► slots ─plan─► Batch ─► runner (all ranks) ─► logits ─► sample ─► slots.advance
                       ▲                                                               │ finished
                       └──────────────── next step ◄───────────────────────────────────┴──► replies

Continuous batching: every step takes what runs now, decoding and prefilling together. Weights and
pauses take effect between steps. Synchronous and single-threaded; process.py feeds it.
"""

from __future__ import annotations

import math
import time
from collections import deque

import numpy as np
import torch

from earl.errors import ContextTooLong, EarlError, EngineBusy, EngineError, WeightsIncomplete
from earl.models.tp import legal_tp
from services.rollout.engines import wire
from services.rollout.engines.base import (
    BusyPeriod,
    EngineCaps,
    EngineSpec,
    EngineStats,
    GenerateRequest,
    LoadReport,
    Transfer,
)
from services.rollout.engines.batch import Batch
from services.rollout.engines.ranks import ApplyShard, Followers, Loaded, Rank, Step
from services.rollout.engines.sampling import sample
from services.rollout.engines.slots import Slots

# Tokens of one step by device: on a CPU what its caches hold, on a GPU what fills it.
PREFILL_TOKENS = {"cpu": 1024, "cuda": 8192}
# Steps closer than this are one busy period; so many periods are kept until they are asked for.
JOIN_NS = 5_000_000
BUSY_PERIODS = 4096


class TorchEngine:
    """Everything but the sockets. Replies gather in `outbox`."""

    def __init__(self, spec: EngineSpec, rank: Rank, followers: Followers) -> None:
        self.spec = spec
        self._rank, self._runner, self._followers = rank, rank.runner, followers
        self._slots = Slots(spec.max_sequences, spec.max_context_tokens)
        self._waiting: deque[GenerateRequest] = deque()
        self._streaming: set[str] = set()
        self._budget = spec.prefill_tokens or PREFILL_TOKENS[self._runner.device.type]
        self.version = spec.initial_version
        self._complete = spec.load_initial
        self._paused = False
        self.outbox: list[wire.Reply] = []
        self._steps = self._generated = self._prefilled = self._reused = 0
        self._step_ns = 0
        self._busy: deque[BusyPeriod] = deque(maxlen=BUSY_PERIODS)
        # Totals of each rank's transfers, the newest that it reported.
        self.transfers: dict[int, list[Transfer]] = {}

    @property
    def caps(self) -> EngineCaps:
        return EngineCaps(
            engine="torch",
            live_reshape=False,
            pause_keep=True,
            speculative=False,
            legal_tp=tuple(legal_tp(self._runner.spec)),
            max_sequences=self.spec.max_sequences,
            max_context_tokens=self.spec.max_context_tokens,
            device=str(self._runner.device),
            dtype=self.spec.dtype,
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
        self._waiting.append(request)

    def _check(self, request: GenerateRequest) -> None:
        context, vocabulary = self.spec.max_context_tokens, self._runner.spec.vocab
        if not self._complete:
            raise WeightsIncomplete(
                f"engine {self.spec.name} has no complete weights", "load a version before generating"
            )
        if len(request.ids) + request.max_new_tokens > context:
            raise ContextTooLong(
                f"{len(request.ids)} tokens and {request.max_new_tokens} to generate exceed the context of "
                f"{context} tokens",
                "end the episode, or raise rollout.max_context_tokens",
            )
        if not request.ids or request.max_new_tokens < 1:
            raise EngineError(
                f"a request of {len(request.ids)} tokens for {request.max_new_tokens} new ones",
                "give at least one of each",
            )
        if min(request.ids) < 0 or max(request.ids) >= vocabulary:
            wrong = next(token for token in request.ids if not 0 <= token < vocabulary)
            raise EngineError(
                f"token id {wrong} is outside the vocabulary of {vocabulary}", "mend the tokens"
            )
        if not (math.isfinite(request.temperature) and request.temperature >= 0):
            raise EngineError(f"temperature {request.temperature} is not >= 0", "give 0 for greedy")
        if request.request_id in self._slots.slot_of:
            raise EngineError(f"request id {request.request_id!r} is in flight", "give every request its own")
        if len(self._waiting) >= self.spec.max_waiting:
            raise EngineBusy(
                f"engine {self.spec.name} has {len(self._waiting)} requests waiting",
                "wait for some to end, or raise max_waiting",
            )

    def abort(self, request_id: str) -> None:
        """End a request with what it has; nothing if it is not here."""
        slot = self._slots.slot_of.get(request_id)
        if slot is not None:
            self._finish(slot, "abort")
            return
        for request in self._waiting:
            if request.request_id == request_id:
                self._waiting.remove(request)
                self._streaming.discard(request_id)
                self.outbox.append(wire.Tokens(request_id, [], [], [], "abort", 0))
                return

    def abort_all(self) -> None:
        """`abort` for every request."""
        for request_id in [*self._slots.slot_of, *(request.request_id for request in self._waiting)]:
            self.abort(request_id)

    def release(self, session: str) -> None:
        """The session's KV may go."""
        self._slots.release(session)

    def pause(self, keep: bool) -> None:
        """No step until resume."""
        self._paused = True
        if not keep:
            self.abort_all()

    def resume(self) -> None:
        """Steps again."""
        self._paused = False

    # --- steps --------------------------------------------------------------------------------

    def step(self) -> None:
        """Admit what fits and run one batch; what it finished or streams goes to the outbox."""
        started_ns = time.time_ns()
        clock_ns = time.perf_counter_ns()
        while self._waiting:
            slot = self._slots.admit(self._waiting[0], self.spec.stop_ids)
            if slot is None:
                break
            self._waiting.popleft()
            self._reused += int(self._slots.reused[slot])
        planned = self._slots.plan(self._budget)
        if planned is None:
            return
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
        self._note_busy(started_ns, time.perf_counter_ns() - clock_ns)

    def _sample(self, batch: Batch, complete: np.ndarray, logits: torch.Tensor) -> None:
        slots = self._slots
        sampled = batch.slots[complete]
        if not complete.all():
            logits = logits[np.flatnonzero(complete)]
        positions = slots.length[sampled]
        try:
            ids, logprobs = sample(logits, slots.temperature[sampled], slots.seed[sampled], positions)
        except FloatingPointError as error:
            self._fail_all(EngineError(f"version {self.version}: {error}", "the weights are broken"))
            return
        sampled, stopped, full = slots.advance(batch, complete, ids, logprobs, self.version)
        self._generated += len(sampled)
        # A sampled token is prefilled by the next step, if there is one: count it once.
        self._prefilled -= int((positions > slots.prompt[sampled]).sum())
        if self._streaming:
            self._stream(sampled, ids, logprobs, ~(stopped | full))
        for slot in sampled[stopped].tolist():
            self._finish(slot, "stop")
        for slot in sampled[full & ~stopped].tolist():
            self._finish(slot, "length")

    def _stream(self, slots: np.ndarray, ids: np.ndarray, logprobs: np.ndarray, more: np.ndarray) -> None:
        for slot, token, logprob in zip(slots[more], ids[more], logprobs[more], strict=True):
            request_id = self._slots.request[slot]
            if request_id in self._streaming:
                reused = int(self._slots.reused[slot])
                self.outbox.append(
                    wire.Tokens(request_id, [int(token)], [float(logprob)], [self.version], "", reused)
                )

    def _finish(self, slot: int, how: str) -> None:
        slots = self._slots
        request_id = slots.request[slot]
        first = int(slots.prompt[slot])
        if request_id in self._streaming:
            self._streaming.remove(request_id)
            # Its earlier tokens were sent; an aborted one has sent them all.
            first = int(slots.length[slot]) - (how != "abort")
        span = slice(first, int(slots.length[slot]))
        ids, logprobs, versions = (
            column[slot, span].tolist() for column in (slots.tokens, slots.logprobs, slots.versions)
        )
        self.outbox.append(wire.Tokens(request_id, ids, logprobs, versions, how, int(slots.reused[slot])))
        slots.finish(slot)

    def _fail_all(self, error: EarlError) -> None:
        """Every request here ends with the error."""
        refusal = wire.WireError.of(error)
        for request_id, slot in list(self._slots.slot_of.items()):
            self._slots.finish(slot)
            self.outbox.append(wire.Refused(request_id, refusal))
        self.outbox.extend(wire.Refused(request.request_id, refusal) for request in self._waiting)
        self._waiting.clear()
        self._streaming.clear()
        self._slots.drop_kv()

    def _note_busy(self, started_ns: int, took_ns: int) -> None:
        self._step_ns += took_ns
        ended_ns = started_ns + took_ns
        if self._busy and started_ns - self._busy[-1].end_ns < JOIN_NS:
            self._busy[-1].end_ns = ended_ns
        else:
            self._busy.append(BusyPeriod("generate", started_ns, ended_ns))

    # --- weights ------------------------------------------------------------------------------

    def commit(self, version: int) -> tuple[LoadReport, list[tuple[int, Loaded]]]:
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
        stall_s = time.perf_counter() - clock
        return LoadReport(version=version, size_bytes=size_bytes, read_s=0.0, stall_s=stall_s), others

    # --- figures ------------------------------------------------------------------------------

    def stats(self) -> EngineStats:
        """Counters and gauges; busy periods are handed over once."""
        totals: dict[str, Transfer] = {}
        for transfer in (transfer for rank in self.transfers.values() for transfer in rank):
            total = totals.setdefault(transfer.path, Transfer(path=transfer.path))
            total.size_bytes += transfer.size_bytes
            total.seconds += transfer.seconds
            total.transfers += transfer.transfers
        busy, self._busy = list(self._busy), deque(maxlen=BUSY_PERIODS)
        return EngineStats(
            version=self.version,
            tp=self.spec.tp,
            running=len(self._slots.slot_of),
            waiting=len(self._waiting),
            retained=self._slots.retained,
            paused=self._paused,
            kv_used_fraction=self._slots.used_fraction(),
            steps=self._steps,
            generated_tokens=self._generated,
            prefilled_tokens=self._prefilled,
            reused_tokens=self._reused,
            evicted_sessions=self._slots.evicted,
            cpu_s=time.process_time(),
            step_s=self._step_ns / 1e9,
            transfers=list(totals.values()),
            busy=busy,
        )
