"""Reading and writing checkpoint directories: config.json, *.safetensors, tokenizer.json.

Tensors are read one by one, and only the slice that is needed: no state dict of the whole model
ever exists. Never torch.load, never pickle.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from earl.dispatch.layout.box import Box
from earl.errors import ModelNotFound, UnsupportedModel
from earl.models.module import Decoder
from earl.models.partial import partial_path
from earl.models.slices import rank_parameters
from earl.models.spec import ModelSpec, load_spec

# Files that transformers needs in addition to the weights; copied when present.
SIDE_FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "vocab.json",
    "merges.txt",
)
# Bytes of one safetensors file; larger models are written as several, with an index.
SHARD_BYTES = 4 << 30


class Checkpoint:
    """The tensors of one directory, read lazily. Raises ModelNotFound if there are none."""

    def __init__(self, directory: str | Path) -> None:
        self.directory = Path(directory)
        index = self.directory / "model.safetensors.index.json"
        single = self.directory / "model.safetensors"
        self._open: dict[str, Any] = {}
        if index.is_file():
            weight_map = json.loads(index.read_text())["weight_map"]
            self._files: dict[str, str] = {name: str(file) for name, file in weight_map.items()}
        elif single.is_file():
            self._files = dict.fromkeys(self._handle(single.name).keys(), single.name)
        else:
            raise ModelNotFound(
                f"model directory {str(directory)!r} has neither model.safetensors nor its index",
                "save the model as safetensors (save_pretrained does)",
            )

    def _handle(self, file: str) -> Any:
        if file not in self._open:
            try:
                self._open[file] = safe_open(self.directory / file, framework="pt")
            except (OSError, SafetensorError) as error:
                raise ModelNotFound(
                    f"{self.directory / file} cannot be read: {error}",
                    "download or save the checkpoint again",
                ) from None
        return self._open[file]

    @property
    def names(self) -> list[str]:
        return list(self._files)

    def _slice(self, name: str) -> Any:
        if name not in self._files:
            raise ModelNotFound(
                f"checkpoint {str(self.directory)!r} has no tensor {name!r}", "save the whole model again"
            )
        return self._handle(self._files[name]).get_slice(name)

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._slice(name).get_shape())

    def read(self, name: str, box: Box | None = None) -> torch.Tensor:
        """The tensor, or its box, in the file's dtype. Raises ModelNotFound."""
        whole = self._slice(name)
        if box is None:
            return whole[:]
        return whole[tuple(slice(a, b) for a, b in zip(box.start, box.stop, strict=True))]

    def check(self, spec: ModelSpec) -> None:
        """Raises ModelNotFound for a missing tensor, UnsupportedModel for one of another shape."""
        for name, expected in spec.shapes().items():
            shape = self.shape(name)
            if shape != expected:
                raise UnsupportedModel(
                    f"{self.directory}: {name} has shape {shape}, config.json implies {expected}",
                    "config.json and weights are of different models",
                )


def check_model(directory: str | Path) -> ModelSpec:
    """The spec of a directory that has all an engine and a trainer need.

    Raises ModelNotFound or UnsupportedModel, naming the file that is missing or wrong.
    """
    spec = load_spec(directory)
    Checkpoint(directory).check(spec)
    check_tokenizer(directory)
    return spec


def check_tokenizer(directory: str | Path) -> None:
    """Raises ModelNotFound unless the directory has a tokenizer."""
    if not (Path(directory) / "tokenizer.json").is_file():
        raise ModelNotFound(
            f"model directory {str(directory)!r} has no tokenizer.json",
            "save the tokenizer there (AutoTokenizer(...).save_pretrained)",
        )


def load_decoder(decoder: Decoder, directory: str | Path) -> None:
    """Fills a decoder (its tp slices) from a checkpoint, casting to the parameters' dtype."""
    checkpoint, spec = Checkpoint(directory), decoder.spec
    with torch.no_grad():
        parameters = rank_parameters(spec, decoder.tp.rank, decoder.tp.size)
        for name, parameter in decoder.named_parameters():
            for part in parameters[name].parts:
                parameter[part.target.slices()].copy_(checkpoint.read(part.source, part.box))


@contextmanager
def written_whole(directory: str | Path) -> Iterator[Path]:
    """Yields an empty directory that is renamed to `directory` at the end, or removed after an error.

    `directory` must not exist. Its files get one mode, that of any new file under the process's umask:
    safetensors makes files that only their owner reads, and copies have the mode of their source.
    """
    target = Path(directory)
    partial = partial_path(target, os.getpid())
    partial.mkdir(parents=True)
    try:
        yield partial
        mode = stat.S_IMODE(partial.stat().st_mode) & 0o777
        for path in partial.rglob("*"):
            path.chmod(mode if path.is_dir() else mode & 0o666)
        os.rename(partial, target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def save_checkpoint(
    directory: str | Path,
    source: str | Path,
    tensors: Iterable[tuple[str, torch.Tensor]],
    dtype: str = "",
    texts: Mapping[str, str] | None = None,
) -> None:
    """Writes a directory that transformers reads: `tensors` (whole, transformers names) and the
    configuration and tokenizer files of `source`. dtype: of the tensors, written into the
    configuration, since transformers computes in it; empty: as in `source`. texts: further files by name,
    which take the place of those of `source`.

    The directory appears whole (renamed into place) and must not exist. Shards of SHARD_BYTES are
    written as tensors come, so an iterator that gathers one tensor at a time stays small.
    """
    with written_whole(directory) as partial:
        copy_side_files(source, partial, SIDE_FILES, texts or {})
        if dtype:
            config = json.loads((partial / "config.json").read_text(encoding="utf-8"))
            config.pop("torch_dtype", None)  # its name before transformers 5
            text = json.dumps(config | {"dtype": dtype}, indent=2)
            (partial / "config.json").write_text(text + "\n", encoding="utf-8")
        _write_shards(partial, tensors)


def copy_side_files(source: str | Path, target: Path, names: Iterable[str], texts: Mapping[str, str]) -> None:
    """Copies the files of `source` with these names, where it has them, and writes `texts` by their names."""
    for name in names:
        if name not in texts and (Path(source) / name).is_file():
            shutil.copyfile(Path(source) / name, target / name)
    for name, text in texts.items():
        (target / name).write_text(text, encoding="utf-8")


def _write_shards(directory: Path, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
    shards: list[list[str]] = []
    pending: dict[str, torch.Tensor] = {}
    size = total = 0

    def flush() -> None:
        save_file(pending, directory / f"shard-{len(shards)}", metadata={"format": "pt"})
        shards.append(list(pending))
        pending.clear()

    for name, tensor in tensors:
        tensor = tensor.detach().cpu().contiguous()
        bytes_ = tensor.numel() * tensor.element_size()
        if pending and size + bytes_ > SHARD_BYTES:
            flush()
            size = 0
        pending[name] = tensor
        size, total = size + bytes_, total + bytes_
    flush()
    if len(shards) == 1:
        os.rename(directory / "shard-0", directory / "model.safetensors")
        return
    weight_map = {}
    for number, names in enumerate(shards):
        file = f"model-{number + 1:05d}-of-{len(shards):05d}.safetensors"
        os.rename(directory / f"shard-{number}", directory / file)
        weight_map.update(dict.fromkeys(names, file))
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index, indent=1))
