"""From a run file and dotted overrides to one checked RunConfig.

`load_run` either returns a configuration that every service can rely on, or raises one ConfigError
(or a subclass, each with its own exit code) whose single line names the key, the value and the
remedy. Nothing here imports torch: what needs the model itself is checked by the service that loads it.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from earl.config import keys
from earl.config.check import cross_check
from earl.config.distribution import with_placement
from earl.config.run import RunConfig
from earl.config.takes import Takes
from earl.config.units import unit
from earl.errors import ConfigError

Override = tuple[str, str]
# Named in one line.
MOST_MISTAKES = 5


def load_run(path: Path, overrides: Sequence[Override] = (), *, elsewhere: bool = False) -> RunConfig:
    """Reads, overrides, validates and cross-checks a run file.

    overrides: (dotted key, value as typed), later ones win. elsewhere: as for cross_check. Raises
    ConfigError, ModelNotFound, IllegalParallelism or TransportUnavailable.
    """
    table = read_toml(path)
    for key, text in overrides:
        set_override(table, key, text)
    config = validate(table, str(path), frozenset(key for key, _ in overrides))
    cross_check(config, elsewhere=elsewhere)
    return config


def read_toml(path: Path) -> dict[str, Any]:
    """The file as nested tables; ConfigError if it is missing, unreadable or no TOML."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"run file {path} does not exist", "see examples/ for run files") from None
    except (OSError, UnicodeDecodeError) as error:
        reason = str(error.strerror).lower() if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ConfigError(f"run file {path} cannot be read: {reason}", "give a TOML file") from None
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise not_toml(path, text, str(error)) from None


def not_toml(path: Path, text: str, reason: str) -> ConfigError:
    """The error for a file that is no TOML: with the line that is wrong, as it is written.

    reason: tomllib's, which ends with "(at line 3, column 5)" or "(at end of document)".
    """
    what, _, where = reason.rpartition(" (at ")
    position = re.match(r"line (\d+)", where)
    lines = text.rstrip("\n").split("\n")
    number = min(int(position[1]) if position else len(lines), len(lines))
    what = what[:1].lower() + what[1:] or reason
    return ConfigError(
        f"run file {path} is not TOML: line {number}, {lines[number - 1].strip()!r}: {what}",
        'correct that line; texts are written in quotes: name = "first"',
    )


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
    """Sets a dotted key in nested tables; the text is read as the key's type requires."""
    parts = key.split(".")
    field = keys.field_of(key)
    if field is None and not keys.free_table_above(key):
        raise unknown_key(key, "the command line")
    if field is not None and keys.is_section(field):
        raise ConfigError(f"--{key} is a section, not a key", f"set a key of it, such as --{example_of(key)}")
    if parts[0] == "environment" and table.get("environments"):
        raise ConfigError(f"--{key}: the run file has [[environments]]", "set it there, for the one you mean")
    for part in parts[:-1]:
        table = table.setdefault(part, {})
        if not isinstance(table, dict):
            raise ConfigError(f"--{key}: {part} is not a table in the run file", "set it in the run file")
    table[parts[-1]] = text if field is not None and keys.is_text(field) else toml_value(text)


def toml_value(text: str) -> Any:
    """A value as TOML writes it ("1e-4", "true", '["a"]'); anything else is the text itself."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (tomllib.TOMLDecodeError, KeyError):
        return text


def example_of(section: str) -> str:
    return next(name for name in keys.leaves() if name.startswith(f"{section}."))


# --- validation -----------------------------------------------------------------------------


def validate(table: Mapping[str, Any], source: str, overridden: Collection[str] = ()) -> RunConfig:
    """Nested tables as a RunConfig, with what their placement decides. Raises ConfigError with the schema's
    errors in one line.

    source: where the table is from. overridden: keys that the command line gave.
    """
    without = not table.get("environment") and not table.get("environments")
    lacking = [missing_key_error("environment", source)] if without else []
    try:
        config = RunConfig.model_validate(with_placement(table))
    except ValidationError as error:
        raise validation_error(error, source, overridden, lacking) from None
    if lacking:
        raise lacking[0]
    return config


def validation_error(
    error: ValidationError,
    source: str,
    overridden: Collection[str] = (),
    others_found: Sequence[ConfigError] = (),
) -> ConfigError:
    """All mistakes that pydantic found, in one error. others_found: what it cannot find."""
    details = error.errors(include_url=False)
    # A misspelt key explains a missing one: report the spelling first.
    details.sort(key=lambda detail: detail["type"] != "extra_forbidden")
    mistakes = [*(complaint(detail, source, overridden) for detail in details), *others_found]
    first, *others = mistakes[:MOST_MISTAKES]
    if not others:
        return first
    *between, last = others
    texts = [str(mistake).removeprefix(f"{source}: ").rstrip("?") for mistake in between]
    texts.append(last.message.removeprefix(f"{source}: "))
    more = len(mistakes) - MOST_MISTAKES
    remedy = last.remedy + (f". There are {more} more mistakes" if more > 0 else "")
    return ConfigError(f"{str(first).rstrip('?')}. Also: {'. '.join(texts)}", remedy)


def complaint(detail: ErrorDetails, source: str, overridden: Collection[str] = ()) -> ConfigError:
    """A pydantic error as a ConfigError that names the key, the value and the remedy."""
    key = ".".join(str(part) for part in detail["loc"])
    in_list = any(isinstance(part, int) for part in detail["loc"])
    if detail["type"] == "extra_forbidden":
        return unknown_key(key, source)
    if detail["type"] == "missing" and (not in_list or keys.in_list(key) is not None):
        return missing_key_error(key, source)
    value = json.dumps(detail["input"], default=str)
    if len(value) > 80:
        value = value[:77] + "..."
    given = f"--{key} {value}" if key in overridden else f"{source}: {key_text(key)} = {value}"
    return ConfigError(f"{given} is wrong", f"give {expectation(key)}")


def missing_key_error(key: str, source: str) -> ConfigError:
    """The error for a key or a section without a default that a run file does not have."""
    field = keys.field_of(key)
    if field is None or not keys.is_section(field):
        return ConfigError(
            f"{source}: {key_text(key)} is missing", f"add {key_text(key)}, {expectation(key)}"
        )
    required = [name for name, inner in keys.section_of(field).model_fields.items() if inner.is_required()]
    return ConfigError(
        f"{source}: {key} is missing",
        f"add the section [{key}] with the key {' and the key '.join(required)}",
    )


def unknown_key(key: str, source: str) -> ConfigError:
    near = keys.closest(key)
    remedy = f"did you mean {near}?" if near else "`earl config keys` lists the keys"
    return ConfigError(f"{source}: there is no key {key_text(key)}", remedy)


def key_text(key: str) -> str:
    """A key as messages name it: of the tables of a list, "weight of [[environments]] 2"."""
    listed = keys.in_list(key)
    if listed is None:
        return key
    return f"{listed.key} of [[{listed.name}]] {listed.number}"


def expectation(key: str) -> str:
    """The type, the unit and the bounds of a key's value: "a number of seconds, at least 0"."""
    parts = key.split(".")
    for count in range(len(parts), 0, -1):  # an element of a list has its index at the end
        name = ".".join(parts[:count])
        field = keys.field_of(name)
        if field is not None:
            break
    else:
        return "a valid value"
    for rule in field.metadata:
        if isinstance(rule, Takes):
            return rule.text
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
    if counted := unit(name, field):
        what += f" of {counted}"
    return f"{what}, {' and '.join(bounds)}" if bounds else what
