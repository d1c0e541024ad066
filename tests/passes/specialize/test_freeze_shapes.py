"""freeze-shapes: every way to give a size, and every invalid one."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from passes.core.errors import InputError
from passes.rewriting.base import Budget, Context
from passes.rewriting.pipeline import Pipeline
from passes.specialize.freeze_shapes import FROZEN, FreezeShapes
from tests.passes.harness import apply
from tests.passes.helpers import tiny

TEXT = """(float[batch,seq,4] x, float[batch,?] m, float[2,4] k) => (float[batch,seq,4] y, float[batch,n] z)
    <float[batch,seq,4] h, float["2*batch",4] r, float[other,4] o> {
        h = Neg(x) y = Abs(h) z = Exp(m) r = Reshape(x, s) o = Slice(r, a, b) }"""


def source() -> ir.Model:
    return tiny(TEXT, s=np.array([-1, 4]), a=np.array([0]), b=np.array([1]))


def shapes_of(model: ir.Model) -> dict[str, str]:
    values = [*model.graph.inputs, *(value for node in model.graph for value in node.outputs)]
    return {str(value.name): str(value.shape) for value in values}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (
            {"dims": {"batch": 1, "seq": 128}},
            {"x": "[1,128,4]", "m": "[1,None]", "h": "[1,128,4]", "y": "[1,128,4]", "z": "[1,n]", "r": "[128,4]"},
        ),
        ({"shapes": {"x": (3, 5, 4)}}, {"x": "[3,5,4]", "m": "[3,None]", "h": "[3,5,4]", "z": "[3,n]"}),
        ({"shapes": {"m": (3, 7)}}, {"x": "[3,seq,4]", "m": "[3,7]", "h": "[3,seq,4]"}),
        ({"dims": {"batch": 3}, "shapes": {"m": (3, 7)}}, {"x": "[3,seq,4]", "m": "[3,7]"}),
        ({"default": 2}, {"x": "[2,2,4]", "m": "[2,2]", "k": "[2,4]", "h": "[2,2,4]", "z": "[2,2]", "o": "[1,4]"}),
        ({"dims": {"seq": 9}, "default": 2}, {"x": "[2,9,4]", "m": "[2,2]"}),
        ({"shapes": {"k": (2, 4)}}, {"x": "[batch,seq,4]", "k": "[2,4]"}),
        ({}, {"x": "[batch,seq,4]", "m": "[batch,None]"}),
    ],
)
def test_sizes(options: dict[str, Any], expected: dict[str, str]) -> None:
    model = source()
    result = FreezeShapes(**options).run(model, Context())
    assert shapes_of(model) | expected == shapes_of(model)
    assert bool(result.rewrites) == (expected["x"] != "[batch,seq,4]")
    again = FreezeShapes(**options).run(model, Context())
    assert not again.rewrites


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dims": {"batches": 1}}, "freeze-shapes: no input has a dimension batches .did you mean batch?"),
        ({"dims": {"zzz": 1}}, r"no input has a dimension zzz .dynamic are x: \[batch,seq,4\], m: \[batch,None\]"),
        ({"dims": {"n": 1}}, "no input has a dimension n"),
        ({"shapes": {"xx": (1, 2)}}, "the model has no input xx .did you mean x?"),
        ({"shapes": {"zzz": (1, 2)}}, "the model has no input zzz .there are x, m, k"),
        ({"shapes": {"s": (2,)}}, "the model has no input s"),
        ({"shapes": {"x": (1, 2)}}, r"input x has 3 dimensions, \[batch,seq,4\], but \[1, 2\] has 2"),
        (
            {"shapes": {"x": (1, 2, 5)}},
            r"dimension 2 of input x is 4 and cannot be frozen to 5 .the model declares x: \[batch",
        ),
        ({"shapes": {"x": (1, 2, 4), "m": (2, 2)}}, "the shape of input m implies batch=2, which contradicts batch=1"),
        (
            {"dims": {"batch": 3}, "shapes": {"m": (2, 2)}},
            "the shape of input m implies batch=2, which contradicts batch=3",
        ),
        ({"dims": {"batch": -1}}, "must be frozen to 0 or more"),
        ({"shapes": {"m": (1, -1)}}, "must be frozen to 0 or more"),
        ({"default": 0}, "default size must be 1 or more"),
    ],
)
def test_invalid_options(options: dict[str, Any], message: str) -> None:
    model = source()
    with pytest.raises(InputError, match=message):
        FreezeShapes(**options).run(model, Context())
    assert shapes_of(model) == shapes_of(source())


def test_dimensions_that_are_already_frozen() -> None:
    model = source()
    FreezeShapes(dims={"batch": 2}).run(model, Context())
    FreezeShapes(dims={"seq": 3, "batch": 2}).run(model, Context())
    assert json.loads(model.metadata_props[FROZEN]) == {"batch": 2, "seq": 3}
    with pytest.raises(InputError, match="dimension batch is already frozen to 2, not 4"):
        FreezeShapes(dims={"batch": 4}).run(model, Context())


def test_a_static_model() -> None:
    model = tiny("(float[2] x) => (float[2] y) { y = Neg(x) }")
    with pytest.raises(InputError, match="all inputs have fixed shapes"):
        FreezeShapes(dims={"batch": 1}).run(model, Context())
    assert not FreezeShapes(default=1).run(model, Context()).rewrites


def test_an_input_without_a_shape() -> None:
    model = tiny("(float x) => (y) { y = Neg(x) }")
    model.graph.inputs[0].shape = None
    FreezeShapes(shapes={"x": (2, 3)}).run(model, Context())
    assert shapes_of(model)["x"] == "[2,3]"


def test_initializers_listed_as_inputs() -> None:
    w = np.ones(2, np.float32)
    model = tiny("(float[n] x, float[2] w) => (y) { y = Add(x, w) }", opset=9, ir_version=3, w=w)
    with pytest.raises(InputError, match="no input w .there are x"):
        FreezeShapes(shapes={"w": (2,)}).run(model, Context())
    FreezeShapes(default=2).run(model, Context())
    assert shapes_of(model) == {"x": "[2]", "w": "[2]", "y": "[2]"}


def test_subgraphs() -> None:
    model = tiny(
        """(float[n,3] x, bool c) => (float[n,3] y) {
            y = If (c) <then_branch = t () => (float[n,3] p) { p = Neg(x) },
                        else_branch = e () => (float[n,3] q) { q = Abs(x) }> }"""
    )
    FreezeShapes(dims={"n": 2}).run(model, Context())
    assert [str(value.shape) for node in model.graph.all_nodes() for value in node.outputs] == ["[2,3]"] * 3


def test_inference_afterwards() -> None:
    model = source()
    Pipeline.parse("freeze-shapes{dims={batch=2,seq=3},shapes={m=[2,5]}},infer-shapes").run(model)
    assert all(value.shape is not None and value.shape.is_static() for node in model.graph for value in node.outputs)
    assert shapes_of(model)["r"] == "[6,4]"
    assert not Pipeline.parse("infer-shapes").run(model)[0].result.skips


def test_numbers() -> None:
    model = tiny("(float[n,3] x) => (float[n,3] y) { y = Neg(x) }")
    apply(FreezeShapes(dims={"n": 2}), model, inputs={"x": np.ones((2, 3), np.float32)})


@pytest.mark.parametrize(("limit", "frozen"), [(0, []), (1, ["x"]), (2, ["x", "m"]), (3, ["x", "m"])])
def test_budget(limit: int, frozen: list[str]) -> None:
    model = source()
    FreezeShapes(default=2).run(model, Context(budget=Budget(limit)))
    assert [str(value.name) for value in model.graph.inputs[:2] if value.shape and value.shape.is_static()] == frozen


def test_a_whole_shape_may_have_a_dimension_of_size_0() -> None:
    model = source()
    FreezeShapes(shapes={"m": (0, 3)}).run(model, Context())
    assert shapes_of(model)["m"] == "[0,3]"


def test_the_arrays_of_a_sequence_may_differ_in_size() -> None:
    model = tiny("(seq(float[n,4]) s, optional(float[m]) o, float[n] x) => (float[n] y) { y = Relu(x) }")
    FreezeShapes(default=1).run(model, Context())
    assert [str(value.shape) for value in model.graph.inputs] == ["[1,4]", "[m]", "[1]"]
    again = FreezeShapes(default=1).run(model, Context())
    assert not again.rewrites


CACHED = """(float[past,4] cache, float["past + 1"] mask, float["batch-size"] z) => (y)
    { y = Neg(cache) w = Neg(mask) v = Neg(z) }"""


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"dims": {"past": 4}}, {"cache": "[4,4]", "mask": "[5]", "z": "[batch-size]"}),
        ({"dims": {"past": 4}, "default": 1}, {"cache": "[4,4]", "mask": "[5]", "z": "[1]"}),
        ({"default": 3}, {"cache": "[3,4]", "mask": "[4]", "z": "[3]"}),
        ({"shapes": {"cache": (6, 4)}}, {"cache": "[6,4]", "mask": "[7]", "z": "[batch-size]"}),
        ({"shapes": {"mask": (6,)}}, {"cache": "[past,4]", "mask": "[6]"}),
    ],
)
def test_expressions_of_symbols(options: dict[str, Any], expected: dict[str, str]) -> None:
    model = tiny(CACHED)
    FreezeShapes(**options).run(model, Context())
    assert shapes_of(model) | expected == shapes_of(model)


def test_a_shape_that_contradicts_an_expression() -> None:
    with pytest.raises(InputError, match="past \\+ 1 evaluates to 5, which contradicts past \\+ 1=6"):
        FreezeShapes(dims={"past": 4}, shapes={"mask": (6,)}).run(tiny(CACHED), Context())
