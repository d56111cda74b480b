"""Arithmetic in a text, evaluated by walking its syntax tree: exact, bounded, and never run as code."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable
from fractions import Fraction

MAX_CHARACTERS = 120
# Magnitude of numerator and denominator of every number on the way.
MAX_BITS = 256
_DECIMALS = 6

_OPERATORS: dict[type[ast.operator], Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.Div: lambda a, b: a / b,
}


class ArithmeticFault(ValueError):
    """The text is no arithmetic, or out of bounds; the message says why, in one line."""


def evaluate(text: str) -> Fraction:
    """The value of numbers joined by + - * / and parentheses. Raises ArithmeticFault."""
    if len(text) > MAX_CHARACTERS:
        raise ArithmeticFault(f"more than {MAX_CHARACTERS} characters")
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise ArithmeticFault("not an expression") from None
    return _value(tree.body)


def _value(node: ast.expr) -> Fraction:
    if isinstance(node, ast.Constant):
        number = node.value
        if isinstance(number, (int, float)) and not isinstance(number, bool):
            if not math.isfinite(number):
                raise ArithmeticFault("a number is too large")
            return _bounded(Fraction(str(number)))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.UAdd, ast.USub)):
        value = _value(node.operand)
        return -value if isinstance(node.op, ast.USub) else value
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        left, right = _value(node.left), _value(node.right)
        if isinstance(node.op, ast.Div) and right == 0:
            raise ArithmeticFault("division by zero")
        return _bounded(_OPERATORS[type(node.op)](left, right))
    raise ArithmeticFault("only numbers, + - * / and parentheses")


def _bounded(value: Fraction) -> Fraction:
    if max(value.numerator.bit_length(), value.denominator.bit_length()) > MAX_BITS:
        raise ArithmeticFault("a number is too large")
    return value


def number_text(value: Fraction) -> str:
    """The value as a calculator shows it: an integer, or up to six decimals."""
    if value.denominator == 1:
        return str(value.numerator)
    scaled = round(value * 10**_DECIMALS)
    whole, rest = divmod(abs(scaled), 10**_DECIMALS)
    digits = f"{rest:0{_DECIMALS}d}".rstrip("0")
    return f"{'-' if scaled < 0 else ''}{whole}{'.' + digits if digits else ''}"
