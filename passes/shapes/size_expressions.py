"""Sizes of axes as expressions of symbols: ``2*n + 1``, ``floor(width/2)``.

They are text of files, so they are computed here and not by sympy, which needs minutes for a maximum of a hundred
symbols. Text that is no such expression (``batch size``) is a name.
"""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable, Mapping
from fractions import Fraction
from functools import lru_cache

_LONGEST = 1000
"""The most characters; longer text is a name."""
_LARGEST = 2**64
_NAME = re.compile(r"[^\W\d][\w.]*")
_OPERATORS: dict[type[ast.operator], Callable[[Fraction, Fraction], Fraction | int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_FUNCTIONS: dict[str, tuple[Callable[..., Fraction | int], range]] = {
    "floor": (math.floor, range(1, 2)),
    "max": (max, range(2, _LONGEST)),
    "min": (min, range(2, _LONGEST)),
    "mod": (operator.mod, range(2, 3)),
}
"""Each with the numbers of arguments that it takes."""


def by_place(name: str | None, axis: int) -> str:
    """Return what an open dimension of a value is called that the model does not name."""
    return f"{name}[{axis}]"


def symbols(text: str) -> frozenset[str]:
    """Return the symbols of an expression; the text itself if it is not an expression."""
    parsed = _parsed(text)
    return frozenset({text}) if parsed is None else parsed[1]


def evaluate(text: str, sizes: Mapping[str, int]) -> int | None:
    """Return the size for some sizes of the symbols; None if they do not determine it, or it is not an integer."""
    if text in sizes:
        return sizes[text]
    parsed = _parsed(text)
    if parsed is None or not parsed[1] <= sizes.keys():
        return None
    try:
        number = _value(parsed[0], sizes)
    except (ArithmeticError, ValueError):
        return None
    return int(number) if number.denominator == 1 else None


@lru_cache(maxsize=1024)
def _parsed(text: str) -> tuple[ast.expr, frozenset[str]] | None:
    """Return the tree of an expression, with the symbols in it; None for other text."""
    if _NAME.fullmatch(text):
        return ast.Name(text), frozenset({text})
    if len(text) > _LONGEST:
        return None
    names: list[str] = []  # they may have dots, unlike Python's

    def numbered(name: re.Match[str]) -> str:
        if name[0].lower() in _FUNCTIONS and text[name.end() :].lstrip().startswith("("):
            return name[0].lower()
        names.append(name[0])
        return f"v{len(names) - 1}"

    try:
        tree = ast.parse(_NAME.sub(numbered, text).strip(), mode="eval").body
        for node in ast.walk(tree):
            if isinstance(node, ast.Name) and node.id not in _FUNCTIONS:
                node.id = names[int(node.id[1:])]
        _check(tree)
    except (MemoryError, RecursionError, SyntaxError, ValueError):
        return None
    return tree, frozenset(names)


def _check(node: ast.expr) -> None:
    """Raise ValueError for what is no expression of sizes."""
    match node:
        case ast.Name() | ast.Constant(value=int()):
            return
        case ast.BinOp(left=left, op=kind, right=right) if type(kind) in _OPERATORS:
            _check(left)
            _check(right)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            _check(operand)
        case ast.Call(func=ast.Name(id=name), args=given, keywords=[]) if (
            name in _FUNCTIONS and len(given) in _FUNCTIONS[name][1]
        ):
            for argument in given:
                _check(argument)
        case _:
            raise ValueError(ast.dump(node))


def _value(node: ast.expr, sizes: Mapping[str, int]) -> Fraction:
    match node:
        case ast.Name(id=name):
            return Fraction(sizes[name])
        case ast.Constant(value=int(number)):
            return Fraction(number)
        case ast.UnaryOp(operand=operand):
            return -_value(operand, sizes)
        case ast.BinOp(left=left, op=kind, right=right):
            result = Fraction(_OPERATORS[type(kind)](_value(left, sizes), _value(right, sizes)))
        case ast.Call(func=ast.Name(id=name), args=given):
            result = Fraction(_FUNCTIONS[name][0](*(_value(argument, sizes) for argument in given)))
        case _:
            raise AssertionError(ast.dump(node))
    if max(abs(result.numerator), result.denominator) > _LARGEST:
        raise OverflowError
    return result
