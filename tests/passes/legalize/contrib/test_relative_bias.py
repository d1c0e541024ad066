"""Relative position biases against T5's and WavLM's definitions, in torch and numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from passes.legalize.contrib.relative_bias import (
    buckets,
    decompose_gated_relative_position_bias,
    look_up_relative_positions,
)
from tests.passes.device import Device
from tests.passes.legalize.one_node import Case, case, declare, legalized, normal, skipped

Array = np.ndarray[Any, np.dtype[Any]]


def t5_buckets(queries: int, keys: int, count: int, farthest: int, both_ways: bool) -> Array:
    import torch
    from transformers.models.t5.modeling_t5 import T5Attention

    offset = torch.arange(keys)[None, :] - torch.arange(queries)[:, None]
    found = T5Attention._relative_position_bucket(
        offset, bidirectional=both_ways, num_buckets=count, max_distance=farthest
    )
    return found.numpy()


def positions(table: Array, queries: int, keys: int, farthest: int, both_ways: bool) -> tuple[Case, Array]:
    count, heads = table.shape
    y = table[t5_buckets(queries, keys, count, farthest, both_ways)].transpose(2, 0, 1)[None]
    stored = np.ascontiguousarray(table.T).reshape(count, heads)  # of one head next to each other
    inputs = [stored, np.array(queries, np.int64), np.array(keys, np.int64)]
    how = {"max_distance": farthest, "is_bidirectional": int(both_ways)}
    return declare(case("RelativePositionBias", inputs, how, domain="com.microsoft", constants=[1, 2]), [y]), y


class TestRelativePositionBias:
    @pytest.mark.torch
    @pytest.mark.parametrize("both_ways", [False, True])
    def test_t5(self, both_ways: bool, device: Device) -> None:
        source, y = positions(normal(32, 3), 40, 40, 128, both_ways)
        assert legalized(look_up_relative_positions, source, [y], device=device, rtol=0, atol=0) == [
            "Reshape",
            "Gather",
        ]

    @pytest.mark.torch
    def test_lengths_from_the_shape_of_the_output(self) -> None:
        source, y = positions(normal(8, 2), 5, 5, 20, True)
        lengths = [source.proto.graph.initializer.pop() for _ in range(2)]
        for tensor in lengths:
            source.proto.graph.input.add(name=tensor.name).type.tensor_type.elem_type = 7
            source.proto.graph.input[-1].type.tensor_type.shape.SetInParent()
        feeds = {**source.feeds, "x1": np.array(5), "x2": np.array(5)}
        legalized(look_up_relative_positions, Case(source.proto, feeds), [y])

    def test_unknown_lengths(self) -> None:
        source = case(
            "RelativePositionBias",
            [normal(8, 2), np.array(5), np.array(5)],
            {"max_distance": 9},
            domain="com.microsoft",
        )
        (reason,) = skipped(look_up_relative_positions, source)
        assert reason == "query_length is not constant: freeze it with --freeze x1=VALUE"


@pytest.mark.torch
@given(
    queries=st.integers(1, 70),
    keys=st.integers(1, 300),
    count=st.sampled_from([4, 8, 32, 40]),
    farthest=st.integers(21, 200),
    both_ways=st.booleans(),
)
@settings(max_examples=100, derandomize=True, deadline=None)
def test_buckets_are_those_of_t5(queries: int, keys: int, count: int, farthest: int, both_ways: bool) -> None:
    found = buckets(queries, keys, count, farthest, both_ways)
    wanted = t5_buckets(queries, keys, count, farthest, both_ways)
    # two logarithms in float32 whose quotient is a whole number may be rounded to either side of it
    assert (found != wanted).mean() < 0.02 and np.abs(found - wanted).max(initial=0) <= 1


def gated(
    query: Array, shift: Array, relative: Array, weight: Array, bias: Array, factor: Array, heads: int
) -> tuple[Case, Array]:
    """The inputs, and the result of the torch code in the operator's documentation."""
    batch, length, _ = query.shape
    layer = (query + shift).reshape(batch, length, heads, -1).transpose(0, 2, 1, 3).astype(np.float64)
    gates = (layer @ weight + bias).reshape(batch, heads, length, 2, -1).sum(-1)
    update, reset = np.split(1 / (1 + np.exp(-gates)), 2, axis=-1)
    y = ((update * (reset * factor - 1) + 2) * relative).astype(query.dtype)
    inputs = [query, shift, relative, weight, bias, factor]
    return declare(case("GatedRelativePositionBias", inputs, {"num_heads": heads}, domain="com.microsoft"), [y]), y


class TestGatedRelativePositionBias:
    @pytest.mark.parametrize("dtype", [np.float32, np.float16])
    def test_wavlm(self, dtype: type, device: Device) -> None:
        shapes = [(2, 5, 12), (12,), (1, 3, 5, 5), (4, 8), (8,), (1, 3, 1, 1)]
        source, y = gated(*(normal(*shape, seed=i).astype(dtype) for i, shape in enumerate(shapes)), heads=3)  # type: ignore[arg-type]
        legalized(
            decompose_gated_relative_position_bias,
            source,
            [y],
            device=device if dtype is np.float32 else None,
            rtol=1e-3,
            atol=2e-3,
        )

    def test_packed_tokens(self) -> None:
        inputs = [normal(7, 12), normal(12), normal(1, 3, 5, 5), normal(4, 8), normal(8), normal(1, 3, 1, 1)]
        packed = case(
            "GatedRelativePositionBias",
            [*inputs, np.zeros((2, 5), np.int32)],
            {"num_heads": 3},
            domain="com.microsoft",
        )
        assert skipped(decompose_gated_relative_position_bias, packed) == ["the tokens are packed"]
