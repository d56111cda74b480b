"""A rank for tests of where ranks listen: it joins the others as a trainer's does, and says where it and
the agent that started it listen.

python -m tests.support.listening_rank DIRECTORY
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import psutil

from services.trainer.ranks.process_group import Group, leave


def listening(process: psutil.Process | None) -> list[str]:
    """Addresses of a process's TCP sockets that listen."""
    assert process is not None
    found = process.net_connections("tcp")
    return [one.laddr.ip for one in found if one.status == psutil.CONN_LISTEN]  # type: ignore[union-attr]


if __name__ == "__main__":
    group = Group("cpu")
    group.barrier()
    own = psutil.Process()
    said = {"own": listening(own), "agent": listening(own.parent())}
    (Path(sys.argv[1]) / f"rank-{group.rank}").write_text(json.dumps(said))
    group.barrier()
    group.close()
    leave(0)
