"""The precision that an output is computed in, by walking through the graph."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from onnx_bridge.conversion.precision.computed_precision import ComputedPrecision, computed_precision
from onnx_bridge.reference.comparison.compare import compare
from onnx_bridge.reference.comparison.computed_precision import computed_precisions, output_presets
from onnx_bridge.reference.comparison.tolerances import Tolerances

HEAD = '<ir_version: 10, opset_import: ["": 21, "com.microsoft": 1]>\n'
HALF, BFLOAT, FLOAT, BYTES = 10, 16, 1, 2


def presets(text: str) -> dict[str, str]:
    model = ir.from_onnx_text(HEAD + text)
    inside = computed_precisions(model)
    return {name: each.preset for name, each in inside.items()}


def test_float16_between_float32() -> None:
    found = presets(f"""m (float[4] x) => (float[4] y, float[4] z) {{
        [down] h = Cast <to = {HALF}> (x)
        m = Tanh (h)
        y = Cast <to = {FLOAT}> (m)
        z = Tanh (x)
    }}""")
    assert found["y"] == "fp16"
    assert "z" not in found


DOUBLES = """m (float[4] x, double[4] d) => (
    double[4] y, double[4] exact, double[4] own, float[4] single, double[4] cut) {
    t = Tanh (x)
    [up] c = Cast <to = 11> (t)
    y = Mul (c, d)
    r = Relu (x)
    e = Cast <to = 11> (r)
    exact = Exp (e)
    own = Exp (d)
    single = Tanh (t)
    f = Cast <to = 1> (d)
    cut = Cast <to = 11> (f)
}"""


def test_doubles_that_are_made_of_rounded_float32() -> None:
    """Not those of exact numbers in float32, for which a device that computes them in float32 is wrong."""
    found = presets(DOUBLES)
    assert {name for name in ("y", "exact", "own", "single", "cut") if name in found} == {"y", "cut"}
    assert set(found.values()) == {"float32"}


def test_only_the_original_is_as_precise_as_float32() -> None:
    original = ir.from_onnx_text(HEAD + "m (double[4] d) => (double[4] y) { y = Exp (d) }")
    cleaned = "m (double[4] d) => (double[4] y) { f = Cast <to = 1> (d) g = Exp (f) y = Cast <to = 11> (g) }"
    assert computed_precisions(original, ir.from_onnx_text(HEAD + cleaned)) == {}
    for first, preset in (
        (HEAD + cleaned, {"y": "float32"}),
        (HEAD + DOUBLES, dict.fromkeys(("c", "y", "cut"), "float32")),
    ):
        model = ir.from_onnx_text(first)
        assert computed_precision(model, model, "fp32") == ComputedPrecision(None, preset)


def test_the_tolerance_of_doubles_that_are_made_of_float32() -> None:
    single, double = np.array([2.0, 3e-9], np.float32), np.array([2.0, 3e-9])
    of_single = Tolerances(inside={"y": "float32"})
    assert of_single.of("y", double) == of_single.of("y", single) == Tolerances().of("y", single)
    assert of_single.of("z", double) == Tolerances().of("y", double) != of_single.of("y", double)


@pytest.mark.parametrize(("dtype", "preset"), [(HALF, "fp16"), (BFLOAT, "bf16")])
def test_the_coarsest_counts_and_is_named(dtype: int, preset: str) -> None:
    model = ir.from_onnx_text(
        HEAD
        + f"""m (float[4] x) => (float[4] y) {{
        [first] h = Cast <to = {dtype}> (x)
        f = Cast <to = {FLOAT}> (h)
        y = Add (f, x)
    }}"""
    )
    given, notes = output_presets(computed_precisions(model), ["y"])
    assert given == {"y": preset}
    assert "float16 inside, from first on" in notes[0]


def test_a_choice_by_low_precision_selects_from_full_precision() -> None:
    found = presets(f"""m (float[4] x, float[4,2] t) => (float[1,2] y, float[4,2] w) {{
        h = Cast <to = {HALF}> (x)
        i = ArgMax <axis = 0> (h)
        y = Gather <axis = 0> (t, i)
        none = Constant <value = float[1] {{0.0}}> ()
        zero = Cast <to = {HALF}> (none)
        c = Greater (h, zero)
        axes = Constant <value = int64[1] {{1}}> ()
        d = Unsqueeze (c, axes)
        n = Neg (t)
        w = Where (d, t, n)
    }}""")
    assert "y" not in found
    assert "w" not in found


def test_low_precision_in_a_branch() -> None:
    found = presets(f"""m (bool b, float[4] x) => (float[4] y) {{
        y = If (b) <
            then_branch = t () => (float[4] p) {{ h = Cast <to = {HALF}> (x) p = Cast <to = {FLOAT}> (h) }},
            else_branch = e () => (float[4] q) {{ q = Neg (x) }}
        >
    }}""")
    assert found["y"] == "fp16"


def test_rounding_within_an_operator() -> None:
    found = presets("""m (float[2,4] x, uint8[4,3] w, float s) => (float[2,3] y) {
        y = com.microsoft.DynamicQuantizeMatMul (x, w, s)
    }""")
    assert found["y"] == "int8"


def test_the_tolerance_of_an_output() -> None:
    expected = {"y": np.linspace(0, 100, 8, dtype=np.float32), "z": np.linspace(0, 100, 8, dtype=np.float32)}
    found = {name: each + 0.3 for name, each in expected.items()}
    y, z = compare(found, expected, Tolerances(inside={"y": "fp16"})).outputs
    assert y.passed
    assert not z.passed
