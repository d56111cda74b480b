"""Values and protobuf messages whose fields have the same names: either is made from the other by name.

    value = from_message(ArenaRef, message)                       every field of the dataclass
    message = to_message(layout_pb2.Region, region, arena=3)      every field of the message
    message = fill(layout_pb2.Region(arena=3), region)            the fields that the value has, at any depth

What is given by keyword is taken as it is, for fields that another name, an enum or a nested message stands
for. The first two skip nothing: a field that is neither given nor on the other side is a TypeError.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import fields
from functools import cache
from typing import Any, TypeVar

from google.protobuf.descriptor import Descriptor
from google.protobuf.message import Message

Value = TypeVar("Value")
Kind = TypeVar("Kind", bound=Message)


def from_message(kind: type[Value], message: Message, **given: Any) -> Value:
    """A dataclass's value; repeated scalars become tuples, maps dicts, an absent optional scalar None.

    Raises TypeError for a field that is not given and that the message lacks or holds as a message.
    """
    for name, read in _readers(kind, message.DESCRIPTOR, frozenset(given)):
        given[name] = read(message, name)
    return kind(**given)


def to_message(kind: type[Kind], value: object, **given: Any) -> Kind:
    """A message from the attributes of any object; None leaves a field unset.

    Raises TypeError for a field that is neither given nor an attribute of `value`.
    """
    try:
        for name in _names(kind.DESCRIPTOR, frozenset(given)):
            given[name] = getattr(value, name)
    except AttributeError as error:
        raise TypeError(f"{kind.__name__} cannot be made of a {type(value).__name__}: {error}") from error
    return kind(**given)


def fill(message: Kind, value: Any, without: Collection[str] = ()) -> Kind:
    """Sets each field for which the value has an attribute of that name, and returns the message.

    Messages within are filled from the attribute in the same way; None leaves a field unset. without:
    fields that are left alone.
    """
    for field in message.DESCRIPTOR.fields:
        content = None if field.name in without else getattr(value, field.name, None)
        if content is None:
            continue
        target = getattr(message, field.name)
        if hasattr(target, "update"):
            target.update(content)
        elif hasattr(target, "add"):
            for item in content:
                fill(target.add(), item)
        elif hasattr(target, "extend"):
            target.extend(content)
        elif isinstance(target, Message):
            fill(target, content)
        else:
            setattr(message, field.name, content)
    return message


@cache
def _names(message: Descriptor, given: frozenset[str]) -> tuple[str, ...]:
    return tuple(name for name in message.fields_by_name if name not in given)


@cache
def _readers(
    kind: Any, message: Descriptor, given: frozenset[str]
) -> tuple[tuple[str, Callable[[Any, str], Any]], ...]:
    """The fields that `from_message` reads, each with the function that reads it."""
    names = [field.name for field in fields(kind) if field.init and field.name not in given]
    return tuple((name, _reader(kind.__name__, message, name)) for name in names)


def _reader(kind: str, message: Descriptor, name: str) -> Callable[[Any, str], Any]:
    field = message.fields_by_name.get(name)
    content = field.message_type if field is not None else None
    is_map = content is not None and content.GetOptions().map_entry
    if field is None or (content is not None and not is_map):
        raise TypeError(f"{kind}.{name} cannot be read from a {message.name}: give it by keyword")
    if is_map:
        return lambda source, name: dict(getattr(source, name))
    if field.is_repeated:
        return lambda source, name: tuple(getattr(source, name))
    if field.has_presence:
        return lambda source, name: getattr(source, name) if source.HasField(name) else None
    return getattr
