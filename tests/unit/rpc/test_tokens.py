"""Tokens: the file, its commands, who is let in, and what a rotation does to callers and streams."""

import asyncio
import base64
import datetime
import hashlib
import os
import tempfile
import tomllib
from functools import partial
from pathlib import Path

import grpc
import pytest
from typer.testing import CliRunner

from earl import errors
from earl.cli.machine.tokens import app, moment
from earl.rpc import Client, Server, server, token_file, tokens
from earl.rpc.access import Access
from earl.rpc.errors import from_call
from earl.rpc.token_file import Entry, Role, make
from earl.rpc.tokens import AcceptedTokens, SecretFile, SecretTokens, TokenFile, token_id
from earl.stack import credentials
from earl.v1 import env_pb2, env_pb2_grpc

PAST, SOON = (datetime.datetime.now(datetime.UTC) + datetime.timedelta(hours=one) for one in (-1, 12))
REQUEST = env_pb2.ListEnvironmentsRequest()


@pytest.fixture
def path(tmp_path):
    return tmp_path / "tokens.toml"


def now():
    return datetime.datetime.now(datetime.UTC)


def written(path, *entries):
    token_file.write(path, entries)
    return path


def test_what_is_written_is_read(path):
    entries = [make(Role.WORKER, SOON.replace(microsecond=0)), make(Role.WORKER), make(Role.OPERATOR)]
    written(path, *entries)
    assert path.stat().st_mode & 0o777 == 0o600
    assert token_file.read(path) == [entries[2], *entries[:2]]
    assert tomllib.loads(path.read_text())["operator"] == [{"token": entries[2].token}]


# In names of tests, which must be the same in every process that collects them.
TOKEN = "earl_worker_" + base64.urlsafe_b64encode(hashlib.sha256(b"a test's").digest()).decode().rstrip("=")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "has no token"),
        (f'[[boss]]\ntoken = "{TOKEN}"', "has 'boss'"),
        (f'[worker]\ntoken = "{TOKEN}"', "has 'worker'"),
        (f"[[worker]]\ntoken = {TOKEN}", "no TOML at line 2"),
        ('[[worker]]\ntoken = "short"', "worker token 1 .* has 5 characters"),
        ('[[worker]]\ntoken = "' + "ab" * 32 + '"', "made of 2 different"),
        ('[[worker]]\ntoken = "' + "ä" * 50 + '"', "characters that no token has"),
        ("[[worker]]\ntoken = 7", "not a table of token and expires"),
        (f'[[worker]]\ntoken = "{TOKEN}"\nexpire = 1', "not a table of token and expires"),
        (f'[[worker]]\ntoken = "{TOKEN}"\nexpires = 2026-01-01', "names no moment"),
        (f'[[worker]]\ntoken = "{TOKEN}"\nexpires = 2026-01-01T00:00:00', "names no moment"),
        (f'[[worker]]\ntoken = "{TOKEN}"\n[[operator]]\ntoken = "{TOKEN}"', "one token twice"),
    ],
)
def test_a_file_that_is_none_is_refused_without_its_tokens(path, text, words):
    path.touch(mode=0o600)
    path.write_text(text)
    with pytest.raises(errors.ConfigError, match=words) as caught:
        token_file.read(path)
    assert TOKEN not in str(caught.value) and caught.value.remedy


def test_a_file_that_is_replaced_stays_as_open_as_it_was(path, tmp_path):
    worker, latter = make(Role.WORKER), make(Role.WORKER)
    shared = tmp_path / "shared"
    shared.mkdir()
    written(shared / "tokens.toml", worker).chmod(0o640)
    group = next((one for one in os.getgroups() if one != os.getegid()), 10001 if os.geteuid() == 0 else -1)
    os.chown(shared / "tokens.toml", -1, group)
    path.symlink_to(shared / "tokens.toml")
    before = path.stat()
    written(path, worker, latter)
    after = path.stat()
    assert path.is_symlink() and token_file.read(shared / "tokens.toml") == [worker, latter]
    assert (after.st_mode, after.st_uid, after.st_gid) == (before.st_mode, before.st_uid, before.st_gid)
    assert after.st_ino != before.st_ino and os.listdir(shared) == ["tokens.toml"]
    path.chmod(0o666)
    written(path, worker)
    assert path.stat().st_mode & 0o777 == 0o640  # never what would be refused when it is read


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give a file to another group")
def test_a_group_that_cannot_be_kept_is_refused():
    with tempfile.TemporaryDirectory(dir="/var/tmp") as directory:  # others may enter it
        Path(directory).chmod(0o777)
        path = written(Path(directory) / "tokens.toml", make(Role.WORKER))
        path.chmod(0o640)
        os.chown(path, -1, 10001)
        before, groups = path.read_bytes(), os.getgroups()
        os.setgroups([])
        os.seteuid(65534)
        try:
            with pytest.raises(errors.ConfigError, match="its group 10001 could not read it"):
                written(path, make(Role.WORKER))
        finally:
            os.seteuid(0)
            os.setgroups(groups)
        assert path.read_bytes() == before and os.listdir(directory) == [path.name]


