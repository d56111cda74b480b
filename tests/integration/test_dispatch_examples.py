"""The program of docs/data-plane.md, as a reader of it types it: in two processes, and on two hosts."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import pytest

from benchmarks.network.links import Link
from benchmarks.network.rig import RigUnavailable, network
from earl.bus.embedded import EmbeddedValkey
from tests.support.needs import lacking
from tests.support.paths import ROOT

WAIT_S = 60.0
PAGE = (ROOT / "docs" / "data-plane.md").read_text()


def program(directory: Path) -> Path:
    """The page's program, its arenas in a directory of this test's own."""
    (text,) = re.findall(r"^```python\n(import asyncio.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    assert len([line for line in text.splitlines() if line.strip()]) <= 20
    path = directory / "rows.py"
    path.write_text(text.replace("/dev/shm/rows", f"/dev/shm/rows-{directory.name}-{os.getpid()}"))
    return path


def shown(command: str) -> list[str]:
    """The output that the page shows for a reading command that ends so."""
    return re.findall(rf"^.*\$ python rows.py read .*{command}\n(.*)$", PAGE, re.MULTILINE)


def read(program: Path, url: str, hosts: Sequence[tuple[tuple[str, ...], list[str]]]) -> str:
    """The output of the reader. hosts: of owner and reader, the beginning and end of a command there."""
    (before, after), (reads_before, reads_after) = hosts
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    owner = subprocess.Popen(
        [*before, sys.executable, str(program), "publish", url, *after],
        stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, env=environment,
    )  # fmt: skip
    try:
        reader = subprocess.run(
            [*reads_before, sys.executable, str(program), "read", url, *reads_after],
            capture_output=True, text=True, timeout=WAIT_S, env=environment, check=False,
        )  # fmt: skip
    finally:
        owner.communicate(timeout=WAIT_S)
    assert reader.returncode == 0, reader.stderr
    assert owner.returncode == 0
    return reader.stdout.strip()


async def test_two_processes(tmp_path: Path):
    valkey = EmbeddedValkey()
    url = await valkey.start(tmp_path)
    try:
        printed = await asyncio.to_thread(read, program(tmp_path), url, [((), []), ((), [])])
    finally:
        await valkey.stop()
    assert [printed] == shown("0")
    assert not [name for name in os.listdir("/dev/shm") if name.startswith(f"rows-{tmp_path.name}-")]


@pytest.mark.skipif(find_spec("ucxx") is None, reason="install earl[ucx]")
async def test_two_hosts(tmp_path: Path):
    if shutil.which("unshare") is None:
        lacking("util-linux")
    valkey = EmbeddedValkey()
    # A unix socket: hosts of the rig share the file system of the checkout and of /tmp.
    url = await valkey.start(tmp_path)
    try:
        with network(2, Link(1.0)) as rig:
            hosts = [(host.enter, [host.address]) for host in rig.hosts]
            printed = await asyncio.to_thread(read, program(tmp_path), url, hosts)
    except RigUnavailable as error:
        lacking(str(error))
    finally:
        await valkey.stop()
    assert [printed] == shown("10.0.0.2")
