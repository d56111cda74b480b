"""Between the columns' values and the messages of the stages of frozen models. Nothing here decides."""

from __future__ import annotations

from earl.message_fields import fill
from earl.v1 import scheduler_pb2
from services.scheduler.batches.balance import balance
from services.scheduler.batches.columns import ColumnLease, Location

RESULTS = 65536
KEYS = 256


def encode_lease(
    lease: ColumnLease, ranks: int, waiting_tokens: int, stop: bool
) -> scheduler_pb2.LeaseReferenceResponse:
    """The leased trajectories split over `ranks`, balanced by tokens."""
    response = scheduler_pb2.LeaseReferenceResponse(
        fence=lease.fence, waiting_tokens=waiting_tokens, stop=stop
    )
    if not lease.trajectories:
        return response
    for indices in balance([trajectory.total_tokens for trajectory in lease.trajectories], max(1, ranks)):
        rank = response.ranks.add()
        for index in indices:
            fill(rank.items.add(), lease.trajectories[index])
    return response


def decode_results(
    request: scheduler_pb2.CompleteReferenceRequest,
) -> tuple[dict[tuple[int, int], Location], list[tuple[int, int]]]:
    """(results, or where they lie, by (ticket, attempt); (ticket, attempt) of what is lost)."""
    results = {
        (result.ticket_id, result.attempt): Location(
            tuple(result.reference_keys[:KEYS]),
            result.reference_offset,
            result.score if result.HasField("score") else None,
        )
        for result in request.results[:RESULTS]
    }
    return results, [(attempt.ticket_id, attempt.attempt) for attempt in request.lost[:RESULTS]]
