"""The commands that rank 0 broadcasts to the ranks of a stage, for trainer and reference stage.

rank 0: next command ─► broadcast ─► every rank: its handler ─► …until LEAVE, FINISH, or a good REFORM
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum

from services.trainer.ranks.process_group import Group


class RankCommand(Enum):
    """A command; its value is the first byte of the broadcast, and what goes with it follows."""

    # Both stages: nothing came in time; another parallelism (a SwitchCommand); end this process.
    IDLE = b"I"
    SWITCH = b"W"
    LEAVE = b"L"
    # The trainer: train a batch (a BatchPlan); write a checkpoint; end, for the run is done.
    TRAIN = b"T"
    SAVE = b"S"
    FINISH = b"F"
    # The trainer: other processes are its ranks from here on (a SwitchCommand).
    REFORM = b"M"
    # Frozen models: log-probs or scores of a lease; read the weights (their keys); forget the weights.
    COMPUTE = b"C"
    READ = b"R"
    VOID = b"V"

    def encode(self, body: bytes = b"") -> bytes:
        return self.value + body

    @classmethod
    def decode(cls, data: bytes) -> tuple[RankCommand, bytes]:
        """(command, what goes with it). Raises ValueError for a byte that is no command."""
        return cls(data[:1]), data[1:]


# Returns whether this group of ranks has ended with it.
Handlers = Mapping[RankCommand, Callable[[bytes], bool | None]]


def run_commands(group: Group, next_command: Callable[[], bytes], handlers: Handlers) -> None:
    """Carries out rank 0's commands until one ends this group of ranks. A collective.

    next_command: called on every rank, in step; what it returns on rank 0 counts, an encoded command. Raises
    the first failure of next_command or of a handler.
    """
    while True:
        command, body = RankCommand.decode(group.broadcast(next_command()))
        ended = command is not RankCommand.IDLE and handlers[command](body)
        if ended or command in (RankCommand.LEAVE, RankCommand.FINISH):
            return
