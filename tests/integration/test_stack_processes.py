"""The supervisor and the warden with real processes: order, restarts, failures, and nothing left over."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from earl.config.load import load_run
from earl.config.run import StackConfig
from earl.errors import EpisodesFailing, ModelNotFound, ProcessFailed
from earl.stack.plan import ProcessSpec, StackAddresses
from earl.stack.rundir import RunDirectory
from earl.stack.supervisor import Supervisor
from earl.stack.warden import DONE, MARK_VARIABLE

TICTACTOE = Path(__file__).resolve().parents[2] / "examples" / "tictactoe.toml"
# What a process that has needs does once its imports are done.
GATE = "from earl.rpc.main import await_peers; await_peers()\n"
READY = 'print(\'{"ready": "x", "address": "127.0.0.1:1"}\', flush=True)\n'
SERVE = READY + "import signal; signal.sigwait([signal.SIGTERM])\n"
ADDRESSES = StackAddresses("127.0.0.1:1", "127.0.0.1:2", "redis://127.0.0.1:3")


def script(name: str, code: str, **options) -> ProcessSpec:
    return ProcessSpec(name, ("-c", textwrap.dedent(code)), **options)


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[RunDirectory]:
    config = load_run(TICTACTOE, [("runs_dir", str(tmp_path))])
    with RunDirectory(config, resume=False) as taken:
        yield taken


def supervise(directory: RunDirectory, *specs: ProcessSpec, **limits) -> Supervisor:
    supervisor = Supervisor(specs, directory, ADDRESSES, StackConfig(**{"start_s": 20.0, **limits}))
    supervisor.start()
    return supervisor


async def ready(supervisor: Supervisor, *names: str) -> None:
    async with asyncio.timeout(20):
        for name in names:
            await supervisor.processes[name].ready.wait()


async def failure(supervisor: Supervisor) -> BaseException:
    async with asyncio.timeout(20):
        return await asyncio.shield(supervisor.failure)


def marked(supervisor: Supervisor) -> list[psutil.Process]:
    """Live processes that carry the launch's mark."""
    found = []
    for process in psutil.process_iter():
        try:
            if (
                process.status() != psutil.STATUS_ZOMBIE
                and process.environ().get(MARK_VARIABLE) == supervisor.mark
            ):
                found.append(process)
        except psutil.Error:
            continue
    return found


async def test_a_start_is_timed_from_when_it_may_begin(directory: RunDirectory):
    """Time that a process waits for others is not its own; the next start is told of it."""
    slow = "import time; time.sleep(0.3)\n"
    model, worker = script("model", slow, job=True), script("worker", GATE + SERVE, needs=("model",))
    supervisor = supervise(directory, model, worker)
    try:
        await ready(supervisor, "model", "worker")
        seconds = supervisor.start_seconds()
        began, serves = supervisor.processes["model"], supervisor.processes["worker"]
        assert seconds.keys() == {"model", "worker"} and seconds["model"] >= 0.3
        assert serves._began_at >= began._began_at + seconds["model"]
    finally:
        await supervisor.stop(1.0)
    again = Supervisor([model], directory, ADDRESSES, StackConfig(start_s=20.0), seconds)
    [state] = again.states()
    assert (state.usual_s, state.most_s) == (seconds["model"], 20.0)


async def test_each_begins_when_what_it_needs_is_ready_and_all_end(directory: RunDirectory):
    trace = directory.path / "trace"
    step = (
        GATE
        + f"import os; open({str(trace)!r}, 'a').write(NAME + ' ' + os.environ['EARL_SCHEDULER'] + '\\n')\n"
    )
    supervisor = supervise(
        directory,
        script("last", "NAME = 'last'\n" + step + SERVE, needs=("job", "first")),
        script("first", "NAME = 'first'\n" + step + SERVE),
        script("job", "NAME = 'job'\n" + step, needs=("first",), job=True),
    )
    await ready(supervisor, "first", "job", "last")
    assert [line.split() for line in trace.read_text().splitlines()] == [
        [name, "127.0.0.1:1"] for name in ("first", "job", "last")
    ]
    assert len(marked(supervisor)) == 2
    await supervisor.stop(10.0)
    assert marked(supervisor) == []
    assert not supervisor.failure.done()
    assert {state.name: state.state for state in supervisor.states()} == {
        "last": "stopped",
        "first": "stopped",
        "job": "done",
    }


