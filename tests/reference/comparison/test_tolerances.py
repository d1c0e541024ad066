"""The tolerances of outputs, and invalid tolerances."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from onnx_bridge.core.errors import InputError
from onnx_bridge.core.tolerance import EXACT, PartialTolerance, Tolerance
from onnx_bridge.reference.comparison.compare import compare
from onnx_bridge.reference.comparison.tolerances import PRESETS, Tolerances, default_tolerance, preset_tolerance
from onnx_bridge.requests.texts import parse_tolerance

X = np.linspace(-10, 10, 101, dtype=np.float32)


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_is_never_stricter_than_the_dtype(preset: str) -> None:
    for array in (X, X.astype(np.float16), X.astype(ml_dtypes.bfloat16), X.astype(ml_dtypes.float8_e4m3fn), X * 0):
        found, default = preset_tolerance(array, preset), default_tolerance(array)
        assert found.rtol >= default.rtol
        assert found.atol >= default.atol
    assert preset_tolerance(np.arange(3), preset) == EXACT
    assert preset_tolerance(np.array(["a"], object), preset) == EXACT


@pytest.mark.parametrize(
    ("preset", "rounded", "coarser"),
    [
        ("fp16", np.float16, ml_dtypes.bfloat16),
        ("bf16", ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn),
        ("fp8", ml_dtypes.float8_e4m3fn, None),
    ],
)
def test_preset_accepts_its_own_rounding_and_no_coarser_one(preset: str, rounded: type, coarser: type | None) -> None:
    """A product of rounded operands, as MIGraphX computes in that precision."""
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((2, 64, 64), np.float32)

    def product(dtype: type) -> np.ndarray:
        return a.astype(dtype).astype(np.float32) @ b.astype(dtype).astype(np.float32)

    tolerances = Tolerances(preset)
    assert compare({"y": product(rounded)}, {"y": a @ b}, tolerances).passed
    assert not compare({"y": product(rounded)}, {"y": a @ b}).passed
    if coarser is not None:
        assert not compare({"y": product(coarser) * 1.2}, {"y": a @ b}, tolerances).passed


def test_int8_accepts_steps() -> None:
    step = np.abs(X).max() / 127
    quantized = (np.round(X / step) * step).astype(np.float32)
    assert not compare({"y": quantized}, {"y": X}).passed
    assert compare({"y": quantized}, {"y": X}, Tolerances("int8")).passed
    assert not compare({"y": X + 20 * step}, {"y": X}, Tolerances("int8")).passed
    assert preset_tolerance(np.zeros(1, np.uint8), "int8") == Tolerance(0.0, 6.0)
    assert preset_tolerance(np.zeros(1, np.uint8), "fp16") == EXACT


def test_precedence() -> None:
    tolerances = Tolerances(
        "fp16", PartialTolerance(rtol=0.5), {"a": PartialTolerance(atol=3.0), "n": PartialTolerance(0.0, 1.0)}
    )
    assert tolerances.of("b", X) == Tolerance(0.5, 0.1)
    assert tolerances.of("a", X) == Tolerance(0.5, 3.0)
    assert tolerances.of("m", np.arange(3)) == EXACT
    assert tolerances.of("n", np.arange(3)) == Tolerance(0.0, 1.0)
    assert Tolerances().of("a", X) == default_tolerance(X)
    assert Tolerances().at_least("int8") == Tolerances("int8")
    assert Tolerances("fp16").at_least("int8") == Tolerances("fp16")


@pytest.mark.parametrize(
    ("text", "name", "part"),
    [
        ("y:rtol=1e-3,atol=1e-4", "y", PartialTolerance(1e-3, 1e-4)),
        ("y:atol=0", "y", PartialTolerance(None, 0.0)),
        ("scope/y:0:atol=1, rtol=2", "scope/y:0", PartialTolerance(2.0, 1.0)),
    ],
)
def test_tolerances_as_text(text: str, name: str, part: PartialTolerance) -> None:
    assert parse_tolerance(text) == (name, part)


@pytest.mark.parametrize(
    "text", ["", "y", "y:", "y:1e-3", "rtol=1", "y:rtol=-1", "y:rtol=nan", "y:rtol=1,rtol=2", ":rtol=1"]
)
def test_invalid_tolerance_text(text: str) -> None:
    with pytest.raises(InputError, match=r"is not NAME:rtol=NUMBER.*for example --tol"):
        parse_tolerance(text)


def test_invalid_tolerances() -> None:
    with pytest.raises(InputError, match="the tolerance does not exist.*did you mean fp16"):
        Tolerances("fp61")
    with pytest.raises(InputError, match="cannot be rtol -1"):
        Tolerances(general=PartialTolerance(rtol=-1))
    with pytest.raises(InputError, match="output 'logit': .*did you mean logits"):
        compare({"logits": X}, {"logits": X}, Tolerances(named={"logit": PartialTolerance(1.0)}))
