"""What is the same about every engine that another project wrote: requests, versions, figures.

    submit ─► checks ─► in flight, salted ─► the engine's own scheduler ─► tokens ─► outbox
    load ─► staged ─ commit: the engine applies it ─► new version, new salts, or everything refused

An engine of another project brings its own scheduler, KV cache and kernels. A subclass hands requests over to
it, brings its tokens back and applies weights; everything else of the engine contract is here. Prefixes are
shared between requests of equal salt (cache_salts.py).
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from earl.errors import EarlError, EngineError, WeightsIncomplete
from earl.models.spec import ModelSpec
from services.rollout.engines.contract import wire
from services.rollout.engines.contract.admission import (
    check_complete,
    check_queue,
    check_request,
    check_unused,
)
from services.rollout.engines.contract.engine import (
    EngineCaps,
    EngineSpec,
    EngineStats,
    GenerateRequest,
    LoadReport,
)
from services.rollout.engines.contract.stats import device_memory
from services.rollout.engines.foreign.cache_salts import CacheSalts


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


class ForeignEngine(ABC):
    """What EngineLoop drives; single-threaded, and nothing but `step` and `commit` takes long."""

    def __init__(self, spec: EngineSpec, model: ModelSpec, device: str) -> None:
        self.spec = spec
        self._model = model
        self._device = device
        # Process ids beside this one.
        self.workers: list[int] = []
        # Replies gather here until the loop sends them.
        self.outbox: list[wire.Reply] = []
        self.version = spec.initial_version
        self._complete = spec.load_initial
        self._paused = False
        self._in_flight: dict[str, InFlight] = {}
        self._salts = CacheSalts()
        self._generated = self._prefilled = self._reused = 0

    @property
    def caps(self) -> EngineCaps:
        """The engine keeps its KV to itself: turns that move to another engine are computed again there."""
        return EngineCaps(live_reshape=False, device=self._device)

    # --- requests -----------------------------------------------------------------------------

    def submit(self, request: GenerateRequest, stream: bool) -> None:
        """Take a request. Raises ContextTooLong, EngineBusy, WeightsIncomplete or EngineError."""
        check_complete(self.spec, self._complete)
        check_request(request, self.spec, self._model.vocab)
        check_unused(request, request.request_id in self._in_flight)
        check_queue(self.spec, self._waiting)
        self._in_flight[request.request_id] = InFlight(request, stream)
        self._start(request.request_id)

    def release(self, session: str) -> None:
        """The session has ended. Its KV belongs to nobody: the engine reclaims it when it needs memory."""
        self._salts.release(session)

    @property
    @abstractmethod
    def _waiting(self) -> int:
        """Requests that do not run yet."""

    @abstractmethod
    def _start(self, request_id: str) -> None:
        """Hand a request in flight over to the engine, under the salt that `_salted` gives."""

    @abstractmethod
    def abort(self, request_id: str) -> None:
        """End a request with what it has; nothing if it is not in flight."""

    @abstractmethod
    def pause(self, keep: bool) -> None:
        """No step until resume. keep: requests stay as they are; otherwise they are aborted."""

    @abstractmethod
    def resume(self) -> None:
        """Steps again."""

    def _salted(self, request_id: str) -> str:
        """The salt of a request that the engine is about to have."""
        entry = self._in_flight[request_id]
        entry.salt = self._salts.take(entry.request.session)
        return entry.salt

    def _send(self, entry: InFlight, finish: str) -> None:
        """Reply with the tokens that were not sent yet."""
        first, entry.sent = entry.sent, len(entry.ids)
        self.outbox.append(
            wire.SampledTokens(
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

    def _finish(self, request_id: str, how: str) -> None:
        self._send(self._forget(request_id), how)

    def _refuse(self, request_id: str, error: EarlError) -> None:
        self._forget(request_id)
        self.outbox.append(wire.RequestRefused(request_id, wire.WireError.of(error)))

    def _refuse_all(self, error: EarlError) -> None:
        """Every request in flight ends with the error."""
        for request_id in list(self._in_flight):
            self._refuse(request_id, error)

    def _forget(self, request_id: str) -> InFlight:
        entry = self._in_flight.pop(request_id)
        if entry.salt:
            self._salts.end(entry.request.session)
        return entry

    def _broken_weights(self, logprobs: Sequence[float]) -> EngineError | None:
        """The error of requests whose log-probs are these; None if all are finite."""
        if all(map(math.isfinite, logprobs)):
            return None
        return EngineError(f"version {self.version}: logits are not finite", "the weights are broken")

    # --- steps --------------------------------------------------------------------------------

    @property
    def has_work(self) -> bool:
        """A step would do something; never where the engine steps in processes of its own."""
        return False

    def step(self) -> None:
        """Run one step; called only while `has_work`."""
        raise NotImplementedError

    @abstractmethod
    def sources(self) -> tuple[list[int], float | None]:
        """Descriptors whose readiness means `collect`, and the seconds after which to collect anyway."""

    @abstractmethod
    def collect(self) -> None:
        """Take in what came from elsewhere: loads that ended, outputs of other processes."""

    # --- weights ------------------------------------------------------------------------------

    @abstractmethod
    def load(self, call: int, version: int, keys: list[str], deadline_s: float) -> None:
        """Start reading; the outbox gets the call's Answer when the read ends."""

    @abstractmethod
    def drop(self) -> None:
        """Forget what is staged, and end a load that is in progress."""

    def commit(self, version: int) -> LoadReport:
        """Put the staged version to use, now, between steps.

        Raises WeightsIncomplete: without effect if the version is not staged, otherwise nothing is generated
        until a load succeeds.
        """
        clock = time.perf_counter()
        staged = self._take_staged(version)
        self._complete = False
        try:
            size_bytes = self._apply(version, staged)
        except EngineError as error:
            incomplete = WeightsIncomplete(
                f"engine {self.spec.name} could not apply version {version}: {error.message}",
                "load a version again",
            )
            self._refuse_all(incomplete)
            raise incomplete from error
        self._complete, self.version = True, version
        self._salts.commit()
        if self.spec.kv_on_update == "recompute":
            self._drop_kv()
        stall_s = time.perf_counter() - clock
        return LoadReport(version=version, size_bytes=size_bytes, read_s=0.0, stall_s=stall_s)

    @abstractmethod
    def _take_staged(self, version: int) -> Any:
        """What `_apply` needs of the staged version. Raises WeightsIncomplete if it is not staged."""

    @abstractmethod
    def _apply(self, version: int, staged: Any) -> int:
        """Make the staged version the engine's weights; returns its bytes.

        Raises EngineError if the weights are now neither the old version nor the new one.
        """

    def _drop_kv(self) -> None:
        """No KV of older weights is used again."""
        self._salts.forget()

    # --- figures ------------------------------------------------------------------------------

    def stats(self) -> EngineStats:
        """Counters and gauges; busy periods are handed over once."""
        return EngineStats(
            version=self.version,
            tp=self.spec.tp,
            waiting=self._waiting,
            retained=self._salts.idle,
            paused=self._paused,
            generated_tokens=self._generated,
            prefilled_tokens=self._prefilled,
            reused_tokens=self._reused,
            evicted_sessions=0,
            cpu_s=time.process_time(),
            memory=device_memory(self._device, self.workers),
            **self._figures(),
        )

    @abstractmethod
    def _figures(self) -> dict[str, Any]:
        """The fields of EngineStats that only the engine knows."""

    @abstractmethod
    def close(self) -> None:
        """Stop what this process would otherwise wait for; the process ends next."""
