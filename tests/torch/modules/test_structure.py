"""Nested values as named tensors, and back."""

from __future__ import annotations

import collections
import copy
import pickle
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
import transformers

from onnx_bridge.core.errors import InputError
from onnx_bridge.torch.modules.structure import constants, flatten, flatten_result, leaf_names, rebuild, renamed
from onnx_bridge.torch.modules.tensors import to_array, to_tensor

Pair = collections.namedtuple("Pair", ["first", "second"])


@dataclass(frozen=True)
class Found:
    boxes: torch.Tensor
    scores: list[torch.Tensor]
    count: int = 3
    mask: torch.Tensor | None = None


@dataclass(slots=True)
class Slotted:
    boxes: torch.Tensor
    count: int = 3


def tensor() -> torch.Tensor:
    return torch.randn(2, 3)


@pytest.mark.parametrize(
    ("value", "names"),
    [
        (tensor(), ["output"]),
        ((tensor(), tensor()), ["output.0", "output.1"]),
        ([tensor(), (tensor(), None)], ["output.0", "output.1.0"]),
        ({"a": tensor(), "b": {"c": tensor(), 1: tensor()}}, ["a", "b.c", "b.1"]),
        ({0: tensor()}, ["output.0"]),
        (Pair(tensor(), [tensor()]), ["first", "second.0"]),
        (Found(tensor(), [tensor(), tensor()]), ["boxes", "scores.0", "scores.1"]),
        (Slotted(tensor()), ["boxes"]),
        (collections.defaultdict(list, {"a": [tensor()]}), ["a.0"]),
        ({"a.b": tensor(), "a": {"b": tensor()}}, ["a.b", "a.b_2"]),
        (
            transformers.modeling_outputs.BaseModelOutput(last_hidden_state=tensor(), hidden_states=(tensor(),)),
            ["last_hidden_state", "hidden_states.0"],
        ),
        (
            {"past": transformers.DynamicCache([(torch.randn(1, 2, 3, 4), torch.randn(1, 2, 3, 4))] * 2)},
            ["past.0.key", "past.0.value", "past.1.key", "past.1.value"],
        ),
    ],
)
def test_names_and_rebuilding(value: Any, names: list[str]) -> None:
    structure, leaves = flatten_result(value)
    assert list(leaves) == leaf_names(structure) == names
    other = {name: leaf + 1 for name, leaf in leaves.items()}
    again, found = flatten_result(rebuild(structure, other))
    assert again == structure
    assert type(rebuild(structure, other)) is type(value)
    assert all(torch.equal(found[name], other[name]) for name in names)
    assert pickle.loads(pickle.dumps(structure)) == structure


def test_rebuilt_caches_are_independent() -> None:
    cache = transformers.DynamicCache([(torch.randn(1, 2, 3, 4), torch.randn(1, 2, 3, 4))])
    leaves: dict[str, torch.Tensor] = {}
    structure = flatten(cache, "past", leaves)
    first, second = rebuild(structure, leaves), rebuild(structure, leaves)
    first.update(torch.randn(1, 2, 1, 4), torch.randn(1, 2, 1, 4), 0)
    assert (first.get_seq_length(), second.get_seq_length(), cache.get_seq_length()) == (4, 3, 3)


def test_caches_of_encoder_and_decoder_have_different_names() -> None:
    one = transformers.DynamicCache([(torch.randn(1, 2, 3, 4), torch.randn(1, 2, 3, 4))])
    leaves: dict[str, torch.Tensor] = {}
    structure = flatten(transformers.EncoderDecoderCache(one, copy.deepcopy(one)), "past", leaves)
    assert list(leaves) == ["past.decoder.0.key", "past.decoder.0.value", "past.encoder.0.key", "past.encoder.0.value"]
    rebuilt = rebuild(structure, leaves)
    rebuilt.is_updated[0] = "changed"
    assert rebuild(structure, leaves).is_updated[0] is True


def test_a_complex_tensor_is_a_real_one_with_two_parts() -> None:
    value = torch.randn(2, 3, dtype=torch.complex64)
    structure, leaves = flatten_result(value)
    assert leaves["output"].shape == (2, 3, 2)
    assert torch.equal(rebuild(structure, leaves), value)
    structure, leaves = flatten_result(value.conj())
    assert torch.equal(rebuild(structure, leaves), value.conj())


def test_a_rebuilt_defaultdict_keeps_its_factory() -> None:
    structure, leaves = flatten_result(collections.defaultdict(list, {"a": [tensor()]}))
    assert rebuild(structure, leaves)["b"] == []


def test_registered_pytrees_are_flattened() -> None:
    class Box:
        def __init__(self, content: torch.Tensor) -> None:
            self.content = content

    torch.utils._pytree.register_pytree_node(Box, lambda box: ([box.content], None), lambda parts, _: Box(*parts))
    structure, leaves = flatten_result(Box(tensor()))
    assert list(leaves) == ["output.0"]
    assert isinstance(rebuild(structure, leaves), Box)


def test_constants_and_renaming() -> None:
    structure, leaves = flatten_result(Found(tensor(), [], count=7))
    assert constants(structure) == [7]
    other = renamed(structure, {"boxes": "b"})
    assert leaf_names(other) == ["b"]
    assert rebuild(other, {"b": leaves["boxes"]}).count == 7


@pytest.mark.parametrize(
    "dtype",
    [torch.float64, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2, torch.bool, torch.uint8],
)
@pytest.mark.parametrize("shape", [(2, 3), (), (0, 2)])
def test_tensors_as_arrays_and_back(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    value = (torch.randn(shape) * 4).to(dtype)
    array = to_array(value)
    assert array.shape == shape
    back = to_tensor(array)
    assert back.dtype == dtype
    assert torch.equal(back.float(), value.float())


def test_bfloat16_arrays_have_the_dtype_of_ml_dtypes_also_with_strides() -> None:
    value = torch.randn(4, 6, dtype=torch.bfloat16).t()[::2]
    array = to_array(value)
    assert array.dtype == ml_dtypes.bfloat16
    assert np.array_equal(array.astype(np.float32), value.float().numpy())


def test_sparse_tensors_are_refused() -> None:
    with pytest.raises(InputError, match="sparse"):
        to_array(torch.eye(3).to_sparse())
