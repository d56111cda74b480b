"""A request that has no slot of the KV cache. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from services.rollout.engines.contract.engine import GenerateRequest
from services.rollout.engines.torch.prefix_cache import block_keys


@dataclass(slots=True)
class WaitingRequest:
    """A request without a slot: a new one, or a preempted one with what was sampled so far."""

    request: GenerateRequest
    # Its session's age: the lower the older.
    age: int
    # "" once it was released while the request waited.
    session: str
    ids: np.ndarray
    # Log-probs of the sampled tokens, which are the last of ids.
    logprobs: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=np.float32))
    versions: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    # Tokens that were reused when it was first admitted; None before.
    reused: int | None = None
    _keys: list[int] | None = None

    @classmethod
    def of(cls, request: GenerateRequest, age: int) -> WaitingRequest:
        return cls(request, age, request.session, np.asarray(request.ids, dtype=np.int64))

    @property
    def keys(self) -> list[int]:
        """Keys of the blocks that may be reused: at least the last token is computed, since its logits are
        what the first sample comes from."""
        if self._keys is None:
            self._keys = block_keys(self.ids[:-1])
        return self._keys