@pytest.mark.parametrize("mode", [0o604, 0o644, 0o602, 0o620])
def test_a_file_that_others_can_touch_is_refused(path, mode):
    written(path, make(Role.WORKER)).chmod(mode)
    with pytest.raises(errors.ConfigError, match=f"open to others .*chmod 600 {path}"):
        TokenFile(path)
    path.chmod(0o640)  # a mounted secret, readable by the group that the container has
    TokenFile(path)


def test_who_a_token_is(path):
    worker, old = make(Role.WORKER), make(Role.OPERATOR, PAST)
    accepts = TokenFile(written(path, worker, old))
    bearer = accepts.identify(worker.token.encode())
    assert (bearer.role, bearer.id) == (Role.WORKER, token_id(worker.token))
    old_id = token_id(old.token)
    with pytest.raises(errors.Unauthenticated, match=f"{old_id} expired at .*earl tokens rotate"):
        accepts.identify(old.token.encode())
    for sent, words in (
        (None, "no token was sent"),
        (b"", "none that is accepted"),
        (b"\xff", "none that is"),
    ):
        with pytest.raises(errors.Unauthenticated, match=words):
            accepts.identify(sent)
    assert AcceptedTokens("one for all").identify(b"one for all").role is None
    assert not AcceptedTokens().demanded and AcceptedTokens().identify(None).id == ""


def test_a_change_is_taken_over_and_a_mistake_is_not(path, caplog):
    first, second = make(Role.WORKER), make(Role.WORKER)
    accepts = TokenFile(written(path, first))
    bearer = accepts.identify(first.token.encode())
    assert accepts.send(Role.WORKER) == first.token
    written(path, first, second)
    assert accepts.identify(second.token.encode()).role is Role.WORKER  # at once: it was looked for
    assert accepts.send(Role.WORKER) == first.token and accepts.refusal(bearer) is None
    path.write_text("[[worker]")
    assert not accepts.refresh() and "is not taken" in caplog.text
    assert accepts.refusal(bearer) is None
    written(path, second)
    assert accepts.refresh() and not accepts.refresh()
    assert "revoked" in str(accepts.refusal(bearer))
    assert accepts.send(Role.WORKER) == second.token
    path.unlink()
    assert not accepts.refresh() and accepts.send(Role.WORKER) == second.token


def test_what_is_sent_outlives_the_call(path):
    ending, lasting = make(Role.WORKER, now() + datetime.timedelta(seconds=50)), make(Role.WORKER)
    assert TokenFile(written(path, ending, lasting)).send(Role.WORKER) == lasting.token
    assert TokenFile(written(path, ending)).send(Role.WORKER) == ending.token
    with pytest.raises(errors.ConfigError, match="no operator token"):
        TokenFile(path).send(Role.OPERATOR)


def test_where_a_process_has_its_token_from(path, tmp_path, monkeypatch):
    for name in credentials.VARIABLES:
        monkeypatch.delenv(name, raising=False)
    assert Access.of(Role.WORKER).token == "" and not tokens.tokens_to_accept().demanded
    entries = [make(role) for role in Role]
    monkeypatch.setenv("EARL_TOKENS", str(written(path, *entries)))
    assert isinstance(tokens.tokens_to_accept(), TokenFile)
    assert [tokens.current(Access.of(role).token) for role in Role] == [one.token for one in entries]
    one = tmp_path / "token"
    one.write_text("mounted\n")
    monkeypatch.setenv("EARL_TOKEN_FILE", str(one))
    sent = Access.of(Role.WORKER).token
    assert isinstance(sent, SecretFile) and sent() == "mounted"
    one.write_text("another one\n")
    assert sent() == "another one"
    monkeypatch.delenv("EARL_TOKENS")
    accepts = tokens.tokens_to_accept()
    one.write_text("a third\n")
    assert accepts.identify(b"a third").role is None
    monkeypatch.setenv("EARL_TOKENS", str(path))
    monkeypatch.setenv("EARL_TOKEN", " given\n")
    assert Access.of(Role.WORKER).token == "given" and isinstance(tokens.tokens_to_accept(), TokenFile)
    monkeypatch.delenv("EARL_TOKENS")
    assert tokens.tokens_to_accept().identify(b"given").role is None


