"""The contract of an engine: token ids in, sampled token ids out, weights that change underneath.

Every engine promises, and tests/contract/test_engine.py checks:
- a token carries its log-prob under the temperature-scaled distribution it was sampled from, in
  float32, and the policy version whose weights sampled it; with filters, over the tokens that they keep;
- a request reproduces from (ids, seed, temperature, filters, weights), whatever it was batched with, up to
  float noise;
- new weights take effect between two steps, wholly or not at all; sequences in flight continue;
- a call ends: with its result, or with a typed error as soon as the engine died.

Nothing here imports torch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Literal

import msgspec

from earl.config.paced import PacedConfig, pace_of
from earl.config.sampling_filters import SamplingFilters
from earl.obs.memory import DeviceMemory
from earl.pacing.pace import Pace
from earl.worker_report import TransferTotals, WorkerDevice
from services.rollout.engines.contract.draft_counts import DraftCounts

Finish = Literal["", "stop", "length", "abort"]


class EngineSpec(msgspec.Struct, kw_only=True, frozen=True):
    """Settings of an engine's processes; part of the first message that they get."""

    name: str
    # A transformers checkpoint directory (see earl.models.weights).
    model_dir: str
    engine: str = "torch"
    # Interpreter of the environment that the engine is installed in; empty: this process's own.
    python: str = ""
    # Tensor parallel ranks, each one process.
    tp: int = 1
    # "cpu", "cuda" or "auto", and after a colon the first CUDA device: rank r of tp takes the r-th from it.
    device: str = "auto"
    # torch threads of each rank.
    threads: int = 1
    dtype: Literal["float32", "bfloat16"] = "float32"
    # Sequences in the KV cache at once, and their longest length (prompt + generated tokens).
    max_sequences: int = 64
    max_context_tokens: int = 256
    # Tokens that the KV cache holds in all; when they are used up the youngest sequences are preempted and
    # computed again later. 0: max_sequences x max_context_tokens.
    kv_tokens: int = 0
    # The same tokens and log-probs, bit for bit, whatever a request is batched or cached with.
    deterministic: bool = False
    # Requests that may wait for a place in the KV cache; more are refused with EngineBusy.
    max_waiting: int = 4096
    # Tokens are drafted from each request's references and its own context, which changes no token.
    drafts: bool = False
    # Tokens of one step, about: longer prefills are split over several steps. 0: what suits the device.
    prefill_tokens: int = 0
    # What a sequence's KV becomes when new weights arrive.
    kv_on_update: Literal["keep", "recompute"] = "keep"
    # Generation ends after one of these, or one of the request's own.
    stop_ids: tuple[int, ...] = ()
    # Generation ends with the token that completes one of these (contract/stop_texts.py), none of them empty.
    stop_texts: tuple[str, ...] = ()
    # False: no weights are read at start; generation is refused until a version was loaded.
    load_initial: bool = True
    # The engine starts asleep, whatever load_initial says, and `sleep` is called in its life.
    sleeps: bool = False
    # The registry of weights. An empty url: load_weights is refused.
    redis_url: str = ""
    run: str = ""
    # DataPlaneConfig as JSON text; empty: defaults.
    data_plane: str = ""
    # Directory of the run's arenas, for offer_kv; empty: it is refused.
    arena_dir: str = ""
    # Bound of starting: processes, model, process group.
    start_s: float = 60.0
    # PacedConfig as JSON text, if devices are simulated; empty: they are real.
    paced: str = ""

    @property
    def pace(self) -> Pace | None:
        """The pace of the devices; None if they are real."""
        return pace_of(PacedConfig.model_validate_json(self.paced)) if self.paced else None

    @property
    def device_kind(self) -> str:
        return self.device.partition(":")[0]

    @property
    def first_device(self) -> int:
        return int(self.device.partition(":")[2] or 0)


class GenerateRequest(msgspec.Struct, kw_only=True):
    """One turn to sample. `ids` is the whole context so far, prompts and earlier answers."""

    # Unique among the requests in flight.
    request_id: str
    ids: list[int]
    max_new_tokens: int
    # The last tokens of ids that begin the answer, of one that continues here: a stop text may begin there.
    answered: int = 0
    # 0: greedy.
    temperature: float = 1.0
    # The uniform that samples the token at position p of the context is a function of (seed, p).
    seed: int = 0
    # For evaluation alone: the ratio of a trained token would be over all tokens, its log-prob over some.
    filters: SamplingFilters = SamplingFilters()
    stop_ids: list[int] = []
    # Requests of one episode name it, so that the KV of their common prefix is used again; a
    # session has one request in flight at a time. Empty: nothing is kept.
    session: str = ""
    # What the answer may repeat, the likeliest first: int32 token ids in this machine's byte order.
    references: list[bytes] = []
    # How many of the references, the first, are other episodes of the task; the rest are turns of its
    # environment. It is for counting drafts by their source.
    task_references: int = 0


