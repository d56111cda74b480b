"""The manifest of a checkpoint as one value; written whole, then renamed: the truth about training.

A manifest names every file with its size and checksum, and for each tensor which file holds which
box, so that a group of any size can restore it.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass

import msgspec

from earl.config.run import RunConfig
from earl.dispatch.layout.box import Box, Layout, ShardBox
from earl.errors import CheckpointError, LayoutError
from earl.models.spec import ModelSpec
from earl.ticket_ranges import RangeSet
from services.trainer.model.adapters import AdapterEntry

FORMAT = 1
# What to do about a checkpoint that is not whole.
ANOTHER = "take another version of the run's checkpoints"
FILE = "manifest.json"


@dataclass(frozen=True, slots=True)
class FileEntry:
    """A file next to the manifest. xxh3: 128-bit hash of its bytes, hexadecimal."""

    name: str
    size_bytes: int
    xxh3: str


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """One parameter: its global shape, and per part (index into files, start, stop)."""

    shape: tuple[int, ...]
    parts: tuple[tuple[int, tuple[int, ...], tuple[int, ...]], ...]


@dataclass(frozen=True, slots=True)
class TrainingProgress:
    """The progress of training.

    version: of the parameters. next_batch_id: first batch that they were not trained on. consumed:
    every ticket that they were trained on. updates: of the optimizer since its moments were zero.
    """

    version: int
    next_batch_id: int
    consumed: RangeSet
    updates: int


@dataclass(frozen=True, slots=True)
class Manifest:
    """The content of a checkpoint: the progress of training, and which file has which part of which tensor.

    model, config: fingerprints of the model's shapes and of the run's settings. adapter: of which weights the
    tensors are adapters; None if they are the model itself.
    """

    progress: TrainingProgress
    model: str
    config: str
    adapter: AdapterEntry | None
    files: tuple[FileEntry, ...]
    tensors: dict[str, TensorEntry]

    def layout(self, name: str) -> Layout:
        """Returns how a parameter is spread over the files; owners are file names. Raises CheckpointError."""
        entry = self.tensors.get(name)
        if entry is None:
            raise CheckpointError(f"the checkpoint lacks {name!r}", "it belongs to another model")
        shards = tuple(ShardBox(self.files[file].name, Box(start, stop)) for file, start, stop in entry.parts)
        return Layout(name, "float32", entry.shape, shards)

    def encode(self) -> bytes:
        """The manifest as indented JSON."""
        entries = asdict(self)
        value = {"format": FORMAT, **entries.pop("progress"), **entries}
        return json.dumps(value, indent=1, default=lambda consumed: consumed.ranges).encode() + b"\n"

    @classmethod
    def decode(cls, data: bytes) -> Manifest:
        """The manifest in what `encode` gave. Raises CheckpointError when it is torn or of another format."""
        try:
            value = json.loads(data)
            if value["format"] != FORMAT:
                raise CheckpointError(
                    f"format {value['format']!r}, this trainer reads {FORMAT}",
                    "use the version that wrote it",
                )
            entries = {"adapter": None, **value, "progress": value}
            manifest = msgspec.convert(entries, cls, dec_hook=_consumed)
            for name in manifest.tensors:
                manifest.layout(name).validate()
        except (ValueError, KeyError, TypeError, IndexError, LayoutError, msgspec.MsgspecError) as error:
            raise CheckpointError(f"no manifest: {error!r}", ANOTHER) from error
        return manifest


def _consumed(_: type, ranges: list[list[int]]) -> RangeSet:
    """The set of half-open ranges. Raises ValueError for what is no range of ticket ids."""
    for start, stop in ranges:
        if not 0 <= start <= stop:
            raise ValueError(f"[{start}, {stop}) is no range of ticket ids")
    return RangeSet((start, stop) for start, stop in ranges)


def fingerprint(spec: ModelSpec) -> str:
    """Identifies the shapes that a checkpoint fits."""
    return hashlib.sha256(json.dumps(asdict(spec), sort_keys=True).encode()).hexdigest()[:32]


def config_hash(config: RunConfig) -> str:
    """Identifies the settings that training depends on."""
    scheduler = config.scheduler.model_dump_json(
        include={"group_size", "batch_groups", "staleness", "temperature", "advantage", "max_turns"}
    )
    rollout = config.rollout.model_dump_json(include={"dtype", "max_context_tokens", "max_new_tokens"})
    environments = [entry.section for entry in config.mixture]
    sections = (config.model, *environments, config.trainer, config.warmup)
    parts = [str((config.seed, config.deterministic)), scheduler, rollout]
    parts += [section.model_dump_json() for section in sections]
    # Only where there is replay: settings of runs without are those of before.
    parts += [config.replay.model_dump_json()] if config.replay.reuse else []
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]
