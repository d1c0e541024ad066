"""Attention of packed tokens against attention of each sample alone, in numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from passes.legalize.contrib.packed_attention import restore_padding, unpack_attention, unpack_projected_attention
from tests.passes.device import Device
from tests.passes.legalize.one_node import Case, case, declare, legalized, normal, skipped

Array = np.ndarray[Any, np.dtype[Any]]
LENGTHS = (1, 3, 2)


def offsets(lengths: tuple[int, ...], longest: int) -> Array:
    """The positions of the tokens, then of the padding, as (batch, longest)."""
    real = [i * longest + j for i, length in enumerate(lengths) for j in range(length)]
    padding = [place for place in range(len(lengths) * longest) if place not in real]
    return np.array([*real, *padding], np.int32).reshape(len(lengths), longest)


def ends(lengths: tuple[int, ...]) -> Array:
    return np.cumsum((0, *lengths)).astype(np.int32)


def attention(q: Array, k: Array, v: Array, heads: int, lengths: tuple[int, ...], scale: float | None = None) -> Array:
    """Attention of each sample and head in turn."""
    found, start = [], 0
    for length in lengths:
        rows = slice(start, start := start + length)
        outputs = []
        for one in range(heads):
            qs, ks, vs = (np.split(each[rows].astype(np.float64), heads, axis=1)[one] for each in (q, k, v))
            scores = qs @ ks.T * (scale or qs.shape[1] ** -0.5)
            weights = np.exp(scores - scores.max(axis=1, keepdims=True))
            outputs.append(weights / weights.sum(axis=1, keepdims=True) @ vs)
        found.append(np.concatenate(outputs, axis=1))
    return np.concatenate(found).astype(q.dtype)


def packed(operator: str, inputs: list[Array | None], y: Array, lengths: tuple[int, ...], **attributes: Any) -> Case:
    inputs = [*inputs, offsets(lengths, max(lengths)), ends(lengths)]
    return declare(case(operator, inputs, attributes, domain="com.microsoft", opset=17), [y])


class TestPackedMultiHeadAttention:
    Q, K, V = normal(6, 8), normal(6, 8, seed=1), normal(6, 4, seed=2)
    BIAS = normal(20, seed=3)

    def test_with_a_bias(self, device: Device) -> None:
        parts = [x + b for x, b in zip((self.Q, self.K, self.V), np.split(self.BIAS, [8, 16]), strict=True)]
        y = attention(*parts, heads=2, lengths=LENGTHS)
        source = packed("PackedMultiHeadAttention", [self.Q, self.K, self.V, self.BIAS], y, LENGTHS, num_heads=2)
        legalized(unpack_attention, source, [y], device=device)

    def test_packed_queries_keys_and_values(self, device: Device) -> None:
        x = normal(6, 2, 3, 4)
        q, k, v = (x[:, :, i].reshape(6, 8) for i in range(3))
        y = attention(q, k, v, heads=2, lengths=LENGTHS, scale=0.3)
        source = packed("PackedMultiHeadAttention", [x, None, None, None], y, LENGTHS, num_heads=2, scale=0.3)
        legalized(unpack_attention, source, [y], device=device)

    def test_a_bias_of_the_scores(self) -> None:
        inputs = [self.Q, self.K, self.V, None, offsets(LENGTHS, 3), ends(LENGTHS), normal(1, 2, 3, 3)]
        source = case("PackedMultiHeadAttention", inputs, {"num_heads": 2}, domain="com.microsoft")
        assert skipped(unpack_attention, source) == ["the bias of the scores has the layout of padded samples"]

    def test_an_unknown_number_of_tokens(self) -> None:
        source = packed("PackedMultiHeadAttention", [self.Q, self.K, self.V, None], self.V, LENGTHS, num_heads=2)
        source.proto.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "tokens"
        assert skipped(unpack_attention, source) == [
            "the shape of its input is unknown: freeze the dimensions that are open"
        ]


class TestPackedAttention:
    @pytest.mark.parametrize("widths", [None, [8, 8, 4]])
    def test_a_projection(self, widths: list[int] | None, device: Device) -> None:
        ends_ = np.cumsum(widths or [8, 8, 8])
        x, weights, bias = normal(6, 5), normal(5, int(ends_[-1])), normal(int(ends_[-1]), seed=1)
        y = attention(*np.split(x @ weights + bias, ends_[:-1], axis=1), heads=2, lengths=LENGTHS)
        how: dict[str, Any] = {"num_heads": 2} | ({"qkv_hidden_sizes": widths} if widths else {})
        legalized(
            unpack_projected_attention,
            packed("PackedAttention", [x, weights, bias], y, LENGTHS, **how),
            [y],
            device=device,
        )


class TestRestorePadding:
    def test_padding_is_zero(self, device: Device) -> None:
        x, places = normal(6, 4), offsets(LENGTHS, 4)
        y = np.zeros((12, 4), np.float32)
        y[places.ravel()[:6]] = x
        source = declare(case("RestorePadding", [x, places], domain="com.microsoft", opset=17), [y.reshape(3, 4, 4)])
        legalized(restore_padding, source, [y.reshape(3, 4, 4)], device=device)


@given(lengths=st.lists(st.integers(1, 4), min_size=1, max_size=4), heads=st.integers(1, 3), size=st.integers(1, 4))
@settings(max_examples=20, derandomize=True, deadline=None)
def test_any_samples(lengths: list[int], heads: int, size: int) -> None:
    q, k, v = (normal(sum(lengths), heads * size, seed=i) for i in range(3))
    y = attention(q, k, v, heads, tuple(lengths))
    source = packed("PackedMultiHeadAttention", [q, k, v, None], y, tuple(lengths), num_heads=heads)
    legalized(unpack_attention, source, [y])
