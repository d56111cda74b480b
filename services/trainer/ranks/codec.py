"""A switch's command on its way from rank 0 to the others."""

from __future__ import annotations

import struct
import time
from dataclasses import replace

from earl.reparallelize import SwitchCommand
from earl.switch_codec import decode_command, encode_command
from earl.v1.trainer_pb2 import ReparallelizeTrainerRequest

_SECONDS = struct.Struct("<d")


def command_to_ranks(command: SwitchCommand) -> bytes:
    """A command as rank 0 sends it to the others, whose clocks differ: with the seconds since it came."""
    message = encode_command(command, ReparallelizeTrainerRequest).SerializeToString()
    return _SECONDS.pack(time.monotonic() - command.requested_s) + message


def command_from_rank0(data: bytes) -> SwitchCommand:
    """The inverse of `command_to_ranks`, on any rank."""
    command = decode_command(ReparallelizeTrainerRequest.FromString(data[_SECONDS.size :]))
    return replace(command, requested_s=time.monotonic() - _SECONDS.unpack_from(data)[0])
