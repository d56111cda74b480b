"""The words of the source: which identifiers, docstrings and class names tools/check_source.py refuses.

A name says what it holds in the field's words: `ticket`, `descriptor`, `reason`, not `one`, `found`, `why`. A
docstring stands without its signature, so it does not begin with "Of", "These" or "From now on", nor with a
word of a question: "Returns whether ..." is a sentence, "Whether ..." is not. No text that is shown to people
begins with "Of". A module's function is named by more than one participle: `key_text`, not `shown`. A public
class name stands in one module only, its subject in front: `TicketVerdict`, `SelectorVerdict`.
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
# Those of them that say nothing inside a longer name either: `own_port`, `groups_wanted`.
EMPTY_PARTS = frozenset(("own", "seen", "said", "wanted", "asked", "told", "meant", "why", "whom"))
# Words of identifiers that stood for something that the field has a word for, with that word.
DIALECT: Mapping[str, str] = {
    "astray": "differing or unaligned",
    "became": "outcome",
    "bell": "wakeup",
    "beside": "in addition, next to or during",
    "chronicle": "recorder",
    "course": "the parallelism that is assumed",
    "cut": "parallelism, layout, shard or truncate",
    "cuts": "layouts",
    "dock": "columns",
    "goes": "leaves or continues",
    "hear": "receive",
    "heard": "received, reported or last seen",
    "helm": "controller",
    "lives": "incarnations",
    "look": "status, poll or measure",
    "looked": "status, poll or measure",
    "looks": "status, poll or measure",
    "meeting": "rendezvous",
    "mend": "fix or realign",
    "mends": "fixes or realigns",
    "otherwise": "default or differing",
    "patience": "retry budget",
    "recut": "reshard",
    "room": "space, capacity or memory",
    "salts": "cache salts",
    "silence": "time without an answer",
    "silent": "unreachable, late or last seen",
    "steered": "controlled",
    "steering": "controller",
}
# Participles that do not tell what a module's function does or returns.
PARTICIPLES = frozenset((
    "announced", "answered", "begun", "broken", "chosen", "ended", "given", "handled", "held", "kept",
    "known", "left", "listed", "made", "missing", "named", "opened", "served", "shown", "taken",
))  # fmt: skip
# A worker of the run; elsewhere a member is one of a group, a set or a class.
WORKERS = re.compile(
    r"^services/scheduler/(api/|journal/|monitor/|parallelism/|ledger/membership|[a-z]+\.py)"
)
# Beginnings of docstrings that only the signature explains.
FRAGMENTS = re.compile(
    r"(Of|These|Those|It|And|With|By|As|None|For|From now on|What|Whether|Where|How|Which|Who|When|Why)\b"
)
# In tests, whose names are sentences, only metaphors and fragments are refused.
TESTS = re.compile(r"^tests/")
METAPHORS = frozenset(
    ("bell", "chronicle", "cut", "cuts", "dock", "helm", "meeting", "patience", "recut", "steering")
)
# Class names that more than one module may have.
SHARED_CLASSES: frozenset[str] = frozenset()
# (path, identifier): names that a wire, a key of a file or another package's interface prescribes.
PRESCRIBED: frozenset[tuple[str, str]] = frozenset(
    (
        ("earl/cli/lib/decisions.py", "seen"),  # keys of decisions.jsonl
        ("earl/cli/lib/decisions.py", "why"),
        ("earl/cli/lib/snapshot.py", "silent"),  # a key of `earl status --json`
        ("earl/cli/machine/findings.py", "said"),  # a key of `earl doctor --json`
        ("earl/env/conformance/card.py", "seen"),  # a key of `earl env test --json`
    )
)
# Names that are right anywhere: the field's own, a key of the wire, a package's module.
RIGHT = frozenset(("last_seen", "last_seen_s", "silent_s"))

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


def docstring_of(node: ast.AST) -> list[ast.expr]:
    """The constant that is a node's docstring, if it has one."""
    first = node.body[0] if isinstance(node, (ast.Module, *DOCUMENTED)) and node.body else None
    return [first.value] if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) else []


def begins_with_of(value: object) -> bool:
    """Returns whether a constant is a text such as "Of the run.": a help text, a label, a log line."""
    return isinstance(value, str) and re.match(r"Of \w", value) is not None


def words_of(name: str) -> list[str]:
    """`TrainerCut` and `trainer_cut` as ["trainer", "cut"]."""
    return [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z0-9]+", name)]


def word_findings(tree: ast.Module, path: str) -> Iterator[Finding]:
    """Identifiers, docstrings and the file's name that a reader cannot understand by themselves."""
    for word in words_of(path.rpartition("/")[2].removesuffix(".py")):
        if word in EMPTY:
            yield 1, f"{word} in the file's name", "say what the module holds"
    for node in tree.body:
        if isinstance(node, DOCUMENTED) and node.name.strip("_") in PARTICIPLES:
            yield node.lineno, f"the function {node.name}", "say what it does or returns: open_file, key_text"
    docstrings = {id(constant) for node in ast.walk(tree) for constant in docstring_of(node)}
    for node in ast.walk(tree):
        line = getattr(node, "lineno", 0)
        for name in bound_names(node):
            if (path, name) not in PRESCRIBED and name not in RIGHT:
                yield from ((line, *finding) for finding in name_findings(name, path))
        if isinstance(node, (ast.Module, *DOCUMENTED)):
            yield from docstring_findings(node, line)
        elif isinstance(node, ast.Constant) and id(node) not in docstrings and begins_with_of(node.value):
            yield line, 'a text that begins with "Of"', "name the thing first"


def findings_in_tests(tree: ast.AST) -> Iterator[Finding]:
    """Metaphors in the identifiers of a test, and docstrings that only the signature explains."""
    for node in ast.walk(tree):
        line = getattr(node, "lineno", 0)
        for name in bound_names(node):
            for word in METAPHORS.intersection(words_of(name)):
                yield line, f"{word} in the name {name}", f"the field says {DIALECT[word]}"
        if isinstance(node, (ast.Module, *DOCUMENTED)):
            yield from docstring_findings(node, line)


def docstring_findings(
    node: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef, line: int
) -> Iterator[Finding]:
    """A docstring that only the signature explains."""
    if fragment := FRAGMENTS.match(ast.get_docstring(node) or ""):
        remedy = "write a sentence that needs no signature"
        yield line, f'a docstring that begins with "{fragment[0]}"', remedy


def name_findings(name: str, path: str) -> Iterator[tuple[str, str]]:
    """Yields what is wrong with an identifier, and the remedy."""
    if name.strip("_").lower() in EMPTY:
        yield f"the name {name}", "say what it is: ticket, descriptor, reason, offset"
        return
    for word in words_of(name):
        if word in EMPTY_PARTS:
            yield f"{word} in the name {name}", "say what it is: ticket, descriptor, reason, offset"
        elif word in DIALECT:
            yield f"{word} in the name {name}", f"the field says {DIALECT[word]}"
        elif word in ("member", "members") and WORKERS.match(path):
            yield f"{word} in the name {name}", "the field says worker"


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
