"""Tokens by which services know their callers: make, rotate and list them."""

from __future__ import annotations

import datetime
import json
import os
import re
from pathlib import Path
from typing import Annotated

import typer

from earl.errors import ConfigError
from earl.rpc import token_file
from earl.rpc.token_file import Entry, Role
from earl.rpc.tokens import token_id

UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
LONGEST = datetime.timedelta(days=3660)

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    help="Tokens by which services know their callers: make, rotate and list them.",
    epilog="Example: earl tokens new --expires 30d. docs/security.md lists what each role may do.",
)
FILE = "The token file; else EARL_TOKENS, else ~/.config/earl/tokens.toml."
File = Annotated[
    Path | None,
    typer.Option("--file", metavar="F", help=FILE),
]
Which = Annotated[
    str, typer.Option("--role", metavar="R", help="operator, worker, environment or viewer; else all four.")
]
Expires = Annotated[
    str, typer.Option("--expires", metavar="TIME", help="Lifetime of the tokens, like 30d or 12h.")
]


@app.command(epilog="Example: earl tokens new --role environment --expires 30d")
def new(role: Which = "", expires: Expires = "", file: File = None) -> None:
    """Add a token of each role, or of one, to the token file, which is created if missing.

    No token is printed: `earl tokens show` does that.
    """
    path, ends = place(file), moment(expires)
    entries = token_file.read(path) if path.exists() else []
    made = [token_file.make(role_name, ends) for role_name in roles(role)]
    token_file.write(path, entries + made)
    for entry in made:
        print(line(entry))
    print(f"in {path}; for services: export EARL_TOKENS={path}")


@app.command(epilog="Example: earl tokens rotate --keep 12h")
def rotate(
    role: Which = "",
    expires: Expires = "",
    keep: Annotated[
        str, typer.Option("--keep", metavar="TIME", help="How long the former tokens stay valid.")
    ] = "1d",
    file: File = None,
) -> None:
    """Add new tokens, let the former ones expire soon, and remove those that have expired.

    Services load the change within seconds; nothing has to be restarted.
    """
    path, until, ends = place(file), moment(keep), moment(expires)
    chosen, now = roles(role), datetime.datetime.now(datetime.UTC)
    kept = [entry for entry in token_file.read(path) if entry.good_for_s(now) > 0]
    former = [shortened(entry, until) if entry.role in chosen else entry for entry in kept]
    made = [token_file.make(role_name, ends) for role_name in chosen]
    token_file.write(path, [entry for entry in former if entry.good_for_s(now) > 0] + made)
    for entry in made:
        print(line(entry))
    print(f"in {path}; the former ones stay valid for {keep}")


@app.command("list", epilog="Example: earl tokens list --json")
def list_(
    file: File = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show what the token file has: role, identifier as in logs, expiry; never a token."""
    entries = token_file.read(place(file))
    if as_json:
        print(json.dumps({"file": str(place(file)), "tokens": [as_object(entry) for entry in entries]}))
        return
    for entry in entries:
        print(line(entry))


@app.command(epilog="Example: earl tokens show operator")
def show(
    role: Annotated[str, typer.Argument(metavar="ROLE", help="operator, worker, environment or viewer.")],
    file: File = None,
    every: Annotated[bool, typer.Option("--all", help="Every valid token, one per line.")] = False,
) -> None:
    """Print the token of a role that expires last, for EARL_TOKEN of its holder.

    With --all it is the last line: what EARL_TOKEN_FILE of an env host needs while tokens are rotated.
    """
    (role_name,) = roles(role)
    path, now = place(file), datetime.datetime.now(datetime.UTC)
    good = [entry for entry in token_file.read(path) if entry.role == role_name and entry.good_for_s(now) > 0]
    if not good:
        raise ConfigError(
            f"{path} has no {role_name} token that has not expired",
            f"earl tokens new --role {role_name} --file {path}",
        )
    for entry in good if every else good[-1:]:
        print(entry.token)


def place(file: Path | None) -> Path:
    """The token file: as given, else EARL_TOKENS, else below the user's configuration directory."""
    home = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    return file or Path(os.environ.get("EARL_TOKENS") or home / "earl" / "tokens.toml")


def roles(name: str) -> list[Role]:
    """The role of this name, or all for "". Raises ConfigError."""
    if name and name not in tuple(Role):
        raise ConfigError(f"there is no role {name!r}", f"name one of {', '.join(Role)}")
    return [Role(name)] if name else list(Role)


def moment(lasts: str) -> datetime.datetime | None:
    """The time at which a duration such as "30d" ends, rounded to seconds; None for "".

    Raises ConfigError.
    """
    if not lasts:
        return None
    match = re.fullmatch(r"(\d{1,9})([smhd])", lasts)
    span = datetime.timedelta(seconds=int(match[1]) * UNITS_S[match[2]]) if match else datetime.timedelta()
    if not datetime.timedelta() < span <= LONGEST:
        raise ConfigError(
            f"{lasts!r} is not a duration of at most ten years", "write it like 30d, 12h or 90m"
        )
    return (datetime.datetime.now(datetime.UTC) + span).replace(microsecond=0)


def shortened(entry: Entry, until: datetime.datetime | None) -> Entry:
    """The same token, valid until then at the latest."""
    ends = [time for time in (entry.expires, until) if time]
    return Entry(entry.role, entry.token, min(ends, default=None))


def line(entry: Entry) -> str:
    """A token's role, identifier and expiry, never the token."""
    left_s = entry.good_for_s(datetime.datetime.now(datetime.UTC))
    ends = f"expires {entry.expires:%Y-%m-%d %H:%M:%S %Z}" if entry.expires else "does not expire"
    if left_s <= 0:
        ends = ends.replace("expires", "expired")
    return f"{entry.role:12} {token_id(entry.token)}  {ends}"


def as_object(entry: Entry) -> dict[str, object]:
    """A token's role, identifier and expiry for JSON, never the token."""
    return {
        "role": str(entry.role),
        "id": token_id(entry.token),
        "expires": entry.expires.isoformat() if entry.expires else None,
        "good": entry.good_for_s(datetime.datetime.now(datetime.UTC)) > 0,
    }
