"""Checks that bytecode is written where the environment says that none is."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from earl.bytecode import MODULES, write_bytecode

ROOT = Path(__file__).parents[2]


def test_bytecode_is_written_also_where_processes_write_none(tmp_path: Path):
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONPYCACHEPREFIX": str(tmp_path)}
    command = (
        "from earl.bytecode import write_bytecode; assert not list(write_bytecode(['earl.bulk_import']))"
    )
    subprocess.run([sys.executable, "-c", command], cwd=ROOT, env=environment, check=True, timeout=60)
    assert [path.name.split(".")[0] for path in tmp_path.rglob("bulk_import.*.pyc")] == ["bulk_import"]


def test_a_package_that_is_not_installed_is_left_out_and_a_module_of_ours_is_not(tmp_path: Path):
    (tmp_path / "wants_an_extra.py").write_text("import no_such_package\n")
    sys.path.insert(0, str(tmp_path))
    try:
        (line,) = write_bytecode(["wants_an_extra"])
        assert line == "wants_an_extra is left out: No module named 'no_such_package'"
        with pytest.raises(ModuleNotFoundError, match=r"earl\.no_such_module"):
            list(write_bytecode(["earl.no_such_module"]))
    finally:
        sys.path.remove(str(tmp_path))


def test_every_module_of_the_list_exists():
    assert [module for module in MODULES if importlib.util.find_spec(module) is None] == []
