"""The ledger's records in Redis, written by one generic, batched Lua script.

Promises: a set of changes is applied whole or not at all, together with the events that state it;
only by the newest scheduler (term), only in order (revision), and only where each record's head
(state and fence) is what the ledger believed. A write whose answer was lost can be repeated.

    <prefix>ledger:guard                       term, revision
    <prefix>ledger:{ticket,member,evaluation,state}   hashes: field -> "<head>|<msgpack>"
    <prefix>events                             the bus stream
"""

from __future__ import annotations

from earl.bus import Bus, redis_errors
from earl.errors import LedgerFenced
from services.scheduler.codec import encode_fact
from services.scheduler.records import KINDS, Changes

# KEYS: guard, stream, hashes.  ARGV: term, revision, stream length, number of changes,
# (hash index, field, expected head or "*", value or "") ..., events ...
APPLY = """
local guard = redis.call('HMGET', KEYS[1], 'term', 'revision')
local revision = tonumber(ARGV[2])
if guard[1] ~= ARGV[1] then return {'term', guard[1] or ''} end
if tonumber(guard[2]) == revision + 1 then return {'done', 'before'} end
if tonumber(guard[2]) ~= revision then return {'revision', guard[2] or ''} end
local changes = tonumber(ARGV[4])
for i = 0, changes - 1 do
  local at = 5 + i * 4
  local expected = ARGV[at + 2]
  if expected ~= '*' then
    local value = redis.call('HGET', KEYS[2 + tonumber(ARGV[at])], ARGV[at + 1])
    local head = value and string.match(value, '^([^|]*)|') or ''
    if head ~= expected then return {'head', ARGV[at + 1] .. ' is ' .. head .. ', not ' .. expected} end
  end
end
for i = 0, changes - 1 do
  local at = 5 + i * 4
  local hash = KEYS[2 + tonumber(ARGV[at])]
  if ARGV[at + 3] == '' then redis.call('HDEL', hash, ARGV[at + 1])
  else redis.call('HSET', hash, ARGV[at + 1], ARGV[at + 3]) end
end
for i = 5 + changes * 4, #ARGV do
  redis.call('XADD', KEYS[2], 'MAXLEN', '~', ARGV[3], '*', 'e', ARGV[i])
end
redis.call('HSET', KEYS[1], 'revision', revision + 1)
return {'done', 'now'}
"""


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
        arguments: list[bytes | str | int] = [
            self._term,
            self._revision,
            self._bus.stream_events,
            len(changes.records),
        ]
        for change in changes.records:
            expected = "*" if change.expected is None else change.expected
            arguments += (KINDS.index(change.kind) + 1, change.field, expected, change.data or b"")
        arguments += [self._bus.encode(encode_fact(fact)) for fact in changes.facts]
        keys = [self._guard, self._bus.stream, *self._hashes.values()]
        with redis_errors(self._bus.url):
            verdict, detail = await self._script(keys=keys, args=arguments)
        if verdict != b"done":
            raise LedgerFenced(
                f"the stored ledger has another {verdict.decode()} than this scheduler: {detail.decode()}",
                "let one scheduler run; restart it to take the ledger over",
            )
        self._revision += 1
