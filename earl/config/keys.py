"""The dotted keys of a run file, read off its schema: what exists, of which type, and what was meant."""

from __future__ import annotations

import difflib
import types
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from earl.config.run import RunConfig


def fields(model: type[BaseModel] = RunConfig, prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """Yields each key with its field, sections before their contents: ("model", ...), ("model.path", ...)."""
    for name, field in model.model_fields.items():
        key = f"{prefix}{name}"
        yield key, field
        if is_section(field):
            yield from fields(section_of(field), f"{key}.")


def leaves() -> dict[str, FieldInfo]:
    """The keys that hold values, without the sections."""
    return {key: field for key, field in fields() if not is_section(field)}


def field_of(key: str) -> FieldInfo | None:
    """The field of a dotted key; None if there is none (or it lies inside a free table)."""
    listed = in_list(key)
    return dict(fields(listed.section)).get(listed.key) if listed is not None else dict(fields()).get(key)


class ListedKey(NamedTuple):
    """A key of one table in a list of tables. number: which of them, from 1."""

    name: str
    number: int
    key: str
    section: type[BaseModel]


def in_list(key: str) -> ListedKey | None:
    """The parts of a key such as "environments.0.weight"; None for a key that lies in no list of tables."""
    name, _, rest = key.partition(".")
    index, _, inner = rest.partition(".")
    field = RunConfig.model_fields.get(name)
    section = section_of_list(field) if field is not None else None
    if section is None or not inner or not index.isdecimal():
        return None
    return ListedKey(name, int(index) + 1, inner, section)


def is_section(field: FieldInfo) -> bool:
    """Returns whether the key is a table with keys of its own."""
    return bool(_sections(field.annotation))


def section_of(field: FieldInfo) -> type[BaseModel]:
    """The class of a section's keys. Raises TypeError for a field that is no section."""
    for section in _sections(field.annotation):
        return section
    raise TypeError(f"{field!r} is no section")


def section_of_list(field: FieldInfo) -> type[BaseModel] | None:
    """The class of the keys of each table in a list of tables (`[[environments]]`); None if it is none."""
    inner = get_args(field.annotation) if get_origin(field.annotation) is list else ()
    return next(iter(_sections(inner[0])), None) if inner else None


def _sections(annotation: Any) -> list[type[BaseModel]]:
    """The section that a type is, or may be: a section may be left out (`EnvironmentConfig | None`)."""
    choices = get_args(annotation) if get_origin(annotation) in (Union, types.UnionType) else (annotation,)
    return [choice for choice in choices if isinstance(choice, type) and issubclass(choice, BaseModel)]


def is_table(field: FieldInfo) -> bool:
    """Returns whether the key holds a table that may have any keys (`environment.task`)."""
    return get_origin(field.annotation) is dict


def free_table_above(key: str) -> bool:
    """Returns whether a key lies inside a table that may have any keys."""
    parts = key.split(".")
    above = (field_of(".".join(parts[:count])) for count in range(1, len(parts)))
    return any(field is not None and is_table(field) for field in above)


def is_text(field: FieldInfo) -> bool:
    """Returns whether the key's value is a string, so that an override needs no quotes."""
    annotation = field.annotation
    if get_origin(annotation) is Literal:
        return all(isinstance(choice, str) for choice in get_args(annotation))
    return annotation is str


def describe(annotation: Any) -> str:
    """A type in the words of a person who writes TOML: "a whole number", "one of "auto", "cpu"", ..."""
    words = {
        bool: "true or false",
        int: "a whole number",
        float: "a number",
        str: "a text",
    }
    if annotation in words:
        return words[annotation]
    origin = get_origin(annotation)
    if origin is Literal:
        return "one of " + ", ".join(f'"{choice}"' for choice in get_args(annotation))
    if origin in (list, tuple):
        return "a list"
    if origin in (Union, types.UnionType):
        return " or ".join(describe(choice) for choice in get_args(annotation))
    return "a table"


def with_last_word(word: str) -> list[str]:
    """Keys of sections whose last word this is: "lr" → ["trainer.lr", "warmup.lr"]."""
    return [key for key in leaves() if "." in key and key.rsplit(".", 1)[-1] == word]


def closest(key: str) -> str:
    """The existing key that was most likely meant by an unknown one; "" if none is near.

    A near spelling of the whole key wins, then the same last word in another section, then a key
    that abbreviates it ("trainer.learning_rate" is trainer.lr).
    """
    if (listed := in_list(key)) is not None:
        inner = [name for name, _ in fields(listed.section)]
        return next(iter(difflib.get_close_matches(listed.key, inner, n=1, cutoff=0.6)), "")
    known = list(leaves())
    # A section is only ever meant where a section could stand.
    candidates = known if "." in key else [name for name, _ in fields()]
    last = key.rsplit(".", 1)[-1]
    near = difflib.get_close_matches(key, candidates, n=1, cutoff=0.8)
    if near and alike(last, near[0]):
        return near[0]
    words = [name.rsplit(".", 1)[-1] for name in known]
    for word in difflib.get_close_matches(last, words, n=1, cutoff=0.75):
        namesakes = [name for name in known if name.rsplit(".", 1)[-1] == word]
        return difflib.get_close_matches(key, namesakes, n=1, cutoff=0)[0]
    initials = "".join(word[:1] for word in last.split("_"))
    abbreviated = key.removesuffix(last) + initials
    if abbreviated in known:
        return abbreviated
    near = difflib.get_close_matches(key, candidates, n=3, cutoff=0.7)
    return next((name for name in near if alike(last, name)), "")


def alike(word: str, key: str) -> bool:
    """Returns whether a key's last word is near a word: a section in common is no similarity."""
    return difflib.SequenceMatcher(None, word, key.rsplit(".", 1)[-1]).ratio() > 0.6
