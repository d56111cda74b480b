"""SGLang behind the engine contract: its scheduler, kernels and sampling; EARL's weights and bookkeeping.

    submit ─► SGLang's processes ─► chunks ─► columns here ─► replies
    load ─► Stager (whole tensors, in this process) ─ commit: pause · begin · tensors · end · resume

Runs in an environment of its own (docs/engines.md), in a process of its own. SGLang steps in its own
processes, so nothing steps here: what comes of them wakes the loop. The versions of a request's tokens
are SGLang's own account of them (meta_info["weight_versions"]), which its last chunk carries.

RUN against SGLang 0.5.23 itself on a CPU, tp 1, in an environment that SGLang does not support (torch
2.13, attention in plain torch, no torchvision): tools/install_sglang.py makes it, `make test-sglang`
runs the contract suite there. NOT RUN: any GPU, tp > 1, sampling seeds (SGLang takes them with
enable_deterministic_inference, whose attention needs a GPU), quantised weights.
"""

from __future__ import annotations

import math
import os
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import torch

from earl.errors import ConfigError, EarlError, EngineError, WeightsIncomplete
from earl.models.slices import own_parameters
from earl.models.spec import load_spec
from services.rollout.engines.contract import wire
from services.rollout.engines.contract.admission import (
    check_complete,
    check_request,
    check_room,
    check_unused,
)
from services.rollout.engines.contract.data_thread import DataThread
from services.rollout.engines.contract.engine import (
    EngineCaps,
    EngineSpec,
    EngineStats,
    GenerateRequest,
    LoadReport,
)
from services.rollout.engines.contract.stats import device_memory, totals
from services.rollout.engines.contract.weight_staging import Stager
from services.rollout.engines.foreign.cache_salts import Salts
from services.rollout.engines.sglang.link import Said, SglangLink, kv_tokens_of

# SGLang's seeds are int32.
SEED_MASK = 0x7FFF_FFFF


@dataclass(slots=True)
class _Live:
    """A request in flight. `held`: SGLang does not know it yet. `ending`: it was told to end it, which
    takes it a step. `sent`: tokens that were streamed."""

    request: GenerateRequest
    stream: bool
    held: bool
    ending: bool = False
    versions: list[int] = field(default_factory=list)
    sent: int = 0
    # When the first and the last token came, monotonic.
    began_ns: int = 0
    ended_ns: int = 0


