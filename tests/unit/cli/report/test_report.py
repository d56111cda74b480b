"""The report: complete, self-contained, and right about what was recorded."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from earl.cli.report.charts import Band, Mark, Series, line_chart, merged, nice_ticks, smooth, timeline
from earl.cli.report.data import flat, read_run
from earl.cli.report.page import transfers, write_report
from earl.config.load import load_run
from earl.errors import ConfigError
from earl.obs.metrics import LineFile, read_lines
from tests.support.paths import ROOT
from tests.support.recorded import recorded

TICTACTOE = ROOT / "examples" / "tictactoe.toml"


def test_ticks_are_round_and_cover_the_range():
    assert nice_ticks(0, 1) == [0, 0.25, 0.5, 0.75, 1.0]
    assert nice_ticks(0, 200, 5) == [0, 50, 100, 150, 200]
    ticks = nice_ticks(-0.31, 0.93)
    assert ticks[0] <= -0.31 and ticks[-1] >= 0.93
    assert nice_ticks(3, 3) == [3]


def test_a_chart_is_well_formed_and_escapes_names():
    svg = line_chart(
        [Series("a < b", [(0, 0.1), (5, 0.9)]), Series("dot", [(2, 0.5)], dots=True)], x_label="x & y"
    )
    root = ElementTree.fromstring(f"<div>{svg}</div>")
    assert len(root.findall(".//polyline")) == 1
    assert len(root.findall(".//circle")) == 1
    assert "nothing was recorded" in line_chart([Series("empty", [])], x_label="x")
    flat_line = line_chart([Series("flat", [(0, 0.0), (1, 0.0)])], x_label="x")
    ElementTree.fromstring(f"<div>{flat_line}</div>")


def test_a_logarithmic_chart_has_powers_of_two_and_what_lies_behind_it():
    series = [Series("tokens", [(0, 100), (10, 3000)])]
    bands = [Band("a", 0, 4, 1), Band("b < c", 4, 10, 4), Band("a", 0, 10, 1, floor=True)]
    svg = line_chart(series, x_label="x", doubling=True, bands=bands, marks=[Mark("why & how", 4.0)])
    root = ElementTree.fromstring(f"<div>{svg}</div>")
    ticks = [text.text for text in root.findall(".//text[@text-anchor='end']")]
    assert ticks == ["64", "256", "1K", "4K"]
    left, right = root.findall(".//rect[@class='band c1']"), root.findall(".//rect[@class='band c4']")
    edge = float(left[0].get("x", "")) + float(left[0].get("width", ""))
    assert edge == pytest.approx(float(right[0].get("x", "")), abs=0.2)
    [mark] = root.findall(".//line[@class='mark']")
    assert float(mark.get("x1", "")) == pytest.approx(edge, abs=0.2)
    assert root.find(".//g/title").text == "why & how"  # pyright: ignore[reportOptionalMemberAccess]
    assert svg.count("</span>") == 3  # the line and two layouts, each once
    # A doubling is as high wherever it is.
    [line] = root.findall(".//polyline")
    downs = [float(point.split(",")[1]) for point in line.get("points", "").split()]
    grid = [float(one.get("y1", "")) for one in root.findall(".//line[@class='grid']")]
    assert grid[0] > downs[0] > grid[1] and grid[2] > downs[1] > grid[3]
    assert grid[0] - grid[1] == pytest.approx(grid[2] - grid[3], abs=0.2)


def test_spans_that_cannot_be_told_apart_become_one():
    spans = [("step", 0.0, 1.0), ("step", 1.01, 2.0), ("read", 1.0, 1.005), ("step", 5.0, 6.0)]
    drawn = merged(spans, 0.1)
    assert [one[:3] for one in drawn] == [("step", 0.0, 2.0), ("step", 5.0, 6.0), ("read", 1.0, 1.005)]
    assert [one[3] for one in drawn] == pytest.approx([0.995, 1.0, 1.0])
    svg = timeline({"trainer": spans}, [("train", 0.5)], 6.0)
    ElementTree.fromstring(f"<div>{svg}</div>")
    assert "step: 5.00 to 6.00 s<" in svg


def test_a_worker_that_was_seldom_busy_is_drawn_pale():
    """Of a long run many heartbeats fall into one pixel."""
    spans = [("env", float(start), start + 0.1) for start in range(10_000)]
    [(_, _, _, busy)] = merged(spans, 10.0)
    assert busy == pytest.approx(0.1, abs=1e-3)
    svg = timeline({"rollout-0": spans, "trainer": [("train", 0.0, 1e4)]}, [], 1e4)
    [seldom] = ElementTree.fromstring(f"<div>{svg}</div>").findall(".//rect[@opacity]")
    assert seldom.get("opacity") == "0.15"
    assert seldom[0].text == "env: 0.00 to 9999.10 s, busy 10%"


def test_a_running_mean_starts_with_what_there_is():
    assert smooth([(0, 2.0), (1, 4.0), (2, 6.0)], 2) == [(0, 2.0), (1, 3.0), (2, 5.0)]


def test_a_line_that_a_crash_cut_short_is_left_out(tmp_path: Path):
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n{"step": 2}\n{"st')
    assert list(read_lines(tmp_path / "metrics.jsonl")) == [{"step": 1}, {"step": 2}]
    # Who goes on with the file ends that line; what follows counts.
    resumed = LineFile(tmp_path / "metrics.jsonl")
    resumed.write({"step": 3})
    resumed.close()
    assert list(read_lines(tmp_path / "metrics.jsonl")) == [{"step": 1}, {"step": 2}, {"step": 3}]
    assert list(read_lines(tmp_path / "none.jsonl")) == []
    assert flat({"a": {"b": {"c": 1}}, "d": 2}) == {"a.b.c": 1, "d": 2}


def test_a_report_of_a_run_that_recorded_nothing_is_still_a_page(tmp_path: Path):
    config = load_run(TICTACTOE, [("bus.redis_url", "redis://:secret@127.0.0.1:6379")])
    (tmp_path / "run.json").write_text(config.model_dump_json())
    (tmp_path / "run.toml").write_text('[bus]\nredis_url = "redis://:secret@127.0.0.1:6379"\n')
    text = write_report(tmp_path).read_text()
    assert "nothing was recorded" in text
    assert "secret" not in text


def test_what_is_no_run_is_refused(tmp_path: Path):
    with pytest.raises(ConfigError, match="is no run directory"):
        read_run(tmp_path)


def test_a_page_fetches_nothing(tmp_path: Path):
    (tmp_path / "run.json").write_text(load_run(TICTACTOE).model_dump_json())
    (tmp_path / "result.json").write_text(json.dumps({"seconds": 125.0, "issued": 10, "trained": 8}))
    text = write_report(tmp_path).read_text()
    assert "2 min 05 s" in text
    for forbidden in ("http://", "https://", "<script", "<link", "@import", "url("):
        assert forbidden not in text


def test_what_moved_by_which_path_is_shown_with_its_rate_and_retries(tmp_path: Path):
    recorded(tmp_path)
    *_, line = read_lines(tmp_path / "metrics.jsonl")
    shm = {"size_bytes": 1 << 20, "seconds": 0.001, "transfers": 64, "retries": 1, "gb_per_s": 1.048576}
    assert line["transfers"] == {"shm": shm}
    assert transfers(flat(line)) == [["shm", "1.0 MiB", "64", "1.049", "1"]]
    assert "<td>1.049</td>" in write_report(tmp_path).read_text()
