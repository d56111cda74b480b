"""One trace follows one ticket through every service of a real run."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

from tests.support.collector import Collector

ROOT = Path(__file__).resolve().parents[2]
SMALL = {
    "model.scratch.hidden_size": "32",
    "model.scratch.layers": "1",
    "model.scratch.intermediate_size": "64",
    "model.scratch.heads": "4",
    "model.scratch.kv_heads": "4",
    "warmup.minibatches": "1",
    "warmup.passes": "1",
    "trainer.minibatches": "1",
    "trainer.passes": "1",
    "warmup.batches": "2",
    "warmup.batch_episodes": "16",
    "scheduler.group_size": "4",
    "scheduler.batch_groups": "4",
    "scheduler.steps": "4",
    "evaluation.episodes": "4",
    "rollout.max_sequences": "16",
    "trainer.kl_coefficient": "0.01",
    "obs.trace_fraction": "0.5",
}
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
    with Collector() as collector:
        overrides = SMALL | {"obs.traces": collector.address}
        dotted = [text for key, value in overrides.items() for text in (f"--{key}", value)]
        command = [sys.executable, "-m", "earl.cli.main", "train", str(ROOT / "examples" / "tictactoe.toml")]
        done = subprocess.run(
            [*command, "--name", "traced", "--runs-dir", str(tmp_path), *dotted, "--plain", "--json"],
            capture_output=True,
            text=True,
            timeout=110,
            check=False,
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        assert done.returncode == 0, done.stderr
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
