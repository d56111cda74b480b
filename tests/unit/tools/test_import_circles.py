"""Circles of imports are found, wherever an import stands."""

from __future__ import annotations

import ast

import pytest

from tools.import_circles import circles, edges

BACK = {
    "plain": "from earl.a import thing",
    "of the module": "import earl.a",
    "for types alone": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from earl.a import thing",
    "in a function": "def f():\n    from earl import a",
}


def found(**sources: str) -> list[list[str]]:
    files = {f"{name.replace('__', '/')}.py": ast.parse(text) for name, text in sources.items()}
    return circles(edges(files))


@pytest.mark.parametrize("way", BACK)
def test_two_files_that_import_each_other_are_a_circle(way: str) -> None:
    assert found(earl__a="from earl.b import other", earl__b=BACK[way]) == [["earl/a.py", "earl/b.py"]]


def test_a_circle_may_lead_through_others() -> None:
    assert found(
        earl__a="import earl.b", earl__b="import earl.c", earl__c="import earl.a", earl__d="import earl.a"
    ) == [["earl/a.py", "earl/b.py", "earl/c.py"]]


def test_what_is_imported_by_many_is_none() -> None:
    assert found(earl__a="import os", earl__b="import earl.a", earl__c="from earl import a, b") == []
