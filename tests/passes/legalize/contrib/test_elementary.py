"""Simple operators of com.microsoft, against ONNX Runtime's kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from passes.legalize import rules_of
from passes.legalize.contrib.elementary import (
    decompose_contrib_rms_norm,
    decompose_linear_attention_gate,
    gather_windows,
    rename_expand_dims,
    repeat_linear_attention_heads,
)
from passes.legalize.control_flow.functions import expand_functions
from tests.passes.device import Device
from tests.passes.legalize.contrib_nodes import holds, random
from tests.passes.legalize.one_node import Case, case, declare, legalized, normal, skipped

Array = np.ndarray[Any, np.dtype[Any]]
RULES = {operator: rule for rule in rules_of("contrib.elementary") for _, operator in rule.operators}
GATE = normal(2, 3, 8, seed=2)


def contrib(operator: str, *inputs: Array, constants: tuple[int, ...] = (), **attributes: Any) -> Case:
    source = case(operator, inputs, attributes, domain="com.microsoft", opset=17, constants=constants)
    return declare(source, source.expected())


@pytest.mark.parametrize(
    ("operator", "inputs", "constants", "attributes"),
    [
        ("ExpandDims", [normal(2, 3), np.array(1, np.int32)], (1,), {}),
        ("ExpandDims", [normal(2, 3), np.array(-1, np.int32)], (1,), {}),
        ("Range", [np.array(2), np.array(9)], (0, 1), {}),
        ("Range", [np.array([2]), np.array([9]), np.array([3])], (0, 1, 2), {}),
        ("UnfoldTensor", [normal(3, 8)], (), {"size": 3, "step": 2}),
        ("UnfoldTensor", [normal(5, 4, 2)], (), {"size": 2, "dim": 0}),
        ("CDist", [normal(3, 4), normal(5, 4)], (), {"metric": "euclidean"}),
        ("CDist", [normal(3, 4), normal(5, 4)], (), {"metric": "sqeuclidean"}),
        ("GatedAdd", [normal(2, 3, 4), normal(2, 3, 4, seed=1), normal(2, 3, 1)], (), {}),
        ("ScaledSiLU", [normal(3, 4)], (), {"alpha": 1.5}),
        ("ScaledSiLU", [normal(3, 4), np.array(0.5, np.float32)], (), {}),
        ("BranchwiseRMSNorm", [normal(2, 3, 4), normal(3, 4)], (), {"epsilon": 0.1}),
        ("BranchwiseRMSNorm", [normal(2, 12), normal(12)], (), {"num_branches": 3}),
        ("BranchwiseRMSNorm", [normal(2, 3, 4), normal(4)], (), {}),
        ("BranchwiseRMSNorm", [normal(2, 3, 4)], (), {}),
        ("GatedRMSNorm", [normal(2, 3, 8), normal(4), GATE], (), {"epsilon": 0.01}),
        ("GatedRMSNorm", [normal(2, 3, 8), normal(8), GATE], (), {"activation": "sigmoid"}),
    ],
)
def test_each_operator(
    operator: str, inputs: list[Array], constants: tuple[int, ...], attributes: dict[str, Any], device: Device
) -> None:
    source = contrib(operator, *inputs, constants=constants, **attributes)
    rule = RULES[operator]
    legalized(rule, source, source.expected(), device=device if operator != "Range" else None, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_gates_of_linear_attention(dtype: Any, device: Device) -> None:
    inputs = {"a": GATE.astype(dtype), "shift": normal(8), "factor": -np.exp(normal(8)), "b": GATE.astype(dtype)}
    options: dict[str, Any] = {"device": device, "tolerance": 1e-4 if dtype == np.float32 else 1e-2}
    holds(decompose_linear_attention_gate, "LinearAttentionGate", inputs, ("decay", "beta"), **options)
    holds(decompose_linear_attention_gate, "LinearAttentionGate", inputs | {"b": None}, ("decay",), **options)


def test_half_precision_is_rounded_once() -> None:
    x, scale = normal(2, 3, 8).astype(np.float16), normal(4).astype(np.float16)
    source = contrib("GatedRMSNorm", x, scale, GATE.astype(np.float16))
    legalized(decompose_contrib_rms_norm, source, source.expected(), rtol=1e-3, atol=1e-3)


def test_skips() -> None:
    source = contrib("ExpandDims", normal(2, 3), np.array(1, np.int32))
    assert skipped(rename_expand_dims, source) == ["the axis is not constant: freeze it with --freeze x1=VALUE"]
    source.proto.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "n"
    assert skipped(rename_expand_dims, source) == [
        "the shape of its input is unknown: freeze the dimensions that are open"
    ]


@given(data=st.data())
@settings(max_examples=20, derandomize=True, deadline=None)
def test_any_window(data: st.DataObject) -> None:
    shape = data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=3))
    axis = data.draw(st.integers(0, len(shape) - 1))
    size, step = data.draw(st.integers(1, shape[axis])), data.draw(st.integers(1, 3))
    source = contrib("UnfoldTensor", normal(*shape), size=size, step=step, dim=axis)
    legalized(gather_windows, source, source.expected(), rtol=0, atol=0)


@pytest.mark.parametrize(("queries", "keys"), [(2, 2), (1, 1), (2, 4), (4, 2), (1, 2)])
@pytest.mark.parametrize("update", ["gated_delta", "linear"])
def test_heads_of_values_that_share_those_of_keys(queries: int, keys: int, update: str, device: Device) -> None:
    q, k, v = (random(2, 3, heads * 8, seed=heads) / 4 for heads in (queries, keys, 4))
    inputs = {"q": q, "k": k, "v": v, "past": random(2, 4, 8, 8)}
    if update == "gated_delta":
        inputs |= {"decay": -abs(random(2, 3, 4)), "beta": abs(random(2, 3, 4)) / 4}
    attributes = {"q_num_heads": queries, "kv_num_heads": 4, "update_rule": update, "state_window": 0}
    rule, also = repeat_linear_attention_heads, [expand_functions]
    holds(rule, "LinearAttention", inputs, ("y", "present"), attributes, device=device, also=also)
