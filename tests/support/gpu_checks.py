"""Checks for the harness of `earl bench gpu` that end in every way that a check can."""

import os
import signal
import subprocess
import sys
import time

from benchmarks.gpu.check import CheckFigures, CheckSettings, CheckSkipped, judged


def passes(settings: CheckSettings) -> CheckFigures:
    """Leaves files in both of its directories."""
    for directory in (settings.directory, settings.arenas):
        (directory / "left").write_text("x")
    figures = {"directory": str(settings.directory), "arenas": str(settings.arenas), "sizes": settings.sizes}
    return judged(figures, {"bound": 1}, {"nothing is wrong": False})


def fails(settings: CheckSettings) -> CheckFigures:
    print("the last words")
    return judged({"value": 2}, {"bound": 1}, {"the value is 2": True, "nothing else": False})


def skips(settings: CheckSettings) -> CheckFigures:
    raise CheckSkipped("no such package", "install it")


def raises(settings: CheckSettings) -> CheckFigures:
    raise ValueError("broken")


def dies(settings: CheckSettings) -> CheckFigures:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


def hangs(settings: CheckSettings) -> CheckFigures:
    """Starts a process that ignores SIGTERM, says which, and never ends."""
    code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
    child = subprocess.Popen([sys.executable, "-c", code])
    print(child.pid, flush=True)
    time.sleep(600)
    raise AssertionError
