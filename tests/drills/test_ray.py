"""`earl up --on ray` on a Ray cluster of this machine's own: a run ends, is refused, and loses its nodes."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from earl.stack.cluster.folder import ClusterFolder, lines
from tests.support.cluster_runs import GIB, ClusterRuns, accounted
from tests.support.ray_cluster import PYTHON, RayCluster

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

RAY = {"cluster__ray_python": str(PYTHON)}
# A worker of a raylet that was killed ends itself, and its child with it.
ENDED_S = 30.0


@pytest.fixture(scope="module")
def ray() -> Iterator[RayCluster]:
    with RayCluster(nodes=4, memory_bytes=2 * GIB + (256 << 20)) as cluster:
        yield cluster


@pytest.fixture
def runs(ray: RayCluster, tmp_path: Path) -> ClusterRuns:
    return ClusterRuns("ray", tmp_path, ray.environment)


def jobs_of(runs: ClusterRuns, name: str) -> dict[str, str]:
    """The names of the run's newest jobs at Ray, by the process that each runs; the head's is ""."""
    folder = ClusterFolder(runs.runs / name)
    assert folder.job is not None
    processes = {job.removeprefix(f"earl-{name}-").rpartition("-")[0]: job for job in folder.names()}
    return {**processes, "": folder.job.job}


def processes_of(runs: ClusterRuns, name: str, process: str) -> list[psutil.Process]:
    """The agents of a process and all that they have started."""
    folder = ClusterFolder(runs.runs / name)
    orders = [
        order
        for order in folder.jobs.glob("*/order.json")
        if json.loads(order.read_text())["name"] == process
    ]
    agents = [
        agent
        for agent in psutil.process_iter(["cmdline"])
        if any(str(order.parent) in (agent.info["cmdline"] or []) for order in orders)
    ]
    return [part for agent in agents for part in (agent, *agent.children(recursive=True))]


def until_gone(processes: list[psutil.Process]) -> None:
    until = time.monotonic() + ENDED_S
    while alive := [
        process for process in processes if process.is_running() and process.status() != "zombie"
    ]:
        assert time.monotonic() < until, alive
        time.sleep(0.2)


def test_what_cannot_run_is_refused_and_leaves_nothing(ray: RayCluster, runs: ClusterRuns):
    none = runs.up("none", cluster__ray_python="/none/python")
    assert none.returncode == 2 and "there is no Python with Ray at /none/python" in none.stderr
    large = runs.up("large", cluster__cpus="64", **RAY)
    assert large.returncode == 2 and "no node holds trainer: it asks for 64 cores" in large.stderr
    nowhere = runs.up("nowhere", cluster__ray_address="127.0.0.1:9", **RAY)
    assert nowhere.returncode == 11 and "start a cluster with: ray start --head" in nowhere.stderr
    assert not list(runs.runs.iterdir())


def test_a_run_outlives_the_loss_of_its_nodes_and_ends_its_jobs(ray: RayCluster, runs: ClusterRuns):
    begun = runs.up("lost", scheduler__steps="100000", **RAY)
    assert begun.returncode == 0, begun.stderr
    for process in ("rollout-0", "trainer"):
        step, job = runs.trains("lost"), jobs_of(runs, "lost")[process]
        began = processes_of(runs, "lost", process)
        assert len(began) >= 3  # agent, warden, the process itself
        ray.lose(ray.node_of(job))
        until_gone(began)
        runs.recovers("lost", step)
        assert jobs_of(runs, "lost")[process] != job
    step, head = runs.trains("lost"), jobs_of(runs, "lost")[""]
    before = ray.node_of(head)
    ray.lose(before)
    runs.recovers("lost", step)
    assert ray.node_of(head) != before
    jobs = [head, *lines(ClusterFolder(runs.runs / "lost").path / "jobs.txt")]
    ended = runs.earl("stop", str(runs.runs / "lost"))
    assert ended.returncode == 0, ended.stderr
    assert accounted(runs.status("lost")["status"]["ledger"])
    assert {status.phase for status in ray.manager.statuses(jobs).values()} == {"ended"}
    runs.nothing_is_left("lost")
