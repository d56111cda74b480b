"""Tickets: what is to be played, its state, and its outcome."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from earl.config.frozen_schedule import FrozenSchedule


class TicketState(StrEnum):
    """The state of a ticket: pending → leased → ready → planned → trained | evaluated | dropped."""

    PENDING = "pending"
    LEASED = "leased"
    READY = "ready"
    PLANNED = "planned"
    TRAINED = "trained"
    EVALUATED = "evaluated"
    DROPPED = "dropped"


LIVE = frozenset({TicketState.PENDING, TicketState.LEASED, TicketState.READY, TicketState.PLANNED})


# Which of these a ticket is in follows from two records for all: the planned batch, and the trained ids.
BATCHED = frozenset({TicketState.READY, TicketState.PLANNED, TicketState.TRAINED})


_HEADS = {state: f"{TicketState.READY if state in BATCHED else state}:" for state in TicketState}


class Purpose(StrEnum):
    TRAIN = "train"
    EVALUATE = "evaluate"
    WARMUP = "warmup"
    # Trains on the columns of a trained ticket again: nobody plays it.
    REPLAY = "replay"


# The bucket of the replay tickets that were trained.
REPLAYED = "replayed"


class EpisodeEnding(StrEnum):
    OK = "ok"
    TRUNCATED = "truncated"
    ENV_ERROR = "env_error"
    INFRA_ERROR = "infra_error"
    TIMEOUT = "timeout"


# Endings of episodes that a batch may take.
MAY_TRAIN = frozenset({EpisodeEnding.OK, EpisodeEnding.TRUNCATED})


class Reason(StrEnum):
    """The reason for which a ticket was dropped."""

    GROUP_INCOMPLETE = "group_incomplete"
    # Its attempts are used up, and its group continues without it.
    MEMBER_FAILED = "member_failed"
    # As many episodes of its group as are trained were accepted before it ended.
    CLOSED_EARLY = "closed_early"
    # It was truncated, and scheduler.truncated is "drop".
    TRUNCATED = "truncated"
    # All rewards of its group are equal.
    NO_SIGNAL = "no_signal"
    TOO_STALE = "too_stale"
    ROLLED_BACK = "rolled_back"
    PHASE_OVER = "phase_over"
    # The run was resumed with another kind of opponent in its environment.
    OPPONENT_CHANGED = "opponent_changed"
    EVALUATION_FAILED = "evaluation_failed"
    # The batch that a replay was issued for was taken apart.
    BATCH_DISSOLVED = "batch_dissolved"
    # The file of a replay's columns, or that of another of its group, is missing or damaged.
    COLUMNS_LOST = "columns_lost"
    # Ids below a manifest's that this ledger never knew: its store was lost.
    FORGOTTEN = "forgotten"


class TicketVerdict(StrEnum):
    ACCEPTED = "accepted"
    RETRIED = "retried"
    REFUSED = "refused"


class EpisodeResult(msgspec.Struct, kw_only=True, omit_defaults=True, gc=False):
    """The report of a finished attempt. Lengths in tokens; versions of its loss-masked tokens."""

    ending: EpisodeEnding = EpisodeEnding.OK
    reward: float = 0.0
    prompt_tokens: int = 0
    total_tokens: int = 0
    trained_tokens: int = 0
    turns: int = 0
    oldest_version: int = 0
    newest_version: int = 0
    descriptor_key: str = ""
    metrics: dict[str, float] = {}
    message: str = ""
    turn_tokens: list[int] = []
    # By the run's reward model; None while there is none. No worker reports it.
    score: float | None = None

    def trained_reward(self, score_coefficient: float) -> float:
        """The reward that advantages are made of: the environment's, and the score times its weight."""
        return self.reward + score_coefficient * (self.score or 0.0)

    @property
    def win(self) -> float:
        """The metric "win", 0..1; without it, whether an episode that ran to its end earned anything."""
        earned = self.ending is EpisodeEnding.OK and self.reward > 0
        return min(1.0, max(0.0, self.metrics.get("win", float(earned))))


