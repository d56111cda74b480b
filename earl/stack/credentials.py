"""Gives each process the launch's tokens and addresses of its role, and never more.

With a token file (EARL_TOKENS) the services get the file, by which they know their callers and take
the worker's token themselves, so that a rotation needs no restart. Env hosts run code of others: they
get the environment's token alone, and the one of that day when they are started again. Without a file
there is one token for all, which everything that calls or is called gets. The token of a served teacher
(EARL_TEACHER_TOKEN) is for those alone that ask it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from earl.rpc.access import Access
from earl.rpc.auth import check_bind, check_call
from earl.rpc.token_file import Role
from earl.rpc.tokens import TokenFile, tokens_to_accept

VARIABLES = ("EARL_TOKEN", "EARL_TOKEN_FILE", "EARL_TOKENS")
TEACHER_VARIABLES = ("EARL_TEACHER_TOKEN", "EARL_TEACHER_TOKEN_FILE")
# What a launch cannot do without: the dashboard looks as an operator where there is no viewer's token.
SENT = (Role.OPERATOR, Role.WORKER, Role.ENVIRONMENT)


def check(scheduler: str, binds: Iterable[str]) -> None:
    """Checks tokens and addresses before a launch. binds: all addresses, the scheduler's among them.

    Raises ConfigError for a token file that lacks a role of its own, InsecureCall if the launcher would send
    its token there in plain text, InsecureBind for an address off loopback without TLS or token.
    """
    if path := os.environ.get("EARL_TOKENS"):
        file = TokenFile(Path(path))
        for role in SENT:
            file.send(role)
    access = Access.of(Role.OPERATOR)
    if access.token:
        check_call(scheduler, access.tls)
    serves_tls = access.tls is not None and access.tls.certificate is not None
    for bind in binds:
        check_bind(bind, tokens_to_accept(), access.tls if serves_tls else None)


def peers(role: str, addresses: Mapping[str, str]) -> dict[str, str]:
    """The run's addresses by name, "" for each that a process of this role may not know.

    The bus's holds its password, so only workers get it; a role that calls no service gets none.
    """
    names = {
        "": (),
        Role.ENVIRONMENT: ("EARL_GATEWAY",),
        Role.OPERATOR: ("EARL_GATEWAY", "EARL_SCHEDULER"),
        Role.VIEWER: ("EARL_GATEWAY", "EARL_SCHEDULER"),
    }.get(role, tuple(addresses))
    return {name: address if name in names else "" for name, address in addresses.items()}


def environment(role: str, *, calls_teacher: bool = False) -> dict[str, str]:
    """The variables of a process whose callers see it as `role`; "" for one that calls no service.

    calls_teacher: it sends the token of the run's served teacher.
    """
    hidden = {} if calls_teacher else {name: "" for name in TEACHER_VARIABLES if name in os.environ}
    return hidden | _of_role(role)


def _of_role(role: str) -> dict[str, str]:
    path = os.environ.get("EARL_TOKENS", "")
    if not role:
        return dict.fromkeys(VARIABLES, "")
    if not path:
        return {}
    if role == Role.ENVIRONMENT:
        return {**dict.fromkeys(VARIABLES, ""), "EARL_TOKEN": TokenFile(Path(path)).send(Role.ENVIRONMENT)}
    return {**dict.fromkeys(VARIABLES, ""), "EARL_TOKENS": str(Path(path).resolve())}
