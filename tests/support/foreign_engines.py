"""Stand-ins for what vLLM and SGLang give their engines, where neither is installed.

Both sample token `length of the context % VOCABULARY`, with log-prob LOGPROB.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest

from earl.errors import EarlError, EngineError, VersionGone
from earl.models.spec import ModelSpec
from services.rollout.engines.contract import wire
from services.rollout.engines.contract.engine import EngineSpec, GenerateRequest, LoadReport
from services.rollout.engines.contract.shard_report import ShardReport

VOCABULARY, LOGPROB = 61, -0.5
REUSED = 3
MODEL = ModelSpec("llama", 64, 1, 2, 1, 32, 48, 61)


class VllmCore:
    """An EngineCore of one rank. broken: log-probs are NaN. apply_error: what `earl_apply` fails with."""

    def __init__(self, running: int = 2) -> None:
        self.most = running
        self.waiting: list[Any] = []
        self.scheduler = SimpleNamespace(
            running=[],
            kv_cache_manager=SimpleNamespace(usage=0.5, block_pool=SimpleNamespace(num_gpu_blocks=9)),
        )
        self.broken = False
        self.apply_error: EarlError | None = None
        self.cache_salts: dict[str, str] = {}
        self.calls: list[str] = []
        self.reports: list[bytes] = []

    def preprocess_add_request(self, request: Any) -> tuple[Any, int]:
        self.cache_salts[request.request_id] = request.cache_salt
        handle = SimpleNamespace(request=request, made=0, num_preemptions=1)
        return handle, 0

    def add_request(self, handle: Any, wave: int) -> None:
        self.waiting.append(handle)

    def abort_requests(self, request_ids: list[str]) -> None:
        for requests in (self.waiting, self.scheduler.running):
            requests[:] = [handle for handle in requests if handle.request.request_id not in request_ids]

    def step_fn(self) -> tuple[dict[int, Any], bool]:
        running = self.scheduler.running
        while self.waiting and len(running) < self.most:
            running.append(self.waiting.pop(0))
        outputs = [self._sample(handle) for handle in running]
        running[:] = [handle for handle in running if handle.made < handle.request.sampling_params.max_tokens]
        return {0: SimpleNamespace(outputs=outputs)}, bool(outputs)

    def _sample(self, handle: Any) -> Any:
        request, first = handle.request, handle.made == 0
        token = (len(request.prompt_token_ids) + handle.made) % VOCABULARY
        handle.made += 1
        computed = len(request.prompt_token_ids) - REUSED
        return SimpleNamespace(
            request_id=request.request_id,
            prefill_stats=SimpleNamespace(num_cached_tokens=REUSED, num_computed_tokens=computed)
            if first
            else None,
            new_token_ids=[token],
            new_logprobs=SimpleNamespace(logprobs=np.array([[np.nan if self.broken else LOGPROB]])),
            finish_reason="length" if handle.made == request.sampling_params.max_tokens else None,
        )

    def post_step(self, executed: bool) -> None: ...

    def reset_prefix_cache(self, reset_running_requests: bool) -> None:
        self.calls.append("reset_prefix_cache")

    def collective_rpc(self, name: str, args: tuple[Any, ...] = ()) -> list[Any]:
        self.calls.append(f"{name}{args}" if name == "sleep" else name)
        match name:
            case "earl_open":
                return [0]
            case "earl_begin":
                load = LoadReport(version=args[1], size_bytes=10, read_s=0.5)
                self.reports.append(wire.encoder.encode(ShardReport(args[0], None, load, [])))
            case "earl_take":
                reports, self.reports = self.reports, []
                return [reports]
            case "earl_check":
                return [wire.encoder.encode(ShardReport(0, None, None, []))]
            case "earl_apply":
                error = wire.WireError.of(self.apply_error) if self.apply_error else None
                load = LoadReport(version=args[0], size_bytes=10, read_s=0.0)
                return [wire.encoder.encode(ShardReport(0, error, None if error else load, []))]
        return [None]


class VllmSampler:
    """vLLM's class that EARL's sampler is a subclass of."""

    def __init__(self, logprobs_mode: str) -> None: ...


def install_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Modules of vLLM's names with the classes that a request is translated to, and those of its sampler."""
    record = lambda *values, **fields: SimpleNamespace(values=values, **fields)  # noqa: E731
    for name, classes in {
        "vllm": {"SamplingParams": record},
        "vllm.v1": {},
        "vllm.v1.engine": {"EngineCoreRequest": record},
        "vllm.v1.outputs": {"LogprobsTensors": record, "SamplerOutput": record},
        "vllm.v1.sample": {},
        "vllm.v1.sample.sampler": {"Sampler": VllmSampler},
    }.items():
        module = ModuleType(name)
        vars(module).update(classes)
        monkeypatch.setitem(sys.modules, name, module)


