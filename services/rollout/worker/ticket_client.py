"""The scheduler's client of a rollout worker: tickets to play, and reports of their outcome."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from earl.scheduler_client import SchedulerClient
from earl.v1 import scheduler_pb2
from services.rollout.worker.ticket import EpisodeOutcome, EpisodeTicket
from services.rollout.worker.ticket_codec import decode_episodes, encode_ref, encode_result


@dataclass(frozen=True, slots=True)
class AttemptReport:
    """A finished attempt at a ticket. descriptor_key: "" if its columns are not published."""

    ticket: EpisodeTicket
    outcome: EpisodeOutcome
    descriptor_key: str = ""


class TicketClient:
    """Calls of one rollout worker. Each raises as SchedulerClient.call."""

    def __init__(self, scheduler: SchedulerClient) -> None:
        self._scheduler = scheduler

    async def lease(self, credit: int, wait_s: float, newest_fence: int) -> tuple[list[EpisodeTicket], bool]:
        """Up to `credit` episodes, and whether the run is ending; waits up to wait_s for the first.

        newest_fence: of all tickets that earlier calls returned, 0 if none did. What was leased to this
        worker later is leased anew: the answer that had it is lost. So only one call at a time.
        """
        request = scheduler_pb2.LeaseTicketsRequest(
            worker=self._scheduler.worker, credit=credit, wait_s=wait_s, newest_fence=newest_fence
        )
        answer = await self._scheduler.call("LeaseTickets", request, wait_s=wait_s)
        return decode_episodes(answer.tickets), answer.stop

    async def renew(self, tickets: Sequence[EpisodeTicket]) -> list[tuple[int, int, int]]:
        """Renews leases; returns (ticket_id, attempt, fence) of those that are no longer this worker's."""
        request = scheduler_pb2.RenewLeasesRequest(
            worker=self._scheduler.worker,
            attempts=[encode_ref(seat) for ticket in tickets for seat in ticket.seats],
        )
        answer = await self._scheduler.call("RenewLeases", request)
        return [(ref.ticket_id, ref.attempt, ref.fence) for ref in answer.lost]

    async def complete(self, reports: Sequence[AttemptReport]) -> list[tuple[EpisodeTicket, str]]:
        """Reports finished attempts in one call.

        Those not accepted (refused, or to be tried again) come back with the reason: nobody will read
        their columns.
        """
        results = [encode_result(each.ticket, each.outcome, each.descriptor_key) for each in reports]
        request = scheduler_pb2.CompleteTicketsRequest(worker=self._scheduler.worker, results=results)
        answer = await self._scheduler.call("CompleteTickets", request)
        tickets = {(report.ticket.ticket_id, report.ticket.attempt): report.ticket for report in reports}
        return [
            (tickets[item.attempt.ticket_id, item.attempt.attempt], item.reason)
            for item in answer.items
            if item.verdict != scheduler_pb2.VERDICT_ACCEPTED
        ]
