"""Differences of rounding, ties and chaos are told apart from faults, between two models on ONNX Runtime."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir
import pytest

from onnx_bridge.core.tolerance import PartialTolerance
from onnx_bridge.reference.comparison.chain import ChainJudge, of_widened
from onnx_bridge.reference.comparison.choices import choices
from onnx_bridge.reference.comparison.compare import Comparison, compare
from onnx_bridge.reference.comparison.conditioning import SEEDS, nudged
from onnx_bridge.reference.comparison.inside import COMPUTED, InsideModel, cut
from onnx_bridge.reference.comparison.judge import Judge
from onnx_bridge.reference.comparison.tolerances import Tolerances
from onnx_bridge.reference.missing_kernels.half_emulation import emulate_halves
from onnx_bridge.reference.reference import Reference
from passes.cleanup.lift_constant_nodes import LiftConstantNodes
from passes.quantization.to_int8.saturate_before_quantize import saturate_before_quantize
from passes.quantization.to_int8.uint8_to_int8 import Uint8ToInt8
from passes.rewriting.base import Context
from passes.shapes.inference import infer
from tests.passes.helpers import tiny

HEAD = '<ir_version: 10, opset_import: ["": 21]>\n'
ONE = np.float32(1.0)
ULP = np.float32(2.0**-23)


def model(text: str) -> ir.Model:
    return ir.from_onnx_text(HEAD + text)


def judged(reference: ir.Model, other: ir.Model, **sample: np.ndarray) -> Comparison:
    """The judgement of one model against another."""
    right, found = Reference(reference).run(sample), Reference(other).run(sample)
    return Judge(reference, Tolerances()).judge(found, right, sample, InsideModel(other))


TOP = """tied (float[4] x, float[4,2] table) => (float[2,2] y, float[2] v) {{
    zero = Constant <value = float[4] {{{zeros}}}> ()
    s = Add (x, zero)
    k = Constant <value = int64[1] {{2}}> ()
    v, i = TopK <{attributes}> (s, k)
    rows = Gather <axis = 0> (table, i)
    two = Constant <value = float[1] {{{scale}}}> ()
    y = Mul (rows, two)
}}"""
TIED = {"x": np.array([0.5, 1, 1, 0.25], np.float32), "table": np.arange(8, dtype=np.float32).reshape(4, 2) * 10}


def top(zeros: str = "0.0, 0.0, 0.0, 0.0", attributes: str = "axis = 0", scale: str = "2.0") -> ir.Model:
    return model(TOP.format(zeros=zeros, attributes=attributes, scale=scale))


OTHER = "0.0, 0.0, 0.0000002, 0.0"
"""Other sums of the same numbers: as far off as rounding."""


def test_a_topk_that_ties() -> None:
    found = {each.name: each for each in judged(top(), top(OTHER), **TIED).outputs}
    assert found["v"].passed
    y = found["y"]
    assert y.verdict == "not determined"
    assert y.given_choices == 0.0
    assert "TopK" in str(y.undetermined)
    assert "2.4e-07" in str(y.undetermined)  # two units in the last place of 1.0


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(lambda: top(OTHER, scale="2.1"), id="behind the tie"),
        pytest.param(lambda: top(OTHER, attributes="axis = 0, largest = 0"), id="the choice itself"),
        pytest.param(lambda: top("0.0, 0.0, 0.01, 0.0"), id="before the tie, within no tolerance"),
        pytest.param(lambda: top("0.9, 0.0, 0.0, 0.0", scale="2.0"), id="another choice, that does not tie"),
    ],
)
def test_a_fault_differs(other: Callable[[], ir.Model]) -> None:
    found = judged(top(), other(), **TIED)
    assert any(each.differs for each in found.outputs)


@pytest.mark.parametrize(
    ("operator", "border"),
    [("Round", 2.5), ("Floor", 3.0), ("Ceil", 3.0)],
)
def test_what_is_rounded_next_to_a_border(operator: str, border: float) -> None:
    text = """r (float[4] x) => (float[4] y) {{
        e = Constant <value = float[1] {{{e}}}> ()
        s = Add (x, e)
        r = {op} (s)
        h = Constant <value = float[1] {{100.0}}> ()
        y = Mul (r, h)
    }}"""
    one, other = (model(text.format(e=each, op=operator)) for each in ("-0.0000003", "0.0000003"))
    x = np.array([border, 0.3, 5.2, border], np.float32)
    (found,) = judged(one, other, x=x).outputs
    assert found.verdict == "not determined"
    assert operator in str(found.undetermined)
    wrong = model(text.format(e="0.6", op=operator))
    assert judged(one, wrong, x=x).differs


def test_a_comparison_that_feeds_where() -> None:
    text = """w (float[4] x, float[4] a) => (float[4] y) {{
        e = Constant <value = float[1] {{{e}}}> ()
        z = Constant <value = float[1] {{1.0}}> ()
        s = Add (x, e)
        c = Greater (s, z)
        n = Neg (a)
        y = Where (c, a, n)
    }}"""
    one, other = (model(text.format(e=each)) for each in ("-0.0000002", "0.0000002"))
    sample = {"x": np.array([1, 2, 0, 1], np.float32), "a": np.array([3, 4, 5, 6], np.float32)}
    (found,) = judged(one, other, **sample).outputs
    assert found.verdict == "not determined"
    assert "Greater" in str(found.undetermined)


def test_a_step_of_a_quantizer_still_agrees_and_one_that_matters_does_not() -> None:
    text = """q (float[8] x) => (float[8] y) {{
        e = Constant <value = float[1] {{{e}}}> ()
        s = Constant <value = float {{0.1}}> ()
        z = Constant <value = int8 {{0}}> ()
        t = Add (x, e)
        q = QuantizeLinear (t, s, z)
        d = DequantizeLinear (q, s, z)
        {end}
    }}"""
    x = np.array([0.25, 4.0, -3.0, 1.0, 2.0, 3.0, 3.5, 5.0], np.float32)
    one, other = (model(text.format(e=each, end="y = Neg (d)")) for each in ("-0.000001", "0.000001"))
    (found,) = judged(one, other, x=x).outputs
    assert found.passed
    assert found.max_abs == pytest.approx(0.1)
    ends = """w = Constant <value = int64[1] {8}> ()
        h = Constant <value = float[1] {0.25}> ()
        b = Sub (d, h)
        m = Constant <value = float[1] {9.0}> ()
        c = Mul (b, m)
        i = Constant <value = int64[1] {0}> ()
        f = Gather (c, i)
        y = Expand (f, w)"""
    one, other = (model(text.format(e=each, end=ends)) for each in ("-0.000001", "0.000001"))
    (found,) = judged(one, other, x=x).outputs
    assert found.verdict == "not determined"
    assert "QuantizeLinear" in str(found.undetermined)


def chaotic(steps: int, factor: str = "3.9", start: str = "0.0", last: str = "1.0") -> ir.Model:
    lines = [f"k = Constant <value = float[1] {{{factor}}}> ()", "one = Constant <value = float[1] {1.0}> ()"]
    lines += [f"e = Constant <value = float[1] {{{start}}}> ()", "v0 = Add (x, e)"]
    for step in range(steps):
        lines += [
            f"a{step} = Mul (v{step}, k)",
            f"b{step} = Sub (one, v{step})",
            f"v{step + 1} = Mul (a{step}, b{step})",
        ]
    lines += [f"l = Constant <value = float[1] {{{last}}}> ()", f"y = Mul (v{steps}, l)"]
    return model("c (float[4] x) => (float[4] y) {" + "\n".join(lines) + "}")


def test_chaos_is_not_determined_and_a_fault_in_it_differs() -> None:
    x = np.array([0.2, 0.4, 0.6, 0.7], np.float32)
    (found,) = judged(chaotic(50), chaotic(50, start="0.0000001"), x=x).outputs
    assert found.verdict == "not determined"
    assert "moves by" in str(found.undetermined)
    for wrong in (chaotic(50, factor="3.85"), chaotic(50, last="1.1")):
        assert judged(chaotic(50), wrong, x=x).differs


def test_a_bounded_output_of_a_chaotic_model() -> None:
    """Sigmoid of what is far beyond 0 moves by nothing, and is another number once that is on the other side."""
    x = np.array([0.2, 0.4, 0.6, 0.7], np.float32)
    start = "0.0000005"
    right, found = (Reference(chaotic(22, start=each)).run({"x": x})["y"] for each in ("0.0", start))
    moved = [Reference(chaotic(22)).run(nudged({"x": x}, seed))["y"] for seed in SEEDS]
    right, found = np.asarray(right), np.asarray(found)
    reach = np.max([np.abs(np.asarray(each) - right) for each in moved], axis=0)
    crosses = np.abs(found - right) > 3 * reach
    assert crosses.any()
    border = np.where(crosses, (right + 2 * reach * np.sign(found - right)), np.float32(9)).astype(np.float32)

    def bounded(**changes: str) -> ir.Model:
        source = chaotic(22, **changes)
        text = ir.to_onnx_text(source).rstrip().removesuffix("}")
        numbers = ", ".join(f"{float(number):.9g}" for number in border)
        text += f"""t = Constant <value = float[4] {{{numbers}}}> ()
            f = Constant <value = float[1] {{100000000.0}}> ()
            d = Sub (y, t)  g = Mul (d, f)  z = Sigmoid (g)
        }}"""
        return ir.from_onnx_text(text.replace("=> (float[4] y)", "=> (float[4] z)"))

    (judgement,) = judged(bounded(), bounded(start=start), x=x).outputs
    assert judgement.verdict == "not determined"
    assert judged(bounded(), bounded(start="0.001"), x=x).differs


WARP = """(float[1,2,129,65] flow, float[1,3,64,64] x) => (float[1,3,256,256] y) {{
    f = Neg(flow)
    {resized}
    g = Transpose<perm = [0, 2, 3, 1]>(r)
    y = GridSample<align_corners = 1>(x, g)
}}"""
"""An image, sampled at places that are interpolated between a few."""
RESIZED = """r = Resize<mode = "linear", coordinate_transformation_mode = "align_corners">(f, , , sizes)"""
BY_WEIGHTS = "m = MatMul(rows, f)  r = MatMul(m, columns)"


def _weights(before: int, after: int, offset: float = 0.0) -> np.ndarray:
    """The weights of linear interpolation between aligned corners, in float64 until the end."""
    places = np.clip(np.arange(after) * ((before - 1) / (after - 1)) + offset, 0, before - 1)
    weights = 1 - np.abs(places[:, None] - np.arange(before))
    return np.maximum(weights, 0).astype(np.float32)


def _warps(offset: float = 0.0) -> tuple[ir.Model, ir.Model]:
    one = tiny(WARP.format(resized=RESIZED), sizes=np.array([1, 2, 256, 256]))
    columns = _weights(65, 256).T.copy()
    other = tiny(WARP.format(resized=BY_WEIGHTS), rows=_weights(129, 256, offset), columns=columns)
    return one, other


@pytest.mark.parametrize(("offset", "verdict"), [(0.0, "not determined"), (1e-4, "differs")])
def test_coordinates_of_resize_are_rounded_though_no_input_moves_them(offset: float, verdict: str) -> None:
    draw = np.random.default_rng(3)
    flow = draw.standard_normal((1, 2, 129, 65)).astype(np.float32)
    x = draw.standard_normal((1, 3, 64, 64)).astype(np.float32)
    one, other = _warps(offset)
    (found,) = judged(one, other, flow=flow, x=x).outputs
    assert found.verdict == verdict


def test_resized_integers_and_constants_move_by_nothing() -> None:
    graph = """(float[1,1,4] x, uint8[1,1,4] n) => (float[1,1,7] y, uint8[1,1,7] m) {
        m = Resize<mode = "linear">(n, , , sizes)
        r = Resize<mode = "linear">(k, , , sizes)
        d = Resize<mode = "linear">(x, , , sizes)
        y = Add(d, r)
    }"""
    one = tiny(graph, sizes=np.array([1, 1, 7]), k=np.ones((1, 1, 4), np.float32))
    sample = {"x": np.arange(4, dtype=np.float32).reshape(1, 1, 4), "n": np.arange(4, dtype=np.uint8).reshape(1, 1, 4)}
    moved = Judge(one, Tolerances()).moves(sample, Reference(one).run(sample))
    assert moved["m"].max_abs == 0
    assert 0 < (moved["y"].max_abs or 0) < 1e-5


def test_a_program_that_computes_in_float32_what_the_model_computes_in_16_bits() -> None:
    cleaned = tiny("(float16[4] x) => (float16[4] y) { h = Exp(x)  s = Sub(h, k)  y = Mul(s, m) }", **EXPONENTS)
    infer(cleaned)
    x = np.array([0.1, 0.2, 0.3, 0.4], np.float16)
    exact = (np.exp(x.astype(np.float32)) - EXPONENTS["k"]) * EXPONENTS["m"]
    right, wrong = {"y": exact.astype(np.float16)}, {"y": (exact + 5).astype(np.float16)}
    expected = {"y": np.asarray(Reference(emulate_halves(cleaned)).run({"x": x})["y"])}
    for actual, verdict in ((right, "not determined"), (wrong, "differs")):
        (found,) = of_widened(compare(actual, expected), actual, cleaned, {"x": x}).outputs
        assert found.verdict == verdict
    assert ir.DataType.FLOAT16 in {value.dtype for node in cleaned.graph for value in node.outputs}


EXPONENTS = {"k": np.array([1.104, 1.2205, 1.349, 1.491], np.float16), "m": np.array([100], np.float16)}
"""Numbers that are so close to the exponentials of some that half of their difference is rounding in float16."""


def test_a_sum_of_large_terms_is_rounded_as_coarsely_as_they_are() -> None:
    """Terms of 3,000 that cancel, added in another order: the sums differ by more than 1e-4."""
    draw = np.random.default_rng(0)
    weights = draw.standard_normal((64, 8)).astype(np.float32) * 1000
    x = np.abs(draw.standard_normal((2, 64))).astype(np.float32) * 3
    weights[-1] = -(x[:, :-1].astype(np.float64) @ weights[:-1])[0] / x[0, -1]
    x[1] = x[0]

    graph = "(float[2,64] x) => (float[2,8] y) {{ {} y = Neg(m) }}"
    one = tiny(graph.format("m = MatMul(x, w)"), w=weights.copy())
    halves = "p, q = Split<axis = 1>(x)  a = MatMul(p, v)  b = MatMul(q, w)  m = Add(a, b)"
    other = tiny(graph.format(halves), v=weights[:32], w=weights[32:])
    (found,) = judged(one, other, x=x).outputs
    assert found.verdict == "not determined"
    weights[3] *= np.float32(1.001)
    assert judged(one, tiny(graph.format("m = MatMul(x, w)"), w=weights), x=x).differs


def test_the_floor_is_a_rounding_of_what_the_output_is_computed_from() -> None:
    """1 − Sigmoid(15) is 3e-7: one unit in the last place of 1.0 is a third of it."""
    text = """s (float[4] x) => (float[4] y) {{
        e = Constant <value = float[1] {{{e}}}> ()
        one = Constant <value = float[1] {{1.0}}> ()
        p = Sigmoid (x)
        r = Add (p, e)
        y = Sub (one, r)
    }}"""
    x = np.full(4, 15.0, np.float32)
    one, other, wrong = (model(text.format(e=each)) for each in ("0.0", "0.00000012", "0.000001"))
    assert judged(one, other, x=x).passed
    assert judged(one, wrong, x=x).differs


def test_small_numbers_of_small_numbers_keep_their_floor() -> None:
    text = "s (float[4] x) => (float[4] y) {{ e = Constant <value = float[1] {{{e}}}> () y = Add (x, e) }}"
    x = np.full(4, 1e-6, np.float32)
    one, wrong = (model(text.format(e=each)) for each in ("0.0", "0.00000012"))
    assert judged(one, wrong, x=x).differs


def test_cut_keeps_what_a_node_makes_beside_what_is_given_instead() -> None:
    made = top()
    values = {"x": TIED["x"], "table": TIED["table"], "s": np.array([4, 3, 2, 1], np.float32)}
    part = cut(made, {"s": values["s"]}, ["y", "s" + COMPUTED])
    found = Reference(part).run(values)
    np.testing.assert_array_equal(found["s" + COMPUTED], TIED["x"])
    np.testing.assert_array_equal(found["y"], TIED["table"][:2] * 2)
    assert [node.op_type for node in choices(made, [str(v.name) for n in made.graph for v in n.outputs])] == ["TopK"]


def test_a_reference_that_does_not_take_moved_inputs_moves_by_nothing_known() -> None:
    """Place 3.9999998 of four becomes 4.0, of which there is none."""
    reference = model("""g (float[8] x, float[4] t) => (float[8] y) {
        i = Cast <to = 7> (x)
        y = Gather (t, i)
    }""")
    sample = {"x": np.full(8, np.nextafter(np.float32(4), np.float32(0))), "t": np.arange(4, dtype=np.float32)}
    right = Reference(reference).run(sample)
    judge = Judge(reference, Tolerances())
    assert judge.moves(sample, right) == {}
    found = {"y": right["y"] + 1}
    assert judge.judge(found, right, sample, InsideModel(reference)).differs


def test_integers_do_not_move() -> None:
    reference = model("g (int64[2] x) => (float[2] y) { y = Cast <to = 1> (x) }")
    sample = {"x": np.array([1, 2])}
    assert Judge(reference, Tolerances()).moves(sample, Reference(reference).run(sample)) == {}


TOKENS = """tokens (int64[2] ids, float[4,2] table) => (float[2,2] y) {
    rows = Gather <axis = 0> (table, ids)
    y = Exp (rows)
}"""


def test_a_model_of_tokens_moves_with_what_it_looks_up() -> None:
    source = model(TOKENS)
    (table,) = [value for value in source.graph.inputs if value.name == "table"]
    source.graph.inputs.remove(table)
    table.const_value = ir.tensor(np.linspace(1, 2, 8, dtype=np.float32).reshape(4, 2), name="table")
    source.graph.register_initializer(table)
    sample = {"ids": np.array([0, 3])}
    moved = Judge(source, Tolerances()).moves(sample, Reference(source).run(sample))
    assert 0 < (moved["y"].max_abs or 0) < 1e-4


SHIFTED = """shifted (float[8] x) => (float[8] y) {{
    zero = Constant <value = float {{{zero}}}> ()
    s = Add (x, zero)
    step = Constant <value = float {{1.0}}> ()
    zero_point = Constant <value = uint8 {{100}}> ()
    q = QuantizeLinear (s, step, zero_point)
    d = DequantizeLinear (q, step, zero_point)
    hundred = Constant <value = float {{{scale}}}> ()
    e = Exp (d)
    y = Mul (e, hundred)
}}"""


@pytest.mark.parametrize(("scale", "determined"), [("100.0", False), ("101.0", True)])
def test_a_tie_of_integers_that_a_pass_shifted(scale: str, determined: bool) -> None:
    """With uint8 made int8, and QuantizeLinear replaced behind that, its choice is still found by its first name."""
    other = model(SHIFTED.format(zero="-0.00004", scale=scale))
    infer(other)
    for step in (LiftConstantNodes(), Uint8ToInt8(), saturate_before_quantize):
        step.run(other, Context())
    assert "Clip" in [node.op_type for node in other.graph]
    assert [value.name for node in other.graph for value in node.outputs if value.dtype == ir.DataType.INT8] == [
        "q_int8"
    ]
    x = np.array([1.50002, 0.2, 0.7, 1.1, 2.3, 0.9, 1.4, 2.1], np.float32)
    (found,) = judged(model(SHIFTED.format(zero="0.0", scale="100.0")), other, x=x).outputs
    assert found.verdict == ("differs" if determined else "not determined")


@pytest.mark.parametrize(("shift", "determined"), [("-0.004", False), ("-0.1", True)])
def test_what_a_choice_depends_on_is_as_precise_as_it_is_computed(shift: str, determined: bool) -> None:
    """A number of float32 that was computed in float16 may be some steps of float16 off."""
    text = """h (float[4] x) => (float[4] y) {{
        h = Cast <to = 10> (x)
        wide = Constant <value = float[1] {{{e}}}> ()
        e = Cast <to = 10> (wide)
        s = Add (h, e)
        f = Cast <to = 1> (s)
        r = Round (f)
        hundred = Constant <value = float[1] {{100.0}}> ()
        y = Mul (r, hundred)
    }}"""
    x = np.array([2.502, 0.2, 1.2, 2.2], np.float32)
    (found,) = judged(model(text.format(e="0.0")), model(text.format(e=shift)), x=x).outputs
    assert found.verdict == ("differs" if determined else "not determined")


@pytest.mark.parametrize(("between", "determined"), [("i = Identity (d)", False), ("i = Abs (d)", True)])
def test_a_choice_that_the_reference_makes_otherwise_when_it_is_given_what_is_before(
    between: str, determined: bool
) -> None:
    """ONNX Runtime has no kernels for the first three nodes in float16, and rounds nothing between them."""
    text = """(float16[128] x) => (float16[128] y) {{
        q = QuantizeLinear (x, step, zero_point)
        d = DequantizeLinear (q, step, zero_point)
        {between}
        e = Tanh ({x})
        r = QuantizeLinear (e, fine, zero_point)
        y = DequantizeLinear (r, fine, zero_point)
    }}"""
    steps = {"step": np.float16(0.0207), "fine": np.float16(0.0067), "zero_point": np.int8(0)}
    reference, other = (
        tiny(text.format(between=node, x=x), opset=21, **steps) for node, x in (("", "d"), (between, "i"))
    )
    sample = {"x": np.arange(-64, 64, dtype=np.float16) * steps["step"]}  # no rounding moves them to another step
    right, found = Reference(reference).run(sample), Reference(other).run(sample)
    tolerances = Tolerances(general=PartialTolerance(0.0, 1e-5))
    (output,) = Judge(reference, tolerances).judge(found, right, sample, InsideModel(other)).outputs
    assert output.verdict == ("differs" if determined else "not determined")


def test_an_output_that_two_legs_agree_on_by_different_tolerances() -> None:
    """The passes may be steps away from the original, and the bundle as far from it as they are."""
    text = """q (float[4] x) => (float[4] y) {{
        e = Constant <value = float {{{e}}}> ()
        s = Add (x, e)
        step = Constant <value = float {{0.01}}> ()
        zero_point = Constant <value = int8 {{0}}> ()
        q = QuantizeLinear (s, step, zero_point)
        y = DequantizeLinear (q, step, zero_point)
    }}"""
    x = np.array([0.015002, 0.2, 0.7, 1.1], np.float32)
    sample = {"x": x}
    original, cleaned = model(text.format(e="0.0")), model(text.format(e="-0.000004"))
    expected, found = Reference(original).run(sample), Reference(cleaned).run(sample)
    judges = ChainJudge(original, cleaned)
    passes = judges.of_cleaned(found, expected, sample, sample, Tolerances())
    assert passes.passed and not np.array_equal(found["y"], expected["y"])
    device = judges.of_device(found, expected, sample, (found, passes), InsideModel(cleaned), Tolerances())
    assert device.passed
