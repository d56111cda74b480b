"""One episode as a worker plays it: the ticket that asks for it, and its outcome.

Where the policy has several seats of a session (a match), the ticket and the outcome of seat 0 hold those of
the others. Seats of a frozen opponent have neither.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from earl.config.sampling_filters import SamplingFilters
from earl.env.base import Ending
from earl.recorded_episodes import RecordedTurn
from earl.transcript import TranscriptTurn
from services.rollout.episode.columns import TokenColumns


@dataclass(frozen=True, slots=True, eq=False)
class EpisodeTicket:
    """One episode to run, as leased. Durations in seconds; seeds are unsigned 64 bits.

    seat: of the session's `session_seats`. frozen_version: the version that plays all other seats; 0: the
    policy does. pinned_version: the only one that may sample the policy's tokens; 0: min_version or any newer
    one. others: in that case the tickets of the seats from 1 on; this one has seat 0.
    """

    ticket_id: int
    attempt: int
    fence: int
    publish: bool  # the trainer gets its columns
    scripted: bool  # actions are drawn from the legal ones, without an engine
    environment: str
    label: str
    task_json: str
    env_seed: int
    sample_seed: int
    min_version: int
    temperature: float
    episode_s: float
    lease_s: float
    max_turns: int
    transcript: bool = False  # the conversation is reported as text
    traceparent: str = ""  # "" if it is not traced
    seat: int = 0
    session_seats: int = 1
    frozen_version: int = 0
    pinned_version: int = 0
    others: tuple[EpisodeTicket, ...] = ()
    filters: SamplingFilters = field(default_factory=SamplingFilters)  # none in training
    recorded: Sequence[RecordedTurn] = ()  # becomes its trajectory: nobody plays
    recorded_reward: float = 0.0  # what that earned
    record: bool = False  # the turns are reported in token ids
    engine: int | None = None  # that it is planned for, by its index; None if any will do

    @property
    def key(self) -> tuple[int, int]:
        return self.ticket_id, self.attempt

    @property
    def seats(self) -> tuple[EpisodeTicket, ...]:
        """The tickets of all seats that have one."""
        return self, *self.others

    @property
    def contexts(self) -> int:
        """The contexts that it takes at the policy's engines, or at its opponent's, where these are more."""
        return max(len(self.seats), self.session_seats - len(self.seats))


@dataclass(slots=True)
class EpisodeOutcome:
    """The outcome of an attempt. reward: sum of the steps' rewards. message: one line, for failures and
    truncations. metrics: numbers of the environment's last result. others: in a match the outcomes of the
    seats from 1 on, with the same ending and message; this one is of seat 0."""

    ending: Ending
    reward: float = 0.0
    columns: TokenColumns = field(default_factory=TokenColumns)
    metrics: Mapping[str, float] = field(default_factory=dict)
    message: str = ""
    transcript: Sequence[TranscriptTurn] = ()
    others: Sequence[EpisodeOutcome] = ()

    @property
    def trainable(self) -> bool:
        return self.ending in (Ending.OK, Ending.TRUNCATED)

    @property
    def seats(self) -> tuple[EpisodeOutcome, ...]:
        """The outcomes of all seats."""
        return self, *self.others

    @property
    def acted(self) -> bool:
        """Returns whether any seat acted, so that there is something to train on."""
        return any(seat.columns.trained_tokens for seat in self.seats)
