"""The tolerance of an element: its relative and its absolute part."""

from __future__ import annotations

import math
from dataclasses import dataclass

from onnx_bridge.core.errors import InputError


@dataclass(frozen=True)
class Tolerance:
    """The largest error of an element: |actual − expected| ≤ atol + rtol·|expected|.

    Raises:
        InputError: ``rtol`` or ``atol`` is negative or not finite.
    """

    rtol: float
    atol: float

    def __post_init__(self) -> None:
        if not (0 <= self.rtol < math.inf and 0 <= self.atol < math.inf):
            what = f"a tolerance cannot be rtol {self.rtol}, atol {self.atol}"
            raise InputError(what, hint="use finite numbers, zero or more")


EXACT = Tolerance(0.0, 0.0)
ONE_STEP = Tolerance(0.0, 1.0)
"""For outputs of a quantizer: halfway between two steps, either is correct."""


@dataclass(frozen=True)
class PartialTolerance:
    """A tolerance of which only one part may be given; None keeps the default."""

    rtol: float | None = None
    atol: float | None = None

    def of(self, tolerance: Tolerance) -> Tolerance:
        """Return a tolerance with the given parts replaced."""
        rtol = tolerance.rtol if self.rtol is None else self.rtol
        return Tolerance(rtol, tolerance.atol if self.atol is None else self.atol)
