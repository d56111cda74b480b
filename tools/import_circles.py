"""Circles of imports between files, whatever stands around the import: TYPE_CHECKING, a function, a try.

import-linter's layers judge folders; two files of one folder can form a circle that no layer sees.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping


def module_of(path: str) -> str:
    """The module of a file: "earl/rpc/__init__.py" is "earl.rpc"."""
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def edges(files: Mapping[str, ast.Module]) -> dict[str, set[str]]:
    """The files that each file imports, by path; of a package that is imported, its __init__.py."""
    paths = {module_of(path): path for path in files}
    imports: dict[str, set[str]] = {}
    for path, tree in files.items():
        names = {name for node in ast.walk(tree) for name in _imported(node, paths)}
        imports[path] = {paths[name] for name in names if name in paths} - {path}
    return imports


def _imported(node: ast.AST, paths: Mapping[str, str]) -> Iterator[str]:
    if isinstance(node, ast.Import):
        for alias in node.names:
            yield alias.name
    elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
        modules = [f"{node.module}.{alias.name}" for alias in node.names]
        known = [name for name in modules if name in paths]
        yield from known
        if len(known) < len(modules):  # some of the names are of the package itself
            yield node.module


def circles(imports: Mapping[str, set[str]]) -> list[list[str]]:
    """Groups of files that import each other, directly or through others (Tarjan 1972), each sorted."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    groups: list[list[str]] = []

    def visit(path: str) -> None:
        index[path] = low[path] = len(index)
        stack.append(path)
        for target in sorted(imports.get(path, ())):
            if target not in index:
                visit(target)
                low[path] = min(low[path], low[target])
            elif target in stack:
                low[path] = min(low[path], index[target])
        if low[path] == index[path]:
            group: list[str] = []
            while not group or group[-1] != path:
                group.append(stack.pop())
            if len(group) > 1:
                groups.append(sorted(group))

    sys.setrecursionlimit(max(sys.getrecursionlimit(), 4 * len(imports) + 1000))
    for path in sorted(imports):
        if path not in index:
            visit(path)
    return sorted(groups)
