"""Calls of tools in an agent's action, and what the tools answer.

A client that parsed them sends calls as such (`Action.tool_calls`); otherwise they stand in the action's
text, in the form of the Hermes, Qwen and SmolLM2 models:

    <tool_call>{"name": "calculator", "arguments": {"expression": "12 * 7"}}</tool_call>

One call or a list of them between the marks; several marks follow each other. What the agent only thinks,
between <think> and </think>, calls nothing (`spoken`). `calls_in` and `parse` are pure and strict: every
action gives either calls or one Fault that says what is wrong, in time linear in a text that is bounded.
Nothing of the text is ever run.
"""

from __future__ import annotations

import enum
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

OPEN, CLOSE = "<tool_call>", "</tool_call>"
THINK, THOUGHT = "<think>", "</think>"
MAX_CHARACTERS = 16_384
MAX_CALLS = 16

_MARK = re.compile(f"{OPEN}|{THINK}|{THOUGHT}")
_CALL_MARK = re.compile(f"{OPEN}|{CLOSE}")
# JSON schema's types, as json.loads gives them.
_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
    "null": (type(None),),
}
# With one of these in it, a schema may allow keys that `properties` does not name.
_OPENING = ("additionalProperties", "patternProperties", "allOf", "anyOf", "oneOf", "$ref")


class FaultKind(enum.Enum):
    """The fault of an action that should call a tool."""

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
    """The reason why a call cannot be carried out. message: one line for the author of the call."""

    kind: FaultKind
    message: str


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call as somebody wrote it: `check` says whether a tool takes it.

    arguments: an object; or what was written in its place. id: a client's name for the call, which its
    result carries back; "" for a call that stood in a text.
    """

    name: str
    arguments: Any
    id: str = ""


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The result of a call. is_error: the tool did not do what it was asked to; text gives the reason."""

    text: str
    id: str = ""
    is_error: bool = False


class Action(str):
    """The agent's action: its text and, where the client parsed them, its calls of tools.

    A `str` in every other way, so that an environment without tools takes it as its text.
    """

    __slots__ = ("tool_calls",)
    tool_calls: tuple[ToolCall, ...]

    def __new__(cls, text: str = "", tool_calls: Sequence[ToolCall] = ()) -> Action:
        action = super().__new__(cls, text)
        action.tool_calls = tuple(tool_calls)
        return action


