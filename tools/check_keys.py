"""Writes docs/run-file.md from the schema and its comments, or without --write checks that it is current.

A key's description is the comment above its field in earl/config/: one place to keep true. A key without
one is an error.
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
from earl.config.descriptions import description, descriptions
from earl.config.load import expected
from earl.config.run import RunConfig

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
    notes = descriptions(model)
    lines = [f"## `[{section}]`" if section else "## Top level", ""]
    if model.__doc__ and section:
        lines += [model.__doc__.strip().partition("\n\n")[0], ""]
    lines += ["| key | takes | default | |", "|---|---|---|---|"]
    inner: list[str] = []
    for name, field in model.model_fields.items():
        key = f"{prefix}{name}"
        if keys.is_section(field):
            inner += tables(keys.section_of(field), key)
            continue
        takes = re.sub(r"(?<=matches )\S+", r"`\g<0>`", expected(key))
        cells = [f"`{name}`", takes, default_text(field.default), notes.get(name, "")]
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return [*lines, "", *inner]


def undescribed() -> list[str]:
    """Keys that have no description."""
    return [key for key, field in keys.fields() if not keys.is_section(field) and not description(key)]


def main() -> int:
    if missing := undescribed():
        print(f"keys: {', '.join(missing)}: write above each what it is and when to change it")
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
