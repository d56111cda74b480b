"""Every method of every service, found by asking the servers themselves: who is let in, and who is not.

What a service registers is what is walked, so a new method cannot be forgotten; that nothing of the
contracts is served nowhere is asserted too.
"""

import asyncio
import datetime
import importlib
import pkgutil
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import pytest
from google.protobuf import descriptor_pb2
from google.protobuf.descriptor import ServiceDescriptor
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

import earl.v1
from earl import errors
from earl.rpc import auth, token_file
from earl.rpc.errors import from_call, sent_by_service
from earl.rpc.roles import rules
from earl.rpc.token_file import Role, make
from earl.rpc.tokens import TokenFile
from tests.support.services import all_services

ROOT = Path(__file__).resolve().parents[2]
OPEN = "/grpc.health.v1.Health/Check"
# What gRPC itself serves, for every role.
COMMON = ("grpc.reflection.", "grpc.health.")
# Calls that are let in and wait: here nobody trains, so no step ends after which to save. A refusal comes
# sooner.
WAITS = {"/earl.v1.TrainerService/SaveCheckpoint"}
LET_IN_S = 1.0
# All others are answered, streams too: they end when the caller says nothing.
ANSWER_S = 20.0
REFUSED = (errors.Unauthenticated, errors.PermissionDenied)
PAST = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=1)


class Method(NamedTuple):
    """One method as a server describes it. path: "/package.Service/Method"."""

    path: str
    client_streams: bool
    server_streams: bool

    @property
    def waits(self) -> bool:
        return self.path in WAITS


def reflection(channel: grpc.aio.Channel) -> Any:
    return reflection_pb2_grpc.ServerReflectionStub(channel)  # type: ignore[arg-type]


async def asked(channel: grpc.aio.Channel, token: str, **question: Any) -> Any:
    """One question to a server's reflection."""
    request = reflection_pb2.ServerReflectionRequest(**question)
    call = reflection(channel).ServerReflectionInfo(iter([request]), metadata=auth.metadata(token), timeout=5)
    answers = [answer async for answer in call]
    return answers[0]


async def described(channel: grpc.aio.Channel, token: str) -> AsyncIterator[Method]:
    """All methods that a server says it has."""
    listed = (await asked(channel, token, list_services="")).list_services_response
    for service in listed.service:
        answer = (await asked(channel, token, file_containing_symbol=service.name)).file_descriptor_response
        for raw in answer.file_descriptor_proto:
            file = descriptor_pb2.FileDescriptorProto.FromString(raw)
            for found in file.service:
                if f"{file.package}.{found.name}" == service.name:
                    for one in found.method:
                        path = f"/{service.name}/{one.name}"
                        yield Method(path, one.client_streaming, one.server_streaming)


async def called(channel: grpc.aio.Channel, method: Method, token: str, timeout: float) -> Exception | None:
    """Returns the error of a call with an empty message; None if it has none, or is one that waits that long.

    Any other call has to be answered, be it with an error: without an answer the test fails.
    """
    metadata, raw = auth.metadata(token), b""
    try:
        if method.client_streams:
            make_call = channel.stream_stream if method.server_streams else channel.stream_unary
            call: Any = make_call(method.path)(iter(()), metadata=metadata, timeout=timeout)
            await call.read() if method.server_streams else await call
        elif method.server_streams:
            await channel.unary_stream(method.path)(raw, metadata=metadata, timeout=timeout).read()
        else:
            await channel.unary_unary(method.path)(raw, metadata=metadata, timeout=timeout)
    except grpc.aio.AioRpcError as error:
        if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED and sent_by_service(error) is None:
            assert method.waits, f"{method.path} gave no answer within {timeout:g} s"
            return None
        return from_call(error, method.path)
    return None


@pytest.fixture
def entries():
    return {role: make(role) for role in Role}


async def test_every_method_lets_in_whom_its_contract_names(tmp_path, entries):
    expired = {role: make(role, PAST) for role in Role}
    path = tmp_path / "tokens.toml"
    token_file.write(path, [*entries.values(), *expired.values()])
    seen: set[str] = set()
    async with all_services(tmp_path, TokenFile(path)) as served:
        for address in served.addresses.values():
            async with grpc.aio.insecure_channel(address) as channel:
                # Without a question: gRPC reports a write after the refusal as an internal error.
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await reflection(channel).ServerReflectionInfo(timeout=5).read()
                assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
                methods = [one async for one in described(channel, entries[Role.OPERATOR].token)]
                seen.update(method.path for method in methods)
                await asyncio.gather(*(walked(channel, method, entries, expired) for method in methods))
    contracts = {path for service in services_of_contracts() for path in rules(service.full_name)}
    assert contracts and contracts <= seen, f"served nowhere: {sorted(contracts - seen)}"


async def walked(channel, method, entries, expired):
    """One method with every kind of token."""
    service = method.path.split("/")[1]
    if method.path == OPEN:
        assert not isinstance(await called(channel, method, "", ANSWER_S), REFUSED)
        return
    for token, words in (("", "no token was sent"), (make(Role.WORKER).token, "none that is accepted")):
        refusal = await called(channel, method, token, ANSWER_S)
        assert isinstance(refusal, errors.Unauthenticated) and words in str(refusal), (method, refusal)
    allowed = frozenset(Role) if service.startswith(COMMON) else rules(service)[method.path].roles
    assert allowed

    async def shown(role: Role) -> None:
        refusal = await called(channel, method, expired[role].token, ANSWER_S)
        assert isinstance(refusal, errors.Unauthenticated) and "expired at" in str(refusal), (method, refusal)
        timeout = LET_IN_S if role in allowed and method.waits else ANSWER_S
        answer = await called(channel, method, entries[role].token, timeout)
        if role in allowed:
            assert not isinstance(answer, REFUSED), (method, role, answer)
        else:
            assert isinstance(answer, errors.PermissionDenied), (method, role, answer)
            assert answer.remedy and role in str(answer)

    await asyncio.gather(*map(shown, Role))


def test_a_viewer_only_looks():
    seen = []
    for service in services_of_contracts():
        for path, rule in rules(service.full_name).items():
            if Role.VIEWER in rule.roles:
                name = path.rpartition("/")[2]
                assert name.startswith(("Get", "List")) and not rule.audited, path
                assert Role.OPERATOR in rule.roles, path
                seen.append(name)
    # What `earl status`, `earl top` and the dashboard ask for is among it.
    assert {"GetStatus", "ListTickets", "ListEnvironments", "ListHosts"} <= set(seen)


def services_of_contracts() -> list[ServiceDescriptor]:
    """All services of EARL's contracts: of every generated module, so of every file that there is."""
    found = []
    for module in pkgutil.iter_modules(earl.v1.__path__, "earl.v1."):
        if module.name.endswith("_pb2"):
            file = importlib.import_module(module.name).DESCRIPTOR
            found += file.services_by_name.values()
    return found


def test_no_service_of_a_contract_is_forgotten():
    written = [
        f"earl.v1.{name}"
        for path in (ROOT / "proto/earl/v1").glob("*.proto")
        for name in re.findall(r"^service (\w+)", path.read_text(encoding="utf-8"), re.MULTILINE)
    ]
    assert written and sorted(written) == sorted(one.full_name for one in services_of_contracts())
