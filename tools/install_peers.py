"""Makes environments of peers that EARL is measured against: `python tools/install_peers.py trl .venv-trl`.

Peers live in environments of their own, so that their pins never decide EARL's; torch (and transformers) are
EARL's own versions in all, so that a comparison is one of the peers and not of their torch. TRL with vLLM
has an environment besides TRL's own: beside vLLM every start of TRL would import it.
"""

from __future__ import annotations

import sys
from pathlib import Path

from install import locked_version, make_environment, pip, torch_arguments
from install_vllm import UNUSABLE, pinned

# The release whose numbers tests/peers/recorded.json holds.
TRL = "trl==1.16.0"
# By name: what is measured, and what of EARL's pins must be the same there.
PEERS: dict[str, tuple[list[str], list[str]]] = {
    "trl": ([TRL], ["transformers", "safetensors"]),
    # TRL with vLLM as its sampler, for `earl bench e2e`. TRL names vLLM up to 0.31 and warns of a newer one;
    # EARL's own is the one that both sides of a comparison should have.
    "trl-vllm": ([TRL, pinned()], ["transformers", "safetensors"]),
    # What `earl bench dispatch` sets beside the data plane.
    "queue": (["TransferQueue==0.1.11", "ray==2.60.0"], []),
}


def main() -> int:
    if len(sys.argv) != 3 or sys.argv[1] not in PEERS:
        print(f"usage: python tools/install_peers.py {'|'.join(PEERS)} DIRECTORY")
        return 2
    peers, same = PEERS[sys.argv[1]]
    target = Path(sys.argv[2])
    python = make_environment(target)
    version = locked_version("torch")
    print(f"install: torch {version} and {', '.join(peers)} into {target}", flush=True)
    if not pip(python, "install", "--quiet", *torch_arguments(python)):
        print(f"install: no build of torch {version} could be installed; see pip's message above")
        return 1
    # torch is named again so that nothing replaces the build that is in place.
    packages = [*peers, f"torch=={version}", *(f"{package}=={locked_version(package)}" for package in same)]
    if not pip(python, "install", "--quiet", *packages):
        print("install: pip could not install them; see its message above")
        return 1
    if pinned() in peers and not pip(python, "uninstall", "--quiet", "--yes", *UNUSABLE):
        return 1
    print(f"install: done, {target} holds {', '.join(peers)}", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
