"""tests/unit mirrors the product's folders, and the README of tests/support names every module there."""

from __future__ import annotations

import pytest

from tests.support.paths import ROOT

UNIT, SUPPORT = ROOT / "tests" / "unit", ROOT / "tests" / "support"
# Where the source of a folder of tests/unit may lie: in `earl` and `services`, or beside them.
SOURCES = (ROOT / "earl", ROOT / "services", ROOT, ROOT / "tests")
FOLDERS = sorted(
    {str(path.parent.relative_to(UNIT)) for path in UNIT.rglob("test_*.py") if path.parent != UNIT}
)


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_folder_of_unit_tests_has_its_source_at_the_same_place(folder: str):
    assert any((source / folder).is_dir() for source in SOURCES), (
        f"tests/unit/{folder} mirrors no folder: move its tests to where their subject is"
    )


def test_the_readme_of_support_names_its_modules_and_no_others():
    text = (SUPPORT / "README.md").read_text()
    modules = {path.name for path in SUPPORT.iterdir() if path.suffix in (".py", ".ts")} - {"__init__.py"}
    words = text.replace("`", " ").split()
    named = {word for word in words if word.endswith((".py", ".ts")) and "/" not in word}
    assert {name for name in modules if f"`{name}`" not in text} == set()
    assert named - modules == set()