async def test_one_that_waits_has_loaded_what_it_imports_and_ends_with_the_others(directory: RunDirectory):
    loaded = directory.path / "loaded"
    os.mkfifo(loaded)
    imports = f"open({str(loaded)!r}, 'w').write('x')\n"
    supervisor = supervise(
        directory,
        script("never", "import signal; signal.pause()"),
        script("waits", imports + GATE + SERVE, needs=("never",)),
    )
    async with asyncio.timeout(20):
        assert await asyncio.to_thread(loaded.read_text) == "x"
    states = {state.name: state.state for state in supervisor.states()}
    assert states["waits"] == "waiting" and not supervisor.processes["waits"].ready.is_set()
    await supervisor.stop(5.0)
    assert marked(supervisor) == [] and not supervisor.failure.done()


async def test_one_that_ends_while_it_waits_is_a_failure(directory: RunDirectory):
    supervisor = supervise(
        directory,
        script("never", "import signal; signal.pause()"),
        script("waits", "raise RuntimeError('no luck')", needs=("never",)),
    )
    assert "waits ended with exit code 1 before it was ready" in str(await failure(supervisor))
    await supervisor.stop(5.0)


async def test_a_mistake_at_the_start_is_told_in_the_process_own_words(directory: RunDirectory):
    said = "noise\\nearl: error: model.path = x is missing; give one\\n"
    code = f"import sys; sys.stderr.write('{said}'); sys.exit(3)"
    supervisor = supervise(directory, script("model", code, job=True), script("other", SERVE))
    error = await failure(supervisor)
    assert type(error) is ModelNotFound
    assert str(error) == "model: model.path = x is missing; give one"
    await supervisor.stop(5.0)
    assert marked(supervisor) == []


async def test_a_crash_at_the_start_names_exit_code_and_last_line(directory: RunDirectory):
    supervisor = supervise(directory, script("gateway", "raise RuntimeError('no luck')", restartable=True))
    error = await failure(supervisor)
    assert isinstance(error, ProcessFailed)
    assert "gateway ended with exit code 1 before it was ready: RuntimeError: no luck" in str(error)
    assert str(directory.log("gateway")) in str(error)
    await supervisor.stop(5.0)


async def test_one_that_is_never_ready_is_given_up(directory: RunDirectory):
    supervisor = supervise(directory, script("slow", "import signal; signal.pause()"), start_s=0.5)
    error = await failure(supervisor)
    assert "slow was not ready within stack.start_s = 0.5 s" in str(error)
    await supervisor.stop(5.0)
    assert marked(supervisor) == []


async def test_a_crashed_worker_is_started_again_until_it_was_too_often(directory: RunDirectory):
    lives = directory.path / "lives"
    code = f"open({str(lives)!r}, 'a').write('x')\n" + READY + "import sys; sys.stdin.read(); sys.exit(7)"
    supervisor = supervise(directory, script("rollout-0", code, restartable=True), restarts=1)
    error = await failure(supervisor)
    assert isinstance(error, ProcessFailed)
    assert "rollout-0 ended with exit code 7 during the run" in str(error)
    assert lives.read_text() == "xx"
    assert supervisor.processes["rollout-0"].restarts == 1
    await supervisor.stop(5.0)


async def test_a_worker_that_crashes_while_it_is_started_again_has_crashed_once_more(directory: RunDirectory):
    lives = directory.path / "lives"
    lives.touch()
    code = f"""
    import os, signal, sys
    life = os.path.getsize({str(lives)!r})
    open({str(lives)!r}, 'a').write('x')
    if life == 1:
        sys.exit(5)
    print('{{"ready": "x", "address": ""}}', flush=True)
    if life == 0:
        sys.exit(7)
    signal.sigwait([signal.SIGTERM])
    """
    supervisor = supervise(directory, script("rollout-0", code, restartable=True), restarts=2)
    async with asyncio.timeout(20):
        while lives.read_text() != "xxx":
            assert not supervisor.failure.done()
            await asyncio.sleep(0.02)
    await ready(supervisor, "rollout-0")
    said = directory.log("rollout-0").read_text()
    assert "restart 2 of 2: rollout-0 ended with exit code 5 before it was ready again" in said
    os.kill(supervisor.processes["rollout-0"].pid, signal.SIGKILL)
    assert "it was started again 2 times" in str((await failure(supervisor)).__notes__)
    await supervisor.stop(5.0)


async def test_what_the_run_can_do_without_may_crash_before_it_was_ever_ready(directory: RunDirectory):
    lives = directory.path / "lives"
    code = f"open({str(lives)!r}, 'a').write('x'); raise RuntimeError('the server does not answer')"
    sink = script("sink-x", code, restartable=True, expendable=True)
    supervisor = supervise(directory, sink, script("scheduler", SERVE), restarts=1)
    async with asyncio.timeout(20):
        while supervisor.processes["sink-x"].state != "failed":
            assert not supervisor.failure.done()
            await asyncio.sleep(0.02)
    assert lives.read_text() == "xx" and not supervisor.failure.done()
    assert "the run continues without it" in directory.log("sink-x").read_text()
    await ready(supervisor, "scheduler")
    await supervisor.stop(5.0)


