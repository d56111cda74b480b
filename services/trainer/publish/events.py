"""The trainer's event on the bus: a version of the weights was published."""

from __future__ import annotations

from earl.v1 import events_pb2


def weights_published(version: int, keys: list[str], size_bytes: int) -> events_pb2.Event:
    """Builds the event that these descriptors together hold this version. size_bytes: of all ranks."""
    fact = events_pb2.WeightsPublished(version=version, descriptor_keys=keys, size_bytes=size_bytes)
    return events_pb2.Event(weights_published=fact)
