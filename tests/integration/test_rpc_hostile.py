"""Values that no caller should send, through every unary method of the real services: each ends in a status
that says what is wrong, none is an error of the server's own, and the services serve on."""

import itertools
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from google.protobuf import message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor

from earl.rpc.tokens import AcceptedTokens
from tests.integration.test_rpc_walk import services_of_contracts
from tests.integration.test_scheduler_process import Learner, Player
from tests.support.services import all_services

# Some wait for what does not come here; each kind of message is sent often.
CALL_S = 0.3
# What a servicer's own mistake looks like from outside.
MISTAKES = {grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN}
WHERE = {
    "SchedulerService": "scheduler",
    "EnvGatewayService": "gateway",
    "RolloutService": "rollout",
    "TrainerService": "trainer",
}
NAN, INF = float("nan"), float("inf")
LONG = "x" * (1 << 20)
TEXTS = ["", "\x00", "../../etc/passwd", "\u202e\ud7ff{}%s%n\r\n\x1b[2J", LONG]
FLOATS = [NAN, INF, -INF, -1.0, 1e308, 5e-324]
BITS = {
    FieldDescriptor.TYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.TYPE_UINT64: (0, 2**64 - 1),
    FieldDescriptor.TYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.TYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.TYPE_SINT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.TYPE_FIXED64: (0, 2**64 - 1),
    FieldDescriptor.TYPE_SFIXED64: (-(2**63), 2**63 - 1),
}


def scalar(field: FieldDescriptor, turn: int) -> Any:
    """The turn-th hostile value of a field that is no message."""
    match field.type:
        case FieldDescriptor.TYPE_DOUBLE | FieldDescriptor.TYPE_FLOAT:
            return FLOATS[turn % len(FLOATS)]
        case FieldDescriptor.TYPE_STRING:
            return TEXTS[turn % len(TEXTS)]
        case FieldDescriptor.TYPE_BYTES:
            return [b"", b"\xff" * 64, b"\x00" * (1 << 20)][turn % 3]
        case FieldDescriptor.TYPE_BOOL:
            return bool(turn % 2)
        case FieldDescriptor.TYPE_ENUM:
            return [0, 1, 2, 99, -1][turn % 5]
    return BITS[field.type][turn % 2]


def filled(kind: Descriptor, turn: int, known: dict[str, Any]) -> Any:
    """A message whose every field has a hostile value, but for those that are `known` by name."""
    message: Any = message_factory.GetMessageClass(kind)()
    for number, field in enumerate(kind.fields):
        inner = field.message_type
        if field.name in known and field.type == FieldDescriptor.TYPE_MESSAGE:
            getattr(message, field.name).CopyFrom(known[field.name])
        elif inner is not None and inner.GetOptions().map_entry:
            put(message, field, turn)
        elif inner is not None and field.is_repeated:
            getattr(message, field.name).extend(filled(inner, turn + one, known) for one in range(3))
        elif inner is not None:
            getattr(message, field.name).CopyFrom(filled(inner, turn, known))
        elif field.is_repeated:
            getattr(message, field.name).extend([scalar(field, turn)] * 2)
        elif field.name != "wait_s" or turn % 2:
            setattr(message, field.name, scalar(field, turn + number % 2))
    return message


def put(message: Any, field: FieldDescriptor, turn: int) -> None:
    """Hostile keys and values into a map of scalars."""
    entry: Any = field.message_type
    key, value = entry.fields_by_name["key"], entry.fields_by_name["value"]
    for one in range(3):
        getattr(message, field.name)[scalar(key, turn + one)] = scalar(value, turn + one)


def raws(kind: Descriptor, callers: list[dict[str, Any]]) -> Iterator[bytes]:
    """Messages of this kind as bytes, and bytes that are none."""
    yield b""
    yield b"\xff\xff\xff\xff\xff"
    yield b"\x0a\xff\xff\xff\xff\x0f"
    for field in kind.fields:
        if field.type == FieldDescriptor.TYPE_STRING and not field.is_repeated:
            yield bytes([field.number << 3 | 2, 2, 0xC3, 0x28])  # no UTF-8
    for turn, caller in itertools.product(range(12), callers):
        known = {name: value for name, value in caller.items() if name != "attempts"}
        if "attempts" in caller:
            known["attempt"] = caller["attempts"][turn % len(caller["attempts"])]
        yield filled(kind, turn, known).SerializeToString()


@pytest.mark.slow
async def test_hostile_values_end_in_a_status_that_says_so(tmp_path, caplog):
    found: list[str] = []
    async with all_services(tmp_path, AcceptedTokens()) as served:
        scheduler = served.addresses["scheduler"]
        learner, player = Learner(scheduler, served.bus), Player(scheduler, "rollout-0")
        await learner.start()
        await player.say("Join", capacity=32)
        leased = await player.say("LeaseTickets", credit=16, wait_s=5.0)
        attempts = [player.result(ticket).attempt for ticket in leased.tickets]
        assert attempts
        # Nobody that is known, and workers of the run, with tickets that are theirs.
        callers = [{}, {"worker": learner.worker}, {"worker": player.worker, "attempts": attempts}]

        async def ask(channel: grpc.aio.Channel, path: str, raw: bytes) -> grpc.StatusCode:
            try:
                await channel.unary_unary(path)(raw, timeout=CALL_S)
            except grpc.aio.AioRpcError as error:
                if error.code() in MISTAKES:
                    found.append(f"{path}: {error.code().name} {error.details()} for {raw[:60]!r}")
                return error.code()
            return grpc.StatusCode.OK

        for service in services_of_contracts():
            if service.name not in WHERE:
                continue  # its only method is a stream: tests/contract/test_env_stream_malformed.py
            async with grpc.aio.insecure_channel(served.addresses[WHERE[service.name]]) as channel:
                # What ends the run comes last.
                for method in sorted(service.methods, key=lambda one: one.name.startswith(("Stop", "Save"))):
                    if method.client_streaming:
                        continue
                    path = f"/{service.full_name}/{method.name}"
                    for raw in raws(method.input_type, callers):
                        await ask(channel, path, raw)
        status = await player.call("GetStatus")
        for speaker in (learner, player):
            await speaker.client.close()
    assert status.ledger.issued >= len(attempts)
    assert not found, "\n".join(found)
    assert not [one for one in caplog.records if "unexpected error" in one.getMessage()]
