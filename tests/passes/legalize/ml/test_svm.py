"""Rules for support vector machines: the labels, scores and probabilities of ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto

from passes.legalize.ml.svm import multiply_svm_classifier, multiply_svm_regressor
from passes.rewriting.base import Context
from tests.passes.device import Device
from tests.passes.harness import apply, operators, run
from tests.passes.ml import numbers, one, why_not

F, D, L = TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.INT64
INT = TensorProto.INT32
TRANSFORMS = ["NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO"]
KERNELS = {"LINEAR": [0.0, 0.0, 0.0], "POLY": [0.1, 0.5, 3.0], "RBF": [0.05, 0.0, 3.0], "SIGMOID": [0.1, 0.2, 3.0]}


def weights(*shape: int, seed: int = 5) -> list[float]:
    """A flat list of seeded numbers."""
    found: list[float] = np.random.default_rng(seed).standard_normal(shape).ravel().tolist()
    return found


def regressor(kernel: str = "RBF", shape: tuple[int, ...] = (7, 3), vectors: int = 5, **more: Any) -> ir.Model:
    """An SVMRegressor."""
    attributes = {
        "kernel_type": kernel,
        "kernel_params": KERNELS[kernel],
        "n_supports": vectors,
        "support_vectors": weights(vectors, shape[-1], seed=1) if vectors else None,
        "coefficients": weights(vectors or shape[-1], seed=2),
        "rho": [0.25],
    }
    return one("SVMRegressor", (F, shape), version=1, **attributes | more)


def classifier(
    counts: list[int], kernel: str = "RBF", shape: tuple[int, ...] = (40, 3), dtype: int = F, **more: Any
) -> ir.Model:
    """An SVMClassifier with that many support vectors for each class."""
    classes, vectors = len(counts), sum(counts)
    pairs = classes * (classes - 1) // 2
    attributes = {
        "kernel_type": kernel,
        "kernel_params": KERNELS[kernel],
        "vectors_per_class": counts,
        "support_vectors": weights(vectors, shape[-1], seed=1) if vectors else None,
        "coefficients": weights(max(classes - 1, 1) * vectors or classes * shape[-1], seed=2),
        "rho": weights(pairs, seed=3),
        "classlabels_ints": [10 * (each + 1) for each in range(classes)],
    }
    return one("SVMClassifier", (dtype, shape), outputs=(L, F), version=1, **attributes | more)


def likely(classes: int) -> dict[str, list[float]]:
    """The attributes of probabilities."""
    pairs = classes * (classes - 1) // 2
    return {"prob_a": (-2 - np.arange(pairs) / 7).tolist(), "prob_b": weights(pairs, seed=4)}


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(("shape", "opset"), [((7, 3), 18), ((3,), 11)])
def test_regressor(kernel: str, shape: tuple[int, ...], opset: int) -> None:
    apply(multiply_svm_regressor, m := regressor(kernel, shape, opset=opset))
    assert not [node for node in m.graph if node.domain]


@pytest.mark.parametrize("more", [{"one_class": 1}, {"kernel_params": [0.1, 0.5, 2.0], "kernel_type": "POLY"}])
def test_regressor_of_another_kind(more: dict[str, Any]) -> None:
    assert apply(multiply_svm_regressor, regressor(**more)).rewrites


def test_regressor_without_support_vectors() -> None:
    assert apply(multiply_svm_regressor, m := regressor("LINEAR", vectors=0)).rewrites
    assert operators(m) == ["MatMul", "Add"]


def test_distances_of_numbers_far_from_zero() -> None:
    """|x|² − 2 x·v + |v|² of such numbers has no correct digit in float32."""
    far = (np.array(weights(5, 3, seed=1)).reshape(5, 3) + 3000).ravel().tolist()
    x = (np.array(weights(7, 3)).reshape(7, 3) + 3000).astype(np.float32)
    assert apply(multiply_svm_regressor, regressor(support_vectors=far), inputs={"a": x}, rtol=1e-4).rewrites


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("counts", [[4, 3], [3, 1, 5], [2, 2, 2, 3]])
def test_classifier(kernel: str, counts: list[int]) -> None:
    apply(multiply_svm_classifier, m := classifier(counts, kernel), rtol=1e-4)
    assert not [node for node in m.graph if node.domain]


@pytest.mark.parametrize("kind", TRANSFORMS)
@pytest.mark.parametrize("counts", [[4, 3], [3, 1, 5]])
def test_transforms(kind: str, counts: list[int]) -> None:
    assert apply(multiply_svm_classifier, classifier(counts, post_transform=kind), rtol=1e-4).rewrites


@pytest.mark.parametrize("counts", [[4, 3], [3, 1, 5], [2, 1, 2, 3, 1]])
def test_probabilities(counts: list[int]) -> None:
    assert apply(multiply_svm_classifier, classifier(counts, **likely(len(counts))), rtol=1e-4).rewrites


@pytest.mark.parametrize("counts", [[4, 3], [3, 1, 5], [1] * 8])
@pytest.mark.slow
def test_certain_probabilities(counts: list[int]) -> None:
    """Of numbers so large that most pairs are certain, which takes the most steps."""
    m = classifier(counts, "LINEAR", **likely(len(counts)))
    x = np.random.default_rng(0).standard_normal((40, 3)) * np.logspace(-2, 2, 40)[:, None]
    assert apply(multiply_svm_classifier, m, inputs={"a": x.astype(np.float32)}, rtol=1e-4).rewrites


@pytest.mark.parametrize("positive", [False, True])
@pytest.mark.parametrize("classes", [2, 3])
def test_classifier_without_support_vectors(positive: bool, classes: int) -> None:
    coefficients = np.array(weights(classes * 3, seed=2))
    m = classifier([0] * classes, "LINEAR", coefficients=(abs(coefficients) if positive else coefficients).tolist())
    assert apply(multiply_svm_classifier, m).rewrites


def test_string_labels() -> None:
    m = classifier([2, 2])
    (node,) = m.graph
    del node.attributes["classlabels_ints"]
    node.attributes["classlabels_strings"] = ir.AttrStrings("classlabels_strings", ["a", "b"])
    node.outputs[0].type = ir.TensorType(ir.DataType.STRING)
    assert why_not(multiply_svm_classifier, m) == "the labels are strings, which run on the host"
    m.graph.outputs.pop(0)
    assert apply(multiply_svm_classifier, m).rewrites


@pytest.mark.parametrize(
    ("rule", "m", "reason"),
    [
        (multiply_svm_regressor, regressor(coefficients=[1.0]), "1 coefficients for 5 numbers"),
        (multiply_svm_regressor, regressor(support_vectors=[1.0] * 7), "7 numbers for 5 vectors of 3 features"),
        (multiply_svm_regressor, regressor(rho=None), "no coefficients or no rho"),
        (multiply_svm_regressor, regressor(kernel_type="COSINE"), "COSINE is unknown"),
        (multiply_svm_regressor, regressor(opset=9), "convert-opset comes first"),
        (multiply_svm_classifier, classifier([3], rho=[0.5]), "1 labels"),
        (multiply_svm_classifier, classifier([3, 2], post_transform="PROBIT"), "not defined"),
        (multiply_svm_classifier, classifier([3, 2, 2], rho=[0.5]), "do not fit 3 classes"),
        (multiply_svm_classifier, classifier([1] * 21, **likely(21)), "probabilities of 21 classes"),
        (multiply_svm_classifier, classifier([3, 2], prob_a=[1.0]), "do not fit 2 classes"),
    ],
)
def test_skips(rule: Any, m: ir.Model, reason: str) -> None:
    assert reason in why_not(rule, m)


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_any_classifier(data: st.DataObject) -> None:
    """For all matches, the labels, scores and probabilities are those of ONNX Runtime."""
    draw = data.draw
    counts = draw(st.lists(st.integers(1, 4), min_size=2, max_size=5))
    more = likely(len(counts)) if draw(st.booleans()) else {}
    dtype, kernel = draw(st.sampled_from([F, D, INT, L])), draw(st.sampled_from(list(KERNELS)))
    m = classifier(counts, kernel, dtype=dtype, post_transform=draw(st.sampled_from(TRANSFORMS)), **more)
    (value,) = m.graph.inputs
    assert value.shape is not None
    inputs = {"a": numbers(value.shape.numpy(), dtype, draw(st.integers(0, 99)))}
    assert apply(multiply_svm_classifier, m, inputs=inputs, rtol=1e-3, atol=1e-4).rewrites


def test_migraphx_computes_the_same(device: Device) -> None:
    cases: list[tuple[Any, ir.Model]] = [
        *[(multiply_svm_regressor, regressor(kernel)) for kernel in KERNELS],
        (multiply_svm_classifier, classifier([2, 3])),
        (multiply_svm_classifier, classifier([2, 3, 2])),
        (multiply_svm_classifier, classifier([2, 3, 2], shape=(4, 3), **likely(3))),
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
