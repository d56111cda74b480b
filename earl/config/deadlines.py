"""Deadlines that a run file leaves open, by the bytes that have to be read (docs/devices.md)."""

from __future__ import annotations

from pathlib import Path

from earl.config.run import RunConfig

# A process reads its model, makes its arenas and, on resume, checks the checkpoint's hashes.
START_S = 60.0
START_BYTES_PER_S = 50e6
# Engines read a version of the weights from the trainer's arenas, over a network at worst.
LOAD_BYTES_PER_S = 100e6


def checkpoint_bytes(config: RunConfig) -> int:
    """The size of the checkpoint that a run begins with; 0 for one from scratch, or that is not here."""
    path = config.model.path
    if not path:
        return 0
    directory = Path(path).expanduser()
    return sum(file.stat().st_size for file in directory.glob("*.safetensors")) if directory.is_dir() else 0


def start_seconds(config: RunConfig, model_bytes: int) -> float:
    """Seconds that a process with a model of so many bytes may take to become ready."""
    return config.stack.start_s or START_S + model_bytes / START_BYTES_PER_S


def load_seconds(config: RunConfig, model_bytes: int) -> float:
    """Seconds that one load of a version of so many bytes into an engine may take."""
    return config.data_plane.read_s + model_bytes / LOAD_BYTES_PER_S
