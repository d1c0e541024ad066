"""Attributes and constants that no node may have: refused by naming the node, not as a defect of a pass."""

from __future__ import annotations

import contextlib
import re

import numpy as np
import onnx_ir as ir
import pytest
from onnx.backend.test.case.node import collect_testcases

from passes.core.errors import InputError, PassError
from passes.graphs.scopes import Scope, name_nodes
from passes.rewriting.base import Context, Pass, Result, Skip
from passes.rewriting.edit import Edit
from passes.rewriting.pipeline import Pipeline
from passes.rewriting.rewrite import Replacement, rewrite
from passes.shapes.validity import check_nodes
from tests.passes.harness import model

_LISTS = {"zero": [0], "one": [1], "nine": [9], "minus": [-1], "far": [77], "pads": [0, 0], "two": [-1, -1]}
_CONSTANTS = {name: np.array(numbers, np.int64) for name, numbers in _LISTS.items()}
_CONSTANTS |= {"w": np.ones((2, 4, 1, 1), np.float32), "t": np.ones((4, 1, 1, 1), np.float32)}
_POOLS = ("AveragePool", "LpPool", "MaxPool")
INVALID = {
    **{f"{name} = {numbers}": f"Conv<{name} = {numbers}>(x, w)" for name in ("strides", "dilations", "kernel_shape")
       for numbers in ("[0, 0]", "[-1, 1]")},
    **{f"strides of {pool}": f"{pool}<kernel_shape = [2, 2], strides = [0, 0]>(x)" for pool in _POOLS},
    **{f"window of {pool}": f"{pool}<kernel_shape = [0, 0]>(x)" for pool in _POOLS},
    **{f"{axis} of {kind}": f"{kind}<axis = {axis}>(x)" for kind in ("Softmax", "ArgMax", "Flatten", "Split")
       for axis in (9, -9)},
    "group": "Conv<group = 0>(x, w)", "group of a transpose": "ConvTranspose<group = 0>(x, t)",
    "pads": "Conv<pads = [1, 1]>(x, w)", "blocksize": "DepthToSpace<blocksize = 0>(x)",
    "blocks": "SpaceToDepth<blocksize = -2>(x)", "size": "LRN<size = 0>(x)",
    "pooled_shape": "MaxRoiPool<pooled_shape = [0, 0]>(x, r)", "perm": "Transpose<perm = [0, 0, 1, 2]>(x)",
    "another perm": "Transpose<perm = [0, 1, 2, 9]>(x)",
    "an axis of Slice": "Slice(x, zero, nine, far)", "axis of TopK": "TopK<axis = 9>(x, one)",
    "repeats": "Tile(x, one)", "axes of Unsqueeze": "Unsqueeze(x, far)", "shape": "Reshape(x, two)",
    "pads of Pad": "Pad(x, pads)", "a shape": "ConstantOfShape(minus)",
}  # fmt: skip


@pytest.mark.parametrize("shape", ["1,4,6,6", "a,b,c,d"])
@pytest.mark.parametrize("name", INVALID)
def test_invalid_nodes(name: str, shape: str) -> None:
    """Also behind a node whose result is not declared, and when only the rank of the input is known."""
    row = INVALID[name]
    operator = re.match(r"\w+", row)[0]
    outputs = "y, i" if operator in ("Split", "TopK") else "y"
    used = {key: array for key, array in _CONSTANTS.items() if re.search(rf"[ (]{key}\b", row)}
    source = model(f"(float[{shape}] a, float[1,5] r) => (y) {{ x = Relu(a) {outputs} = {row} }}", opset=18, **used)
    with pytest.raises(InputError, match=f"{operator} is not valid: .+") as caught:
        Pipeline.parse("infer-shapes").run(source)
    assert str(caught.value.where).startswith("node ")


@pytest.mark.parametrize(
    "row",
    ["com.microsoft.MultiHeadAttention<num_heads = 0>(x, x, x)", "GRU<hidden_size = 0>(x, w, w)",
     "com.microsoft.GroupQueryAttention<num_heads = 2, kv_num_heads = 0>(x, x, x, , , l, l)"],
)  # fmt: skip
def test_numbers_of_heads(row: str) -> None:
    """Rules would divide by them, and MIGraphX does."""
    head = '<ir_version: 10, opset_import: ["": 17, "com.microsoft": 1]> g (float[1,2,8] x, float[1,3,8] w, int32[1] l'
    for node, refused in ((row, True), ("com.microsoft.RotaryEmbedding<num_heads = 0>(x, p, w, w)", False)):
        source = ir.from_onnx_text(f"{head}, int64[1] p) => (y) {{ y = {node} }}")
        with pytest.raises(InputError, match=" is not valid: .* is 0") if refused else contextlib.nullcontext():
            Pipeline.parse("infer-shapes").run(source)


