"""Certificates for services off loopback: a certificate authority of your own."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Annotated, Any

import typer

from earl.errors import ConfigError

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    help="Certificates for services off loopback: a certificate authority of your own.",
    epilog="Example: earl certs new certs --host earl.example.org. docs/security.md lists where they go.",
)
Directory = Annotated[Path, typer.Argument(metavar="DIR", help="Where the files are.")]
HOST = "DNS name, *.name or IP address of servers; may be given again."
Host = typer.Option("--host", metavar="NAME", help=HOST)


@app.callback()
def certs() -> None:
    """Certificates for services off loopback: a certificate authority of your own."""


@app.command(epilog="Example: earl certs new certs --host earl.example.org --days 30")
def new(
    directory: Directory,
    host: Annotated[list[str], Host],
    days: Annotated[int, typer.Option(min=1, max=3650, help="How long the server's is good.")] = 90,
    authority_days: Annotated[int, typer.Option(min=1, max=3650, help="How long the authority's is.")] = 365,
    force: Annotated[bool, typer.Option("--force", help="Replace what is there.")] = False,
) -> None:
    """Make an authority and a certificate for servers of these names; localhost is always among them."""
    from earl.rpc.certificates import make

    made = make(directory, host, days=days, authority_days=authority_days, force=force)
    print_made(made, "server")
    print(f"{made.path('ca.pem')} is good until {made.authority_ends:%Y-%m-%d %H:%M %Z}")
    print("services that listen:")
    print(f"  export EARL_TLS_CERT={made.path('server.pem')} EARL_TLS_KEY={made.path('server.key')}")
    print("whoever calls them, services among them:")
    print(f"  export EARL_TLS_CA={made.path('ca.pem')}")
    print(f"{made.path('ca.key')} is needed by nothing that runs: keep it where it was made, and to yourself")


@app.command(epilog="Example: earl certs add certs dashboard")
def add(
    directory: Directory,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of its files: NAME.pem and NAME.key.")],
    host: Annotated[list[str] | None, Host] = None,
    days: Annotated[int, typer.Option(min=1, max=3650, help="How long it is good.")] = 90,
) -> None:
    """Make a certificate for one server alone, by the same authority: its key is nobody else's."""
    from earl.rpc.certificates import add

    made = add(directory, name, host or (), days=days)
    print_made(made, name)


@app.command(epilog="Example: earl certs renew certs --days 90")
def renew(
    directory: Directory,
    host: Annotated[list[str] | None, Host] = None,
    days: Annotated[int, typer.Option(min=1, max=3650, help="How long they are good.")] = 90,
) -> None:
    """Renew the servers' certificates with the same authority; running services load them.

    The certificate of all servers keeps its names and gets those of --host, too.
    """
    from earl.rpc.certificates import SERVER, extra_certificates, renew

    for name in (SERVER, *extra_certificates(directory)):
        made = renew(directory, (host or ()) if name == SERVER else (), days=days, name=name)
        print_made(made, name)


def print_made(made: Any, name: str) -> None:
    """Prints the names of a server's certificate, its file and its expiry."""
    print(f"for {', '.join(made.names)}")
    print(f"{made.path(f'{name}.pem')} is good until {made.server_ends:%Y-%m-%d %H:%M %Z}")


@app.command(epilog="Example: earl certs show certs --json")
def show(
    directory: Directory,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show when the certificates of a directory expire; exit code 2 if one has."""
    from earl.rpc.certificates import SERVER, ends, extra_certificates

    expired = False
    expires: dict[str, str] = {}
    for name in (*(f"{role}.pem" for role in (SERVER, *extra_certificates(directory))), "ca.pem"):
        moment = ends(directory / name)
        left = moment - datetime.datetime.now(datetime.UTC)
        expired = expired or left <= datetime.timedelta()
        how = f"in {left.days} days" if left > datetime.timedelta() else "already"
        expires[name] = moment.isoformat()
        if not as_json:
            print(f"{directory / name} expires at {moment:%Y-%m-%d %H:%M %Z}, {how}")
    if as_json:
        print(json.dumps({"directory": str(directory), "expires": expires, "expired": expired}))
    if expired:
        raise ConfigError(
            f"a certificate in {directory} has expired",
            "make another: earl certs renew, or earl certs new --force for the authority, too",
        )
