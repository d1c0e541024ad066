"""Rules for linear models and support vector machines: the labels and scores of ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from onnx import TensorProto

from onnx_bridge.migraphx.program import Tensor
from onnx_bridge.migraphx.worker import Worker
from passes.core.base import Context
from passes.legalize.ml import linear, svm
from tests.passes.ml import numbers, one, why_not
from tests.passes.rewriting import apply, operators, run

F, D, L, S = TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.INT64, TensorProto.STRING
INT = TensorProto.INT32
TRANSFORMS = ["NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO", "PROBIT"]
REGRESSOR, CLASSIFIER = linear.RULES
SVR, SVC = svm.RULES


def weights(*shape: int, seed: int = 5) -> list[float]:
    """Seeded numbers, flat."""
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


def svc(counts: list[int], kernel: str = "RBF", features: int = 3, dtype: int = F, **more: Any) -> ir.Model:
    """An SVMClassifier with so many support vectors for each class; of none of them it is linear."""
    classes, total = len(counts), sum(counts)
    given = {
        "coefficients": weights(classes - 1, total) if total else weights(classes, features),
        "support_vectors": weights(total, features, seed=6) if total else None,
        "vectors_per_class": counts if total else None,
        "rho": weights(classes * (classes - 1) // 2, seed=7) if total else [0.25],
        "classlabels_ints": [10 * (each + 1) for each in range(classes)],
        "kernel_type": kernel,
        "kernel_params": [0.3, 0.5, 3.0],
    }
    return one("SVMClassifier", (dtype, (9, features)), outputs=(L, F), version=1, **given | more)


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
    apply(REGRESSOR, m)
    assert "LinearRegressor" not in operators(m)


def test_linear_regressor_without_intercepts() -> None:
    m = one("LinearRegressor", (F, (5, 3)), coefficients=weights(3), version=1, opset=None)
    apply(REGRESSOR, m)
    assert operators(m) == ["MatMul"]


@pytest.mark.parametrize("kind", TRANSFORMS)
@pytest.mark.parametrize("classes", [2, 4])
def test_linear_classifier(kind: str, classes: int) -> None:
    m = linear_classifier(classes, classes, post_transform=kind, multi_class=1)
    apply(CLASSIFIER, m)
    assert "LinearClassifier" not in operators(m)


@pytest.mark.parametrize("kind", TRANSFORMS[:-1])
@pytest.mark.parametrize("dtype", [F, D, INT, L])
def test_linear_classifier_of_one_score(kind: str, dtype: int) -> None:
    apply(CLASSIFIER, m := linear_classifier(1, 2, post_transform=kind, dtype=dtype))
    assert "LinearClassifier" not in operators(m)


@pytest.mark.parametrize("kernel", ["LINEAR", "POLY", "RBF", "SIGMOID"])
@pytest.mark.parametrize("one_class", [0, 1])
def test_svm_regressor(kernel: str, one_class: int) -> None:
    m = one(
        "SVMRegressor",
        (F, (6, 3)),
        version=1,
        n_supports=4,
        support_vectors=weights(4, 3),
        coefficients=weights(4),
        rho=[0.5],
        kernel_type=kernel,
        kernel_params=[0.2, 0.5, 2.0],
        one_class=one_class,
    )
    apply(SVR, m, rtol=1e-4)
    assert "SVMRegressor" not in operators(m)


def test_linear_svm_regressor() -> None:
    m = one(
        "SVMRegressor",
        (F, (3,)),
        version=1,
        coefficients=weights(3),
        rho=[0.5],
        n_supports=0,
        kernel_params=[0.0, 0.0, 0.0],
    )
    apply(SVR, m)
    assert operators(m) == ["Unsqueeze", "MatMul", "Add"]


@pytest.mark.parametrize("kernel", ["LINEAR", "POLY", "RBF", "SIGMOID"])
@pytest.mark.parametrize("counts", [[2, 3], [2, 1, 3], [1, 2, 1, 2]])
@pytest.mark.parametrize("kind", TRANSFORMS[:-1])
def test_svm_classifier(kernel: str, counts: list[int], kind: str) -> None:
    apply(SVC, m := svc(counts, kernel, post_transform=kind), rtol=1e-4, atol=1e-4)
    assert "SVMClassifier" not in operators(m)


@pytest.mark.parametrize("kind", TRANSFORMS)
@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("sign", [-1, 0, 1])
def test_linear_svm_classifier(kind: str, classes: int, sign: int) -> None:
    """With weights of one sign, and of both: of two labels, which wins depends on that."""
    given = np.array(weights(classes, 3))
    given = (sign * np.abs(given) if sign else given) / 10
    apply(SVC, m := svc([0] * classes, coefficients=given.tolist(), post_transform=kind))
    assert "SVMClassifier" not in operators(m)


def strings_of(m: ir.Model, names: str, *, drop_labels: bool) -> ir.Model:
    """A model whose labels are strings, and perhaps not an output."""
    (node,) = m.graph
    del node.attributes["classlabels_ints"]
    node.attributes["classlabels_strings"] = ir.AttrStrings("classlabels_strings", list(names))
    node.outputs[0].type = ir.TensorType(ir.DataType.STRING)
    if drop_labels:
        m.graph.outputs.pop(0)
    return m


@pytest.mark.parametrize(
    ("rule", "make"),
    [(CLASSIFIER, lambda: linear_classifier(3, 3)), (SVC, lambda: svc([1, 2, 2])), (SVC, lambda: svc([0] * 3))],
)
def test_string_labels(rule: Any, make: Any) -> None:
    assert (
        why_not(rule, strings_of(make(), "abc", drop_labels=False)) == "its labels are strings, which are for the host"
    )
    m = strings_of(make(), "abc", drop_labels=True)
    apply(rule, m)
    assert not [node for node in m.graph if node.domain]


@pytest.mark.parametrize(
    ("rule", "m", "reason"),
    [
        (CLASSIFIER, linear_classifier(3, 3, intercepts=None), "no intercepts"),
        (CLASSIFIER, linear_classifier(1, 1), "1 scores and 1 labels"),
        (CLASSIFIER, linear_classifier(3, 2), "3 scores and 2 labels"),
        (CLASSIFIER, linear_classifier(3, 3, coefficients=[1.0]), "1 coefficients for 3 scores of 3 features"),
        (CLASSIFIER, linear_classifier(1, 2, post_transform="PROBIT"), "not defined"),
        (SVC, svc([2, 3], prob_a=[1.0], prob_b=[1.0]), "iteration"),
        (SVC, svc([2, 3], post_transform="PROBIT"), "not defined"),
        (SVC, svc([2, 3], coefficients=[1.0]), "needs"),
        (SVC, svc([2, 3], support_vectors=[1.0]), "1 numbers for 5 support vectors"),
        (SVC, svc([2, 3], vectors_per_class=[5]), "vectors_per_class"),
        (SVC, svc([2, 3], kernel="COSINE"), "kernel COSINE is unknown"),
        (SVR, one("SVMRegressor", (F, (3,)), version=1, coefficients=weights(2), rho=[0.5], n_supports=0), "2 coeff"),
    ],
)
def test_skips(rule: Any, m: ir.Model, reason: str) -> None:
    assert reason in why_not(rule, m)


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_any_classifier(data: st.DataObject) -> None:
    """Whatever a rule takes, the labels and scores are those of ONNX Runtime."""
    draw = data.draw
    kind, seed = draw(st.sampled_from(TRANSFORMS)), draw(st.integers(0, 99))
    dtype = draw(st.sampled_from([F, D, INT, L]))
    if draw(st.booleans()):
        counts = draw(st.lists(st.integers(1, 3), min_size=2, max_size=4))
        assume(kind != "PROBIT" or len(counts) > 2)
        m, rule = svc(counts, draw(st.sampled_from(["LINEAR", "RBF"])), dtype=dtype, post_transform=kind), SVC
    else:
        classes = draw(st.integers(1, 4))
        assume(kind != "PROBIT" or classes > 1)
        m, rule = linear_classifier(classes, max(2, classes), dtype=dtype, post_transform=kind), CLASSIFIER
    (value,) = m.graph.inputs
    assert value.shape is not None
    assert apply(rule, m, inputs={"a": numbers(value.shape.numpy(), dtype, seed)}, rtol=1e-4, atol=1e-4).rewrites


def test_migraphx_computes_the_same(worker: Worker) -> None:
    cases: list[tuple[Any, ir.Model]] = [
        (REGRESSOR, one("LinearRegressor", (F, (5, 3)), coefficients=weights(2, 3), targets=2, version=1)),
        *[(CLASSIFIER, linear_classifier(3, 3, post_transform=kind)) for kind in TRANSFORMS[:-1]],
        (CLASSIFIER, linear_classifier(1, 2)),
        *[(SVC, svc([2, 1, 2], kernel)) for kernel in ("LINEAR", "POLY", "RBF", "SIGMOID")],
        (SVC, svc([2, 1])),
        (SVC, svc([0, 0])),
    ]
    for rule, m in cases:
        rule.run(m, Context())
        proto = ir.to_proto(m)
        value = m.graph.inputs[0]
        assert value.shape is not None
        x = numbers(value.shape.numpy(), seed=1)
        program = worker.parse_onnx_buffer(proto.SerializeToString())
        program.compile("ref")
        for found, expected in zip(program.run({"a": Tensor.of(x)}), run(proto, {"a": x}).values(), strict=True):
            assert found.numpy().dtype == expected.dtype
            np.testing.assert_allclose(found.numpy(), expected, 1e-4, 1e-5)