class TokenChunk(msgspec.Struct, tag=True, array_like=True):
    """Tokens that one or more steps added to a request. Columns are equally long; all zero or more. A stop
    token is part of `ids`, and so is all of a token that completes a stop text."""

    request_id: str
    ids: list[int]
    # Log-prob of each id under the temperature-scaled distribution (of temperature 1 if greedy), over the
    # tokens that the request's filters keep.
    logprobs: list[float]
    # Policy version whose weights sampled each id.
    versions: list[int]
    # Set on the last chunk.
    finish: Finish = ""
    # Prompt tokens whose KV was there already.
    reused_tokens: int = 0


class Generation(TokenChunk):
    """A finished request: all of its tokens in one chunk."""

    # When its first and its last token were sampled, by the host's monotonic clock; 0: not known.
    began_ns: int = 0
    ended_ns: int = 0
    # Seconds between the last token before and the first token after each move to another engine.
    stalls_s: list[float] = []


class EngineCaps(msgspec.Struct, kw_only=True, frozen=True):
    """Capabilities in which engines differ for their users; known once the engine has started."""

    # Its sequences' KV can go to engines of another tp (offer_kv, take_kv).
    live_reshape: bool
    # What rank 0 computes on: "cpu", "cuda" or "cuda:2".
    device: str


# The kind of work of a period in which an engine generates.
GENERATES = "generate"


class BusyPeriod(msgspec.Struct, array_like=True):
    """An interval in which the engine worked, in Unix nanoseconds; neighbouring steps are joined. what: the
    kind of work."""

    what: str
    start_ns: int
    end_ns: int


class EngineStats(msgspec.Struct, kw_only=True, tag=True):
    """Gauges, and counters since the start; `busy` holds what no earlier call reported."""

    version: int
    tp: int
    running: int
    waiting: int
    # Sequences whose KV is kept for their session's next turn.
    retained: int
    # Tokens in the KV cache, as a fraction of what it holds.
    kv_used_fraction: float
    steps: int
    generated_tokens: int
    prefilled_tokens: int
    reused_tokens: int
    evicted_sessions: int
    # Seconds that steps took.
    step_s: float
    transfers: list[TransferTotals] = []
    busy: list[BusyPeriod] = []
    # Sequences that were preempted because the KV of all exceeded kv_tokens.
    preemptions: int = 0
    # Tokens that the KV cache holds at most, those of sequences and sessions in it, and those that take
    # memory (with prefixes that may be used again, in whole pages); bytes of one token on each rank.
    kv_tokens: int = 0
    kv_used_tokens: int = 0
    kv_committed_tokens: int = 0
    kv_token_bytes: int = 0
    # Memory of rank 0's device, or of the host that all ranks share; None where it is not known.
    memory: DeviceMemory | None = None
    # The device of each rank; empty where this process does not know them.
    devices: list[WorkerDevice] = []
    asleep: bool = False
    # Steps on paced devices that no earlier call reported, and those of them over pace.
    paced_steps: int = 0
    late_steps: int = 0
    # Tokens of each sequence that runs, by its session.
    session_tokens: dict[str, int] = {}
    # What no earlier call reported of drafts.
    drafts: DraftCounts = msgspec.field(default_factory=DraftCounts)


class LoadReport(msgspec.Struct, kw_only=True, tag=True):
    """The cost of loading a version. read_s: for reading it; stall_s: for how long no step could run."""

    version: int
    size_bytes: int
    read_s: float
    stall_s: float = 0.0


class KvSession(msgspec.Struct, kw_only=True, frozen=True):
    """The place of a session's KV in an offer: tokens [first, first + len(ids)) of the session are tokens
    [offset, offset + len(ids)) of the offer's tensor."""

    session: str
    first: int
    offset: int
    # The tokens themselves.
    ids: list[int]
    # All of the session's KV is of the offer's version: it may serve others with the same beginning.
    fresh: bool = True


