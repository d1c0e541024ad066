"""fuse-gelu: what is a GELU, in every form that exporters write, and what only looks like one."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from passes.fusion.fuse_gelu import fuse_gelu
from tests.passes.device import Device
from tests.passes.harness import apply, model, operators, reasons, run, stops

ERF = {
    "torch.nn.functional.gelu": "d = Div(x, root) e = Erf(d) a = Add(e, one) m = Mul(x, a) y = Mul(m, half)",
    "half first": "h = Mul(x, half) d = Div(x, root) e = Erf(d) a = Add(e, one) y = Mul(h, a)",
    "half of the sum": "d = Div(x, root) e = Erf(d) a = Add(one, e) h = Mul(half, a) y = Mul(x, h)",
    "a factor within": "h = Mul(half, x) d = Mul(x, inverse) e = Erf(d) a = Add(e, one) y = Mul(a, h)",
    "divided by two": "d = Div(x, root) e = Erf(d) a = Add(e, one) m = Mul(a, x) y = Div(m, two)",
    "half of x by division": "h = Div(x, two) d = Div(x, root) e = Erf(d) a = Add(e, one) y = Mul(h, a)",
}
TANH = {
    "power": """p = Pow(x, three) q = Mul(p, cubic) s = Add(x, q) i = Mul(s, slope) t = Tanh(i) a = Add(t, one)
        h = Mul(x, half) y = Mul(h, a)""",
    "products": """p = Mul(x, x) p3 = Mul(x, p) q = Mul(cubic, p3) s = Add(x, q) i = Mul(slope, s) t = Tanh(i)
        a = Add(one, t) m = Mul(x, a) y = Mul(half, m)""",
    "factored": """h = Mul(x, half) k = Mul(x, slope) c = Mul(x, cubic) q = Mul(c, x) s = Add(q, one) i = Mul(k, s)
        t = Tanh(i) a = Add(t, one) y = Mul(h, a)""",
}


def constants(dtype: str = "float32", **changed: float) -> dict[str, np.ndarray]:
    values = {
        "root": math.sqrt(2),
        "inverse": math.sqrt(0.5),
        "half": 0.5,
        "one": 1.0,
        "two": 2.0,
        "three": 3.0,
        "cubic": 0.044715,
        "slope": math.sqrt(2 / math.pi),
    }
    return {name: np.array(value, dtype) for name, value in (values | changed).items()}


def gelu(body: str, *, opset: int = 20, kind: str = "float", dtype: str = "float32", **changed: float) -> ir.Model:
    used = {name: array for name, array in constants(dtype, **changed).items() if name in body}
    return model(f"({kind}[2,40] x) => ({kind}[2,40] y) {{ {body} }}", opset=opset, **used)


class TestMatches:
    @pytest.mark.parametrize("form", ERF)
    def test_erf(self, form: str) -> None:
        m = gelu(ERF[form])
        result = apply(fuse_gelu, m)
        assert operators(m) == ["Gelu"]
        assert "approximate" not in m.graph[0].attributes
        assert len(result.rewrites[0].before) == 5
        assert result.skips == []

    @pytest.mark.parametrize("form", TANH)
    def test_tanh(self, form: str) -> None:
        m = gelu(TANH[form])
        apply(fuse_gelu, m)
        assert operators(m) == ["Gelu"]
        assert m.graph[0].attributes["approximate"].as_string() == "tanh"

    def test_half_precision_has_coarser_constants(self) -> None:
        m = gelu(ERF["half first"], kind="float16", dtype="float16")
        apply(fuse_gelu, m, rtol=4e-3, atol=4e-3)
        assert operators(m) == ["Gelu"]

    def test_x_may_be_a_sum_itself(self) -> None:
        body = ERF["half first"].replace("x", "s")
        used = {name: array for name, array in constants().items() if name in body}
        m = model(
            f"(float[2,4] x) => (float[2,4] y, float[2,4] s) {{ s = Add(x, bias) {body} }}",
            opset=20,
            bias=np.ones(4, np.float32),
            **used,
        )
        apply(fuse_gelu, m)
        assert operators(m) == ["Add", "Gelu"]

    def test_two_in_a_row(self) -> None:
        second = "d2 = Div(g, root) e2 = Erf(d2) a2 = Add(e2, one) m2 = Mul(g, a2) y = Mul(m2, half)"
        body = ERF["torch.nn.functional.gelu"].replace("y =", "g =") + second
        m = gelu(body)
        assert len(apply(fuse_gelu, m).rewrites) == 2
        assert operators(m) == ["Gelu", "Gelu"]
        assert stops(fuse_gelu, gelu(body), 1) == 1

    def test_gated(self) -> None:
        body = ERF["torch.nn.functional.gelu"].replace("y =", "g =") + " y = Mul(g, x)"
        m = gelu(body)
        apply(fuse_gelu, m)
        assert operators(m) == ["Gelu", "Mul"]

    def test_in_a_function_with_scalars_of_rank_zero(self) -> None:
        lines = " ".join(
            f"{name} = Constant <value = float {{{float(array)!r}}}> ()" for name, array in constants().items()
        )
        function = (
            f'<opset_import: ["": 20], domain: "local"> f (x) => (y) {{ {lines} {ERF["torch.nn.functional.gelu"]} }}'
        )
        m = model("(float[2,4] x) => (float[2,4] y) { y = local.f(x) }", opset=20, functions=function)
        apply(fuse_gelu, m)
        assert operators(m) == ["f", "Gelu"]

    def test_in_a_branch(self) -> None:
        body = ERF["torch.nn.functional.gelu"]
        used = {name: array for name, array in constants().items() if name in body}
        text = f"""(float[2,4] x, bool c) => (float[2,4] z) {{
            z = If (c) <then_branch = b () => (float[2,4] y) {{ {body} }},
                        else_branch = o () => (float[2,4] n) {{ n = Neg(x) }}> }}"""
        m = model(text, opset=20, **used)
        x = np.random.default_rng(0).standard_normal((2, 4)).astype(np.float32)
        apply(fuse_gelu, m, inputs={"x": x, "c": np.array(True)})
        assert operators(m) == ["If", "Gelu", "Neg"]

    def test_not_across_the_border_of_a_branch(self) -> None:
        text = """(float[2,4] x, bool c) => (float[2,4] z) { d = Div(x, root) e = Erf(d) a = Add(e, one)
            z = If (c) <then_branch = b () => (float[2,4] y) { m = Mul(x, a) y = Mul(m, half) },
                        else_branch = o () => (float[2,4] n) { n = Neg(x) }> }"""
        used = {name: array for name, array in constants().items() if name in ("root", "one", "half")}
        m = model(text, opset=20, **used)
        x = np.ones((2, 4), np.float32)
        assert not apply(fuse_gelu, m, inputs={"x": x, "c": np.array(True)}).rewrites


class TestDoesNotMatch:
    @pytest.mark.parametrize("form", [*ERF, *TANH])
    def test_opsets_without_gelu(self, form: str) -> None:
        m = gelu((ERF | TANH)[form], opset=19)
        result = apply(fuse_gelu, m)
        assert not result.rewrites
        assert reasons(result) == ["opset 19 has no Gelu; it came with 20"]
        assert m.graph.node(result.skips[0].node).op_type in ("Erf", "Tanh")

    @pytest.mark.parametrize("form", TANH)
    def test_tanh_in_float64(self, form: str) -> None:
        m = gelu(TANH[form], kind="double", dtype="float64")
        result = apply(fuse_gelu, m)
        assert "Gelu" not in operators(m)
        assert "float64" in reasons(result)[0]

    @pytest.mark.parametrize("value", ["e", "a", "m", "d"])
    def test_an_intermediate_result_that_is_used(self, value: str) -> None:
        body = ERF["torch.nn.functional.gelu"] + f" z = Neg({value})"
        used = {name: array for name, array in constants().items() if name in ("root", "one", "half")}
        m = model(f"(float[2,4] x) => (float[2,4] y, float[2,4] z) {{ {body} }}", opset=20, **used)
        result = apply(fuse_gelu, m)
        assert not result.rewrites
        assert reasons(result) == [f"{value}, an intermediate result, is used elsewhere"]

    def test_an_intermediate_result_that_is_an_output(self) -> None:
        used = {name: array for name, array in constants().items() if name in ("root", "one", "half")}
        m = model(
            f"(float[2,4] x) => (float[2,4] y, float[2,4] e) {{ {ERF['torch.nn.functional.gelu']} }}", opset=20, **used
        )
        assert reasons(apply(fuse_gelu, m)) == ["e, an intermediate result, is used elsewhere"]

    @pytest.mark.parametrize(
        "changed", [{"root": 1.4142}, {"half": 0.49}, {"one": 1.001}, {"root": -math.sqrt(2)}, {"half": 0.0}]
    )
    def test_other_constants(self, changed: dict[str, float]) -> None:
        result = apply(fuse_gelu, gelu(ERF["torch.nn.functional.gelu"], **changed))
        assert not result.rewrites

    @pytest.mark.parametrize("changed", [{"cubic": 0.0447}, {"slope": 0.79}, {"three": 2.0}])
    def test_other_constants_of_tanh(self, changed: dict[str, float]) -> None:
        assert not apply(fuse_gelu, gelu(TANH["power"], **changed)).rewrites

    @pytest.mark.parametrize(
        "body",
        [
            "d = Div(x, root) e = Erf(d) a = Add(e, one) m = Mul(z, a) y = Mul(m, half)",  # of another value
            "d = Div(root, x) e = Erf(d) a = Add(e, one) m = Mul(x, a) y = Mul(m, half)",  # √2 / x
            "d = Div(x, root) e = Erf(d) a = Add(e, one) m = Div(x, a) y = Mul(m, half)",  # divided by the sum
            "d = Div(x, root) e = Erf(d) a = Add(e, one) m = Mul(a, a) y = Mul(m, half)",  # squared
            "d = Div(x, root) e = Erf(d) a = Add(e, one) y = Mul(x, a)",  # twice the GELU
        ],
    )
    def test_other_arithmetic(self, body: str) -> None:
        used = {name: array for name, array in constants().items() if name in ("root", "one", "half")}
        used = {name: array for name, array in used.items() if name in body}
        m = model(f"(float[2,4] x, float[2,4] z) => (float[2,4] y) {{ {body} }}", opset=20, **used)
        assert not apply(fuse_gelu, m).rewrites

    def test_constants_that_extend_the_shape(self) -> None:
        wide = {name: array.reshape(1, 1, 1) for name, array in constants().items() if name in ("root", "one", "half")}
        m = model(f"(float[2,4] x) => (float[1,2,4] y) {{ {ERF['torch.nn.functional.gelu']} }}", opset=20, **wide)
        assert not apply(fuse_gelu, m).rewrites

    def test_a_constant_that_callers_may_override(self) -> None:
        body = ERF["torch.nn.functional.gelu"]
        used = {name: array for name, array in constants().items() if name in ("root", "one")}
        m = model(f"(float[2,4] x, float half) => (float[2,4] y) {{ {body} }}", opset=20, **used)
        assert not apply(fuse_gelu, m).rewrites


@settings(max_examples=40, deadline=None)
@given(
    order=st.permutations(["x", "half", "t"]),
    nested=st.booleans(),
    swapped=st.tuples(st.booleans(), st.booleans()),
    inner=st.sampled_from(["d = Div(x, root)", "d = Mul(x, inverse)", "d = Mul(inverse, x)"]),
    rank=st.integers(0, 2),
)
def test_any_order(order: list[str], nested: bool, swapped: tuple[bool, bool], inner: str, rank: int) -> None:
    def product(left: str, right: str, swap: bool) -> str:
        return f"Mul({right}, {left})" if swap else f"Mul({left}, {right})"

    first, second = (order[1], order[2]) if nested else (order[0], order[1])
    outer = product(order[0] if nested else "p", "p" if nested else order[2], swapped[1])
    body = f"{inner} e = Erf(d) t = Add(e, one) p = {product(first, second, swapped[0])} y = {outer}"
    used = {name: array.reshape((1,) * rank) for name, array in constants().items() if name in body}
    m = model(f"(float[2,4] x) => (float[2,4] y) {{ {body} }}", opset=20, **used)
    apply(fuse_gelu, m)
    assert operators(m) == ["Gelu"]


@pytest.mark.parametrize("body", [ERF["torch.nn.functional.gelu"], TANH["power"]])
def test_migraphx_computes_the_same(body: str, device: Device) -> None:
    m = gelu(body)
    before = run(ir.to_proto(m))["y"]
    apply(fuse_gelu, m)
    np.testing.assert_allclose(device.run(ir.to_proto(m))[0], before, rtol=1e-5, atol=1e-5)
