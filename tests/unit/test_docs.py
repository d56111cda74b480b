"""The examples in the documentation say what the code says."""

from __future__ import annotations

import doctest
import re
from pathlib import Path
from typing import Any

import pytest

from earl.env import Action, Environment, ToolEnvironment
from earl.env.serve import as_mapping

DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.mark.parametrize("page", ["data-plane.md"])
def test_examples_come_out_as_written(page: str) -> None:
    found = doctest.testfile(str(DOCS / page), module_relative=False)
    assert found.attempted > 5 and found.failed == 0


@pytest.mark.parametrize("page", ["../README.md", "environments.md"])
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
        assert name.startswith("mine/") and game.reset(7, {})
        result = game.step(Action("1"))
        result = await result if isinstance(game, ToolEnvironment) else result
        low, high = own.reward_range or (0.0, 0.0)
        assert low <= result.reward <= high
