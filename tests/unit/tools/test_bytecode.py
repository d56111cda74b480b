"""Checks that bytecode is written where the environment says that none is."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

from tools.bytecode import MODULES

ROOT = Path(__file__).parents[3]


def test_bytecode_is_written_also_where_processes_write_none(tmp_path: Path):
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONPYCACHEPREFIX": str(tmp_path)}
    command = "from tools.bytecode import write_bytecode; write_bytecode(['earl.bulk_import'])"
    subprocess.run([sys.executable, "-c", command], cwd=ROOT, env=environment, check=True, timeout=60)
    assert [path.name.split(".")[0] for path in tmp_path.rglob("bulk_import.*.pyc")] == ["bulk_import"]


def test_every_module_of_the_list_exists():
    assert [module for module in MODULES if importlib.util.find_spec(module) is None] == []
