"""Makes what environments of other packages run in: `python tools/install_envs.py verifiers .venv-verifiers`.

They live in environments of their own, because their pins clash with EARL's or because they bring a hundred
packages that only their own servers need. `verifiers` holds EARL's base install too: its env host runs there.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from install import ROOT, make_environment, pip

# By name: what is installed, and what must then be importable.
ENVIRONMENTS: dict[str, tuple[list[str], str]] = {
    # The host of earl/env/adapters/verifiers.py.
    "verifiers": (["-e", str(ROOT), "verifiers==0.4.0"], "import earl.env.adapters.verifiers"),
    # A server for earl/env/adapters/openenv.py to play; the adapter itself needs none of it.
    "openenv": (["openenv==0.10.0"], "import openenv.core.env_server"),
    # Ray's client and raylets, for `earl up --on ray`; EARL is not in it.
    "ray": (["ray==2.60.0"], "import ray"),
}


def main() -> int:
    if len(sys.argv) != 3 or sys.argv[1] not in ENVIRONMENTS:
        print(f"usage: python tools/install_envs.py {'|'.join(ENVIRONMENTS)} DIRECTORY")
        return 2
    packages, proof = ENVIRONMENTS[sys.argv[1]]
    target = Path(sys.argv[2])
    python = make_environment(target)
    print(f"install: {sys.argv[1]} into {target} (a minute)", flush=True)
    if not pip(python, "install", "--quiet", *packages):
        print("install: pip could not install it; see its message above")
        return 1
    # The first import also writes the byte code.
    if subprocess.run([python, "-c", proof], check=False).returncode != 0:
        print(f"install: {sys.argv[1]} does not load in {target}; remove it and run make setup-envs again")
        return 1
    print(f"install: done, {target} holds {sys.argv[1]}", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
