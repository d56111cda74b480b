"""The contract's numbers of purposes, endings and stages."""

from __future__ import annotations

from typing import Any

from earl.parallelism import NUMBERED_STAGES
from earl.v1 import common_pb2
from services.scheduler.state.tickets import EpisodeEnding, Purpose

PURPOSES: dict[Purpose, Any] = {
    purpose: common_pb2.Purpose.Value(f"PURPOSE_{purpose.name}") for purpose in Purpose
}
ENDING_NUMBERS: dict[EpisodeEnding, Any] = {
    ending: common_pb2.Ending.Value(f"ENDING_{ending.name}") for ending in EpisodeEnding
}
ENDINGS = {number: ending for ending, number in ENDING_NUMBERS.items()}
STAGE_NUMBERS: dict[str, Any] = {
    name: common_pb2.Stage.Value(f"STAGE_{name.upper()}") for name in NUMBERED_STAGES
}