async def test_a_verdict_on_the_run_is_no_crash(directory: RunDirectory):
    said = "earl: error: 64 tickets failed; fix the environment\\n"
    code = READY + f"import sys; sys.stderr.write('{said}'); sys.exit(15)"
    supervisor = supervise(directory, script("scheduler", code, restartable=True, verdicts=(15,)))
    error = await failure(supervisor)
    assert type(error) is EpisodesFailing and "64 tickets failed" in str(error)
    assert supervisor.processes["scheduler"].restarts == 0
    await supervisor.stop(5.0)


async def test_what_a_crashed_process_started_is_ended_before_its_successor_starts(directory: RunDirectory):
    pids = directory.path / "pids"
    os.mkfifo(pids)
    # The child itself says its pid: only then is it past its exec, with an environment to be found by.
    child = f"import os, signal; open({str(pids)!r}, 'w').write(str(os.getpid())); signal.pause()"
    code = f"""
    import signal, subprocess, sys
    print('{{"ready": "x", "address": ""}}', flush=True)
    subprocess.Popen([sys.executable, '-c', {child!r}], start_new_session=True, stdout=subprocess.DEVNULL)
    signal.pause()
    """
    supervisor = supervise(directory, script("trainer", code, restartable=True), restarts=1)
    async with asyncio.timeout(20):
        first = int(await asyncio.to_thread(pids.read_text))
        os.kill(supervisor.processes["trainer"].pid, signal.SIGKILL)
        second = int(await asyncio.to_thread(pids.read_text))
    left = {process.pid for process in marked(supervisor)}
    assert second in left and first not in left
    assert "restart 1 of 1" in directory.log("trainer").read_text()
    await supervisor.stop(5.0)
    assert marked(supervisor) == []


async def test_a_process_that_ignores_sigterm_is_killed_at_the_bound(directory: RunDirectory):
    stubborn = (
        "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        + READY
        + "while True: signal.pause()"
    )
    supervisor = supervise(directory, script("stubborn", stubborn), script("scheduler", SERVE, stop_rank=1))
    await ready(supervisor, "stubborn", "scheduler")
    await supervisor.stop(2.0)
    assert marked(supervisor) == []


async def test_exit_code_0_before_the_run_is_over_is_a_failure(
    directory: RunDirectory, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("earl.stack.supervisor.END_NOTICED_S", 0.2)
    supervisor = supervise(directory, script("trainer", READY, ends_with_run=True))
    assert "exit code 0 although the run had not ended" in str(await failure(supervisor))
    await supervisor.stop(5.0)


async def test_exit_code_0_with_the_run_over_is_its_end(directory: RunDirectory):
    supervisor = supervise(directory, script("trainer", READY, ends_with_run=True))
    supervisor.run_ended.set()
    await ready(supervisor, "trainer")
    async with asyncio.timeout(20):
        while supervisor.processes["trainer"].state != "done":  # noqa: ASYNC110
            await asyncio.sleep(0.01)  # its end is known before its keeper has judged it
    assert await supervisor.wait_ended(["trainer"], 0.0)
    await supervisor.stop(5.0)
    assert not supervisor.failure.done()
    assert supervisor.processes["trainer"].state == "done"


# --- the warden -----------------------------------------------------------------------------


def start_warden(mark: str, path: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "earl.stack.warden", mark, str(path)]
    return subprocess.Popen(command, stdin=subprocess.PIPE)


def start_marked(mark: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", READY + "import signal; signal.pause()"]
    child = subprocess.Popen(
        command, stdout=subprocess.PIPE, env={**os.environ, MARK_VARIABLE: mark}, start_new_session=True
    )
    assert child.stdout is not None
    child.stdout.readline()
    return child


def test_the_warden_ends_the_run_when_its_launcher_dies(tmp_path: Path):
    arenas = tmp_path / "arenas"
    arenas.mkdir()
    (arenas / "a.arena").write_bytes(b"x")
    child, other = start_marked("mark-1"), start_marked("mark-2")
    warden = start_warden("mark-1", arenas)
    assert warden.stdin is not None
    warden.stdin.close()  # what the kernel does when the launcher dies
    assert warden.wait(20) == 0
    assert child.wait(5) == -signal.SIGTERM
    assert not arenas.exists()
    assert other.poll() is None
    other.kill()
    other.wait(5)


def test_the_warden_leaves_a_run_alone_that_ended_well(tmp_path: Path):
    child = start_marked("mark-3")
    warden = start_warden("mark-3", tmp_path)
    warden.communicate(DONE, timeout=20)
    assert child.poll() is None
    assert tmp_path.exists()
    child.kill()
    child.wait(5)
