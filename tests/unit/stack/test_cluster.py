"""A run on a cluster: what is asked of Slurm, sizes and addresses, files that machines tell each other by."""

from __future__ import annotations

import asyncio
import signal
import stat
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import pytest

from earl.config.cluster import ClusterConfig
from earl.config.load import load_run
from earl.config.run import RunConfig
from earl.errors import ConfigError, ProcessFailed
from earl.loopback import is_loopback
from earl.rpc.token_file import Role
from earl.stack.cluster import folder as folder_module
from earl.stack.cluster import jobs
from earl.stack.cluster.access import access_of, make_secrets, secret_variables
from earl.stack.cluster.folder import ClusterFolder, Fence, HeadJob, append, lines
from earl.stack.cluster.jobs import JobBoard, LaunchOfJobs
from earl.stack.cluster.manager import ClusterNode, JobRequest, JobSize, JobStatus
from earl.stack.cluster.managers import manager_of
from earl.stack.cluster.places import bound_to, check_cluster, with_cluster_threads
from earl.stack.cluster.sizes import job_sizes
from earl.stack.cluster.slurm import NEEDED, gpus_of, options, parsed_nodes, parsed_statuses, script
from earl.stack.plan import ProcessSpec
from earl.stack.process import StackProcess
from earl.stack.rundir import has_run
from earl.stack.starter import StartOrder
from earl.stack.warden import MARK_VARIABLE, PROCESS_VARIABLE
from tests.support.paths import ROOT

GIB = 1 << 30
JOB = JobRequest(
    "earl-x-trainer", ("/venv/bin/python", "-m", "earl", "/runs/a b/x"), "/runs/50%/x.log", JobSize(3, GIB)
)


def config(**overrides: str) -> RunConfig:
    given = [(key.replace("__", "."), value) for key, value in overrides.items()]
    return load_run(ROOT / "examples" / "tictactoe.toml", given)


def node(
    name: str = "n1", address: str = "127.0.0.1", cpus: int = 4, gib: int = 8, gpus: int = 0
) -> ClusterNode:
    return ClusterNode(name, address, cpus, gib * GIB, gpus, up=True)


# --- Slurm's commands -----------------------------------------------------------------------


def test_a_jobs_script_is_its_command_in_place_of_the_shell():
    request = JobRequest(JOB.name, JOB.command, JOB.log, JOB.size, variables={"PYTHONPATH": "/a b"})
    assert script(request) == (
        "#!/bin/sh\nexport PYTHONPATH='/a b'\nexec /venv/bin/python -m earl '/runs/a b/x'\n"
    )


def test_a_job_gets_no_variables_of_its_submitter_and_what_the_run_file_asks():
    asked = options(JOB, ClusterConfig(partition="gpu", account="lab", constraint="a100&ib", limit_s=90.0))
    assert {"--export=NIL", "--no-requeue", "--cpus-per-task=3", "--mem=1024M", "--time=2"} <= set(asked)
    assert {"--partition=gpu", "--account=lab", "--constraint=a100&ib"} <= set(asked)
    assert "--output=/runs/50%%/x.log" in asked and not any("gres" in option for option in asked)
    head = JobRequest("earl-x", JOB.command, JOB.log, JobSize(1, GIB, gpus=2), requeue=True)
    assert {"--requeue", "--gres=gpu:2"} <= set(options(head, ClusterConfig()))


def test_states_of_jobs_are_phases_with_slurms_own_words():
    output = "7|PENDING||Resources\n8|RUNNING|n2|None\n9|NODE_FAIL|n3|NodeDown\n10|COMPLETED|n1|None\n"
    assert parsed_statuses(output) == {
        "7": JobStatus("queued", "", "PENDING (Resources)"),
        "8": JobStatus("running", "n2", "RUNNING"),
        "9": JobStatus("lost", "n3", "NODE_FAIL (NodeDown)"),
        "10": JobStatus("ended", "n1", "COMPLETED"),
    }


def test_a_node_of_two_partitions_is_one_and_one_that_does_not_answer_is_away():
    output = (
        "n1|10.0.0.1|8|16000|(null)|idle\nn1|10.0.0.1|8|16000|(null)|idle\nn2|n2|8|16000+|gpu:4(S:0)|down*\n"
    )
    first, second = parsed_nodes(output)
    assert first == ClusterNode("n1", "10.0.0.1", 8, 16000 << 20, 0, up=True)
    assert (second.gpus, second.up) == (4, False)


@pytest.mark.parametrize(
    ("gres", "gpus"), [("(null)", 0), ("gpu:a100:4(S:0-1),nvme:2", 4), ("gpu", 1), ("nvme:2", 0)]
)
def test_gpus_are_counted_in_generic_resources(gres: str, gpus: int):
    assert gpus_of(gres) == gpus


def test_without_a_managers_programs_nothing_is_asked(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ConfigError, match=f"{', '.join(NEEDED)} are not on PATH"):
        manager_of("slurm", ClusterConfig())
    with pytest.raises(ConfigError, match="there is no Python with Ray at /none"):
        manager_of("ray", ClusterConfig(ray_python="/none"))
    with pytest.raises(ConfigError, match="--on 'nomad' is no cluster manager"):
        manager_of("nomad", ClusterConfig())


