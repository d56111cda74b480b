"""Finds results whose measured code has changed much since: in more than LIMIT commits.

Each benchmark keeps the paths that it measures beside it, as MEASURED_CODE of its module. A file is followed
back through its renames, from HEAD to the result's commit. A commit counts when it changes what such a file
does: when it adds or removes one, or when the syntax tree of one differs in more than

- imports, and the names by which modules of this project are imported,
- names of such modules in strings (`python -m services.x`),
- docstrings and comments.

So a commit that only moves files, or follows such a move, does not count; one that renames an identifier
does. Of other files (scripts of the store, contracts, run files) any change of a line counts.

A result also keeps the object ids of what it measured (benchmarks/record/measured.py), so its content can be
compared with today's where its commit is not in the history. A commit that is not there is a fault of
tools/figures.py, except for the results that benchmarks/record/notes.toml lists.
"""

from __future__ import annotations

import ast
import hashlib
import re
import subprocess
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.record.measured import measured_code, object_ids, of_benchmark
from tools.git_command import git
from tools.results import ROOT, Record

LIMIT = 50
PROJECT = ("earl", "services", "benchmarks")
MODULE_NAME = re.compile(rf"(?:{'|'.join(PROJECT)})(?:[./][a-z0-9_]+)+(?:\.py)?")
NO_CODE = re.compile(r"(?:^|/)__pycache__/|\.md$|\.json$|\.jsonl$")


@dataclass(frozen=True, slots=True)
class Change:
    """One file in one commit: its path and blob before and after; None where there was none."""

    before: tuple[str, str] | None
    after: tuple[str, str] | None


@dataclass(slots=True)
class History:
    """The commits of a repository that lead to HEAD, newest first, with what each changed."""

    root: Path
    commits: list[tuple[str, list[Change]]]

    @classmethod
    def since(cls, commits: Collection[str], root: Path = ROOT) -> History:
        """From HEAD back to the oldest of the given commits."""
        oldest = max(commits, key=lambda commit: int(git(root, "rev-list", "--count", f"{commit}..HEAD")))
        listed = git(
            root, "log", "--topo-order", "-M", "--raw", "--no-abbrev", "--format=>%H", f"{oldest}..HEAD",
        )  # fmt: skip
        listed_commits: list[tuple[str, list[Change]]] = []
        for line in listed.splitlines():
            if line.startswith(">"):
                listed_commits.append((line[1:], []))
            elif line.startswith(":"):
                listed_commits[-1][1].append(_change(line))
        return cls(root, listed_commits)

    def between(self, commit: str) -> Iterator[list[Change]]:
        """The changes of each commit that came after `commit`, newest first."""
        later = set(git(self.root, "rev-list", f"{commit}..HEAD").split())
        return (changes for name, changes in self.commits if name in later)


def _change(line: str) -> Change:
    facts, *names = line.split("\t")
    _, _, before, after, status = facts.split()
    return Change(
        None if status == "A" else (names[0], before), None if status == "D" else (names[-1], after)
    )


class Blobs:
    """The behaviour of files at a commit: digests of their code, read from one git process."""

    def __init__(self, root: Path) -> None:
        self._process = subprocess.Popen(
            ["git", "-C", str(root), "cat-file", "--batch"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self._digests: dict[str, str] = {}

    def __enter__(self) -> Blobs:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()

    def digest(self, path: str, blob: str) -> str:
        if blob not in self._digests:
            self._digests[blob] = digest(path, self._read(blob))
        return self._digests[blob]

    def _read(self, blob: str) -> str:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None and stdout is not None
        stdin.write(blob.encode() + b"\n")
        stdin.flush()
        size = int(stdout.readline().split()[2])
        return stdout.read(size + 1)[:-1].decode("utf-8", "replace")


def digest(path: str, source: str) -> str:
    """A digest that is equal for two versions of a file with the same behaviour by this module's rule."""
    if path.endswith(".py"):
        try:
            source = shape(source)
        except SyntaxError:
            pass
    return hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest()


def shape(source: str) -> str:
    """The syntax tree as text, without the parts that do not count."""
    tree = ast.parse(source)
    imported: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)) and _of_project(node):
            imported |= dict.fromkeys(
                (alias.asname or alias.name.partition(".")[0] for alias in node.names), ""
            )
    _Reduced(imported).visit(tree)
    return ast.dump(tree)


def _of_project(node: ast.Import | ast.ImportFrom) -> bool:
    if isinstance(node, ast.ImportFrom):
        return node.level > 0 or (node.module or "").partition(".")[0] in PROJECT
    return any(alias.name.partition(".")[0] in PROJECT for alias in node.names)


