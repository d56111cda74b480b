"""From a run file and dotted overrides to one checked RunConfig.

`load_run` either returns a configuration that every service can rely on, or raises one ConfigError
(or a subclass, each with its own exit code) whose single line names the key, the value and the
remedy. Nothing here imports torch: what needs the model itself is checked by the service that loads it.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from earl.config import keys
from earl.config.check import cross_check
from earl.config.run import RunConfig
from earl.errors import ConfigError

Override = tuple[str, str]


def load_run(path: Path, overrides: Sequence[Override] = ()) -> RunConfig:
    """Reads, overrides, validates and cross-checks a run file.

    overrides: (dotted key, value as typed), later ones win. Raises ConfigError, ModelNotFound,
    IllegalParallelism or TransportUnavailable.
    """
    table = read_toml(path)
    for key, text in overrides:
        set_override(table, key, text)
    config = validate(table, str(path))
    cross_check(config)
    return config


def read_toml(path: Path) -> dict[str, Any]:
    """The file as nested tables; ConfigError if it is missing, unreadable or no TOML."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"run file {path} does not exist", "see examples/ for run files") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"run file {path} cannot be read: {error}", "give a TOML file") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"run file {path} is not TOML: {error}", "correct the line that it names") from None


# --- overrides ------------------------------------------------------------------------------


def split_overrides(arguments: Sequence[str]) -> tuple[list[str], list[Override]]:
    """Takes `--section.key value` and `--section.key=value` out of a command line.

    Returns what is left, in order, and the overrides. ConfigError for an override without a value.
    """
    rest: list[str] = []
    overrides: list[Override] = []
    waiting = iter(arguments)
    for argument in waiting:
        name, equals, value = argument.removeprefix("--").partition("=")
        if not argument.startswith("--") or "." not in name:
            rest.append(argument)
            continue
        if not equals:
            following = next(waiting, None)
            if following is None:
                raise ConfigError(f"--{name} has no value", f"write --{name} VALUE")
            value = following
        overrides.append((name, value))
    return rest, overrides


def set_override(table: dict[str, Any], key: str, text: str) -> None:
    """Sets a dotted key in nested tables; the text is read as the schema's type asks."""
    parts = key.split(".")
    field = keys.field_of(key)
    if field is None and not keys.free_table_above(key):
        raise unknown_key(key, "the command line")
    if field is not None and keys.is_section(field):
        raise ConfigError(f"--{key} is a section, not a key", f"set a key of it, such as --{example_of(key)}")
    for part in parts[:-1]:
        table = table.setdefault(part, {})
        if not isinstance(table, dict):
            raise ConfigError(f"--{key}: {part} is not a table in the run file", "correct the run file")
    table[parts[-1]] = text if field is not None and keys.is_text(field) else toml_value(text)


def toml_value(text: str) -> Any:
    """A value as TOML writes it ("1e-4", "true", '["a"]'); anything else is the text itself."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (tomllib.TOMLDecodeError, KeyError):
        return text


def example_of(section: str) -> str:
    leaves = (name for name, field in keys.fields() if not keys.is_section(field))
    return next(name for name in leaves if name.startswith(f"{section}."))


# --- validation -----------------------------------------------------------------------------


def validate(table: Mapping[str, Any], source: str) -> RunConfig:
    """The schema's verdict on nested tables, with the first of its complaints as one line."""
    try:
        return RunConfig.model_validate(table)
    except ValidationError as error:
        details = error.errors(include_url=False)
        # A misspelt key explains a missing one: say the spelling first.
        details.sort(key=lambda detail: detail["type"] != "extra_forbidden")
        raise complaint(details[0], source, len(details) - 1) from None


def complaint(detail: ErrorDetails, source: str, others: int) -> ConfigError:
    """One pydantic error in a person's words."""
    key = ".".join(str(part) for part in detail["loc"])
    in_list = any(isinstance(part, int) for part in detail["loc"])
    more = f" (and {others} more)" if others else ""
    if detail["type"] == "extra_forbidden":
        return unknown_key(key, source, more)
    if detail["type"] == "missing" and not in_list:
        return ConfigError(f"{source}: {key} is missing{more}", f"add {key}, {expected(key)}")
    value = json.dumps(detail["input"], default=str)
    if len(value) > 80:
        value = value[:77] + "..."
    reason = detail["msg"][0].lower() + detail["msg"][1:]
    return ConfigError(f"{source}: {key} = {value} is wrong: {reason}{more}", f"give {expected(key)}")


def unknown_key(key: str, source: str, more: str = "") -> ConfigError:
    near = keys.closest(key)
    remedy = f"did you mean {near}?" if near else "see docs/run-file.md for the keys"
    return ConfigError(f"{source}: there is no key {key}{more}", remedy)


def expected(key: str) -> str:
    """What a key takes: its type and its bounds."""
    parts = key.split(".")
    for count in range(len(parts), 0, -1):  # an element of a list has its index at the end
        field = keys.field_of(".".join(parts[:count]))
        if field is not None:
            break
    else:
        return "a valid value"
    names = {"gt": "more than", "ge": "at least", "lt": "less than", "le": "at most"}
    bounds = [
        f"{word} {getattr(rule, name)}"
        for rule in field.metadata
        for name, word in names.items()
        if getattr(rule, name, None) is not None
    ]
    patterns = [rule.pattern for rule in field.metadata if getattr(rule, "pattern", None)]
    what = keys.describe(field.annotation)
    if patterns:
        what += f" that matches {patterns[0]}"
    return f"{what}, {' and '.join(bounds)}" if bounds else what
