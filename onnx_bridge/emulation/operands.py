"""Operands as a disassembler prints them."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

VECTOR, CONSTANT, SCALAR = range(3)
NEGATE, ABSOLUTE, EXTEND = 1, 2, 4
VCC, TRAP, NONE, M0, EXEC, SCC, SINK = 106, 108, 124, 125, 126, 128, 132
ACCUMULATORS = 256
"""The index of the first accumulation register (AGPR) among the vector registers."""
_NAMED = {
    **{"vcc": VCC, "vcc_lo": VCC, "vcc_hi": VCC + 1, "exec": EXEC, "exec_lo": EXEC, "exec_hi": EXEC + 1},
    **{"m0": M0, "scc": SCC, "src_scc": SCC},
}
_APERTURES = {"src_shared_base": 2 << 16, "src_private_base": 1 << 16}
_REGISTER = re.compile(r"(v|a|s|ttmp)(?:(\d+)|\[(\d+):(\d+)\])(\.l|\.h)?")
_NUMBER = re.compile(r"-?(0x[0-9a-f]+|\d+(\.\d+)?(e-?\d+)?)")
_MODIFIED = re.compile(r"(-)?(?:\|(.+)\||(neg|abs|sext)\((.+)\))|-([^0-9].*)")


@dataclass(frozen=True)
class Operand:
    """An operand: a register, or a number that is not yet encoded for a type.

    Attributes:
        space: where it is: `VECTOR`, `CONSTANT` or `SCALAR`.
        at: the register's index.
        number: the number as printed, of a constant.
        modifiers: `NEGATE`, `ABSOLUTE` and `EXTEND`.
        half: ``.l`` or ``.h``, if one half of a register is meant.
    """

    space: int
    at: int = 0
    number: str = ""
    modifiers: int = 0
    half: str = ""
    last: int = 0


def parse(text: str) -> Operand | None:
    """Return the operand in ``text``; None if it has another form."""
    if match := _MODIFIED.fullmatch(text):
        negative, absolute, function, argument, negated = match.groups()
        inner = parse(absolute or argument or negated)
        if inner is None:
            return None
        added = (NEGATE if negative or negated or function == "neg" else 0) | (
            ABSOLUTE if absolute or function == "abs" else EXTEND if function == "sext" else 0
        )
        return Operand(inner.space, inner.at, inner.number, inner.modifiers | added, inner.half, inner.last)
    if match := _REGISTER.fullmatch(text):
        kind, single, first, last, half = match.groups()
        at = int(single or first)
        end = int(single or last)
        if kind in "va":
            shift = ACCUMULATORS if kind == "a" else 0
            return Operand(VECTOR, at + shift, half=half or "", last=end + shift) if at <= end < 256 else None
        limit, shift = (16, TRAP) if kind == "ttmp" else (106, 0)
        return Operand(SCALAR, at + shift, last=end + shift) if at <= end < limit else None
    if text in _NAMED:
        return Operand(SCALAR, _NAMED[text])
    if text in ("null", "off"):
        return Operand(CONSTANT, number="0")
    if text in _APERTURES or _NUMBER.fullmatch(text):
        return Operand(CONSTANT, number=text)
    return None


def encode(number: str, letter: str) -> tuple[int, int] | None:
    """Return the two words of a constant of a type; None if it cannot be of the type.

    Args:
        number: the number as printed: floats with a point, literals in hexadecimal, other numbers in decimal.
        letter: the type's letter in the machine's table.
    """
    if number in _APERTURES:
        return 0, _APERTURES[number]
    if "0x" not in number and ("." in number or "e" in number):
        if letter in "dUI":
            bits = int(np.float64(number).view(np.uint64))
            return bits & 0xFFFFFFFF, bits >> 32
        dtype, view = (np.float16, np.uint16) if letter in "hwspq" else (np.float32, np.uint32)
        return int(dtype(number).view(view)), 0
    value = int(number, 0)
    if letter == "d" and "0x" in number and value < 1 << 32:
        return 0, value
    if letter == "I" and "0x" in number and value < 1 << 32:
        value = (value ^ 0x80000000) - 0x80000000
    if letter in "hws":
        return value & 0xFFFF, 0
    return (value & 0xFFFFFFFF, value >> 32 & 0xFFFFFFFF) if letter in "dUI" else (value & 0xFFFFFFFF, 0)
