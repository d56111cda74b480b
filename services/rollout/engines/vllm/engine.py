"""vLLM behind the engine contract: its scheduler and kernels, EARL's sampling, weights and bookkeeping.

    submit ─► vLLM's scheduler ─► step ─► one token a running request ─► columns here ─► replies
                                   ▲
    load ─► every worker's Stager ─┴─ commit: reload in place, between two steps

Runs in the environment that vLLM is installed in (`make setup-vllm`), in a process of its own; the
service never imports it. Pausing is not stepping, so sequences and their KV stay as they are; a step
is synchronous, so its tokens are all of the version that was committed before it.

Prefixes are shared in whole blocks, between requests of equal salt (salts.py).
"""

from __future__ import annotations

import math
import multiprocessing.connection
import os
import threading
import time
from dataclasses import dataclass, field
from typing import Any

import msgspec

from earl.errors import EarlError, EngineError, WeightsIncomplete
from earl.models.spec import load_spec
from services.rollout.engines.contract import wire
from services.rollout.engines.contract.admission import (
    check_complete,
    check_request,
    check_room,
    check_unused,
)
from services.rollout.engines.contract.engine import (
    EngineCaps,
    EngineSpec,
    EngineStats,
    GenerateRequest,
    LoadReport,
    Transfer,
)
from services.rollout.engines.contract.shard_report import ShardReport, whole_load
from services.rollout.engines.contract.stats import Busy, device_memory, totals
from services.rollout.engines.foreign.cache_salts import Salts
from services.rollout.engines.vllm import core

# How often workers in other processes are asked whether a load has ended.
POLL_S = 0.01
# Exit code of an engine that lost one of its workers.
WORKER_LOST = 3

_reports = msgspec.msgpack.Decoder(ShardReport)


@dataclass(slots=True)
class _Live:
    """A request in flight and what was sampled for it; `sent`: tokens that were streamed already;
    handle: vLLM's own record of it."""

    request: GenerateRequest
    stream: bool
    handle: Any
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    sent: int = 0
    reused: int = -1
    # Of the first and the last token, monotonic.
    began_ns: int = 0
    ended_ns: int = 0


