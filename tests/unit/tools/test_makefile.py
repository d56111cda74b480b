"""`make test-browser` runs the tests in a browser where chromium is on PATH, and else says that none ran."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.support import needs
from tests.support.paths import ROOT

# Writes down how it was called.
PYTHON = '#!/bin/sh\necho "$EARL_TEST_NEEDS: $*"\n'


def made(path: Path, binaries: Path) -> str:
    """The output of `make test-browser` with nothing but `path` on PATH, its environment taken as installed.

    binaries: in place of the environment's bin.
    """
    command = [needs.program("make", "make"), "-o", ".venv/.installed", f"BIN={binaries}", "test-browser"]
    done = subprocess.run(
        command, cwd=ROOT, env={"PATH": str(path)}, capture_output=True, text=True, timeout=20, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def program(file: Path, text: str) -> None:
    file.parent.mkdir(exist_ok=True)
    file.write_text(text)
    file.chmod(0o755)


def test_without_chromium_it_says_that_no_test_ran_in_a_browser(tmp_path: Path):
    program(tmp_path / "bin" / "python", PYTHON)
    (tmp_path / "empty").mkdir()
    assert made(tmp_path / "empty", tmp_path / "bin") == (
        "test-browser: chromium is not on PATH (Debian's package chromium): no test ran in a browser\n"
    )


def test_with_chromium_every_browser_test_must_run(tmp_path: Path):
    program(tmp_path / "bin" / "python", PYTHON)
    program(tmp_path / "programs" / "chromium", "#!/bin/sh\n")
    assert made(tmp_path / "programs", tmp_path / "bin") == "required: -m pytest tests/browser\n"
