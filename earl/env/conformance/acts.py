"""Actions, and the tools that they may call, as plain values. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a tool: what Action.tool_calls carries."""

    name: str
    arguments_json: str


@dataclass(frozen=True, slots=True)
class Act:
    """One action: its text and, for environments with tools, the calls in it."""

    text: str
    calls: Sequence[Call] = ()


def tools_of(info: Any) -> list[Mapping[str, Any]]:
    """The functions of EnvironmentInfo.tools_json: [{"name", "description", "parameters"}]; [] if none."""
    try:
        entries = json.loads(info.tools_json or "[]")
    except ValueError:
        return []
    functions = [entry.get("function", entry) for entry in entries if isinstance(entry, dict)]
    return [function for function in functions if not fault_in_tool(function)]


def fault_in_tool(function: Any) -> str:
    """Why an entry of tools_json is no function that can be called; "" if it is one."""
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        return "it has no name"
    parameters = function.get("parameters", {})
    if not isinstance(parameters, dict) or parameters.get("type", "object") != "object":
        return "its parameters are no JSON schema of an object"
    return ""
