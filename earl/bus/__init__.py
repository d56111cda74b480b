"""The bus: small facts in the past tense on Redis Streams, never a tensor.

    publish ──► stream ──┬─► subscribe(group): each event to one consumer of the group, redelivered
                         │                     until it is acknowledged, which is done after its effect
                         └─► follow(): every follower sees every event

Works against any Redis 7 or Valkey server; `EmbeddedValkey` runs one in a run's directory.
"""

from earl.bus.connection import open_redis, redis_errors, shown_url
from earl.bus.embedded import EmbeddedValkey
from earl.bus.streams import Bus, Delivery

__all__ = ["Bus", "Delivery", "EmbeddedValkey", "open_redis", "redis_errors", "shown_url"]
