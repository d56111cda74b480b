"""A pace table: throughput of each layout of a stage, over context length and concurrency. Pure.

Its columns are those of a profile (`earl profile`):

    stage,dp,tp,cp,pp,context_tokens,concurrency,tokens_per_device_s

concurrency: sequences in the whole pool. tokens_per_device_s: "oom" where the layout runs out of memory.
Throughput belongs to a replica (tp, cp, pp) at its share of the pool's sequences, whatever dp is.

Between points log throughput is linear in (log context, log share). Beyond the table's lengths the nearest
one counts. Fewer sequences than the table's fewest make no step shorter; more of them than its most have
the throughput of those. What is out of memory at (L, C) is so at any length >= L and share >= C.
"""

from __future__ import annotations

import hashlib
import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from earl.csv_text import Cells, positive, records
from earl.errors import ConfigError
from earl.pacing.cells import stage_and_layout
from earl.parallelism import STAGES, Parallelism, Replica

COLUMNS = ("stage", "dp", "tp", "cp", "pp", "context_tokens", "concurrency", "tokens_per_device_s")
OOM = "oom"
_OPTIONAL = ("dp", "cp", "pp")
MOST_ROWS = 100_000


@dataclass(frozen=True, slots=True)
class _PaceCell:
    """share: sequences of a replica. tokens_per_device_s: None where it is out of memory. where: its line."""

    stage: str
    replica: Replica
    context_tokens: float
    share: float
    tokens_per_device_s: float | None
    where: str


class PaceTable:
    """The cells of a table by stage and replica.

    name: of the file, for errors and for people. digest: of the text, which tells tables apart.
    """

    def __init__(self, cells: Sequence[_PaceCell], name: str, digest: str = "") -> None:
        self.name, self.digest = name, digest
        points: dict[tuple[str, Replica], dict[tuple[float, float], _PaceCell]] = {}
        for cell in cells:
            known = points.setdefault((cell.stage, cell.replica), {})
            before = known.setdefault((cell.context_tokens, cell.share), cell)
            if before.tokens_per_device_s != cell.tokens_per_device_s:
                raise ConfigError(
                    f"{cell.where} contradicts {before.where}: another throughput of the same replica, "
                    "length and share of sequences",
                    "remove one of the two lines",
                )
        self._replicas = {key: _ReplicaPace(list(known.values())) for key, known in points.items()}

    @classmethod
    def parse(cls, text: str, name: str) -> PaceTable:
        """Reads a CSV text, whatever the order of its columns; dp, cp and pp may be left out, and are 1.

        Raises ConfigError naming the line.
        """
        lines = records(text, name, COLUMNS, optional=_OPTIONAL, most=MOST_ROWS)
        cells = [_cell(line, where) for where, line in lines]
        if not cells:
            raise ConfigError(f"{name} has no rows", "give a profile, or the name of a packaged table")
        return cls(cells, name, hashlib.sha256(text.encode()).hexdigest()[:16])

    @property
    def stages(self) -> tuple[str, ...]:
        """The stages that the table has rows of; others run at the machine's own speed."""
        return tuple(stage for stage in STAGES if any(known == stage for known, _ in self._replicas))

    def replicas(self, stage: str) -> list[Replica]:
        """The replicas (tp, cp, pp) that the table has rows of, smallest first."""
        known = [replica for other, replica in self._replicas if other == stage]
        return sorted(known, key=lambda replica: (math.prod(replica), replica))

    def step_s(self, stage: str, replica: Replica, context_tokens: float, share: float) -> float:
        """Seconds of a step that gives each of `share` sequences of a replica a token. Raises ConfigError for
        a replica that the table lacks."""
        return self._pace(stage, replica).step_s(context_tokens, share) / math.prod(replica)

    def token_s(self, stage: str, replica: Replica, context_tokens: float, share: float) -> float:
        """Seconds that a replica takes for each token of such a step."""
        pace = self._pace(stage, replica)
        return pace.token_s(context_tokens, share) / math.prod(replica)

    def fits(self, stage: str, replica: Replica, context_tokens: float, share: float) -> bool:
        """Returns whether so many sequences of a replica are not out of memory at that length."""
        return self._pace(stage, replica).fits(context_tokens, share)

    def longest(self, stage: str, replica: Replica) -> float:
        """The length at which even a single sequence of a replica is out of memory; infinite if none is."""
        return self._pace(stage, replica).longest

    def check(self, stage: str, replica: Replica) -> None:
        """Raises ConfigError if the table lacks a replica."""
        self._pace(stage, replica)

    def _pace(self, stage: str, replica: Replica) -> _ReplicaPace:
        pace = self._replicas.get((stage, replica))
        if pace is None:
            known = " or ".join(str(Parallelism(1, *each)) for each in self.replicas(stage))
            raise ConfigError(
                f"pace table {self.name} has no rows of {Parallelism(1, *replica)} of {stage}",
                f"use {known}, or add rows of it" if known else f"add rows of {stage}",
            )
        return pace


