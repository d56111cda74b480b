"""The recorded episodes that a run's warm-up imitates, dealt to its tickets. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from earl.recorded_episodes import RecordedEpisode
from services.scheduler.state.mixture import recorded_at
from services.scheduler.state.rules import Rules
from services.scheduler.state.tickets import Purpose, Ticket


class RecordedSchedule:
    """Gives each ticket of the warm-up its recorded episode, for its place in the schedule alone.

    episodes: by the label that tickets of their environment have; empty where the warm-up plays.
    """

    def __init__(self, rules: Rules, episodes: Mapping[str, Sequence[RecordedEpisode]]) -> None:
        self._rules, self._episodes = rules, episodes
        # Bytes of the longest episode in a message, or more.
        self.longest = max((len(episode.line) for each in episodes.values() for episode in each), default=0)

    def episode(self, ticket: Ticket) -> RecordedEpisode | None:
        """The episode that becomes the ticket's trajectory; None for a ticket that is played."""
        if ticket.purpose is not Purpose.WARMUP or not self._episodes:
            return None
        number = recorded_at(self._rules, ticket.index, ticket.seat)
        return None if number is None else self._episodes[ticket.environment][number]