@rewrite("Slice")
def divide_by_step(node: ir.Node, edit: Edit) -> Replacement:
    """Divide by the step."""
    steps = edit.integers(node, 4, "the step")
    return edit.input(node) if steps is not None and 6 // (steps[0] * (steps[0] - 2)) else None


@rewrite("Slice")
def lose_a_key(node: ir.Node, edit: Edit) -> Replacement:
    """Look up what is not there."""
    raise KeyError("gone")


class Divide(Pass):
    """Divide by the step, without a rule."""

    name = "divide"

    def run(self, model: ir.Model, context: Context) -> Result:
        return Result(model, skips=[Skip(str(1 // len([node for node in model.graph if node.name == "nothing"])))])


def _slice(step: int) -> ir.Model:
    source = model("(float[6] x) => (float[n] y) { y = Slice(x, a, b, a, s) }", a=np.zeros(1, np.int64),
                   b=np.full(1, 9), s=np.full(1, step))  # fmt: skip
    name_nodes(Scope(source, source.graph))
    return source


@pytest.mark.parametrize("rule", [divide_by_step, lose_a_key, Divide()])
def test_what_fails_on_an_invalid_node_says_what_the_node_is(rule: Pass) -> None:
    source = _slice(0)
    with pytest.raises(InputError, match="node Slice: Slice is not valid: 'step' cannot be 0"):
        Pipeline([rule]).run(source)


def test_a_rule_that_fails_on_a_valid_node_leaves_it() -> None:
    (step,) = Pipeline([divide_by_step]).run(_slice(2))
    (skip,) = step.result.skips
    assert "the rewrite fails: ZeroDivisionError" in skip.reason
    with pytest.raises(PassError, match="pass divide: ZeroDivisionError"):
        Pipeline([Divide()]).run(_slice(1))


@pytest.mark.parametrize(
    "row",
    ["Tile(x, r)", "Expand(x, r)", "ConstantOfShape(r)", "Pad(x, p)", "Resize(x, , s)", "OneHot(i, d, v)",
     "Range(o, d, e)", "MatMul(c, t)"],
)  # fmt: skip
def test_what_no_device_can_hold(row: str) -> None:
    """Nothing is computed, and MIGraphX is not asked."""
    r, big = np.array([2**21, 2**21]), np.full(4, 2**21)
    given = {"r": r, "p": big, "s": np.full(2, 2**20, np.float32), "d": np.array(2**42), "v": np.ones(2, np.float32),
             "o": np.array(0), "e": np.array(1)}  # fmt: skip
    used = {name: array for name, array in given.items() if re.search(rf"[ (]{name}\b", row)}
    head = "(float[1,1] x, int64[2] i, float[4000000,1] c, float[1,4000000] t)"
    with pytest.raises(InputError, match=f"{row.partition('(')[0]} is not valid: y has the shape .* any device"):
        Pipeline.parse("infer-shapes").run(model(f"{head} => (float[n] z) {{ y = {row} z = Shape(y) }}", **used))


def test_constants_of_old_opsets() -> None:
    """ONNX's definition before opset 9 has no integers, and ONNX Runtime takes them."""
    text = "(float[1,1] x) => (float[n] y) { s = Constant<value = int64[1] {-1}>() y = Reshape(x, s) }"
    Pipeline.parse("infer-shapes").run(model(text, opset=8))


def test_strings_have_a_size_too() -> None:
    Pipeline.parse("infer-shapes").run(model("(string[2] x) => (string[2] y) { a = Identity(x) y = Identity(a) }"))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_what_onnx_tests_is_valid() -> None:
    """No node of ONNX's own tests is refused."""
    count = 0
    for case in collect_testcases(None):
        with contextlib.suppress(Exception):
            source = ir.from_proto(case.model)
            count += 1
            try:
                check_nodes(source.graph, Scope(source, source.graph))
            except InputError as error:
                pytest.fail(f"{case.name}: {error}")
    assert count > 1000
