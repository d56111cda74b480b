"""Words that people would not expect do not come back into what they are shown."""

from __future__ import annotations

import ast
import io
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from earl.cli.report.web_files import web_files
from earl.cli.show.status import rendered
from tests.support.paths import ROOT
from tests.support.snapshots import ROLLOUT, SNAPSHOT, STATUS

# "running" says more than "goes on", "parallelism" than "cut", "last seen" than "silent". An answer may be
# cut short, and an installation be cut down.
FORMER = re.compile(r"\b(?:goes on|silent|silence|cuts?(?! (?:short|down|off)))\b", re.IGNORECASE)
SHOWN = [*(ROOT / "earl" / "cli").rglob("*.py"), *(ROOT / "earl" / "stack").rglob("*.py")]
SHOWN += [
    ROOT / "services" / name
    for name in (
        "scheduler/profiler/command.py", "scheduler/replay/command.py", "trainer/checkpoint/export.py",
        "trainer/checkpoint/evaluate.py", "rollout/chat.py",
    )
]  # fmt: skip


def texts(file: Path) -> Iterator[str]:
    """Yields the texts in a module's code; of docstrings those of commands, which are their help."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    unshown = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) and node.body:
            first = node.body[0]
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                is_help = isinstance(node, ast.FunctionDef) and node.decorator_list
                unshown |= set() if is_help else {id(first.value)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in unshown:
            yield node.value


@pytest.mark.parametrize("text", ["the run goes on", "Silent for 3 s", "its cut is dp2"])
def test_a_former_word_is_found(text: str):
    assert FORMER.search(text)
    assert not FORMER.search("silent_s; answers cut short")


def test_no_text_of_a_command_has_a_former_word():
    assert len(SHOWN) > 100 and all(file.is_file() for file in SHOWN)
    faults = [
        (file.name, text) for file in SHOWN for text in texts(file) if " " in text and FORMER.search(text)
    ]
    assert faults == []


def test_no_text_of_the_page_has_a_former_word():
    for name, content in web_files().items():
        if name != "uplot.js" and name.endswith(".js"):
            code = re.sub(r"(?m)^\s*(?://|\*|/\*).*$", "", content.decode())
            shown = [text for text in re.findall(r"\"[^\"\n]*\"|`[^`]*`", code) if " " in text]
            assert [text for text in shown if FORMER.search(re.sub(r"\$\{[^}]*\}", "", text))] == [], name


@pytest.mark.parametrize(
    "page", ["README.md", *(f"docs/{file.name}" for file in (ROOT / "docs").glob("*.md"))]
)
def test_no_page_of_the_documentation_has_a_former_word(page: str):
    text = re.sub(r"```.*?```|`[^`]*`", "", (ROOT / page).read_text(encoding="utf-8"), flags=re.DOTALL)
    assert FORMER.findall(text) == []


def test_a_late_worker_is_told_by_when_it_was_last_seen():
    console = Console(file=io.StringIO(), width=200, height=200, record=True)
    late = replace(ROLLOUT, silent_s=42.0)
    console.print(rendered(replace(SNAPSHOT, status=replace(STATUS, workers=(late,)))))
    text = console.export_text()
    assert "last seen" in text and "42" in text and not FORMER.search(text)
