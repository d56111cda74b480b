"""earl bench observability: its figures from samples at two runs, and who takes metrics and traces."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import typer

from benchmarks.children import MeasurementWrong
from benchmarks.collector import collector
from benchmarks.every import every
from benchmarks.observability import parts_of, settings, summary
from benchmarks.role import RoleProcess
from benchmarks.usage import Usage, UsageSample, between, kind_of
from earl.obs import tracing
from earl.obs.metrics import LineFile

# Computes for 0.3 s when it is told to, as a child of a process that waits; ends when it is told again.
BUSY = "import time\ninput()\nwhile time.process_time() < 0.3: pass\nprint('done', flush=True)\ninput()"
ABOVE = f"""
import subprocess, sys
subprocess.run([sys.executable, "-c", {BUSY!r}])
print("over", flush=True)
input()
"""


def sample(steps: int, at_s: float, **cpu_s: float) -> UsageSample:
    return UsageSample(steps, steps * 100.0, at_s, cpu_s)


def test_both_runs_are_measured_while_both_train():
    off = [sample(n, 10.0 + n, engine=2.0 * n, trainer=0.5 * n) for n in range(1, 8)]
    # Begins later and ends later; one step was not seen by itself, and one process began in between.
    on = [sample(n, 12.5 + 2 * n, engine=2.5 * n) for n in (1, 3, 4, 5)]
    on[1:] = [UsageSample(one.steps, one.tokens, one.at_s, {**one.cpu_s, "env": 0.25}) for one in on[1:]]
    # From 14.5, when `on` first was seen at a step's end, until 16, the last of `off` but one.
    with pytest.raises(MeasurementWrong, match=r"on: fewer than two of 4 samples .* give more --steps"):
        between({"off": off, "on": on})
    off += [sample(n, 10.0 + n, engine=2.0 * n, trainer=0.5 * n) for n in range(8, 14)]
    found = between({"off": off, "on": on})
    # on: from its step 1 at 14.5 to its step 4 at 20.5. off: from 15 to 20.
    assert (found["off"].steps, found["off"].tokens, found["off"].seconds) == (5, 500.0, 5.0)
    assert (found["on"].steps, found["on"].tokens, found["on"].seconds) == (3, 300.0, 6.0)
    assert found["off"].tokens_per_s == 100.0 and found["on"].tokens_per_s == 50.0
    assert found["off"].cpu_us_by_kind == {"engine": 20_000.0, "trainer": 5_000.0}
    assert found["off"].cpu_us_per_token == 25_000.0
    assert found["on"].cpu_s == {"engine": 7.5, "env": 0.25}


@pytest.mark.parametrize(
    "samples",
    [
        [],
        [sample(1, 1.0)],
        [sample(1, 1.0), sample(2, 2.0)],
        [sample(1, 20.0), sample(2, 21.0), sample(3, 22.0)],
    ],
)
def test_runs_that_never_trained_at_the_same_time_measure_nothing(samples: list[UsageSample]):
    other = [sample(n, float(n)) for n in range(1, 10)]
    for runs in ({"off": samples, "on": other}, {"off": other, "on": samples}):
        with pytest.raises(MeasurementWrong, match="while the other run trained, too"):
            between(runs)


@pytest.mark.parametrize(
    ("command", "kind"),
    [
        ("/x/python -m services.rollout.engines.process 17", "engine"),
        ("/x/python -m services.rollout --run r.json --name rollout-0", "rollout"),
        ("/x/python -m services.trainer.reference --run r.json", "reference"),
        ("/x/python -m services.trainer --run r.json", "trainer"),
        ("python -m earl.env.host --run r.json", "env"),
        ("/x/linux-x86_64/valkey-server", "valkey"),
        ("python -m earl.cli.main train r.toml", "launcher"),
        ("python -m benchmarks.collector", "collector"),
        ("sh -c x", "above"),
        ("python -m", "above"),
        ("", "above"),
    ],
)
def test_what_a_process_is_one_of(command: str, kind: str):
    assert kind_of(command.split(), "above") == kind


def test_a_title_that_a_program_gave_itself_names_it():
    assert kind_of(["/x/valkey-server unixsocket:/y/services.trainer"], "other") == "valkey"


def test_processor_time_is_of_whole_steps_and_of_all_processes_even_those_that_ended(tmp_path: Path):
    metrics = LineFile(tmp_path / "metrics.jsonl")
    with subprocess.Popen(
        [sys.executable, "-c", ABOVE], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        usage = Usage(tmp_path, [process.pid])
        assert not usage.sample()
        metrics.write({"phase": "warmup", "tokens": 1e6}, {"phase": "train", "tokens": 100.0})
        assert usage.sample() and not usage.sample()
        process.stdin.write(b"\n")
        process.stdin.flush()
        assert process.stdout.readline() == b"done\n"
        metrics.write({"phase": "train", "tokens": 20.0}, {"phase": "train", "tokens": 3.0})
        assert usage.sample()
        process.stdin.write(b"\n")
        process.stdin.flush()
        assert process.stdout.readline() == b"over\n"
        metrics.write({"phase": "train", "tokens": 1.0})
        assert usage.sample()
        process.communicate(b"\n")
    assert [(one.steps, one.tokens) for one in usage.samples] == [(1, 100.0), (3, 123.0), (4, 124.0)]
    before, after, ended = (one.cpu_s["other"] for one in usage.samples)
    assert after - before >= 0.2 and ended >= after


def run(side: str, rate: float, **cpu_us: float) -> dict[str, Any]:
    whole = sum(cpu_us.values())
    return {"side": side, "tokens_per_s": rate, "cpu_us_per_token": whole, "cpu_us_by_kind": cpu_us}


def test_the_cost_is_the_median_of_what_the_runs_of_a_pair_differ_by():
    # The machine gets slower from pair to pair; `on` is slower by 1, 5 and -10 % each time.
    off = [run("off", rate, engine=rate) for rate in (300.0, 200.0, 100.0)]
    on = [run("on", *one) for one in ((297.0,), (190.0,), (110.0,))]
    for one, engine in zip(on, (306.0, 220.0, 101.0), strict=True):
        one |= run("on", one["tokens_per_s"], engine=engine - 1.0, collector=1.0)
    found = summary([one for both in zip(off, on, strict=True) for one in both])
    assert found["pairs"] == [pytest.approx(0.01), pytest.approx(0.05), pytest.approx(-0.1)]
    assert found["cost"] == pytest.approx(0.01)
    assert found["cpu_pairs"] == [pytest.approx(0.02), pytest.approx(0.1), pytest.approx(0.01)]
    assert found["cpu_cost"] == pytest.approx(0.02)
    assert found["off_tokens_per_s"] == 200.0 and found["on_cpu_us_per_token"] == 220.0
    assert found["cpu_us_by_kind"] == {
        "collector": {"off": 0.0, "on": 1.0},
        "engine": {"off": 200.0, "on": 219.0},
    }
    assert summary([]) == {}


def test_each_part_can_be_measured_by_itself():
    assert settings((), "http://x") == [("obs.metrics", ""), ("obs.traces", "")]
    assert settings(["metrics"], "http://x") == [("obs.traces", "")]
    assert settings(["traces"], "http://x") == [("obs.metrics", ""), ("obs.traces", "http://x")]
    assert [parts_of(text) for text in ("none", "traces")] == [[], ["traces"]]
    assert parts_of("metrics,traces") == ["metrics", "traces"]
    with pytest.raises(typer.BadParameter, match="--parts 'logs' is no list of metrics, traces"):
        parts_of("logs")


def test_what_goes_on_beside_a_measurement_says_that_it_failed():
    called = threading.Event()

    def work() -> None:
        called.set()
        raise ValueError("of the thread")

    with pytest.raises(ValueError, match="of the thread"), every(0.001, work):
        assert called.wait(30.0)


def test_the_collector_takes_spans():
    with collector() as (address, received), tracing.exporting(address, "scheduler", "run"):
        tracing.record("ticket", tracing.TracedTickets("run", 1, 1.0).parent(1), 1, 2, root=True)
    assert sum(received) > 100


async def test_the_collector_is_a_process_that_says_what_it_took(tmp_path: Path):
    role, told = await RoleProcess.start("benchmarks.collector", directory=str(tmp_path), scrape=True)
    try:
        with tracing.exporting(told["address"], "scheduler", "run"):
            tracing.record("ticket", tracing.TracedTickets("run", 1, 1.0).parent(1), 1, 2, root=True)
        taken = await role.ask()
    finally:
        await role.stop()
    assert taken["scrapes"] == 0 and taken["trace_bytes"] > 100
