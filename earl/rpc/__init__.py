"""One way to serve and one way to call: gRPC on asyncio, with deadlines, typed errors and true health."""

import os

# gRPC's core writes its own lines to stderr for what is also raised here. Read when it is first loaded.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

from earl.rpc.auth import TlsFiles
from earl.rpc.client import Client
from earl.rpc.server import Server

__all__ = ["Client", "Server", "TlsFiles"]
