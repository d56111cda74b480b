"""`earl export` and `earl eval` tell how far the export is."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from earl.errors import CheckpointError
from services.trainer.checkpoint import evaluate, export
from tests.support.notices import heard_notices
from tests.support.runs import tictactoe


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((), "writing exported, MB: 120 of 538 in 0 s, about 0 s left"),
        (("--adapter",), "writing exported: 0 s"),
    ],
)
def test_export_tells_how_much_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], expected: str
) -> None:
    heard = heard_notices(monkeypatch, export)
    lines: list[str] = []

    def write(*_: object, **__: object) -> None:
        lines.append(heard.next_line())
        raise CheckpointError("damaged", "export another")

    monkeypatch.setattr(export, "pick_run", lambda *_, **__: tmp_path)
    monkeypatch.setattr(export, "export_progress", lambda to, run, dtype: lambda: (120, 538))
    monkeypatch.setattr(export, "write", write)
    done = CliRunner().invoke(export.app, ["--to", "exported", *arguments])
    assert isinstance(done.exception, CheckpointError) and lines == [expected]


def test_eval_tells_how_much_of_the_model_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "run.json").write_text(tictactoe(tmp_path).model_dump_json())
    heard = heard_notices(monkeypatch, evaluate)
    lines: list[str] = []

    def write(*_: object) -> None:
        lines.append(heard.next_line())
        raise CheckpointError("damaged", "export another")

    monkeypatch.setattr(evaluate, "export_progress", lambda to, run: lambda: (0, 538))
    monkeypatch.setattr(evaluate, "write", write)
    done = CliRunner().invoke(evaluate.app, [str(tmp_path)])
    assert isinstance(done.exception, CheckpointError)
    assert lines == ["writing the checkpoint as a model, MB: 0 of 538 in 0 s"]
