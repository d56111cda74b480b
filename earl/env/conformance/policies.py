"""The policies of the examination: a random policy, and texts that no policy should ever write. Pure.

The random policy takes what the environment says it would take: a legal action where they are listed, a
call that fits the tools' JSON schemas where there are tools, otherwise short texts, words of the
observation among them.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Mapping, Sequence
from typing import Any

from earl.env import tool_calls
from earl.env.base import Action, ToolCall

HUGE_CHARACTERS = 200_000
NONSENSE = "no such action"
# Legal actions, and tools, that are repeated at most.
MAX_REPEATED = 8
# How often the random policy with tools answers in words instead.
_PLAIN = 0.15
_WORDS = ("yes", "no", "a", "x", "north", "help", "0", "1", "2", "[3]", "42", "-1", "0.5")
_DEPTH = 4


def random_act(observation: Any, tools: Sequence[Mapping[str, Any]], rng: random.Random) -> Action:
    """An action for an earl.v1.Observation."""
    if observation.legal_actions:
        return Action(rng.choice(list(observation.legal_actions)))
    if tools and rng.random() >= _PLAIN:
        tool = rng.choice(list(tools))
        return called(tool["name"], random_value(tool.get("parameters") or {"type": "object"}, rng))
    words = re.findall(r"[^\s.,:;!?]{1,20}", observation.text[-2_000:])
    return Action(rng.choice([*_WORDS, *words]))


def called(name: str, arguments: Any) -> Action:
    """The act of calling a tool: as text, and as a parsed call."""
    text = json.dumps({"name": name, "arguments": arguments})
    return Action(f"{tool_calls.OPEN}{text}{tool_calls.CLOSE}", [ToolCall(name, arguments, "call-0")])


def random_value(schema: Mapping[str, Any], rng: random.Random, depth: int = 0) -> Any:
    """A value that a JSON schema takes (type, enum, const, anyOf, properties, items, bounds)."""
    if "const" in schema:
        return schema["const"]
    if schema.get("enum"):
        return rng.choice(list(schema["enum"]))
    for choice in ("anyOf", "oneOf"):
        if schema.get(choice):
            return random_value(rng.choice(list(schema[choice])), rng, depth)
    kind = schema.get("type", "string")
    kind = rng.choice(kind) if isinstance(kind, list) else kind
    if kind == "object":
        properties: Mapping[str, Any] = schema.get("properties") or {}
        required = schema.get("required", ())
        given = [name for name in properties if name in required or (depth < _DEPTH and rng.random() < 0.5)]
        return {name: random_value(properties[name], rng, depth + 1) for name in given}
    if kind == "array":
        least = schema.get("minItems", 0)
        count = rng.randint(least, max(least, min(schema.get("maxItems", 3), 3 if depth < _DEPTH else 0)))
        return [random_value(schema.get("items") or {}, rng, depth + 1) for _ in range(count)]
    return _scalar(kind, schema, rng)


def _scalar(kind: str, schema: Mapping[str, Any], rng: random.Random) -> Any:
    if kind == "integer":
        low = int(schema.get("minimum", -10))
        return rng.randint(low, int(schema.get("maximum", max(low, 0) + 100)))
    if kind == "number":
        low = float(schema.get("minimum", -10.0))
        return rng.uniform(low, float(schema.get("maximum", max(low, 0.0) + 100.0)))
    if kind == "boolean":
        return rng.random() < 0.5
    if kind == "null":
        return None
    least = schema.get("minLength", 1)
    text = rng.choice(_WORDS)
    return (text * (1 + least // len(text)))[: max(least, schema.get("maxLength", 20))]


def malformed(tools: Sequence[Mapping[str, Any]]) -> dict[str, Action]:
    """Texts that models write when they fail, by what is wrong with them."""
    deep = "[" * 5_000 + "]" * 5_000
    acts = {
        "empty": Action(""),
        "blanks": Action(" \t\r\n "),
        "huge": Action("x" * HUGE_CHARACTERS),
        "unicode": Action("\u202eðŸ é̩̍ \U0001f469\u200d\U0001f52c \u0000\ufeff ٣ Ⅷ"),
        "control characters": Action("".join(map(chr, range(32))) + "\x7f\x1b[2J"),
        "a number too long": Action("9" * 10_000),
        "not a number": Action("NaN"),
        "nested JSON": Action(deep),
        "format string": Action("%s%n {0.__class__} ${jndi:x} $(id) ; --"),
        "unclosed call": Action(tool_calls.OPEN + '{"name": "x", "arguments": {'),
        "nested call": Action(
            tool_calls.OPEN + '{"name": "x", "arguments": ' + deep + "}" + tool_calls.CLOSE
        ),
        "unknown tool": called("no_such_tool", {"a": 1}),
    }
    if tools:
        name = tools[0]["name"]
        acts |= {
            "no arguments": called(name, {}),
            "unknown argument": called(name, {"no_such_argument": 1}),
            "arguments that are a list": called(name, [1, 2]),
            "arguments that are no JSON": Action("", [ToolCall(name, '{"a": ', "call-0")]),
            "wrong types": called(name, _wrong(tools[0])),
            "many calls": Action("", [ToolCall(name, {}, f"call-{number}") for number in range(100)]),
        }
    return acts


def may_be_sound(tools: Sequence[Mapping[str, Any]]) -> set[str]:
    """Names of malformed actions that a tool may carry out all the same, so that a reward is no fault."""
    if not tools or (tools[0].get("parameters") or {}).get("required"):
        return set()
    return {"no arguments", "unknown argument", "wrong types", "many calls"}


def repeatable(observation: Any, tools: Sequence[Mapping[str, Any]], rng: random.Random) -> dict[str, Action]:
    """Actions that a stubborn agent may repeat for ever, by their descriptions: legal actions of an
    earl.v1.Observation, a call of each tool, and nonsense."""
    legal = list(observation.legal_actions)
    legal = legal if len(legal) <= MAX_REPEATED else rng.sample(legal, MAX_REPEATED)
    acts = {f"the action {text!r}": Action(text) for text in legal}
    for tool in tools[:MAX_REPEATED]:
        arguments = random_value(tool.get("parameters") or {"type": "object"}, rng)
        acts[f"a call of {tool['name']}"] = called(tool["name"], arguments)
    return acts | {"an empty text": Action(""), "nonsense": Action(NONSENSE)}


def _wrong(tool: Mapping[str, Any]) -> dict[str, Any]:
    properties = (tool.get("parameters") or {}).get("properties") or {}
    return {
        key: {"not": "this"} if value.get("type") != "object" else 7
        for key, value in properties.items()
        if isinstance(value, dict)
    }
