"""Packs what a machine with a GPU and no network lacks to run `earl bench gpu`: `make gpu-kit`.

    python tools/gpu_kit.py [--out DIRECTORY]     needs a package index; packs the commit that is checked out

The machine has Python 3.12, torch and transformers with what they need (PROVIDED). The archive has wheels of
the rest in the versions of requirements.lock, EARL's own wheel, its source with the tests of the engine
contract, and a script that installs all of it into a folder of its own and runs the checks.
"""

from __future__ import annotations

import argparse
import io
import re
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tools.git_command import git_if_any
from tools.install import ROOT, Locked, normal, read_lock, requirements

MOST_BYTES = 44 << 20
EXTRAS = ("open-spiel", "stack")
# The contract's tests, and the configuration of all tests.
TESTS = ("hypothesis", "psutil", "pytest", "pytest-asyncio", "pytest-timeout")
# On the machine already: torch and transformers, and what neither comes without.
PROVIDED = frozenset(
    (
        *("torch", "transformers", "tokenizers", "safetensors", "uvloop", "numpy", "rich"),
        *(
            "click",
            "filelock",
            "fsspec",
            "huggingface-hub",
            "jinja2",
            "markdown-it-py",
            "markupsafe",
            "mdurl",
        ),
        *("mpmath", "networkx", "packaging", "pygments", "pyyaml", "regex", "setuptools", "shellingham"),
        *("sympy", "tqdm", "typing-extensions"),
    )
)
# Needed by no check: open-spiel's solvers use scipy, its games do not; live views use textual.
LEFT_OUT = frozenset({"scipy", "textual"})
PYTHON = "3.12"
PLATFORMS = ("2_34", "2_28", "2_27", "2_24", "2_17", "2_12", "2_5")
# What is run on the machine, from the archive's folder.
RUN = """#!/bin/sh
# sh run.sh [options of earl bench gpu]: installs into ./site, and nowhere else, and runs the checks.
set -e
here=$(cd "$(dirname "$0")" && pwd)
python=${PYTHON:-python3}
[ -d "$here/site" ] || "$python" -m pip install --quiet --disable-pip-version-check --no-index --no-deps \\
  --target "$here/site" "$here"/wheels/*.whl
export PYTHONPATH="$here/source:$here/site${PYTHONPATH:+:$PYTHONPATH}" PATH="$here/site/bin:$PATH"
cd "$here/source"
exec "$python" -c "from earl.cli.main import main; main()" bench gpu "$@"
"""


def marked(package: Locked) -> bool:
    """Returns whether a package's marker holds on the machine; one without a marker is wanted everywhere."""
    from pip._vendor.packaging.markers import Marker

    line = package.text.partition("\n")[0].rstrip("\\ ")
    _, _, marker = line.partition(";")
    environment = {
        "python_version": PYTHON,
        "python_full_version": f"{PYTHON}.0",
        "implementation_name": "cpython",
        "platform_python_implementation": "CPython",
        "sys_platform": "linux",
        "platform_system": "Linux",
        "platform_machine": "x86_64",
    }
    return not marker or Marker(marker.strip()).evaluate(environment)


def selected(packages: Iterable[Locked], roots: Iterable[str]) -> list[Locked]:
    """The packages that `roots` need, without those that are on the machine and what only those need."""
    outside = PROVIDED | LEFT_OUT
    here = [package for package in packages if package.name not in outside and marked(package)]
    chosen = {normal(name) for name in roots} - outside
    while more := {package.name for package in here if package.via & chosen} - chosen:
        chosen |= more
    return [package for package in here if package.name in chosen]


def roots() -> set[str]:
    """Names that EARL and the contract's tests require."""
    names = (re.match(r"[A-Za-z0-9._-]+", requirement) for requirement in requirements(EXTRAS))
    return {normal(name[0]) for name in names if name} | set(TESTS)


