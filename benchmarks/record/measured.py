"""The code that a benchmark measures, and the identity of that code's content.

A benchmark names the files and folders that decide its figures as MEASURED_CODE of its module. Its results
keep git's object id of each. The ids depend on names and content alone, so a result can be compared with
today's code even if its commit is in no history any more.
"""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Collection, Mapping
from pathlib import Path

from benchmarks.record.checkout import ROOT, git

NAME = "MEASURED_CODE"


def measured_code(root: Path = ROOT) -> dict[str, tuple[str, ...]]:
    """The paths that each benchmark of the checkout at `root` measures, by the benchmark's name."""
    project = root / "pyproject.toml"
    if not project.exists():
        return {}
    points = tomllib.loads(project.read_text(encoding="utf-8"))["project"]["entry-points"]["earl.benchmarks"]
    return {name: _declared(root, point.partition(":")[0]) for name, point in points.items()}


def _declared(root: Path, module: str) -> tuple[str, ...]:
    tree = ast.parse((root / f"{module.replace('.', '/')}.py").read_text(encoding="utf-8"))
    for node in tree.body:
        if isinstance(node, ast.Assign) and [ast.unparse(target) for target in node.targets] == [NAME]:
            return tuple(ast.literal_eval(node.value))
    return ()


def of_benchmark(result: str, measured: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    """The paths of a result's benchmark, whose name may be followed by that of a run file."""
    return next((paths for kind, paths in measured.items() if f"{result}-".startswith(f"{kind}-")), ())


def object_ids(root: Path, paths: Collection[str], commit: str = "HEAD") -> dict[str, str]:
    """Git's object id of each file or folder as it is in a commit; one that the commit lacks is left out."""
    ids = {path: git(root, "rev-parse", "--verify", "--quiet", f"{commit}:{path}") for path in paths}
    return {path: name for path, name in ids.items() if name}
