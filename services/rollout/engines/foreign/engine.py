"""Shared code of engines that another project wrote: requests, versions, figures.

    submit ─► checks ─► in flight, salted ─► the engine's own scheduler ─► tokens ─► outbox
    load ─► staged ─ commit: the engine applies it ─► new version, new salts, or everything refused

An engine of another project brings its own scheduler, KV cache and kernels. A subclass hands requests over to
it, brings its tokens back and applies weights; everything else of the engine contract is here. Prefixes are
shared between requests of equal salt (cache_salts.py).
"""

from __future__ import annotations

import math
import os
import time
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from earl.errors import ConfigError, EarlError, EngineError
from earl.models.spec import ModelSpec
from earl.obs.memory import rank_devices
from services.rollout.engines.contract import wire
from services.rollout.engines.contract.admission import check_unused
from services.rollout.engines.contract.engine import (
    EngineCaps,
    EngineSpec,
    EngineStats,
    Finish,
    GenerateRequest,
    Generation,
)
from services.rollout.engines.contract.local_engine import LocalEngine
from services.rollout.engines.contract.stats import device_memory
from services.rollout.engines.foreign.cache_salts import CacheSaltTable


@dataclass(slots=True)
class InFlight:
    """A request and what was sampled for it: ids, logprobs and versions are equally long.

    salt: under which its KV is shared; "" while the engine does not have the request. sent: tokens that were
    streamed already. reused_tokens: None until it is known. began_ns, ended_ns: when the first and the last
    token came, monotonic. handle: the engine's own record of it.
    """

    request: GenerateRequest
    stream: bool
    salt: str = ""
    handle: Any = None
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    sent: int = 0
    reused_tokens: int | None = None
    began_ns: int = 0
    ended_ns: int = 0

    def stamp(self, tokens: int, version: int) -> None:
        """The request has so many tokens: those that it had not before came now and are of `version`."""
        new = tokens - len(self.versions)
        if new > 0:
            self.versions += [version] * new
            self.ended_ns = time.monotonic_ns()
            self.began_ns = self.began_ns or self.ended_ns


