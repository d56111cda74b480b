"""Parallelism, and the figures of its switches, between values and messages.

Figures go by name: each field of SwitchFigures has one of the same name in the message of that name. Before
that message, responses had some figures in fields of their own; they are filled for readers, and read from
writers, that know no others. Commands and outcomes are in earl.switch_codec.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from earl.parallelism import Parallelism
from earl.switch_figures import SwitchFigures
from earl.v1 import common_pb2

if TYPE_CHECKING:
    from earl.v1 import events_pb2, rollout_pb2, scheduler_pb2, trainer_pb2

    FiguresMessage = (
        rollout_pb2.ReparallelizeRolloutResponse
        | trainer_pb2.ReparallelizeTrainerResponse
        | scheduler_pb2.Switch
        | events_pb2.ParallelismChanged
    )

# Fields of older messages that have a figure under another name.
_OLDER_NAMES = {"kv_moved_bytes": "moved_bytes"}


def encode_parallelism(parallelism: Parallelism) -> common_pb2.Parallelism:
    return common_pb2.Parallelism(**parallelism.as_dict())


def decode_parallelism(message: common_pb2.Parallelism) -> Parallelism:
    """The parallelism of a message; a degree that was left out is 1."""
    return Parallelism(message.dp or 1, message.tp or 1, message.cp or 1, message.pp or 1)


def put_figures(figures: SwitchFigures, message: FiguresMessage) -> None:
    """Fills the message's `figures`, and the older fields of it that repeat some of them."""
    values = figures.figures()
    message.figures.CopyFrom(common_pb2.SwitchFigures(**values))
    for name, older in _older_fields(message).items():
        setattr(message, older, values[name])


def figures_of(message: FiguresMessage) -> dict[str, Any]:
    """Figures by name; where a writer of before `figures` sent the message, those it has older fields for."""
    if message.HasField("figures"):
        values = {name: getattr(message.figures, name) for name in SwitchFigures().figures()}
        return values | {"phases_s": dict(values["phases_s"])}
    return {name: getattr(message, older) for name, older in _older_fields(message).items()}


def _older_fields(message: FiguresMessage) -> dict[str, str]:
    """Figure -> the message's field that repeats it."""
    figures = SwitchFigures().figures()
    names = {_OLDER_NAMES.get(name, name): name for name in message.DESCRIPTOR.fields_by_name}
    return {figure: name for figure, name in names.items() if figure in figures}
