"""One trace follows one ticket through every service of a real run."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest

from tests.support.collector import Collector
from tests.support.launched import launch_in

SERVICES = {"scheduler", "rollout", "env_gateway", "env", "reference", "trainer"}


def trained_traces(collector: Collector) -> dict[bytes, list]:
    """(service, span) by trace, of tickets that were trained on."""
    traces = defaultdict(list)
    for service, span in collector.by_service():
        traces[span.trace_id].append((service.removeprefix("earl-"), span))
    roots = {
        span.trace_id
        for _, span in collector.by_service()
        if span.name == "ticket"
        and {one.key: one.value.string_value for one in span.attributes}["earl.outcome"] == "trained"
        and {one.key: one.value.string_value for one in span.attributes}["earl.purpose"] == "train"
    }
    return {trace: spans for trace, spans in traces.items() if trace in roots}


@pytest.mark.slow
def test_a_trained_ticket_is_one_connected_trace_of_all_services(tmp_path: Path):
    with Collector() as collector, launch_in(tmp_path) as run:
        run.start(
            scheduler__steps="4", evaluation__episodes="4", trainer__kl_coefficient="0.01",
            obs__trace_fraction="0.5", obs__traces=collector.address,
        )  # fmt: skip
        code, _ = run.finish()
        assert code == 0, run.said
    traces = trained_traces(collector)
    assert 10 < len(traces) < 4 * 16, f"{len(traces)} of {4 * 16} tickets at a fraction of 0.5"
    for spans in traces.values():
        assert {service for service, _ in spans} == SERVICES
        ids = {span.span_id for _, span in spans}
        assert len(ids) == len(spans)
        roots = [span for _, span in spans if not span.parent_span_id]
        assert [root.name for root in roots] == ["ticket"]
        assert all(span.parent_span_id in ids for _, span in spans if span.parent_span_id)
        assert all(roots[0].start_time_unix_nano <= span.end_time_unix_nano for _, span in spans)
        names = [span.name for _, span in spans]
        assert {"ticket pending", "ticket leased", "ticket ready", "ticket planned"} <= set(names)
        assert {"rollout episode", "rollout open", "rollout act", "rollout step"} <= set(names)
        assert {"gateway queue", "gateway reset", "gateway step", "host reset", "host step"} <= set(names)
        assert {"reference logprobs", "trainer read", "trainer train"} <= set(names)
        turns = names.count("rollout step")
        assert turns == names.count("gateway step") == names.count("host step") >= 1
