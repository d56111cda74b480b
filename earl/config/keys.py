"""The dotted keys of a run file, read off its schema: what exists, of which type, and what was meant."""

from __future__ import annotations

import difflib
import types
from collections.abc import Iterator
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from earl.config.run import RunConfig


def fields(model: type[BaseModel] = RunConfig, prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """Yields each key with its field, sections before their contents: ("model", ...), ("model.path", ...)."""
    for name, field in model.model_fields.items():
        key = f"{prefix}{name}"
        yield key, field
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from fields(field.annotation, f"{key}.")


def leaves() -> dict[str, FieldInfo]:
    """The keys that hold values, without the sections."""
    return {key: field for key, field in fields() if not is_section(field)}


def field_of(key: str) -> FieldInfo | None:
    """The field of a dotted key; None if there is none (or it lies inside a free table)."""
    return dict(fields()).get(key)


def is_section(field: FieldInfo) -> bool:
    """Returns whether the key is a table with keys of its own."""
    return isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)


def section_of(field: FieldInfo) -> type[BaseModel]:
    """The class of a section's keys. Raises TypeError for a field that is no section."""
    if not is_section(field):
        raise TypeError(f"{field!r} is no section")
    return field.annotation  # type: ignore[return-value]


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
