"""Writes docs/run-file.md from the schema and its comments, or without --write checks that it is current.

A field's description is the comment above it (or behind it) in earl/config/: one place to keep true.
"""

from __future__ import annotations

import inspect
import json
import re
import sys
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from earl.config import keys
from earl.config.base import ConfigSection
from earl.config.load import expected
from earl.config.run import RunConfig

PAGE = Path(__file__).resolve().parent.parent / "docs" / "run-file.md"
HEAD = """# Run files

A run file is TOML; any key can also be given on the command line: `earl train run.toml --trainer.lr 1e-4`
(a text needs no quotes there, a list is written as in TOML). `earl train` has `--name`, `--seed` and
`--runs-dir` for the keys without a section. An unknown key is an error that suggests the right one.

Made from `earl/config/` by `tools/check_keys.py --write`.
"""


def comments(model: type[BaseModel]) -> dict[str, str]:
    """Field → what its source comment says; "" if there is none."""
    found: dict[str, str] = {}
    above: list[str] = []
    sections = [owner for owner in reversed(model.__mro__) if issubclass(owner, ConfigSection)]
    for line in "".join(map(inspect.getsource, sections)).splitlines():
        text = line.strip()
        if text.startswith("#"):
            above.append(text.lstrip("# "))
            continue
        name = text.partition(":")[0]
        if name in model.model_fields:
            behind = text.partition("  # ")[2]
            found[name] = " ".join([*above, behind]).strip()
        above = []
    return found


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
    said = comments(model)
    lines = [f"## `[{section}]`" if section else "## Top level", ""]
    if model.__doc__ and section:
        lines += [model.__doc__.strip().partition("\n\n")[0], ""]
    lines += ["| key | takes | default | |", "|---|---|---|---|"]
    inner: list[str] = []
    for name, field in model.model_fields.items():
        key = f"{prefix}{name}"
        if keys.is_section(field):
            assert isinstance(field.annotation, type)
            inner += tables(field.annotation, key)
            continue
        takes = re.sub(r"(?<=matches )\S+", r"`\g<0>`", expected(key))
        cells = [f"`{name}`", takes, default_text(field.default), said.get(name, "")]
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return [*lines, "", *inner]


def main() -> int:
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
