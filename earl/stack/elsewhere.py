"""Other machines' part in a launch: what the launcher asks of a cluster that runs some of its processes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from earl.config.run import RunConfig
from earl.stack.placement import Placement
from earl.stack.starter import Starter


class Elsewhere(Protocol):
    """Places the processes that compute on other machines."""

    @property
    def memory_bytes(self) -> int:
        """Memory of each such process."""
        ...

    def sized(self, config: RunConfig) -> RunConfig:
        """The configuration with the threads that its jobs have cores for. Raises ConfigError."""
        ...

    def placement(self, config: RunConfig) -> Placement:
        """The devices of the processes that compute. Raises ConfigError."""
        ...

    def bound(self, config: RunConfig) -> RunConfig:
        """The configuration of this launch, whose services other machines reach."""
        ...

    def starters(self, names: Iterable[str]) -> Mapping[str, Starter]:
        """The starter of each process that runs elsewhere; the others run on this machine."""
        ...
