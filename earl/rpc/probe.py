"""`python -m earl.rpc.probe ADDRESS [SERVICE]`: is the service at host:port able to work?

For health checks of containers, which know no gRPC over TLS: exit code 0 if it answers SERVING, otherwise
1 and one line with the reason. SERVICE is a full name such as earl.v1.SchedulerService; without it the server
as a whole is checked. Health is open to all, so no token is sent; EARL_TLS_CA names the trusted authorities.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from earl.errors import EarlError
from earl.loopback import is_loopback
from earl.rpc import options
from earl.rpc.auth import TlsFiles, split_address
from earl.rpc.main import ended_by

DEADLINE_S = 3.0


def verdict(address: str, service: str, deadline_s: float) -> str:
    """ "" if it serves, else the reason why not. Raises ConfigError for a wrong address or TLS files."""
    host, _ = split_address(address)
    tls, set_so = TlsFiles.from_environment(), options.client(loopback=is_loopback(host))
    channel = (
        grpc.secure_channel(address, tls.channel_credentials(), options=set_so)
        if tls
        else grpc.insecure_channel(address, options=set_so)
    )
    with channel:
        try:
            request = health_pb2.HealthCheckRequest(service=service)
            stub: Any = health_pb2_grpc.HealthStub(channel)
            answer = stub.Check(request, timeout=deadline_s)
        except grpc.RpcError as error:
            return f"{error.code().name}: {error.details()}"  # type: ignore[attr-defined]
    if answer.status == health_pb2.HealthCheckResponse.SERVING:
        return ""
    return health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m earl.rpc.probe", description=__doc__)
    parser.add_argument("address", help="host:port")
    parser.add_argument("service", nargs="?", default="", help="full name; else the whole server")
    parser.add_argument("--deadline-s", type=float, default=DEADLINE_S)
    arguments = parser.parse_args()
    try:
        reason = verdict(arguments.address, arguments.service, arguments.deadline_s)
    except EarlError as error:
        return ended_by(error)
    if reason:
        print(f"{arguments.address}: {reason}", file=sys.stderr)  # noqa: T201
    return 1 if reason else 0


if __name__ == "__main__":
    sys.exit(main())
