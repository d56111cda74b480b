"""One way to serve and one way to call: gRPC on asyncio, with deadlines, typed errors and true health."""

import os

# gRPC's core writes its own lines to stderr for what is also raised here. Read when it is first loaded.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
# gRPC's fork handlers can crash a child between fork and exec (uvloop starts processes that way); every
# process here is spawned and none uses gRPC across a fork.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

from earl.rpc.auth import TlsFiles
from earl.rpc.client import Client
from earl.rpc.server import Server

__all__ = ["Client", "Server", "TlsFiles"]
