"""`earl chat` tells what it waits for before the first message."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from earl.cli.lib.policy import RunVersion
from earl.config.dtype import DType
from earl.config.sampling_filters import SamplingFilters
from earl.errors import CheckpointError, DeadlineExceeded, EngineLost
from earl.models.export_record import ExportRecord
from services.rollout import chat
from services.rollout.engines.contract.engine import EngineSpec
from tests.support.notices import heard_notices
from tests.support.runs import tictactoe


def test_it_tells_how_far_the_export_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "run.json").write_text(tictactoe(tmp_path).model_dump_json())
    heard = heard_notices(monkeypatch, chat)
    lines: list[str] = []

    def export(*_: object, **__: object) -> SimpleNamespace:
        lines.append(heard.next_line())
        return SimpleNamespace(returncode=CheckpointError.exit_code, stderr="earl: error: damaged; export it")

    monkeypatch.setattr(chat, "export_progress", lambda to, run: lambda: (120, 538))
    monkeypatch.setattr(chat.subprocess, "run", export)
    with (
        pytest.raises(CheckpointError, match="damaged"),
        chat.exported_model(RunVersion(tmp_path, "latest")),
    ):
        pass
    assert lines == ["writing the checkpoint as a model, MB: 120 of 538 in 0 s, about 0 s left"]


def test_filters_are_those_of_the_evaluations_but_for_given_ones() -> None:
    record = ExportRecord(
        run="r", version=1, base="", environment="e", task={}, model={}, eos_token_ids=(), stop_token_ids=(),
        stop_tokens=(), temperature=1.0, training_temperature=1.0, max_new_tokens=4, evaluation={},
        filters={"top_k": 5, "min_p": 0.1},
    )  # fmt: skip
    none: dict[str, float | None] = {
        "top_k": None, "top_p": None, "min_p": None, "repetition_penalty": None,
    }  # fmt: skip
    assert chat.filters_of(None, none) == SamplingFilters()
    assert chat.filters_of(record, none) == SamplingFilters(top_k=5, min_p=0.1)
    given = none | {"top_k": 0, "top_p": 0.5}
    assert chat.filters_of(record, given) == SamplingFilters(top_p=0.5, min_p=0.1)


async def test_it_tells_that_the_engine_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    heard = heard_notices(monkeypatch, chat)
    lines: list[str] = []

    class FailingEngine:
        def __init__(self, spec: object) -> None:
            pass

        async def start(self) -> None:
            lines.append(heard.next_line())
            raise EngineLost("it has ended", "see its log")

    monkeypatch.setattr(chat, "EngineProcess", FailingEngine)
    monkeypatch.setattr(chat, "load_spec", lambda _: SimpleNamespace(max_positions=128))
    with pytest.raises(EngineLost):
        async with chat._engine_of(tmp_path, None, frozenset()):
            pass
    assert lines == ["starting the engine: 0 of at most 300 s"]


def test_an_export_that_does_not_end_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "run.json").write_text(tictactoe(tmp_path).model_dump_json())
    monkeypatch.setattr(chat, "EXPORT_S", 0.0)
    with (
        pytest.raises(DeadlineExceeded, match="the export took longer than 0 s"),
        chat.exported_model(RunVersion(tmp_path, "latest")),
    ):
        pass


@pytest.mark.parametrize(
    ("sampled", "flags", "computed"),
    [
        ("float32", {"avx512_bf16"}, "float32"),
        ("bfloat16", {"avx512_bf16"}, "bfloat16"),
        ("bfloat16", {"avx2"}, "float32"),
        (None, {"avx512_bf16"}, "bfloat16"),
        (None, {"avx2"}, "float32"),
    ],
)
async def test_its_engine_computes_where_and_in_what_the_run_samples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sampled: DType | None, flags: set[str], computed: DType
) -> None:
    specs: list[EngineSpec] = []

    class FailingEngine:
        def __init__(self, spec: EngineSpec) -> None:
            specs.append(spec)

        async def start(self) -> None:
            raise EngineLost("it has ended", "see its log")

    monkeypatch.setattr(chat, "EngineProcess", FailingEngine)
    monkeypatch.setattr(chat, "load_spec", lambda _: SimpleNamespace(max_positions=128))
    monkeypatch.setattr(chat, "flags", lambda: flags)
    monkeypatch.setattr("earl.stack.auto_dtype.GPU_FILES", ())
    config = None
    if sampled is not None:
        config = tictactoe(tmp_path, rollout={"device": "cpu", "dtype": sampled})
    with pytest.raises(EngineLost):
        async with chat._engine_of(tmp_path, config, frozenset()):
            pass
    assert [(spec.device, spec.dtype) for spec in specs] == [("auto" if config is None else "cpu", computed)]
