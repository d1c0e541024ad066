"""decompose-attention: masks, caches and windows of ONNX's Attention, compared with the reference implementation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx.reference import ReferenceEvaluator

from passes.legalize.nn.attention import decompose_attention
from passes.rewriting.base import Context
from passes.rewriting.rewrite import UNKNOWN_SHAPE
from tests.passes.device import Device
from tests.passes.harness import Array, model, operators, reasons, run
from tests.passes.legalize.contrib_nodes import random

NAMES = ("q", "k", "v", "mask", "past_key", "past_value", "lengths")
OUTPUTS = ("y", "present_key", "present_value", "scores")
B, N, K, S, T, H = 2, 4, 2, 3, 5, 8
HEADS = {"q": random(B, N, S, H), "k": random(B, K, T, H, seed=1), "v": random(B, K, T, 6, seed=2)}
FLAT = {"q": random(B, S, N * H), "k": random(B, T, K * H, seed=1), "v": random(B, T, K * 6, seed=2)}
PAST = {"past_key": random(B, K, 4, H, seed=3), "past_value": random(B, K, 4, 6, seed=4)}


def attention(inputs: Mapping[str, Array], attributes: Mapping[str, Any], outputs: int, opset: int) -> onnx.ModelProto:
    """One Attention, with the shapes that inference gives its outputs."""
    last = max(index for index, name in enumerate(NAMES) if name in inputs)
    given = [name if name in inputs else "" for name in NAMES[: last + 1]]
    kind = onnx.helper.np_dtype_to_tensor_dtype(inputs["q"].dtype)
    names = OUTPUTS[:outputs]
    infos = [
        onnx.helper.make_tensor_value_info(name, onnx.helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in inputs.items()
    ]
    node = onnx.helper.make_node("Attention", given, names, name="attention", **attributes)
    results = [onnx.helper.make_tensor_value_info(name, kind, None) for name in names]
    graph = onnx.helper.make_graph([node], "g", infos, results)
    imports = [onnx.helper.make_opsetid("", opset)]
    return onnx.shape_inference.infer_shapes(onnx.helper.make_model(graph, opset_imports=imports, ir_version=10))


def check(
    inputs: Mapping[str, Array],
    device: Device | None = None,
    *,
    outputs: int = 1,
    opset: int = 24,
    tolerance: float = 1e-5,
    **attributes: Any,
) -> list[str]:
    """Decompose, and compare with the reference; returns the operators."""
    proto = attention(inputs, attributes, outputs, opset)
    expected = ReferenceEvaluator(proto).run(None, dict(inputs))
    for info, wanted in zip(proto.graph.output, expected, strict=True):
        kind = info.type.tensor_type.elem_type
        info.CopyFrom(onnx.helper.make_tensor_value_info(info.name, kind, wanted.shape))
    source = ir.from_proto(proto)
    result = decompose_attention.run(source, Context())
    assert len(result.rewrites) == 1, result.skips
    assert not decompose_attention.run(source, Context()).rewrites
    after = ir.to_proto(source)
    onnx.checker.check_model(after, full_check=True)
    found = [list(run(after, inputs).values())]
    if device is not None:
        found.append(device.run(after, inputs))
    for arrays in found:
        for array, wanted in zip(arrays, expected, strict=True):
            assert array.dtype == wanted.dtype
            np.testing.assert_allclose(
                array.astype(np.float64), np.asarray(wanted).astype(np.float64), tolerance, tolerance
            )
    return operators(source)


def mask(*shape: int, dtype: str = "bool") -> Array:
    """A mask with some of everything; as numbers, some of them -∞."""
    allowed = np.random.default_rng([7, *shape]).integers(0, 2, shape).astype(bool)
    if dtype == "bool":
        return allowed
    return np.where(allowed, random(*shape), -np.inf).astype(dtype)


class TestForms:
    @pytest.mark.parametrize("causal", [0, 1])
    @pytest.mark.parametrize("flat", [False, True])
    def test_inputs(self, causal: int, flat: bool, device: Device) -> None:
        heads = {"q_num_heads": N, "kv_num_heads": K} if flat else {}
        made = check(FLAT if flat else HEADS, device, is_causal=causal, **heads)
        assert made.count("MatMul") == 2
        assert made.count("Where") == causal  # a constant mask, and no row without a key
        assert not {"Expand", "Tile", "Concat"}.intersection(made)

    def test_as_many_heads_of_keys(self, device: Device) -> None:
        inputs = {"q": random(B, N, S, H), "k": random(B, N, T, H, seed=1), "v": random(B, N, T, H, seed=2)}
        assert check(inputs, device) == ["Mul", "Transpose", "MatMul", "Softmax", "MatMul"]
        assert check(inputs, scale=1.0) == ["Transpose", "MatMul", "Softmax", "MatMul"]

    @pytest.mark.parametrize("causal", [0, 1])
    def test_a_past(self, causal: int, device: Device) -> None:
        check(HEADS | PAST, device, outputs=3, is_causal=causal)

    @pytest.mark.parametrize("mode", [0, 1, 2, 3])
    @pytest.mark.parametrize("dtype", ["bool", "float32"])
    def test_the_scores_as_output(self, mode: int, dtype: str, device: Device) -> None:
        inputs = HEADS | PAST | {"mask": mask(B, 1, S, T + 4, dtype=dtype)}
        softcap = 2.0 if mode == 1 else 0.0
        check(inputs, device, outputs=4, qk_matmul_output_mode=mode, softcap=softcap)

    @pytest.mark.parametrize("precision", [1, 10, 11])
    def test_the_softmax_of_another_dtype(self, precision: int) -> None:
        inputs = {name: array.astype(np.float16) for name, array in HEADS.items()}
        made = check(inputs, softmax_precision=precision, tolerance=4e-3)
        assert made.count("Cast") == (2 if precision != 10 else 0)

    def test_softcap_and_scale(self, device: Device) -> None:
        made = check(HEADS, device, softcap=2.0, scale=0.7)
        assert made.count("Tanh") == 1


class TestMasks:
    @pytest.mark.parametrize("dtype", ["bool", "float32"])
    @pytest.mark.parametrize(
        "shape", [(T,), (S, T), (1, S, T), (N, S, T), (B, 1, S, T), (B, N, S, T), (S, T - 2)], ids=str
    )
    def test_shapes(self, dtype: str, shape: tuple[int, ...], device: Device) -> None:
        check(HEADS | {"mask": mask(*shape, dtype=dtype)}, device, is_causal=int(len(shape) == 2))

    def test_fully_masked_queries_give_zeros(self, device: Device) -> None:
        allowed = mask(S, T)
        allowed[1] = False
        check(HEADS | {"mask": allowed}, device, outputs=4, qk_matmul_output_mode=3)
        check(HEADS | {"mask": np.where(allowed, np.float32(0), np.float32(-np.inf))}, device)

    @pytest.mark.parametrize("causal", [0, 1])
    def test_lengths(self, causal: int, device: Device) -> None:
        # the first sample has fewer keys than there are queries: some of these have none
        check(HEADS | {"lengths": np.array([2, 5])}, device, is_causal=causal)

    @pytest.mark.parametrize("left", [-1, 0, 2])
    @pytest.mark.parametrize("right", [-1, 0, 1])
    @pytest.mark.parametrize("cache", ["none", "past", "lengths"])
    def test_windows(self, left: int, right: int, cache: str, device: Device) -> None:
        more = {"none": {}, "past": PAST, "lengths": {"lengths": np.array([3, 5])}}[cache]
        used = device if left == 2 else None
        check(HEADS | more, used, opset=25, left_window_size=left, right_window_size=right, is_causal=int(right < 0))


class TestDoesNotMatch:
    def test_unknown_shapes(self) -> None:
        proto = attention(HEADS, {}, 1, 24)
        proto.graph.input[0].type.tensor_type.shape.dim[2].dim_param = "queries"
        result = decompose_attention.run(ir.from_proto(proto), Context())
        assert not result.rewrites
        assert reasons(result) == [UNKNOWN_SHAPE]

    def test_empty_sequences(self) -> None:
        inputs = HEADS | {"k": random(B, K, 0, H), "v": random(B, K, 0, 6)}
        result = decompose_attention.run(ir.from_proto(attention(inputs, {}, 1, 24)), Context())
        assert reasons(result) == ["queries, keys or values are empty"]

    def test_a_function_of_the_name(self) -> None:
        function = '<opset_import: ["": 23], domain: "local"> Attention (q, k, v) => (y) { y = Add(q, k) }'
        text = "(float[1,2,3,4] q, float[1,2,3,4] k, float[1,2,3,4] v) => (float[1,2,3,4] y)"
        source = model(text + " { y = local.Attention(q, k, v) }", opset=23, functions=function)
        assert not decompose_attention.run(source, Context()).rewrites


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_any_attention(data: st.DataObject) -> None:
    batch, kv_heads, group, queries, keys = (data.draw(st.integers(1, 3)) for _ in range(5))
    size, value_size, past = (data.draw(st.integers(1, 4)) for _ in range(3))
    heads, flat = kv_heads * group, data.draw(st.booleans())

    def tensor(count: int, length: int, width: int, seed: int) -> Array:
        return (
            random(batch, length, count * width, seed=seed) if flat else random(batch, count, length, width, seed=seed)
        )

    inputs = {
        "q": tensor(heads, queries, size, 0),
        "k": tensor(kv_heads, keys, size, 1),
        "v": tensor(kv_heads, keys, value_size, 2),
    }
    attributes: dict[str, Any] = {"q_num_heads": heads, "kv_num_heads": kv_heads} if flat else {}
    cache = data.draw(st.sampled_from(["none", "past", "lengths"]))
    if cache == "past":
        inputs |= {
            "past_key": random(batch, kv_heads, past, size),
            "past_value": random(batch, kv_heads, past, value_size),
        }
    elif cache == "lengths":
        inputs["lengths"] = np.array([data.draw(st.integers(0, keys)) for _ in range(batch)])
    total = keys + past * (cache == "past")
    kind = data.draw(st.sampled_from([None, "bool", "float32"]))
    if kind is not None:
        full = (data.draw(st.sampled_from([1, batch])), data.draw(st.sampled_from([1, heads])), queries, total)
        inputs["mask"] = mask(*full[data.draw(st.integers(0, 3)) :], dtype=kind)
    attributes |= {"is_causal": data.draw(st.integers(0, 1)), "softcap": data.draw(st.sampled_from([0.0, 1.5]))}
    windows = st.integers(-1, 3)
    attributes |= {"left_window_size": data.draw(windows), "right_window_size": data.draw(windows)}
    outputs = data.draw(st.sampled_from([1, 3])) if cache == "past" else 1
    check(inputs, outputs=outputs, opset=25, **attributes)
