"""Faults and quarantines in a report: added up by environment, bounded, and nothing where there were none."""

from __future__ import annotations

import json
from pathlib import Path

from earl.cli.report.page import write_report
from earl.cli.report.sections.faults import CHARACTERS, ENVIRONMENTS, HOSTS, FaultTable
from earl.obs.metrics import read_lines
from services.env_gateway.fault_file import RESERVED_BYTES, FaultFile
from services.env_gateway.state.faults import FaultTexts
from tests.support.recorded import recorded
from tests.support.report_file import report_data

EVIL = "</script><script>alert(1)</script><!--<img src=x onerror=alert(2)>\x1b[31m"


def write_faults(
    directory: Path, *texts: str, environment: str = "game", host: str = "bad", quarantines: int = 1
) -> None:
    """Writes the file of a gateway that counts these faults and quarantines."""
    faults, file = FaultTexts(), FaultFile(directory)
    for text in texts:
        faults.note((host, environment), text)
    for _ in range(quarantines):
        file.quarantined(environment, host, texts[-1])
    file.update(faults)
    file.close()


def section(directory: Path) -> dict:
    return report_data(write_report(directory))["sections"]["faults"]


def test_a_run_without_faults_has_none(tmp_path: Path):
    recorded(tmp_path, steps=1)
    assert section(tmp_path) == {"rows": [], "until_ms": None} and not (tmp_path / "faults.jsonl").exists()


def test_faults_of_all_launches_are_added_up(tmp_path: Path):
    recorded(tmp_path, steps=1)
    write_faults(tmp_path, "return 7 is outside", "reward inf", "return 9 is outside")
    write_faults(tmp_path, "boom", host="other", quarantines=2)
    write_faults(tmp_path, "late", environment="chess")
    chess, game = sorted(section(tmp_path)["rows"], key=lambda row: row["environment"])
    assert (game["faults"], game["last"], game["quarantines"]) == (4, "boom", 3)
    assert (game["commonest"], game["commonest_count"]) == ("return 9 is outside", 2)
    assert game["hosts"] == [{"name": "bad", "quarantines": 1}, {"name": "other", "quarantines": 2}]
    assert game["reason"] == "boom" and game["time_ms"] > 1.7e12
    assert (chess["faults"], chess["quarantines"], chess["hosts"][0]["name"]) == (1, 1, "bad")
    # The one with the most stands first.
    assert [row["environment"] for row in section(tmp_path)["rows"]] == ["game", "chess"]


def test_text_of_environments_is_no_markup(tmp_path: Path):
    recorded(tmp_path, steps=1)
    write_faults(tmp_path, EVIL)
    [row] = section(tmp_path)["rows"]
    assert row["last"].startswith("</script><script>alert(1)") and "\x1b" not in row["last"]
    assert "<script>alert" not in (tmp_path / "report.html").read_text()


def test_whatever_a_file_holds_is_bounded():
    table = FaultTable()
    long = "x" * 10_000
    lines = [{"environment": f"game{at}", "faults": 1, "last": long, "commonest": long} for at in range(2000)]
    lines += [{"environment": "game0", "host": f"host{at}{long}", "reason": long} for at in range(100)]
    lines += [{"environment": 7}, {}, {"environment": "game1", "faults": "many", "last": None, "time_ns": []}]
    table.add(lines)
    rows = table.section()["rows"]
    assert len(rows) == ENVIRONMENTS and rows[0]["environment"] == "game0"
    assert len(rows[0]["hosts"]) == HOSTS and rows[0]["quarantines"] == 100
    assert len(json.dumps(rows[0])) < (HOSTS + 5) * (CHARACTERS + 50)
    table.clear()
    assert table.section() == {"rows": [], "until_ms": None}


def test_a_line_of_the_file_is_what_the_table_takes(tmp_path: Path):
    write_faults(tmp_path, "boom")
    quarantine, faults = read_lines(tmp_path / "faults.jsonl")
    assert set(quarantine) == {"time_ns", "environment", "host", "quarantines", "reason"}
    assert set(faults) == {"time_ns", "environment", "faults", "last", "commonest", "commonest_count"}


def test_a_full_file_says_until_when_it_tells(tmp_path: Path):
    recorded(tmp_path, steps=1)
    write_faults(tmp_path, "boom")
    assert section(tmp_path)["until_ms"] is None
    faults, file = FaultTexts(), FaultFile(tmp_path, limit_bytes=RESERVED_BYTES)
    for environment in ("game", "chess"):
        faults.note(("bad", environment), "boom")
    file.update(faults)
    file.close()
    told = section(tmp_path)
    [row] = told["rows"]
    assert row["faults"] == 1 and told["until_ms"] == row["time_ms"] > 1.7e12
