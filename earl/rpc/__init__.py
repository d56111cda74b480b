"""One way to serve and one way to call: gRPC on asyncio, with deadlines, typed errors and true health.

What is named here is imported when it is first used: who only calls needs nothing of a server.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from earl.rpc.auth import TlsFiles
    from earl.rpc.client import Client
    from earl.rpc.server import Server

__all__ = ["Client", "Server", "TlsFiles"]

_LAZY = {"Client": "earl.rpc.client", "Server": "earl.rpc.server", "TlsFiles": "earl.rpc.auth"}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_LAZY[name]), name)
