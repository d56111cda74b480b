"""`stack.placement`: one key that places a run's stages by deciding others, and the check of what it decides.

    separate   every stage on devices of its own        stack.share = false
    shared     stages on the same devices               stack.share = true
    actors     four samplers around one trainer         rollout.workers = 4, rollout.engines = 1

In MSRL (arXiv 2210.00882) these are distribution policies: an algorithm is written once, and a policy says
where its fragments run. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from earl.config.run import RunConfig
from earl.errors import ConfigError

ACTORS = 4


@dataclass(frozen=True, slots=True)
class DecidedKey:
    """A key that a placement decides.

    value: where the run file does not have the key. agrees: whether another value is of the placement, too.
    needs: what it needs, in words.
    """

    section: str
    key: str
    value: Any
    agrees: Callable[[Any], bool]
    needs: str

    @property
    def name(self) -> str:
        return f"{self.section}.{self.key}"


DECIDED: Mapping[str, tuple[DecidedKey, ...]] = {
    "separate": (DecidedKey("stack", "share", False, lambda value: value is False, "false"),),
    "shared": (DecidedKey("stack", "share", True, lambda value: value is not False, 'true, or "alternate"'),),
    "actors": (
        DecidedKey("rollout", "workers", ACTORS, lambda value: value >= ACTORS, f"at least {ACTORS}"),
        DecidedKey("rollout", "engines", 1, lambda value: value == 1, "1"),
    ),
}


def with_placement(table: Mapping[str, Any]) -> Mapping[str, Any]:
    """The tables of a run file with the keys that its placement decides, where it does not have them.

    What is no placement, or no table, is left to the schema's own errors.
    """
    stack = table.get("stack")
    placement = stack.get("placement") if isinstance(stack, Mapping) else None
    filled = dict(table)
    for decided in DECIDED.get(placement, ()) if isinstance(placement, str) else ():
        section = filled.get(decided.section, {})
        if isinstance(section, Mapping):
            filled[decided.section] = {decided.key: decided.value, **section}
    return filled


def placement_text(config: RunConfig) -> str:
    """The run's placement and the keys that it decides, in a line; "" without one."""
    placement = config.stack.placement
    values = [
        f"{decided.name} = {json.dumps(getattr(getattr(config, decided.section), decided.key))}"
        for decided in DECIDED.get(placement, ())
    ]
    return f'placement "{placement}": {", ".join(values)}' if values else ""


def check_placement(config: RunConfig) -> None:
    """Raises ConfigError where a key has a value that is not of the run's placement."""
    placement = config.stack.placement
    for decided in DECIDED.get(placement, ()):
        value = getattr(getattr(config, decided.section), decided.key)
        if not decided.agrees(value):
            raise ConfigError(
                f'stack.placement = "{placement}" with {decided.name} = {json.dumps(value)}: it needs '
                f"{decided.needs}",
                f"remove {decided.name}, or stack.placement",
            )
