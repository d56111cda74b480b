"""An environment to try rollout.engine = "sglang" in, on a CPU: `python tools/install_sglang.py DIRECTORY`.

SGLang has no supported CPU install: its pins want CUDA builds. For text models on its plain-torch
attention, though, it runs beside EARL's own torch without them. So first comes vLLM's environment (its
CPU operators are used), then SGLang itself without what it asks for, the few packages that it still
imports, and a module that stands in for torchvision (whose builds do not load beside a CPU torch, and
which only image models call).
For tests of the adapter; on GPUs install SGLang as its authors say (docs/engines.md).
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from install import ROOT, locked_version, make_environment, pip, torch_arguments

SGLANG = "sglang==0.5.23"
# Imported while its Engine starts, beside what vLLM brings: on a CPU SGLang uses operators of vLLM's.
IMPORTED = ("gguf==0.19.0", "IPython", "orjson")
UNUSABLE = ("torchvision", "torchaudio", "torchcodec")
STAND_IN = '''"""Stands in for torchvision, which SGLang imports and text models never call."""


class _Anything(type):
    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return 0


class _Nothing(metaclass=_Anything):
    def __init__(self, *_args, **_named): ...

    def __call__(self, *_args, **_named):
        return self


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)
    return _Nothing
'''
MODULES = (
    "transforms/__init__",
    "transforms/functional",
    "transforms/v2/__init__",
    "transforms/v2/functional",
)
PROOF = "from sglang.srt.entrypoints.engine import Engine; import services.rollout.engines.contract.wire"


def stand_in(site: Path) -> None:
    """Writes the stand-in for torchvision into a site-packages directory."""
    for name in ("__init__", "io", "ops", *MODULES):
        file = site / "torchvision" / f"{name}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        imports = (
            '\n\n__version__ = "0.28.0"\n\nfrom . import io, transforms  # noqa\n'
            if name == "__init__"
            else ""
        )
        file.write_text(STAND_IN + imports)


def main() -> int:
    if len(sys.argv) != 2:
        print("usage: python tools/install_sglang.py DIRECTORY")
        return 2
    target = Path(sys.argv[1])
    python = make_environment(target)
    version = locked_version("torch")
    print(f"install: torch {version}, vLLM, EARL and {SGLANG} into {target} (4 GB)", flush=True)
    steps = (
        ("install", *torch_arguments(python)),
        ("install", f"torch=={version}", "-e", f"{ROOT}[vllm]", *IMPORTED),
        ("uninstall", "--yes", *UNUSABLE),
        ("install", "--no-deps", SGLANG),
    )
    for command, *rest in steps:
        if not pip(python, command, "--quiet", *rest):
            print(f"install: pip {command} {' '.join(rest)} failed; see its message above")
            return 1
    stand_in(next((target / "lib").glob("python3*/site-packages")))
    if subprocess.run([python, "-c", PROOF], capture_output=False, check=False).returncode != 0:
        print(f"install: {SGLANG} does not load in {target}; see above")
        return 1
    print(f"install: done, {target} runs {SGLANG} on a CPU, for tests", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
