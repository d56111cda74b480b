"""SDK for environments: write one (base.py, tools.py), serve it (host.py), play one (session.py).

    from earl.env import Environment, EnvHost, GatewayClient, StepResult

Imports neither torch nor redis. What is named here is imported when it is first used: `EnvHost` and
`GatewayClient` bring gRPC.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from earl.env.base import (
        Action,
        Ending,
        Environment,
        Limits,
        Observation,
        StepResult,
        ToolCall,
        ToolResult,
    )
    from earl.env.host import EnvHost
    from earl.env.session import GatewayClient, Session, StepOutcome
    from earl.env.tools import ToolEnvironment, tool

__all__ = [
    "Action",
    "Ending",
    "EnvHost",
    "Environment",
    "GatewayClient",
    "Limits",
    "Observation",
    "Session",
    "StepOutcome",
    "StepResult",
    "ToolCall",
    "ToolEnvironment",
    "ToolResult",
    "tool",
]

_LAZY = {
    "Action": "earl.env.base",
    "Ending": "earl.env.base",
    "Environment": "earl.env.base",
    "Limits": "earl.env.base",
    "Observation": "earl.env.base",
    "StepResult": "earl.env.base",
    "ToolCall": "earl.env.base",
    "ToolResult": "earl.env.base",
    "EnvHost": "earl.env.host",
    "GatewayClient": "earl.env.session",
    "Session": "earl.env.session",
    "StepOutcome": "earl.env.session",
    "ToolEnvironment": "earl.env.tools",
    "tool": "earl.env.tools",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_LAZY[name]), name)