class ForeignEngine(LocalEngine):
    """An engine that EngineLoop drives; single-threaded, only `commit` and a step take long."""

    def __init__(self, spec: EngineSpec, model: ModelSpec, device: str) -> None:
        super().__init__(spec, model.vocab)
        self._model = model
        self._device = device
        # Process ids other than this one's.
        self.workers: list[int] = []
        self._in_flight: dict[str, InFlight] = {}
        self._salt_table = CacheSaltTable()
        self._generated = self._prefilled = self._reused = 0

    @property
    def caps(self) -> EngineCaps:
        """The engine keeps its KV to itself: turns that move to another engine are computed again there."""
        return EngineCaps(live_reshape=False, device=self._device)

    # --- requests -----------------------------------------------------------------------------

    def _queue(self, request: GenerateRequest, stream: bool) -> None:
        check_unused(request, request.request_id in self._in_flight)
        self._in_flight[request.request_id] = InFlight(request, stream)
        self._start(request.request_id)

    @property
    def _request_ids(self) -> Iterable[str]:
        return self._in_flight

    def release(self, session: str) -> None:
        """Ends the session. Its KV belongs to nobody: the engine reclaims it when it needs memory."""
        self._salt_table.release(session)

    @abstractmethod
    def _start(self, request_id: str) -> None:
        """Hands a request in flight over to the engine, under the salt that `_salted` gives."""

    def _salted(self, request_id: str) -> str:
        """The salt of a request that the engine is about to have."""
        entry = self._in_flight[request_id]
        entry.salt = self._salt_table.take(entry.request.session)
        return entry.salt

    def _send(self, entry: InFlight, finish: Finish) -> None:
        """Replies with the tokens that were not sent yet."""
        first, entry.sent = entry.sent, len(entry.ids)
        self.outbox.append(
            Generation(
                entry.request.request_id,
                entry.ids[first:],
                entry.logprobs[first:],
                entry.versions[first:],
                finish,
                entry.reused_tokens or 0,
                entry.began_ns,
                entry.ended_ns,
            )
        )

    def _finish(self, request_id: str, how: Finish) -> None:
        self._send(self._forget(request_id), how)

    def _refuse(self, request_id: str, error: EarlError) -> None:
        self._forget(request_id)
        self.outbox.append(wire.RequestRefused(request_id, wire.WireError.of(error)))

    def _fail_all(self, error: EarlError) -> None:
        for request_id in list(self._in_flight):
            self._refuse(request_id, error)

    def _forget(self, request_id: str) -> InFlight:
        entry = self._in_flight.pop(request_id)
        if entry.salt:
            self._salt_table.end(entry.request.session)
        return entry

    def _broken_weights(self, logprobs: Sequence[float]) -> EngineError | None:
        """The error of requests whose log-probs are these; None if all are finite."""
        if all(map(math.isfinite, logprobs)):
            return None
        return EngineError(f"version {self.version}: logits are not finite", "the weights are broken")

    # --- events -------------------------------------------------------------------------------

    @abstractmethod
    def sources(self) -> tuple[list[int], float | None]:
        """Descriptors whose readiness means `collect`, and the seconds after which to collect anyway."""

    @abstractmethod
    def collect(self) -> None:
        """Takes in what came from elsewhere: loads that ended, outputs of other processes."""

    @property
    def has_work(self) -> bool:
        """Returns whether a step would do something; never where other processes compute."""
        return False

    def step(self) -> None:
        """Runs one step; called only while `has_work`."""

    # --- weights ------------------------------------------------------------------------------

    @abstractmethod
    def load(self, call: int, version: int, keys: list[str], deadline_s: float) -> None:
        """Starts reading; the outbox gets the call's CallAnswer when the read ends."""

    @abstractmethod
    def drop(self) -> None:
        """Forgets what is staged, and ends a load that is in progress."""

    def _outdate_kv(self) -> None:
        self._salt_table.commit()

    def _drop_kv(self) -> None:
        self._salt_table.forget()

    # --- sleep --------------------------------------------------------------------------------

    def _check_sleep(self) -> None:
        if self._device == "cpu" or not self.spec.sleeps:
            raise EngineError(
                f"engine {self.spec.name} ({self.spec.engine}) cannot return its memory on {self._device}",
                'start it with EngineSpec.sleeps on a GPU, or set rollout.engine = "torch"',
            )

    def _begin_asleep(self) -> None:
        """The end of a start with spec.sleeps. Raises EngineError if the engine cannot sleep."""
        if self.spec.sleeps:
            self._check_sleep()
            self._release_memory()

    # --- figures ------------------------------------------------------------------------------

    def stats(self) -> EngineStats:
        return EngineStats(
            version=self.version,
            tp=self.spec.tp,
            waiting=self._waiting,
            retained=self._salt_table.idle,
            generated_tokens=self._generated,
            prefilled_tokens=self._prefilled,
            reused_tokens=self._reused,
            evicted_sessions=0,
            memory=device_memory(self._device, self.workers),
            devices=rank_devices(self._device, self.spec.tp),
            asleep=self._asleep,
            session_tokens={
                entry.request.session: len(entry.request.ids) + len(entry.ids)
                for entry in self._in_flight.values()
                if entry.request.session
            },
            **self._figures(),
        )

    @abstractmethod
    def _figures(self) -> dict[str, Any]:
        """The fields of EngineStats that only the engine knows."""

    @abstractmethod
    def close(self) -> None:
        """Stops what this process would otherwise wait for; the process ends next."""


def check_device(spec: EngineSpec, have: str, engine: str) -> None:
    """Raises EngineError if the spec wants another device than `have`, which the engine's build runs on."""
    if spec.device_kind not in ("auto", have):
        raise EngineError(
            f"engine {spec.name} should run on {spec.device}, {engine} here runs on {have}",
            'set rollout.device = "auto", or rollout.engine_python to an environment with another build',
        )


def narrow_visible_gpus(spec: EngineSpec) -> None:
    """Leaves the engine's process its own GPUs alone, of those that the worker sees: an engine that is not
    EARL's numbers what it sees from 0. Before a library reads CUDA_VISIBLE_DEVICES. Raises EngineError."""
    if not spec.first_device:
        return
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    last = spec.first_device + spec.tp
    gpus = visible.split(",") if visible else [str(number) for number in range(last)]
    if last > len(gpus):
        raise EngineError(
            f"engine {spec.name} needs GPU {last - 1} of the {len(gpus)} in CUDA_VISIBLE_DEVICES={visible}",
            "lower rollout.engines x rollout.tp, or give the worker more GPUs",
        )
    os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(gpus[spec.first_device : last])


def refuse_deterministic(spec: EngineSpec) -> None:
    """Raises ConfigError for a spec that asks for the same bits whatever the batch."""
    if spec.deterministic:
        raise ConfigError(
            f'deterministic = true with rollout.engine = "{spec.engine}": its results depend on the batch',
            'set rollout.engine = "torch"',
        )


def refuse_stop_texts(spec: EngineSpec) -> None:
    """Raises ConfigError for a spec with stop texts, of an engine that ends at tokens alone."""
    if spec.stop_texts:
        raise ConfigError(
            f'model.stop_texts = {list(spec.stop_texts)} with rollout.engine = "{spec.engine}": its answers '
            "end at tokens alone",
            'set rollout.engine = "torch" or "vllm", or name tokens in model.stop',
        )
