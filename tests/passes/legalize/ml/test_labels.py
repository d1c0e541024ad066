"""The rule for LabelEncoder: the table of ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from onnx import TensorProto

from passes.legalize.ml.labels import look_up_labels
from passes.rewriting.base import Context
from tests.passes.device import Device
from tests.passes.harness import Array, apply, operators, run
from tests.passes.ml import one, why_not

F, L, S = TensorProto.FLOAT, TensorProto.INT64, TensorProto.STRING
KEYS: dict[int, list[Any]] = {L: [5, -3, 0, 40], F: [0.5, -1.0, 0.0, 3e20]}
VALUES: dict[int, list[Any]] = {L: [7, 8, -(2**40), 2**62], F: [0.25, -1.5, float("inf"), 4.0]}
NAMES: dict[int, str] = {L: "int64s", F: "floats"}


def encoder(key: int, value: int, *, shape: tuple[int, ...] = (3, 4), opset: int = 17, **more: Any) -> ir.Model:
    """A LabelEncoder."""
    given = {f"keys_{NAMES[key]}": KEYS[key], f"values_{NAMES[value]}": VALUES[value]}
    return one("LabelEncoder", (key, shape), outputs=(value,), version=2, opset=opset, **given | more)


def looked_up(key: int, shape: tuple[int, ...] = (3, 4)) -> Array:
    """All keys, what is beside them, and what is far from them."""
    others = [2**63 - 1, -(2**63), 6, -4, 41, 39, 1, 2] if key == L else [np.nan, np.inf, -np.inf, 0.4, -0.0, 1, 2, -2]
    return np.array([*KEYS[key], *others], np.int64 if key == L else np.float32)[: np.prod(shape)].reshape(shape)


@pytest.mark.parametrize("key", [L, F])
@pytest.mark.parametrize("value", [L, F])
def test_every_number(key: int, value: int) -> None:
    m = encoder(key, value)
    assert apply(look_up_labels, m, inputs={"a": looked_up(key)}).rewrites
    assert "LabelEncoder" not in operators(m)


@pytest.mark.parametrize("key", [L, F])
def test_a_given_default(key: int) -> None:
    m = encoder(key, L, shape=(4,), opset=12, default_int64=99)
    assert apply(look_up_labels, m, inputs={"a": looked_up(key, (4,)) + 1}).rewrites


@pytest.mark.parametrize(
    ("m", "reason"),
    [
        (encoder(L, L, opset=11), "convert-opset comes first"),
        (encoder(L, L, keys_int64s=[1, 1, 2, 3]), "same"),
        (encoder(L, L, keys_int64s=[0, 1, 2, 2**40]), "apart"),
        (encoder(F, L, keys_floats=[0.0, 1.0, 2.0, float("nan")]), "not numbers"),
    ],
)
def test_skips(m: ir.Model, reason: str) -> None:
    assert reason in why_not(look_up_labels, m)


def test_strings_run_on_the_host() -> None:
    m = one("LabelEncoder", (L, (2,)), outputs=(S,), version=2, keys_int64s=[0, 1], values_strings=["a", "b"])
    assert "strings" in why_not(look_up_labels, m)


def test_migraphx_computes_the_same(device: Device) -> None:
    for key, value in ((L, L), (L, F), (F, L), (F, F)):
        m = encoder(key, value)
        look_up_labels.run(m, Context())
        proto, x = ir.to_proto(m), looked_up(key)
        (found,), (expected,) = device.run(proto, {"a": x}), run(proto, {"a": x}).values()
        assert found.dtype == expected.dtype
        np.testing.assert_array_equal(found, expected)
