"""Between the columns's values and the messages of the reference stage. Nothing here decides."""

from __future__ import annotations

from earl.v1 import scheduler_pb2
from services.scheduler.batches.balance import balance
from services.scheduler.batches.columns import ColumnLease, Location

RESULTS = 65536
KEYS = 256


def encode_lease(
    lease: ColumnLease, ranks: int, waiting_tokens: int, stop: bool
) -> scheduler_pb2.LeaseReferenceResponse:
    """The leased trajectories cut over `ranks`, balanced by tokens."""
    response = scheduler_pb2.LeaseReferenceResponse(
        fence=lease.fence, waiting_tokens=waiting_tokens, stop=stop
    )
    if not lease.trajectories:
        return response
    for indices in balance([one.total_tokens for one in lease.trajectories], max(1, ranks)):
        rank = response.ranks.add()
        for index in indices:
            one = lease.trajectories[index]
            rank.items.add(
                ticket_id=one.ticket_id,
                attempt=one.attempt,
                descriptor_key=one.descriptor_key,
                total_tokens=one.total_tokens,
            )
    return response


def decode_results(
    request: scheduler_pb2.CompleteReferenceRequest,
) -> tuple[dict[tuple[int, int], Location], list[tuple[int, int]]]:
    """(where results lie by (ticket, attempt), (ticket, attempt) of what is lost)."""
    results = {
        (one.ticket_id, one.attempt): Location(tuple(one.reference_keys[:KEYS]), one.reference_offset)
        for one in request.results[:RESULTS]
    }
    return results, [(one.ticket_id, one.attempt) for one in request.lost[:RESULTS]]
