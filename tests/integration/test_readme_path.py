"""README.md's way from a clone to a trained environment: few lines, and typed as they stand there.

The lines are read from the section "Your own environment": what its blocks without a language hold is typed,
and its Python goes into the file that the sentence before it names. What takes a network is replaced.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.documented import PROGRAMS
from tests.support.newcomer import newcomer
from tests.support.paths import ROOT
from tests.unit.docs.test_docs_commands import strange

SECTION = "Your own environment"
LINES = 30
# What is typed in place of a line: the clone is this commit's, and has a virtual environment already.
REPLACED = {
    "git clone URL earl": "ln -s clone earl",
    "make setup": "test -x .venv/bin/python",
}
# A busy machine takes several times as long as an idle one.
TRAIN_S = 900.0


@dataclass(frozen=True)
class Block:
    """Lines that a reader types. file: where they go; "" for commands."""

    file: str
    lines: tuple[str, ...]

    @property
    def text(self) -> str:
        return "\n".join(self.lines) + "\n"


def blocks() -> list[Block]:
    """The section's blocks in their order."""
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    section = page.partition(f"\n## {SECTION}\n")[2].partition("\n## ")[0]
    return list(blocks_of(section))


def blocks_of(section: str) -> Iterator[Block]:
    *parts, _ = re.split(r"^```$\n?", re.sub(r"^```python$", "```\n#python", section, flags=re.M), flags=re.M)
    for sentences, block in zip(parts[::2], parts[1::2], strict=True):
        lines = block.splitlines()
        if lines[0] != "#python":
            yield Block("", tuple(lines))
            continue
        files = re.findall(r"`([\w/]+\.py)`", sentences)
        assert files, f"no file is named before {lines[1:3]}"
        yield Block(files[-1], tuple(lines[1:]))


def records(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def test_the_way_takes_few_lines_and_each_is_one_that_there_is() -> None:
    typed = blocks()
    commands = [line for block in typed if not block.file for line in block.lines]
    assert 0 < sum(len(block.lines) for block in typed) <= LINES
    assert commands[0].startswith("git clone ") and REPLACED.keys() <= set(commands)
    assert all(line.split()[0] in PROGRAMS for line in commands)
    assert [word for line in commands if line.startswith("earl ") for word in strange(line)] == []
    [code] = [block for block in typed if block.file]
    assert any(isinstance(node, ast.ClassDef) for node in ast.parse(code.text).body)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_who_types_the_lines_has_a_trained_environment(tmp_path: Path) -> None:
    with newcomer(tmp_path, longest_s=TRAIN_S) as me:
        me.here = tmp_path
        for block in blocks():
            if block.file:
                (me.here / block.file).write_text(block.text, encoding="utf-8")
                continue
            for line in block.lines:
                said = me.says(REPLACED.get(line, line))
                print(f"$ {line}\n{said}")  # shown if the test fails
        first, last = records(me.here / "runs/first/evaluations.jsonl")
        assert (first["name"], last["name"]) == ("start", "final")
        assert last["gain_low"] > 0
        again = json.loads((me.here / "runs/first-eval/result.json").read_text(encoding="utf-8"))
        assert again["reward_low"] > first["mean_reward_high"]
        assert (me.here / "middle-model" / "model.safetensors").is_file()