class Ticket(msgspec.Struct, kw_only=True, omit_defaults=True, gc=False, frozen=True):
    """One seat of one episode to run. Only the ledger's tables change one (LedgerTables.change, move).

    An episode in which the policy has several seats is a match: as many tickets, with successive ids in the
    order of the seats. They are in one state always, until they are closed. Against a frozen opponent a match
    has one ticket, that of the seat that learns.
    floor: no loss-masked token of it is, or will be, of an older version. source: of a replay, the trained
    ticket whose columns it trains on again; 0 of every other.
    index: its group's place in the schedule of its purpose (see admission.places); for an evaluation the
    number of its instance. broken: an attempt ended in a way that the instance itself is to blame for.
    """

    id: int
    group: int
    purpose: Purpose
    index: int = 0
    env_seed: int
    sample_seed: int
    min_version: int
    temperature: float
    evaluation: str = ""
    # The label of its environment; "" in a run that has only one.
    environment: str = ""
    # The number of its task in the environment's set; -1 without one.
    task: int = -1
    # Its conversation is wanted with the result.
    transcript: bool = False
    # Its seat, from 0, of so many that the policy, or a frozen version of it, has in the episode.
    seat: int = 0
    seats: int = 1
    # The length of its response as predicted when it was issued; 0 if nothing was.
    predicted_tokens: int = 0
    # A frozen version plays the other seats, which have no tickets.
    frozen: bool = False
    source: int = 0
    state: TicketState = TicketState.PENDING
    fence: int = 0
    attempt: int = 0
    failures: int = 0
    broken: bool = False
    floor: int = 0
    worker: str = ""
    incarnation: int = 0
    reason: str = ""
    result: EpisodeResult | None = None

    @property
    def head(self) -> str:
        """The beginning of the stored record: it does not change while a batch takes the ticket."""
        return _HEADS[self.state] + str(self.fence)

    @property
    def match(self) -> range:
        """The ids of its match; of itself alone where one seat of the policy learns."""
        if self.frozen:
            return range(self.id, self.id + 1)
        first = self.id - self.seat
        return range(first, first + self.seats)

    def opponent(self, schedule: FrozenSchedule | None) -> int:
        """The frozen version that plays its other seats; 0 if none does. schedule: of the run."""
        return schedule.version_at(self.min_version) if schedule is not None and self.frozen else 0

    @property
    def bucket(self) -> str:
        """The part of the ledger's identity that counts it: a state, "replayed", or "dropped:<reason>"."""
        if self.purpose is Purpose.REPLAY and self.state is TicketState.TRAINED:
            return REPLAYED
        return f"dropped:{self.reason}" if self.state is TicketState.DROPPED else self.state


class Issue(msgspec.Struct, kw_only=True, omit_defaults=True, gc=False, frozen=True):
    """A group of new tickets: `first` and the ids after it, each of whose samplers has a seed here.

    transcripts: ids of those whose conversation is wanted. seats, frozen: of each match, predicted_tokens:
    of each ticket, see Ticket; the tickets have the seats in turns.
    """

    group: int
    purpose: Purpose
    index: int
    first: int
    env_seed: int
    sample_seeds: list[int]
    min_version: int
    temperature: float
    evaluation: str = ""
    environment: str = ""
    task: int = -1
    transcripts: list[int] = []
    seats: int = 1
    frozen: bool = False
    predicted_tokens: int = 0

    def tickets(self) -> list[Ticket]:
        """The tickets as they were issued."""
        return [
            Ticket(
                id=number,
                group=self.group,
                purpose=self.purpose,
                index=self.index,
                env_seed=self.env_seed,
                sample_seed=seed,
                min_version=self.min_version,
                floor=self.min_version,
                temperature=self.temperature,
                evaluation=self.evaluation,
                environment=self.environment,
                task=self.task,
                transcript=number in self.transcripts,
                seat=(number - self.first) % self.seats,
                seats=self.seats,
                frozen=self.frozen,
                predicted_tokens=self.predicted_tokens,
            )
            for number, seed in enumerate(self.sample_seeds, self.first)
        ]


class Attempt(msgspec.Struct, frozen=True):
    """Names one try at a ticket."""

    ticket_id: int
    attempt: int
    fence: int
