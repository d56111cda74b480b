"""The ledger's records in Redis, written by one generic, batched Lua script.

Promises: a set of changes is applied whole or not at all, together with the events that state it;
only by the newest scheduler (term), only in order (revision), and only where each record's head
(state and fence) is what the ledger believed. A write whose answer was lost can be repeated.

    <prefix>ledger:guard                       term, revision
    <prefix>ledger:{ticket,member,evaluation,state}   hashes: field -> "<head>|<msgpack>"
    <prefix>{events,trajectories}              the bus
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from earl.bus import Bus, redis_errors
from earl.errors import LedgerFenced
from services.scheduler.codec import encode_fact
from services.scheduler.records import KINDS, Change, Changes, TrajectoryReady

# KEYS: guard, the bus's streams, hashes.  ARGV: term, revision, stream length, the changes packed, how many
# of the events go to the first stream, events ...  A packed change: lengths of field, expected head and
# value, index of its hash, then the three; expected head "*" for any, empty value to delete.
APPLY = """
local guard = redis.call('HMGET', KEYS[1], 'term', 'revision')
local revision = tonumber(ARGV[2])
if guard[1] ~= ARGV[1] then return {'term', guard[1] or ''} end
if tonumber(guard[2]) == revision + 1 then return {'done', 'before'} end
if tonumber(guard[2]) ~= revision then return {'revision', guard[2] or ''} end
local packed, size, at, changes = ARGV[4], #ARGV[4], 1, {}
while at <= size do
  local fields, heads, values, hash
  fields, heads, values, hash, at = struct.unpack('<I4I4I4I4', packed, at)
  local key, field = KEYS[3 + hash], string.sub(packed, at, at + fields - 1)
  local expected = string.sub(packed, at + fields, at + fields + heads - 1)
  at = at + fields + heads
  if expected ~= '*' then
    local value = redis.call('HGET', key, field)
    local head = value and string.match(value, '^([^|]*)|') or ''
    if head ~= expected then return {'head', field .. ' is ' .. head .. ', not ' .. expected} end
  end
  changes[#changes + 1] = {key, field, values > 0 and string.sub(packed, at, at + values - 1)}
  at = at + values
end
for _, change in ipairs(changes) do
  if change[3] then redis.call('HSET', change[1], change[2], change[3])
  else redis.call('HDEL', change[1], change[2]) end
end
local first = tonumber(ARGV[5])
for i = 6, #ARGV do
  redis.call('XADD', KEYS[i - 5 <= first and 2 or 3], 'MAXLEN', '~', ARGV[3], '*', 'e', ARGV[i])
end
-- What befell the run is kept as long as the trajectories beside it: a batch names as many keys as it has.
if first > 0 and redis.call('XLEN', KEYS[3]) >= tonumber(ARGV[3]) then
  local oldest = redis.call('XRANGE', KEYS[3], '-', '+', 'COUNT', 1)
  redis.call('XTRIM', KEYS[2], 'MINID', '~', oldest[1][1])
end
redis.call('HSET', KEYS[1], 'revision', revision + 1)
return {'done', 'now'}
"""
_LENGTHS = struct.Struct("<4I")


class LedgerStore:
    """One scheduler's hold on the stored ledger."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._guard = bus.key("ledger", "guard")
        self._hashes = {kind: bus.key("ledger", kind) for kind in KINDS}
        self._script = bus.redis.register_script(APPLY)
        self._term = 0
        self._revision = 0

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

    async def apply(self, changes: Changes) -> None:
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
            self._term, self._revision, self._bus.stream_events, pack(changes.records), len(events),
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


def pack(records: Sequence[Change]) -> bytes:
    """The changes as the script reads them: one argument, for each costs the client more than its bytes."""
    parts: list[bytes] = []
    for kind, field, expected, data in records:
        name, value = field.encode(), data or b""
        head = b"*" if expected is None else expected.encode()
        parts += (_LENGTHS.pack(len(name), len(head), len(value), KINDS.index(kind) + 1), name, head, value)
    return b"".join(parts)
