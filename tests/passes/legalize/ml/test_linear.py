"""Rules for linear models: the labels and scores of ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from onnx import TensorProto

from passes.legalize.ml.linear import multiply_linear_classifier, multiply_linear_regressor
from passes.rewriting.base import Context
from tests.passes.device import Device
from tests.passes.harness import apply, operators, run
from tests.passes.ml import numbers, one, why_not

F, D, L, S = TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.INT64, TensorProto.STRING
INT = TensorProto.INT32
TRANSFORMS = ["NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO", "PROBIT"]


def weights(*shape: int, seed: int = 5) -> list[float]:
    """A flat list of seeded numbers."""
    found: list[float] = numbers(shape, seed=seed).ravel().tolist()
    return found


def linear_classifier(
    classes: int, labels: int, shape: tuple[int, ...] = (7, 3), dtype: int = F, **more: Any
) -> ir.Model:
    """A LinearClassifier."""
    given = {
        "coefficients": weights(classes, shape[-1]),
        "intercepts": weights(classes),
        "classlabels_ints": [10 * (each + 1) for each in range(labels)],
    }
    return one("LinearClassifier", (dtype, shape), outputs=(L, F), version=1, **given | more)


@pytest.mark.parametrize("kind", TRANSFORMS)
@pytest.mark.parametrize(("targets", "shape", "opset"), [(1, (5, 3), 11), (3, (5, 3), 18), (2, (3,), 13)])
def test_linear_regressor(kind: str, targets: int, shape: tuple[int, ...], opset: int) -> None:
    m = one(
        "LinearRegressor",
        (F, shape),
        coefficients=(np.array(weights(targets, 3)) / 20).tolist(),
        intercepts=[0.5] * targets,
        targets=targets,
        post_transform=kind,
        opset=opset,
        version=1,
    )
    apply(multiply_linear_regressor, m)
    assert "LinearRegressor" not in operators(m)


def test_linear_regressor_without_intercepts() -> None:
    m = one("LinearRegressor", (F, (5, 3)), coefficients=weights(3), version=1)
    apply(multiply_linear_regressor, m)
    assert operators(m) == ["MatMul"]


@pytest.mark.parametrize("kind", TRANSFORMS)
@pytest.mark.parametrize("classes", [2, 4])
def test_linear_classifier(kind: str, classes: int) -> None:
    m = linear_classifier(classes, classes, post_transform=kind, multi_class=1)
    apply(multiply_linear_classifier, m)
    assert "LinearClassifier" not in operators(m)


@pytest.mark.parametrize("kind", TRANSFORMS[:-1])
@pytest.mark.parametrize("dtype", [F, D, INT, L])
def test_linear_classifier_of_one_score(kind: str, dtype: int) -> None:
    apply(multiply_linear_classifier, m := linear_classifier(1, 2, post_transform=kind, dtype=dtype))
    assert "LinearClassifier" not in operators(m)


def strings_of(m: ir.Model, names: str, *, drop_labels: bool) -> ir.Model:
    """The model with string labels; ``drop_labels`` removes the label output."""
    (node,) = m.graph
    del node.attributes["classlabels_ints"]
    node.attributes["classlabels_strings"] = ir.AttrStrings("classlabels_strings", list(names))
    node.outputs[0].type = ir.TensorType(ir.DataType.STRING)
    if drop_labels:
        m.graph.outputs.pop(0)
    return m


def test_string_labels() -> None:
    m = strings_of(linear_classifier(3, 3), "abc", drop_labels=False)
    assert why_not(multiply_linear_classifier, m) == "the labels are strings, which run on the host"
    m = strings_of(linear_classifier(3, 3), "abc", drop_labels=True)
    apply(multiply_linear_classifier, m)
    assert not [node for node in m.graph if node.domain]


@pytest.mark.parametrize(
    ("rule", "m", "reason"),
    [
        (multiply_linear_classifier, linear_classifier(3, 3, intercepts=None), "no intercepts"),
        (multiply_linear_classifier, linear_classifier(1, 1), "1 scores and 1 labels"),
        (multiply_linear_classifier, linear_classifier(3, 2), "3 scores and 2 labels"),
        (
            multiply_linear_classifier,
            linear_classifier(3, 3, coefficients=[1.0]),
            "1 coefficients for 3 scores of 3 features",
        ),
        (multiply_linear_classifier, linear_classifier(1, 2, post_transform="PROBIT"), "not defined"),
    ],
)
def test_skips(rule: Any, m: ir.Model, reason: str) -> None:
    assert reason in why_not(rule, m)


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_any_classifier(data: st.DataObject) -> None:
    """For all matches, the labels and scores are those of ONNX Runtime."""
    draw = data.draw
    kind, seed = draw(st.sampled_from(TRANSFORMS)), draw(st.integers(0, 99))
    dtype = draw(st.sampled_from([F, D, INT, L]))
    classes = draw(st.integers(1, 4))
    assume(kind != "PROBIT" or classes > 1)
    m = linear_classifier(classes, max(2, classes), dtype=dtype, post_transform=kind)
    (value,) = m.graph.inputs
    assert value.shape is not None
    assert apply(
        multiply_linear_classifier, m, inputs={"a": numbers(value.shape.numpy(), dtype, seed)}, rtol=1e-4, atol=1e-4
    ).rewrites


def test_migraphx_computes_the_same(device: Device) -> None:
    cases: list[tuple[Any, ir.Model]] = [
        (
            multiply_linear_regressor,
            one("LinearRegressor", (F, (5, 3)), coefficients=weights(2, 3), targets=2, version=1),
        ),
        *[(multiply_linear_classifier, linear_classifier(3, 3, post_transform=kind)) for kind in TRANSFORMS[:-1]],
        (multiply_linear_classifier, linear_classifier(1, 2)),
    ]
    for rule, m in cases:
        rule.run(m, Context())
        proto = ir.to_proto(m)
        value = m.graph.inputs[0]
        assert value.shape is not None
        x = numbers(value.shape.numpy(), seed=1)
        for found, expected in zip(device.run(proto, {"a": x}), run(proto, {"a": x}).values(), strict=True):
            assert found.dtype == expected.dtype
            np.testing.assert_allclose(found, expected, 1e-4, 1e-5)
