"""Parallelism between the value and the message."""

from __future__ import annotations

from earl.parallelism import Parallelism
from earl.v1 import common_pb2


def encode_parallelism(parallelism: Parallelism) -> common_pb2.Parallelism:
    return common_pb2.Parallelism(**parallelism.as_dict())


def decode_parallelism(message: common_pb2.Parallelism) -> Parallelism:
    """The parallelism of a message; a degree that was left out is 1."""
    return Parallelism(message.dp or 1, message.tp or 1, message.cp or 1, message.pp or 1)