class Link:
    """A SglangLink whose requests grow by a token with every `step`. weight_versions: its account of whose
    tokens they are."""

    def __init__(self, *_: Any) -> None:
        self.pids: list[int] = []
        self.running: dict[str, Any] = {}
        self.calls: list[str] = []
        self.cache_salts: dict[str, str] = {}
        self.broken = False
        self.update_error: EngineError | None = None
        self.weight_versions: list[dict[str, int]] = []

    def generate(
        self,
        request_id: str,
        ids: list[int],
        sampling: dict[str, Any],
        salt: str,
        stream: bool,
        receive: Callable[[str, Any], None],
    ) -> None:
        self.cache_salts[request_id] = salt
        new = sampling["max_new_tokens"]
        self.running[request_id] = SimpleNamespace(ids=ids, new=new, made=[], stream=stream, receive=receive)

    def step(self) -> None:
        for request_id, request in list(self.running.items()):
            request.made.append((len(request.ids) + len(request.made)) % VOCABULARY)
            if len(request.made) == request.new:
                self._say(request_id, "length")
            elif request.stream:
                self._say(request_id, "")

    def _say(self, request_id: str, finish: str) -> None:
        request = self.running[request_id]
        logprob = float("nan") if self.broken else LOGPROB
        meta: dict[str, Any] = {
            "output_token_logprobs": [(logprob, token, None) for token in request.made],
            "cached_tokens": REUSED,
        }
        if finish:
            del self.running[request_id]
            meta |= {"finish_reason": {"type": finish}, "weight_versions": self.weight_versions}
        request.receive(request_id, {"meta_info": meta})

    def abort(self, request_id: str) -> None:
        self.calls.append("abort")
        self._say(request_id, "abort")

    def pause(self, mode: str) -> None:
        self.calls.append(f"pause {mode}")
        if mode == "abort":
            for request_id in list(self.running):
                self._say(request_id, "abort")

    def resume(self) -> None:
        self.calls.append("resume")

    def release_memory(self) -> None:
        assert not self.running
        self.calls.append("release_memory")

    def take_memory(self) -> None:
        self.calls.append("take_memory")

    def update(self, version: int, tensors: list[Any], flush: bool) -> None:
        self.calls.append(f"update {version} flush={flush}")
        if self.update_error is not None:
            raise self.update_error


class Staged:
    """A stager that has version `staged`. overwritten: its owner wrote over it while it was applied."""

    def __init__(self, staged: int, overwritten: bool = False) -> None:
        self.staged = staged
        self.overwritten = overwritten
        self.size_bytes = 16

    def drop(self) -> None:
        self.staged = 0

    def take(self, version: int) -> Staged:
        if version != self.staged:
            raise EngineError("not staged")
        return self

    def tensors(self) -> Iterator[tuple[str, np.ndarray, str]]:
        yield "weight", np.zeros(4, np.float32), "float32"

    def applied(self, staged: Staged, seconds: float) -> None:
        if self.overwritten:
            raise VersionGone("it was overwritten")


def told(outbox: list[Any]) -> list[Any]:
    """Returns what is in the outbox, as plain values without times; empties it."""
    replies = [msgspec.to_builtins(reply)[:7] for reply in outbox]
    outbox.clear()
    return replies


def spec(**fields: Any) -> EngineSpec:
    """An engine of two sequences of 64 tokens."""
    bounds = {"device": "cpu", "max_sequences": 2, "max_context_tokens": 64}
    return EngineSpec(name="e", model_dir="m", **bounds | fields)


def ask(name: str, new: int = 2, **fields: Any) -> GenerateRequest:
    """A request of four tokens, in a session of its own name."""
    return GenerateRequest(request_id=name, ids=[5, 6, 7, 8], max_new_tokens=new, session=name, **fields)


def tokens(name: str, ids: list[int], version: int, finish: str, reused: int = REUSED) -> list[Any]:
    """The reply that `told` gives for these tokens."""
    return ["Generation", name, ids, [LOGPROB] * len(ids), [version] * len(ids), finish, reused]


def refusal(engine: Any, request: GenerateRequest) -> str:
    """The name of the error that a request is refused with."""
    engine.submit(request, False)
    return engine.outbox.pop().error.kind
