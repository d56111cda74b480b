"""Shared code of engines in a process of their own: refusal of requests, weights, pauses, sleep.

submit ─► checks ─► the engine's own scheduler ─► tokens ─► outbox
load ─► staged ─ commit: applied between two steps, then confirmed ─► new version, or everything refused
sleep ─► requests end, memory returned ─ wake: memory taken, nothing in it ─ load ─► generates again
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any

from earl.errors import EarlError, WeightsIncomplete
from services.rollout.engines.contract import admission, wire
from services.rollout.engines.contract.engine import EngineSpec, EngineStats, GenerateRequest, LoadReport


class LocalEngine(ABC):
    """An engine that a CommandLoop drives; single-threaded, only steps and `commit` take long."""

    def __init__(self, spec: EngineSpec, vocabulary: int) -> None:
        self.spec = spec
        self.version = 0
        # Replies gather here until the loop sends them.
        self.outbox: list[wire.Reply] = []
        self._vocabulary = vocabulary
        self._complete = spec.load_initial and not spec.sleeps
        self._paused = self._asleep = spec.sleeps

    # --- requests -----------------------------------------------------------------------------

    def submit(self, request: GenerateRequest, stream: bool) -> None:
        """Queues a request, or refuses it at once: for what an Engine's `generate` raises."""
        try:
            admission.check_complete(self.spec, self._complete)
            admission.check_request(request, self.spec, self._vocabulary)
            admission.check_queue(self.spec, self._waiting)
            self._queue(request, stream)
        except EarlError as error:
            self.outbox.append(wire.RequestRefused(request.request_id, wire.WireError.of(error)))

    @property
    @abstractmethod
    def _waiting(self) -> int:
        """Requests that do not run yet."""

    @abstractmethod
    def _queue(self, request: GenerateRequest, stream: bool) -> None:
        """Takes a request that passed the checks of every engine. Raises EarlError."""

    @property
    @abstractmethod
    def _request_ids(self) -> Iterable[str]:
        """Every request in flight."""

    @abstractmethod
    def abort(self, request_id: str) -> None:
        """Ends a request with what it has; nothing if it is not in flight."""

    @abstractmethod
    def release(self, session: str) -> None:
        """The session has ended: its KV may be dropped."""

    def pause(self, keep: bool) -> None:
        """Stops stepping until `resume`. keep: requests stay as they are; otherwise they are aborted."""
        self._paused = True
        for request_id in [] if keep else list(self._request_ids):
            self.abort(request_id)

    def resume(self) -> None:
        """Steps again."""
        self._paused = False

    # --- sleep --------------------------------------------------------------------------------

    def sleep(self) -> None:
        """Ends every request and returns the memory of weights and KV. Raises EngineError if
        this engine cannot."""
        if self._asleep:
            return
        self._check_sleep()
        self.pause(keep=False)
        self._asleep, self._complete = True, False
        self._release_memory()

    def wake(self) -> None:
        """Takes the memory again. A version must be loaded before anything is generated."""
        if not self._asleep:
            return
        self._take_memory()
        self._asleep = False
        self.resume()

    @property
    def asleep(self) -> bool:
        """Returns whether the engine has no memory for weights and KV."""
        return self._asleep

    @abstractmethod
    def _check_sleep(self) -> None:
        """Raises an EarlError if the engine cannot sleep, now or ever."""

    @abstractmethod
    def _release_memory(self) -> None:
        """Returns the memory of weights and KV; no request is in flight. KV that is gone is
        never used again."""

    @abstractmethod
    def _take_memory(self) -> None:
        """Takes the memory of weights and KV, whatever is in it."""

    @abstractmethod
    def _fail_all(self, error: EarlError) -> None:
        """Every request in flight ends with the error."""

    # --- weights ------------------------------------------------------------------------------

    def commit(self, version: int) -> LoadReport:
        """Puts the staged version to use, now, between steps.

        Raises VersionGone, without effect, if the version is not there any more. Raises WeightsIncomplete:
        without effect if the version is not staged, otherwise nothing is generated until a load succeeds.
        """
        clock = time.perf_counter()
        if self._asleep:
            raise WeightsIncomplete(
                f"engine {self.spec.name} sleeps: it has no memory for version {version}", "wake it first"
            )
        staged = self._take_staged(version)
        self._complete = False
        try:
            size_bytes = self._apply(version, staged)
        except EarlError as error:
            incomplete = WeightsIncomplete(
                f"engine {self.spec.name} could not apply version {version}: {error.message}",
                "load a version again",
            )
            self._fail_all(incomplete)
            raise incomplete from error
        self._complete, self.version = True, version
        self._outdate_kv()
        if self.spec.kv_on_update == "recompute":
            self._drop_kv()
        stall_s = time.perf_counter() - clock
        return LoadReport(version=version, size_bytes=size_bytes, read_s=0.0, stall_s=stall_s)

    @abstractmethod
    def _take_staged(self, version: int) -> Any:
        """Returns the staged version for `_apply`. Raises WeightsIncomplete if it is not staged, VersionGone
        if it is not there any more."""

    @abstractmethod
    def _apply(self, version: int, staged: Any) -> int:
        """Makes the staged version the engine's weights; returns its bytes.

        Raises EarlError if the weights are now neither the old version nor the new one, or cannot be
        confirmed to be the new one.
        """

    @abstractmethod
    def _outdate_kv(self) -> None:
        """KV from here on is of other weights: only sessions that have older KV continue with it."""

    @abstractmethod
    def _drop_kv(self) -> None:
        """Discards all KV, so that none of older weights is used again."""

    # --- figures ------------------------------------------------------------------------------

    @abstractmethod
    def stats(self) -> EngineStats:
        """Counters and gauges; busy periods are handed over once."""