def wheels(packages: Sequence[Locked], directory: Path) -> None:
    """Downloads the packages' wheels for the machine, hashes checked. Raises CalledProcessError."""
    lines = (re.sub(r" ;[^\\]*", " ", package.text.partition("\n")[0]) for package in packages)
    texts = [
        "\n".join((line, *package.text.splitlines()[1:]))
        for line, package in zip(lines, packages, strict=True)
    ]
    file = directory.parents[1] / "requirements.txt"
    file.write_text("\n".join(texts) + "\n", encoding="utf-8")
    command = [
        "download",
        "--no-deps",
        "--only-binary",
        ":all:",
        "--require-hashes",
        "--dest",
        str(directory),
    ]
    command += ["--python-version", PYTHON, "--implementation", "cp", "--requirement", str(file)]
    for abi in (f"cp{PYTHON.replace('.', '')}", "abi3", "none"):
        command += ["--abi", abi]
    for release in PLATFORMS:
        command += ["--platform", f"manylinux_{release}_x86_64"]
    command += ["--platform", "manylinux2014_x86_64", "--platform", "manylinux2010_x86_64"]
    _pip(*command)


def _pip(*arguments: str) -> None:
    subprocess.run(
        [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", *arguments], check=True
    )


def source(directory: Path, commit: str) -> None:
    """Unpacks the commit's files but its saved results and documents, and writes which commit it is."""
    command = ["git", "-C", str(ROOT), "archive", "--format=tar", commit, "--", "."]
    command += [":!benchmarks/results", ":!docs", ":!tests/browser", ":!tests/fixtures"]
    done = subprocess.run(command, check=True, capture_output=True)
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        archive.extractall(directory, filter="data")
    (directory / "COMMIT").write_text(f"{commit}\n", encoding="ascii")


def packed(directory: Path, out: Path, name: str) -> Path:
    """Writes the folder as one archive; wheels are compressed already."""
    path = out / f"{name}.tar.gz"
    out.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz", compresslevel=9) as archive:
        archive.add(directory, arcname=name)
    return path


def check_size(size_bytes: int, parts: dict[str, int]) -> None:
    """Raises SystemExit, naming the largest parts, if an archive is larger than MOST_BYTES."""
    if size_bytes <= MOST_BYTES:
        return
    largest = sorted(parts.items(), key=lambda part: -part[1])[:3]
    named = ", ".join(f"{name} {size / (1 << 20):.1f}" for name, size in largest)
    raise SystemExit(
        f"gpu kit: {size_bytes / (1 << 20):.1f} MiB, more than {MOST_BYTES >> 20}; the largest: {named}"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="folder of the archive")
    given: Any = parser.parse_args(arguments)
    commit = git_if_any(ROOT, "rev-parse", "--short=12", "HEAD")
    if not commit:
        print("gpu kit: this is no git checkout; the kit has the files of a commit")
        return 2
    if git_if_any(ROOT, "status", "--porcelain", "--untracked-files=no"):
        print(f"gpu kit: uncommitted changes are left out, the kit has {commit}")
    name = f"earl-gpu-kit-{commit}"
    with tempfile.TemporaryDirectory() as temporary:
        kit = Path(temporary) / name
        (kit / "wheels").mkdir(parents=True)
        source(kit / "source", commit)
        # A wheel is built in a copy: setuptools leaves folders behind where it builds.
        build = Path(temporary) / "build"
        source(build, commit)
        _pip("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(kit / "wheels"), str(build))
        wheels(selected(read_lock(), roots()), kit / "wheels")
        (kit / "run.sh").write_text(RUN, encoding="utf-8")
        sizes = {path.name: path.stat().st_size for path in (kit / "wheels").iterdir()}
        path = packed(kit, given.out, name)
    check_size(path.stat().st_size, sizes)
    print(f"gpu kit: {path}, {path.stat().st_size / (1 << 20):.1f} MiB, {len(sizes)} wheels")
    print("on the machine, in the folder that has it:")
    print(f"tar xzf {path.name} && sh {name}/run.sh --json")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
