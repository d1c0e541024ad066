"""Casts between integers keep the low bits: numbers of every pair of dtypes, compared with numpy."""

from __future__ import annotations

import itertools

import numpy as np
import onnx_ir as ir
import pytest

from passes.legalize.types.integer_casts import cast_keeping_low_bits
from passes.rewriting.base import Context
from tests.passes.device import Device
from tests.passes.dtypes import rewritten, same, single, why_not
from tests.passes.harness import Array, model, operators, reasons

INTEGERS = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")


def numbers(name: str) -> Array:
    """The ends of the dtype's range, those of narrower ones, and numbers of all magnitudes."""
    info = np.iinfo(name)
    near = [sign * (2**power + each) for power in range(64) for each in (-1, 0, 1) for sign in (1, -1)]
    kept = sorted({info.min, info.max, *(each for each in near if info.min <= each <= info.max)})
    random = np.random.default_rng(0).integers(info.min, info.max, 20, name, endpoint=True)
    return np.concatenate([np.array(kept, name), random])


def cast(source: Array, target: str, opset: int = 21) -> tuple[ir.Model, dict[str, Array]]:
    to = ir.DataType.from_numpy(np.dtype(target)).value
    return single("Cast", [source], [to], to=to, opset=opset)


PAIRS = [
    pytest.param(*pair, marks=[pytest.mark.runtime] if "uint64" in pair else [])  # ONNX Runtime has no Where for these
    for pair in itertools.product(INTEGERS, INTEGERS)
]


@pytest.mark.parametrize(("source", "target"), PAIRS)
def test_every_pair(source: str, target: str, device: Device) -> None:
    x = numbers(source)
    m, inputs = cast(x, target)
    if np.can_cast(source, target):
        assert why_not(cast_keeping_low_bits, m) == [], "no number is out of range"
        return
    same(device.run(rewritten(cast_keeping_low_bits, m), inputs), [x.astype(target)])


def test_operators_and_a_second_run() -> None:
    m, _ = cast(np.zeros(3, np.int64), "uint8")
    rewritten(cast_keeping_low_bits, m)
    assert operators(m) == ["Div", "Mul", "Sub", "Less", "Add", "Where", "Cast"]
    assert not cast_keeping_low_bits.run(m, Context()).modified


def test_without_bits_to_cut_off_there_is_no_division() -> None:
    m, _ = cast(np.zeros(3, np.uint16), "int16")
    rewritten(cast_keeping_low_bits, m)
    assert operators(m) == ["Cast", "Greater", "Sub", "Where", "Cast"]


@pytest.mark.parametrize(("source", "target"), [("float32", "uint8"), ("bool", "int8"), ("int32", "float16")])
def test_other_dtypes_are_unchanged(source: str, target: str) -> None:
    m, _ = cast(np.zeros(3, source), target)
    assert why_not(cast_keeping_low_bits, m) == []


def test_before_where() -> None:
    m = model("(int32[3] x) => (int8[3] y) { y = Cast <to = 3> (x) }", opset=8)
    assert reasons(cast_keeping_low_bits.run(m, Context())) and operators(m) == ["Cast"]