class KvOffer(msgspec.Struct, kw_only=True, frozen=True, tag=True):
    """KV of sessions as an engine's ranks have published it.

    keys: of the registry, one a rank, which together describe tensor "kv" [layers, 2, kv_heads, tokens,
    head_dim], sharded over ranks by heads as the model is. version: of the weights in use.
    """

    name: str
    keys: list[str]
    version: int
    sessions: list[KvSession]
    size_bytes: int


class KvReport(msgspec.Struct, kw_only=True, frozen=True, tag=True):
    """The cost of taking an offer; size_bytes: read by all ranks together.

    left_out: sessions of the offer that were not taken: they run in this engine, are longer than its context,
    or continue KV that it does not have.
    """

    sessions: int
    tokens: int
    size_bytes: int
    seconds: float
    left_out: list[str] = []


class Engine(ABC):
    """One engine, wherever its processes are. Methods raise EngineLost once those have ended."""

    spec: EngineSpec
    # Set by start().
    caps: EngineCaps

    @abstractmethod
    async def start(self) -> None:
        """Starts the processes and waits until they can generate.

        Raises ModelNotFound, IllegalParallelism, EngineError or DeadlineExceeded; nothing is left running.
        """

    @abstractmethod
    async def stop(self) -> None:
        """Ends the processes; requests in flight fail with EngineLost. Idempotent."""

    @abstractmethod
    def generate(self, request: GenerateRequest) -> AsyncIterator[TokenChunk]:
        """Stream the sampled tokens; leaving the iterator early aborts the request.

        Raises ContextTooLong, EngineBusy, WeightsIncomplete, EngineLost.
        """

    @abstractmethod
    async def generate_all(self, request: GenerateRequest) -> Generation:
        """The whole turn in one message: cheaper than `generate`. Raises what it raises.

        Cancelling the call aborts the request.
        """

    @abstractmethod
    async def pause(self, keep: bool = True) -> None:
        """Returns when no step runs any more. keep: requests stay and continue on resume; otherwise
        they end with finish "abort". New requests wait."""

    @abstractmethod
    async def resume(self) -> None:
        """Continues after pause."""

    @abstractmethod
    async def load_weights(self, version: int, keys: Sequence[str], deadline_s: float = 30.0) -> LoadReport:
        """Reads every tensor's slice of this layout while generation continues, then puts the version to use
        between two steps.

        keys: registry keys that together describe the version's weights. Raises VersionGone or another
        DataPlaneError, or WeightsIncomplete if another update began meanwhile; the old version stays in use.
        If it fails while the version is put to use, generation is refused with WeightsIncomplete until a
        version is completely loaded.
        """

    @abstractmethod
    async def sleep(self) -> None:
        """Ends every request with what it has (finish "abort") and returns the memory of weights and KV to
        the system. Until `wake` and a load, requests are refused with WeightsIncomplete.

        What is staged, and a load in progress, is dropped. Idempotent. Raises EngineError if the engine
        cannot, ReshapeRefused while KV is handed over.
        """

    @abstractmethod
    async def wake(self) -> None:
        """Takes the memory again after `sleep`; a version must be loaded before the engine generates.
        Idempotent."""

    @abstractmethod
    async def offer_kv(self, name: str, known: Mapping[str, int], deadline_s: float) -> KvOffer:
        """Publishes the KV of sessions, those that run among them, for engines of any tp.

        known: tokens of each session that takers have already; only later tokens are offered, and none of a
        session of which more than max_context_tokens are known. Steps continue.
        An offer stays until `withdraw_kv`, whatever happens to its sessions here. Raises ReshapeRefused if
        caps.live_reshape is False, ArenaFull.
        """

    @abstractmethod
    async def take_kv(self, offer: KvOffer, deadline_s: float) -> KvReport:
        """Reads the KV of the offer's sessions, which are then retained here: a request of such a session
        computes only what it has beyond. What an earlier offer brought is continued.

        Raises WeightsIncomplete if another version is in use here, PeerLost or another DataPlaneError,
        EngineBusy if there is no place for all; sessions that were not taken whole are forgotten.
        """

    @abstractmethod
    async def withdraw_kv(self, name: str) -> None:
        """Gives back the memory of an offer, once nobody takes it any more. Idempotent."""

    @abstractmethod
    async def abort(self, request_id: str) -> None:
        """Ends a request with what it has (finish "abort"); nothing if it is not in flight."""

    @abstractmethod
    async def release(self, session: str) -> None:
        """The session has ended: its KV may be dropped."""

    @abstractmethod
    async def stats(self) -> EngineStats:
        """Counters and gauges."""

    @abstractmethod
    async def wait_lost(self) -> None:
        """Returns when the engine's processes have ended, stopped or dead."""
