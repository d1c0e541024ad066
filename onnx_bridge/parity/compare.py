"""The comparison: do two sets of outputs agree, and if not, where and by how much.

An element agrees when |actual − expected| ≤ atol + rtol·|expected|; both parts count, and nothing is passed over: a
missing or extra output, another dtype, shape, or place of a NaN or Inf is a difference.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np

from onnx_bridge.errors import InputError, nearest

Array = np.ndarray[Any, np.dtype[Any]]
Number = float | int | bool | str

_TINY = 1e-30
"""Stands for a limit of 0 where an error is told as a multiple of its limit."""
_CHUNK = 1 << 20
"""Elements converted to float64 at a time, so that memory stays bounded whatever an output's size."""


@dataclass(frozen=True)
class Tolerance:
    """How far an element may be off: |actual − expected| ≤ atol + rtol·|expected|.

    Raises:
        InputError: a part is negative or not finite.
    """

    rtol: float
    atol: float

    def __post_init__(self) -> None:
        if not (0 <= self.rtol < math.inf and 0 <= self.atol < math.inf):
            what = f"a tolerance cannot be rtol {self.rtol}, atol {self.atol}"
            raise InputError(what, hint="use finite numbers, zero or more")


EXACT = Tolerance(0.0, 0.0)

DEFAULTS: dict[str, tuple[Tolerance, float]] = {
    "float64": (Tolerance(1e-9, 1e-10), 1e-14),
    "float32": (Tolerance(1e-3, 1e-4), 1e-7),
    "float16": (Tolerance(1e-2, 1e-2), 1e-4),
    "bfloat16": (Tolerance(8e-2, 8e-2), 1e-3),
}
"""By dtype: the tolerance, and the least that its absolute part comes down to (see `default_tolerance`).

They are meant for the same function computed in another order through a deep network. float32: errors of 1e-5 are
usual behind a hundred layers, 1e-3 shows a wrong constant or a lower precision within. float64: anything computed in
float32 on the way shows. float16 and bfloat16: ten times the rounding of one operation (2⁻¹⁰, 2⁻⁷).
"""


def default_tolerance(expected: Array) -> Tolerance:
    """The tolerance for an output, from its dtype and, where its values are small, from the largest of them.

    Integers, bools and strings are exact. Floats of 8 bits and fewer may be off by one step of their grid. For other
    floats `DEFAULTS` holds, but atol is at most rtol times the largest finite value: else all of a softmax over a large
    vocabulary would lie below atol, and zeros would pass for it. Below the dtype's floor of rounding noise atol does
    not go.
    """
    dtype = expected.dtype
    if dtype.name in DEFAULTS:
        tolerance, floor = DEFAULTS[dtype.name]
        return Tolerance(tolerance.rtol, min(tolerance.atol, max(tolerance.rtol * _largest(expected), floor)))
    if dtype.name.startswith("float") and dtype.itemsize == 1 and dtype.name != "float8_e8m0fnu":
        limits: Any = ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]
        return Tolerance(float(limits.eps), float(limits.smallest_subnormal))
    return EXACT


@dataclass(frozen=True)
class OutputComparison:
    """How one output compares.

    Attributes:
        name: the output.
        reason: what is different; None where nothing is beyond the tolerance.
        dtype: the expected dtype (the actual one of an extra output).
        shape: the expected shape (the actual one of an extra output).
        tolerance: what was allowed; None where elements were not compared.
        elements: their number.
        mismatched: how many are beyond the tolerance, or NaN or Inf on one side only.
        nonfinite: how many are NaN, or the same Inf, on both sides: they agree, but prove little.
        worst_index: the element whose error is the largest multiple of its limit, also where it is within the limit; a
            NaN or Inf on one side goes first. None where nothing differs.
        worst_actual: its actual value.
        worst_expected: its expected value.
        max_abs: largest |actual − expected|. This and the rest: over the elements that are finite on both sides,
            computed in float64; None for strings and where elements were not compared.
        max_rel: largest |actual − expected| / |expected|, over the elements whose expected value is not 0.
        mean_abs: mean of |actual − expected|.
        rmse: root of the mean of (actual − expected)².
        cosine: of the angle between both, as vectors; 1 for two zero vectors, 0 for one.
        sqnr_db: 10·log₁₀(Σ expected² / Σ (actual − expected)²): infinite where nothing differs.
    """

    name: str
    reason: str | None
    dtype: str = ""
    shape: tuple[int, ...] = ()
    tolerance: Tolerance | None = None
    elements: int = 0
    mismatched: int = 0
    nonfinite: int = 0
    worst_index: tuple[int, ...] | None = None
    worst_actual: Number | None = None
    worst_expected: Number | None = None
    max_abs: float | None = None
    max_rel: float | None = None
    mean_abs: float | None = None
    rmse: float | None = None
    cosine: float | None = None
    sqnr_db: float | None = None

    @property
    def passed(self) -> bool:
        """Whether the output agrees."""
        return self.reason is None

    def to_json(self) -> dict[str, Any]:
        """The attributes, and ``passed``, as strict JSON values.

        Numbers that JSON lacks are the strings "NaN", "Infinity" and "-Infinity", which Python's ``float`` and
        JavaScript's ``Number`` read; null says that there is no such number.
        """
        plain = {name: _strict(value) for name, value in dataclasses.asdict(self).items()}
        return {"name": self.name, "passed": self.passed} | plain


