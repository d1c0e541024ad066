"""freeze-shapes: every way to say a size, and every way to say it wrong."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from passes.core.base import Budget, Context
from passes.core.errors import InputError
from passes.core.pipeline import Pipeline
from passes.specialize.freeze_shapes import FROZEN, FreezeShapes
from tests.passes.helpers import tiny
from tests.passes.rewriting import apply

TEXT = """(float[batch,seq,4] x, float[batch,?] m, float[2,4] k) => (float[batch,seq,4] y, float[batch,n] z)
    <float[batch,seq,4] h, float["2*batch",4] r, float[other,4] o> {
        h = Neg(x) y = Abs(h) z = Exp(m) r = Reshape(x, s) o = Slice(r, a, b) }"""


def source() -> ir.Model:
    return tiny(TEXT, s=np.array([-1, 4]), a=np.array([0]), b=np.array([1]))


def shapes(model: ir.Model) -> dict[str, str]:
    values = [*model.graph.inputs, *(value for node in model.graph for value in node.outputs)]
    return {str(value.name): str(value.shape) for value in values}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (
            {"dims": {"batch": 1, "seq": 128}},
            {"x": "[1,128,4]", "m": "[1,None]", "h": "[1,128,4]", "y": "[1,128,4]", "z": "[1,n]", "r": "[None,4]"},
        ),
        ({"inputs": {"x": (3, 5, 4)}}, {"x": "[3,5,4]", "m": "[3,None]", "h": "[3,5,4]", "z": "[3,n]"}),
        ({"inputs": {"m": (3, 7)}}, {"x": "[3,seq,4]", "m": "[3,7]", "h": "[3,seq,4]"}),
        ({"dims": {"batch": 3}, "inputs": {"m": (3, 7)}}, {"x": "[3,seq,4]", "m": "[3,7]"}),
        ({"default": 2}, {"x": "[2,2,4]", "m": "[2,2]", "k": "[2,4]", "h": "[2,2,4]", "z": "[2,n]", "o": "[other,4]"}),
        ({"dims": {"seq": 9}, "default": 2}, {"x": "[2,9,4]", "m": "[2,2]"}),
        ({"inputs": {"k": (2, 4)}}, {"x": "[batch,seq,4]", "k": "[2,4]"}),
        ({}, {"x": "[batch,seq,4]", "m": "[batch,None]"}),
    ],
)
def test_sizes(options: dict[str, Any], expected: dict[str, str]) -> None:
    model = source()
    result = FreezeShapes(**options).run(model, Context())
    assert shapes(model) | expected == shapes(model)
    assert bool(result.rewrites) == (expected["x"] != "[batch,seq,4]")
    again = FreezeShapes(**options).run(model, Context())
    assert not again.rewrites


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dims": {"batches": 1}}, "freeze-shapes: no input has a dimension batches .did you mean batch?"),
        ({"dims": {"zzz": 1}}, r"no input has a dimension zzz .open are x: \[batch,seq,4\], m: \[batch,None\]"),
        ({"dims": {"n": 1}}, "no input has a dimension n"),
        ({"inputs": {"xx": (1, 2)}}, "the model has no input xx .did you mean x?"),
        ({"inputs": {"zzz": (1, 2)}}, "the model has no input zzz .there are x, m, k"),
        ({"inputs": {"s": (2,)}}, "the model has no input s"),
        ({"inputs": {"x": (1, 2)}}, r"input x has 3 dimensions, \[batch,seq,4\], and is given 2, \[1, 2\]"),
        ({"inputs": {"x": (1, 2, 5)}}, r"dimension 2 of input x is 4, and cannot become 5 .the model says x: \[batch"),
        ({"inputs": {"x": (1, 2, 4), "m": (2, 2)}}, "input m says batch=2, but it was given 1"),
        ({"dims": {"batch": 3}, "inputs": {"m": (2, 2)}}, "input m says batch=2, but it was given 3"),
        ({"dims": {"batch": 0}}, "must be frozen to 1 or more"),
        ({"inputs": {"m": (1, -1)}}, "must be frozen to 1 or more"),
        ({"default": 0}, "must be frozen to 1 or more"),
    ],
)
def test_mistakes(options: dict[str, Any], message: str) -> None:
    model = source()
    with pytest.raises(InputError, match=message):
        FreezeShapes(**options).run(model, Context())
    assert shapes(model) == shapes(source())


def test_what_was_frozen_before() -> None:
    model = source()
    FreezeShapes(dims={"batch": 2}).run(model, Context())
    FreezeShapes(dims={"seq": 3, "batch": 2}).run(model, Context())
    assert json.loads(model.metadata_props[FROZEN]) == {"batch": 2, "seq": 3}
    with pytest.raises(InputError, match="dimension batch has been frozen to 2, not 4"):
        FreezeShapes(dims={"batch": 4}).run(model, Context())


def test_a_model_that_has_nothing_to_freeze() -> None:
    model = tiny("(float[2] x) => (float[2] y) { y = Neg(x) }")
    with pytest.raises(InputError, match="all inputs have fixed shapes"):
        FreezeShapes(dims={"batch": 1}).run(model, Context())
    assert not FreezeShapes(default=1).run(model, Context()).rewrites


def test_an_input_without_a_shape() -> None:
    model = tiny("(float x) => (y) { y = Neg(x) }")
    model.graph.inputs[0].shape = None
    FreezeShapes(inputs={"x": (2, 3)}).run(model, Context())
    assert shapes(model)["x"] == "[2,3]"


def test_initializers_that_were_listed_as_inputs() -> None:
    w = np.ones(2, np.float32)
    model = tiny("(float[n] x, float[2] w) => (y) { y = Add(x, w) }", opset=9, ir_version=3, w=w)
    with pytest.raises(InputError, match="no input w .there are x"):
        FreezeShapes(inputs={"w": (2,)}).run(model, Context())
    FreezeShapes(default=2).run(model, Context())
    assert shapes(model) == {"x": "[2]", "w": "[2]", "y": "None"}


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
    Pipeline.parse("freeze-shapes{dims={batch=2,seq=3},inputs={m=[2,5]}},infer-shapes").run(model)
    assert all(value.shape is not None and value.shape.is_static() for node in model.graph for value in node.outputs)
    assert shapes(model)["r"] == "[6,4]"
    assert not Pipeline.parse("infer-shapes").run(model)[0].result.skips


def test_numbers() -> None:
    model = tiny("(float[n,3] x) => (float[n,3] y) { y = Neg(x) }")
    apply(FreezeShapes(dims={"n": 2}), model, inputs={"x": np.ones((2, 3), np.float32)})


@pytest.mark.parametrize(("limit", "frozen"), [(0, []), (1, ["x"]), (2, ["x", "m"]), (3, ["x", "m"])])
def test_the_budget(limit: int, frozen: list[str]) -> None:
    model = source()
    FreezeShapes(default=2).run(model, Context(budget=Budget(limit)))
    assert [str(value.name) for value in model.graph.inputs[:2] if value.shape and value.shape.is_static()] == frozen


def test_a_size_of_0_is_possible_as_part_of_a_whole_shape() -> None:
    model = source()
    FreezeShapes(inputs={"m": (0, 3)}).run(model, Context())
    assert shapes(model)["m"] == "[0,3]"


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
        ({"inputs": {"cache": (6, 4)}}, {"cache": "[6,4]", "mask": "[7]", "z": "[batch-size]"}),
        ({"inputs": {"mask": (6,)}}, {"cache": "[past,4]", "mask": "[6]"}),
    ],
)
def test_expressions_follow_their_symbols(options: dict[str, Any], expected: dict[str, str]) -> None:
    model = tiny(CACHED)
    FreezeShapes(**options).run(model, Context())
    assert shapes(model) | expected == shapes(model)


def test_an_expression_that_is_given_another_size() -> None:
    with pytest.raises(InputError, match="past \\+ 1 is 5 by the sizes in it, but it was given 6"):
        FreezeShapes(dims={"past": 4}, inputs={"mask": (6,)}).run(tiny(CACHED), Context())
