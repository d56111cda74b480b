"""The needs of tests that EARL's own environment does not meet: programs and packages of the machine.

A test whose need is not met is skipped, and says what is missing and how to get it. With
EARL_TEST_NEEDS=required it fails instead: for a machine that is said to have everything.
"""

from __future__ import annotations

import os
import shutil
from typing import NoReturn

import pytest


def lacking(reason: str, *, module: bool = False) -> NoReturn:
    """reason: what is missing, and the command that gets it. module: asked while a module is imported."""
    if os.environ.get("EARL_TEST_NEEDS") == "required":
        pytest.fail(reason)
    pytest.skip(reason, allow_module_level=module)


def program(name: str, package: str) -> str:
    """The path of a program that one of Debian's packages brings."""
    path = shutil.which(name)
    if path is None:
        lacking(f"{name} is not on PATH: apt-get install --no-install-recommends {package}")
    return path
