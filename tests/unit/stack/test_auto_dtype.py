"""dtype = "auto" where a run is launched: decided once, kept by a resume, said to who launches it."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from earl.cli.run import train, up
from earl.cli.run.detached import LaunchOrder
from earl.config.auto_dtype import auto_keys
from earl.config.load import read_toml
from earl.config.run import RunConfig
from earl.config.service import service_run
from earl.errors import ConfigError, PortInUse
from earl.obs import processor
from earl.stack import auto_dtype
from earl.stack.auto_dtype import Devices, cuda_capabilities, notes, settle
from earl.stack.launcher import Signals, launch
from earl.stack.prepare import prepare
from earl.stack.rundir import run_path, to_toml
from tests.support.runs import tictactoe

AVX2, AMX = frozenset({"avx2"}), frozenset({"avx2", "avx512_bf16", "amx_bf16"})
AUTO = {"dtype": "auto", "device": "cpu"}
NARROW = {"dtype": "bfloat16", "device": "cpu"}


@pytest.fixture
def cpuinfo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that is /proc/cpuinfo for the test."""
    file = tmp_path / "cpuinfo"
    monkeypatch.setattr(processor, "CPUINFO", file)
    return file


def written(cpuinfo: Path, flags: frozenset[str]) -> None:
    cpuinfo.write_text(f"processor : 0\nflags : {' '.join(flags)}\n")


def run(directory: Path, of: dict[str, Any] = AUTO) -> RunConfig:
    return tictactoe(directory, model={"dtype": of["dtype"]}, rollout=of, trainer=of)


def dtypes(file: Path) -> set[str]:
    config = RunConfig.model_validate_json(file.read_bytes())
    return {config.model.dtype, config.rollout.dtype, config.trainer.dtype}


def test_devices_decide():
    for flags, native in ((AVX2, False), (AMX, True)):
        assert Devices(flags).native("cpu") == Devices(flags).native("auto") == native
        assert Devices(flags, ((9, 0),)).native("cpu") == native
    assert Devices(AVX2, ((9, 0), (8, 0))).native("auto") and Devices(AVX2, ((9, 0),)).native("cuda")
    assert not Devices(AMX, ((9, 0), (7, 5))).native("cuda")
    with pytest.raises(ConfigError, match=r'"cuda" cannot be decided.*write dtype = "bfloat16"'):
        Devices(AMX).native("cuda")


def test_this_machine_is_asked_only_for_what_may_be_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    assert cuda_capabilities(["cpu"]) == ()
    monkeypatch.setattr(auto_dtype, "GPU_FILES", (tmp_path,))
    import torch

    listed = [torch.cuda.get_device_capability(index) for index in range(torch.cuda.device_count())]
    assert cuda_capabilities(["cpu", "auto"]) == tuple(listed)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "none"))
    with pytest.raises(ConfigError, match=r'cannot be examined.*none.*set device = "cpu"'):
        cuda_capabilities(["auto"])


async def test_a_launch_decides_and_a_resume_on_another_machine_keeps_it(
    tmp_path: Path, cpuinfo: Path, monkeypatch: pytest.MonkeyPatch
):
    for name in ("EARL_SCHEDULER", "EARL_GATEWAY"):
        monkeypatch.setenv(name, "127.0.0.1:7")
    asked = run(tmp_path)
    directory = run_path(asked)
    written(cpuinfo, AVX2)
    prepare(asked, directory)
    assert dtypes(directory / "run.json") == {"float32"}
    assert json.loads((directory / "model/config.json").read_text())["dtype"] == "float32"

    written(cpuinfo, AMX)
    prepare(asked, directory)
    assert dtypes(directory / "run.json") == {"float32"}
    signals = Signals()
    signals.rush()  # stopped as soon as it has begun
    outcome = await launch(
        asked, resume=True, started_at=time.monotonic(), signals=signals, on_update=lambda *_: None
    )
    assert not outcome.complete and dtypes(directory / "run.json") == {"float32"}
    assert auto_keys(RunConfig.model_validate(read_toml(directory / "run.toml"))) == []
    assert settle(asked).trainer_dtype == "bfloat16"


def test_services_of_a_run_file_read_what_the_launch_decided(
    tmp_path: Path, cpuinfo: Path, monkeypatch: pytest.MonkeyPatch
):
    for name in ("EARL_SCHEDULER", "EARL_GATEWAY"):
        monkeypatch.setenv(name, "127.0.0.1:7")
    file, directory = tmp_path / "asked.toml", tmp_path / "shared"
    file.write_text(to_toml(run(tmp_path).model_dump(mode="json")))
    monkeypatch.setenv("EARL_RUN_DIR", str(directory))
    alone, _ = service_run(file)
    with pytest.raises(ConfigError, match="has not been resolved"):
        _ = alone.trainer_dtype
    written(cpuinfo, AMX)
    prepare(alone, directory)
    written(cpuinfo, AVX2)
    config, _ = service_run(file)
    assert (config.model.weight_dtype, config.rollout_dtype, config.trainer_dtype) == ("bfloat16",) * 3


def test_a_launch_says_what_auto_became_and_what_is_slow(tmp_path: Path):
    def said(
        asked: RunConfig, resolved: RunConfig, flags: frozenset[str], *, resume: bool = False
    ) -> list[str]:
        return notes(asked, resolved, resume=resume, flags=flags)

    wide, narrow = run(tmp_path, {"dtype": "float32", "device": "cpu"}), run(tmp_path, NARROW)
    for flags in (AVX2, AMX):
        assert said(wide, wide, flags) == []
    assert said(narrow, narrow, AMX) == []
    (slow,) = said(narrow, narrow, AVX2)
    assert 'rollout.dtype = "bfloat16" and trainer.dtype = "bfloat16" is slow here' in slow
    assert "1.3 to 10 times" in slow and slow.endswith(
        'write rollout.dtype and trainer.dtype = "auto", or "float32"'
    )
    (became,) = said(run(tmp_path), wide, AVX2)
    assert 'trainer.dtype = "float32"' in became
    kept = said(run(tmp_path), narrow, AVX2, resume=True)
    assert (
        len(kept) == 2 and "as the run was launched" in kept[0] and "keeps the dtype of its launch" in kept[1]
    )


def test_a_launcher_needs_no_torch_to_decide():
    code = "import sys, earl.stack.auto_dtype, earl.config.auto_dtype; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0


def test_train_and_up_say_it_before_anything_is_started(tmp_path: Path):
    file = tmp_path / "run.toml"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        bind = f"127.0.0.1:{taken.getsockname()[1]}"
        asked = run(tmp_path).model_dump(mode="json")
        file.write_text(to_toml(asked | {"scheduler": asked["scheduler"] | {"bind": bind}}))
        for command in (train, up):
            done = CliRunner().invoke(command.app, [str(file)])
            assert isinstance(done.exception, PortInUse) and bind in done.exception.message
            assert done.stderr.startswith('earl: dtype "auto": model.dtype = ')


def test_a_detached_launcher_logs_it(tmp_path: Path):
    order = LaunchOrder(config=run(tmp_path, NARROW), resume=False, notes=["it is slow"])
    launcher = [sys.executable, "-m", "earl.cli.run.detached"]
    # Standard input ends at once: the launch is given up.
    subprocess.run(launcher, check=False, timeout=120, input=order.model_dump_json() + "\n", text=True)
    log = (run_path(order.config) / "logs" / "earl.log").read_text()
    lines = [json.loads(line) for line in log.splitlines() if line.startswith("{")]
    assert [one["message"] for one in lines if one["level"] == "warning"] == ["it is slow"]