def test_a_file_of_one_token_changes_what_is_accepted(tmp_path, caplog):
    path, first, second = tmp_path / "token", make(Role.WORKER).token, make(Role.WORKER).token
    path.write_text(first)
    accepts = SecretTokens(SecretFile(path))
    changes: list[str] = []
    accepts.subscribe(changes.append)
    bearer = accepts.identify(first.encode())
    assert not accepts.refresh() and not accepts.weakness
    for text, words in (("", "is empty"), ("weak", "has 4 characters")):
        path.write_text(text)
        assert not accepts.refresh() and words in caplog.text
        assert accepts.refusal(bearer) is None and accepts.demanded
    path.write_text(f"{first}\n{second}\n")  # while they are rotated
    assert accepts.refresh() and accepts.refusal(bearer) is None and SecretFile(path)() == second
    assert accepts.identify(second.encode()).role is None
    path.write_text(second)
    assert accepts.refresh() and "revoked" in str(accepts.refusal(bearer))
    assert accepts.identify(second.encode()).id == token_id(second)
    assert changes == [
        "not taken: a token of it has 4 characters instead of 43 to 512",
        f"changed: {token_id(first)}, {token_id(second)}",
        f"changed: {token_id(second)}",
    ]
    path.write_text("\n")
    with pytest.raises(errors.ConfigError, match="is empty"):
        SecretFile(path)


def test_each_process_of_a_launch_gets_the_tokens_of_its_role(path, monkeypatch):
    for name in credentials.VARIABLES:
        monkeypatch.delenv(name, raising=False)
    assert credentials.environment("worker") == {}
    entries = [make(role) for role in Role]
    monkeypatch.setenv("EARL_TOKENS", str(written(path, *entries)))
    monkeypatch.setenv("EARL_TOKEN", entries[0].token)
    credentials.check("127.0.0.1:0", [])
    host, service, store = (credentials.environment(role) for role in ("environment", "worker", ""))
    assert host == {"EARL_TOKENS": "", "EARL_TOKEN_FILE": "", "EARL_TOKEN": entries[2].token}
    assert service == {"EARL_TOKENS": str(path), "EARL_TOKEN_FILE": "", "EARL_TOKEN": ""}
    assert set(store.values()) == {""}
    addresses = {"EARL_GATEWAY": "127.0.0.1:1", "EARL_REDIS_URL": "redis://:password@127.0.0.1:2"}
    assert credentials.peers("worker", addresses) == addresses
    for looks in ("operator", "viewer"):
        assert credentials.peers(looks, addresses) == addresses | {"EARL_REDIS_URL": ""}
    gateway = {"EARL_GATEWAY": addresses["EARL_GATEWAY"]}
    assert credentials.peers("environment", addresses) == dict.fromkeys(addresses, "") | gateway
    assert credentials.peers("", addresses) == dict.fromkeys(addresses, "")
    assert credentials.environment("viewer") == service
    written(path, *entries[:3])  # the dashboard then looks as an operator
    credentials.check("127.0.0.1:0", [])
    written(path, *entries[:2])
    with pytest.raises(errors.ConfigError, match="no environment token"):
        credentials.check("127.0.0.1:0", [])


def test_the_first_role_that_has_a_token_is_sent(path):
    operator, viewer = make(Role.OPERATOR), make(Role.VIEWER)
    ending = Entry(Role.VIEWER, viewer.token, now() + datetime.timedelta(seconds=50))
    for entries, sent in (
        ((operator, viewer), viewer),
        ((operator,), operator),
        ((operator, ending), ending),
    ):
        assert TokenFile(written(path, *entries)).send(*token_file.READERS) == sent.token
    written(path, operator, Entry(Role.VIEWER, viewer.token, PAST))
    assert TokenFile(path).send(*token_file.READERS) == operator.token
    written(path, make(Role.WORKER))
    with pytest.raises(errors.ConfigError, match=r"no viewer or operator token .*--role viewer"):
        TokenFile(path).send(*token_file.READERS)