# --- sizes, addresses -----------------------------------------------------------------------


def test_what_computes_is_a_job_each_and_shares_its_cores_among_its_ranks():
    given = config(rollout__workers="2", rollout__engines="2", cluster__cpus="4")
    assert job_sizes(given, 0) == dict.fromkeys(("trainer", "rollout-0", "rollout-1"), JobSize(4, 4 * GIB))
    sized = with_cluster_threads(given)
    assert (sized.trainer.threads, sized.rollout.threads) == (4, 2)


def test_a_stage_on_gpus_asks_for_them_and_leaves_no_size_open():
    with pytest.raises(ConfigError, match="no node has a GPU"):
        job_sizes(config(trainer__device="cuda"), 0)
    with pytest.raises(ConfigError, match="computes on GPUs of other nodes"):
        job_sizes(config(), 8)
    sizes = job_sizes(config(rollout__kv_tokens="1000", rollout__tp="2", trainer__device="cpu"), 8)
    assert (sizes["trainer"].gpus, sizes["rollout-0"].gpus) == (0, 2)


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"cluster__cpus": "5"}, "no node holds trainer: it asks for 5 cores, 4.0 GiB"),
        ({"cluster__head_memory_bytes": str(9 * GIB)}, "no node holds the head: .* 9.0 GiB"),
    ],
)
def test_a_job_that_no_node_holds_is_refused(asked: dict[str, str], words: str):
    with pytest.raises(ConfigError, match=words):
        check_cluster(config(**asked), [node(), node("n2", gib=4)])


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"trainer__devices": "0-1", "trainer__ranks": "2"}, "trainer.devices names devices of one machine"),
        (
            {"stack__share": "alternate", "scheduler__selector": "static"},
            'stack.share = "alternate" lets stages share',
        ),
    ],
)
def test_what_only_one_machine_can_do_is_refused(asked: dict[str, str], words: str):
    with pytest.raises(ConfigError, match=words):
        check_cluster(config(**asked), [node()])


def test_a_network_has_to_be_trusted_and_loopback_is_none():
    with pytest.raises(ConfigError, match="n2 is reached over a network"):
        check_cluster(config(), [node(), node("n2", "10.0.0.2")])
    check_cluster(config(data_plane__trusted_network="true"), [node("n2", "10.0.0.2")])
    check_cluster(config(), [node()])


def test_services_listen_at_the_heads_node_unless_the_run_file_says_where():
    bound = bound_to(config(gateway__bind="10.9.9.9:7001"), "10.0.0.1")
    assert (bound.scheduler.bind, bound.gateway.bind) == ("10.0.0.1:0", "10.9.9.9:7001")
    assert (bound.data_plane.bind, bound.obs.metrics) == ("0.0.0.0", "0.0.0.0:0")
    assert bound_to(config(), "fd00::2").scheduler.bind == "[fd00::2]:0"
    assert is_loopback(bound_to(config(), "127.0.0.1").data_plane.bind)


# --- the folder -----------------------------------------------------------------------------


def test_secrets_are_files_of_this_user_and_commands_find_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    for name in (
        "EARL_TOKEN",
        "EARL_TOKEN_FILE",
        "EARL_TOKENS",
        "EARL_TLS_CA",
        "EARL_TLS_CERT",
        "EARL_TLS_KEY",
    ):
        monkeypatch.delenv(name, raising=False)
    folder = ClusterFolder(tmp_path)
    folder.make()
    make_secrets(folder, [node()])
    assert not secret_variables(folder) and not access_of(tmp_path, Role.OPERATOR).token
    make_secrets(folder, [node("n2", "10.0.0.2")])
    modes = {stat.S_IMODE(path.stat().st_mode) for path in folder.secrets.iterdir()}
    assert modes == {0o600} and not (folder.secrets / "ca.key").exists()
    access = access_of(tmp_path, Role.OPERATOR)
    assert callable(access.token) and access.token().startswith("earl_operator_")
    assert access.tls is not None and str(access.tls.authority) == secret_variables(folder)["EARL_TLS_CA"]
    folder.keep_job(HeadJob("slurm", "7"))
    assert not has_run(tmp_path) and folder.job == HeadJob("slurm", "7")
    folder.clear()
    assert sorted(path.name for path in folder.path.iterdir()) == ["job.json"]


def test_a_half_written_line_is_none_yet(tmp_path: Path):
    append(tmp_path / "stop", "stop")
    with open(tmp_path / "stop", "a") as file:
        file.write("no")
    assert lines(tmp_path / "stop") == ["stop"] and lines(tmp_path / "none") == []


