"""Checks what a service learns from its environment: peers, secrets in files, address, run file."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from earl.config.service import read_run, service_run
from earl.errors import ConfigError
from earl.rpc.peers import advertised_address, peer, variable_or_file
from earl.stack.prepare import main, prepare

RUN = 'name = "one"\n[environment]\nname = "a/b"\n'


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("EARL_REDIS_URL", "EARL_REDIS_URL_FILE", "EARL_ADVERTISE", "EARL_BIND", "EARL_RUN_DIR"):
        monkeypatch.delenv(name, raising=False)


def test_a_secret_may_lie_in_a_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="EARL_REDIS_URL is not set"):
        peer("EARL_REDIS_URL")
    (tmp_path / "url").write_text("redis://:pass@valkey:6379\n")
    monkeypatch.setenv("EARL_REDIS_URL_FILE", str(tmp_path / "url"))
    assert peer("EARL_REDIS_URL") == "redis://:pass@valkey:6379"
    monkeypatch.setenv("EARL_REDIS_URL", "redis://other")
    with pytest.raises(ConfigError, match="both set") as raised:
        variable_or_file("EARL_REDIS_URL")
    assert "pass" not in str(raised.value)
    monkeypatch.delenv("EARL_REDIS_URL")
    monkeypatch.setenv("EARL_REDIS_URL_FILE", str(tmp_path / "none"))
    with pytest.raises(ConfigError, match=r"EARL_REDIS_URL_FILE = .*none.* cannot be read"):
        variable_or_file("EARL_REDIS_URL")


@pytest.mark.parametrize(
    ("bound", "name", "reached", "beside"),
    [
        ("127.0.0.1:7000", "", "127.0.0.1:7000", "127.0.0.1:7000"),
        ("10.0.0.3:7000", "", "10.0.0.3:7000", "10.0.0.3:7000"),
        ("0.0.0.0:7000", "", f"{socket.gethostname()}:7000", f"{socket.gethostname()}:7000"),
        ("0.0.0.0:7000", "rollout-0.rollout", "rollout-0.rollout:7000", "rollout-0.rollout:7000"),
        ("0.0.0.0:7000", "outside:31000", "outside:31000", "outside:7000"),
        ("[::]:7000", "[fd00::1]", "[fd00::1]:7000", "[fd00::1]:7000"),
        ("[::]:7000", "[fd00::1]:31000", "[fd00::1]:31000", "[fd00::1]:7000"),
    ],
)
def test_how_others_reach_it(
    monkeypatch: pytest.MonkeyPatch, bound: str, name: str, reached: str, beside: str
) -> None:
    monkeypatch.setenv("EARL_ADVERTISE", name)
    assert advertised_address(bound) == reached
    assert advertised_address(bound, keep_port=True) == beside


def test_an_address_that_is_none_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EARL_ADVERTISE", "host:port")
    with pytest.raises(ConfigError, match="host:port"):
        advertised_address("0.0.0.0:7000")


def test_a_service_reads_a_run_file_or_what_a_launcher_wrote(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    toml, written = tmp_path / "run.toml", tmp_path / "run.json"
    toml.write_text(RUN)
    config, directory = service_run(toml, "gateway")
    assert (config.name, config.gateway.bind, directory) == ("one", "127.0.0.1:0", tmp_path)
    written.write_text(config.model_dump_json())
    assert service_run(written) == (config, tmp_path)
    monkeypatch.setenv("EARL_BIND", "0.0.0.0:7001")
    monkeypatch.setenv("EARL_RUN_DIR", str(tmp_path / "shared"))
    config, directory = service_run(toml, "gateway")
    assert (config.gateway.bind, config.scheduler.bind) == ("0.0.0.0:7001", "127.0.0.1:0")
    assert directory == tmp_path / "shared"
    assert service_run(toml)[0].gateway.bind == "127.0.0.1:0"


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("run.toml", None, "does not exist"),
        ("run.json", None, "cannot be read"),
        ("run.json", "{}", "name is missing"),
        ("run.toml", RUN + "[rollout]\nworker = 1\n", "rollout.worker"),
    ],
)
def test_a_wrong_run_file_is_a_typed_error(tmp_path: Path, name: str, text: str | None, said: str) -> None:
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError, match=said):
        service_run(tmp_path / name)


def test_the_directory_of_a_run_without_a_launcher(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run.toml").write_text(RUN + '[model]\nstop = ["]"]\n[model.scratch]\nwords = ["[", "]"]\n')
    monkeypatch.setenv("EARL_RUN_DIR", str(tmp_path / "run"))
    config, directory = service_run(tmp_path / "run.toml")
    monkeypatch.setenv("EARL_SCHEDULER", "scheduler:7000")
    with pytest.raises(ConfigError, match="EARL_GATEWAY is not set"):
        prepare(config, directory)
    monkeypatch.setenv("EARL_GATEWAY", "gateway:7000")
    for _ in range(2):
        prepare(config, directory)
        assert (directory / "model" / "model.safetensors").is_file()
        prepared = service_run(directory / "run.toml")[0]
        bounded = config.rollout.model_copy(update={"held_context_tokens": 256})
        assert prepared == config.model_copy(update={"rollout": bounded})
        # A service that has the user's own file takes the bound from what was prepared.
        assert service_run(tmp_path / "run.toml")[0] == prepared
        assert "contexts end at 256 tokens" in capsys.readouterr().err
        written = read_run(directory / "run.json")
        assert (written.scheduler.bind, written.gateway.bind) == ("scheduler:7000", "gateway:7000")
    with pytest.raises(ConfigError, match="seed differs"):
        prepare(config.model_copy(update={"seed": 1}), directory)


@pytest.mark.parametrize("coefficient", [0.0, 0.1])
def test_who_prepares_a_run_is_told_of_the_stage_that_it_waits_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str], coefficient: float
) -> None:
    file = tmp_path / "run.toml"
    file.write_text(f"{RUN}[trainer]\nkl_coefficient = {coefficient}\n")
    monkeypatch.setenv("EARL_SCHEDULER", "scheduler:7000")
    monkeypatch.setenv("EARL_GATEWAY", "gateway:7000")
    monkeypatch.setattr("sys.argv", ["prepare", "--run", str(file)])
    assert main() == 0
    assert ("reference stage" in capsys.readouterr().err) == (coefficient > 0)
