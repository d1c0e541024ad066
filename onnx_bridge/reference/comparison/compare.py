"""The comparison of two sets of outputs: whether they agree, and if not, where and by how much they differ.

An element agrees when |actual − expected| ≤ atol + rtol·|expected|. A missing or extra output, another dtype, shape, or
place of a NaN or Inf is a difference. Sequences are compared element by element, as outputs ``s[0]``, ``s[1]``, …;
optionals by whether there is a value, and then by the value.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from onnx_bridge.core.schema import JsonRecord
from onnx_bridge.core.tolerance import EXACT, PartialTolerance, Tolerance
from onnx_bridge.core.values import Array, Value, dtype_name, flat
from onnx_bridge.reference.comparison.metrics import Tally, chunks, top_k_agreement
from onnx_bridge.reference.comparison.tolerances import Tolerances

Number = float | int | bool | str


@dataclass(frozen=True)
class OutputComparison(JsonRecord):
    """The comparison of one output.

    Attributes:
        name: the output.
        reason: what differs; None if every element is within the tolerance.
        dtype: the expected dtype (of an extra output, the actual one).
        shape: the expected shape (of an extra output, the actual one).
        tolerance: the tolerance of its elements; None if elements were not compared.
        elements: how many there are.
        mismatched: how many are beyond the tolerance, or NaN or Inf on one side only.
        nonfinite: how many are NaN, or the same Inf, on both sides: they agree, but prove little.
        worst_index: the element whose error is the largest multiple of its limit, even if it is within the limit; a
            NaN or Inf on one side comes first. None if nothing differs.
        worst_actual: its actual value.
        worst_expected: its expected value.
        max_abs: largest |actual − expected|. This and the following are computed in float64 over the elements that are
            finite on both sides; None for strings and if elements were not compared.
        max_rel: largest |actual − expected| / |expected|, over the elements whose expected value is not 0.
        mean_abs: mean of |actual − expected|.
        rmse: root of the mean of (actual − expected)².
        cosine: cosine similarity; 1 for two zero vectors, 0 for one.
        sqnr_db: 10·log₁₀(Σ expected² / Σ (actual − expected)²): infinite if nothing differs.
        max_ulp: largest error in units in the last place of the dtype; None except for floats.
        same: the share of equal elements, NaN and Inf included; None if there are no elements.
        top1: of logits (`onnx_bridge.reference.comparison.metrics.top_k_agreement`), the share of rows with the same
            best class; None for other outputs.
        top5: of logits, the share of rows whose expected best class is among the actual best five.
        undetermined: why the reference does not determine it, if it differs (`onnx_bridge.reference.comparison.judge`).
        given_choices: the largest error given the same choices, if these are what is not determined.
        moves: the largest error of the reference itself with inputs and coordinates moved by one unit in the last
            place (`onnx_bridge.reference.comparison.conditioning`); None if that is not known.
    """

    in_json = ("passed", "verdict")

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
    max_ulp: float | None = None
    same: float | None = None
    top1: float | None = None
    top5: float | None = None
    undetermined: str | None = None
    given_choices: float | None = None
    moves: float | None = None

    @property
    def passed(self) -> bool:
        return self.reason is None

    @property
    def differs(self) -> bool:
        """True if the output is wrong: it does not agree, and the reference determines it."""
        return self.reason is not None and self.undetermined is None

    @property
    def verdict(self) -> str:
        """``agrees``, ``differs`` or ``not determined``."""
        return "differs" if self.differs else "agrees" if self.passed else "not determined"

    @property
    def severity(self) -> float:
        """The error of the worst element as a multiple of its limit; infinite for another dtype, shape or kind."""
        actual, expected = self.worst_actual, self.worst_expected
        if self.tolerance is None or isinstance(actual, str) or isinstance(expected, str):
            return 0.0 if self.passed else math.inf
        if actual is None or expected is None:
            return 0.0
        error, limit = abs(actual - expected), self.tolerance.atol + self.tolerance.rtol * abs(expected)
        if not math.isfinite(error):
            return math.inf
        return error / limit if limit else (math.inf if error else 0.0)


@dataclass(frozen=True)
class Comparison(JsonRecord):
    """The comparison of all outputs of one run: the expected ones in their order, then extra ones."""

    in_json = ("passed",)

    outputs: tuple[OutputComparison, ...]

    @property
    def passed(self) -> bool:
        """True if every output agrees; False without any output."""
        return bool(self.outputs) and all(output.passed for output in self.outputs)

    @property
    def differs(self) -> bool:
        """True if an output is wrong, or there is no output."""
        return not self.outputs or any(output.differs for output in self.outputs)


def compare(
    actual: Mapping[str, Value],
    expected: Mapping[str, Value],
    tolerance: Tolerance | Mapping[str, Tolerance] | Tolerances | None = None,
    *,
    measured: bool = True,
) -> Comparison:
    """Compare outputs by name; raises InputError if a tolerance names an output that neither side has.

    Args:
        expected: the reference's outputs.
        tolerance: the tolerance of all floats (integers, bools and strings stay exact), or those of outputs and
            elements of sequences by name, or both; the others have their `default_tolerance`.
        measured: whether to compute all metrics; else only what tells if they agree, and the largest error, in a third
            of the time.
    """
    wanted, present = _leaves(expected), _leaves(actual)
    names = list(dict.fromkeys((*wanted, *present)))
    tolerances = _tolerances(tolerance)
    tolerances.check(names)
    outputs = []
    for name in names:
        right, got = wanted.get(name), present.get(name)
        if isinstance(right, np.ndarray) and isinstance(got, np.ndarray):
            outputs.append(_compare(name, got, right, tolerances, measured))
        elif isinstance(right, np.ndarray) or isinstance(got, np.ndarray):
            array, which = (right, "missing") if isinstance(right, np.ndarray) else (got, "extra")
            assert isinstance(array, np.ndarray)
            outputs.append(OutputComparison(name, which, dtype_name(array.dtype), array.shape, elements=array.size))
        else:
            reason = None if right == got else f"{got or 'missing'} where {right or 'nothing'} was expected"
            outputs.append(OutputComparison(name, reason, right or got or ""))
    return Comparison(tuple(outputs))


def compare_all(
    actual: Sequence[Mapping[str, Value]],
    expected: Sequence[Mapping[str, Value]],
    tolerances: Tolerances,
    layers: bool,
) -> tuple[Comparison, ...]:
    """Compare outputs sample by sample; raises InputError if a tolerance names an output that does not exist.

    Args:
        expected: the reference's outputs of each sample.
        layers: whether tolerances may name values that are no outputs.
    """
    known = [tolerances_of(tolerances, right) if layers else tolerances for right in expected]
    return tuple(compare(*run) for run in zip(actual, expected, known, strict=True))


def tolerances_of(tolerances: Tolerances, outputs: Mapping[str, Value]) -> Tolerances:
    """Return tolerances without those of values that are no outputs."""
    names = flat(outputs)
    return replace(tolerances, named={name: tolerance for name, tolerance in tolerances.named.items() if name in names})


def _leaves(outputs: Mapping[str, Value]) -> dict[str, Array | str]:
    """Return the arrays in the outputs (`flat`); a description of those that have none."""
    leaves: dict[str, Array | str] = {}
    for name, value in outputs.items():
        arrays = flat({name: value})
        leaves.update(arrays)
        if not arrays:
            leaves[name] = "no value" if value is None else "an empty sequence"
    return leaves


def _tolerances(given: Tolerance | Mapping[str, Tolerance] | Tolerances | None) -> Tolerances:
    if isinstance(given, Tolerances):
        return given
    if isinstance(given, Tolerance):
        return Tolerances(general=PartialTolerance(given.rtol, given.atol))
    return Tolerances(
        named={name: PartialTolerance(tolerance.rtol, tolerance.atol) for name, tolerance in (given or {}).items()}
    )


def _compare(name: str, actual: Array, expected: Array, tolerances: Tolerances, measured: bool) -> OutputComparison:
    dtype = dtype_name(expected.dtype)
    strings = dtype == "string"
    reasons = []
    if dtype_name(actual.dtype) != dtype:
        reasons.append(f"dtype {dtype_name(actual.dtype)} ≠ {dtype}")
    elif expected.dtype.kind == "c":
        reasons.append(f"{dtype} cannot be compared")
    if actual.shape != expected.shape:
        reasons.append(f"shape {list(actual.shape)} ≠ {list(expected.shape)}")
    if reasons:
        return OutputComparison(name, "; ".join(reasons), dtype, expected.shape, elements=expected.size)
    tally = Tally(EXACT if strings else tolerances.of(name, expected), measured)
    for chunk in chunks(actual, expected):
        (tally.add_strings if strings else tally.add)(*chunk)
    metrics: dict[str, Any] = tally.metrics()
    if measured and not strings:
        metrics |= top_k_agreement(name, actual, expected)
    index = None
    if tally.worst is not None:
        index = tuple(int(place) for place in np.unravel_index(tally.worst, expected.shape))
    return OutputComparison(
        name,
        _reason(tally, index, actual, expected),
        dtype,
        expected.shape,
        tally.tolerance,
        expected.size,
        tally.mismatched,
        tally.nonfinite,
        index,
        None if index is None else _number(actual[index]),
        None if index is None else _number(expected[index]),
        **metrics,
    )


def _reason(tally: Tally, index: tuple[int, ...] | None, actual: Array, expected: Array) -> str | None:
    if not tally.mismatched or index is None:
        return None
    parts = [
        f"{kind} at {count} position{'s' if count > 1 else ''} on one side only"
        for kind, count in tally.one_sided.items()
        if count
    ]
    if tally.beyond:
        parts.append(f"{tally.beyond} of {expected.size} elements beyond tolerance")
    at = f" at [{','.join(map(str, index))}]" if index else ""
    return f"{', '.join(parts)}; worst{at}: {_shown(actual[index])} against {_shown(expected[index])}"


def _number(value: Any) -> Number:
    """Return an element as a Python value."""
    if isinstance(value, str | bytes):
        return str(value) if isinstance(value, str) else value.decode(errors="replace")
    if isinstance(value, bool | np.bool_):
        return bool(value)
    return int(value) if "int" in type(value).__name__ else float(value)  # ml_dtypes' int4 is no np.integer


def _shown(value: Any) -> str:
    number = _number(value)
    return f"{number:.9g}" if isinstance(number, float) else repr(number)
