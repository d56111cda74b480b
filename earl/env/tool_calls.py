"""Tool calls in an action's text, in the form of the Hermes, Qwen and SmolLM2 models.

    <tool_call>{"name": "calculator", "arguments": {"expression": "12 * 7"}}</tool_call>

One call or a list of them between the marks; several marks follow each other. `parse` is pure and
strict: every text gives either calls that the tools accept or one Fault that says what is wrong, in
time linear in a text that is bounded. Nothing of the text is ever run.
"""

from __future__ import annotations

import enum
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

OPEN, CLOSE = "<tool_call>", "</tool_call>"
MAX_CHARACTERS = 16_384
MAX_CALLS = 16

_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
}


class FaultKind(enum.Enum):
    """What is wrong with a text that should call a tool."""

    NO_CALL = "no_call"
    TOO_LONG = "too_long"
    UNCLOSED = "unclosed"
    NOT_JSON = "not_json"
    NOT_A_CALL = "not_a_call"
    TOO_MANY = "too_many"
    UNKNOWN_TOOL = "unknown_tool"
    BAD_ARGUMENTS = "bad_arguments"


@dataclass(frozen=True, slots=True)
class Fault:
    """message: one line for whoever wrote the call."""

    kind: FaultKind
    message: str


@dataclass(frozen=True, slots=True)
class ToolCall:
    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Tool:
    """parameters: argument name → JSON schema type ("string", "integer", "number", "boolean", "array",
    "object"); all are required, no others are taken."""

    name: str
    description: str
    parameters: Mapping[str, str] = field(default_factory=dict)

    def schema(self) -> dict[str, Any]:
        """The JSON schema of this function, as chat models are shown it."""
        properties = {name: {"type": kind} for name, kind in self.parameters.items()}
        parameters = {"type": "object", "properties": properties, "required": [*self.parameters]}
        described = {"name": self.name, "description": self.description, "parameters": parameters}
        return {"type": "function", "function": described}


def describe(tools: Sequence[Tool]) -> str:
    """The tools and how to call them, for a system message (the wording of the Hermes models)."""
    schemas = "\n".join(json.dumps(tool.schema()) for tool in tools)
    return (
        f"You may call these functions:\n<tools>\n{schemas}\n</tools>\n"
        "To call one, answer with its name and arguments as JSON:\n"
        f'{OPEN}{{"name": <function-name>, "arguments": <args-json-object>}}{CLOSE}'
    )


def render(call: ToolCall) -> str:
    """The text of a call; `parse` reads it back."""
    return f"{OPEN}{json.dumps({'name': call.name, 'arguments': call.arguments})}{CLOSE}"


def parse(text: str, tools: Sequence[Tool]) -> list[ToolCall] | Fault:
    """The calls in an action's text, at least one; text around them is ignored.

    A last call whose closing mark is missing is a fault: the action was cut.
    """
    if len(text) > MAX_CHARACTERS:
        return Fault(FaultKind.TOO_LONG, f"an action of {len(text)} characters; at most {MAX_CHARACTERS}")
    pieces = text.split(OPEN)[1:]
    if not pieces:
        return Fault(FaultKind.NO_CALL, f"no {OPEN} in the answer")
    known = {tool.name: tool for tool in tools}
    calls: list[ToolCall] = []
    for piece in pieces:
        body, closed, _ = piece.partition(CLOSE)
        if not closed:
            return Fault(FaultKind.UNCLOSED, f"{OPEN} without {CLOSE}")
        found = _calls_of(body, known)
        if isinstance(found, Fault):
            return found
        calls += found
        if len(calls) > MAX_CALLS:
            return Fault(FaultKind.TOO_MANY, f"more than {MAX_CALLS} calls")
    return calls


def _calls_of(body: str, known: Mapping[str, Tool]) -> list[ToolCall] | Fault:
    try:
        value = json.loads(body, parse_constant=_no_constant, object_pairs_hook=_no_repeats)
    except (ValueError, RecursionError) as error:
        said = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        return Fault(FaultKind.NOT_JSON, f"the call is not JSON: {said}")
    values = value if isinstance(value, list) else [value]
    if not values:
        return Fault(FaultKind.NOT_A_CALL, "an empty list of calls")
    calls = []
    for value in values:
        call = _call_of(value, known)
        if isinstance(call, Fault):
            return call
        calls.append(call)
    return calls


def _call_of(value: Any, known: Mapping[str, Tool]) -> ToolCall | Fault:
    if not isinstance(value, dict) or set(value) != {"name", "arguments"}:
        return Fault(FaultKind.NOT_A_CALL, 'a call is {"name": ..., "arguments": {...}}')
    name, arguments = value["name"], value["arguments"]
    if not isinstance(name, str) or name not in known:
        return Fault(FaultKind.UNKNOWN_TOOL, f"no tool {str(name)[:40]!r}; there is {', '.join(known)}")
    if not isinstance(arguments, dict):
        return Fault(FaultKind.BAD_ARGUMENTS, f"the arguments of {name} are no object")
    wanted = known[name].parameters
    if set(arguments) != set(wanted):
        return Fault(FaultKind.BAD_ARGUMENTS, f"{name} takes {', '.join(wanted) or 'no arguments'}")
    for key, kind in wanted.items():
        given = arguments[key]
        if not isinstance(given, _TYPES[kind]) or (isinstance(given, bool) and kind != "boolean"):
            return Fault(FaultKind.BAD_ARGUMENTS, f"{key} of {name} is no {kind}")
        if isinstance(given, float) and not math.isfinite(given):
            return Fault(FaultKind.BAD_ARGUMENTS, f"{key} of {name} is not finite")
    return ToolCall(name, arguments)


def _no_constant(text: str) -> Any:
    raise ValueError(f"{text} is no JSON")


def _no_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise ValueError("an object names a key twice")
    return made