class SglangEngine:
    """loop.SteppedEngine on one SGLang Engine. Raises EngineError if it is not there or does not start."""

    has_work = False

    def __init__(self, spec: EngineSpec) -> None:
        self.spec = spec
        self._model = load_spec(spec.model_dir)
        if spec.deterministic:
            raise ConfigError(
                'deterministic = true with rollout.engine = "sglang": its results depend on the batch',
                'set rollout.engine = "torch"',
            )
        self._device = _device_of(spec)
        try:
            self._link = SglangLink(spec, self._device)
        except ImportError as error:
            raise EngineError(
                f"engine {spec.name}: SGLang cannot be imported: {error}",
                "set rollout.engine_python to an environment that has it (docs/engines.md)",
            ) from error
        self._data = DataThread(spec)
        self._stager = Stager(spec, self._data, own_parameters(self._model, 0, 1), self._model.shapes())
        self.workers = self._link.pids
        self._deaths = [os.pidfd_open(pid) for pid in self.workers]
        self._said: deque[tuple[str, Said]] = deque()
        self._wake, self._waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self.outbox: list[wire.Reply] = []
        self.version = spec.initial_version
        self._complete = spec.load_initial
        self._paused = False
        self._live: dict[str, _Live] = {}
        self._salts = Salts()
        self._chunks = self._generated = self._prefilled = self._reused = 0

    @property
    def caps(self) -> EngineCaps:
        return EngineCaps(live_reshape=False, device=self._device)

    # --- requests -----------------------------------------------------------------------------

    def submit(self, request: GenerateRequest, stream: bool) -> None:
        check_complete(self.spec, self._complete)
        check_request(request, self.spec, self._model.vocab)
        check_unused(request, request.request_id in self._live)
        check_room(self.spec, self._waiting)
        self._live[request.request_id] = _Live(request, stream, held=self._paused)
        if not self._paused:
            self._start(request, stream)

    def _start(self, request: GenerateRequest, stream: bool) -> None:
        sampling = {
            "max_new_tokens": request.max_new_tokens,
            "temperature": request.temperature,
            "stop_token_ids": sorted({*self.spec.stop_ids, *request.stop_ids}),
            "sampling_seed": request.seed & SEED_MASK,
        }
        salt = self._salts.take(request.session)
        self._link.generate(request.request_id, request.ids, sampling, salt, stream, self._hear_of)

    def _hear_of(self, request_id: str, said: Said) -> None:
        """In the link's thread."""
        self._said.append((request_id, said))
        os.write(self._waker, b"x")

    @property
    def _waiting(self) -> int:
        held = sum(live.held for live in self._live.values())
        return held + max(0, self._known - self.spec.max_sequences)

    @property
    def _known(self) -> int:
        """Requests that SGLang has, and was not told to end."""
        return sum(not (live.held or live.ending) for live in self._live.values())

    def abort(self, request_id: str) -> None:
        live = self._live.get(request_id)
        if live is None:
            return
        if live.held:
            del self._live[request_id]
            self.outbox.append(wire.Tokens(request_id, [], [], [], "abort", 0))
        else:
            live.ending = True
            self._link.abort(request_id)

    def release(self, session: str) -> None:
        self._salts.release(session)

    def pause(self, keep: bool) -> None:
        if not keep:
            for request_id in [name for name, live in self._live.items() if live.held]:
                self.abort(request_id)
        if not self._paused or not keep:
            self._link.pause("in_place" if keep else "abort")
        self._paused = True

    def resume(self) -> None:
        if not self._paused:
            return
        self._paused = False
        self._link.resume()
        for live in self._live.values():
            if live.held:
                live.held = False
                self._start(live.request, live.stream)

    def step(self) -> None:
        """SGLang steps by itself."""

    # --- what comes of them -------------------------------------------------------------------

    def sources(self) -> tuple[list[int], float | None]:
        return [self._wake, self._data.wake, *self._deaths], None

    def hear(self) -> None:
        for pid in self.workers:
            if not _alive(pid):
                raise RuntimeError(f"process {pid} of SGLang ended")
        try:
            os.read(self._wake, 65536)
        except BlockingIOError:
            pass
        while self._said:
            request_id, said = self._said.popleft()
            live = self._live.get(request_id)
            if live is None:
                continue
            if isinstance(said, Exception):
                self._refuse(request_id, EngineError(f"SGLang refused {request_id}: {said}"))
            else:
                self._note(request_id, live, said)
        for call, outcome in self._data.take():
            if isinstance(outcome, EarlError):
                self.outbox.append(wire.Answer(call, wire.WireError.of(outcome)))
            else:
                self.outbox.append(wire.Answer(call, load=outcome))

    def _note(self, request_id: str, live: _Live, output: dict[str, Any]) -> None:
        meta = output["meta_info"]
        pairs = meta.get("output_token_logprobs") or []
        ids, logprobs = [int(pair[1]) for pair in pairs], [float(pair[0]) for pair in pairs]
        self._chunks += 1
        if len(ids) > len(live.versions):
            live.ended_ns = time.monotonic_ns()
            live.began_ns = live.began_ns or live.ended_ns
        live.versions += [self.version] * (len(ids) - len(live.versions))
        finish = (meta.get("finish_reason") or {}).get("type", "")
        if not all(map(math.isfinite, logprobs)):
            self._refuse(
                request_id,
                EngineError(f"version {self.version}: logits are not finite", "the weights are broken"),
            )
            return
        if finish:
            versions = _versions(meta, len(ids), self.version)
            if versions[: live.sent] != live.versions[: live.sent]:
                error = EngineError(
                    f"{request_id}: SGLang dates its first tokens differently than its stream"
                )
                self._refuse(request_id, error)
                return
            live.versions = versions
            self._generated += len(ids)
            self._reused += int(meta.get("cached_tokens", 0))
            self._prefilled += len(live.request.ids) - int(meta.get("cached_tokens", 0))
            self._forget(request_id)
        first, live.sent = live.sent, len(ids)
        columns = (ids[first:], logprobs[first:], live.versions[first:])
        reused = int(meta.get("cached_tokens", 0))
        times = (live.began_ns, live.ended_ns)
        self.outbox.append(wire.Tokens(request_id, *columns, finish, reused, *times))

    def _forget(self, request_id: str) -> None:
        live = self._live.pop(request_id)
        if not live.held:
            self._salts.end(live.request.session)

    def _refuse(self, request_id: str, error: EarlError) -> None:
        self._forget(request_id)
        self.outbox.append(wire.Refused(request_id, wire.WireError.of(error)))

    # --- weights ------------------------------------------------------------------------------

    def drop(self) -> None:
        self._stager.drop()

    def load(self, call: int, version: int, keys: list[str], deadline_s: float) -> None:
        self._stager.begin(call, version, keys, deadline_s)

    def commit(self, version: int) -> LoadReport:
        """Put the staged version to use while nothing runs. Raises WeightsIncomplete: without effect if
        the version is not staged, otherwise nothing is generated until a load succeeds."""
        clock = time.perf_counter()
        staged = self._stager.tensors(version)
        size_bytes = sum(array.nbytes for array, _ in staged.values())
        tensors = [
            (name, torch.from_numpy(array).view(getattr(torch, dtype)))
            for name, (array, dtype) in staged.items()
        ]
        recompute = self.spec.kv_on_update == "recompute"
        # Retracted requests are computed again; held in place they keep their KV.
        self._link.pause("retract" if recompute else "in_place")
        self.hear()
        self._complete = False
        try:
            self._link.update(version, tensors, flush=recompute)
        except EngineError as error:
            raise self._incomplete(version, error) from error
        self._complete, self.version = True, version
        self._salts.commit()
        if recompute:
            self._salts.forget()
        if not self._paused:
            self._link.resume()
        stall_s = time.perf_counter() - clock
        return LoadReport(version=version, size_bytes=size_bytes, read_s=0.0, stall_s=stall_s)

    def _incomplete(self, version: int, error: EngineError) -> WeightsIncomplete:
        incomplete = WeightsIncomplete(
            f"engine {self.spec.name} could not apply version {version}: {error.message}",
            "load a version again",
        )
        self._link.pause("abort")
        for request_id in list(self._live):
            self._refuse(request_id, incomplete)
        if not self._paused:
            self._link.resume()
        return incomplete

    # --- figures ------------------------------------------------------------------------------

    def stats(self) -> EngineStats:
        kv_tokens = kv_tokens_of(self.spec)
        # SGLang does not say: prompts of what it runs, and what of their answers was heard.
        used = sum(
            len(live.request.ids) + len(live.versions) for live in self._live.values() if not live.held
        )
        return EngineStats(
            version=self.version,
            tp=self.spec.tp,
            running=min(self._known, self.spec.max_sequences),
            waiting=self._waiting,
            retained=self._salts.idle,
            paused=self._paused,
            kv_used_fraction=min(1.0, used / kv_tokens),
            # SGLang does not say how often it stepped: chunks and answers that came.
            steps=self._chunks,
            generated_tokens=self._generated,
            prefilled_tokens=self._prefilled,
            reused_tokens=self._reused,
            evicted_sessions=0,
            cpu_s=time.process_time(),
            step_s=0.0,
            transfers=totals(self._data.transfers),
            kv_tokens=kv_tokens,
            kv_used_tokens=used,
            kv_committed_tokens=used,
            memory=device_memory(self._device, self.workers),
        )

    def close(self) -> None:
        # SGLang's processes end with this one, which is next.
        self._data.close()


def _device_of(spec: EngineSpec) -> str:
    """ "cuda" or "cpu"; SGLang numbers devices by CUDA_VISIBLE_DEVICES. Raises EngineError."""
    have = "cuda" if torch.cuda.is_available() else "cpu"
    if spec.device_kind not in ("auto", have):
        raise EngineError(
            f"engine {spec.name} should run on {spec.device}, SGLang here runs on {have}",
            'set rollout.device = "auto", or rollout.engine_python to an environment with another build',
        )
    if first := spec.first_device:
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(str(first + n) for n in range(spec.tp))
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
