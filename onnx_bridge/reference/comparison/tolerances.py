"""Tolerances of outputs.

An element agrees when |actual − expected| ≤ atol + rtol·|expected|. The tolerance of an output depends on its dtype, on
the magnitude of its values, and on the precision that the device computes in, which the dtype may not show: a model
that MIGraphX runs in float16 still returns float32.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import ml_dtypes
import numpy as np

from onnx_bridge.core.errors import InputError, nearest
from onnx_bridge.core.tolerance import EXACT, PartialTolerance, Tolerance
from onnx_bridge.core.values import Array

CHUNK = 1 << 15
"""Elements converted to float64 at a time: what is computed of them stays in the cache of a processor."""


DEFAULTS: dict[str, tuple[Tolerance, float]] = {
    "float64": (Tolerance(1e-9, 1e-10), 1e-14),
    "float32": (Tolerance(1e-3, 1e-4), 1e-7),
    "float16": (Tolerance(1e-2, 1e-2), 1e-4),
    "bfloat16": (Tolerance(8e-2, 8e-2), 1e-3),
}
"""By dtype: the tolerance, and the least value of its absolute part (see `default_tolerance`).

They are meant for the same function computed in another order through a deep network. float32: errors of 1e-5 are
usual after a hundred layers, 1e-3 reveals a wrong constant or a lower precision inside. float64: reveals any value
computed in float32. float16 and bfloat16: ten times the rounding error of one operation (2⁻¹⁰, 2⁻⁷).
"""

PRESETS: dict[str, float | None] = {"float32": None, "fp16": 1e-2, "bf16": 8e-2, "int8": 5e-2, "fp8": 2e-1}
"""By the precision that a model is computed in: the largest error, as a share of the element and of the largest
value of the output; None (float32) is the default of each dtype.

The error of a sum scales with its largest terms, so near 0 it is a share of the largest value, not of the element.
fp16 and bf16: ten times the rounding error of one operation (2⁻¹⁰, 2⁻⁷), as in `DEFAULTS`. int8: a step is 1/127 of the
largest value, and a network of some depth accumulates six of them. fp8 (e4m3): three times the rounding error of one
operand (2⁻⁴).
"""


def default_tolerance(expected: Array, floor: float = 0.0, *, of_float32: bool = False) -> Tolerance:
    """Return the tolerance of an output, from its dtype and, if its values are small, from the largest of them.

    Integers, bools and strings are exact. Floats of at most 8 bits may differ by one step of their grid. For other
    floats `DEFAULTS` holds, but atol is at most rtol times the largest finite value: else all of a softmax over a large
    vocabulary would lie below atol, and zeros would pass. atol is never less than the dtype's floor of rounding noise.

    Args:
        floor: the rounding noise of what it was computed from, if that is larger
            (`onnx_bridge.reference.comparison.rounding`).
        of_float32: whether doubles are made of float32, so that the tolerance of that holds.
    """
    dtype = expected.dtype
    if dtype.name in DEFAULTS:
        tolerance, noise = DEFAULTS["float32" if of_float32 and dtype.name == "float64" else dtype.name]
        return Tolerance(tolerance.rtol, min(tolerance.atol, max(tolerance.rtol * largest(expected), noise, floor)))
    if dtype.name.startswith("float") and dtype.itemsize == 1 and dtype.name != "float8_e8m0fnu":
        limits: Any = ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]
        return Tolerance(float(limits.eps), float(limits.smallest_subnormal))
    return EXACT


def preset_tolerance(expected: Array, preset: str, floor: float = 0.0, *, of_float32: bool = False) -> Tolerance:
    """Return the tolerance of an output of a model that is computed in one of `PRESETS`.

    It is never less than `default_tolerance`. With int8, integers of 8 bits may differ by as many steps as floats;
    other integers, bools and strings are exact.

    Raises:
        InputError: the preset does not exist.
    """
    if preset not in PRESETS:
        hint = nearest(preset, PRESETS) or f"there are {', '.join(PRESETS)}"
        raise InputError("the tolerance does not exist", where=f"tolerance {preset!r}", hint=hint)
    default, share = default_tolerance(expected, floor, of_float32=of_float32), PRESETS[preset]
    if share is None:
        return default
    if is_float(expected.dtype) and expected.dtype.name != "float8_e8m0fnu":
        return Tolerance(max(default.rtol, share), max(default.atol, share * largest(expected)))
    steps = preset == "int8" and expected.dtype.name in ("int8", "uint8")
    return Tolerance(0.0, float(int(127 * share))) if steps else default


@dataclass(frozen=True)
class Tolerances:
    """The tolerances of outputs, by precedence: by name, of all floats, by precision, by dtype.

    Attributes:
        preset: the precision that the model is computed in, of `PRESETS`; None goes by dtype.
        general: the tolerance of all outputs except exact ones.
        named: the tolerance of an output (or element of a sequence, ``s[0]``) by name, whatever its dtype.
        inside: the preset of the precision that an output is computed in, if its dtype does not show it.
        floors: by output, the rounding noise of what it is computed from.

    Raises:
        InputError: the preset does not exist, or a tolerance is invalid.
    """

    preset: str | None = None
    general: PartialTolerance = field(default_factory=PartialTolerance)
    named: Mapping[str, PartialTolerance] = field(default_factory=dict)
    inside: Mapping[str, str] = field(default_factory=dict)
    floors: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for partial in (self.general, *self.named.values()):
            partial.of(EXACT)
        if self.preset is not None:
            preset_tolerance(np.zeros(0, np.float32), self.preset)

    def of(self, name: str, expected: Array) -> Tolerance:
        """Return the tolerance of one output."""
        whole = name.partition("[")[0]  # of an element of a sequence
        inside = self.inside.get(name, self.inside.get(whole))
        presets = [known for known in (self.preset, inside) if known is not None]
        coarsest = max(presets, key=lambda known: PRESETS[known] or 0.0, default="float32")
        floor = self.floors.get(name, 0.0)
        default = preset_tolerance(expected, coarsest, floor, of_float32=inside == "float32")
        tolerance = self.general.of(default) if is_float(expected.dtype) else default
        return self.named[name].of(tolerance) if name in self.named else tolerance

    def at_least(self, preset: str) -> Tolerances:
        """Return these tolerances, with the preset of a precision unless they have one."""
        return self if self.preset is not None else replace(self, preset=preset)

    def check(self, names: Iterable[str]) -> None:
        """Check that tolerances name existing outputs; raises InputError if one names none of ``names``."""
        known = list(names)
        for name in self.named:
            if name not in known:
                hint = nearest(name, known) or f"the outputs are {', '.join(known) or 'none'}"
                what = "a tolerance is given, but there is no such output"
                raise InputError(what, where=f"output {name!r}", hint=hint)


def is_float(dtype: np.dtype[Any]) -> bool:
    """Return whether a dtype of numpy or ml_dtypes is a float."""
    return "float" in dtype.name


def largest(array: Array) -> float:
    """Return the largest finite magnitude in an array of floats; 0 if there is none."""
    most = 0.0
    flat = array.reshape(-1)
    for start in range(0, flat.size, CHUNK):
        piece = np.abs(flat[start : start + CHUNK].astype(np.float64))
        most = max(most, float(np.max(piece, initial=0.0, where=np.isfinite(piece))))
    return most
