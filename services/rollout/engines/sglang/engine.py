"""SGLang behind the engine contract: its scheduler, kernels and sampling; EARL's weights and bookkeeping.

    submit ─► SGLang's processes ─► chunks ─► columns here ─► replies
    load ─► WeightStager (whole tensors, in this process) ─ commit: pause · begin · tensors · end · resume

Runs in an environment of its own (docs/engines.md), in a process of its own. SGLang steps in its own
processes, so nothing steps here: what comes of them wakes the loop. The versions of a request's tokens
are SGLang's own account of them (meta_info["weight_versions"]), which its last chunk carries.

RUN against SGLang 0.5.23 itself on a CPU, tp 1, in an environment that SGLang does not support (torch
2.13, attention in plain torch, no torchvision): tools/install_sglang.py makes it, `make test-sglang`
runs the contract suite there. NOT RUN: any GPU, and so sleep, which needs one; tp > 1, sampling seeds
(SGLang takes them with enable_deterministic_inference, whose attention needs a GPU), quantised weights.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import deque
from typing import Any

import torch

from earl.errors import DataPlaneError, EngineError
from earl.models.slices import rank_parameters
from earl.models.spec import load_spec
from earl.worker_report import totals_by_path
from services.rollout.engines.contract import wire
from services.rollout.engines.contract.admission import refuse_filters
from services.rollout.engines.contract.data_thread import DataThread
from services.rollout.engines.contract.engine import EngineSpec, GenerateRequest
from services.rollout.engines.contract.mapped_tensor import as_tensor
from services.rollout.engines.contract.weight_staging import StagedVersion, WeightStager
from services.rollout.engines.foreign.engine import (
    ForeignEngine,
    InFlight,
    check_device,
    narrow_visible_gpus,
    refuse_deterministic,
    refuse_stop_texts,
)
from services.rollout.engines.sglang.link import Output, SglangLink, kv_tokens_of

# SGLang's seeds are int32.
SEED_MASK = 0x7FFF_FFFF


class SglangEngine(ForeignEngine):
    """A ForeignEngine on one SGLang Engine. Raises EngineError if SGLang is not there or does not start."""

    def __init__(self, spec: EngineSpec) -> None:
        model = load_spec(spec.model_dir)
        refuse_deterministic(spec)
        refuse_stop_texts(spec)
        super().__init__(spec, model, _device_of(spec))
        try:
            self._link = SglangLink(spec, self._device)
        except ImportError as error:
            raise EngineError(
                f"engine {spec.name}: SGLang cannot be imported: {error}",
                "set rollout.engine_python to an environment that has it (docs/engines.md)",
            ) from error
        self._data = DataThread(spec)
        self._stager = WeightStager(spec, self._data, rank_parameters(model, 0, 1), model.shapes())
        self.workers = self._link.pids
        self._deaths = [os.pidfd_open(pid) for pid in self.workers]
        self._outputs: deque[tuple[str, Output]] = deque()
        self._wake, self._waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        # Requests that SGLang was asked to end, which takes it a step.
        self._ending: set[str] = set()
        self._chunks = 0
        self._begin_asleep()

    # --- requests -----------------------------------------------------------------------------

    def _queue(self, request: GenerateRequest, stream: bool) -> None:
        # SGLang has filters too, but its log-probs are not over what they keep.
        refuse_filters(request.filters, self.spec.engine)
        super()._queue(request, stream)

    def _start(self, request_id: str) -> None:
        """While the engine is paused SGLang is not to know the request: `resume` starts it."""
        if self._paused:
            return
        entry = self._in_flight[request_id]
        request = entry.request
        sampling = {
            "max_new_tokens": request.max_new_tokens,
            "temperature": request.temperature,
            "stop_token_ids": sorted({*self.spec.stop_ids, *request.stop_ids}),
            "sampling_seed": request.seed & SEED_MASK,
        }
        salt = self._salted(request_id)
        self._link.generate(request_id, request.ids, sampling, salt, entry.stream, self._receive)

    def _receive(self, request_id: str, output: Output) -> None:
        """Takes an output; called in the link's thread."""
        self._outputs.append((request_id, output))
        os.write(self._waker, b"x")

    @property
    def _held(self) -> list[str]:
        """Requests that SGLang does not know yet."""
        return [request_id for request_id, entry in self._in_flight.items() if not entry.salt]

    @property
    def _known(self) -> int:
        """Requests that SGLang has, and was not asked to end."""
        return len(self._in_flight) - len(self._held) - len(self._ending)

    @property
    def _waiting(self) -> int:
        return len(self._held) + max(0, self._known - self.spec.max_sequences)

    def abort(self, request_id: str) -> None:
        entry = self._in_flight.get(request_id)
        if entry is None:
            return
        if not entry.salt:
            self._finish(request_id, "abort")
        else:
            self._ending.add(request_id)
            self._link.abort(request_id)

    def pause(self, keep: bool) -> None:
        if not keep:
            for request_id in self._held:
                self.abort(request_id)
        if not self._paused or not keep:
            self._link.pause("in_place" if keep else "abort")
        self._paused = True

    def resume(self) -> None:
        if not self._paused:
            return
        self._paused = False
        self._link.resume()
        for request_id in self._held:
            self._start(request_id)

    def _forget(self, request_id: str) -> InFlight:
        self._ending.discard(request_id)
        return super()._forget(request_id)

    # --- outputs ------------------------------------------------------------------------------

    def sources(self) -> tuple[list[int], float | None]:
        return [self._wake, self._data.wake, *self._deaths], None

    def collect(self) -> None:
        for pid in self.workers:
            if not _alive(pid):
                raise RuntimeError(f"process {pid} of SGLang ended")
        with contextlib.suppress(BlockingIOError):
            os.read(self._wake, 65536)
        while self._outputs:
            request_id, output = self._outputs.popleft()
            entry = self._in_flight.get(request_id)
            if entry is None:
                continue
            if isinstance(output, Exception):
                self._refuse(request_id, EngineError(f"SGLang refused {request_id}: {output}"))
            else:
                self._note(request_id, entry, output)
        for call, outcome in self._data.take():
            self.outbox.append(wire.CallAnswer.of(call, outcome))

    def _note(self, request_id: str, entry: InFlight, output: dict[str, Any]) -> None:
        """An output has all of the request's tokens so far."""
        meta = output["meta_info"]
        pairs = meta.get("output_token_logprobs") or []
        entry.ids, entry.logprobs = [int(pair[1]) for pair in pairs], [float(pair[0]) for pair in pairs]
        entry.stamp(len(entry.ids), self.version)
        entry.reused_tokens = reused = int(meta.get("cached_tokens", 0))
        self._chunks += 1
        if error := self._broken_weights(entry.logprobs):
            self._refuse(request_id, error)
            return
        finish = (meta.get("finish_reason") or {}).get("type", "")
        if not finish:
            self._send(entry, "")
            return
        versions = _versions(meta, len(entry.ids), self.version)
        if versions[: entry.sent] != entry.versions[: entry.sent]:
            error = EngineError(f"{request_id}: SGLang dates its first tokens differently than its stream")
            self._refuse(request_id, error)
            return
        entry.versions = versions
        self._generated += len(entry.ids)
        self._reused += reused
        self._prefilled += len(entry.request.ids) - reused
        self._finish(request_id, finish)

    # --- weights ------------------------------------------------------------------------------

    def load(self, call: int, version: int, keys: list[str], deadline_s: float) -> None:
        self._stager.begin(call, version, keys, deadline_s)

    def drop(self) -> None:
        self._stager.drop()

    def _take_staged(self, version: int) -> StagedVersion:
        return self._stager.take(version)

    def _apply(self, version: int, staged: StagedVersion) -> int:
        started = time.perf_counter()
        tensors = [
            (name, as_tensor(array).view(getattr(torch, dtype))) for name, array, dtype in staged.tensors()
        ]
        recompute = self.spec.kv_on_update == "recompute"
        # Retracted requests are computed again; held in place they keep their KV.
        self._link.pause("retract" if recompute else "in_place")
        self.collect()
        try:
            self._link.update(version, tensors, flush=recompute)
        except EngineError:
            self._link.pause("abort")
            self._run_again()
            raise
        try:
            self._stager.applied(staged, time.perf_counter() - started)
        except DataPlaneError:
            # Nothing may be sampled with these weights, not even by what runs.
            self._link.pause("abort")
            raise
        finally:
            self._run_again()
        return staged.size_bytes

    def _run_again(self) -> None:
        """The end of a pause that only weights needed."""
        if not self._paused:
            self._link.resume()

    # --- sleep --------------------------------------------------------------------------------

    def _release_memory(self) -> None:
        self._drop_kv()
        self._stager.drop()
        self._link.release_memory()

    def _take_memory(self) -> None:
        self._link.take_memory()

    # --- figures ------------------------------------------------------------------------------

    def _figures(self) -> dict[str, Any]:
        kv_tokens = kv_tokens_of(self.spec)
        # SGLang does not report it: prompts of what it runs, and the tokens of theirs that have come.
        known = [entry for entry in self._in_flight.values() if entry.salt]
        used = sum(len(entry.request.ids) + len(entry.versions) for entry in known)
        return {
            "running": min(self._known, self.spec.max_sequences),
            # SGLang reports neither its steps nor their time: outputs that came are counted.
            "steps": self._chunks,
            "step_s": 0.0,
            "transfers": totals_by_path(self._data.transfers),
            "kv_used_fraction": min(1.0, used / kv_tokens),
            "kv_tokens": kv_tokens,
            "kv_used_tokens": used,
            "kv_committed_tokens": used,
        }

    def close(self) -> None:
        # SGLang's processes end with this one, which is next.
        self._data.close()


def _device_of(spec: EngineSpec) -> str:
    """ "cuda" or "cpu". Raises EngineError."""
    have = "cuda" if torch.cuda.is_available() else "cpu"
    check_device(spec, have, "SGLang")
    narrow_visible_gpus(spec)
    return have


def _versions(meta: dict[str, Any], tokens: int, version: int) -> list[int]:
    """The version of each of so many tokens, by SGLang's spans; `version` if it gives none."""
    versions = [version] * tokens
    for span in meta.get("weight_versions") or []:
        start, end = int(span["start"]), min(int(span["end"]), tokens)
        versions[start:end] = [int(span["version"])] * (end - start)
    return versions


def _alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
