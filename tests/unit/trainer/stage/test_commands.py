"""Checks what rank 0 tells the ranks of a stage: each command is carried out once, until one ends all."""

from __future__ import annotations

from typing import Any, cast

import pytest

from services.trainer.stage.commands import RankCommand, run_commands


class Follower:
    """A rank that is told `commands`, whatever it would say itself."""

    def __init__(self, *commands: bytes) -> None:
        self._commands = iter(commands)
        self.asked: list[bytes] = []

    def broadcast(self, data: bytes) -> bytes:
        self.asked.append(data)
        return next(self._commands)


def carried_out(*commands: bytes) -> list[tuple[str, bytes]]:
    done: list[tuple[str, bytes]] = []
    group = Follower(*commands)

    def handler(command: RankCommand) -> Any:
        return lambda body: done.append((command.name, body))

    run_commands(cast(Any, group), lambda: b"mine", {one: handler(one) for one in RankCommand})
    assert set(group.asked) == {b"mine"}
    return done


@pytest.mark.parametrize("command", RankCommand)
def test_a_command_survives_its_bytes(command: RankCommand):
    assert RankCommand.decode(command.encode(b"body")) == (command, b"body")
    assert RankCommand.decode(command.encode()) == (command, b"")


def test_commands_have_different_bytes_and_others_are_refused():
    assert len({command.value for command in RankCommand}) == len(RankCommand)
    for damaged in (b"", b"x", b"\xff"):
        with pytest.raises(ValueError):
            RankCommand.decode(damaged)


@pytest.mark.parametrize("last", [RankCommand.LEAVE, RankCommand.FINISH])
def test_ranks_do_what_rank_0_says_until_they_end(last: RankCommand):
    train, idle = RankCommand.TRAIN.encode(b"plan"), RankCommand.IDLE.encode()
    assert carried_out(train, idle, last.encode(), train) == [("TRAIN", b"plan"), (last.name, b"")]


def test_the_failure_of_a_command_ends_the_loop():
    def failing(_: bytes) -> None:
        raise OSError("no space left")

    with pytest.raises(OSError, match="no space left"):
        run_commands(
            cast(Any, Follower(RankCommand.SAVE.encode(), b"never read")), bytes, {RankCommand.SAVE: failing}
        )
