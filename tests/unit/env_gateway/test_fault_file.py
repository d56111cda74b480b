"""faults.jsonl: faults by environment and the quarantines that began, and no file where there were none."""

from __future__ import annotations

from pathlib import Path

from earl.obs.metrics import read_lines
from services.env_gateway.fault_file import NAME, FaultFile
from services.env_gateway.state.faults import FaultTexts


def lines(directory: Path) -> list[dict[str, object]]:
    """The file's lines without their times, which are positive."""
    records = list(read_lines(directory / NAME))
    assert all(int(record["time_ns"]) > 0 for record in records)
    return [{name: value for name, value in record.items() if name != "time_ns"} for record in records]


def test_a_gateway_without_faults_writes_no_file(tmp_path: Path):
    file = FaultFile(tmp_path)
    file.update(FaultTexts())
    file.close()
    assert not list(tmp_path.iterdir())


def test_a_line_has_the_faults_since_the_line_before(tmp_path: Path):
    faults, file = FaultTexts(), FaultFile(tmp_path)
    faults.note(("a", "game"), "reward inf")
    faults.note(("b", "game"), "return 3 is outside")
    file.update(faults)
    file.update(faults)
    file.quarantined("game", "a", "return 7 is outside")
    faults.note(("a", "game"), "return 7 is outside")
    faults.note(("a", "chess"), "boom")
    file.update(faults)
    file.close()
    common = {"commonest": "return 7 is outside", "commonest_count": 2}
    assert lines(tmp_path) == [
        {
            "environment": "game",
            "faults": 2,
            "last": "return 3 is outside",
            "commonest": "reward inf",
            "commonest_count": 1,
        },
        {"environment": "game", "host": "a", "reason": "return 7 is outside"},
        {"environment": "game", "faults": 1, "last": "return 7 is outside", **common},
        {"environment": "chess", "faults": 1, "last": "boom", "commonest": "boom", "commonest_count": 1},
    ]


def test_a_full_file_gets_no_more_lines(tmp_path: Path):
    file = FaultFile(tmp_path, limit_bytes=1)
    for host in ("a", "b", "c"):
        file.quarantined("game", host, "boom")
    file.close()
    # What a resumed run's gateway finds there counts too.
    again = FaultFile(tmp_path, limit_bytes=1)
    again.quarantined("game", "d", "boom")
    again.close()
    assert [line["host"] for line in lines(tmp_path)] == ["a"]
