"""The gain of each environment of a mixture over seeds, and which environments have not learned. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

# An environment has learned if its whole interval lies above 0 in 2 of 3 seeds, or that share of others.
IMPROVED, OF_SEEDS = 2, 3
STARTED = ("win_rate", "mean_reward")

COMPARES = (
    "In a mixture, environments has the same of each environment alone, and environment_gains a row for each "
    "environment and seed: improved if its whole interval lies above 0. An environment is missed unless it "
    "improved in 2 of 3 seeds."
)


def with_start(
    final: Mapping[str, Mapping[str, float]], start: Mapping[str, Mapping[str, float]]
) -> dict[str, dict[str, float]]:
    """The figures of each environment's last evaluation by label, with those of the first as start_NAME."""
    return {
        label: {
            **figures,
            **{f"start_{name}": start[label][name] for name in STARTED if name in start.get(label, ())},
        }
        for label, figures in final.items()
    }


def environment_gains(runs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A row for each environment and seed; a figure that a run lacks is null: no improvement."""
    names = ("start_mean_reward", "mean_reward", "gain", "gain_low", "gain_high")
    return [
        {
            "environment": label,
            "seed": run["seed"],
            **{name: run["environments"].get(label, {}).get(name) for name in names},
            "improved": run["environments"].get(label, {}).get("gain_low", 0.0) > 0,
        }
        for label in labels(runs)
        for run in runs
    ]


def labels(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """The labels of all environments, in the order of the mixture."""
    return list(dict.fromkeys(label for run in runs for label in run["environments"]))


def environment_summary(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The figures of each environment over the seeds; {} unless every run is of a mixture.

    runs: the figures of each seed's run. A seed whose gain is not known has not improved, and leaves the
    median and the least gain null. environments_missed: labels of those that improved in too few seeds.
    """
    if not runs or not all(run.get("environments") for run in runs):
        return {}
    rows, names = environment_gains(runs), labels(runs)
    summary = {label: _over_seeds([row for row in rows if row["environment"] == label]) for label in names}
    return {
        "environment_gains": rows,
        "environments": summary,
        "environments_missed": [label for label, over in summary.items() if not over["learned"]],
    }


def _over_seeds(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    gains = [row["gain"] for row in rows]
    improved = sum(row["improved"] for row in rows)

    def over(function: Callable[[list[float]], float]) -> float | None:
        return None if None in gains else function(gains)

    return {
        "seeds_improved": improved,
        "learned": OF_SEEDS * improved >= IMPROVED * len(rows),
        "gain_median": over(statistics.median),
        "gain_min": over(min),
    }
