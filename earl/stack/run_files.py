"""Names of the files in a run's directory, and how one is written: for commands that only look at runs.

`earl.stack.rundir` describes each; it needs the whole run file's schema, which takes longer to import than
`earl status` takes without it.
"""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from typing import Any

log = logging.getLogger(__name__)

LOCK = "launcher.lock"
LOGS = "logs"
FAILURE = "failure.json"
# The figures of a run that has ended.
RESULT = "result.json"
LAUNCH = "launch.json"
# A folder: what the machines of a run on a cluster tell each other.
CLUSTER = "cluster"
# host:port at which an embedded Valkey also listens for other machines, port 0 for any free one; "" for none.
BIND_VARIABLE = "EARL_BUS_BIND"
# A link to the dashboard, for users who may read the file; replaced when it was used.
DASHBOARD_LINK = "dashboard.url"


def read_object(path: Path, *, warn: bool = False) -> dict[str, Any]:
    """A JSON object; an empty one where there is none. warn: logs that a file which is there holds none."""
    try:
        content = path.read_bytes()
    except OSError:
        return {}
    try:
        value = json.loads(content)
    except ValueError:
        value = None
    if isinstance(value, dict):
        return value
    if warn:
        log.warning("%s is no JSON object: it is left out", path)
    return {}


def replace(path: Path, text: str) -> None:
    """Writes a file whole or not at all; only this user can read it (a redis_url may hold a password)."""
    scratch = path.with_name(f".{path.name}.new")
    scratch.unlink(missing_ok=True)  # whatever is there: a link, or a file that others have open
    with open(os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        file.write(text)
    scratch.replace(path)
