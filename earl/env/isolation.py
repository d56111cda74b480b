"""Episodes in processes of their own: a crash or an endless loop ends one episode, never the host.

    IsolatedEnvironment ── Reset/Step/Close ──► host_process.py ─► the environment itself
      (in the host's loop)  ◄── Result/Progress ──   (spawned; one episode at a time)

A process is used again after an episode that ended well, up to `EPISODES` times, so that its imports are
paid for once; after one that failed it ends, and another takes its place. What it dies of ends its episode
as ENV_ERROR (EnvironmentCrashed). A step that is cancelled, which is what a gateway does at a deadline,
kills the process. No pickle: the child imports the environment by its name.

It costs a start, some 20 MiB a process in addition to what the environment needs, and about a millisecond a
step.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from functools import partial
from typing import Any

from google.protobuf.message import DecodeError

from earl.env import codec, stream_codec
from earl.env.base import ISOLATIONS, Action, Environment, Factory
from earl.env.packets import MAX_BYTES, packed, read_packet
from earl.env.serve import load
from earl.env.threads import in_thread
from earl.errors import ConfigError, EarlError, EnvBackendLost, EnvironmentCrashed, EnvProtocolError

log = logging.getLogger(__name__)

EPISODES = 256
# How long processes have to end when the host does, and a killed one to be gone.
CLOSE_S = 2.0
KILLED_S = 5.0


class ProcessPool:
    """Processes that serve one target, "module:object". Must be made and used on a running loop.

    memory_bytes: bound of each process's heap and private mappings; 0 for none.
    """

    def __init__(self, target: str, memory_bytes: int = 0) -> None:
        self.target = target
        self.memory_bytes = memory_bytes
        self._idle: list[EnvProcess] = []
        self._all: set[EnvProcess] = set()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._closed = False
        self._warm()

    def environment(self, name: str) -> IsolatedEnvironment:
        """An episode of the target's environment `name`."""
        return IsolatedEnvironment(name, self)

    async def take(self) -> EnvProcess:
        """A process with no episode in it. Raises EnvBackendLost if none can be started."""
        while self._idle:
            process = self._idle.pop()
            if process.popen.poll() is None:
                return process
            self._all.discard(process)
        return await self._started()

    def give_back(self, process: EnvProcess) -> None:
        """Returns a process to the pool after an episode that ended well."""
        if process.episodes < EPISODES and not self._closed:
            self._idle.append(process)
        else:
            self.retire(process)

    def retire(self, process: EnvProcess) -> None:
        """Lets its environment close, then ends it, and has another ready."""
        self._spawn(self._retire(process))
        self._warm()

    def kill(self, process: EnvProcess) -> None:
        """Ends a process at once, and has another ready."""
        process.kill()
        self._all.discard(process)
        self._warm()

    def close(self) -> None:
        """Ends all processes; their environments may close first, within CLOSE_S in all."""
        self._closed = True
        for task in self._tasks:
            task.cancel()
        for process in self._all:
            if process.episodes:
                process.hang_up()
            else:
                process.kill()
        ends = time.monotonic() + CLOSE_S
        for process in self._all:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.popen.wait(max(0.0, ends - time.monotonic()))
            process.kill()
        self._all.clear()
        self._idle.clear()

    def _warm(self) -> None:
        """Has an idle process, so that the next episode need not wait for imports."""
        if not self._idle and not self._closed:
            self._spawn(self._ready())

    async def _ready(self) -> None:
        try:
            self._idle.append(await self._started())
        except EnvBackendLost as error:
            log.warning("%s", error)  # an episode that needs one will try again, and say so

    async def _started(self) -> EnvProcess:
        try:
            process = EnvProcess(self.target, self.memory_bytes)
        except OSError as error:
            raise EnvBackendLost(f"no process for {self.target} could be started: {error}") from error
        self._all.add(process)
        try:
            await process.connect()
        except BaseException:
            self.kill(process)
            raise
        return process

    async def _retire(self, process: EnvProcess) -> None:
        process.hang_up()
        with contextlib.suppress(subprocess.TimeoutExpired):
            await in_thread(process.popen.wait, CLOSE_S)
        process.kill()
        self._all.discard(process)

    def _spawn(self, coroutine: Any) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


