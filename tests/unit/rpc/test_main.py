"""A process started by `earl.rpc.main`: the ready line, drain on SIGTERM, exit codes, light imports."""

import json
import signal
import subprocess
import sys

PROGRAM = """
import asyncio, sys
from earl.errors import ModelNotFound
from earl.rpc.main import announce, run

async def main(stop):
    if sys.argv[1] == "fail":
        raise ModelNotFound("no model at\\n/nowhere", "set model.path")
    announce("thing", "127.0.0.1:1")
    await stop.wait()
    if sys.argv[1] == "stuck":
        print("draining", flush=True)
        await asyncio.Event().wait()
    print("drained", flush=True)

run(main)
"""


def start(mode: str) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, mode], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def test_sigterm_drains_and_exits_0():
    process = start("wait")
    assert process.stdout
    assert json.loads(process.stdout.readline()) == {"ready": "thing", "address": "127.0.0.1:1"}
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=30)
    assert (process.returncode, out) == (0, "drained\n")


def test_second_signal_does_not_wait():
    process = start("stuck")
    assert process.stdout
    process.stdout.readline()
    process.send_signal(signal.SIGINT)
    assert process.stdout.readline() == "draining\n"
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)
    assert process.returncode == 130


def test_error_is_one_line_and_its_exit_code():
    process = start("fail")
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out) == (3, "")
    assert err == "earl: error: no model at /nowhere; set model.path\n"


def test_rpc_and_env_import_nothing_heavy():
    code = (
        "import sys, earl.rpc, earl.rpc.main, earl.env, earl.obs.log\n"
        "print([m for m in ('torch', 'redis', 'ucxx', 'uvloop', 'numpy') if m in sys.modules])"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"
