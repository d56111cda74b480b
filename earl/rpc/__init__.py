"""One way to serve and one way to call: gRPC on asyncio, with deadlines, typed errors and true health."""

from earl.rpc.auth import TlsFiles
from earl.rpc.client import Client
from earl.rpc.server import Server

__all__ = ["Client", "Server", "TlsFiles"]
