"""Errors cross the wire as the class they were, and addresses are judged before anything listens."""

import errno
import json
import logging

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from earl import errors
from earl.obs.log import JsonLines
from earl.rpc import auth
from earl.rpc.errors import (
    MAX_TEXT_BYTES,
    bounded,
    catalogue,
    from_call,
    from_status,
    status_code,
    to_status,
)
from earl.rpc.token_file import Role, make
from earl.rpc.tokens import AcceptedTokens

STRONG = make(Role.WORKER).token


@pytest.mark.parametrize("name", sorted(catalogue()))
def test_every_error_of_the_catalogue_round_trips(name: str):
    error = catalogue()[name]("seven is wrong", "use eight")
    back = from_status(to_status(error))
    assert back is not None
    assert type(back) is type(error)
    assert (back.message, back.remedy) == ("seven is wrong", "use eight")
    assert status_code(error).value[0] == to_status(error).code


@given(st.text())
def test_texts_are_truncated_to_what_metadata_holds(text: str):
    shortened = bounded(text)
    assert len(shortened.encode("utf-8", "replace")) <= MAX_TEXT_BYTES
    assert "\n" not in shortened


def test_unknown_class_keeps_its_name():
    status = to_status(errors.PeerLost("gone"))
    info = status.details[0]
    info.value = info.value.replace(b"PeerLost", b"PeerFost")
    back = from_status(status)
    assert type(back) is errors.RpcError
    assert "PeerFost" in str(back)


@pytest.mark.parametrize("address", ["", "127.0.0.1", "host:", ":80", "host:http", "127.0.0.1:70000"])
def test_bad_addresses(address: str):
    with pytest.raises(errors.ConfigError) as caught:
        auth.split_address(address)
    assert repr(address) in str(caught.value)


@pytest.mark.parametrize("bind", ["127.0.0.1:0", "localhost:1", "[::1]:0", "127.1.2.3:5"])
def test_loopback_needs_nothing(bind: str):
    auth.check_bind(bind, AcceptedTokens(), None)


@pytest.mark.parametrize("bind", ["0.0.0.0:0", "[::]:1", "10.0.0.1:5", "example.org:5"])
def test_off_loopback_needs_tls_and_token(bind: str):
    with pytest.raises(errors.InsecureBind):
        auth.check_bind(bind, AcceptedTokens(), None)
    with pytest.raises(errors.InsecureBind, match="without TLS"):
        auth.check_bind(bind, AcceptedTokens(STRONG), None)
    with pytest.raises(errors.InsecureBind, match="without a token"):
        auth.check_bind(bind, AcceptedTokens(), auth.TlsFiles())
    with pytest.raises(errors.InsecureBind, match="6 characters"):
        auth.check_bind(bind, AcceptedTokens("secret"), auth.TlsFiles())
    auth.check_bind(bind, AcceptedTokens(STRONG), auth.TlsFiles())


@pytest.mark.parametrize(
    "address", ["10.0.0.1:5", "0.0.0.0:5", "gateway:7000", "[2001:db8::1]:5", "127.evil:5"]
)
def test_no_token_goes_off_loopback_in_plain_text(address: str):
    with pytest.raises(errors.InsecureCall, match="EARL_TLS_CA") as caught:
        auth.check_call(address, None)
    assert address in caught.value.message and caught.value.exit_code == 6
    auth.check_call(address, auth.TlsFiles())


@pytest.mark.parametrize("address", ["127.0.0.1:5", "localhost:5", "[::1]:5"])
def test_on_loopback_it_may(address: str):
    auth.check_call(address, None)


def test_an_error_quotes_others_so_that_no_terminal_obeys_it():
    error = errors.EnvProtocolError("host \x1b]0;x\x07 says \x9b2J\r", "call it\tanother\x7f")
    assert error.message == "host ␛]0;x␇ says \ufffd2J␍" and error.remedy == "call it\tanother␡"
    assert str(error) == f"{error.message}; {error.remedy}"


def test_log_lines_are_json():
    record = logging.LogRecord("a.b", logging.WARNING, __file__, 1, "lost %s", ("host-1",), None)
    record.fields = {"sessions": 3}
    line = json.loads(JsonLines("env_gateway").format(record))
    assert line["message"] == "lost host-1"
    assert (line["process"], line["level"], line["sessions"]) == ("env_gateway", "warning", 3)


def test_a_write_into_a_broken_connection_is_unavailable():
    broken = grpc.aio.AioRpcError(
        grpc.StatusCode.INTERNAL, grpc.aio.Metadata(), grpc.aio.Metadata(), "Internal error from Core"
    )
    assert isinstance(from_call(broken, "Play"), errors.ServiceUnavailable)


@pytest.mark.parametrize(
    ("error", "is_memory"),
    [
        (MemoryError(), True),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), True),
        (OSError(errno.ENOENT, "No such file"), False),
        # As torch's allocators word it, of CUDA and of CPUs.
        (
            RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of ..."),
            True,
        ),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes."), True),
        (RuntimeError("CUDA error: device-side assert triggered"), False),
        (ValueError("out of memory"), False),
    ],
)
def test_too_little_memory_is_told_from_other_failures(error: Exception, is_memory: bool):
    assert errors.ran_out_of_memory(error) is is_memory