class _Reduced(ast.NodeTransformer):
    """Removes imports and docstrings; names imported from the project are numbered by their first use."""

    def __init__(self, imported: dict[str, str]) -> None:
        self._imported = imported
        self._used = 0

    def visit_Import(self, node: ast.Import) -> None:
        return None

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        return None

    def visit_Expr(self, node: ast.Expr) -> ast.AST | None:
        if isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            return None
        return self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> ast.AST:
        if node.id in self._imported:
            if not self._imported[node.id]:
                self._used += 1
                self._imported[node.id] = f"<import {self._used}>"
            node.id = self._imported[node.id]
        return node

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        if isinstance(node.value, str):
            node.value = MODULE_NAME.sub("<module>", node.value)
        return node


def changes(history: History, commit: str, measured: Collection[str], blobs: Blobs) -> int:
    """Returns how many commits after `commit` changed the measured code.

    measured: files and folders as they are named at HEAD.
    """
    files = set(git(history.root, "ls-files", "--", *measured).split("\n"))
    count = 0
    for changed in history.between(commit):
        touched = [change for change in changed if _measured(change, files, measured)]
        for change in touched:
            if change.after is not None:
                files.discard(change.after[0])
            if change.before is not None:
                files.add(change.before[0])
        count += any(_counts(change, blobs) for change in touched)
    return count


def _measured(change: Change, files: Collection[str], measured: Iterable[str]) -> bool:
    """Returns whether a change is of a file that is followed, or removes one from a measured folder."""
    if change.after is not None:
        return change.after[0] in files
    path = change.before[0] if change.before else ""
    return any(path == place or path.startswith(f"{place}/") for place in measured)


def _counts(change: Change, blobs: Blobs) -> bool:
    path = (change.after or change.before or ("", ""))[0]
    if NO_CODE.search(path):
        return False
    if change.before is None or change.after is None:
        return True
    if change.before[1] == change.after[1]:
        return False
    return blobs.digest(*change.before) != blobs.digest(*change.after)


# --- benchmarks -----------------------------------------------------------------------------


def report(known: Record, shown: Mapping[str, list[Path]], root: Path = ROOT) -> list[str]:
    """A line for each shown result whose measured code has changed in more than LIMIT commits since.

    shown: names of results, and the pages that show each. Of a result whose commit is not in the history, the
    line says whether the content that it measured is the same as today's, if the result keeps its ids.
    """
    measured = measured_code(root)
    commits = {name: known.results[name].head for name in shown}
    there = {commit for commit in commits.values() if commit and leads_to_head(root, commit)}
    history = History.since(there, root) if there else History(root, [])
    lines = []
    with Blobs(root) as blobs:
        for name in sorted(shown):
            paths = of_benchmark(known.results[name].benchmark, measured)
            if commits[name] not in there:
                lines.append(
                    f"stale? {name}: its commit is not in this history ({commits[name] or 'none known'}): "
                    + same_content(known.results[name].measured_code, root)
                )
            elif not paths:
                lines.append(f"stale? {name}: its benchmark has no MEASURED_CODE")
            elif (count := changes(history, commits[name], paths, blobs)) > LIMIT:
                pages = ", ".join(sorted(path.relative_to(root).as_posix() for path in shown[name]))
                lines.append(f"stale: {name}: what it measures has changed in {count} commits ({pages})")
    return lines


def same_content(measured: Mapping[str, str], root: Path = ROOT) -> str:
    """Returns whether the measured files and folders are today what they were, by their object ids."""
    if not measured:
        return "the result does not keep what it measured"
    now = object_ids(root, measured)
    changed = [path for path, name in measured.items() if now.get(path) != name]
    return f"changed since: {', '.join(changed)}" if changed else "same code"


def outside_history(known: Record, root: Path = ROOT) -> list[str]:
    """A line for each result whose commit does not lead to HEAD, except those that notes.toml lists.

    Empty where the whole history is not there: in a shallow clone, or outside a checkout.
    """
    if not has_history(root):
        return []
    results = [result for name, result in sorted(known.results.items()) if name not in known.missing]
    there = {head for head in {result.head for result in results} if head and leads_to_head(root, head)}
    return [
        f"{result.name}: its commit {result.head or '(none)'} does not lead to HEAD"
        for result in results
        if result.head not in there
    ]


def has_history(root: Path = ROOT) -> bool:
    """Returns whether the whole history that leads to HEAD can be read."""
    try:
        git(root, "rev-parse", "--verify", "HEAD")
        return git(root, "rev-parse", "--is-shallow-repository") == "false"
    except (subprocess.CalledProcessError, OSError):
        return False


def leads_to_head(root: Path, commit: str) -> bool:
    """Returns whether a commit is in the history; not so in a shallow clone, or outside a checkout."""
    try:
        git(root, "merge-base", "--is-ancestor", commit, "HEAD")
    except (subprocess.CalledProcessError, OSError):
        return False
    return True