def test_an_agent_follows_one_head_while_that_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    now = [0.0]
    monkeypatch.setattr(folder_module.time, "monotonic", lambda: now[0])
    head, agent = Fence(tmp_path / "head.json", "a"), Fence(tmp_path / "head.json", "a")
    head.beat()
    assert agent.broken() == ""
    now[0] += folder_module.GONE_S
    assert agent.broken() == ""
    now[0] += 1
    assert "has not counted" in agent.broken()
    head.beat()
    assert agent.broken() == ""
    Fence(tmp_path / "head.json", "b").beat()
    assert agent.broken() == head.broken() == "another head runs the run"


# --- jobs -----------------------------------------------------------------------------------


class ProcessManager:
    """A manager whose jobs are processes of this machine. held: jobs stay in the queue."""

    name = "slurm"  # whose node address, off a node of Slurm's, is this machine's

    def __init__(self, *, held: bool = False) -> None:
        self.held = held
        self.started: dict[str, subprocess.Popen[bytes]] = {}
        self.cancelled: list[str] = []
        self.lost: list[str] = []

    def nodes(self) -> list[ClusterNode]:
        return [node()]

    def submit(self, job: JobRequest) -> str:
        if not self.held:
            self.started[job.name] = subprocess.Popen(job.command)
        return job.name

    def statuses(self, jobs: Iterable[str]) -> Mapping[str, JobStatus]:
        return {job: self._status(job) for job in jobs}

    def _status(self, job: str) -> JobStatus:
        if job in self.lost:
            return JobStatus("lost", "n1", "NODE_FAIL")
        if job in self.cancelled:
            return JobStatus("ended", reason="CANCELLED")
        if self.held:
            return JobStatus("queued", reason="PENDING (Resources)")
        return JobStatus("running" if self.started[job].poll() is None else "ended", "n1")

    def cancel(self, jobs: Iterable[str]) -> None:
        self.cancelled += jobs
        for job in jobs:
            if job in self.started:
                self.started[job].terminate()

    def probe(self, file: str, value: str, nodes: Sequence[str]) -> Mapping[str, bool]:
        return {}

    def node_address(self) -> str:
        return "127.0.0.1"


class BoardStarter:
    def __init__(self, board: JobBoard) -> None:
        self._board = board

    async def start(self, order: StartOrder):
        return await self._board.start(order, JobSize(1, GIB))


def board_of(tmp_path: Path, manager: ProcessManager, queue_s: float = 60.0) -> JobBoard:
    folder = ClusterFolder(tmp_path)
    folder.make()
    Fence(folder.head, "head").beat()
    launch = LaunchOfJobs("x", "head", str(tmp_path), tmp_path / "arenas", queue_s)
    return JobBoard(manager, folder, launch)


CHILD = """
import os, signal, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
sys.stdin.readline()
print('{"ready": "x", "address": "' + os.environ["EARL_BIND"] + '"}', flush=True)
print(os.environ["SECRET"], flush=True)
signal.pause()
"""


async def test_a_placed_process_begins_serves_drains_and_reports_its_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(jobs, "FILES_S", 0.02)
    manager = ProcessManager()
    board = board_of(tmp_path, manager)
    process = StackProcess(ProcessSpec("x", ("-c", CHILD)), tmp_path / "x.log", BoardStarter(board))
    mark = {MARK_VARIABLE: "test:x", PROCESS_VARIABLE: "test:x"}
    await process.start({"SECRET": "kept-from-argv", **mark}, held=True)
    async with asyncio.timeout(30):
        await process.placed()
        process.begin({})
        await process.ready.wait()
        assert process.address.endswith(":0") and process.pid == 0
        [started] = manager.started.values()
        assert "kept-from-argv" not in str(started.args)
        process.terminate()
        assert await process.wait() == 7
    await board.close()
    started.wait(30)
    assert "kept-from-argv" in process.log.read_text() and "runs on" in process.log.read_text()
    assert not process.lost and not manager.cancelled


async def test_a_job_that_queues_too_long_is_cancelled_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(jobs, "STATES_S", 0.0)
    manager = ProcessManager(held=True)
    board = board_of(tmp_path, manager, queue_s=0.5)
    process = StackProcess(ProcessSpec("x", ()), tmp_path / "x.log", BoardStarter(board))
    await process.start({})
    with pytest.raises(ProcessFailed, match=r"waited in the queue for cluster.queue_s = 0.5 s: PENDING"):
        await process.placed()
    await board.close()
    assert set(manager.cancelled) == {"earl-x-x"}


async def test_a_lost_node_is_no_crash_of_the_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(jobs, "STATES_S", 0.0)
    manager = ProcessManager(held=True)
    board = board_of(tmp_path, manager)
    process = StackProcess(ProcessSpec("x", ()), tmp_path / "x.log", BoardStarter(board))
    await process.start({})
    manager.lost.append("earl-x-x")
    async with asyncio.timeout(30):
        await process.placed()
        code = await process.wait()
    assert process.lost == "job earl-x-x on n1 ended as NODE_FAIL" and code < 0
    assert "was lost during the run: job earl-x-x" in process.failure(code, "during the run").message
    process.signal(signal.SIGTERM)
    await board.close()
    assert not manager.cancelled
