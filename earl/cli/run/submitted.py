"""Submits a run to a cluster's manager, for `earl up --on`, and waits until its processes are ready.

checks ─► the nodes read the run's directory ─► order, secrets ─► job of the head ─► its news ─► ready
  └────────────┴─ refused: nothing was started, and nothing stays in the directory
"""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from earl.cli.run.detached import LaunchNews, LaunchOrder
from earl.cli.run.head import HeadOrder
from earl.cli.run.pods import prepared, submit_objects
from earl.cli.run.started import GIVEN_UP_S, Show, StartedRun, longest_pause_s, reason, started_run
from earl.config.run import RunConfig
from earl.errors import ConfigError, ProcessFailed, ServiceUnavailable
from earl.stack.begun_bounds import with_begun_bounds
from earl.stack.cluster.access import make_secrets
from earl.stack.cluster.folder import NOW, ClusterFolder, HeadJob, lines
from earl.stack.cluster.heads import end_jobs, request_stop, until_inactive
from earl.stack.cluster.kubernetes.manager import KubernetesManager
from earl.stack.cluster.manager import ClusterManager, ClusterNode, JobRequest, JobSize
from earl.stack.cluster.managers import manager_of
from earl.stack.cluster.places import check_cluster
from earl.stack.ending import recorded_reason
from earl.stack.process import last_lines
from earl.stack.record import is_held
from earl.stack.run_files import LOGS
from earl.stack.run_files import replace as write_private
from earl.stack.rundir import check_directory, has_run, remove_empty, run_path
from earl.waiting import until_first

# The log of what the head's job prints before it has the run's directory.
HEAD_LOG = "head.log"
FILES_S, STATES_S = 0.3, 2.0
# News of a head that has ended may come so much later.
LATE_NEWS_S = 10.0
MOST_PROBED = 64


async def submit(
    config: RunConfig, place: str, *, resume: bool, started_at: float, show: Show
) -> StartedRun | None:
    """Submits a run and waits until its processes are ready; None if it was interrupted.

    Raises ConfigError before anything is started, and what the launch failed with.
    """
    config = with_absolute_paths(config)
    manager = await asyncio.to_thread(manager_of, place, config.cluster)
    nodes = await asyncio.to_thread(manager.nodes)
    if isinstance(manager, KubernetesManager):
        config = await asyncio.to_thread(prepared, manager, config, nodes)
    else:
        check_cluster(config, nodes)
    directory = run_path(config)
    if await asyncio.to_thread(is_held, directory):
        raise ConfigError(f"{directory} is running", f"show it with: earl top {directory}")
    config, notes = with_begun_bounds(config, directory / "run.json" if resume else None)
    check_directory(config, resume=resume)
    folder = ClusterFolder(directory)
    new = not has_run(directory)
    folder.make()
    (directory / LOGS).mkdir(exist_ok=True)
    try:
        folder.clear()
        folder.news.unlink(missing_ok=True)
        notes += await asyncio.to_thread(probe, manager, nodes, folder)
        sys.stderr.writelines(f"earl: {note}\n" for note in notes)
        order = LaunchOrder(config=config, resume=resume, waited_s=time.monotonic() - started_at, notes=notes)
        if isinstance(manager, KubernetesManager):  # the head makes its secrets, for its Pods' names
            head = await asyncio.to_thread(submit_objects, manager, folder, order)
        else:
            await asyncio.to_thread(make_secrets, folder, nodes)
            head = await asyncio.to_thread(submit_head, manager, folder, order)
    except BaseException:
        folder.clear()
        if new:
            shutil.rmtree(folder.path, ignore_errors=True)
            remove_empty(directory)
        raise
    interrupted = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, interrupted.set)
    news = asyncio.create_task(follow_news(config, manager, head, folder, show))
    ready = False
    try:
        await until_first(news, interrupted.wait())
        if not news.done():
            return None
        ready = news.result().kind == "ready"
        if not ready:
            if news.result().kind == "failed" and (directory / "failure.json").is_file():
                sys.stderr.write(f"earl: {recorded_reason(directory)}\n")
            raise reason(news.result(), directory, 1)
        began = started_run(config, news.result(), 0)
        began.job = head.job
        return began
    finally:
        news.cancel()
        if not ready:
            await asyncio.to_thread(give_up, manager, head, folder)


def with_absolute_paths(config: RunConfig) -> RunConfig:
    """The configuration with those paths absolute that are read before a job is in this directory."""
    python = config.cluster.ray_python
    cluster = config.cluster.model_copy(update={"ray_python": os.path.abspath(python) if python else ""})
    runs_dir = str(Path(config.runs_dir).expanduser().resolve())
    return config.model_copy(update={"runs_dir": runs_dir, "cluster": cluster})


def python_variables() -> dict[str, str]:
    """The variables by which this interpreter finds EARL, for another node."""
    given = os.environ.get("PYTHONPATH", "")
    return {"PYTHONPATH": os.pathsep.join(map(os.path.abspath, given.split(os.pathsep)))} if given else {}


