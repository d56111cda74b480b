"""The figures of each environment of a mixture and of each seat of self-play, out of flat metrics. Pure.

environments.LABEL.FIGURE            of an environment, in a run that has several
seats.SEAT.FIGURE                    of a seat, where the policy has several
environments.LABEL.seats.SEAT.FIGURE of a seat of one environment
"""

from __future__ import annotations

import re
from collections.abc import Mapping

PREFIX = "environments."
_SEAT = re.compile(r"(?:environments\.(?P<label>.+)\.)?seats\.(?P<seat>\d+)\.(?P<figure>[^.]+)")

Figures = dict[str, float]


def by_environment(metrics: Mapping[str, float]) -> dict[str, Figures]:
    """The figures of each environment by label and name, without those of seats; {} in a run of one."""
    figures: dict[str, Figures] = {}
    for name, value in metrics.items():
        if name.startswith(PREFIX) and _SEAT.fullmatch(name) is None:
            label, _, figure = name.removeprefix(PREFIX).rpartition(".")
            figures.setdefault(label, {})[figure] = value
    return figures


def by_seat(metrics: Mapping[str, float]) -> dict[str, dict[int, Figures]]:
    """The figures of each seat, by the label of its environment, in the order of seats; {} without self-play.

    In a mixture each environment that is played from several seats has its own; in a run of one environment
    the label is "".
    """
    seats: dict[str, dict[int, Figures]] = {}
    for name, value in metrics.items():
        if (match := _SEAT.fullmatch(name)) is not None:
            label, seat, figure = match.group("label") or "", int(match.group("seat")), match.group("figure")
            seats.setdefault(label, {}).setdefault(seat, {})[figure] = value
    if len(seats) > 1:
        seats.pop("", None)  # over all environments: a first mover here is a second one there
    return {label: dict(sorted(of_label.items())) for label, of_label in seats.items()}
