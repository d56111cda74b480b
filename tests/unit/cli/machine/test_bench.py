"""`earl bench` ends as after Ctrl-C when its terminal closes, and a second word does not stop that."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

WAITS = """
import signal
from earl.cli.machine.bench import root

root()
try:
    print("ready", flush=True)
    signal.pause()
except KeyboardInterrupt:
    print("cleans", flush=True)
    input()
    print("clean")
"""


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM])
def test_a_signal_that_ends_it_lets_it_clean_up(number: signal.Signals):
    with subprocess.Popen(
        [sys.executable, "-c", WAITS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == "ready\n"
            process.send_signal(number)
            assert process.stdout.readline() == "cleans\n"
            process.send_signal(number)
            assert process.communicate("\n", timeout=60)[0] == "clean\n"
        finally:
            process.kill()
    assert process.returncode == 0


def test_nohup_is_heeded():
    said = (
        "import signal; from earl.cli.machine.bench import root; root()\n"
        "print(repr(signal.getsignal(signal.SIGHUP)))"
    )
    done = subprocess.run(
        ["nohup", sys.executable, "-c", said], capture_output=True, text=True, check=True, timeout=60
    )
    assert "SIG_IGN" in done.stdout
