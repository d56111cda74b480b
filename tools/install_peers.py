"""Makes environments of peers that EARL is measured against: `python tools/install_peers.py trl .venv-trl`.

Peers live in environments of their own, so that their pins never decide EARL's; torch (and transformers) are
EARL's own versions in all, so that a comparison is one of the peers and not of their torch.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from install import ROOT, made, pip, torch_arguments, torch_pin

# By name: what is measured, and what of EARL's pins must be the same there.
PEERS: dict[str, tuple[list[str], list[str]]] = {
    # The release whose numbers tests/peers/recorded.json holds.
    "trl": (["trl==1.16.0"], ["transformers", "safetensors"]),
    # What `earl bench dispatch` sets beside the data plane.
    "queue": (["TransferQueue==0.1.11", "ray==2.60.0"], []),
}


def pinned(package: str) -> str:
    """`package==version` as pyproject.toml has it."""
    found = re.search(rf'"({re.escape(package)}==[^"]+)"', (ROOT / "pyproject.toml").read_text())
    if found is None:
        raise SystemExit(f"install_peers: pyproject.toml pins no {package}==X.Y.Z")
    return found.group(1)


def main() -> int:
    if len(sys.argv) != 3 or sys.argv[1] not in PEERS:
        print(f"usage: python tools/install_peers.py {'|'.join(PEERS)} DIRECTORY")
        return 2
    peers, same = PEERS[sys.argv[1]]
    target = Path(sys.argv[2])
    python = made(target)
    version = torch_pin()
    print(f"install: torch {version} and {', '.join(peers)} into {target}", flush=True)
    if not pip(python, "install", "--quiet", *torch_arguments(python, version)):
        print(f"install: no build of torch {version} could be installed; see pip's message above")
        return 1
    # torch is named again so that nothing replaces the build that is in place.
    wanted = [*peers, f"torch=={version}", *map(pinned, same)]
    if not pip(python, "install", "--quiet", *wanted):
        print("install: pip could not install them; see its message above")
        return 1
    print(f"install: done, {target} holds {', '.join(peers)}", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
