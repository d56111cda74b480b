"""Reads the contracts' rules for a method: which roles may call it, and whether each call is audited."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from google.protobuf import descriptor_pool

from earl.errors import ConfigError
from earl.rpc.token_file import Role
from earl.v1 import common_pb2


@dataclass(frozen=True, slots=True)
class Rule:
    """The requirements of a method's contract: the roles that may call it, and whether calls are audited."""

    roles: frozenset[Role]
    audited: bool


def rules(service: str) -> dict[str, Rule]:
    """The rules of a service's methods, by gRPC's names for them ("/earl.v1.SchedulerService/Join").

    service: its full name. Raises ConfigError for a method whose contract names no role.
    """
    roles_of: Any = common_pb2.roles
    audited: Any = common_pb2.audited
    by_method = {}
    for method in descriptor_pool.Default().FindServiceByName(service).methods:
        options = method.GetOptions()
        names = (common_pb2.Role.Name(number) for number in options.Extensions[roles_of])
        roles = frozenset(Role(name.removeprefix("ROLE_").lower()) for name in names)
        if not roles:
            raise ConfigError(
                f"{service}/{method.name} names no role that may call it",
                "add `option (roles)` to its contract",
            )
        by_method[f"/{service}/{method.name}"] = Rule(roles, options.Extensions[audited])
    return by_method
