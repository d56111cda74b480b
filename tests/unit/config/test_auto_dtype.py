"""dtype = "auto" of a run file: what it becomes, by the devices that use the key."""

from __future__ import annotations

from typing import Any

import pytest

from earl.config.auto_dtype import auto_keys, emulated_keys, resolve, resolve_as_before
from earl.config.load import load_run
from earl.config.run import RunConfig
from earl.errors import ConfigError
from tests.support.paths import ROOT

AUTO = {"dtype": "auto"}


def run(**sections: Any) -> RunConfig:
    return RunConfig.model_validate({"name": "t", "environment": {"name": "e"}, **sections})


def dtypes(config: RunConfig) -> tuple[str, str, str]:
    return config.model.dtype, config.rollout.dtype, config.trainer.dtype


def gpu_alone(device: str) -> bool:
    return device == "cuda"


@pytest.mark.parametrize("native", [True, False])
def test_every_key_is_resolved_and_what_is_written_stays(native: bool):
    chosen = "bfloat16" if native else "float32"
    config = resolve(run(model=AUTO, rollout=AUTO, trainer=AUTO), lambda _: native)
    assert dtypes(config) == (chosen,) * 3 and auto_keys(config) == []
    for dtype in ("bfloat16", "float32"):
        same = run(model={"dtype": dtype}, rollout={"dtype": dtype}, trainer={"dtype": ""})
        assert resolve(same, lambda _: native) == same
    assert resolve(run(), lambda _: native) == run()


def test_a_key_is_bfloat16_where_all_its_devices_compute_it():
    keys: dict[str, Any] = {"model": AUTO, "rollout": AUTO | {"device": "cuda"}}
    cpu, gpu = AUTO | {"device": "cpu"}, AUTO | {"device": "cuda"}
    assert dtypes(resolve(run(**keys, trainer=gpu), gpu_alone)) == ("bfloat16",) * 3
    assert dtypes(resolve(run(**keys, trainer=cpu), gpu_alone)) == ("float32", "bfloat16", "float32")
    # The reference stage computes in trainer.dtype, if there is one.
    reference = {"device": "cpu"}
    assert dtypes(resolve(run(**keys, trainer=gpu, reference=reference), gpu_alone)) == ("bfloat16",) * 3
    with_one = run(**keys, trainer=gpu | {"kl_coefficient": 0.1}, reference=reference)
    assert dtypes(resolve(with_one, gpu_alone)) == ("float32", "bfloat16", "float32")


def test_a_resumed_run_keeps_what_it_computes_in():
    before = run(model={"dtype": "bfloat16"}, trainer={"dtype": "float32"})
    again = resolve_as_before(run(model=AUTO, rollout=AUTO, trainer=AUTO), before)
    assert dtypes(again) == ("bfloat16", "bfloat16", "float32")
    written = run(rollout={"dtype": "float32"}, trainer=AUTO)
    assert dtypes(resolve_as_before(written, before)) == ("float32", "float32", "float32")


def test_emulation_is_blamed_on_the_key_that_asks_for_it():
    wide, narrow = {"dtype": "float32"}, {"dtype": "bfloat16"}
    assert emulated_keys(run(model=narrow), gpu_alone) == ["model.dtype"]
    assert emulated_keys(run(model=narrow, rollout=wide, trainer=wide), gpu_alone) == []
    assert emulated_keys(run(rollout=narrow, trainer=narrow), gpu_alone) == ["rollout.dtype", "trainer.dtype"]
    assert emulated_keys(run(rollout=narrow | {"device": "cuda"}), gpu_alone) == []
    assert emulated_keys(run(rollout=narrow, trainer=narrow), lambda _: True) == []


def test_what_is_not_resolved_is_no_dtype():
    for config, key in ((run(model=AUTO), "model"), (run(rollout=AUTO), "rollout")):
        with pytest.raises(ConfigError, match=rf'{key}\.dtype = "auto" has not been resolved.*prepare'):
            _ = config.rollout_dtype
    with pytest.raises(ConfigError, match=r'trainer\.dtype = "auto" has not been resolved'):
        _ = run(trainer=AUTO).trainer_dtype
    assert run(trainer=AUTO).rollout_dtype == "float32"


@pytest.mark.parametrize("key", ["model.dtype", "rollout.dtype", "trainer.dtype"])
def test_another_dtype_is_refused_with_those_that_there_are(key: str):
    with pytest.raises(ConfigError, match=rf'--{key} "float16" is wrong.*give one of .*"bfloat16", "auto"'):
        load_run(ROOT / "examples" / "tictactoe.toml", [(key, "float16")])
