"""earl bench observability: its figures from what runs wrote, and the collector that takes traces."""

import subprocess
import sys
import threading

import pytest

from benchmarks.every import every
from benchmarks.observability import collector, summary, tokens_per_s
from benchmarks.usage import Usage
from earl.errors import MeasurementWrong
from earl.obs import tracing
from earl.obs.metrics import LineFile


def test_tokens_a_second_are_those_between_the_first_step_and_the_last(tmp_path):
    LineFile(tmp_path / "metrics.jsonl").write(
        {"phase": "warmup", "time_s": 1.0, "tokens": 1e6},
        {"phase": "train", "time_s": 10.0, "tokens": 1e6},
        {"phase": "train", "time_s": 11.0, "tokens": 100.0},
        {"phase": "train", "time_s": 14.0, "tokens": 300.0},
    )
    assert tokens_per_s(tmp_path) == 100.0


def test_the_cost_is_of_the_medians():
    runs = [
        {"side": side, "tokens_per_s": value, "cpu_us_per_token": 1e4 / value}
        for side, values in {"off": (100.0, 200.0, 300.0), "on": (99.0, 190.0, 330.0)}.items()
        for value in values
    ]
    found = summary(runs)
    assert found["cost"] == pytest.approx(0.05)
    assert found["pairs"] == [pytest.approx(0.01), pytest.approx(0.05), pytest.approx(-0.1)]
    assert found["cpu_cost"] == pytest.approx(200 / 190 - 1)
    assert found["cpu_pairs"][2] == pytest.approx(300 / 330 - 1)
    assert summary(runs[:1]) == {}


def test_processor_time_is_of_the_steps_between_two_looks_and_of_children_too(tmp_path):
    metrics, usage = LineFile(tmp_path / "metrics.jsonl"), Usage(tmp_path)
    usage.look()
    assert usage.looks == []
    busy = "import time\ninput()\nwhile time.process_time() < 0.3: pass\nprint('done', flush=True)\ninput()"
    with subprocess.Popen(
        [sys.executable, "-c", busy], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        metrics.write({"phase": "warmup"}, {"phase": "train"})
        usage.look()
        assert child.stdin is not None and child.stdout is not None
        child.stdin.write(b"\n")
        child.stdin.flush()
        assert child.stdout.readline() == b"done\n"
        metrics.write({"phase": "train"}, {"phase": "train"})
        usage.look()
        child.communicate(b"\n")
    [(first, before), (last, after)] = usage.looks
    assert (first, last) == (1, 3) and after - before >= 0.2
    assert usage.per_token([10, 20, 30, 40]) == pytest.approx((after - before) / 50 * 1e6)


def test_what_goes_on_beside_a_measurement_says_that_it_failed():
    called = threading.Event()

    def work() -> None:
        called.set()
        raise ValueError("of the thread")

    with pytest.raises(ValueError, match="of the thread"), every(0.001, work):
        assert called.wait(30.0)


def test_the_collector_takes_spans():
    with collector() as (address, received), tracing.exporting(address, "scheduler", "run"):
        tracing.record("ticket", tracing.Tickets("run", 1, 1.0).parent(1), 1, 2, root=True)
    assert sum(received) > 100


@pytest.mark.parametrize("looks", [[], [(1, 0.1)], [(1, 0.1), (1, 0.2)], [(1, 0.1), (2, 0.3)]])
def test_a_run_that_nobody_saw_between_two_steps_measures_nothing(tmp_path, looks):
    usage = Usage(tmp_path)
    usage.looks = looks
    with pytest.raises(MeasurementWrong, match=r"2 training steps .* give more --steps"):
        usage.per_token([10, 20])
