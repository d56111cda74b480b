"""Dataclasses from parsed JSON, by the annotations of their fields. Pure.

    record = from_json(LaunchRecord, json.loads(text))

For files that commands read all the time: pydantic, which checks the same, takes as long to import as a
third of `earl status`. A key that is no field is left out, a field without a key has its default; where a
value is not what the annotation says, the whole is refused.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

Value = TypeVar("Value")


def from_json(kind: type[Value], value: object) -> Value:
    """A dataclass's value from what json.loads returned; arrays become tuples.

    Annotations may be str, int, float, bool, None, Any, Literal, dataclasses, generic ones too, and tuples,
    mappings and unions of these. Raises ValueError, naming the field, for a value that does not fit, and
    TypeError for an annotation that is none of these.
    """
    return _reader(kind)(value, kind.__name__)


@cache
def _reader(hint: Any) -> Callable[[Any, str], Any]:
    """Returns the function that reads a value of this annotation. Its second argument names the value."""
    origin, arguments = get_origin(hint), get_args(hint)
    if hint is Any:
        return lambda value, _: value
    if origin is Literal:
        return lambda value, name: value if value in arguments else _refused(value, name, hint)
    if origin in (Union, types.UnionType):
        return _union(arguments)
    if origin is tuple and len(arguments) == 2 and arguments[1] is Ellipsis:
        return _array(_reader(arguments[0]))
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return _mapping(_reader(arguments[1]))
    if is_dataclass(origin or hint):
        return _object(origin or hint, arguments)
    if hint in (str, int, float, bool, type(None)):
        return _scalar(hint)
    raise TypeError(f"no value of {hint} is read from JSON")


def _refused(value: object, name: str, hint: Any) -> Any:
    raise ValueError(f"{name} is {value!r}, not {getattr(hint, '__name__', hint)}")


def _scalar(kind: type) -> Callable[[Any, str], Any]:
    def read(value: Any, name: str) -> Any:
        if kind is float and type(value) is int:
            return float(value)
        return value if type(value) is kind else _refused(value, name, kind)

    return read


def _array(read_item: Callable[[Any, str], Any]) -> Callable[[Any, str], Any]:
    def read(value: Any, name: str) -> Any:
        if not isinstance(value, (list, tuple)):
            _refused(value, name, list)
        return tuple(read_item(item, f"{name}[{index}]") for index, item in enumerate(value))

    return read


def _mapping(read_item: Callable[[Any, str], Any]) -> Callable[[Any, str], Any]:
    def read(value: Any, name: str) -> Any:
        if not isinstance(value, dict):
            _refused(value, name, dict)
        return {key: read_item(item, f"{name}.{key}") for key, item in value.items()}

    return read


def _union(hints: tuple[Any, ...]) -> Callable[[Any, str], Any]:
    def read(value: Any, name: str) -> Any:
        reasons = []
        for hint in hints:
            try:
                return _reader(hint)(value, name)
            except ValueError as error:
                reasons.append(str(error))
        raise ValueError("; ".join(reasons))

    return read


def _object(kind: Any, arguments: tuple[Any, ...]) -> Callable[[Any, str], Any]:
    """Reads a dataclass. arguments: what stands for its type variables."""
    bound = dict(zip(getattr(kind, "__parameters__", ()), arguments, strict=False))
    hints = get_type_hints(kind)
    read_fields = {item.name: bound.get(hints[item.name], hints[item.name]) for item in fields(kind)}
    needed = {
        item.name for item in fields(kind) if item.default is MISSING and item.default_factory is MISSING
    }

    def read(value: Any, name: str) -> Any:
        if not isinstance(value, dict):
            _refused(value, name, kind)
        if missing := needed - value.keys():
            raise ValueError(f"{name} has no {', '.join(sorted(missing))}")
        return kind(
            **{
                field: _reader(hint)(value[field], f"{name}.{field}")
                for field, hint in read_fields.items()
                if field in value
            }
        )

    return read
