"""vLLM behind the engine contract: its scheduler and kernels, EARL's sampling, weights and bookkeeping.

    submit ─► vLLM's scheduler ─► step ─► tokens of running requests ─► columns here ─► replies
                                   ▲
    load ─► every worker's WeightStager ─┴─ commit: reload in place, between two steps

Runs in the environment that vLLM is installed in (`make setup-vllm`), in a process of its own; the
service never imports it. Pausing is not stepping, so sequences and their KV stay as they are; a step
is synchronous, so its tokens are all of the version that was committed before it.

Prefixes are shared in whole blocks of core.BLOCK_TOKENS.
"""

from __future__ import annotations

import multiprocessing.connection
import os
import threading
import time
from typing import Any

import msgspec

from earl.errors import EarlError, EngineError, WeightsIncomplete
from earl.models.spec import load_spec
from earl.worker_report import TransferTotals, totals_by_path
from services.rollout.engines.contract import wire
from services.rollout.engines.contract.draft_counts import DraftCounts
from services.rollout.engines.contract.engine import EngineSpec, GenerateRequest
from services.rollout.engines.contract.shard_report import ShardReport, refuse_failed, whole_load
from services.rollout.engines.contract.stats import BusyClock
from services.rollout.engines.contract.stop_texts import stop_texts_of
from services.rollout.engines.foreign.engine import ForeignEngine, InFlight
from services.rollout.engines.vllm import core

# How often workers in other processes are asked for ended loads.
POLL_S = 0.01
# Exit code of an engine that lost one of its workers.
WORKER_LOST = 3

_decoder = msgspec.msgpack.Decoder(ShardReport)
_counts_decoder = msgspec.msgpack.Decoder(DraftCounts)


