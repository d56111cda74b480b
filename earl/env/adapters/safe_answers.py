"""Answers that a grader may evaluate: reasoning-gym's `eval` some, or have sympy parse them, which does too.

What an agent wrote is never run as code: an answer reaches such a grader only if its syntax tree is of the
form that the task asks for, a literal, arithmetic or a formula, and small. A formula's powers are bounded,
so that working it out is too.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection
from fractions import Fraction
from typing import Any

from earl.env.adapters.arithmetic import ArithmeticFault, evaluate

MAX_LITERAL_CHARACTERS = 4_000
MAX_FORMULA_CHARACTERS = 400
MAX_FORMULA_NODES = 160
# Limits of a formula: numbers, powers of powers multiplied out, functions within functions.
_MAX_NUMBER = 10**12
_MAX_POWER = 64
_MAX_NESTED = 3
_FUNCTIONS = frozenset({"sin", "cos", "tan", "exp", "log", "sqrt", "asin", "acos", "atan", "Abs"})
_CONSTANTS = frozenset({"C", "E", "pi"})


def literal(text: str, entry: dict[str, Any]) -> bool:
    """A list, number or text as Python writes it."""
    if len(text) > MAX_LITERAL_CHARACTERS:
        return False
    try:
        ast.literal_eval(text.strip())
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return False
    return True


def arithmetic(text: str, entry: dict[str, Any]) -> bool:
    """Numbers joined by + - * / and parentheses."""
    try:
        evaluate(text)
    except ArithmeticFault:
        return False
    return True


def formula(text: str, entry: dict[str, Any]) -> bool:
    """A formula in the task's variables."""
    metadata = entry["metadata"]
    variables = {metadata["variable"]} if "variable" in metadata else set(metadata["variables"])
    if len(text) > MAX_FORMULA_CHARACTERS:
        return False
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return False
    if sum(1 for _ in ast.walk(tree)) > MAX_FORMULA_NODES:
        return False
    return _power(tree.body, variables, 0) is not None


def _power(node: ast.expr, names: Collection[str], nested: int) -> Fraction | None:
    """The largest product of powers within powers in a formula; None if it is none."""
    if isinstance(node, ast.Constant):
        return Fraction(1) if type(node.value) is int and node.value <= _MAX_NUMBER else None
    if isinstance(node, ast.Name):
        return Fraction(1) if node.id in names or node.id in _CONSTANTS else None
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.UAdd, ast.USub)):
        return _power(node.operand, names, nested)
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Sub, ast.Mult, ast.Div)):
        left, right = _power(node.left, names, nested), _power(node.right, names, nested)
        return None if left is None or right is None else max(left, right)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow):
        if isinstance(node.left, ast.Name) and node.left.id == "E":
            return _inside(node.right, names, nested)
        return _raised(node, names, nested)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _FUNCTIONS:
        plain = len(node.args) == 1 and not node.keywords
        return _inside(node.args[0], names, nested) if plain else None
    return None


def _inside(node: ast.expr, names: Collection[str], nested: int) -> Fraction | None:
    return _power(node, names, nested + 1) if nested < _MAX_NESTED else None


def _raised(node: ast.BinOp, names: Collection[str], nested: int) -> Fraction | None:
    base = _power(node.left, names, nested)
    try:
        exponent = abs(evaluate(ast.unparse(node.right)))
    except ArithmeticFault:
        return None
    if base is None or max(exponent.numerator, exponent.denominator) > _MAX_POWER:
        return None
    power = base * max(exponent, Fraction(1))
    return power if power <= _MAX_POWER else None


# Tasks whose graders evaluate answers → the form that may reach them, and else none does.
FORMS: dict[str, Callable[[str, dict[str, Any]], bool]] = {
    "binary_matrix": literal,
    "countdown": arithmetic,
    "intermediate_integration": formula,
    "n_queens": literal,
    "polynomial_multiplication": formula,
    "puzzle24": arithmetic,
    "simple_integration": formula,
    "spiral_matrix": literal,
    "string_insertion": literal,
}


def harmless(task: str, answer: str, entry: dict[str, Any]) -> bool:
    """Returns whether a task's grader may be given an answer: a right one of the task, or of a safe form."""
    form = FORMS.get(task)
    if form is None or answer == entry["answer"]:
        return True
    return answer in entry["metadata"].get("valid_answers", ()) or form(answer, entry)
