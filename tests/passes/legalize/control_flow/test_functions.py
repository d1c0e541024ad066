"""expand-functions: the standard's function bodies, and the nodes that they are not used for."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from passes.legalize.control_flow.functions import ExpandFunctions
from passes.rewriting.base import Context
from tests.passes.device import Device
from tests.passes.harness import Array, apply, model, operators, reasons, run, stops
from tests.passes.legalize.contrib_nodes import holds, random, skips


class Once(ExpandFunctions):
    """The rule for some operators only, so that the nodes of their bodies are unchanged."""

    def __init__(self, *names: str) -> None:
        object.__setattr__(self, "_names", frozenset(("", name) for name in names))

    @property
    def operators(self) -> frozenset[tuple[str, str]]:  # type: ignore[override]
        """Return the operators that were given."""
        found: frozenset[tuple[str, str]] = self._names  # type: ignore[attr-defined]
        return found


class TestOperators:
    def test_are_all_that_have_a_body(self) -> None:
        found = ExpandFunctions().operators
        assert {("", "Attention"), ("", "Gelu"), ("", "Celu"), ("ai.onnx.preview", "FlexAttention")} <= found
        assert ("", "MatMul") not in found

    @pytest.mark.slow
    def test_are_not_looked_for_at_import(self) -> None:
        code = "from passes.legalize.control_flow import functions as f; print(f._expandable.cache_info().currsize)"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert done.stdout.strip() == "0"


class TestExpands:
    def test_attributes(self) -> None:
        m = model("(float[2,3] x) => (float[2,3] y) { y = Elu<alpha=2.0>(x) }", opset=18)
        apply(Once("Elu"), m)
        assert operators(m) == ["Less", "Exp", "Sub", "Mul", "Where"]
        assert not [node for node in m.graph if node.op_type == "CastLike"]

    @pytest.mark.parametrize("name", ["ReduceL2", "ReduceLogSum", "ReduceLogSumExp"])
    def test_not_where_the_result_is_truncated(self, name: str) -> None:
        m = model(f"(int64[2,3] x) => (int64[2,1] y) {{ y = {name}(x, axes) }}", opset=18, axes=np.array([1]))
        result = Once(name).run(m, Context())
        assert operators(m) == [name]
        assert "truncated" in reasons(result)[0]

    def test_defaults_of_attributes(self) -> None:
        m = model("(float[2,3] x) => (float[2,3] y) { y = Selu(x) }", opset=22)
        apply(Once("Selu"), m)

    def test_types(self) -> None:
        m = model("(double[2,3] x) => (double[2,3] y) { y = Elu<alpha=0.5>(x) }", opset=18)
        apply(Once("Elu"), m)
        assert {value.dtype for value in m.graph.initializers.values()} == {ir.DataType.DOUBLE}

    def test_a_body_that_is_built_for_the_node(self, device: Device) -> None:
        x, scale = random(2, 3, 4), random(4)
        m = model("(float[2,3,4] x, float[4] s) => (float[2,3,4] y) { y = RMSNormalization(x, s) }", opset=23)
        apply(ExpandFunctions(), m, inputs={"x": x, "s": scale})
        assert "RMSNormalization" not in operators(m)
        assert not {"Shape", "Size", "ConstantOfShape"}.intersection(operators(m))  # known shapes are computed
        proto = ir.to_proto(m)
        np.testing.assert_allclose(
            device.run(proto, {"x": x, "s": scale})[0], run(proto, {"x": x, "s": scale})["y"], 1e-5, 1e-5
        )

    def test_shapes_that_are_open_stay_arithmetic(self) -> None:
        m = model("(float[n,3,4] x, float[3,4] s) => (float[n,3,4] y) { y = RMSNormalization<axis=1>(x, s) }", opset=23)
        apply(ExpandFunctions(), m)
        assert "RMSNormalization" not in operators(m)

    def test_omitted_inputs_and_outputs(self) -> None:
        m = model("(float[2,3] x) => (float[2,3] y) { y = Clip(x, , high) }", opset=13, high=np.float32(0.5))
        apply(Once("Clip"), m)
        assert operators(m) == ["Less", "Where"]
        text = """(float[2,3] x, float[3] s) => (float[2,3] y, float[2,1] inverse) {
            y, , inverse = LayerNormalization(x, s) }"""
        m = model(text, opset=18)
        apply(Once("LayerNormalization"), m)
        assert "LayerNormalization" not in operators(m)

    def test_small_constants_decide(self) -> None:
        text = "(float[2,8,8] x) => (float[2,5,10] y) { y = CenterCropPad<axes=[1,2]>(x, shape) }"
        m = model(text, opset=18, shape=np.array([5, 10]))
        apply(ExpandFunctions(), m)
        assert not {"Shape", "If", "Loop"}.intersection(operators(m))

    def test_equal_nodes(self) -> None:
        m = model("(float[2,3] x) => (float[2,3] y) { a = Selu(x) b = Selu(a) y = Neg(b) }", opset=18)
        result = apply(Once("Selu"), m)
        assert len(result.rewrites) == 2
        names = [node.name for node in m.graph]
        assert len(set(names)) == len(names)

    def test_the_same_value_twice(self) -> None:
        m = model("(float[2,3] x) => (float[2,3] y) { y = PRelu(x, x) }", opset=16)
        apply(Once("PRelu"), m)

    def test_the_budget(self) -> None:
        assert stops(Once("Selu"), model("(float[2] x) => (float[2] y) { a = Selu(x) y = Selu(a) }", opset=18), 1) == 1

    def test_in_a_branch(self) -> None:
        text = """(float[2,4] x, bool c) => (float[2,4] z) {
            z = If (c) <then_branch = b () => (float[2,4] y) { y = Elu(x) },
                        else_branch = o () => (float[2,4] n) { n = Neg(x) }> }"""
        m = model(text, opset=18)
        apply(Once("Elu"), m, inputs={"x": random(2, 4), "c": np.array(True)})
        assert "Elu" not in operators(m)

    def test_names_contain_their_origin(self) -> None:
        m = model("(float[2,3] x) => (float[2,3] y) { y = Elu(x) }", opset=18)
        m.graph[0].name = "block.act"
        Once("Elu").run(m, Context())
        assert {str(node.name).partition("/")[0] for node in m.graph} == {"block.act"}
        assert not any("body" in str(node.name) for node in m.graph)


class TestOperatorsOfComMicrosoftThatBecameStandard:
    @pytest.mark.parametrize("opset", [14, 21])
    @pytest.mark.parametrize("activation", ["none", "silu", "swish"])
    @pytest.mark.parametrize("omitted", [(), ("bias",), ("bias", "past"), ("past",)])
    def test_convolution_with_state(
        self, opset: int, activation: str, omitted: tuple[str, ...], device: Device
    ) -> None:
        x, w = random(2, 4, 5), random(4, 1, 3)
        inputs = {"x": x, "w": w, "bias": random(4), "past": random(2, 4, 2)} | dict.fromkeys(omitted)
        attributes = {"activation": activation, "ndim": 1, "state_window": 0}
        rule, name = ExpandFunctions(), "CausalConvWithState"
        made = holds(rule, name, inputs, ("y", "present"), attributes, device=device, opset=opset)
        assert "Conv" in made

    @pytest.mark.parametrize("update", ["linear", "gated", "delta", "gated_delta"])
    @pytest.mark.parametrize("tokens", [1, 3])
    def test_linear_attention(self, update: str, tokens: int) -> None:
        queries, keys, values = (random(2, tokens, heads * 4, seed=heads) / 4 for heads in (4, 2, 2))
        decay = -abs(random(2, tokens, 2)) if "gated" in update else None
        beta = abs(random(2, tokens, 2)) / 4 if "delta" in update else None
        inputs = {"q": queries, "k": keys, "v": values, "past": random(2, 2, 4, 4), "decay": decay, "beta": beta}
        attributes = {"update_rule": update, "q_num_heads": 4, "kv_num_heads": 2, "state_window": 0}
        made = holds(ExpandFunctions(), "LinearAttention", inputs, ("y", "present"), attributes)
        assert "LinearAttention" not in made

    def test_with_more_than_the_standard_has(self) -> None:
        inputs = {"x": random(2, 4, 5), "w": random(4, 1, 3), "bias": None, "past": random(2, 4, 4)}
        (reason,) = skips(ExpandFunctions(), "CausalConvWithState", inputs, {"dilation": 2}, ("y", "present"))
        assert "dilation" in reason


class TestOpsets:
    @pytest.mark.parametrize("opset", [9, 11, 14, 17, 18, 21, 24])
    @pytest.mark.parametrize("op_type", ["Elu", "Selu", "HardSigmoid", "Softplus", "Softsign"])
    def test_the_body_is_converted(self, op_type: str, opset: int) -> None:
        m = model(f"(float[2,3] x) => (float[2,3] y) {{ y = {op_type}(x) }}", opset=opset)
        result = Once(op_type).run(m, Context())
        if result.rewrites:
            onnx.checker.check_model(ir.to_proto(m), full_check=True)
            x = random(2, 3)
            before = model(f"(float[2,3] x) => (float[2,3] y) {{ y = {op_type}(x) }}", opset=opset)
            np.testing.assert_allclose(
                run(ir.to_proto(m), {"x": x})["y"], run(ir.to_proto(before), {"x": x})["y"], 1e-5, 1e-5
            )
        else:
            assert reasons(result)[0].startswith("the body cannot be used here: ")

    def test_reductions_before_their_axes_were_inputs(self) -> None:
        m = model("(float[2,3] x) => (float[2,3] y) { y = MeanVarianceNormalization<axes=[0]>(x) }", opset=13)
        apply(ExpandFunctions(), m)


class TestDoesNotMatch:
    def test_an_older_form_without_a_body(self) -> None:
        m = model("(float[2,3] x) => (float[2,3] y) { y = Celu(x) }", opset=12)
        assert Once("Celu").run(m, Context()).rewrites
        m = model("(float[2,3] x) => (float[2,3] y) { y = LeakyRelu(x) }", opset=15)
        result = Once("LeakyRelu").run(m, Context())
        assert not result.rewrites
        assert not result.skips

    def test_in_a_function(self) -> None:
        function = '<opset_import: ["": 18], domain: "local"> f (x) => (y) { y = Elu(x) }'
        m = model("(float[2] x) => (float[2] y) { y = local.f(x) }", opset=18, functions=function)
        result = Once("Elu").run(m, Context())
        assert not result.rewrites
        assert reasons(result) == ["types are unknown in a function: run inline-functions first"]

    def test_unknown_type(self) -> None:
        m = model("(float[2] x) => (float[2] y) { y = Gelu(x) }", opset=20)
        m.graph.inputs[0].type = None
        assert reasons(Once("Gelu").run(m, Context())) == ["the type of x is unknown: run infer-shapes first"]

    def test_a_subgraph_with_captures(self) -> None:
        text = """(seq(float[2]) s, float[2] w) => (seq(float[2]) r) {
            r = SequenceMap<body = b (float[2] e) => (float[2] o) { o = Add(e, w) }>(s) }"""
        m = model(text, opset=17)
        (reason,) = reasons(Once("SequenceMap").run(m, Context()))
        assert "captures outer values" in reason


SHAPES = st.lists(st.integers(1, 4), min_size=1, max_size=3)
ACTIVATIONS = {
    "Celu": ("alpha",),
    "Elu": ("alpha",),
    "HardSigmoid": ("alpha", "beta"),
    "HardSwish": (),
    "LeakyRelu": ("alpha",),
    "Mish": (),
    "Selu": ("alpha", "gamma"),
    "Shrink": ("bias", "lambd"),
    "Softplus": (),
    "Softsign": (),
    "ThresholdedRelu": ("alpha",),
}


@settings(max_examples=25, deadline=None)
@given(
    op_type=st.sampled_from(sorted(ACTIVATIONS)),
    shape=SHAPES,
    opset=st.sampled_from([18, 20, 22]),
    values=st.tuples(*[st.sampled_from([0.25, 0.5, 1.0])] * 2),
)
def test_any_activation(op_type: str, shape: list[int], opset: int, values: tuple[float, float]) -> None:
    given = ", ".join(f"{name}={value}" for name, value in zip(ACTIVATIONS[op_type], values, strict=False))
    kind = f"float[{','.join(map(str, shape))}]"
    given = f"<{given}>" if given else ""
    m = model(f"({kind} x) => ({kind} y) {{ y = {op_type}{given}(x) }}", opset=opset)
    apply(Once(op_type), m)
    assert op_type not in operators(m)


@settings(max_examples=20, deadline=None)
@given(
    op_type=st.sampled_from(["LayerNormalization", "Softmax", "LogSoftmax", "ReduceL2", "ReduceLogSumExp"]),
    shape=st.lists(st.integers(1, 4), min_size=2, max_size=4),
    data=st.data(),
)
def test_any_axis(op_type: str, shape: list[int], data: st.DataObject) -> None:
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    kind, x = f"float[{','.join(map(str, shape))}]", random(*shape)
    inputs: dict[str, Array] = {"x": x}
    if op_type == "LayerNormalization":
        inputs["s"] = random(*shape[axis:])
        scale = f"float[{','.join(map(str, shape[axis:]))}] s"
        text = f"({kind} x, {scale}) => ({kind} y) {{ y = LayerNormalization<axis={axis}>(x, s) }}"
        m = model(text, opset=18)
    elif op_type.startswith("Reduce"):
        kept = [1 if index == axis % len(shape) else size for index, size in enumerate(shape)]
        result = f"float[{','.join(map(str, kept))}]"
        m = model(f"({kind} x) => ({result} y) {{ y = {op_type}(x, axes) }}", opset=18, axes=np.array([axis]))
    else:
        m = model(f"({kind} x) => ({kind} y) {{ y = {op_type}<axis={axis}>(x) }}", opset=18)
    apply(Once(op_type), m, inputs=inputs, rtol=1e-4, atol=1e-4)
    assert op_type not in operators(m)
