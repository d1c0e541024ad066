"""fuse-layer-norm: what is a layer normalization, in every form that exporters write, and what only looks like one."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from passes.fusion.fuse_layer_norm import fuse_layer_norm
from tests.passes.device import Device
from tests.passes.harness import Array, apply, model, operators, reasons, run, stops

RANDOM = np.random.default_rng(0)
SCALE, BIAS = RANDOM.standard_normal((2, 8)).astype(np.float32)

VARIANCE = "m = ReduceMean <axes = [-1]> (x) d = Sub(x, m) p = Pow(d, two) v = ReduceMean <axes = [-1]> (p) "
ROOT = VARIANCE + "a = Add(v, eps) r = Sqrt(a) "
AFFINE = " w = Mul(n, scale) y = Add(w, bias)"
FORMS = {
    "torch.nn.LayerNorm": ROOT + "n = Div(d, r)" + AFFINE,
    "by product": ROOT.replace("Pow(d, two)", "Mul(d, d)") + "n = Div(d, r)" + AFFINE,
    "mean minus x": ROOT.replace("p = Pow(d", "e = Sub(m, x) p = Pow(e") + "n = Div(d, r)" + AFFINE,
    "by the reciprocal": ROOT + "q = Reciprocal(r) n = Mul(d, q)" + AFFINE,
    "by one over the root": ROOT + "q = Div(one, r) n = Mul(q, d)" + AFFINE,
    "scale first": ROOT + "s = Mul(scale, d) n = Div(s, r) y = Add(bias, n)",
    "two means": ROOT + "m2 = ReduceMean <axes = [2]> (x) d2 = Sub(x, m2) n = Div(d2, r)" + AFFINE,
    "epsilon on the left": ROOT.replace("Add(v, eps)", "Add(eps, v)") + "n = Div(d, r)" + AFFINE,
}


def norm(body: str, *, opset: int = 17, kind: str = "float", dims: str = "2,3,8", **constants: Array) -> ir.Model:
    dtype = {"float": np.float32, "float16": np.float16, "double": np.float64}[kind]
    values = {"two": 2.0, "one": 1.0, "eps": 1e-5}
    given = {name: np.array(value, dtype) for name, value in values.items()}
    given |= {"scale": SCALE.astype(dtype), "bias": BIAS.astype(dtype)} | constants
    words = body.replace("(", " ").replace(")", " ").replace(",", " ").split()
    return model(
        f"({kind}[{dims}] x) => ({kind}[{dims}] y) {{ {body} }}",
        opset=opset,
        **{name: array for name, array in given.items() if name in words},
    )


def only(m: ir.Model, operator: str = "LayerNormalization") -> ir.Node:
    (node,) = [node for node in m.graph if node.op_type == operator]
    return node


class TestMatches:
    @pytest.mark.parametrize("form", FORMS)
    def test_forms(self, form: str) -> None:
        m = norm(FORMS[form])
        result = apply(fuse_layer_norm, m)
        assert operators(m) == ["LayerNormalization"]
        node = only(m)
        assert [value.name for value in node.inputs if value] == ["x", "scale", "bias"]
        assert node.attributes["axis"].as_int() == -1
        assert node.attributes["epsilon"].as_float() == np.float32(1e-5)
        assert len(result.rewrites) == 1
        assert result.skips == []

    @pytest.mark.parametrize("shape", ["2,3,8", "batch,tokens,8"])
    def test_axes_as_an_input(self, shape: str) -> None:
        body = (
            FORMS["torch.nn.LayerNorm"]
            .replace(" <axes = [-1]> (x)", "(x, axes)")
            .replace(" <axes = [-1]> (p)", "(p, axes)")
        )
        m = norm(body, opset=18, dims=shape, axes=np.array([2]))
        apply(fuse_layer_norm, m)
        assert operators(m) == ["LayerNormalization"]

    @pytest.mark.parametrize("restore", ["Reshape(f, shape)", "Unsqueeze(f, last)"])
    def test_dropped_axes_that_are_put_back(self, restore: str) -> None:
        body = ROOT.replace("v = ReduceMean <axes = [-1]>", "f = ReduceMean <axes = [-1], keepdims = 0>")
        body = body.replace("a = Add", f"v = {restore} a = Add") + "n = Div(d, r)" + AFFINE
        m = norm(body, shape=np.array([2, 3, 1]), last=np.array([-1]))
        apply(fuse_layer_norm, m)
        assert operators(m) == ["LayerNormalization"]

    def test_without_scale_ones_are_made(self) -> None:
        m = norm(ROOT + "y = Div(d, r)")
        apply(fuse_layer_norm, m)
        x, scale = only(m).inputs
        assert x is m.graph.inputs[0]
        assert scale is not None
        assert scale.const_value is not None
        np.testing.assert_array_equal(scale.const_value.numpy(), np.ones(8, np.float32))

    def test_bias_without_scale(self) -> None:
        m = norm(ROOT + "n = Div(d, r) y = Add(n, bias)")
        apply(fuse_layer_norm, m)
        assert operators(m) == ["LayerNormalization"]

    @pytest.mark.parametrize("scaled", ["Mul(e, d)", "Mul(d, e)"])
    def test_a_scale_that_is_a_deviation_itself(self, scaled: str) -> None:
        """Both factors are deviations, but only one of them is divided by its own root."""
        center = "g = ReduceMean <axes = [-1]> (scale) e = Sub(scale, g) "
        m = norm(center + ROOT + f"s = {scaled} y = Div(s, r)")
        apply(fuse_layer_norm, m)
        assert operators(m) == ["ReduceMean", "Sub", "LayerNormalization"]
        assert [value.name for value in only(m).inputs if value] == ["x", "e"]

    def test_several_axes_with_parameters_that_are_brought_to_their_shape(self) -> None:
        body = FORMS["torch.nn.LayerNorm"].replace("[-1]", "[-2, -1]")
        m = norm(body, scale=SCALE[None, None], bias=np.full((3, 1), 0.5, np.float32))
        apply(fuse_layer_norm, m)
        node = only(m)
        assert node.attributes["axis"].as_int() == -2
        assert [tuple(value.shape or ()) for value in node.inputs[1:] if value] == [(3, 8), (3, 8)]

    def test_computed_parameters(self) -> None:
        body = FORMS["torch.nn.LayerNorm"]
        m = model(
            f"(float[2,8] x, float[8] scale, float[8] bias) => (float[2,8] y) {{ {body} }}",
            two=np.array(2, np.float32),
            eps=np.array(1e-5, np.float32),
        )
        apply(fuse_layer_norm, m)
        assert operators(m) == ["LayerNormalization"]

    def test_half_precision(self) -> None:
        m = norm(FORMS["torch.nn.LayerNorm"], kind="float16")
        apply(fuse_layer_norm, m, rtol=1e-2, atol=1e-2)
        assert only(m).attributes["epsilon"].as_float() == float(np.float16(1e-5))

    def test_large_mean(self) -> None:
        m = norm(FORMS["torch.nn.LayerNorm"])
        x = (RANDOM.standard_normal((2, 3, 8)) + 100).astype(np.float32)
        apply(fuse_layer_norm, m, inputs={"x": x}, rtol=1e-3, atol=1e-4)

    def test_what_does_not_fit_stays(self) -> None:
        m = norm(ROOT + "n = Div(d, r) y = Mul(n, rows)", rows=np.ones((3, 1), np.float32))
        apply(fuse_layer_norm, m)
        assert operators(m) == ["LayerNormalization", "Mul"]

    def test_a_residual_stays(self) -> None:
        m = norm(ROOT + "n = Div(d, r) w = Mul(n, scale) y = Add(w, x)")
        apply(fuse_layer_norm, m)
        assert operators(m) == ["LayerNormalization", "Add"]

    def test_used_before_the_scale(self) -> None:
        body = ROOT + "n = Div(d, r) w = Mul(n, scale) y = Add(w, n)"
        m = norm(body)
        apply(fuse_layer_norm, m)
        assert operators(m) == ["LayerNormalization", "Mul", "Add"]

    def test_two_in_a_row_and_the_budget(self) -> None:
        first = FORMS["torch.nn.LayerNorm"].replace("y =", "z =")
        second = """m2 = ReduceMean <axes = [-1]> (z) d2 = Sub(z, m2) p2 = Pow(d2, two)
            v2 = ReduceMean <axes = [-1]> (p2) a2 = Add(v2, eps) r2 = Sqrt(a2) y = Div(d2, r2)"""
        m = norm(first + second)
        assert len(apply(fuse_layer_norm, m).rewrites) == 2
        assert operators(m) == ["LayerNormalization"] * 2
        assert stops(fuse_layer_norm, norm(first + second), 1) == 1

    def test_in_a_branch(self) -> None:
        text = f"""(float[2,8] x, bool c) => (float[2,8] z) {{
            z = If (c) <then_branch = b () => (float[2,8] y) {{ {ROOT} y = Div(d, r) }},
                        else_branch = o () => (float[2,8] n) {{ n = Neg(x) }}> }}"""
        m = model(text, two=np.array(2, np.float32), eps=np.array(1e-5, np.float32))
        x = RANDOM.standard_normal((2, 8)).astype(np.float32)
        apply(fuse_layer_norm, m, inputs={"x": x, "c": np.array(True)})
        assert operators(m) == ["If", "LayerNormalization", "Neg"]


class TestSkips:
    def skipped(self, m: ir.Model) -> list[str]:
        result = apply(fuse_layer_norm, m)
        assert not result.rewrites
        return reasons(result)

    def test_opset(self) -> None:
        assert self.skipped(norm(FORMS["torch.nn.LayerNorm"], opset=16)) == [
            "opset 16 has no LayerNormalization; it came with 17"
        ]

    def test_channels_first(self) -> None:
        body = ROOT.replace("[-1]", "[1]") + "y = Div(d, r)"
        assert self.skipped(norm(body)) == ["the normalized axes -2 are not the last ones"]

    def test_unknown_size(self) -> None:
        body = ROOT + "y = Div(d, r)"
        assert self.skipped(norm(body, dims="2,3,width")) == ["the size of the normalized axes is unknown"]

    def test_double(self) -> None:
        assert self.skipped(norm(ROOT + "y = Div(d, r)", kind="double")) == ["x is of float64"]

    def test_one_dimension(self) -> None:
        reason = "x has one dimension; MIGraphX wants two or more"
        assert self.skipped(norm(ROOT + "y = Div(d, r)", dims="8")) == [reason]

    @pytest.mark.parametrize("epsilon", [0.0, -1e-5])
    def test_epsilon(self, epsilon: float) -> None:
        m = norm(ROOT + "y = Div(d, r)", eps=np.array(epsilon, np.float32))
        assert self.skipped(m) == [f"epsilon is {float(np.float32(epsilon))}"]

    @pytest.mark.parametrize("value", ["m", "d", "v", "r", "p"])
    def test_an_intermediate_result_that_is_used(self, value: str) -> None:
        last = {"m": "1", "v": "1", "r": "1"}.get(value, "8")
        m = model(
            f"(float[2,8] x) => (float[2,8] y, float[2,{last}] z) {{ {ROOT} y = Div(d, r) z = Neg({value}) }}",
            two=np.array(2, np.float32),
            eps=np.array(1e-5, np.float32),
        )
        assert self.skipped(m) == [f"{value}, an intermediate result, is used elsewhere"]

    @pytest.mark.parametrize(
        "body",
        [
            ROOT.replace("Pow(d, two)", "Pow(d, three)") + "y = Div(d, r)",
            ROOT.replace("ReduceMean <axes = [-1]> (p)", "ReduceMean <axes = [1]> (p)") + "y = Div(d, r)",
            ROOT.replace("ReduceMean <axes = [-1]> (x)", "ReduceMean <axes = [1]> (x)") + "y = Div(d, r)",
            ROOT + "e = Sub(m, x) y = Div(e, r)",  # the negative of it
            ROOT + "y = Div(x, r)",  # not centred
            ROOT + "y = Div(r, d)",  # upside down
            ROOT.replace("Add(v, eps)", "Add(v, matrix)") + "y = Div(d, r)",  # not a number
            ROOT.replace("Pow(d, two)", "Mul(d, e)").replace("p =", "e = Sub(m, x) p =") + "y = Div(d, r)",
            "p = Pow(x, two) v = ReduceMean <axes = [-1]> (p) a = Add(v, eps) r = Sqrt(a) y = Div(x, r)",  # RMS
            ROOT.replace("Pow(d, two)", "Mul(d, x)") + "y = Div(d, r)",
            ROOT.replace("ReduceMean <axes = [-1]> (p)", "ReduceMean(p)") + "y = Div(d, r)",
            ROOT.replace("ReduceMean <axes = [-1]> (p)", "ReduceSum <axes = [-1]> (p)").replace(
                "<axes = [-1]> (p)", "(p, last)"
            )
            + "y = Div(d, r)",
        ],
    )
    def test_other_arithmetic(self, body: str) -> None:
        matrix = np.full((3, 1), 1e-5, np.float32)
        m = norm(body, three=np.array(3, np.float32), last=np.array([-1]), matrix=matrix)
        result = apply(fuse_layer_norm, m)
        assert not result.rewrites
        assert not result.skips

    def test_an_operator_of_a_function(self) -> None:
        body = ROOT.replace("Sub(x, m)", "local.Sub(x, m)") + "y = Div(d, r)"
        m = model(
            f"(float[2,8] x) => (float[2,8] y) {{ {body} }}",
            functions='<domain: "local", opset_import: ["": 17]> Sub (p, q) => (o) { o = Add(p, q) }',
            two=np.array(2, np.float32),
            eps=np.array(1e-5, np.float32),
        )
        assert not apply(fuse_layer_norm, m).rewrites

    def test_a_deviation_of_an_outer_graph(self) -> None:
        inner = ROOT.partition("p = Pow")
        m = model(
            f"""(float[2,8] x, bool c) => (float[2,8] y) {{ {inner[0]}
            y = If (c) <then_branch = t () => (float[2,8] o) {{ p = Pow{inner[2]} o = Div(d, r) }},
                        else_branch = e () => (float[2,8] q) {{ q = Identity(x) }}> }}""",
            two=np.array(2, np.float32),
            eps=np.array(1e-5, np.float32),
        )
        assert not apply(fuse_layer_norm, m, inputs={"x": np.stack([SCALE, BIAS]), "c": np.array(True)}).rewrites


@settings(max_examples=30, deadline=None)
@given(
    rank=st.integers(2, 4),
    count=st.integers(1, 3),
    positive=st.booleans(),
    scaled=st.booleans(),
    shifted=st.booleans(),
    seed=st.integers(0, 9),
)
def test_any_last_axes(rank: int, count: int, positive: bool, scaled: bool, shifted: bool, seed: int) -> None:
    random = np.random.default_rng(seed)
    count = min(count, rank)
    shape = [int(each) for each in random.integers(2, 5, rank)]
    axes = [axis if positive else axis - rank for axis in range(rank - count, rank)]
    body = ROOT.replace("[-1]", str(axes)) + "n = Div(d, r) "
    body += "w = Mul(n, scale) " if scaled else "w = Identity(n) "
    body += "y = Add(w, bias)" if shifted else "y = Neg(w)"
    sizes = [1] * int(random.integers(0, rank - count + 1)) + shape[rank - count :]
    scale, bias = random.standard_normal((2, *sizes)).astype(np.float32)
    m = norm(body, dims=",".join(map(str, shape)), scale=scale, bias=bias)
    apply(fuse_layer_norm, m, atol=1e-4)
    assert only(m).attributes["axis"].as_int() == -count
    assert ("Mul" in operators(m), "Sqrt" in operators(m)) == (False, False)


@pytest.mark.parametrize("form", ["torch.nn.LayerNorm", "by the reciprocal"])
def test_migraphx_computes_the_same(form: str, device: Device) -> None:
    m = norm(FORMS[form])
    before = run(ir.to_proto(m))["y"]
    apply(fuse_layer_norm, m)
    np.testing.assert_allclose(device.run(ir.to_proto(m))[0], before, rtol=1e-5, atol=1e-5)