@dataclass(frozen=True)
class Comparison:
    """How all outputs of one run compare, the expected ones first and in their order."""

    outputs: tuple[OutputComparison, ...]

    @property
    def passed(self) -> bool:
        """Whether every output agrees; without any output nothing was shown, so that is a failure."""
        return bool(self.outputs) and all(output.passed for output in self.outputs)


def compare(
    actual: Mapping[str, Array],
    expected: Mapping[str, Array],
    tolerance: Tolerance | Mapping[str, Tolerance] | None = None,
) -> Comparison:
    """Compare outputs by name.

    Args:
        actual: what is judged.
        expected: the reference.
        tolerance: for all outputs of floats (integers, bools and strings stay exact), or for the outputs named;
            the rest has its `default_tolerance`.

    Raises:
        InputError: a tolerance names an output that neither side has.
    """
    names = [*expected, *(name for name in actual if name not in expected)]
    named: Mapping[str, Tolerance] = tolerance if isinstance(tolerance, Mapping) else {}
    for name in named:
        if name not in names:
            hint = nearest(name, names) or f"the outputs are {', '.join(names) or 'none'}"
            raise InputError("a tolerance is given, but there is no such output", where=f"output {name!r}", hint=hint)
    outputs = []
    for name in names:
        if name in actual and name in expected:
            general = tolerance if isinstance(tolerance, Tolerance) and _is_float(expected[name].dtype) else None
            outputs.append(_compare(name, actual[name], expected[name], named.get(name) or general))
        else:
            array, reason = (actual[name], "extra") if name in actual else (expected[name], "missing")
            outputs.append(OutputComparison(name, reason, _name(array.dtype), array.shape, elements=array.size))
    return Comparison(tuple(outputs))


def _compare(name: str, actual: Array, expected: Array, tolerance: Tolerance | None) -> OutputComparison:
    dtype = _name(expected.dtype)
    strings = dtype == "string"
    reasons = []
    if _name(actual.dtype) != dtype:
        reasons.append(f"dtype {_name(actual.dtype)} ≠ {dtype}")
    elif expected.dtype.kind == "c":
        reasons.append(f"{dtype} cannot be compared")
    if actual.shape != expected.shape:
        reasons.append(f"shape {list(actual.shape)} ≠ {list(expected.shape)}")
    if reasons:
        return OutputComparison(name, "; ".join(reasons), dtype, expected.shape, elements=expected.size)
    allowed = EXACT if strings else tolerance or default_tolerance(expected)
    tally = _Tally(allowed)
    for chunk, start in _chunks(actual, expected):
        (tally.add_strings if strings else tally.add)(*chunk, start)
    metrics: dict[str, float] = {} if strings else tally.metrics()
    index = None
    if tally.worst is not None:
        index = tuple(int(place) for place in np.unravel_index(tally.worst, expected.shape))
    return OutputComparison(
        name,
        tally.reason(expected.size, index, actual, expected),
        dtype,
        expected.shape,
        allowed,
        expected.size,
        tally.mismatched,
        tally.nonfinite,
        index,
        None if index is None else _number(actual[index]),
        None if index is None else _number(expected[index]),
        **metrics,
    )


def _chunks(actual: Array, expected: Array) -> Iterator[tuple[tuple[Array, Array], int]]:
    """Both arrays flat, some elements at a time, and where each piece starts."""
    flat = actual.reshape(-1), expected.reshape(-1)
    for start in range(0, expected.size, _CHUNK):
        yield (flat[0][start : start + _CHUNK], flat[1][start : start + _CHUNK]), start


