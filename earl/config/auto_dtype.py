"""`dtype = "auto"`, resolved: bfloat16 where every device that uses the key computes it, else float32. Pure.

model.dtype is what rollout, trainer and reference stage exchange, so all three must; the reference stage
computes in trainer.dtype.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from earl.config.dtype import DType
from earl.config.run import RunConfig

# Whether a device ("auto", "cpu" or "cuda", as the run file names it) computes bfloat16 without emulation.
Native = Callable[[str], bool]


def auto_keys(config: RunConfig) -> list[str]:
    """The dtype keys that are to be resolved."""
    return [key for key, dtype in _dtype_keys(config) if dtype == "auto"]


def devices_of(config: RunConfig, key: str) -> list[str]:
    """The devices that compute in the dtype of this key, as the run file names them."""
    trainer = [config.trainer.device]
    trainer += [stage.device for stage in config.frozen_models.values()]
    by_key = {"rollout.dtype": [config.rollout.device], "trainer.dtype": trainer}
    return by_key.get(key) or [config.rollout.device, *trainer]


def resolve(config: RunConfig, native: Native) -> RunConfig:
    """The configuration without "auto"; other values stay as they are."""

    def choose(key: str) -> DType:
        return "bfloat16" if all(map(native, devices_of(config, key))) else "float32"

    return _with(config, {key: choose(key) for key in auto_keys(config)})


def resolve_as_before(config: RunConfig, before: RunConfig) -> RunConfig:
    """The configuration with what the run was launched with in place of "auto"."""
    launched: dict[str, DType] = {
        "model.dtype": before.model.weight_dtype,
        "rollout.dtype": before.rollout_dtype,
        "trainer.dtype": before.trainer_dtype,
    }
    return _with(config, {key: launched[key] for key in auto_keys(config)})


def emulated_keys(config: RunConfig, native: Native) -> list[str]:
    """The keys by which a resolved run computes in bfloat16 on a device that emulates it."""
    computing = (
        ("rollout.dtype", config.rollout.dtype, config.rollout_dtype),
        ("trainer.dtype", config.trainer.dtype, config.trainer_dtype),
    )
    emulated = [
        key if given else "model.dtype"
        for key, given, dtype in computing
        if dtype == "bfloat16" and not all(map(native, devices_of(config, key)))
    ]
    return list(dict.fromkeys(emulated))


def _dtype_keys(config: RunConfig) -> Iterator[tuple[str, str]]:
    yield "model.dtype", config.model.dtype
    yield "rollout.dtype", config.rollout.dtype
    yield "trainer.dtype", config.trainer.dtype


def _with(config: RunConfig, dtypes: dict[str, DType]) -> RunConfig:
    sections = {
        section: getattr(config, section).model_copy(update={"dtype": dtypes[f"{section}.dtype"]})
        for section in ("model", "rollout", "trainer")
        if f"{section}.dtype" in dtypes
    }
    return config.model_copy(update=sections)


def described(config: RunConfig, keys: Sequence[str]) -> str:
    """Formats keys of a resolved run with their values: 'rollout.dtype = "float32"'."""
    values = dict(_dtype_keys(config))
    return " and ".join(f'{key} = "{values[key]}"' for key in keys)
