"""Writes docs/run-file.md from the schema and its comments, or without --write checks that it is current.

The comment above a key's field in earl/config/ says what the key is and, in a second paragraph, when to
change it (earl/config/descriptions.py); earl/config/units.py has the unit of each number. A key that lacks
one of the three is an error.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from earl.config import keys
from earl.config.descriptions import KeyComment, comment_of, comments
from earl.config.load import expectation
from earl.config.run import RunConfig
from earl.config.units import unit

PAGE = Path(__file__).resolve().parent.parent / "docs" / "run-file.md"
HEAD = """# Run files

A run file is TOML; any key can also be given on the command line: `earl train run.toml --trainer.lr 1e-4`
(a text needs no quotes there, a list is written as in TOML). `earl train` has `--name`, `--seed` and
`--runs-dir` for the keys without a section. An unknown key is an error that suggests the right one.

Made from `earl/config/` by `tools/check_keys.py --write`.
"""


def default_text(value: Any) -> str:
    """A default as TOML writes it; "(required)" if there is none."""
    if value is PydanticUndefined:
        return "(required)"
    if isinstance(value, float):
        return f"`{value!r}`"
    return f"`{json.dumps(value)}`"


def tables(model: type[BaseModel], section: str = "") -> list[str]:
    """Markdown of a section and, after it, of the sections inside it."""
    prefix = f"{section}." if section else ""
    notes = comments(model)
    lines = [f"## `[{section}]`" if section else "## Top level", ""]
    if model.__doc__ and section:
        lines += [model.__doc__.strip().partition("\n\n")[0], ""]
    lines += ["| key | takes | default | what it is | when to change it |", "|---|---|---|---|---|"]
    inner: list[str] = []
    for name, field in model.model_fields.items():
        key = f"{prefix}{name}"
        if keys.is_section(field):
            inner += tables(keys.section_of(field), key)
            continue
        takes = re.sub(r"(?<=matches )\S+", r"`\g<0>`", expectation(key))
        cells = [f"`{name}`", takes, default_text(field.default), *notes[name]]
        lines.append(
            "| " + " | ".join(cell.replace("|", "\\|").replace("<", "&lt;") for cell in cells) + " |"
        )
    return [*lines, "", *inner]


def lacking(key: str, comment: KeyComment, unit_name: str | None) -> list[str]:
    """Lines that say what a key lacks. unit_name: "" for no unit, None if that is not decided."""
    lacks: list[str] = []
    if len(comment.meaning.split()) < 3:
        lacks.append(f"{key} has no description; write above its field what it is")
    if len(comment.advice.split()) < 3:
        lacks.append(
            f"{key} has no advice; write below its description, after a line with only #, when to change it"
        )
    if any(text and not text.endswith(".") for text in comment):
        lacks.append(f"{key}'s comment does not end with a full stop; write whole sentences")
    if unit_name is None:
        lacks.append(f"{key} is a number without a unit; add the end of its name to earl/config/units.py")
    return lacks


def incomplete() -> list[str]:
    """Lines that say what the keys of a run file lack."""
    return [
        line
        for key, field in keys.leaves().items()
        for line in lacking(key, comment_of(key), unit(key, field))
    ]


def main() -> int:
    if lines := incomplete():
        print("\n".join(f"keys: {line}" for line in lines))
        return 1
    text = HEAD + "\n" + "\n".join(tables(RunConfig)).rstrip() + "\n"
    if "--write" in sys.argv[1:]:
        PAGE.write_text(text, encoding="utf-8")
        print(f"keys: wrote {PAGE.name}")
        return 0
    if not PAGE.is_file() or PAGE.read_text(encoding="utf-8") != text:
        print(
            "keys: docs/run-file.md is not what earl/config/ says; run `python tools/check_keys.py --write`"
        )
        return 1
    print("keys: docs/run-file.md is current")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
