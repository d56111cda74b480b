"""Checks which tickets are traced, what leaves a process, and that it leaves as told."""

import threading

import pytest

from earl.config.load import load_run
from earl.errors import ConfigError
from earl.obs import tracing
from earl.rpc import Client, Server
from earl.v1 import env_pb2, env_pb2_grpc
from tests.support.collector import Collector
from tests.support.paths import ROOT

TICKETS = tracing.TracedTickets("run", 7, 0.25)


def test_a_fraction_of_the_tickets_is_traced_always_the_same():
    parents = {number: TICKETS.parent(number) for number in range(4000)}
    sampled = {number for number, parent in parents.items() if parent}
    assert 850 < len(sampled) < 1150
    assert {
        number for number in range(4000) if tracing.TracedTickets("run", 7, 0.25).parent(number)
    } == sampled
    assert sampled < {number for number in range(4000) if tracing.TracedTickets("run", 7, 0.5).parent(number)}
    assert len({parents[number][3:35] for number in sampled}) == len(sampled)
    assert all(tracing.checked(parents[number]) == parents[number] for number in sampled)
    assert not tracing.TracedTickets("run", 7, 0.0).parent(1) and tracing.TracedTickets("run", 7, 1.0).parent(
        1
    )
    assert tracing.TracedTickets("other", 7, 1.0).parent(1) != tracing.TracedTickets("run", 7, 1.0).parent(1)


@pytest.mark.parametrize(
    "text",
    ["", "x" * 4096, f"00-{'a' * 32}", f"00-{'a' * 32}-{'b' * 16}-00", f"00-{'A' * 32}-{'b' * 16}-01"],
)
def test_what_is_no_sampled_traceparent_counts_as_none(text):
    assert tracing.checked(text) == ""


def test_without_a_collector_nothing_is_made():
    parent = tracing.TracedTickets("run", 7, 1.0).parent(1)
    assert tracing.child(parent) == "" and not tracing.active()
    with tracing.span("work", parent) as own:
        assert own == ""
    tracing.record("work", parent, 1, 2)


def test_spans_arrive_as_they_were_told():
    parent = tracing.TracedTickets("run", 7, 1.0).parent(1)
    with Collector() as collector:
        with tracing.exporting(collector.address, "rollout-0", "run"):
            with tracing.span("outer", parent, {"turn": 3}) as outer:
                tracing.record("inner", outer, 5_000, 9_000)
            tracing.record("ticket", parent, 1_000, 10_000, {"outcome": "trained"}, root=True)
            tracing.record("not sampled", "", 1, 2)
        spans = {span.name: span for span in collector.spans("earl-rollout")}
    assert spans.keys() == {"outer", "inner", "ticket"}
    root, outer, inner = spans["ticket"], spans["outer"], spans["inner"]
    assert {span.trace_id.hex() for span in spans.values()} == {parent[3:35]}
    assert (root.span_id.hex(), root.parent_span_id) == (parent[36:52], b"")
    assert outer.parent_span_id == root.span_id and inner.parent_span_id == outer.span_id
    assert (inner.start_time_unix_nano, inner.end_time_unix_nano) == (5_000, 9_000)
    assert {one.key: one.value.int_value for one in outer.attributes} == {"earl.turn": 3}


def test_spans_leave_while_the_process_goes_on(monkeypatch):
    class Told(Collector):
        def Export(self, request, context):
            answer = super().Export(request, context)
            came.set()
            return answer

    came = threading.Event()
    monkeypatch.setattr(tracing, "EXPORT_EVERY_S", 0.01)
    parent = tracing.TracedTickets("run", 7, 1.0).parent(1)
    with Told() as collector, tracing.exporting(collector.address, "rollout-0", "run"):
        tracing.record("first", parent, 1, 2)
        assert came.wait(30.0)
        assert [span.name for span in collector.spans("earl-rollout")] == ["first"]


def test_a_collector_that_is_away_costs_a_bounded_wait(monkeypatch):
    monkeypatch.setattr(tracing, "CLOSE_S", 0.05)
    parent = tracing.TracedTickets("run", 7, 1.0).parent(1)
    with tracing.exporting("http://127.0.0.1:1", "rollout-0", "run"):
        for _ in range(5000):  # more than its queue holds
            tracing.record("work", parent, 1, 2)
    assert not tracing.active()


async def test_a_unary_call_is_a_part_of_what_called_it():
    class Lists(env_pb2_grpc.EnvGatewayServiceServicer):
        async def ListEnvironments(self, request, context):
            seen.append(tracing.current())
            return env_pb2.ListEnvironmentsResponse()

    seen: list[str] = []
    parent = TICKETS.switch("rollout", 3)
    server = Server("gateway", "127.0.0.1:0")
    server.add(env_pb2_grpc.add_EnvGatewayServiceServicer_to_server, Lists(), "earl.v1.EnvGatewayService")
    client = Client(await server.start(), env_pb2_grpc.EnvGatewayServiceStub)
    request = env_pb2.ListEnvironmentsRequest()
    with Collector() as collector:
        with tracing.exporting(collector.address, "gateway", "run"):
            with tracing.within(parent):
                await client.call("ListEnvironments", request, deadline_s=10)
            await client.call("ListEnvironments", request, deadline_s=10)
            await client.close()
            await server.stop()
        (span,) = collector.spans("earl-gateway")
    assert span.name.endswith("ListEnvironments") and span.parent_span_id.hex() == parent[36:52]
    assert seen[0][36:52] == span.span_id.hex() and seen[1] == ""


def test_traces_leave_the_machine_over_tls_alone():
    path = "examples/tictactoe.toml"

    run = ROOT / path
    assert load_run(run, [("obs.traces", "https://traces.example:4317")]).obs.traced_fraction == 0.01
    assert load_run(run, [("obs.trace_fraction", "1.0")]).obs.traced_fraction == 0.0
    for host in ("traces.example", "127.traces.example"):
        with pytest.raises(ConfigError, match="without TLS"):
            load_run(run, [("obs.traces", f"http://{host}:4317")])
    with pytest.raises(ConfigError, match=r"obs\.traces"):
        load_run(run, [("obs.traces", "traces.example")])
