"""The roles of a run whose stages make columns: what a batch gets of them, and when the teacher ends.

    batch planned ─► planned: places of columns, weight of the teacher ─► plan
    batch committed ─► committed: did the teacher count for the last time? ─► its role ends

Pure. That the teacher has ended is stored with the ledger, and stays so: steps that a crash undoes are
repeated without it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

from earl.config.run import RunConfig
from earl.parallelism import TEACHER
from services.scheduler.batches.columns import ColumnRegistry, Location
from services.scheduler.batches.weaning import WeaningRule
from services.scheduler.ledger.ledger import Ledger
from services.scheduler.state.run import Batch, CommittedBatch
from services.scheduler.state.tickets import EpisodeResult, Purpose

log = logging.getLogger(__name__)


class RunRoles:
    """The roles of one run, beside its ledger."""

    def __init__(self, config: RunConfig, ledger: Ledger, columns: ColumnRegistry) -> None:
        self._roles = tuple(config.column_stages)
        self._rule = WeaningRule.of(config)
        self._ledger, self._columns = ledger, columns
        if ledger.tables.run.weaned:
            columns.end(TEACHER)

    def planned(self, batch: Batch) -> tuple[Mapping[str, Mapping[int, Location]], float]:
        """(by role, the places of columns by ticket; the weight of the teacher, 0..1) for the planned batch.

        A teacher that does not count has no columns in it.
        """
        tickets = self._ledger.tables.tickets
        weight = self._weight(batch, (tickets[number].result for number in batch.tickets))
        roles = (role for role in self._roles if role != TEACHER or weight > 0.0)
        return {role: self._columns.locations(role, batch.tickets) for role in roles}, weight

    def committed(self, committed: CommittedBatch) -> None:
        """Lets the teacher end if it counts in no batch after this one."""
        batch, run = committed.batch, self._ledger.tables.run
        if self._rule is None or batch.purpose is not Purpose.TRAIN or run.weaned:
            return
        if self._rule.ends(batch.version, self._weight(batch, committed.results)):
            run.weaned = True
            self._columns.end(TEACHER)
            log.info("from version %d on the teacher no longer counts", batch.version + 1)

    def _weight(self, batch: Batch, results: Iterable[EpisodeResult | None]) -> float:
        if self._rule is None or batch.purpose is not Purpose.TRAIN or self._ledger.tables.run.weaned:
            return 0.0
        return self._rule.weight(batch.version, [result.reward for result in results if result is not None])