def probe(manager: ClusterManager, nodes: Sequence[ClusterNode], folder: ClusterFolder) -> list[str]:
    """Lets nodes read the run's directory. Returns notes; raises ConfigError for nodes that cannot."""
    value = secrets.token_hex(8)
    write_private(folder.probe, value + "\n")
    up = [node.name for node in nodes if node.up]
    if not up:
        raise ConfigError(
            f"none of {len(nodes)} nodes is up", "see the manager's own commands (sinfo, kubectl get nodes)"
        )
    try:
        answers = manager.probe(str(folder.probe), value, up[:MOST_PROBED])
    finally:
        folder.probe.unlink()
    without = sorted(node for node, read in answers.items() if not read)
    if without:
        raise ConfigError(
            f"the run's directory {folder.path.parent} is not shared: {', '.join(without)} cannot read it",
            "name a folder of a file system that all nodes share with --runs-dir",
        )
    if not answers:
        return ["no node is free now: each checks at its job's start that it shares the run's directory"]
    return []


def submit_head(manager: ClusterManager, folder: ClusterFolder, order: LaunchOrder) -> HeadJob:
    """Writes the order and submits the head's job. Returns it."""
    python = python_variables()
    given = HeadOrder(
        order=order, manager=manager.name, directory=os.getcwd(), variables=dict(os.environ), python=python
    )
    given.variables.update(python)
    with open(os.open(folder.order, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(given.model_dump_json())
    sizes = order.config.cluster
    request = JobRequest(
        f"earl-{order.config.name}",
        (sys.executable, "-m", "earl.cli.run.head", str(folder.order)),
        str(folder.path.parent / LOGS / HEAD_LOG),
        JobSize(sizes.head_cpus, sizes.head_memory_bytes),
        requeue=True,
        variables=python,
    )
    job = manager.submit(request)
    head = HeadJob(manager.name, job, cluster=sizes.model_dump(mode="json"))
    folder.keep_job(head)
    return head


async def follow_news(
    config: RunConfig, manager: ClusterManager, head: HeadJob, folder: ClusterFolder, show: Show
) -> LaunchNews:
    """The last news of a head: ready or failed.

    Raises ProcessFailed if it queues, or reports nothing new, for too long, or its job ends without any.
    """
    last, taken, began = LaunchNews(kind="processes"), 0, time.monotonic()
    changed_at, called_at, ended_at, queued, waits_for = began, 0.0, 0.0, True, ""
    log = folder.path.parent / LOGS / HEAD_LOG
    while True:
        written = await asyncio.to_thread(lines, folder.news)
        for line in written[taken:]:
            last, changed_at, queued = LaunchNews.model_validate_json(line), time.monotonic(), False
            if last.kind in ("ready", "failed"):
                return last
            if last.states:
                show(last.states, 0.0, last.left_s)
        taken = len(written)
        now = time.monotonic()
        if now - called_at >= STATES_S:
            called_at = now
            try:
                status = (await asyncio.to_thread(manager.statuses, [head.job]))[head.job]
            except ServiceUnavailable:
                continue  # it is asked again; what the head writes counts meanwhile
            if status.phase == "ended":
                ended_at = ended_at or now
            if status.phase == "queued" and queued:
                waits_for = status.reason
                show({"head": f"queued as job {head.job}, {waits_for}"}, now - began, 0.0)
            elif queued:
                queued, changed_at = False, now
                show({"head": f"starting on {status.node} as job {head.job}"}, 0.0, 0.0)
        if queued and now - began > config.cluster.queue_s:
            raise ProcessFailed(
                f"job {head.job} of the run's head has waited in the queue for cluster.queue_s = "
                f"{config.cluster.queue_s:g} s: {waits_for}",
                "raise cluster.queue_s, or ask for less in [cluster]",
            )
        if ended_at and now - ended_at > LATE_NEWS_S:
            words = last_lines(log, 1) or ["it wrote nothing: does its node share the run's directory?"]
            raise ProcessFailed(f"job {head.job} ended before the run was ready: {words[-1]}", f"see {log}")
        pause_s = longest_pause_s(config) + config.cluster.queue_s
        if not queued and now - changed_at > pause_s:
            raise ProcessFailed(f"the head has reported nothing new for {pause_s:g} s", f"see {log}")
        await asyncio.sleep(FILES_S)


def give_up(manager: ClusterManager, head: HeadJob, folder: ClusterFolder) -> None:
    """Ends what was submitted: the head ends its jobs, or they are cancelled."""
    if manager.statuses([head.job])[head.job].phase == "running":
        request_stop(folder.path.parent, NOW)
        until_inactive(head, GIVEN_UP_S)
    end_jobs(manager, [head.job, *folder.names()])
    folder.keep_job(replace(head, ended=True))
    folder.clear()
