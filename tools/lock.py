"""Makes requirements.lock: what `make` and the images install, by version and hash.

    python -m tools.lock            newer versions, as far as pyproject.toml and what is locked allow
    python -m tools.lock upgrade    the newest versions that pyproject.toml allows
    python -m tools.lock check      whether it satisfies pyproject.toml, without a network (`make check`)

All extras but `vllm`, which has an environment of its own, and what builds EARL. tools/model.lock has the
model's package alone, without what it requires; its version changes by hand. The locks name no address: pip
takes each build from wherever it is configured to look, and refuses one whose hash is not listed.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator

from packaging.requirements import Requirement

from tools.install import (
    LOCK,
    MODEL,
    ROOT,
    TORCH_CPU,
    build_requirements,
    normal,
    read_lock,
    requirements,
)


def faults(extras: tuple[str, ...] = ("dev",)) -> Iterator[str]:
    """Yields what of the lock files does not satisfy pyproject.toml or cannot be checked by pip."""
    packages = read_lock()
    by_name: dict[str, list[str]] = {}
    for package in [*packages, *read_lock(TORCH_CPU), *read_lock(MODEL)]:
        by_name.setdefault(package.name, []).append(package.version)
        if "--hash=sha256:" not in package.text:
            yield f"{package.name} has no hash"
    for text in sorted(requirements(extras) | build_requirements()):
        requirement = Requirement(text)
        versions = by_name.get(normal(requirement.name), [])
        if not versions:
            yield f"{requirement.name} is not locked"
        for version in versions:
            if not requirement.specifier.contains(version, prereleases=True):
                allowed = f"pyproject.toml asks for {requirement.specifier}"
                yield f"{requirement.name} is locked at {version}, {allowed}"
    builds = {version.partition("+")[0] for version in by_name.get("torch", [])}
    if len(builds) > 1:
        yield f"torch is locked at {' and '.join(sorted(builds))}; give {TORCH_CPU.name} the same version"
    for file in (LOCK, TORCH_CPU, MODEL):
        if re.search(r"https?://|^--(extra-)?index", file.read_text(encoding="utf-8"), re.MULTILINE):
            yield f"{file.name} names an address"


def compile_lock(*, upgrade: bool) -> int:
    """Resolves pyproject.toml with uv and writes the lock, and the model's hashes. Returns uv's exit code."""
    command = ["uv", "pip", "compile", "--universal", "--generate-hashes", "--python-version", "3.11"]
    command += ["--no-header", "--quiet"]
    whole = ["pyproject.toml", "--extra", "dev", "--output-file", LOCK.name]
    code = subprocess.run([*command, *whole, *["--upgrade"] * upgrade], cwd=ROOT, check=False).returncode
    (model,) = read_lock(MODEL)
    pin = f"{model.name}=={model.version}\n"
    alone = ["-", "--no-deps", "--no-annotate", "--output-file", str(MODEL)]
    made = subprocess.run([*command, *alone], cwd=ROOT, check=False, input=pin, text=True)
    return code or made.returncode


def main() -> int:
    word = sys.argv[1] if len(sys.argv) > 1 else "compile"
    if word not in ("compile", "upgrade", "check"):
        print("usage: python -m tools.lock [upgrade | check]")
        return 2
    if word != "check":
        return compile_lock(upgrade=word == "upgrade")
    reasons = list(faults())
    for fault in reasons:
        print(f"lock: {fault}; run make lock")
    if not reasons:
        print("lock: requirements.lock satisfies pyproject.toml")
    return 1 if reasons else 0


if __name__ == "__main__":
    raise SystemExit(main())
