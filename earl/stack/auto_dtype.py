"""`dtype = "auto"` where a run is launched: by this machine's facts, or as the run was launched before.

One dtype holds for all of a run's processes, on whatever machines they run: the launch decides, its
run.json names it to the others, and a resumed run keeps what it has.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Collection
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from earl.config import auto_dtype
from earl.config.run import RunConfig
from earl.errors import ConfigError
from earl.obs import processor

# Where one of these is, torch may have a device that it calls "cuda": NVIDIA's driver, AMD's, WSL's.
GPU_FILES = (Path("/dev/nvidiactl"), Path("/dev/kfd"), Path("/dev/dxg"))
PROBE_S = 120.0
COST = "linear layers take 1.3 to 10 times as long as in float32"


@dataclass(frozen=True, slots=True)
class Devices:
    """The devices that compute here.

    flags: the processor's instruction sets; capabilities: of each CUDA device.
    """

    flags: Collection[str]
    capabilities: tuple[tuple[int, int], ...] = ()

    def native(self, device: str) -> bool:
        """Returns whether a stage on "auto", "cpu" or "cuda" computes bfloat16 without emulation.

        Raises ConfigError for "cuda" where there is none: another machine's device cannot be judged here.
        """
        if device == "cuda" and not self.capabilities:
            raise ConfigError(
                'dtype = "auto" with device = "cuda" cannot be decided: the machine that launches the '
                "run has no CUDA device that torch can use",
                'write dtype = "bfloat16" if the machines that compute have it, or "float32"',
            )
        if device == "cpu" or not self.capabilities:
            return processor.native_bfloat16(self.flags)
        return all(map(processor.native_on_cuda, self.capabilities))

    def may_be_native(self, device: str) -> bool:
        """The same without examining GPUs: where one may be used, bfloat16 may be native."""
        on_cpu = device == "cpu" or (device == "auto" and not gpu_may_be_here())
        return not on_cpu or processor.native_bfloat16(self.flags)


def gpu_may_be_here() -> bool:
    return any(file.exists() for file in GPU_FILES)


def settle(config: RunConfig, run_json: Path | None = None) -> RunConfig:
    """The configuration with every dtype "auto" resolved.

    run_json: of the run that is resumed; if it is there, what it has is kept. Raises ConfigError.
    """
    keys = auto_dtype.auto_keys(config)
    if not keys:
        return config
    if run_json is not None and run_json.is_file():
        return auto_dtype.resolve_as_before(config, RunConfig.model_validate_json(run_json.read_bytes()))
    computing = [device for key in keys for device in auto_dtype.devices_of(config, key)]
    devices = Devices(processor.flags(), cuda_capabilities(computing))
    return auto_dtype.resolve(config, devices.native)


def gpus_here(config: RunConfig) -> int:
    """GPUs of this machine that torch can use, 0 where every stage of the run computes on the processor.

    Raises ConfigError if torch fails.
    """
    return len(gpu_bytes_here(config))


def gpu_bytes_here(config: RunConfig) -> tuple[int, ...]:
    """The memory of each of those GPUs. Raises ConfigError as `gpus_here`."""
    return tuple(device[2] for device in _cuda_devices(_stage_devices(config)))


def _stage_devices(config: RunConfig) -> list[str]:
    frozen = (stage.device for stage in config.frozen_models.values())
    return [config.rollout.device, config.trainer.device, config.reference.device, *frozen]


def cuda_capabilities(devices: Collection[str]) -> tuple[tuple[int, int], ...]:
    """The compute capability of each CUDA device that torch can use, found by a process started for it.

    Empty, without a process, where all `devices` are "cpu" or there is no GPU. Raises ConfigError if torch
    fails.
    """
    return tuple((major, minor) for major, minor, _ in _cuda_devices(devices))


def _cuda_devices(devices: Collection[str]) -> tuple[tuple[int, int, int], ...]:
    """(major, minor, bytes) of each CUDA device; see cuda_capabilities."""
    if all(device == "cpu" for device in devices) or not gpu_may_be_here():
        return ()
    return _examined(sys.executable)


@cache
def _examined(python: str) -> tuple[tuple[int, int, int], ...]:
    command = [python, "-m", "earl.models.cuda_capabilities"]
    try:
        done = subprocess.run(command, capture_output=True, check=True, timeout=PROBE_S, text=True)
        return tuple((major, minor, size) for major, minor, size in json.loads(done.stdout.splitlines()[-1]))
    except (OSError, subprocess.SubprocessError, ValueError, IndexError) as error:
        raise ConfigError(
            f"the GPUs of this machine cannot be examined: {' '.join(command)} failed ({error})",
            'mend torch or the driver, or set device = "cpu" for rollout, trainer and reference',
        ) from error


def notes(requested: RunConfig, resolved: RunConfig, *, resume: bool, flags: Collection[str]) -> list[str]:
    """Describes a launch's dtypes to a person, a line each: the resolution of "auto", and what is slow.

    requested, resolved: before and after `settle`. flags: the processor's instruction sets.
    """
    lines: list[str] = []
    keys = auto_dtype.auto_keys(requested)
    if keys:
        reason = "as the run was launched" if resume else _reason(flags)
        lines.append(f'dtype "auto": {auto_dtype.described(resolved, keys)} ({reason})')
    slow = auto_dtype.emulated_keys(resolved, Devices(flags).may_be_native)
    if slow:
        remedy = (
            "the run keeps the dtype of its launch; resume it on a processor that computes bfloat16"
            if resume
            else f'write {" and ".join(slow)} = "auto", or "float32"'
        )
        lines.append(
            f"{auto_dtype.described(resolved, slow)} is slow here: this processor emulates bfloat16, {COST}; "
            f"{remedy}"
        )
    return lines


def _reason(flags: Collection[str]) -> str:
    if gpu_may_be_here():
        return "decided by the devices of this machine"
    computes = processor.bfloat16_instructions(flags)
    return f"this processor has {computes[0]}" if computes else "this processor emulates bfloat16"
