"""Checks who did what: lines of real calls, without secrets, bounded, from several writers."""

import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from earl import errors
from earl.rpc import Client, Server, audit, token_file
from earl.rpc.audit import Audit, summary
from earl.rpc.token_file import Role, make
from earl.rpc.tokens import ANYONE, TokenFile, token_id
from earl.v1 import common_pb2, scheduler_pb2, scheduler_pb2_grpc


class Asked(scheduler_pb2_grpc.SchedulerServiceServicer):
    async def StopRun(self, request, context):
        if not request.reason:
            raise errors.LedgerError("no reason")
        return scheduler_pb2.StopRunResponse()

    async def GetStatus(self, request, context):
        return scheduler_pb2.GetStatusResponse()


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


async def test_calls_refusals_and_changes_are_written(tmp_path):
    path, file = tmp_path / "audit.jsonl", tmp_path / "tokens.toml"
    operator, worker = make(Role.OPERATOR), make(Role.WORKER)
    token_file.write(file, [operator, worker])
    accepts = TokenFile(file)
    server = Server("scheduler", "127.0.0.1:0", tokens=accepts, audit=Audit(path, "scheduler"))
    add = scheduler_pb2_grpc.add_SchedulerServiceServicer_to_server
    server.add(add, Asked(), "earl.v1.SchedulerService")
    address = await server.start()

    async def call(token, method, **fields):
        client = Client(address, scheduler_pb2_grpc.SchedulerServiceStub, token=token)
        try:
            request = getattr(scheduler_pb2, f"{method}Request")(**fields)
            await client.call(method, request, deadline_s=5)
        finally:
            await client.close()

    await call(operator.token, "GetStatus")  # not audited
    await call(operator.token, "StopRun", reason="enough\n" * 100)
    with pytest.raises(errors.LedgerError):
        await call(operator.token, "StopRun")
    with pytest.raises(errors.PermissionDenied):
        await call(worker.token, "StopRun", reason="mine")
    with pytest.raises(errors.Unauthenticated):
        await call("guess", "GetStatus")
    token_file.write(file, [operator])
    accepts.refresh()
    file.write_text("[")
    accepts.refresh()
    await server.stop()
    found = lines(path)
    assert [(one["what"].rpartition("/")[2], one["outcome"].partition(":")[0]) for one in found] == [
        ("StopRun", "ok"),
        ("StopRun", "LedgerError"),
        ("StopRun", "PermissionDenied"),
        ("GetStatus", "Unauthenticated"),
        ("token file", "changed"),
        ("token file", "not taken"),
    ]
    first = found[0]
    assert (first["service"], first["role"], first["token"]) == (
        "scheduler", "operator", token_id(operator.token),
    )  # fmt: skip
    assert first["peer"].startswith("ipv4:127.0.0.1:") and len(first["request"]["reason"]) <= 200
    assert token_id(worker.token) in found[2]["message"]
    assert not any(secret in path.read_text() for secret in (operator.token, worker.token, "guess"))
    assert path.stat().st_mode & 0o777 == 0o600


def test_refusals_beyond_a_number_are_counted(tmp_path, monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(audit.time, "monotonic", lambda: clock[0])
    written = Audit(tmp_path / "audit.jsonl", "gateway")
    clock[0] = 100.0
    for _ in range(1000):
        written.refused("/a/B", "ipv4:1", errors.Unauthenticated("no token was sent"))
    assert len(lines(tmp_path / "audit.jsonl")) == audit.REFUSALS
    clock[0] += audit.MINUTE_S
    written.refused("/a/B", "ipv4:1", errors.Unauthenticated("no token was sent"))
    assert lines(tmp_path / "audit.jsonl")[-2]["count"] == 1000 - audit.REFUSALS


def test_several_writers_share_a_bounded_file(tmp_path):
    path, limit_bytes = tmp_path / "audit.jsonl", 4000
    writers = [Audit(path, f"service-{number}", limit_bytes) for number in range(4)]

    def write(writer):
        for number in range(50):
            writer.called("/a/B", ANYONE, "ipv4:1", f"ok {number}")

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, writers))
    former = tmp_path / "audit.1.jsonl"
    assert sorted(tmp_path.iterdir()) == [former, path]
    assert all(one.stat().st_size <= limit_bytes for one in (former, path))
    assert len(lines(former)) > 10 and lines(path)


def test_what_cannot_be_written_is_logged_and_no_call_fails(tmp_path, caplog):
    Audit(tmp_path / "none" / "audit.jsonl", "gateway").write("StopRun", outcome="ok")
    assert "cannot be written" in caplog.text and '"StopRun"' in caplog.text


def test_what_stands_of_a_request():
    request = scheduler_pb2.ReconcileRequest(
        worker=common_pb2.Worker(name="trainer", incarnation=3),
        version=7,
        consumed=[scheduler_pb2.TicketRange(start=1, stop=2)] * 5000,
    )
    assert summary(request) == {
        "worker": {"name": "trainer", "incarnation": "3"},
        "version": 7,
        "consumed": "5000 of them",
    }
    request.worker.name = "x" * 1000
    assert summary(request)["worker"].endswith("bytes")
