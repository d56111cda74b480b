"""The form of a run's history: folder `history/` of its directory.

    000001.jsonl.gz   a whole segment                000003.jsonl   the one that is written now

The first line of a segment is its header, every other one a round: what the ledger made durable at once.

    {"history": 1, "segment": 3, "run": …, "revision": 1041, "took_over": false, "rules": {…}, "state": {…}}
    {"r": 1042, "t": 1764400000.123, "e": [["leased", 7, 1, 12, "rollout-0", 5], …]}

A header's state: version, published, fence, next_ticket; batch, [id, version] or null; tickets, [id, state,
group, purpose, attempt, oldest, reason] of each that has a record; closed, ranges of the others by bucket.
rules: staleness in versions, lease_s and episode_s in seconds.

r: the revision of the stored ledger that the round makes; t: Unix seconds. A round is written before it is
stored. A scheduler that starts begins a segment (took_over), at the revision that it found stored: rounds of
higher revisions in segments before were never stored, and told to nobody.

    ["issued", first, count, group, purpose, oldest]      tickets first … first + count - 1, pending
    ["replay", id, group, source, attempt]                planned: trains on the columns of `source` again
    ["leased", id, attempt, fence, worker, incarnation]
    ["pending", id]                                       its attempt failed or was lost
    ["ready", id, attempt, oldest]                        accepted; no trained token is of an older version
    ["planned", id] … ["batch", batch, version, purpose]  what was planned since is this batch
    ["trained", id] … ["commit", batch, version]          the batch made this version; a replay is "replayed"
    ["dissolve", batch] … ["ready", id, attempt, oldest]  the batch is given up
    ["evaluated", id]
    ["dropped", id, reason]
    ["publish", version]                                  its weights can be read
    ["reconcile", version, consumed, trainer, incarnation] … ["reconciled", version]
                                                          a trainer starts; consumed: ranges of ids that
                                                          its parameters were trained on
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

VERSION: Final = 1
FOLDER: Final = "history"
PLAIN, PACKED = ".jsonl", ".jsonl.gz"

# A kind, then what the table above has for it.
Event = Sequence[Any]

ISSUED, REPLAY, LEASED, PENDING, READY = "issued", "replay", "leased", "pending", "ready"
PLANNED, BATCH, TRAINED, COMMIT, DISSOLVE = "planned", "batch", "trained", "commit", "dissolve"
EVALUATED, DROPPED, PUBLISH = "evaluated", "dropped", "publish"
REPLAYED = "replayed"
RECONCILE, RECONCILED = "reconcile", "reconciled"

# Purposes of tickets, as issued.
TRAIN, WARMUP, EVALUATE = "train", "warmup", "evaluate"