def told(*arguments):
    """Returns what `earl tokens` prints; raises what it raises."""
    result = CliRunner().invoke(app, [str(one) for one in arguments], standalone_mode=False)
    if result.exception is not None:
        raise result.exception
    return result.output


def test_the_commands(path, monkeypatch):
    monkeypatch.setenv("EARL_TOKENS", str(path))
    said = told("new", "--expires", "30d")
    first = token_file.read(path)
    assert [one.role for one in first] == list(Role)
    assert all(29 < one.good_for_s(now()) / 86_400 <= 30 for one in first)
    assert not any(one.token in said for one in first) and f"EARL_TOKENS={path}" in said
    assert told("show", "worker").strip() == first[1].token
    told("rotate", "--role", "worker", "--keep", "2h")
    after = token_file.read(path)
    workers = [one for one in after if one.role is Role.WORKER]
    others = [one.token for one in after if one.role is not Role.WORKER]
    assert others == [one.token for one in first if one.role is not Role.WORKER]
    assert workers[0].token == first[1].token and workers[0].good_for_s(now()) <= 2 * 3600
    assert workers[1].expires is None and told("show", "worker").strip() == workers[1].token
    written(path, Entry(Role.WORKER, workers[0].token, PAST), *after[2:])
    assert "expired" in told("list")
    told("rotate", "--role", "operator")
    assert workers[0].token not in path.read_text()


@pytest.mark.parametrize("span", ["30", "d", "0d", "-1d", "1w", "99999d", "1 d"])
def test_spans_that_are_none(span):
    with pytest.raises(errors.ConfigError, match="not a duration of at most ten years"):
        moment(span)


def test_roles_that_are_none():
    words = "no role 'boss'; name one of operator, worker, environment, viewer"
    with pytest.raises(errors.ConfigError, match=words):
        told("new", "--role", "boss")


class Listening(env_pb2_grpc.EnvGatewayServiceServicer):
    """Its streams go on until somebody ends them."""

    async def ListEnvironments(self, request, context):
        return env_pb2.ListEnvironmentsResponse()

    async def Play(self, request_iterator, context):
        await context.write(env_pb2.PlayResponse())
        await asyncio.Event().wait()


async def test_a_rotation_needs_no_restart_and_ends_streams(path, monkeypatch):
    monkeypatch.setattr(server, "TOKEN_CHECK_S", 0.02)
    former, latter, host = make(Role.WORKER), make(Role.WORKER), make(Role.ENVIRONMENT)
    serving = Server("test", "127.0.0.1:0", tokens=TokenFile(written(path, former, host)))
    add = env_pb2_grpc.add_EnvGatewayServiceServicer_to_server
    serving.add(add, Listening(), "earl.v1.EnvGatewayService")
    address = await serving.start()
    stub = env_pb2_grpc.EnvGatewayServiceStub
    worker = Client(address, stub, token=partial(TokenFile(path).send, Role.WORKER))
    stranger = Client(address, stub, token=host.token)
    await worker.call("ListEnvironments", REQUEST, deadline_s=5)
    words = r"for operator or viewer or worker, .* of role environment"
    with pytest.raises(errors.PermissionDenied, match=words):
        await stranger.call("ListEnvironments", REQUEST, deadline_s=5)
    stream = worker.stream("Play", deadline_s=5)
    await stream.read()
    written(path, latter, host)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stream.read()
    ended = from_call(caught.value, "Play")
    assert isinstance(ended, errors.Unauthenticated)
    assert f"{token_id(former.token)} was revoked" in str(ended)
    await worker.call("ListEnvironments", REQUEST, deadline_s=5)
    again = worker.stream("Play", deadline_s=5)
    assert await again.read() == env_pb2.PlayResponse()
    written(path, Entry(Role.WORKER, latter.token, PAST), host)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await again.read()
    assert "expired at" in str(from_call(caught.value, "Play"))
    for client in (worker, stranger):
        await client.close()
    await serving.stop()
