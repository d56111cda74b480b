"""Refuses what must never stand in EARL's source, by reading syntax trees: `python tools/check_source.py`.

The rules:
- Nothing runs code from data (pickle and its kin, torch.load, yaml.load, remote model code): whoever can
  write to a checkpoint, a socket or a bus would own the process.
- Generated stubs are imported only at the edges (STUB_IMPORTERS: rpc, bus, codecs, servicers and their like),
  so that contracts can grow without touching what decides.
- A module whose docstring says "Pure." imports nothing of IMPURE.
- Every error of earl/errors.py says what to do, where it may reach a person.
- Names say what they hold, and public classes have unique names (`tools.source_words`).
- No files import each other in a circle (`tools.import_circles`).

Prints `path:line: what; remedy` for each finding; exit code 1 if there is any.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tools import import_circles, source_words  # noqa: E402  found from wherever this is run

FOLDERS = ("earl", "services", "tests", "benchmarks", "tools", "examples")

MODULES: dict[str, str] = dict.fromkeys(
    ("pickle", "cPickle", "_pickle", "cloudpickle", "dill", "marshal", "shelve", "joblib"),
    "use protobuf, msgspec, safetensors or JSON",
)
CALLS = {
    "torch.load": "use safetensors",
    "torch.save": "use safetensors",
    "yaml.load": "use yaml.safe_load, or better TOML",
    "yaml.unsafe_load": "use yaml.safe_load, or better TOML",
    "yaml.full_load": "use yaml.safe_load, or better TOML",
    "numpy.load": "use safetensors",
    "np.load": "use safetensors",
}
# Functions of torch.distributed that pickle what they carry.
METHODS: dict[str, str] = dict.fromkeys(
    (
        "broadcast_object_list",
        "all_gather_object",
        "gather_object",
        "scatter_object_list",
        "send_object_list",
        "recv_object_list",
    ),
    "broadcast uint8 tensors of encoded bytes",
)
KEYWORDS = {"trust_remote_code": "never run code from a checkpoint", "allow_pickle": "use safetensors"}

GENERATED = re.compile(r"^earl/v1/")
STUB_IMPORTERS = re.compile(
    r"^(earl/(rpc|bus|v1)/|tests/|benchmarks/|(earl|services)/(.*/)?"
    r"([a-z_]+_)?(codec|service|servicer|host|session|store|registry|client|membership|events|gateway|"
    r"admission|streams)[a-z_]*\.py$)"
)

# Clocks, I/O, tasks and threads, generated stubs. pyproject.toml refuses the same for whole folders.
IMPURE = re.compile(
    r"(asyncio|time|datetime|socket|subprocess|threading|redis|grpc|torch|earl\.(v1|rpc|bus))(\.|$)"
)
PURE = re.compile(r"(\bPure|; pure)[.,]")

ERRORS = ROOT / "earl" / "errors.py"
RAISERS = re.compile(r"^(earl|services)/")
# How an episode or a generation ended is data, which is counted or tried again: these need no remedy.
DATA = ("EnvironmentFailure", "EngineError")

Finding = tuple[int, str, str]


def demanding(catalogue: str) -> frozenset[str]:
    """Names of the errors in a module like earl/errors.py that must have a remedy: all but DATA and what is
    derived from the first of it."""
    bases = {
        node.name: dotted(node.bases[0])
        for node in ast.walk(ast.parse(catalogue))
        if isinstance(node, ast.ClassDef) and node.bases
    }
    named = {name for name in bases if name not in DATA}
    return frozenset(name for name in named if DATA[0] not in line_of(name, bases))


def line_of(name: str, bases: dict[str, str]) -> list[str]:
    """A class and its base classes."""
    return [name, *line_of(bases[name], bases)] if name in bases else [name]


def dotted(node: ast.expr) -> str:
    """`a.b.c` of an attribute chain, "" for anything else."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        before = dotted(node.value)
        return f"{before}.{node.attr}" if before else ""
    return ""


