"""The figures of each environment of a mixture, taken out of a step's or an evaluation's metrics. Pure."""

from __future__ import annotations

from collections.abc import Mapping

PREFIX = "environments."


def by_environment(metrics: Mapping[str, float]) -> dict[str, dict[str, float]]:
    """The metrics named "environments.LABEL.FIGURE", by label and figure; {} in a run of one environment."""
    figures: dict[str, dict[str, float]] = {}
    for name, value in metrics.items():
        if name.startswith(PREFIX):
            label, _, figure = name.removeprefix(PREFIX).rpartition(".")
            figures.setdefault(label, {})[figure] = value
    return figures
