"""Between the reference desk's values and the contracts' messages. Nothing here decides."""

from __future__ import annotations

from collections.abc import Sequence

from earl.v1 import scheduler_pb2
from services.scheduler.assign import balance
from services.scheduler.reference import Column, Want

RESULTS = 65536
KEYS = 256


def encode_lease(
    fence: int, wants: Sequence[Want], ranks: int, waiting_tokens: int, stop: bool
) -> scheduler_pb2.LeaseReferenceResponse:
    """The leased trajectories cut over `ranks`, balanced by tokens."""
    response = scheduler_pb2.LeaseReferenceResponse(fence=fence, waiting_tokens=waiting_tokens, stop=stop)
    if not wants:
        return response
    for indices in balance([want.total_tokens for want in wants], max(1, ranks)):
        rank = response.ranks.add()
        for index in indices:
            want = wants[index]
            rank.items.add(
                ticket_id=want.ticket_id,
                attempt=want.attempt,
                descriptor_key=want.descriptor_key,
                total_tokens=want.total_tokens,
            )
    return response


def decode_results(
    request: scheduler_pb2.CompleteReferenceRequest,
) -> tuple[dict[tuple[int, int], Column], list[tuple[int, int]]]:
    """(where results lie by (ticket, attempt), (ticket, attempt) of what is lost)."""
    results = {
        (one.ticket_id, one.attempt): Column(tuple(one.reference_keys[:KEYS]), one.reference_offset)
        for one in request.results[:RESULTS]
    }
    return results, [(one.ticket_id, one.attempt) for one in request.lost[:RESULTS]]
