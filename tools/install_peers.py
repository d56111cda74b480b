"""Makes the environment of a peer that EARL is measured against: `python tools/install_peers.py .venv-trl`.

TRL lives in an environment of its own, so that its pins never decide EARL's; torch and transformers are
EARL's own versions in both, so that a comparison is one of the trainers and not of their torch.
"""

from __future__ import annotations

import re
import sys
import venv
from pathlib import Path

from install import ROOT, pip, torch_arguments, torch_pin

# The release whose numbers tests/unit/data/trl_parity.json holds.
TRL = "trl==1.16.0"


def pinned(package: str) -> str:
    """`package==version` as pyproject.toml has it."""
    found = re.search(rf'"({re.escape(package)}==[^"]+)"', (ROOT / "pyproject.toml").read_text())
    if found is None:
        raise SystemExit(f"install_peers: pyproject.toml pins no {package}==X.Y.Z")
    return found.group(1)


def main() -> int:
    if len(sys.argv) != 2:
        print("usage: python tools/install_peers.py DIRECTORY")
        return 2
    target = Path(sys.argv[1])
    python = target / "bin" / "python"
    if not python.exists():
        print(f"install: creating {target}", flush=True)
        venv.create(target, with_pip=True)
    version = torch_pin()
    print(f"install: torch {version} and {TRL} into {target}", flush=True)
    if not pip(python, "install", "--quiet", *torch_arguments(python, version)):
        print(f"install: no build of torch {version} could be installed; see pip's message above")
        return 1
    # torch is named again so that nothing replaces the build that is in place.
    wanted = [TRL, f"torch=={version}", *map(pinned, ("transformers", "safetensors"))]
    if not pip(python, "install", "--quiet", *wanted):
        print("install: pip could not install TRL; see its message above")
        return 1
    print(f"install: done, {target} holds {TRL}", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
