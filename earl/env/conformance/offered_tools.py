"""The tools that an environment's actions may call, as plain values. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def tools_of(info: Any) -> list[Mapping[str, Any]]:
    """The functions of EnvironmentInfo.tools_json: [{"name", "description", "parameters"}]; [] if none."""
    try:
        entries = json.loads(info.tools_json or "[]")
    except (ValueError, RecursionError):
        return []
    functions = [entry.get("function", entry) for entry in entries if isinstance(entry, dict)]
    return [function for function in functions if not fault_in_tool(function)]


def fault_in_tools(tools_json: str) -> str:
    """Returns why this is no list of functions; "" if it is one, or empty."""
    try:
        tools = json.loads(tools_json or "[]")
    except (ValueError, RecursionError) as error:
        return f"is not JSON: {error}"
    if not isinstance(tools, list):
        return "is no list"
    for tool in tools:
        if wrong := fault_in_tool(tool.get("function", tool) if isinstance(tool, dict) else tool):
            return f"holds {json.dumps(tool)[:80]}: {wrong}"
    return ""


def fault_in_tool(function: Any) -> str:
    """Returns why an entry of tools_json is no function that can be called; "" if it is one."""
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        return "it has no name"
    parameters = function.get("parameters", {})
    if not isinstance(parameters, dict) or parameters.get("type", "object") != "object":
        return "its parameters are no JSON schema of an object"
    return ""
