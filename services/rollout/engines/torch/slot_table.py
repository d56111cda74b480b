"""The sequences in the KV cache, as columns over its slots: a step touches no sequence one by one.

    tokens of a slot:  0 ── cached: their KV is there ──┤── to be computed ──┤ length ── … ──┤ context
                       0 ── prompt ──┤── sampled: logprobs, versions ────────┤        limit: it ends here

Pure bookkeeping: which slot gets which sequence is the scheduler's to decide, whose KV stays the allocator's.
"""

from __future__ import annotations

import numpy as np

from services.rollout.engines.contract.engine import GenerateRequest
from services.rollout.engines.contract.sampling_columns import SamplingColumns
from services.rollout.engines.contract.stop_texts import StopTexts
from services.rollout.engines.torch.stops import StopIds
from services.rollout.engines.torch.waiting_request import WaitingRequest


class SlotTable:
    """S = slots, C = context tokens. Invariant: 0 <= cached < length <= C for running slots."""

    def __init__(self, slots: int, context: int, stop_texts: StopTexts | None = None) -> None:
        self.context = context
        self._stop_texts = stop_texts
        # Tokens of the sequence [S, C] and how many there are; those before `cached` have their KV.
        self.tokens = np.zeros((slots, context), dtype=np.int64)
        self.length = np.zeros(slots, dtype=np.int64)
        self.cached = np.zeros(slots, dtype=np.int64)
        # Grows whenever cached KV is lost or computed again: rows of one revision stay as they are.
        self.revision = np.zeros(slots, dtype=np.int64)
        # All of a slot's KV is of the weights in use.
        self.fresh = np.ones(slots, dtype=np.bool_)
        # Tokens before the first sampled one; length at which generation ends; prompt tokens found cached.
        self.prompt = np.zeros(slots, dtype=np.int64)
        # Where the answer begins: at the first sampled token, or before it if another engine began it.
        self.answer = np.zeros(slots, dtype=np.int64)
        self.limit = np.zeros(slots, dtype=np.int64)
        self.reused = np.zeros(slots, dtype=np.int64)
        self.running = np.zeros(slots, dtype=np.bool_)
        # The session's age: the lower the older.
        self.age = np.zeros(slots, dtype=np.int64)
        self.sampling = SamplingColumns.of(
            np.zeros(slots, dtype=np.float32), np.zeros(slots, dtype=np.uint64)
        )
        self.stops = StopIds(slots)
        # Log-prob and version of each sampled token, at the token's position [S, C].
        self.logprobs = np.zeros((slots, context), dtype=np.float32)
        self.versions = np.zeros((slots, context), dtype=np.int64)
        self.request: list[GenerateRequest | None] = [None] * slots
        self.session: list[str] = [""] * slots
        # Slots of running sequences, by request id, and by session where that still wants its KV.
        self.slot_of: dict[str, int] = {}
        self.sessions: dict[str, int] = {}

    def running_slots(self) -> np.ndarray:
        """Slots of running sequences [N], ascending."""
        return np.flatnonzero(self.running)

    def youngest(self) -> int:
        """The running sequence of the youngest session."""
        running = self.running_slots()
        return int(running[np.argmax(self.age[running])])

    def contexts(self, slots: np.ndarray, lengths: np.ndarray) -> list[np.ndarray]:
        """Views of the first lengths [N] tokens of the sequences in slots [N], which may be repeated."""
        pairs = zip(slots.tolist(), lengths.tolist(), strict=True)
        return [self.tokens[slot, :length] for slot, length in pairs]

    def request_id(self, slot: int) -> str:
        """The id of the request that runs in the slot."""
        request = self.request[slot]
        assert request is not None
        return request.request_id

    def session_tokens(self) -> dict[str, int]:
        """Tokens of each running sequence that has a session, by it."""
        return {
            session: int(self.length[slot])
            for slot in self.running_slots().tolist()
            if (session := self.session[slot])
        }

    def used_tokens(self) -> int:
        """Tokens whose KV is there for a running sequence or a session that may continue."""
        return int(self.cached.sum())

    # --- one sequence -------------------------------------------------------------------------

    def seat(self, slot: int, waiting: WaitingRequest, session: str, stop_ids: tuple[int, ...]) -> None:
        """A request begins to run in the slot, whose `tokens` and `cached` are set. session: whose KV it is;
        "" if nobody wants it afterwards. stop_ids: the engine's, in addition to the request's own."""
        request, length = waiting.request, len(waiting.ids)
        sampled = slice(len(request.ids), length)
        self.logprobs[slot, sampled], self.versions[slot, sampled] = waiting.logprobs, waiting.versions
        self.length[slot], self.prompt[slot] = length, len(request.ids)
        self.answer[slot] = len(request.ids) - request.answered
        self.limit[slot] = len(request.ids) + request.max_new_tokens
        self.reused[slot] = self.cached[slot] if waiting.reused is None else waiting.reused
        self.age[slot] = waiting.age
        self.sampling.put(slot, request.temperature, request.seed, request.filters)
        self.stops.put(slot, {*stop_ids, *request.stop_ids})
        self.running[slot] = True
        self.request[slot], self.session[slot] = request, session
        self.slot_of[request.request_id] = slot
        if session:
            self.sessions[session] = slot

    def unseat(self, slot: int) -> str:
        """The slot's sequence stops running; returns the session that still wants its KV, or ""."""
        request, session = self.request[slot], self.session[slot]
        assert request is not None
        self.running[slot] = False
        del self.slot_of[request.request_id]
        self.request[slot], self.session[slot] = None, ""
        return session if self.sessions.pop(session, None) is not None else ""

    def preempted(self, slot: int) -> WaitingRequest:
        """Unseats a sequence; returns it as a request that waits and keeps what was sampled."""
        request = self.request[slot]
        assert request is not None
        length = int(self.length[slot])
        sampled = slice(int(self.prompt[slot]), length)
        return WaitingRequest(
            request,
            int(self.age[slot]),
            self.unseat(slot),
            self.tokens[slot, :length].copy(),
            self.logprobs[slot, sampled].copy(),
            self.versions[slot, sampled].copy(),
            int(self.reused[slot]),
        )

    def sampled(self, slot: int, first: int) -> tuple[list[int], list[float], list[int]]:
        """Tokens, log-probs and versions of the slot's sequence from position `first` on."""
        span = slice(first, int(self.length[slot]))
        return (
            self.tokens[slot, span].tolist(),
            self.logprobs[slot, span].tolist(),
            self.versions[slot, span].tolist(),
        )

    # --- a step -------------------------------------------------------------------------------

    def append(
        self, slots: np.ndarray, drafts: np.ndarray, ids: np.ndarray, logprobs: np.ndarray, version: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Appends the tokens that `version` sampled to the sequences of slots [N].

        drafts [N]: tokens of each one's draft, which stand behind it. ids, logprobs [sum of 1 + drafts]: what
        was sampled behind the sequence, and behind each token of its draft; it counts up to the first that
        differs from the draft, to a stop token, and to one that completes a stop text.
        Returns int [N], how many tokens each has more, and bool [N] twice: whether the last is such a token,
        whether the limit is reached.
        """
        positions = self.length[slots]
        if drafts.any():
            added, rows = self._accept(slots, drafts, ids)
            slots_of, ids, logprobs = np.repeat(slots, added), ids[rows], logprobs[rows]
            positions = np.repeat(positions, added) + np.arange(len(rows)) - np.repeat(_before(added), added)
        else:
            added, slots_of = np.ones_like(slots), slots
        self.tokens[slots_of, positions] = ids
        self.logprobs[slots_of, positions] = logprobs
        self.versions[slots_of, positions] = version
        self.length[slots] += added
        stopped = self.stops.met(slots, ids[np.cumsum(added) - 1])
        if self._stop_texts is not None:
            stopped |= self._end_at_texts(self._stop_texts, slots, added)
        return added, stopped, self.length[slots] >= self.limit[slots]

    def _accept(
        self, slots: np.ndarray, drafts: np.ndarray, ids: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """(how many tokens each sequence gets, the rows of ids that they are)."""
        added, rows = np.ones_like(slots), []
        for index, (slot, drafted, first) in enumerate(
            zip(slots.tolist(), drafts.tolist(), _before(drafts + 1).tolist(), strict=True)
        ):
            sampled, length = ids[first : first + drafted + 1], int(self.length[slot])
            ends = self.stops.met(np.full(drafted + 1, slot), sampled)
            ends[:-1] |= sampled[:-1] != self.tokens[slot, length : length + drafted]
            ends[-1] = True
            added[index] = 1 + int(np.argmax(ends))
            rows.append(np.arange(first, first + added[index]))
        return added, np.concatenate(rows)

    def _end_at_texts(self, texts: StopTexts, slots: np.ndarray, added: np.ndarray) -> np.ndarray:
        """Returns whether each sequence [N] has a stop text now. Of its `added` [N] tokens those behind the
        text do not count: both that column and its length are shortened."""
        stopped = np.zeros(len(slots), dtype=np.bool_)
        for index, slot in enumerate(slots.tolist()):
            first, last = int(self.answer[slot]), int(self.length[slot])
            end = texts.end(self.tokens[slot, first:last], int(added[index]))
            if end is not None:
                stopped[index] = True
                self.length[slot] = first + end
                added[index] -= last - (first + end)
        return stopped


def _before(counts: np.ndarray) -> np.ndarray:
    """The sum of counts [N] before each."""
    return np.cumsum(counts) - counts