class EnvProcess:
    """One process, spawned, and the socket to it. episodes: how many began in it. Raises OSError."""

    def __init__(self, target: str, memory_bytes: int) -> None:
        self.episodes = 0
        self._writer: asyncio.StreamWriter | None = None
        self._end, theirs = socket.socketpair()
        words = [str(theirs.fileno()), str(os.getpid()), str(memory_bytes), target]
        try:
            self.popen = subprocess.Popen(
                # -P: the search path is the one given, not the working directory.
                [sys.executable, "-P", "-u", "-m", "earl.env.host_process", *words],
                env=os.environ | {"PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)},
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=2,  # what an environment prints is no output of the host's
                start_new_session=True,
            )
        except OSError:
            self._end.close()
            raise
        finally:
            theirs.close()

    async def connect(self) -> None:
        """Connects to the process; called before anything is sent."""
        self._reader, self._writer = await asyncio.open_connection(sock=self._end)

    def send(self, message: Any) -> None:
        assert self._writer is not None
        self._writer.write(packed(message.SerializeToString()))

    async def receive(self) -> Any:
        """The next earl.v1.HostMessage; None once it has died. Raises EnvProtocolError."""
        packet = await read_packet(self._reader)
        if packet is None:
            return None
        try:
            return codec.host_message(packet)
        except DecodeError as error:
            raise EnvProtocolError(f"a message of the environment's process is malformed: {error}") from error

    def hang_up(self) -> None:
        """Tells the process to end."""
        with contextlib.suppress(OSError):
            self._end.shutdown(socket.SHUT_RDWR)

    def kill(self) -> str:
        """Ends it and what it started; returns in words how it had ended before, or that it was killed."""
        if self.popen.returncode is None:  # otherwise its number may be another's by now
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.popen.pid, signal.SIGKILL)
        if self._writer is not None:
            self._writer.close()
        else:
            self._end.close()
        try:
            code = self.popen.wait(KILLED_S)
        except subprocess.TimeoutExpired:
            log.error("process %d of an environment does not end", self.popen.pid)
            return "does not end"
        return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"


class IsolatedEnvironment(Environment):
    """An episode that a process of the pool plays."""

    def __init__(self, name: str, pool: ProcessPool) -> None:
        self._name = name
        self._pool = pool
        self._process: EnvProcess | None = None
        self._seq = 0

    async def reset(self, seed: int, task: dict[str, Any]) -> Any:
        """Starts an episode in a process.

        Raises as `_ask` does, and EnvBackendLost if no process is available.
        """
        process = self._process = await self._pool.take()
        process.episodes += 1
        process.send(stream_codec.welcome(0.0, MAX_BYTES, (), self.max_action_characters))
        message = stream_codec.reset(
            process.episodes,
            self._name,
            json.dumps(task),
            seed,
            seats=self.seats_played,
            tools=self.tools_allowed,
        )
        return await self._ask(message)

    async def step(self, action: Action) -> Any:
        """Takes an action in the process. Raises as `_ask` does."""
        assert self._process is not None
        self._seq += 1
        return await self._ask(stream_codec.step(self._process.episodes, self._seq, action))

    async def close(self) -> None:
        """Lets the environment close, in its process, which is then free for another episode."""
        process, self._process = self._process, None
        if process is not None:
            process.send(stream_codec.close(process.episodes))
            self._pool.give_back(process)

    async def _ask(self, message: Any) -> Any:
        """Sends the environment a message and returns its answer.

        Raises EnvironmentCrashed if the process died, EnvProtocolError for what is no answer, and the
        error of an episode that failed. In each case, and when cancelled, the process is gone after it.
        """
        process = self._process
        assert process is not None
        try:
            process.send(message)
            result = await self._result(process)
        except BaseException:
            self._process = None
            self._pool.kill(process)
            raise
        try:
            return codec.outcome(result)
        except EarlError:
            self._process = None
            self._pool.retire(process)
            raise

    async def _result(self, process: EnvProcess) -> Any:
        """The Result of what was asked last. Raises EnvironmentCrashed, EnvProtocolError."""
        while (message := await process.receive()) is not None:
            if message.WhichOneof("message") == "progress":
                self.report_progress(message.progress.message)
            elif message.WhichOneof("message") == "result" and self._is_awaited(message.result, process):
                return message.result
        what = "the reset" if self._seq == 0 else f"step {self._seq}"
        raise EnvironmentCrashed(f"the process of {self._name} {process.kill()} in {what}")

    def _is_awaited(self, result: Any, process: EnvProcess) -> bool:
        return (result.session, result.seq) == (process.episodes, self._seq)


def isolated(
    environments: Mapping[str, Factory], infos: Mapping[str, Any], isolation: str = ""
) -> tuple[dict[str, Factory], list[ProcessPool]]:
    """Factories of the environments that get processes of their own, by name, and the pools behind them.

    infos: where each one's class attributes are. isolation: "thread" or "process" for all of them, "" for
    what each says of itself. Raises ConfigError for one that another process could not import.
    """
    if isolation not in ("", *ISOLATIONS):
        raise ConfigError(f"isolation {isolation!r} is not known", f"use {' or '.join(ISOLATIONS)}")
    target = getattr(environments, "target", "")
    pools: dict[tuple[str, int], ProcessPool] = {}
    factories: dict[str, Factory] = {}
    for name, factory in environments.items():
        if (isolation or infos[name].isolation) == "process":
            key = (_target_of(name, factory, target), infos[name].memory_bytes)
            if key not in pools:
                pools[key] = ProcessPool(*key)
            factories[name] = partial(pools[key].environment, name)
    return factories, [*pools.values()]


def _target_of(name: str, factory: Factory, target: str) -> str:
    """The "module:object" by which another process finds the environment: the one that it was loaded
    from, if it was, or its class."""
    tried = target or f"{getattr(factory, '__module__', '')}:{getattr(factory, '__qualname__', '')}"
    remedy = "serve it as package.module:Class, from a module that can be imported"
    if tried.startswith("__main__:"):
        raise ConfigError(f"environment {name!r} of a script cannot have a process of its own", remedy)
    if name not in load(tried):
        raise ConfigError(f"{tried!r} does not serve {name!r} in another process", remedy)
    return tried