def imported(node: ast.AST) -> list[str]:
    """Full names that an import statement brings in."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom) and node.level == 0:
        return [node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)]
    return []


def call_findings(node: ast.Call) -> Iterator[Finding]:
    name = dotted(node.func)
    if name in CALLS:
        yield node.lineno, f"{name}()", CALLS[name]
    if isinstance(node.func, ast.Attribute) and node.func.attr in METHODS:
        yield node.lineno, f"{node.func.attr}()", METHODS[node.func.attr]
    for keyword in node.keywords:
        off = isinstance(keyword.value, ast.Constant) and not keyword.value.value
        if keyword.arg in KEYWORDS and not off:
            yield node.lineno, f"{keyword.arg}=", KEYWORDS[keyword.arg]


def error_findings(node: ast.Call, errors: frozenset[str]) -> Iterator[Finding]:
    name = dotted(node.func).rpartition(".")[2]
    if name not in errors or any(isinstance(argument, ast.Starred) for argument in node.args):
        return
    remedies = [*node.args[1:2], *(keyword.value for keyword in node.keywords if keyword.arg == "remedy")]
    if not remedies or any(isinstance(remedy, ast.Constant) and not remedy.value for remedy in remedies):
        yield node.lineno, f"{name} without a remedy", "say what to do about it"


def import_findings(node: ast.AST, path: str) -> Iterator[Finding]:
    line = getattr(node, "lineno", 0)
    names = imported(node)
    for name in names:
        if name in CALLS:
            yield line, f"import of {name}", CALLS[name]
    for module in dict.fromkeys(name.split(".")[0] for name in names):
        if module in MODULES:
            yield line, f"import of {module}", MODULES[module]
    stubs = any(name == "earl.v1" or name.startswith("earl.v1.") for name in names)
    if stubs and not STUB_IMPORTERS.match(path):
        yield line, "generated stubs away from the edges", "convert in a codec*.py or service*.py beside it"


def purity_findings(module: ast.Module) -> Iterator[Finding]:
    if not PURE.search(ast.get_docstring(module) or ""):
        return
    for node in ast.walk(module):
        for name in imported(node)[:1]:
            if IMPURE.match(name):
                line = getattr(node, "lineno", 0)
                yield line, f"import of {name} in a pure module", "take the value as an argument"


def findings(source: str, path: str, errors: frozenset[str] = frozenset()) -> list[Finding]:
    """(line, what, remedy) of every violation in one file; `path` is relative to the root, with slashes.

    errors: names of the exceptions that must have a remedy.
    """
    tree = ast.parse(source, path)
    violations: list[Finding] = list(purity_findings(tree))
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            violations += call_findings(node)
            if RAISERS.match(path):
                violations += error_findings(node, errors)
            name = dotted(node.func)
            literal = node.args[0].value if node.args and isinstance(node.args[0], ast.Constant) else None
            if name in ("importlib.import_module", "__import__") and str(literal).split(".")[0] in MODULES:
                violations.append((node.lineno, f"import of {literal}", MODULES[str(literal).split(".")[0]]))
        else:
            violations += import_findings(node, path)
    return sorted(set(violations))


def main() -> int:
    files = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]
    errors = demanding(ERRORS.read_text())
    modules: list[tuple[str, ast.Module]] = []
    count = 0
    for path in files:
        name = path.relative_to(ROOT).as_posix()
        if GENERATED.match(name):
            continue
        for line, what, remedy in findings(path.read_text(), name, errors):
            print(f"{name}:{line}: {what}; {remedy}")
            count += 1
        if source_words.FOLDERS.match(name):
            tree = ast.parse(path.read_text())
            modules.append((name, tree))
            words = source_words.word_findings(tree, name)
            for line, what, remedy in (*words, *source_words.comment_findings(path.read_text())):
                print(f"{name}:{line}: {what}; {remedy}")
                count += 1
        elif source_words.TESTS.match(name):
            for line, what, remedy in source_words.findings_in_tests(ast.parse(path.read_text())):
                print(f"{name}:{line}: {what}; {remedy}")
                count += 1
    for name, (line, what, remedy) in source_words.class_findings(modules):
        print(f"{name}:{line}: {what}; {remedy}")
        count += 1
    for circle in import_circles.circles(import_circles.edges(dict(modules))):
        print(f"{circle[0]}:0: imports in a circle with {', '.join(circle[1:])}; move what both need")
        count += 1
    print(f"source: {len(files)} files, {count} findings")
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main())
