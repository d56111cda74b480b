"""Checks what `earl doctor` makes of what its probes found, and of probes that end badly."""

from __future__ import annotations

import asyncio
import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from earl.cli.lib.probes import probed_by
from earl.cli.machine import doctor
from earl.cli.machine.doctor import TRIED, examined, lines, needed, probe, reported, verdict
from earl.cli.machine.findings import PROBES, Finding, data_plane
from earl.config.data_plane import DataPlaneConfig
from earl.config.run import RunConfig
from earl.dispatch.probe import file_system_of, offers
from earl.errors import EarlError
from earl.obs.limits import host_bytes
from services.rollout.episode.columns import arena_bytes
from tests.support.paths import ROOT
from tests.support.runs import tictactoe

INFO = """#
# UCP context
#
#     component 0  :  self
#     component 1  :  tcp
#     component 2  :  ib
#
#            md 0  :  component 0  self
#            md 1  :  component 1  tcp
#
#      resource 0  :  md 0  dev 0  flags -- self/memory
#      resource 1  :  md 1  dev 1  flags -- tcp/eth0
#      resource 2  :  md 1  dev 2  flags -- tcp/lo
#      resource 3  :  md 2  dev 3  flags -- rc_mlx5/mlx5_0:1
#
"""
MOUNTS = """overlay / overlay rw 0 0
tmpfs /dev/shm tmpfs rw,nosuid 0 0
/dev/sda1 /a\\040b ext4 rw 0 0
tmpfs /dev/shm/big tmpfs rw 0 0
"""


def test_what_ucx_says_of_itself_is_understood():
    assert offers(INFO) == {
        "components": ["self", "tcp", "ib"],
        "transports": {"self": ["memory"], "tcp": ["eth0", "lo"], "rc_mlx5": ["mlx5_0:1"]},
    }


def test_a_directory_is_of_the_innermost_mount_above_it():
    assert file_system_of(Path("/dev/shm/earl-x"), MOUNTS) == "tmpfs"
    assert file_system_of(Path("/dev/shmem"), MOUNTS) == "overlay"
    assert file_system_of(Path("/a b/c"), MOUNTS) == "ext4"
    assert file_system_of(Path("/x"), "") == ""


def found(**changes: Any) -> dict[str, Any]:
    """Facts of a machine without RDMA, where everything else works."""
    moved = {"moved_bytes": 16 << 20, "gb_per_s": 2.5}
    shm = {"directory": "/dev/shm", "file_system": "tmpfs", "size_bytes": 8 << 30, "free_bytes": 4 << 30}
    transports = {"tcp": ["eth0", "lo"]}
    ucx = {"version": "1.21.0", "verbs": False, "components": ["tcp"], "transports": transports}
    ucx["gathers_because"] = ""
    facts = {
        "memory": {**shm, "path": "shm", **moved},
        "ucx": {**ucx, "path": "ucx-tcp", **moved},
        "nixl": {"version": "1.5.1", "plugins": ["UCX"], "wire": "tcp", "path": "nixl-tcp", **moved},
        "rdma": {"devices": [], "ports_up": []},
    }
    return {name: {"facts": facts[name], "error": None} for name in facts} | changes


def failed(message: str, remedy: str = "mend it", **facts: Any) -> dict[str, Any]:
    return {"facts": facts, "error": {"message": message, "remedy": remedy}}


def all_of(config: DataPlaneConfig, probed: dict[str, Any]) -> list[Finding]:
    """The data plane's findings, each of no more than the probes that have ended by then."""
    return [
        finding
        for ended, name in enumerate(PROBES, 1)
        for finding in data_plane(name, config, {probe: probed[probe] for probe in PROBES[:ended]})
    ]


def by_name(config: DataPlaneConfig, probed: dict[str, Any]) -> dict[str, Finding]:
    return {finding.name: finding for finding in all_of(config, probed)}


def test_without_rdma_the_default_data_plane_works_and_it_is_said_in_words():
    findings = by_name(DataPlaneConfig(), found())
    assert [name for name, one in findings.items() if not one.works] == ["rdma"]
    assert not any(one.fatal for one in findings.values())
    assert findings["rdma"].said.startswith(
        "not there: no device in /sys/class/infiniband; the UCX of ucxx's"
    )
    assert findings["ucx"].said == "UCX 1.21.0 without verbs: tcp (eth0, lo); 16 MiB over ucx-tcp at 2.5 GB/s"
    assert findings["arena directory"].said == "/dev/shm is a tmpfs with 4.0 GiB free"


def test_a_ucx_whose_structures_are_not_known_gathers_and_it_is_said():
    probed = found()
    probed["ucx"]["facts"]["gathers_because"] = "UCX 1.22.0 is not UCX 1.21"
    finding = by_name(DataPlaneConfig(), probed)["ucx"]
    assert finding.works
    assert "what lies in pieces is gathered first (UCX 1.22.0 is not UCX 1.21)" in finding.said


