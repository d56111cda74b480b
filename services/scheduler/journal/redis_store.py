"""The ledger's records in Redis, written by one generic, batched Lua script.

Promises: a set of changes is applied whole or not at all, together with the events that state it;
only by the newest scheduler (term), only in order (revision), and only where each record's head
(state and fence) is what the ledger believed. A write whose answer was lost can be repeated.

    <prefix>ledger:guard                       term, revision
    <prefix>ledger:{ticket,group,member,lives,evaluation,stage,outcome,lengths,state}
                                               hashes: field -> "<head>|<msgpack>"
    <prefix>{events,trajectories}              the bus
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import msgspec

from earl.bus import Bus, redis_errors
from earl.errors import LedgerFenced
from services.scheduler.journal.events import encode_fact
from services.scheduler.state.facts import TrajectoryReady
from services.scheduler.state.stored import KINDS, LedgerChanges, RecordChange

# KEYS: guard, the bus's streams, hashes.  ARGV: term, revision, stream length, what changes (see `pack`), the
# new values one after another, how many of the events go to the first stream, events ...  Of each hash, in
# turn, what changes is: fields and the heads that they must have, "" for none; fields and the lengths of
# their new values; fields to delete. A command takes MOST of them at once: a command each would cost several
# times as much, and everybody waits for the script.
APPLY = """
local MOST = 1000
local function head_text(head) return head == '' and 'absent' or head end
local guard = redis.call('HMGET', KEYS[1], 'term', 'revision')
local revision = tonumber(ARGV[2])
if guard[1] ~= ARGV[1] then return {'term', guard[1] or ''} end
if tonumber(guard[2]) == revision + 1 then return {'done', 'before'} end
if tonumber(guard[2]) ~= revision then return {'revision', guard[2] or ''} end
local hashes = cmsgpack.unpack(ARGV[4])
for number, changes in ipairs(hashes) do
  local fields, heads = changes[1], changes[2]
  for first = 1, #fields, MOST do
    local last = math.min(first + MOST - 1, #fields)
    local values = redis.call('HMGET', KEYS[3 + number], unpack(fields, first, last))
    for i = first, last do
      local value = values[i - first + 1]
      local head = value and string.match(value, '^([^|]*)|') or ''
      if head ~= heads[i] then
        return {'head', fields[i] .. ' is ' .. head_text(head) .. ', not ' .. head_text(heads[i])}
      end
    end
  end
end
local offset = 1
for number, changes in ipairs(hashes) do
  local key, fields, lengths, gone = KEYS[3 + number], changes[3], changes[4], changes[5]
  for first = 1, #fields, MOST do
    local pairs = {}
    for i = first, math.min(first + MOST - 1, #fields) do
      pairs[#pairs + 1] = fields[i]
      pairs[#pairs + 1] = string.sub(ARGV[5], offset, offset + lengths[i] - 1)
      offset = offset + lengths[i]
    end
    redis.call('HSET', key, unpack(pairs))
  end
  for first = 1, #gone, MOST do
    redis.call('HDEL', key, unpack(gone, first, math.min(first + MOST - 1, #gone)))
  end
end
local first = tonumber(ARGV[6])
for i = 7, #ARGV do
  redis.call('XADD', KEYS[i - 6 <= first and 2 or 3], 'MAXLEN', '~', ARGV[3], '*', 'e', ARGV[i])
end
-- Events of the run are kept as long as the trajectories: a batch names as many keys as it has.
if first > 0 and redis.call('XLEN', KEYS[3]) >= tonumber(ARGV[3]) then
  local oldest = redis.call('XRANGE', KEYS[3], '-', '+', 'COUNT', 1)
  redis.call('XTRIM', KEYS[2], 'MINID', '~', oldest[1][1])
end
redis.call('HSET', KEYS[1], 'revision', revision + 1)
return {'done', 'now'}
"""
_ENCODER = msgspec.msgpack.Encoder()
# The arguments for one hash; see APPLY.
_Hash = tuple[list[str], list[str], list[str], list[int], list[str]]


class LedgerStore:
    """One scheduler's hold on the stored ledger."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._guard = bus.key("ledger", "guard")
        self._hashes = {kind: bus.key("ledger", kind) for kind in KINDS}
        self._script = bus.redis.register_script(APPLY)
        self._term = 0
        self._revision = 0

    @property
    def revision(self) -> int:
        """Counts the sets of changes that were stored, over all schedulers of the run."""
        return self._revision

    async def open(self) -> list[tuple[str, str, bytes]]:
        """Takes the ledger over (any other scheduler is fenced off) and reads it: (kind, field, data).

        Raises BusUnavailable.
        """
        with redis_errors(self._bus.url):
            async with self._bus.redis.pipeline(transaction=True) as pipe:
                pipe.hincrby(self._guard, "term", 1)
                pipe.hincrby(self._guard, "revision", 0)
                for kind in KINDS:
                    pipe.hgetall(self._hashes[kind])
                term, revision, *hashes = await pipe.execute()
        self._term, self._revision = int(term), int(revision)
        return [
            (kind, field.decode(), data)
            for kind, stored in zip(KINDS, hashes, strict=True)
            for field, data in stored.items()
        ]

    async def apply(self, changes: LedgerChanges) -> None:
        """Makes the changes durable and publishes their facts.

        Raises LedgerFenced when another scheduler took over or a record is not what the ledger
        believed (nothing was written then), BusUnavailable when the answer stayed out.
        """
        trajectories: list[bytes] = []
        events: list[bytes] = []
        for fact in changes.facts:
            stream = trajectories if isinstance(fact, TrajectoryReady) else events
            stream.append(self._bus.encode(encode_fact(fact)))
        arguments = (
            self._term, self._revision, self._bus.stream_events, *pack(changes.records), len(events),
            *events, *trajectories,
        )  # fmt: skip
        keys = (self._guard, self._bus.stream, self._bus.trajectories, *self._hashes.values())
        with redis_errors(self._bus.url):
            verdict, detail = await self._script(keys=keys, args=arguments)
        if verdict != b"done":
            raise LedgerFenced(
                f"the stored ledger has another {verdict.decode()} than this scheduler: {detail.decode()}",
                "let one scheduler run; restart it to take the ledger over",
            )
        self._revision += 1


def pack(records: Sequence[RecordChange]) -> tuple[bytes, bytes]:
    """The changes as the script reads them, and the new values: an argument each would cost the client more.

    Values are no part of the msgpack: the server's decoder knows no binary data.
    """
    hashes: dict[str, _Hash] = {kind: ([], [], [], [], []) for kind in KINDS}
    values: dict[str, list[bytes]] = {kind: [] for kind in KINDS}
    for change in records:
        checked, heads, fields, lengths, gone = hashes[change.kind]
        if change.expected is not None:
            checked.append(change.field)
            heads.append(change.expected)
        if change.data is None:
            gone.append(change.field)
        else:
            fields.append(change.field)
            lengths.append(len(change.data))
            values[change.kind].append(change.data)
    return _ENCODER.encode(list(hashes.values())), b"".join(chain.from_iterable(values.values()))
