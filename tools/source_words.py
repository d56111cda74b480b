"""The words of the source: which identifiers, docstrings and class names tools/check_source.py refuses.

A name says what it holds in the field's words: `ticket`, `descriptor`, `reason`, not `one`, `found`, `why`.
A docstring stands without its signature, so it does not begin with "Of". A public class name stands in one
module only, its subject in front: `TicketVerdict`, `SelectorVerdict`.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping

FOLDERS = re.compile(r"^(earl|services|benchmarks|tools)/")
GENERATED = re.compile(r"^earl/v1/")

# Identifiers that say nothing of what they hold.
EMPTY = frozenset(
    ("one", "ones", "found", "said", "at", "own", "seen", "wanted", "asked", "told", "meant", "why", "whom")
)
# Words of identifiers that stood for something that the field has a word for, with that word.
DIALECT: Mapping[str, str] = {
    "bell": "wakeup",
    "chronicle": "recorder",
    "course": "the parallelism that is assumed",
    "cut": "parallelism, layout, shard or truncate",
    "cuts": "layouts",
    "dock": "columns",
    "goes": "leaves or continues",
    "helm": "controller",
    "look": "status, poll or measure",
    "looked": "status, poll or measure",
    "looks": "status, poll or measure",
    "meeting": "rendezvous",
    "patience": "retry budget",
    "recut": "reshard",
    "salts": "cache salts",
    "steered": "controlled",
    "steering": "controller",
}
# Class names that more than one module may have.
SHARED_CLASSES: frozenset[str] = frozenset()
# (path, identifier): names that a wire, a key of a file or another package's interface prescribes.
PRESCRIBED: frozenset[tuple[str, str]] = frozenset(
    (
        ("earl/cli/lib/decisions.py", "seen"),  # keys of decisions.jsonl
        ("earl/cli/lib/decisions.py", "why"),
        ("earl/cli/machine/findings.py", "said"),  # a key of `earl doctor --json`
        ("earl/env/conformance/card.py", "seen"),  # a key of `earl env test --json`
    )
)

DOCUMENTED = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)

Finding = tuple[int, str, str]


def bound_names(node: ast.AST) -> Iterator[str]:
    """Identifiers that a node gives something to: variables, parameters, attributes, functions, classes."""
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        yield node.id
    elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
        yield node.attr
    elif isinstance(node, ast.arg):
        yield node.arg
    elif isinstance(node, (*DOCUMENTED, ast.ExceptHandler, ast.MatchAs, ast.MatchStar)) and node.name:
        yield node.name


def words_of(name: str) -> list[str]:
    """`TrainerCut` and `trainer_cut` as ["trainer", "cut"]."""
    return [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z0-9]+", name)]


def word_findings(tree: ast.AST, path: str) -> Iterator[Finding]:
    """Identifiers, docstrings and the file's name that a reader cannot understand by themselves."""
    for word in words_of(path.rpartition("/")[2].removesuffix(".py")):
        if word in EMPTY:
            yield 1, f"{word} in the file's name", "say what the module holds"
    for node in ast.walk(tree):
        line = getattr(node, "lineno", 0)
        for name in bound_names(node):
            if (path, name) in PRESCRIBED:
                continue
            if name.strip("_") in EMPTY:
                yield line, f"the name {name}", "say what it is: ticket, descriptor, reason, offset"
            for word in words_of(name):
                if word in DIALECT:
                    yield line, f"{word} in the name {name}", f"the field says {DIALECT[word]}"
        if isinstance(node, (ast.Module, *DOCUMENTED)) and (ast.get_docstring(node) or "").startswith("Of "):
            yield line, 'a docstring that begins with "Of"', "write a sentence that needs no signature"


def comment_findings(source: str) -> Iterator[Finding]:
    """Comments that begin as a docstring must not either."""
    for number, line in enumerate(source.splitlines(), 1):
        if line.lstrip().startswith("# Of "):
            yield number, "a comment that begins with Of", "name the thing first"


def class_findings(modules: Iterable[tuple[str, ast.Module]]) -> Iterator[tuple[str, Finding]]:
    """(path, finding) for each public class whose name stands in more than one module."""
    places: dict[str, list[tuple[str, int]]] = defaultdict(list)
    for path, module in modules:
        for node in module.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append((path, node.lineno))
    for name, modules_with_it in sorted(places.items()):
        if len(modules_with_it) > 1 and name not in SHARED_CLASSES:
            others = ", ".join(path for path, _ in modules_with_it[1:])
            path, line = modules_with_it[0]
            yield path, (line, f"class {name} also in {others}", "put its subject in front")
