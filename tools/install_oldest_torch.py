"""Makes an environment with the oldest torch that EARL takes: `install_oldest_torch.py DIRECTORY`.

Everything else in it is of requirements.lock. tests/integration/test_oldest_torch.py runs tests there.
"""

from __future__ import annotations

import re
import sys
import tempfile
from pathlib import Path

from install import MODEL, ROOT, locked, make_environment, pip, requirements, torch_arguments


def oldest_torch() -> str:
    """The lower bound of torch in pyproject.toml, such as "2.11.0"."""
    (bounds,) = (each for each in requirements(["dev"]) if re.match(r"torch\b", each))
    lowest = re.search(r">=\s*([0-9.]+)", bounds)
    if lowest is None:
        raise SystemExit(f"install: {bounds!r} in pyproject.toml names no oldest torch; give it a >=")
    return ".".join([*lowest[1].split("."), "0", "0"][:3])


def main() -> int:
    if len(sys.argv) != 2:
        print("usage: python tools/install_oldest_torch.py DIRECTORY")
        return 2
    python = make_environment(Path(sys.argv[1]))
    version = oldest_torch()
    print(f"install: torch {version} (where no build for CPUs is offered, 5 GB with CUDA)", flush=True)
    if not pip(python, "install", "--quiet", "--no-compile", *torch_arguments(python, version)):
        print(f"install: no build of torch {version} could be installed; see pip's message above")
        return 1
    packages = [package for package in locked(["dev"], cpu=True) if package.name != "torch"]
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "requirements.txt"
        file.write_text("\n".join(package.text for package in packages) + "\n", encoding="utf-8")
        print(f"install: {len(packages)} packages of requirements.lock, EARL", flush=True)
        quick = ("--quiet", "--no-compile", "--no-deps")
        for lock in (file, MODEL):
            if not pip(python, "install", *quick, "--require-hashes", "--requirement", str(lock)):
                print("install: pip could not install what EARL depends on; see its message above")
                return 1
        if not pip(python, "install", *quick, "--no-build-isolation", "-e", str(ROOT)):
            print("install: pip could not install EARL; see its message above")
            return 1
    print(f"install: done, {python.parent.parent} holds torch {version}", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
