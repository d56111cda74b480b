"""From a Python function to a tool: its JSON schema, its checked arguments, how it is to be run.

    @tool(timeout_s=5)
    def search(query: str, most: int = 3) -> list[str]:
        "Pages that have the words of the query in them, best first."

The docstring is the description, the type hints are the schema (pydantic's; Annotated[str,
Field(description=...)] describes an argument). Arguments are checked strictly: no "3" for an int.
"""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NotRequired, TypeVar, overload

from pydantic import ConfigDict, Field, PydanticUserError, TypeAdapter, ValidationError
from pydantic.json_schema import GenerateJsonSchema
from typing_extensions import TypedDict

from earl.env.base import Tool
from earl.env.tool_calls import to_json
from earl.errors import ConfigError

_NAME = re.compile(r"^[A-Za-z_][A-Za-z0-9_-]{0,63}$")
_MARK = "__earl_tool__"
_CLOSED = ConfigDict(extra="forbid", allow_inf_nan=False)
_SHOWN_ERRORS = 3
_SHOWN_CHARACTERS = 300

Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True, kw_only=True)
class FunctionTool(Tool):
    """A tool that Python carries out. The calls of one action run concurrently.

    function: called with the arguments by name; plain or async. method: the name of the environment's
    method to call instead. timeout_s: None for the environment's. parallel: whether it may run in parallel
    with others; those that may not run one after the other, in the order of their calls. blocking: whether a
    plain function may take longer than about a millisecond; it then runs in a thread.
    """

    function: Callable[..., Any]
    method: str = ""
    timeout_s: float | None = None
    parallel: bool = True
    blocking: bool = True
    arguments: TypeAdapter[Any] | None = None

    def accepted(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """The arguments, converted to what the type hints say. Raises ValueError with one line."""
        if self.arguments is None:
            return Tool.accepted(self, arguments)
        try:
            return self.arguments.validate_json(to_json(arguments), strict=True)
        except ValidationError as error:
            raise ValueError(f"{self.name}: {_summary(error)}") from None


@overload
def tool(function: Function) -> Function: ...
@overload
def tool(
    *, name: str = "", timeout_s: float | None = None, parallel: bool = True, blocking: bool = True
) -> Callable[[Function], Function]: ...
def tool(function: Any = None, **options: Any) -> Any:
    """Marks a method as a tool of its ToolEnvironment, or says how a function is to be run as one.

    name: the function's own if empty. The others are FunctionTool's.
    """

    def marked(function: Function) -> Function:
        setattr(getattr(function, "__func__", function), _MARK, options)
        return function

    return marked if function is None else marked(function)


def marked_methods(cls: type) -> dict[str, FunctionTool]:
    """The tools among a class's methods, its bases' included, by the tool's name, in their order."""
    by_name: dict[str, FunctionTool] = {}
    for base in reversed(cls.__mro__):
        for name, member in vars(base).items():
            is_bound = not isinstance(member, staticmethod)
            function = getattr(member, "__func__", member)
            if inspect.isfunction(function) and hasattr(function, _MARK):
                made = tool_of(function, name, is_bound)
                by_name[made.name] = made
    return by_name


def tool_of(function: Callable[..., Any], method: str = "", is_bound: bool = False) -> FunctionTool:
    """The tool that a function is. method: its name in its class; is_bound: it takes the object first.

    Raises ConfigError without a docstring or type hints, or for arguments that have no name.
    """
    options = dict(getattr(function, _MARK, {}))
    name = options.pop("name", "") or getattr(function, "__name__", "")
    where = f"tool {name!r} ({getattr(function, '__module__', '?')})"
    if not _NAME.match(name):
        raise ConfigError(f"{where} has no name that a model could call", 'give one: @tool(name="search")')
    description = inspect.getdoc(function) or ""
    if not description.strip():
        raise ConfigError(f"{where} has no docstring", "write one: it is what the agent is told")
    adapter = _arguments(function, name, where, is_bound)
    schema = adapter.json_schema(schema_generator=_Schema)
    schema.pop("title", None)
    return FunctionTool(
        name, description, schema, function=function, method=method, arguments=adapter, **options
    )


class _Schema(GenerateJsonSchema):
    """Generates schemas without the titles that pydantic derives from names: they tell a model nothing."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


def _arguments(
    function: Callable[..., Any], name: str, where: str, is_bound: bool
) -> TypeAdapter[dict[str, Any]]:
    """Builds the validator of a function's arguments: a dict with the keys that were given."""
    try:
        hints = typing.get_type_hints(function, include_extras=True)
    except (NameError, TypeError) as error:
        raise ConfigError(f"type hints of {where} cannot be read: {error}", "fix or import them") from error
    parameters = [*inspect.signature(function).parameters.values()][is_bound:]
    fields: dict[str, Any] = {}
    for parameter in parameters:
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise ConfigError(f"{where} takes {parameter}", "its arguments must each have a name")
        hint = hints.get(parameter.name)
        if hint is None:
            raise ConfigError(f"argument {parameter.name} of {where} has no type hint", "give it one")
        if parameter.default is not parameter.empty:
            shown = Field(json_schema_extra={"default": _default(parameter.default, hint)})
            hint = NotRequired[typing.Annotated[hint, shown]]
        fields[parameter.name] = hint
    taken: Any = TypedDict(name, fields)  # type: ignore[operator]
    taken.__pydantic_config__ = _CLOSED
    try:
        return TypeAdapter(taken)
    except PydanticUserError as error:
        line = str(error).splitlines()[0]
        raise ConfigError(f"{where} takes what JSON cannot give: {line}", "take plain values") from error


def _default(value: Any, hint: Any) -> Any:
    return TypeAdapter(hint).dump_python(value, mode="json", warnings=False)


def _summary(error: ValidationError) -> str:
    """The first validation errors in one line."""
    details = error.errors(include_url=False, include_context=False, include_input=False)
    problems = [f"{'.'.join(map(str, detail['loc'])) or 'arguments'}: {detail['msg']}" for detail in details]
    return " ".join("; ".join(problems[:_SHOWN_ERRORS]).split())[:_SHOWN_CHARACTERS]
