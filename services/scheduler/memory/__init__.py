"""Predicts a stage's use of a device's memory in a parallelism: `predict`."""

from services.scheduler.memory.model import Device, predict, ranks_here
from services.scheduler.memory.numbers import ModelNumbers
from services.scheduler.memory.parts import MemoryParts

__all__ = ["Device", "MemoryParts", "ModelNumbers", "predict", "ranks_here"]