@dataclass
class _Tally:
    """What has been seen of one output."""

    tolerance: Tolerance
    finite: int = 0
    nonfinite: int = 0
    beyond: int = 0
    one_sided: dict[str, int] = field(default_factory=lambda: {"NaN": 0, "Inf": 0})
    worst: int | None = None
    severity: float = 0.0
    max_abs: float = 0.0
    max_rel: float = 0.0
    sum_abs: float = 0.0
    noise: float = 0.0
    signal: float = 0.0
    power: float = 0.0
    product: float = 0.0

    @property
    def mismatched(self) -> int:
        return self.beyond + sum(self.one_sided.values())

    def add_strings(self, actual: Array, expected: Array, start: int) -> None:
        different = np.flatnonzero(np.asarray(actual, dtype=object) != np.asarray(expected, dtype=object))
        self.beyond += len(different)
        if len(different) and self.worst is None:
            self.worst = start + int(different[0])

    def add(self, actual: Array, expected: Array, start: int) -> None:
        with np.errstate(over="ignore", invalid="ignore"):
            a, b = actual.astype(np.float64), expected.astype(np.float64)
            finite = np.isfinite(a) & np.isfinite(b)
            if not finite.all():
                self._add_nonfinite(a, b, finite, start)
                a, b = a[finite], b[finite]
                actual, expected = actual[finite], expected[finite]
            if not a.size:
                return
            # 64-bit integers are subtracted as such: float64 would not tell neighbours apart
            distance = _distance(actual, expected) if actual.dtype.kind in "iu" else np.abs(a - b)
            size = np.abs(b)
            limit = self.tolerance.atol + self.tolerance.rtol * size
            self.beyond += int(np.count_nonzero(distance > limit))
            severity = distance / np.maximum(limit, _TINY)
            place = int(np.argmax(severity))
            if severity[place] > self.severity:
                self.severity = float(severity[place])
                self.worst = start + int(place if finite.all() else np.flatnonzero(finite)[place])
            nonzero = size > 0
            self.finite += a.size
            self.max_abs = max(self.max_abs, float(distance.max()))
            self.max_rel = max(self.max_rel, float(np.max(distance[nonzero] / size[nonzero], initial=0.0)))
            self.sum_abs += float(distance.sum())
            self.noise += float(np.sum(distance * distance))
            self.signal += float(np.sum(b * b))
            self.power += float(np.sum(a * a))
            self.product += float(np.sum(a * b))

    def _add_nonfinite(self, a: Array, b: Array, finite: Array, start: int) -> None:
        nans = np.isnan(a) != np.isnan(b)
        infinities = ~finite & ~nans & (a != b) & ~np.isnan(a)
        self.one_sided["NaN"] += int(np.count_nonzero(nans))
        self.one_sided["Inf"] += int(np.count_nonzero(infinities))
        self.nonfinite += int(np.count_nonzero(~finite & ~nans & ~infinities))
        different = np.flatnonzero(nans | infinities)
        if len(different) and self.severity < math.inf:
            self.severity, self.worst = math.inf, start + int(different[0])

    def metrics(self) -> dict[str, float]:
        """The numbers of an `OutputComparison`, by their names there; none where no element is finite."""
        if not self.finite:
            return {}
        lengths = math.sqrt(self.signal) * math.sqrt(self.power)
        alike = 1.0 if self.signal == self.power else 0.0
        return {
            "max_abs": self.max_abs,
            "max_rel": self.max_rel,
            "mean_abs": self.sum_abs / self.finite,
            "rmse": math.sqrt(self.noise / self.finite),
            "cosine": max(-1.0, min(1.0, self.product / lengths)) if lengths else alike,
            "sqnr_db": _decibels(self.signal, self.noise),
        }

    def reason(self, elements: int, index: tuple[int, ...] | None, actual: Array, expected: Array) -> str | None:
        if not self.mismatched or index is None:
            return None
        parts = [
            f"{kind} at {count} position{'s' if count > 1 else ''} on one side only"
            for kind, count in self.one_sided.items()
            if count
        ]
        if self.beyond:
            parts.append(f"{self.beyond} of {elements} elements beyond tolerance")
        at = f" at [{','.join(map(str, index))}]" if index else ""
        return f"{', '.join(parts)}; worst{at}: {_shown(actual[index])} against {_shown(expected[index])}"


def _distance(actual: Array, expected: Array) -> Array:
    """|actual − expected| of integers as float64, subtracted without overflow."""
    if actual.dtype.itemsize < 8:
        return np.abs(actual.astype(np.int64) - expected.astype(np.int64)).astype(np.float64)
    larger, smaller = np.maximum(actual, expected), np.minimum(actual, expected)
    return (larger.view(np.uint64) - smaller.view(np.uint64)).astype(np.float64)


def _decibels(signal: float, noise: float) -> float:
    if noise == 0:
        return math.inf
    return 10 * (math.log10(signal) - math.log10(noise)) if signal else -math.inf


def _largest(array: Array) -> float:
    """The largest finite magnitude in an array of floats; 0 where there is none."""
    largest = 0.0
    flat = array.reshape(-1)
    for start in range(0, flat.size, _CHUNK):
        piece = np.abs(flat[start : start + _CHUNK].astype(np.float64))
        largest = max(largest, float(np.max(piece, initial=0.0, where=np.isfinite(piece))))
    return largest


def _is_float(dtype: np.dtype[Any]) -> bool:
    return "float" in dtype.name


def _name(dtype: np.dtype[Any]) -> str:
    return "string" if dtype.kind in "OUST" else dtype.name


def _number(value: Any) -> Number:
    """An element as a Python value."""
    if isinstance(value, str | bytes):
        return str(value) if isinstance(value, str) else value.decode(errors="replace")
    if isinstance(value, bool | np.bool_):
        return bool(value)
    return int(value) if "int" in type(value).__name__ else float(value)  # ml_dtypes' int4 is no np.integer


def _shown(value: Any) -> str:
    number = _number(value)
    return f"{number:.9g}" if isinstance(number, float) else repr(number)


def _strict(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, tuple):
        return list(value)
    return value
