"""Rules for feature preprocessing: the results of ONNX Runtime, and what runs on the host."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto

from passes.legalize import rules_of
from passes.legalize.ml import features as rules
from passes.rewriting.base import Context, Pass
from tests.passes.device import Device
from tests.passes.harness import Array, apply, run
from tests.passes.ml import numbers, one, why_not

F, D, L, S = TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.INT64, TensorProto.STRING
INT = TensorProto.INT32


def on_device(m: ir.Model, inputs: dict[str, Array], device: Device) -> None:
    """Require the results of ONNX Runtime from MIGraphX."""
    proto = ir.to_proto(m)
    found = device.run(proto, inputs)
    for each, expected in zip(found, run(proto, inputs).values(), strict=True):
        assert each.dtype == expected.dtype
        np.testing.assert_allclose(each, expected, 1e-5, 1e-6)


CASES: list[tuple[Pass, dict[str, Any], list[tuple[int, tuple[int, ...]]], tuple[int, ...]]] = [
    (rules.gather_array_features, {}, [(F, (3, 4)), (L, (1, 2))], (F,)),
    (rules.gather_array_features, {}, [(L, (4,)), (L, (3,))], (L,)),
    (rules.gather_array_features, {}, [(D, (2, 3, 4)), (L, (1,))], (D,)),
    (rules.decompose_binarizer, {"threshold": 0.5}, [(F, (3, 4))], (F,)),
    (rules.decompose_binarizer, {}, [(F, (2, 3, 4))], (F,)),
    (rules.decompose_imputer, {"imputed_value_floats": [7.0], "replaced_value_float": 0.0}, [(F, (3, 4))], (F,)),
    (
        rules.decompose_imputer,
        {"imputed_value_floats": [7.0, 8.0, 9.0, 1.0], "replaced_value_float": float("nan")},
        [(F, (3, 4))],
        (F,),
    ),
    (rules.decompose_imputer, {"imputed_value_int64s": [7, 8], "replaced_value_int64": 0}, [(L, (5, 2))], (L,)),
    (rules.decompose_imputer, {"imputed_value_int64s": [7, 8, 9], "replaced_value_int64": 1}, [(L, (5, 2))], (L,)),
    *[
        (rules.decompose_normalizer, {"norm": norm}, [(dtype, shape)], (F,))
        for norm, dtype, shape in [
            ("MAX", F, (3, 4)),
            ("L1", L, (3, 4)),
            ("L2", F, (3, 4)),
            ("L2", F, (4,)),
            (None, D, (4,)),
            ("L1", INT, (3, 1)),
        ]
    ],
    (rules.decompose_one_hot_encoder, {"cats_int64s": [0, 3, -2]}, [(L, (3, 4))], (F,)),
    (rules.decompose_one_hot_encoder, {"cats_int64s": [0, 3, -2], "zeros": 1}, [(F, (5,))], (F,)),
    (rules.decompose_scaler, {"offset": [1.0], "scale": [2.0]}, [(F, (3, 4))], (F,)),
    (rules.decompose_scaler, {"offset": [1.0, 2.0], "scale": [2.0, 0.5]}, [(D, (3, 2))], (F,)),
    (rules.decompose_scaler, {"offset": [1.5, 2.5], "scale": [2.0, 0.5]}, [(L, (2,))], (F,)),
    (rules.decompose_scaler, {"offset": [1.5], "scale": [0.5]}, [(INT, (2, 3, 2))], (F,)),
]


@pytest.mark.parametrize(("rule", "attributes", "inputs", "outputs"), CASES)
@pytest.mark.parametrize("opset", [11, 18])
def test_numbers(
    rule: Pass,
    attributes: dict[str, Any],
    inputs: list[tuple[int, tuple[int, ...]]],
    outputs: tuple[int, ...],
    opset: int,
) -> None:
    m, arrays = example(rule, attributes, inputs, outputs, opset)
    apply(rule, m, inputs=arrays)
    assert len([node for node in m.graph if node.domain]) == 0


@pytest.mark.runtime
def test_migraphx_computes_the_same(device: Device) -> None:
    for rule, attributes, inputs, outputs in CASES:
        m, arrays = example(rule, attributes, inputs, outputs, 18)
        rule.run(m, Context())
        on_device(m, arrays, device)


def example(
    rule: Pass,
    attributes: dict[str, Any],
    inputs: list[tuple[int, tuple[int, ...]]],
    outputs: tuple[int, ...],
    opset: int,
) -> tuple[ir.Model, dict[str, Array]]:
    """A model and its inputs, with zeros, and NaN where that matters."""
    (operator,) = rule.operators  # type: ignore[attr-defined]
    m = one(operator[1], *inputs, outputs=outputs, version=1, opset=opset, **attributes)
    arrays = {name: numbers(shape, dtype, 3) for name, (dtype, shape) in zip("abc", inputs, strict=False)}
    arrays["a"].flat[0] = 0
    if "nan" in str(attributes):
        arrays["a"].flat[1] = np.nan
    if operator[1] == "Normalizer" and len(inputs[0][1]) == 2:
        arrays["a"][1] = 0
    if operator[1] == "ArrayFeatureExtractor":
        arrays["b"] = np.arange(arrays["b"].size).reshape(arrays["b"].shape) + 1
    return m, arrays


@pytest.mark.parametrize("threshold", [-2.5, -3.0, 1.0, 2.0**63, -(2.0**63)])
def test_integers_and_a_fractional_threshold(threshold: float) -> None:
    m = one("Binarizer", (L, (7,)), outputs=(L,), version=1, threshold=threshold)
    apply(rules.decompose_binarizer, one("Binarizer", (F, (7,)), version=1, threshold=threshold))
    assert rules.decompose_binarizer.run(m, Context()).rewrites
    x = np.arange(-4, 3)
    np.testing.assert_array_equal(run(ir.to_proto(m), {"a": x})["y"], (x > threshold).astype(np.int64))


@pytest.mark.parametrize(
    ("rule", "m", "reason"),
    [
        (rules.decompose_one_hot_encoder, one("OneHotEncoder", (S, (2,)), cats_strings=["a"], version=1), "strings"),
        (
            rules.gather_array_features,
            one("ArrayFeatureExtractor", (S, (2,)), (L, (1,)), outputs=(S,), version=1),
            "strings",
        ),
        (rules.decompose_scaler, one("Scaler", (F, (2, 3, 4)), offset=[1.0] * 3, scale=[1.0] * 3), "3 parameters"),
        (rules.decompose_scaler, one("Scaler", (F, (2, 3)), offset=[1.0], scale=[1.0] * 3), "1 offsets and 3 scales"),
        (rules.decompose_scaler, one("Scaler", (F, ("n", 3)), offset=[1.0], scale=[1.0]), "freeze"),  # type: ignore[arg-type]
        (
            rules.decompose_scaler,
            one("Scaler", (F, (2, 3)), offset=[1.0], scale=[1.0], opset=10),
            "convert-opset comes first",
        ),
        (rules.decompose_imputer, one("Imputer", (F, (2, 3)), imputed_value_int64s=[1]), "imputed_value_floats"),
        (rules.decompose_normalizer, one("Normalizer", (F, (2, 3)), norm="L3"), "L3"),
        (rules.decompose_binarizer, one("Binarizer", (L, (2, 3)), outputs=(L,), threshold=1e30), "out of range"),
    ],
)
def test_skips(rule: Pass, m: ir.Model, reason: str) -> None:
    assert reason in why_not(rule, m)


@settings(max_examples=50, deadline=None)
@given(data=st.data())
def test_any_parameters(data: st.DataObject) -> None:
    """For all matches, the results are those of ONNX Runtime."""
    draw = data.draw
    shape = tuple(draw(st.lists(st.integers(1, 4), min_size=1, max_size=2)))
    values = st.floats(-3, 3, width=16)
    operator = draw(st.sampled_from(["Scaler", "Imputer", "Normalizer", "OneHotEncoder"]))
    dtype = draw(st.sampled_from([F, D, INT, L] if operator not in ("Imputer", "OneHotEncoder") else [F, L]))
    count = draw(st.sampled_from([1, shape[-1]]))
    target, attributes = F, dict[str, Any]()
    match operator:
        case "Scaler":
            attributes = {name: draw(st.lists(values, min_size=count, max_size=count)) for name in ("offset", "scale")}
        case "Imputer":
            kind, target = ("float" if dtype == F else "int64"), dtype
            small = st.integers(-2, 2)
            filled = draw(st.lists(small, min_size=count, max_size=count))
            attributes = {f"imputed_value_{kind}s": filled, f"replaced_value_{kind}": draw(small)}
            attributes = {
                name: np.array(each, np.float64 if dtype == F else np.int64).tolist()
                for name, each in attributes.items()
            }
        case "Normalizer":
            attributes = {"norm": draw(st.sampled_from(["MAX", "L1", "L2"]))}
        case _:
            attributes = {"cats_int64s": draw(st.lists(st.integers(-3, 3), min_size=1, max_size=4, unique=True))}
    m = one(
        operator, (dtype, shape), outputs=(target,), version=1, opset=draw(st.sampled_from([11, 13, 18])), **attributes
    )
    rule = next(each for each in rules_of("ml.features") if ("ai.onnx.ml", operator) in each.operators)
    result = apply(rule, m, inputs={"a": numbers(shape, dtype, draw(st.integers(0, 99)))}, atol=1e-6)
    assert result.rewrites