class VllmEngine(ForeignEngine):
    """A ForeignEngine on one EngineCore. Raises EngineError if vLLM is not there or does not start."""

    def __init__(self, spec: EngineSpec) -> None:
        model = load_spec(spec.model_dir)
        core.prepare_environment(spec)
        try:
            device = core.device_of(spec)
        except ImportError as error:
            raise EngineError(
                f"engine {spec.name}: vLLM cannot be imported: {error}",
                "run `make setup-vllm`, or set rollout.engine_python to an environment that has it",
            ) from error
        core.check_model(spec, model, device)
        self._stop_texts = stop_texts_of(spec)
        super().__init__(spec, model, device)
        self._core: Any = core.start_core(spec, model, device)
        wakes = self._core.collective_rpc("earl_open", args=(msgspec.msgpack.encode(spec),))
        # With tp 1 the worker is in this process, and so is its descriptor.
        self._wake: list[int] = wakes if spec.tp == 1 else []
        self._closing = threading.Event()
        if spec.tp > 1:
            self.workers = _watched_workers(self._core, self._closing)
        self._loads: dict[int, list[ShardReport]] = {}
        self._loading = 0
        self._staged: int | None = None
        self._transfers: list[list[TransferTotals]] = [[] for _ in range(spec.tp)]
        self._busy = BusyClock()
        self._steps = self._preemptions = 0
        self._begin_asleep()

    # --- requests -----------------------------------------------------------------------------

    def _start(self, request_id: str) -> None:
        entry = self._in_flight[request_id]
        translated = self._translated(entry.request, self._salted(request_id))
        entry.handle, wave = self._core.preprocess_add_request(translated)
        self._core.add_request(entry.handle, wave)

    def _translated(self, request: GenerateRequest, salt: str) -> Any:
        from vllm import SamplingParams  # pyright: ignore[reportMissingImports, reportAttributeAccessIssue]
        from vllm.v1.engine import EngineCoreRequest  # pyright: ignore[reportMissingImports]

        # vLLM's own temperature, seed and filters stay unset: sampler.py reads these.
        ours = {
            "temperature": request.temperature,
            "seed": request.seed & 0xFFFF_FFFF_FFFF_FFFF,
            "filters": request.filters.active,
        }
        if self.spec.drafts:
            ours |= {"references": request.references, "task_references": request.task_references}
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
            cache_salt=salt,
            data_parallel_rank=None,
        )

    @property
    def _waiting(self) -> int:
        return len(self._in_flight) - len(self._core.scheduler.running)

    def abort(self, request_id: str) -> None:
        if request_id in self._in_flight:
            self._core.abort_requests([request_id])
            self._finish(request_id, "abort")

    def _forget(self, request_id: str) -> InFlight:
        entry = super()._forget(request_id)
        self._preemptions += entry.handle.num_preemptions
        return entry

    def _fail_all(self, error: EarlError) -> None:
        """Ends every request in flight with the error; no KV is used again."""
        self._core.abort_requests(list(self._in_flight))
        super()._fail_all(error)
        self._drop_kv()

    # --- steps --------------------------------------------------------------------------------

    @property
    def has_work(self) -> bool:
        return bool(self._in_flight) and not self._paused

    def step(self) -> None:
        self._busy.start()
        outputs, executed = self._core.step_fn()
        self._core.post_step(executed)
        if self.spec.drafts:
            self._give_up_drafts()
        self._steps += executed
        for output in (output for each in (outputs or {}).values() for output in each.outputs):
            self._note(output)
        self._busy.end()

    def _give_up_drafts(self) -> None:
        """Drops the next step's drafts where room for them could cost a running request its KV: each takes a
        block more at most."""
        scheduler = self._core.scheduler
        if scheduler.kv_cache_manager.block_pool.get_num_free_blocks() < len(scheduler.running):
            for request in scheduler.running:
                request.spec_token_ids = []

    def _note(self, output: Any) -> None:
        entry = self._in_flight.get(output.request_id)
        if entry is None:
            return
        if entry.reused_tokens is None and output.prefill_stats is not None:
            entry.reused_tokens = output.prefill_stats.num_cached_tokens
            self._reused += output.prefill_stats.num_cached_tokens
            self._prefilled += output.prefill_stats.num_computed_tokens
        ids = list(output.new_token_ids)
        if ids:
            logprobs = output.new_logprobs.logprobs[: len(ids), 0].tolist()
            if error := self._broken_weights(logprobs):
                self._fail_all(error)
                return
            self._generated += len(ids)
            entry.ids += ids
            entry.logprobs += logprobs
            stopped = self._end_at_text(entry, len(ids))
            entry.stamp(len(entry.ids), self.version)
        if ids and stopped:
            if output.finish_reason is None:
                self._core.abort_requests([output.request_id])
            self._finish(output.request_id, "stop")
        elif output.finish_reason is not None:
            self._finish(output.request_id, "stop" if str(output.finish_reason) == "stop" else "length")
        elif ids and entry.stream:
            self._send(entry, "")

    def _end_at_text(self, entry: InFlight, new: int) -> bool:
        """Returns whether one of the request's `new` last tokens completes a stop text. What a draft has
        behind it goes."""
        if self._stop_texts is None:
            return False
        request = entry.request
        begun = request.ids[len(request.ids) - request.answered :]
        end = self._stop_texts.end([*begun, *entry.ids], new)
        if end is None:
            return False
        count = end - len(begun)
        self._generated -= len(entry.ids) - count
        del entry.ids[count:], entry.logprobs[count:]
        return True

    # --- weights ------------------------------------------------------------------------------

    def sources(self) -> tuple[list[int], float | None]:
        return self._wake, POLL_S if self._loading and not self._wake else None

    def collect(self) -> None:
        for rank, reports in enumerate(self._core.collective_rpc("earl_take")):
            for encoded in reports:
                report = _decoder.decode(encoded)
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
        """Answers the call once every rank's report has come, with the first error if there is one."""
        reports = self._loads.setdefault(report.call, [])
        reports.append(report)
        if len(reports) < self.spec.tp:
            return
        del self._loads[report.call]
        self._loading -= 1
        try:
            outcome = whole_load(reports)
            self._staged = outcome.version
        except EarlError as error:
            outcome = error
        self.outbox.append(wire.CallAnswer.of(report.call, outcome))

    def _take_staged(self, version: int) -> None:
        if self._staged != version:
            raise WeightsIncomplete(
                f"engine {self.spec.name} has version {self._staged} staged, not {version}",
                "load the version before it is committed",
            )
        refuse_failed(self._reports("earl_check", version))

    def _apply(self, version: int, staged: None) -> int:
        reports = self._reports("earl_apply", version)
        self._transfers = [report.transfers for report in reports]
        return whole_load(reports).size_bytes

    def _reports(self, method: str, version: int) -> list[ShardReport]:
        return [_decoder.decode(report) for report in self._core.collective_rpc(method, args=(version,))]

    def _drop_kv(self) -> None:
        """Running sequences are computed again, idle sessions begin again."""
        self._core.reset_prefix_cache(reset_running_requests=True)
        super()._drop_kv()

    # --- sleep --------------------------------------------------------------------------------

    def _release_memory(self) -> None:
        self._drop_kv()
        self.drop()
        # Level 2: weights are not copied to the host, since the trainer's newest version is loaded next.
        self._core.collective_rpc("sleep", args=(2,))

    def _take_memory(self) -> None:
        self._core.collective_rpc("wake_up")

    # --- figures ------------------------------------------------------------------------------

    def _figures(self) -> dict[str, Any]:
        cache = self._core.scheduler.kv_cache_manager
        # Without the block that vLLM keeps for itself.
        kv_tokens = (cache.block_pool.num_gpu_blocks - 1) * core.BLOCK_TOKENS
        used = round(cache.usage * kv_tokens)
        return {
            "running": len(self._core.scheduler.running),
            "steps": self._steps,
            "step_s": self._busy.total_ns / 1e9,
            "busy": self._busy.take(),
            "transfers": totals_by_path(each for rank in self._transfers for each in rank),
            # Preemptions of requests that have ended; those of running ones count when they end.
            "preemptions": self._preemptions,
            "kv_used_fraction": cache.usage,
            "kv_tokens": kv_tokens,
            "kv_used_tokens": used,
            "kv_committed_tokens": used,
            "kv_token_bytes": core.token_bytes(self.spec, self._model),
            "drafts": self._draft_counts(),
        }

    def _draft_counts(self) -> DraftCounts:
        if not self.spec.drafts:
            return DraftCounts()
        # vLLM takes what the first rank drafts.
        return _counts_decoder.decode(self._core.collective_rpc("earl_draft_counts")[0])

    def close(self) -> None:
        self._closing.set()
        # The process ends next, and vLLM's workers with it: its own shutdown would take seconds.
        self._core.collective_rpc("earl_close")


def _watched_workers(core: Any, closing: threading.Event) -> list[int]:
    """Process ids of vLLM's workers. When one of them dies this process ends at once: a step would wait
    for it, and the service would learn of the loss late."""
    processes = [handle.proc for handle in core.model_executor.workers]

    def watch() -> None:
        multiprocessing.connection.wait([process.sentinel for process in processes])
        if not closing.is_set():
            os._exit(WORKER_LOST)

    threading.Thread(target=watch, name="workers", daemon=True).start()
    return [process.pid for process in processes]