@pytest.mark.parametrize(
    ("keys", "probed", "fatal"),
    [
        ({}, {"ucx": failed("UCX is not installed")}, []),
        ({"transport": "ucx"}, {"ucx": failed("UCX is not installed")}, ["ucx"]),
        ({"bind": "10.0.0.1"}, {"ucx": failed("UCX is not installed")}, ["ucx"]),
        ({"transport": "shm"}, {"ucx": failed("UCX is not installed")}, []),
        ({"transport": "nixl"}, {"nixl": failed("NIXL is not installed")}, ["nixl"]),
        ({"transport": "nixl", "require": "rdma"}, {}, ["rdma"]),
        ({}, {"memory": failed("no room")}, ["arena directory", "shared memory"]),
        ({}, {"memory": failed("other bytes arrived", **found()["memory"]["facts"])}, ["shared memory"]),
        ({"transport": "ucx"}, {"memory": failed("no", **found()["memory"]["facts"])}, []),
    ],
)
def test_only_what_the_data_plane_needs_is_fatal(keys: dict, probed: dict, fatal: list[str]):
    findings = all_of(DataPlaneConfig(**keys), found(**probed))
    assert [finding.name for finding in findings if finding.fatal] == fatal
    closing = f"run.toml does not work here: {', '.join(fatal)}" if fatal else "run.toml works here"
    assert verdict(findings, "run.toml") == closing
    assert all([*lines(one)][-1].endswith(f"-> {one.remedy}") for one in findings if one.remedy)


async def test_a_finding_is_printed_before_the_next_probe_begins(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    printed: dict[str, list[str]] = {}

    async def probing(name: str, config: DataPlaneConfig) -> dict[str, Any]:
        printed[name] = [line[4:19].rstrip() for line in capsys.readouterr().out.splitlines()]
        return found()[name]

    async def serving(configured: str) -> dict[str, Any]:
        return failed("no server")

    monkeypatch.setattr(doctor, "probe", probing)
    monkeypatch.setattr(doctor, "redis", serving)
    findings = await reported(examined(None, ""), quiet=False)
    assert list(printed) == list(PROBES) and set(TRIED) == set(PROBES)
    assert printed["memory"][:2] == ["cores", "memory"] and "redis" in printed["memory"]
    assert printed["ucx"] == ["arena directory", "shared memory"]
    assert (printed["nixl"], printed["rdma"]) == (["ucx"], ["nixl"])
    assert [finding.name for finding in findings][-5:] == [
        "arena directory", "shared memory", "ucx", "nixl", "rdma",
    ]  # fmt: skip


async def test_a_report_as_json_prints_no_finding_by_itself(capsys: pytest.CaptureFixture[str]):
    async def one():
        yield Finding("cores", True, True, "2 usable")

    assert len(await reported(one(), quiet=True)) == 1
    assert not capsys.readouterr().out


def test_rdma_is_there_only_when_bytes_moved_over_it():
    up = {"facts": {"devices": ["mlx5_0"], "ports_up": ["mlx5_0/1"]}, "error": None}
    moved = {"version": "1.5.1", "plugins": ["UCX"], "path": "nixl-rdma", "moved_bytes": 1, "gb_per_s": 20.0}
    nixl = {"facts": moved, "error": None}
    here = by_name(DataPlaneConfig(), found(rdma=up, nixl=nixl))["rdma"]
    assert here.works and here.said.startswith("there: mlx5_0/1 is up, and NIXL read over it")
    assert 'data_plane.transport = "nixl"' in here.remedy
    assert not by_name(DataPlaneConfig(transport="nixl"), found(rdma=up, nixl=nixl))["rdma"].remedy
    over_tcp = by_name(DataPlaneConfig(), found(rdma=up))["rdma"]
    assert not over_tcp.works and "NIXL moved bytes over TCP" in over_tcp.said
    missing = failed("NIXL is not installed", "install earl[nixl]")
    absent = by_name(DataPlaneConfig(), found(rdma=up, nixl=missing))["rdma"]
    assert not absent.works and absent.remedy == "install earl[nixl]"
    down = {"facts": {"devices": ["mlx5_0"], "ports_up": []}, "error": None}
    assert "no port of mlx5_0 is up" in by_name(DataPlaneConfig(), found(rdma=down))["rdma"].said


def test_a_directory_on_a_disk_works_with_advice():
    memory = found()["memory"]
    memory["facts"]["file_system"] = "ext4"
    finding = by_name(DataPlaneConfig(), found(memory=memory))["arena directory"]
    assert finding.works and "name a tmpfs" in finding.remedy


async def test_a_probe_that_crashes_or_hangs_is_a_finding():
    crashed = await probe("nonsense", DataPlaneConfig())
    assert "ended with 1: KeyError: 'nonsense'" in crashed["error"]["message"]
    assert "python -m earl.dispatch.probe nonsense" in crashed["error"]["remedy"]
    hung = await probe("rdma", DataPlaneConfig(), timeout_s=0.0)
    assert "did not end within 0 s" in hung["error"]["message"]


async def test_a_probe_can_be_tried_by_hand_as_the_remedy_says(tmp_path: Path):
    config = tictactoe(tmp_path / "it's", rollout={"arena_bytes": 0}, bus={"redis_url": "redis://:x@h:1"})
    hung = await probed_by("services.rollout.worker.arena_size", needed(config), timeout_s=0.0)
    _, _, by_hand = hung["error"]["remedy"].partition("run it yourself: ")
    assert "redis" not in by_hand
    by_hand = by_hand.replace("| python ", f"| {shlex.quote(sys.executable)} ")
    async with asyncio.timeout(60.0):
        shell = await asyncio.create_subprocess_exec("sh", "-c", by_hand, stdout=subprocess.PIPE)
        out, _ = await shell.communicate()
    assert json.loads(out)["facts"] == {"arena_bytes": arena_bytes(config, config.planned_context)}


def planned(*arguments: str) -> tuple[int, str]:
    """Exit code and output of `earl doctor` with these arguments."""
    result = CliRunner().invoke(doctor.app, list(arguments))
    if isinstance(result.exception, EarlError):
        return result.exception.exit_code, str(result.exception)
    return result.exit_code, result.output


def test_a_run_is_planned_for_a_machine_that_is_not_here():
    file = str(ROOT / "examples" / "qwen3_8b_8gpu.toml")
    code, output = planned(file, "--devices", "8x80GiB")
    head, trainer, engine, kv, slots, *_ = output.splitlines()
    assert code == 0 and "fits 8x80GiB" in output.replace("\n", " ") and "published versions" in slots
    assert kv == "KV of each engine: 399,480 tokens"
    assert head.split()[:4] == ["process", "devices", "ranks", "GiB"]
    assert trainer.split()[:3] == ["trainer", "0-3", "1"] and engine.split()[:3] == ["rollout-0", "4-7", "1"]
    sizes = [float(size) for size in trainer.split()[3:]]
    assert sum(sizes[1:]) == pytest.approx(sizes[0], abs=0.06)
    code, output = planned(file, "--devices", "8 x 24 GB", "--json")
    finding = json.loads(output)["findings"][0]
    assert code == 1 and not finding["works"] and finding["facts"]["device_bytes"] == 24 * 10**9
    assert "the largest part is" in finding["said"] and finding["remedy"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--devices", "8x80GiB"), "--devices without a run file; give one"),
        (("examples/tictactoe.toml", "--devices", "80GiB"), "'80GiB' names no devices; give how many"),
        (("examples/tictactoe.toml", "--devices", "0x80GiB"), "'0x80GiB' names no devices"),
        (("examples/tictactoe.toml", "--devices", "8x0GiB"), "'8x0GiB' names no devices"),
        (("examples/tictactoe.toml", "--devices", "8x80"), "'8x80' names no devices"),
        (("examples/tictactoe.toml", "--devices", "9999x1GiB"), "'9999x1GiB' names no devices"),
    ],
)
def test_devices_that_are_none_are_refused_in_one_line(arguments, message):
    code, output = planned(*arguments)
    assert code == 2 and message in output and "\n" not in output