def object_schema(**types: str) -> dict[str, Any]:
    """The JSON schema of an object with these keys, name → type; all are required, no others taken."""
    return {
        "type": "object",
        "properties": {name: {"type": kind} for name, kind in types.items()},
        "required": [*types],
        "additionalProperties": False,
    }


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool that an agent may call. parameters: JSON schema of the arguments, an object."""

    name: str
    description: str
    parameters: Mapping[str, Any] = field(default_factory=object_schema)

    def schema(self) -> dict[str, Any]:
        """The JSON schema of this function, as chat models are shown it."""
        described = {"name": self.name, "description": self.description, "parameters": self.parameters}
        return {"type": "function", "function": described}

    def accepted(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """The arguments as the tool gets them. Raises ValueError with one line on what is wrong.

        Checked are the keys, and each value's JSON type and `enum`. What lies deeper is left to the tool;
        keys that the schema does not name are refused unless it says something about further ones.
        """
        properties = self.parameters.get("properties", {})
        missing = set(self.parameters.get("required", ())) - set(arguments)
        closed = not any(self.parameters.get(key) for key in _OPENING) and "properties" in self.parameters
        if missing or (closed and set(arguments) - set(properties)):
            raise ValueError(f"{self.name} takes {', '.join(properties) or 'no arguments'}")
        for key, given in arguments.items():
            schema = properties.get(key)
            if isinstance(schema, Mapping) and (wrong := _mismatch(given, schema)):
                raise ValueError(f"{key} of {self.name} is {wrong}")
        return arguments


def _mismatch(given: Any, schema: Mapping[str, Any]) -> str:
    """Describes how a value violates this schema; empty if it does not."""
    named = schema.get("type", ())
    kinds = [named] if isinstance(named, str) else [*named]
    types = tuple(kind for name in kinds for kind in _TYPES.get(name, (object,)))
    if types and (not isinstance(given, types) or (isinstance(given, bool) and bool not in types)):
        return f"no {' or '.join(kinds)}"
    if isinstance(given, float) and not math.isfinite(given):
        return "not finite"
    if "enum" in schema and given not in schema["enum"]:
        return f"not one of {json.dumps(schema['enum'])[:200]}"
    return ""


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


def has_calls(action: str, max_characters: int = MAX_CHARACTERS) -> bool:
    """Returns whether the action tries to call a tool; if not, it is the agent's answer.

    A text that is too long for `calls_in` is not read: with any mark of a call in it, it tries to.
    """
    if getattr(action, "tool_calls", ()):
        return True
    return OPEN in action and (len(action) > max_characters or OPEN in spoken(action))


def spoken(text: str) -> str:
    """The text without the agent's thinking, in which no call is meant to be carried out.

    Thinking ends with the first </think> after its <think>, or with the text if there is none: the answer
    was truncated. A </think> alone ends thinking that began before the text, as with chat templates that put
    <think> into the prompt. The body of a whole call is data: a mark in an argument neither begins nor ends
    thinking.

        "<think>A<tool_call>B</tool_call></think>C<tool_call>D</tool_call>" -> "C<tool_call>D</tool_call>"
    """
    return "\n".join(text[start:end] for start, end in _spoken_spans(text))


def before_calls(text: str) -> str:
    """The text up to its first call, thinking included; all of it if it has no call."""
    for start, end in _spoken_spans(text):
        first = text.find(OPEN, start, end)
        if first >= 0:
            return text[:first]
    return text


def _spoken_spans(text: str) -> list[tuple[int, int]]:
    """Returns the (start, end) in characters of what is not thinking, in order."""
    spans: list[tuple[int, int]] = []
    start = position = 0
    while mark := _MARK.search(text, position):
        position = mark.end()
        if mark.group() == OPEN:
            following = _CALL_MARK.search(text, position)
            if following is not None and following.group() == CLOSE:
                position = following.end()
        elif mark.group() == THOUGHT:
            spans.clear()
            start = position
        else:
            if mark.start() > start:
                spans.append((start, mark.start()))
            thought = text.find(THOUGHT, position)
            if thought < 0:
                return spans
            start = position = thought + len(THOUGHT)
    return [*spans, (start, len(text))]


def calls_in(action: str, max_characters: int = MAX_CHARACTERS) -> list[ToolCall] | Fault:
    """The calls of an action, at least one, not yet checked against any tools.

    Those that a client sent; otherwise those in the text, where text around them and thinking are ignored
    and a last call whose closing mark is missing is a fault: the action was truncated. max_characters: of the
    whole text, as in Environment.max_action_characters.
    """
    calls: list[ToolCall] = [*getattr(action, "tool_calls", ())]
    if not calls:
        parsed = _calls_in_text(action, max_characters)
        if isinstance(parsed, Fault):
            return parsed
        calls = parsed
    if len(calls) > MAX_CALLS:
        return Fault(FaultKind.TOO_MANY, f"{len(calls)} calls in one action; at most {MAX_CALLS}")
    return calls


def check(call: ToolCall, tools: Mapping[str, Tool]) -> dict[str, Any] | Fault:
    """The arguments of a call as its tool takes them, or what is wrong with it. tools: by name."""
    tool = tools.get(call.name) if isinstance(call.name, str) else None
    if tool is None:
        known = ", ".join(tools) or "none"
        return Fault(FaultKind.UNKNOWN_TOOL, f"no tool {str(call.name)[:40]!r}; there is {known}")
    if not isinstance(call.arguments, dict):
        return Fault(FaultKind.BAD_ARGUMENTS, f"the arguments of {call.name} are no object")
    try:
        return tool.accepted(call.arguments)
    except ValueError as error:
        return Fault(FaultKind.BAD_ARGUMENTS, str(error))


def parse(action: str, tools: Sequence[Tool], max_characters: int = MAX_CHARACTERS) -> list[ToolCall] | Fault:
    """The calls of an action, if the tools accept every one of them. max_characters: as in `calls_in`."""
    calls = calls_in(action, max_characters)
    if isinstance(calls, Fault):
        return calls
    known = {tool.name: tool for tool in tools}
    for call in calls:
        checked = check(call, known)
        if isinstance(checked, Fault):
            return checked
    return calls


def _calls_in_text(text: str, max_characters: int) -> list[ToolCall] | Fault:
    if len(text) > max_characters:
        return Fault(FaultKind.TOO_LONG, f"an action of {len(text)} characters; at most {max_characters}")
    pieces = spoken(text).split(OPEN)[1:]
    if not pieces:
        where = f"outside of {THINK}" if OPEN in text else "in the answer"
        return Fault(FaultKind.NO_CALL, f"no {OPEN} {where}")
    calls: list[ToolCall] = []
    for piece in pieces:
        body, closed, _ = piece.partition(CLOSE)
        if not closed:
            return Fault(FaultKind.UNCLOSED, f"{OPEN} without {CLOSE}")
        parsed = _calls_of(body)
        if isinstance(parsed, Fault):
            return parsed
        calls += parsed
    return calls


def _calls_of(body: str) -> list[ToolCall] | Fault:
    try:
        value = from_json(body)
    except ValueError as error:
        return Fault(FaultKind.NOT_JSON, f"the call is not JSON: {error}")
    values = value if isinstance(value, list) else [value]
    if not values:
        return Fault(FaultKind.NOT_A_CALL, "an empty list of calls")
    for value in values:
        if not isinstance(value, dict) or set(value) != {"name", "arguments"}:
            return Fault(FaultKind.NOT_A_CALL, 'a call is {"name": ..., "arguments": {...}}')
    return [ToolCall(value["name"], value["arguments"]) for value in values]


def from_json(text: str) -> Any:
    """json.loads, strictly: ValueError also for NaN, infinities, a key given twice, and deep nesting."""
    try:
        return json.loads(
            text, parse_constant=_no_constant, parse_float=_finite, object_pairs_hook=_no_repeats
        )
    except RecursionError:
        raise ValueError("nested too deeply") from None


def to_json(value: Any) -> str:
    """json.dumps, strictly: ValueError for NaN and infinities, TypeError for what JSON has not."""
    return json.dumps(value, allow_nan=False)


def _no_constant(text: str) -> Any:
    raise ValueError(f"{text} is no JSON")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text[:40]} is too large")
    return number


def _no_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise ValueError("an object names a key twice")
    return made
