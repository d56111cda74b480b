"""The Pods of a run as its head sees them, and the process of a Pod that runs what the head gives it."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from earl.config.cluster import ClusterConfig
from earl.stack.cluster import jobs as jobs_module
from earl.stack.cluster.folder import ClusterFolder, Fence, HeadJob
from earl.stack.cluster.jobs import JobBoard, LaunchOfJobs
from earl.stack.cluster.kubernetes import slots as slots_module
from earl.stack.cluster.kubernetes.slots import PodBeat, SlotFiles, SlotManager, make_slots, pods_domain
from earl.stack.cluster.manager import JobSize, JobStatus
from earl.stack.cluster.managers import manager_of
from earl.stack.cluster.names import ORDER_VARIABLE, SLOTS_VARIABLE
from earl.stack.plan import ProcessSpec
from earl.stack.process import StackProcess
from earl.stack.starter import StartOrder
from earl.stack.warden import MARK_VARIABLE, PROCESS_VARIABLE

GIB = 1 << 30


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ClusterFolder:
    made = ClusterFolder(tmp_path / "x")
    made.make()
    make_slots(made, {"trainer": JobSize(2, GIB), "rollout-0": JobSize(2, GIB, gpus=4)})
    monkeypatch.setenv(SLOTS_VARIABLE, str(made.slots))
    return made


def resolved(address: str) -> list[tuple[object, ...]]:
    """An answer of socket.getaddrinfo."""
    return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 0))]


def test_the_nodes_of_a_head_in_a_pod_are_the_runs_pods(
    folder: ClusterFolder, monkeypatch: pytest.MonkeyPatch
):
    name = "earl-x-head-0.earl-x.default.svc.cluster.local"
    monkeypatch.setenv("EARL_POD_IP", "10.1.2.3")
    monkeypatch.setattr(socket, "getfqdn", lambda: name)
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_: resolved("10.1.2.3"))
    manager = manager_of("kubernetes", ClusterConfig())
    assert isinstance(manager, SlotManager) and manager.node_address() == name
    rollout, trainer = manager.nodes()
    assert (rollout.name, rollout.gpus, trainer.gpus) == ("rollout-0", 4, 0)
    assert rollout.address == "*.earl-x.default.svc.cluster.local" == pods_domain(name)
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_: resolved("10.9.9.9"))
    assert manager.node_address() == "10.1.2.3" == pods_domain("10.1.2.3")


def test_slots_are_this_users_alone(folder: ClusterFolder):
    SlotFiles(folder, "trainer").write_beat(PodBeat("pod-1", "n1", "s1", 1))
    assert {path.stat().st_mode & 0o77 for path in folder.path.rglob("*")} == {0}


def test_a_job_is_lost_with_its_pod_and_waits_for_one(folder: ClusterFolder, monkeypatch: pytest.MonkeyPatch):
    now = [0.0]
    monkeypatch.setattr(slots_module.time, "monotonic", lambda: now[0])
    manager, slot = SlotManager(), SlotFiles(folder, "trainer")
    path = folder.add_job()
    name = f"trainer/{path.name}"

    def phase() -> str:
        return manager.statuses([name])[name].phase

    assert phase() == "queued"
    first = PodBeat("pod-1", "n1", "s1", 1)
    slot.write_beat(first)
    slots_module.write(path / "taken.json", {"pod": "pod-1", "node": "n1", "start": "s1", "count": 1})
    assert phase() == "running"
    now[0] += slots_module.QUIET_S + 1
    assert phase() == "lost"
    slot.write_beat(PodBeat("pod-1", "n1", "s1", 2))
    assert phase() == "running"
    slot.write_beat(PodBeat("pod-2", "n2", "s2", 1))
    assert manager.statuses([name])[name] == JobStatus("lost", "n1", "replaced: Pod pod-1 is gone")
    slots_module.write(path / "left.json", {"code": 0})
    assert phase() == "ended"
    waits = f"trainer/{folder.add_job().name}"
    manager.cancel([waits, "earl-x"])
    assert manager.statuses([waits])[waits].phase == "ended"
    assert manager.statuses(["trainer/gone"])["trainer/gone"].phase == "ended"
    folder.keep_job(HeadJob("kubernetes", "earl-x"))
    assert manager.statuses(["earl-x"])["earl-x"].phase == "running"


CHILD = """
import os, signal, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
print('{"ready": "x", "address": "' + os.environ["EARL_BIND"] + '"}', flush=True)
print(os.environ["SECRET"], flush=True)
signal.pause()
"""


class SlotStarter:
    def __init__(self, board: JobBoard) -> None:
        self._board = board

    async def start(self, order: StartOrder):
        return await self._board.start(order, JobSize(1, GIB))


def slot_process(folder: ClusterFolder, order: str = "0f1e", wait_s: str = "60") -> subprocess.Popen[bytes]:
    variables = {**os.environ, ORDER_VARIABLE: order, "EARL_POD_NAME": "pod-1", "EARL_POD_IP": "127.0.0.1"}
    module = "earl.stack.cluster.kubernetes.slot"
    command = (sys.executable, "-m", module, str(folder.path.parent), "trainer", wait_s)
    return subprocess.Popen(command, env=variables, stderr=subprocess.PIPE)


async def test_a_pod_runs_one_process_after_the_other_until_the_run_is_over(
    folder: ClusterFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(jobs_module, "FILES_S", 0.02)
    Fence(folder.head, "head").beat()
    folder.keep_job(HeadJob("kubernetes", "earl-x", order="0f1e"))
    board = JobBoard(
        SlotManager(), folder, LaunchOfJobs("x", "head", str(tmp_path), tmp_path / "arenas", 60.0)
    )
    pod = slot_process(folder)
    mark = {MARK_VARIABLE: "test:kubernetes", PROCESS_VARIABLE: "test:kubernetes"}
    async with asyncio.timeout(60):
        for _ in range(2):
            log = tmp_path / "trainer.log"
            process = StackProcess(ProcessSpec("trainer", ("-c", CHILD)), log, SlotStarter(board))
            await process.start({"SECRET": "kept-from-argv", **mark})
            await process.placed()
            await process.ready.wait()
            assert process.address == "127.0.0.1:0" and pod.poll() is None
            process.signal(signal.SIGTERM)
            assert await process.wait() == 7
        await board.close()
    assert "kept-from-argv" in (tmp_path / "trainer.log").read_text()
    folder.keep_job(HeadJob("kubernetes", "earl-x", order="0f1e", ended=True))
    folder.clear()
    assert pod.wait(30) == 0


def test_a_pod_without_a_head_ends_and_so_does_one_of_an_earlier_order(folder: ClusterFolder):
    folder.keep_job(HeadJob("kubernetes", "earl-x", order="0f1e", ended=True))
    waits = slot_process(folder, order="another", wait_s="0.1")
    late = slot_process(folder)
    assert late.wait(30) == 0 and waits.wait(30) == 0
    assert waits.stderr is not None and b"no head of the run has counted for 0.1 s" in waits.stderr.read()
