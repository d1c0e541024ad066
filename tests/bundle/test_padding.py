"""Padding at the start and at the end, and cutting what it added."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from onnx_bridge.bundle.manifest.axes import Axis
from onnx_bridge.bundle.manifest.entries import TensorInfo
from onnx_bridge.bundle.padding import Padding
from onnx_bridge.core.errors import InputError

SMALL, LARGE = {"past": 2, "new": 1}, {"past": 4, "new": 2}


def padded(array: Sequence[object], axes: tuple[Axis, ...], rule: str = "0", before: Sequence[str] = ()) -> object:
    given = np.array(array, np.int32)
    tensor = TensorInfo("x", "int32", axes)
    wide = Padding({"x": rule}, before).pad(given, tensor, SMALL, LARGE)
    assert (Padding({}, before).cut(wide, axes, SMALL, LARGE) == given).all()
    return wide.tolist()


def test_at_the_end() -> None:
    assert padded([[1, 2]], ("new", "past")) == [[1, 2, 0, 0], [0, 0, 0, 0]]
    assert padded([1, 2], ("past",), "-1") == [1, 2, -1, -1]
    assert padded([1, 2], ("past",), "edge") == [1, 2, 2, 2]
    assert padded([1, 2, 3], ("past + new",)) == [1, 2, 3, 0, 0, 0]


def test_at_the_start() -> None:
    assert padded([1, 2], ("past",), before=["past"]) == [0, 0, 1, 2]
    assert padded([1, 2], ("past",), "edge", ["past"]) == [1, 1, 1, 2]
    assert padded([7], ("new",), before=["past"]) == [7, 0]


def test_at_both_ends_of_a_sum() -> None:
    assert padded([1, 2, 3], ("past + new",), before=["past"]) == [0, 0, 1, 2, 3, 0]
    assert padded([1, 2, 3], ("past + new",), before=["past", "new"]) == [0, 0, 0, 1, 2, 3]
    assert padded([1, 2, 3], ("past + 1",), before=["past"]) == [0, 0, 1, 2, 3]


def test_an_empty_cache() -> None:
    tensor = TensorInfo("x", "int32", ("past", 2))
    for rule in ("0", "edge"):
        wide = Padding({"x": rule}, ["past"]).pad(np.zeros((0, 2), np.int32), tensor, {"past": 0}, {"past": 3})
        assert wide.tolist() == [[0, 0]] * 3


def test_what_stays() -> None:
    array = np.zeros((3, 2), np.float32)
    assert Padding().pad(array, TensorInfo("x", "float32", (3, "past")), SMALL, {"past": 2, "new": 5}) is array
    assert Padding().cut(array, (None, "past"), {"past": 1}, {"past": 2}).shape == (3, 1)
    assert Padding().cut(array, ("past",), {"past": 1}, {"past": 2}) is array


def test_dtypes_stay() -> None:
    wide = Padding().pad(np.array([True]), TensorInfo("x", "bool", ("n",)), {"n": 1}, {"n": 2})
    assert (wide.dtype, wide.tolist()) == (np.bool_, [True, False])


def test_what_shrinks_where_others_grow_is_refused() -> None:
    with pytest.raises(InputError, match="input 'x': .*more than its bucket has"):
        Padding().pad(np.zeros(7, np.int32), TensorInfo("x", "int32", ("8 - new",)), SMALL, LARGE)
