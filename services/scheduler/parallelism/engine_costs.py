"""The costs of rollout's engines in a run, by its profile: leases are planned by them, and moves of sequences
between engines decided. Without a profile nothing is planned, and nothing moves.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path

from earl.config.run import RunConfig
from earl.errors import EarlError
from earl.parallelism import ROLLOUT, Parallelism
from services.scheduler.assign.cost import DecodeCost, decode_cost
from services.scheduler.assign.plan import EngineKind, EngineKinds
from services.scheduler.assign.rebalance import Rebalancing
from services.scheduler.ledger.tables import LedgerTables
from services.scheduler.memory.parts import ceil_div
from services.scheduler.parallelism.selector_loop import kept_profile, read_profile
from services.scheduler.profile.rows import parse
from services.scheduler.profile.table import ProfileTable

log = logging.getLogger(__name__)


class ProfileCosts:
    """The costs of rollout's engines by the run's profile, which never changes in a run.

    read: finds the profile, in a thread of its own from the first question on: it may take seconds, and
    until it has ended no cost is known.
    """

    def __init__(self, read: Callable[[], ProfileTable | None]) -> None:
        self._read = read
        self._reading: Future[ProfileTable | None] | None = None
        self._known: dict[Parallelism, DecodeCost | None] = {}

    def __call__(self, parallelism: Parallelism) -> DecodeCost | None:
        """The cost of one engine of a parallelism; None if it is not known."""
        if self._reading is None:
            executor = ThreadPoolExecutor(1, "costs")
            self._reading = executor.submit(self._read)
            executor.shutdown(wait=False)
        if parallelism not in self._known:
            if not self._reading.done():
                return None
            self._known[parallelism] = self._cost(self._reading, parallelism)
        return self._known[parallelism]

    @staticmethod
    def _cost(reading: Future[ProfileTable | None], parallelism: Parallelism) -> DecodeCost | None:
        try:
            table = reading.result()
            if table is not None:
                return decode_cost(table, parallelism)
            log.info("leases are not planned: there is no profile of this model on this machine")
        except EarlError as error:
            log.warning("leases of engines of %s are not planned: %s", parallelism, error)
        except Exception:
            # A worker asks in its heartbeat, and would end with the error.
            log.exception("leases of engines of %s are not planned: no profile can be read", parallelism)
        return None


def rollout_table(config: RunConfig, directory: Path) -> ProfileTable | None:
    """The profile of rollout that the run file names, or that `earl profile` has kept; None without one.

    Raises ConfigError, ModelNotFound, and as facts_of.
    """
    key = config.scheduler.profile
    profile = read_profile(key) if key else kept_profile(config, directory)
    return ProfileTable(parse(*profile), ROLLOUT) if profile is not None else None


def engine_kinds(config: RunConfig, directory: Path) -> EngineKinds:
    """The engines of a run by their parallelism, as its profile has them."""
    costs, rollout = ProfileCosts(partial(rollout_table, config, directory)), config.rollout

    def kind(parallelism: Parallelism) -> EngineKind | None:
        cost = costs(parallelism)
        slots = ceil_div(rollout.max_sequences * parallelism.tp, rollout.tp)
        return EngineKind(cost, slots) if cost is not None else None

    return kind


def rebalancing_of(kinds: EngineKinds, tables: LedgerTables) -> Rebalancing:
    """The moves of a run."""

    def predicted(ticket_id: int) -> int:
        ticket = tables.tickets.get(ticket_id)
        return ticket.predicted_tokens if ticket is not None else 0

    return Rebalancing(kinds, predicted, lambda: len(tables.pending) > 0)
