"""Policies by the names that commands and configuration have for them. Pure."""

from __future__ import annotations

from earl.errors import ConfigError
from earl.parallelism import Parallelism
from services.scheduler.selector.baselines import DriftPolicy, PaperPolicy, StaticPolicy
from services.scheduler.selector.decision import Outlook, SelectorPolicy
from services.scheduler.selector.earl_policy import EarlPolicy

NAMES = (EarlPolicy.name, PaperPolicy.name, DriftPolicy.name, "static:tp=N")


def policy_of(name: str, table: Outlook, switch_cost_s: float) -> SelectorPolicy:
    """A new policy. Raises ConfigError or IllegalParallelism for a name that is none."""
    if name == EarlPolicy.name:
        return EarlPolicy(table, switch_cost_s)
    if name == PaperPolicy.name:
        return PaperPolicy(table)
    if name == DriftPolicy.name:
        return DriftPolicy(table)
    kind, _, degrees = name.partition(":")
    if kind == "static" and degrees:
        return StaticPolicy(table, Parallelism.parse(degrees))
    raise ConfigError(f"there is no policy {name!r}", f"it is one of {', '.join(NAMES)}")