class VllmEngine:
    """loop.SteppedEngine on one EngineCore. Raises EngineError if vLLM is not there or does not start."""

    def __init__(self, spec: EngineSpec) -> None:
        self.spec = spec
        self._model = load_spec(spec.model_dir)
        core.prepare_environment(spec)
        try:
            self._device = core.device_of(spec)
        except ImportError as error:
            raise EngineError(
                f"engine {spec.name}: vLLM cannot be imported: {error}",
                "run `make setup-vllm`, or set rollout.engine_python to an environment that has it",
            ) from error
        core.check_model(spec, self._model, self._device)
        self._core: Any = core.start_core(spec, self._model, self._device)
        wakes = self._core.collective_rpc("earl_open", args=(msgspec.msgpack.encode(spec),))
        # With tp 1 the worker is in this process, and so is its descriptor.
        self._wake: list[int] = wakes if spec.tp == 1 else []
        self._closing = threading.Event()
        self.workers = _watched_workers(self._core, self._closing) if spec.tp > 1 else []
        self.outbox: list[wire.Reply] = []
        self.version = spec.initial_version
        self._complete = spec.load_initial
        self._paused = False
        self._live: dict[str, _Live] = {}
        self._salts = Salts()
        self._loads: dict[int, list[ShardReport]] = {}
        self._loading = 0
        self._staged: int | None = None
        self._transfers: list[list[Transfer]] = [[] for _ in range(spec.tp)]
        self._busy = Busy()
        self._preemptions = 0
        self._steps = self._generated = self._prefilled = self._reused = 0

    @property
    def caps(self) -> EngineCaps:
        return EngineCaps(live_reshape=False, device=self._device)

    @property
    def has_work(self) -> bool:
        return bool(self._live) and not self._paused

    # --- requests -----------------------------------------------------------------------------

    def submit(self, request: GenerateRequest, stream: bool) -> None:
        check_complete(self.spec, self._complete)
        check_request(request, self.spec, self._model.vocab)
        check_unused(request, request.request_id in self._live)
        check_room(self.spec, self._waiting)
        ready, wave = self._core.preprocess_add_request(self._translated(request))
        self._core.add_request(ready, wave)
        self._live[request.request_id] = _Live(request, stream, ready)

    def _translated(self, request: GenerateRequest) -> Any:
        from vllm import SamplingParams  # pyright: ignore[reportMissingImports, reportAttributeAccessIssue]
        from vllm.v1.engine import EngineCoreRequest  # pyright: ignore[reportMissingImports]

        # vLLM's own temperature and seed stay unset: vllm_sampler.py reads these.
        ours = {"temperature": request.temperature, "seed": request.seed & 0xFFFF_FFFF_FFFF_FFFF}
        params = SamplingParams(
            max_tokens=request.max_new_tokens,
            stop_token_ids=list({*self.spec.stop_ids, *request.stop_ids}),
            ignore_eos=True,
            detokenize=False,
            logprobs=0,
            extra_args=ours,
        )
        return EngineCoreRequest(
            request_id=request.request_id,
            prompt_token_ids=request.ids,
            mm_features=None,
            sampling_params=params,
            pooling_params=None,
            arrival_time=time.time(),
            lora_request=None,
            cache_salt=self._salts.take(request.session),
            data_parallel_rank=None,
        )

    @property
    def _waiting(self) -> int:
        return len(self._live) - len(self._core.scheduler.running)

    def abort(self, request_id: str) -> None:
        if request_id in self._live:
            self._core.abort_requests([request_id])
            self._finish(request_id, "abort")

    def release(self, session: str) -> None:
        # Its blocks are nobody's: vLLM takes them when it needs room, the longest unused first.
        self._salts.release(session)

    def pause(self, keep: bool) -> None:
        self._paused = True
        if not keep:
            for request_id in list(self._live):
                self.abort(request_id)

    def resume(self) -> None:
        self._paused = False

    # --- steps --------------------------------------------------------------------------------

    def step(self) -> None:
        self._busy.start()
        outputs, executed = self._core.step_fn()
        self._core.post_step(executed)
        self._steps += executed
        for output in (output for each in (outputs or {}).values() for output in each.outputs):
            self._note(output)
        self._busy.end()

    def _note(self, output: Any) -> None:
        live = self._live.get(output.request_id)
        if live is None:
            return
        if live.reused < 0 and output.prefill_stats is not None:
            live.reused = output.prefill_stats.num_cached_tokens
            self._reused += live.reused
            self._prefilled += output.prefill_stats.num_computed_tokens
        ids = list(output.new_token_ids)
        if ids:
            logprobs = output.new_logprobs.logprobs[: len(ids), 0].tolist()
            if not all(map(math.isfinite, logprobs)):
                self._fail_all(
                    EngineError(f"version {self.version}: logits are not finite", "the weights are broken")
                )
                return
            self._generated += len(ids)
            live.ids += ids
            live.logprobs += logprobs
            live.versions += [self.version] * len(ids)
            live.ended_ns = time.monotonic_ns()
            live.began_ns = live.began_ns or live.ended_ns
        if output.finish_reason is not None:
            self._finish(output.request_id, "stop" if str(output.finish_reason) == "stop" else "length")
        elif ids and live.stream:
            self._send(live, "")

    def _send(self, live: _Live, finish: str) -> None:
        first, live.sent = live.sent, len(live.ids)
        columns = (live.ids[first:], live.logprobs[first:], live.versions[first:])
        told = (finish, max(0, live.reused), live.began_ns, live.ended_ns)
        self.outbox.append(wire.Tokens(live.request.request_id, *columns, *told))

    def _finish(self, request_id: str, how: str) -> None:
        live = self._forget(request_id)
        self._send(live, how)

    def _forget(self, request_id: str) -> _Live:
        live = self._live.pop(request_id)
        self._salts.end(live.request.session)
        self._preemptions += live.handle.num_preemptions
        return live

    def _fail_all(self, error: EarlError) -> None:
        """Every request here ends with the error, and no KV is used again."""
        self._core.abort_requests(list(self._live))
        refusal = wire.WireError.of(error)
        for request_id in list(self._live):
            self._forget(request_id)
            self.outbox.append(wire.Refused(request_id, refusal))
        self._drop_kv()

    # --- weights ------------------------------------------------------------------------------

    def sources(self) -> tuple[list[int], float | None]:
        return self._wake, POLL_S if self._loading and not self._wake else None

    def hear(self) -> None:
        for rank, reports in enumerate(self._core.collective_rpc("earl_take")):
            for encoded in reports:
                report = _reports.decode(encoded)
                self._transfers[rank] = report.transfers
                self._note_report(report)

    def drop(self) -> None:
        self._staged = None
        self._core.collective_rpc("earl_drop")

    def load(self, call: int, version: int, keys: list[str], deadline_s: float) -> None:
        self._staged = None
        self._loading += 1
        self._core.collective_rpc("earl_begin", args=(call, version, keys, deadline_s))

    def _note_report(self, report: ShardReport) -> None:
        """The call is answered once every rank has said how its load ended: an error wins."""
        reports = self._loads.setdefault(report.call, [])
        reports.append(report)
        if len(reports) < self.spec.tp:
            return
        del self._loads[report.call]
        self._loading -= 1
        try:
            whole = whole_load(reports)
        except EarlError as error:
            self.outbox.append(wire.Answer(report.call, wire.WireError.of(error)))
            return
        self._staged = whole.version
        self.outbox.append(wire.Answer(report.call, load=whole))

    def commit(self, version: int) -> LoadReport:
        """Put the staged version to use, now, between steps. Raises WeightsIncomplete: without effect if
        the version is not staged, otherwise nothing is generated until a load succeeds."""
        if self._staged != version:
            raise WeightsIncomplete(
                f"engine {self.spec.name} has version {self._staged} staged, not {version}",
                "load the version before it is committed",
            )
        clock = time.perf_counter()
        self._complete = False
        results = self._core.collective_rpc("earl_apply", args=(version,))
        errors = [msgspec.msgpack.decode(error, type=wire.WireError) for _, error in results if error]
        if errors:
            incomplete = WeightsIncomplete(
                f"engine {self.spec.name} could not apply version {version}: {errors[0].message}",
                "load a version again",
            )
            self._fail_all(incomplete)
            raise incomplete
        self._complete, self.version = True, version
        self._salts.commit()
        if self.spec.kv_on_update == "recompute":
            self._drop_kv()
        size_bytes = sum(size for size, _ in results)
        stall_s = time.perf_counter() - clock
        return LoadReport(version=version, size_bytes=size_bytes, read_s=0.0, stall_s=stall_s)

    def _drop_kv(self) -> None:
        """Running sequences are computed again, idle sessions begin anew."""
        self._core.reset_prefix_cache(reset_running_requests=True)
        self._salts.forget()

    # --- figures ------------------------------------------------------------------------------

    def stats(self) -> EngineStats:
        cache = self._core.scheduler.kv_cache_manager
        # Without the block that vLLM keeps for itself.
        kv_tokens = (cache.block_pool.num_gpu_blocks - 1) * core.BLOCK_TOKENS
        used = round(cache.usage * kv_tokens)
        return EngineStats(
            version=self.version,
            tp=self.spec.tp,
            running=len(self._core.scheduler.running),
            waiting=self._waiting,
            retained=self._salts.idle,
            paused=self._paused,
            kv_used_fraction=cache.usage,
            steps=self._steps,
            generated_tokens=self._generated,
            prefilled_tokens=self._prefilled,
            reused_tokens=self._reused,
            evicted_sessions=0,
            cpu_s=time.process_time(),
            step_s=self._busy.total_ns / 1e9,
            transfers=totals(each for rank in self._transfers for each in rank),
            busy=self._busy.take(),
            # Of requests that are over; those of running ones count when they end.
            preemptions=self._preemptions,
            kv_tokens=kv_tokens,
            kv_used_tokens=used,
            kv_committed_tokens=used,
            kv_token_bytes=core.token_bytes(self.spec, self._model),
            memory=device_memory(self._device, self.workers),
        )

    def close(self) -> None:
        self._closing.set()
        # The process ends next, and vLLM's workers with it: its own shutdown would take seconds.
        self._core.collective_rpc("earl_close")


def _watched_workers(core: Any, closing: threading.Event) -> list[int]:
    """Process ids of vLLM's workers. When one of them dies this process ends at once: a step would wait
    for it, and the service is to hear of the loss now."""
    processes = [handle.proc for handle in core.model_executor.workers]

    def watch() -> None:
        multiprocessing.connection.wait([process.sentinel for process in processes])
        if not closing.is_set():
            os._exit(WORKER_LOST)

    threading.Thread(target=watch, name="workers", daemon=True).start()
    return [process.pid for process in processes]
