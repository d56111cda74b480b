"""`earl up --on slurm` on a Slurm of this machine's own: a run ends, is refused, and loses its nodes."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cluster_runs import ClusterRuns, accounted
from tests.support.launched import TICTACTOE
from tests.support.slurm_cluster import SlurmCluster

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    directory = tmp_path_factory.mktemp("slurm") / "cluster"
    with SlurmCluster(directory, nodes=4, cpus=1, memory_mb=2200) as cluster:
        yield cluster


@pytest.fixture
def runs(slurm: SlurmCluster, tmp_path: Path) -> Iterator[ClusterRuns]:
    yield ClusterRuns("slurm", tmp_path, slurm.environment, slurm.jobs)
    slurm.end_jobs()


def called(slurm: SlurmCluster, *command: str) -> str:
    return subprocess.run(command, env=slurm.environment, capture_output=True, text=True).stdout


def test_a_run_ends_its_jobs_and_its_secrets_are_in_files_alone(slurm: SlurmCluster, runs: ClusterRuns):
    begun = runs.up("whole", scheduler__steps="30", rollout__workers="2", dashboard__bind="127.0.0.1:0")
    assert begun.returncode == 0, begun.stderr
    assert "rollout-1 queued" in begun.stderr and "page: https://" in begun.stdout
    secrets = runs.secrets_of("whole")
    described = called(slurm, "scontrol", "show", "job", "--details") + called(slurm, "ps", "-eo", "args")
    stored = b"".join(path.read_bytes() for path in slurm.directory.rglob("*") if path.is_file())
    for secret in secrets:
        assert secret not in described and secret.encode() not in stored
    status = runs.until("whole", lambda status: status["state"] == "complete")
    assert status["status"]["step"] == 30 and accounted(status["status"]["ledger"])
    names = [process["name"] for process in status["processes"]]
    assert names[-3:] == ["rollout-0", "rollout-1", "dashboard"]
    slurm.assert_no_jobs()
    runs.nothing_is_left("whole")


def test_what_cannot_run_is_refused_and_leaves_nothing(slurm: SlurmCluster, runs: ClusterRuns):
    none = runs.earl("up", str(TICTACTOE), "--on", "slurm", "--runs-dir", str(runs.runs), PATH="/none")
    assert none.returncode == 2 and "sbatch, squeue" in none.stderr
    large = runs.up("large", cluster__cpus="64")
    assert large.returncode == 2 and "no node holds trainer: it asks for 64 cores" in large.stderr
    slurm.lose("n4")
    slurm.join("n4", hidden=runs.runs)
    slurm.until_up("n4")
    try:
        apart = runs.up("apart")
    finally:
        slurm.lose("n4")
        slurm.join("n4")
        slurm.until_up("n4")
    assert apart.returncode == 2 and "is not shared: n4 cannot read it" in apart.stderr, apart.stderr
    assert not slurm.jobs() and not list(runs.runs.iterdir())


def test_a_head_that_queues_is_bounded_and_says_so(slurm: SlurmCluster, runs: ClusterRuns):
    filling = ("--nodes=4", "--mem=2000M", "--chdir=/", "--output=/dev/null", "--wrap", "sleep 600")
    job = called(slurm, "sbatch", "--parsable", *filling)
    begun = runs.up("waits", cluster__queue_s="5")
    called(slurm, "scancel", job.strip())
    assert begun.returncode == 13
    assert "head queued as job" in begun.stderr and "no node is free now" in begun.stderr
    assert "has waited in the queue for cluster.queue_s = 5 s: PENDING" in begun.stderr
    assert "earl-waits" not in slurm.jobs()


def test_a_run_outlives_the_loss_of_each_of_its_nodes(slurm: SlurmCluster, runs: ClusterRuns):
    begun = runs.up("lost", scheduler__steps="100000")
    assert begun.returncode == 0, begun.stderr
    for job in ("earl-lost-rollout-0", "earl-lost-trainer", "earl-lost"):
        step = runs.trains("lost")
        node = slurm.jobs()[job][1]
        slurm.lose(node)
        runs.recovers("lost", step)
        assert slurm.jobs()[job][1] != node
        slurm.join(node)
        slurm.until_up(node)
    ended = runs.earl("stop", str(runs.runs / "lost"))
    assert ended.returncode == 0, ended.stderr
    assert accounted(runs.status("lost")["status"]["ledger"])
    assert not slurm.jobs()
    runs.nothing_is_left("lost")