def test_a_run_on_the_processor_takes_nothing_of_a_gpu(tmp_path: Path):
    text = (ROOT / "examples" / "tictactoe.toml").read_text()
    file = tmp_path / "cpu.toml"
    file.write_text(
        text.replace("[rollout]", '[rollout]\ndevice = "cpu"').replace(
            "[trainer]", '[trainer]\ndevice = "cpu"'
        )
    )
    code, output = planned(str(file), "--devices", "1x8GiB")
    assert code == 0 and output.startswith("no process computes on a GPU\n")
    assert "the GPU would hold 0.0 of 8.0 GiB" in output


def test_devices_that_a_plan_cannot_have_are_a_finding():
    file = str(ROOT / "examples" / "qwen3_8b_8gpu.toml")
    code, output = planned(file, "--devices", "4x80GiB")
    assert code == 1 and "rollout.devices names GPU 7, and this machine has 4 devices" in output


async def test_a_run_file_is_planned_for_what_this_machine_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    given: list[tuple[int, int]] = []

    async def probing(config: RunConfig, gpus: int, device_bytes: int, of_host: int) -> dict[str, Any]:
        assert of_host == host_bytes()
        given.append((gpus, device_bytes))
        return failed("planned")

    async def refusing(*_: Any) -> dict[str, Any]:
        return failed("not tried")

    async def findings() -> list[Finding]:
        return [finding async for finding in examined(tictactoe(tmp_path), "") if finding.name == "devices"]

    monkeypatch.setattr(doctor, "probed_node", probing)
    monkeypatch.setattr(doctor, "gpu_bytes_here", lambda config: (80 << 30, 24 << 30))
    for name in ("probed_by", "probe", "redis"):
        monkeypatch.setattr(doctor, name, refusing)
    monkeypatch.setattr(doctor, "PROBES", ())
    (finding,) = await findings()
    assert finding.said == "planned" and finding.fatal
    monkeypatch.setattr(doctor, "gpu_bytes_here", lambda config: ())
    await findings()
    assert given == [(2, 24 << 30), (0, host_bytes())]
