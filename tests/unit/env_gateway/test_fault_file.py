"""faults.jsonl: faults and quarantines by environment, bounded, and no file where there were none."""

from __future__ import annotations

from pathlib import Path

from earl.obs.metrics import read_lines
from services.env_gateway.fault_file import (
    LIMIT_BYTES,
    MOST_LINES,
    NAME,
    PERIOD_S,
    RESERVED_BYTES,
    FaultFile,
)
from services.env_gateway.state.faults import MOST_CHARACTERS, FaultTexts


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
        {"environment": "game", "host": "a", "quarantines": 1, "reason": "return 7 is outside"},
        {"environment": "game", "faults": 1, "last": "return 7 is outside", **common},
        {"environment": "chess", "faults": 1, "last": "boom", "commonest": "boom", "commonest_count": 1},
    ]


def test_nothing_is_written_between_updates(tmp_path: Path):
    file = FaultFile(tmp_path)
    for reason in ("boom", "late"):
        file.quarantined("game", "a", reason)
    assert not list(tmp_path.iterdir())
    file.update(FaultTexts())
    file.update(FaultTexts())
    assert lines(tmp_path) == [{"environment": "game", "host": "a", "quarantines": 2, "reason": "late"}]
    file.close()
    # A host that fails while the gateway ends.
    file.quarantined("game", "b", "late")
    file.update(FaultTexts())
    assert len(lines(tmp_path)) == 1


def test_an_update_writes_a_bounded_number_and_the_last_one_the_rest(tmp_path: Path):
    faults, file = FaultTexts(), FaultFile(tmp_path)
    for number in range(3 * MOST_LINES):
        faults.note(("a", f"game{number}"), "boom")
        file.quarantined(f"game{number}", "a", "boom")
    for updates in (1, 2):
        faults.note(("a", "game0"), "boom")
        file.update(faults)
        assert len(lines(tmp_path)) == updates * 2 * MOST_LINES
    file.update(faults, most=None)
    told = lines(tmp_path)
    # All were told, those that waited longest before what came later of others.
    names = [str(line["environment"]) for line in told if "faults" in line]
    assert names == [f"game{number}" for number in range(3 * MOST_LINES)] + ["game0"]
    assert sum(int(str(line.get("faults", 0))) for line in told) == 3 * MOST_LINES + 2
    assert sum("host" in line for line in told) == 3 * MOST_LINES


def test_a_full_file_ends_with_a_line_that_says_so(tmp_path: Path):
    limit_bytes = RESERVED_BYTES + 500
    faults, file = FaultTexts(), FaultFile(tmp_path, limit_bytes)
    for _ in range(50):
        faults.note(("a", "game"), "boom" * 50)
        file.update(faults)
    file.close()
    *told, last = lines(tmp_path)
    assert last == {"full": True} and all(line["faults"] == 1 for line in told) and 0 < len(told) < 3
    # What a resumed run's gateway finds there counts too.
    for _ in range(400):
        again = FaultFile(tmp_path, limit_bytes)
        again.quarantined("game", "d", "boom")
        again.update(faults)
        again.close()
    assert all(line == {"full": True} for line in lines(tmp_path)[len(told) :])
    assert limit_bytes <= (tmp_path / NAME).stat().st_size < limit_bytes + 100


def test_steady_faults_of_many_environments_fill_the_file_in_days(tmp_path: Path):
    faults, file = FaultTexts(), FaultFile(tmp_path)
    seconds = 0.0
    while seconds < 7 * 86_400:
        seconds += file.period_s
        for number in range(MOST_LINES):
            environment = f"environment-{number}" * 10
            faults.note(("a", environment), "x" * MOST_CHARACTERS)
            file.quarantined(environment, "a", "x" * MOST_CHARACTERS)
        file.update(faults)
    assert "full" not in lines(tmp_path)[-1] and file.period_s > 1000 * PERIOD_S
    assert (tmp_path / NAME).stat().st_size < LIMIT_BYTES


def test_faults_wait_while_the_file_cannot_be_written(tmp_path: Path):
    directory = tmp_path / "run"
    directory.write_text("in the way")
    faults, file = FaultTexts(), FaultFile(directory)
    faults.note(("a", "game"), "boom")
    file.quarantined("game", "a", "boom")
    file.update(faults)
    directory.unlink()
    file.update(faults)
    file.close()
    quarantine, told = lines(directory)
    assert quarantine["host"] == "a" and told["faults"] == 1