class _ReplicaPace:
    """Device-seconds of a token over (context, share) of one replica."""

    def __init__(self, cells: Sequence[_PaceCell]) -> None:
        lines: dict[float, dict[float, float]] = {}
        for cell in cells:
            if cell.tokens_per_device_s is not None:
                lines.setdefault(cell.context_tokens, {})[cell.share] = 1 / cell.tokens_per_device_s
        if not lines:
            stage, layout = cells[0].stage, Parallelism(1, *cells[0].replica)
            raise ConfigError(
                f"{cells[0].where}: {layout} of {stage} is out of memory in every row",
                "give a row with a throughput, or leave the layout out",
            )
        self._lines: Mapping[float, list[tuple[float, float]]] = {
            math.log(context): sorted((math.log(share), math.log(seconds)) for share, seconds in line.items())
            for context, line in sorted(lines.items())
        }
        self._contexts = list(self._lines)
        self._bursts = [
            (cell.context_tokens, cell.share) for cell in cells if cell.tokens_per_device_s is None
        ]

    @property
    def longest(self) -> float:
        return min((context for context, share in self._bursts if share <= 1.0), default=math.inf)

    def fits(self, context_tokens: float, share: float) -> bool:
        return not any(context_tokens >= context and share >= most for context, most in self._bursts)

    def step_s(self, context_tokens: float, share: float) -> float:
        return max(share, self._fewest(context_tokens)) * self.token_s(context_tokens, share)

    def token_s(self, context_tokens: float, share: float) -> float:
        below, above, weight = self._between(context_tokens)
        at_share = math.log(max(share, 1e-9))
        logs = (_along(self._lines[context], at_share) for context in (below, above))
        low, high = logs
        return math.exp(low * (1 - weight) + high * weight)

    def _fewest(self, context_tokens: float) -> float:
        """The fewest sequences of the lines around a length."""
        below, above, weight = self._between(context_tokens)
        low, high = (self._lines[context][0][0] for context in (below, above))
        return math.exp(low * (1 - weight) + high * weight)

    def _between(self, context_tokens: float) -> tuple[float, float, float]:
        """The lengths of the table around one, as logarithms, and the weight of the longer one."""
        context = math.log(max(context_tokens, 1e-9))
        return _bracket(self._contexts, context)


def _bracket(values: Sequence[float], value: float) -> tuple[float, float, float]:
    """(the nearest below, the nearest above, weight of the latter) in sorted values; beyond them, the end."""
    inside = min(max(value, values[0]), values[-1])
    above = min(bisect_right(values, inside), len(values) - 1)
    low, high = values[max(0, above - 1)], values[above]
    return low, high, (inside - low) / (high - low) if high > low else 0.0


def _along(line: Sequence[tuple[float, float]], share: float) -> float:
    shares = [point[0] for point in line]
    low, high, weight = _bracket(shares, share)
    values = dict(line)
    return values[low] * (1 - weight) + values[high] * weight


def _cell(cells: Cells, where: str) -> _PaceCell:
    stage, layout = stage_and_layout(cells, where)
    rate = cells["tokens_per_device_s"]
    if not rate:
        raise ConfigError(
            f"{where}: no tokens_per_device_s", f'give a number, or "{OOM}" where it is out of memory'
        )
    return _PaceCell(
        stage,
        layout.replica,
        positive(cells["context_tokens"], "context_tokens", where),
        positive(cells["concurrency"], "concurrency", where) / layout.dp,
        None if rate.lower() == OOM else positive(rate, "tokens_per_device_s", where),
        where,
    )
