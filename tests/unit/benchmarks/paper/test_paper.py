"""`earl bench paper`: finished figures are kept, and one that cannot be made does not keep others from it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from benchmarks.paper import command, table1
from benchmarks.paper.figure import PaperFigure
from benchmarks.paper.settings import PaperSettings
from benchmarks.record import execution, results
from benchmarks.record.checkout import Checkout
from earl.errors import ConfigError

CLEAN = Checkout("0123456789ab")
MACHINE = {"cores": 2}
Measures = dict[str, Callable[[], dict[str, Any]]]


class Bench:
    """The command with figures of its own, in a checkout that is at a commit."""

    def __init__(self, results_dir: Path, monkeypatch: pytest.MonkeyPatch, measures: Measures) -> None:
        self.results = results_dir
        self.made: list[str] = []
        figures = {name: self._figure(name, measure) for name, measure in measures.items()}
        monkeypatch.setattr(command, "FIGURES", figures)
        monkeypatch.setattr(command, "described", lambda: MACHINE)
        monkeypatch.setattr(results, "described", lambda: MACHINE)
        monkeypatch.setattr(execution, "load", dict)
        self._monkeypatch = monkeypatch
        self.at(CLEAN)

    def at(self, state: Checkout) -> None:
        for module in (command, execution, results):
            self._monkeypatch.setattr(module, "checkout", lambda: state)

    def _figure(
        self, name: str, measure: Callable[[], dict[str, Any]]
    ) -> Callable[[PaperSettings], PaperFigure]:
        def recorded() -> dict[str, Any]:
            self.made.append(name)
            return measure()

        return lambda settings: PaperFigure(name, {"hosts": settings.hosts}, recorded, {"speed": 2.0})

    def run(self, *arguments: str) -> Result:
        return CliRunner().invoke(command.app, ["--json", "--results", str(self.results), *arguments])


def answer(result: Result) -> dict[str, Any]:
    return json.loads(result.stdout.splitlines()[-1])


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(tmp_path, monkeypatch, {"a": lambda: {"speed": 3.0}, "b": lambda: {"speed": 1.0}})


def test_figures_are_saved_with_the_goals_that_they_miss(bench: Bench) -> None:
    result = answer(bench.run())
    assert result["missed"] == {"b": ["speed"]}
    assert result["figures"]["a"]["speed"] == 3.0
    saved = json.loads((bench.results / result["figures"]["b"]["file"]).read_text())
    assert (saved["benchmark"], saved["missed"], saved["goals"]) == ("paper-b", ["speed"], {"speed": 2.0})


def test_a_finished_figure_is_not_made_again(bench: Bench) -> None:
    bench.run("--figure", "a")
    result = answer(bench.run())
    assert bench.made == ["a", "b"]
    assert result["figures"]["a"]["speed"] == 3.0
    bench.run("--figure", "a", "--again")
    assert bench.made == ["a", "b", "a"]


def test_other_settings_another_commit_and_another_machine_are_another_figure(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.run("--figure", "a")
    bench.run("--figure", "a", "--hosts", "4")
    bench.at(Checkout("ba9876543210"))
    bench.run("--figure", "a")
    monkeypatch.setattr(command, "described", lambda: {"cores": 4})
    bench.run("--figure", "a")
    assert bench.made == ["a"] * 4


def test_nothing_of_an_uncommitted_tree_is_kept(bench: Bench) -> None:
    bench.at(Checkout("0123456789ab", ("earl/code.py",)))
    bench.run("--figure", "a")
    bench.run("--figure", "a")
    assert bench.made == ["a", "a"]


def test_a_figure_that_cannot_be_made_leaves_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> dict[str, Any]:
        raise ConfigError("no namespaces", "run it as root")

    bench = Bench(tmp_path, monkeypatch, {"a": refuse, "b": lambda: {"speed": 3.0}})
    result = bench.run()
    assert isinstance(result.exception, ConfigError)
    assert answer(result)["failed"] == {"a": "no namespaces; run it as root"}
    assert list(answer(result)["figures"]) == ["b"]
    assert not list(tmp_path.glob("paper-a-*"))


def test_a_figure_that_does_not_exist_is_refused(bench: Bench) -> None:
    result = bench.run("--figure", "fig9")
    assert result.exit_code == 2 and not bench.made


def test_a_batch_is_as_large_as_its_tokens() -> None:
    """Twice the workers or twice the tokens: twice the bytes."""
    batches = {
        (context, workers): table1.batch(context, workers) for context in (4096, 8192) for workers in (1, 2)
    }
    least = batches[4096, 1]["arena_bytes"]
    assert batches[4096, 2]["arena_bytes"] == batches[8192, 1]["arena_bytes"] == 2 * least
    assert batches[8192, 2]["bytes"] == 8192 * 2 * table1.SEQUENCES * table1.token_bytes()
