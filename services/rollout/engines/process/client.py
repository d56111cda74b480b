"""An engine in processes of its own, as the service's event loop uses it.

    service loop ── frames of commands ──► rank 0 ── one frame a step ──► rank 1 … tp-1
                 ◄── frames of replies ───        ◄──── staging done ────

The service never computes: it encodes all requests of one turn of its loop into one frame, and decodes
one frame per engine step. The ranks are spawned (never forked into), and all of them end
when this process or any one of them does.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import signal
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from typing import Any

from earl.errors import (
    DeadlineExceeded,
    EarlError,
    EngineError,
    EngineLost,
    EngineOutOfMemory,
    ReshapeRefused,
)
from earl.waiting import deadline
from services.rollout.engines.contract import wire
from services.rollout.engines.contract.admission import check_spec
from services.rollout.engines.contract.engine import (
    Engine,
    EngineSpec,
    EngineStats,
    GenerateRequest,
    Generation,
    KvOffer,
    KvReport,
    LoadReport,
    TokenChunk,
)
from services.rollout.engines.process.rank_process import EngineRankProcess, RankKind
from services.rollout.engines.process.rendezvous import Rendezvous

log = logging.getLogger(__name__)

STOP_S = 5.0
# Between a process's last reply and its exit status, whichever comes first.
EXIT_S = 0.5
# Bound of the calls that only wait for the step that runs.
CALL_S = 60.0

# Gives a process of a kind that was started before and waits to be a rank; None if there is none.
TakeStandby = Callable[[RankKind], EngineRankProcess | None]


class EngineProcess(Engine):
    """Runs `python -m services.rollout.engines.process` in the engine's own environment: one process for
    each rank of spec.tp, or one that starts its ranks itself (vLLM, SGLang).

    take: where processes are kept ready, gives one of those.
    """

    def __init__(self, spec: EngineSpec, take: TakeStandby = lambda kind: None) -> None:
        self.spec = spec
        self._take = take
        self._processes: list[asyncio.subprocess.Process] = []
        self._workers: list[int] = []
        self._watchers: list[asyncio.Task] = []
        self._rendezvous: Rendezvous | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._receiver: asyncio.Task | None = None
        self._outbox: list[Any] = []
        self._calls: dict[int, asyncio.Future] = {}
        self._call_ids = itertools.count(1)
        # What comes of each request in flight.
        self._requests: dict[str, asyncio.Queue[Generation | EarlError]] = {}
        self._ready: asyncio.Future | None = None
        self._lost = asyncio.Event()
        self._lost_because = ""
        self._stopping = False

    # --- life ---------------------------------------------------------------------------------

    async def start(self) -> None:
        check_spec(self.spec)
        self._ready = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(self.spec.start_s):
                await self._spawn()
                self.caps = await self._ready
            # From here on the processes leave nothing on disk, however they end.
            self._end_rendezvous()
        except TimeoutError:
            await self._end("its start took too long")
            raise DeadlineExceeded(
                f"engine {self.spec.name} did not start in {self.spec.start_s:g} s", "see its log on stderr"
            ) from None
        except BaseException:
            await self._end("its start failed")
            raise

    async def _spawn(self) -> None:
        kind = RankKind.of(self.spec)
        tp = self.spec.tp if self.spec.engine == "torch" else 1
        rendezvous = self._rendezvous = Rendezvous(self.spec.name, tp)
        ours, theirs = socket.socketpair()
        pairs = [socket.socketpair() for _ in range(1, tp)]
        try:
            for rank in range(tp):
                process = self._take(kind) or await EngineRankProcess.start(kind)
                self._processes.append(process.process)
                self._watchers.append(asyncio.create_task(self._watch(process.process)))
                channel = theirs if rank == 0 else pairs[rank - 1][1]
                followers = [leaders.fileno() for leaders, _ in pairs] if rank == 0 else []
                process.assign(channel.fileno(), followers, rendezvous.sums)
        finally:
            theirs.close()
            for pair in pairs:
                pair[0].close()
                pair[1].close()
        reader, self._writer = await asyncio.open_unix_connection(sock=ours)
        self._receiver = asyncio.create_task(self._receive(reader))
        self._watchers.append(self._receiver)
        self._post(wire.Start(self.spec, 0, rendezvous.store))

    async def stop(self) -> None:
        if not self._lost.is_set():
            self._stopping = True
            self._post(wire.Stop())
            with contextlib.suppress(TimeoutError):  # _end kills what is left
                async with asyncio.timeout(STOP_S):
                    await asyncio.gather(*(process.wait() for process in self._processes))
        await self._end("it was stopped")

    async def _end(self, because: str) -> None:
        """Kills the processes that still run, waits for them, and fails every call."""
        self._lose(because)
        await asyncio.gather(*(process.wait() for process in self._processes))
        for task in self._watchers:
            task.cancel()
        await asyncio.gather(*self._watchers, return_exceptions=True)
        if self._writer is not None:
            self._writer.close()
        self._end_rendezvous()

    def _end_rendezvous(self) -> None:
        if self._rendezvous is not None:
            self._rendezvous.end()

    def _lose(self, because: str) -> None:
        for process in self._processes:
            if process.returncode is None:
                process.kill()
        if self._lost.is_set():
            return
        self._lost_because = because
        self._lost.set()
        for future in (*self._calls.values(), self._ready):
            if future is not None and not future.done():
                future.set_exception(self._lost_error())
                future.exception()  # marks it as retrieved: nobody may be left to await it
        for queue in self._requests.values():
            queue.put_nowait(self._lost_error())

    def _lost_error(self) -> EngineLost:
        message = f"engine {self.spec.name} is gone: {self._lost_because}"
        codes = [process.returncode for process in self._processes]
        if not self._stopping and EngineOutOfMemory.exit_code in codes:
            return EngineOutOfMemory(message, "lower rollout.max_sequences or rollout.kv_tokens")
        return EngineLost(message, "its requests can run on another engine")

    async def wait_lost(self) -> None:
        await self._lost.wait()

    @property
    def pids(self) -> list[int]:
        """Process ids of the ranks, and of what they started."""
        return [*(process.pid for process in self._processes), *self._workers]

    async def _watch(self, process: asyncio.subprocess.Process) -> None:
        await process.wait()
        if self._receiver is not None and process is self._processes[0]:
            # Its last replies, for example why it could not start, are still to be read.
            await asyncio.wait([self._receiver], timeout=EXIT_S)
        self._note_end()

    def _note_end(self) -> None:
        """A process that ends by itself ends the others too; after `stop` each ends in its own time."""
        if not self._stopping:
            self._lose(self._exit_reason())

    def _exit_reason(self) -> str:
        codes = [(rank, process.returncode) for rank, process in enumerate(self._processes)]
        ended = [(rank, code) for rank, code in codes if code is not None]
        # Ranks that lost another rank end with 0: the other exit codes tell more.
        for rank, code in sorted(ended, key=lambda pair: pair[1] == 0):
            if code == EngineOutOfMemory.exit_code:
                return f"rank {rank} ran out of memory"
            return f"rank {rank} ended with {signal.Signals(-code).name if code < 0 else f'exit code {code}'}"
        return "its connection closed"

    # --- frames -------------------------------------------------------------------------------

    def _post(self, message: Any) -> None:
        if self._lost.is_set() or self._writer is None:
            raise self._lost_error()
        if not self._outbox:
            asyncio.get_running_loop().call_soon(self._flush)
        self._outbox.append(message)

    def _flush(self) -> None:
        messages, self._outbox = self._outbox, []
        if self._writer is not None and not self._lost.is_set():
            self._writer.write(wire.frame(messages))

    async def _receive(self, reader: asyncio.StreamReader) -> None:
        try:
            while True:
                (size,) = wire.LENGTH.unpack(await reader.readexactly(wire.LENGTH.size))
                if size > wire.MAX_FRAME_BYTES:
                    raise ValueError(f"a frame of {size} bytes")
                for reply in wire.reply_decoder.decode(await reader.readexactly(size)):
                    self._handle(reply)
        except (asyncio.IncompleteReadError, ConnectionError):
            # Its exit status is about to be known; a process that only closed the socket is ended.
            await asyncio.wait([asyncio.create_task(self._processes[0].wait())], timeout=EXIT_S)
            self._note_end()
        except Exception as error:
            log.exception("engine %s: its reply cannot be read", self.spec.name)
            self._lose(f"its reply cannot be read: {error}")

    def _handle(self, reply: wire.Reply) -> None:
        match reply:
            case Generation():
                self._hand_over(reply.request_id, reply)
            case wire.RequestRefused():
                self._hand_over(reply.request_id, reply.error.rebuild())
            case wire.CallAnswer():
                future = self._calls.pop(reply.call, None) if reply.call else self._ready
                if future is None or future.done():
                    return
                if reply.error is not None:
                    future.set_exception(reply.error.rebuild())
                else:
                    future.set_result(reply.result)
            case wire.Ready():
                self._workers = reply.workers
                if self._ready is not None and not self._ready.done():
                    self._ready.set_result(reply.caps)

    def _hand_over(self, request_id: str, reply: Generation | EarlError) -> None:
        if request_id in self._requests:
            self._requests[request_id].put_nowait(reply)

    async def _call(self, message_type: Any, *values: Any, deadline_s: float = CALL_S) -> Any:
        call = next(self._call_ids)
        future = asyncio.get_running_loop().create_future()
        self._calls[call] = future
        text = f"engine {self.spec.name} did not answer {message_type.__name__} in {deadline_s:g} s"
        late = DeadlineExceeded(text, "it is overloaded or stuck: stop it and start it again")
        try:
            self._post(message_type(call, *values))
            async with deadline(deadline_s, late):
                return await future
        finally:
            self._calls.pop(call, None)

    # --- generation ---------------------------------------------------------------------------

    async def generate_all(self, request: GenerateRequest) -> Generation:
        [generation] = [reply async for reply in self._replies(request, stream=False)]
        return generation

    def generate(self, request: GenerateRequest) -> AsyncIterator[TokenChunk]:
        return self._replies(request, stream=True)

    async def _replies(self, request: GenerateRequest, *, stream: bool) -> AsyncGenerator[Generation]:
        """Yields the replies to a request; one that is left before its last reply is aborted."""
        name = request.request_id
        if name in self._requests:
            raise EngineError(f"request id {name!r} is in flight already", "give every request its own")
        queue: asyncio.Queue[Generation | EarlError] = asyncio.Queue()
        self._post(wire.Generate(request, stream))
        self._requests[name] = queue
        finished = False
        try:
            while not finished:
                reply = await queue.get()
                finished = isinstance(reply, EarlError) or bool(reply.finish)
                if isinstance(reply, EarlError):
                    raise reply
                yield reply
        finally:
            del self._requests[name]
            if not finished:
                await self.abort(name)

    async def abort(self, request_id: str) -> None:
        if not self._lost.is_set():
            self._post(wire.Abort(request_id))

    async def release(self, session: str) -> None:
        if not self._lost.is_set():
            self._post(wire.Release(session))

    # --- control ------------------------------------------------------------------------------

    async def pause(self, keep: bool = True) -> None:
        await self._call(wire.Pause, keep)

    async def resume(self) -> None:
        await self._call(wire.Resume)

    async def sleep(self) -> None:
        await self._call(wire.Sleep)

    async def wake(self) -> None:
        await self._call(wire.Wake)

    async def load_weights(self, version: int, keys: Sequence[str], deadline_s: float = 30.0) -> LoadReport:
        await self.begin_update(version)
        staged = await self.load(version, keys, deadline_s)
        applied = await self.commit(version)
        return LoadReport(
            version=version, size_bytes=staged.size_bytes, read_s=staged.read_s, stall_s=applied.stall_s
        )

    async def begin_update(self, version: int) -> None:
        """Opens an update to `version`; one that was open and not committed is dropped."""
        await self._call(wire.BeginUpdate, version)

    async def load(self, version: int, keys: Sequence[str], deadline_s: float) -> LoadReport:
        """Reads into staging memory."""
        # The engine ends the read itself at the deadline; the margin leaves time for its answer.
        call = wire.LoadWeights
        return await self._call(call, version, list(keys), deadline_s, deadline_s=deadline_s + 5.0)

    async def commit(self, version: int) -> LoadReport:
        """Puts the staged version to use between two steps."""
        return await self._call(wire.Commit, version)

    async def offer_kv(self, name: str, known: Mapping[str, int], deadline_s: float) -> KvOffer:
        self._refuse_handover()
        return await self._call(wire.OfferKv, name, dict(known), deadline_s, deadline_s=deadline_s + 5.0)

    async def take_kv(self, offer: KvOffer, deadline_s: float) -> KvReport:
        self._refuse_handover()
        return await self._call(wire.TakeKv, offer, deadline_s, deadline_s=deadline_s + 5.0)

    async def withdraw_kv(self, name: str) -> None:
        self._refuse_handover()
        await self._call(wire.WithdrawKv, name)

    def _refuse_handover(self) -> None:
        if not self.caps.live_reshape:
            raise ReshapeRefused(
                f"engine {self.spec.name} ({self.spec.engine}) does not hand over KV",
                "let the other engine compute it again from the token ids",
            )

    async def stats(self) -> EngineStats:
        return await self._call(wire.GetStats)
