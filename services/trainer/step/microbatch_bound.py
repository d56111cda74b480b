"""The tokens of a micro-batch on one rank, which a lack of memory lowers.

compute ─► out of memory ─► half as large, until there are more micro-batches ─► compute again
                        └─ one sequence alone, or several ranks: OutOfMemory
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

from earl.errors import OutOfMemory, ran_out_of_memory
from earl.models.return_pages import return_pages

log = logging.getLogger(__name__)
T = TypeVar("T")


class MicrobatchBound:
    """key: that of the run file which sets it. tokens: its value; later the smaller one. remedy: what else
    the user can change."""

    def __init__(self, key: str, tokens: int, remedy: str) -> None:
        self.key, self.tokens, self._remedy = key, tokens, remedy

    def within_memory(
        self, compute: Callable[[], T], micro_batches: Callable[[], int], recover: Callable[[], bool]
    ) -> T:
        """Returns what `compute` does, if need be again with smaller micro-batches.

        micro_batches: counts those of `compute` as `tokens` is now. recover: makes another call possible;
        returns whether it could. Raises OutOfMemory, with `tokens` as before, if it could not, or if there is
        no smaller micro-batch.
        """
        while True:
            try:
                return compute()
            except (RuntimeError, MemoryError) as error:
                if not ran_out_of_memory(error):
                    raise
                reason = f"{type(error).__name__}: {error}".splitlines()[0]
            # The error is gone by now, and with it the tensors that its frames held.
            if not (recover() and self._lower(micro_batches, reason)):
                raise OutOfMemory(
                    f"a rank has no memory for a micro-batch of {self.key} = {self.tokens}: {reason}",
                    f"lower {self.key}, or give a lower rollout.max_context_tokens, {self._remedy}",
                )

    def _lower(self, micro_batches: Callable[[], int], reason: str) -> bool:
        """Halves `tokens` until there are more micro-batches; returns whether that is possible."""
        return_pages()
        before, was = micro_batches(), self.tokens
        while self.tokens > 1:
            self.tokens //= 2
            if micro_batches() > before:
                log.warning(
                    "no memory for a micro-batch of %d tokens (%s): from here on they have %d; set %s = %d",
                    was, reason, self.tokens, self.key, self.tokens,
                )  # fmt: skip
                return True
        self.tokens = was
        return False
