"""Requests: the same after a round through JSON; what does not fit is refused with the field's name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from onnx_bridge.core.errors import InputError
from onnx_bridge.requests.cleaning import as_json, as_shapes
from onnx_bridge.requests.conversion import ConvertRequest

FULL = ConvertRequest(
    target="ref",
    pipeline="minimal",
    dims={"batch": 2},
    shapes={"x": (1, 3)},
    freeze={"k": "[5]"},
    buckets={"n": (1, 4)},
    pad={"mask": "edge"},
    host=False,
    precision="int8",
    calibration=Path("samples.npz"),
    keep_fp32=("MatMul",),
    options={"fast_math": False, "tuning": "keep"},
    timeout=1.5,
    memory=2,
    runtime="/opt/migraphx",
    reuse=False,
)


@pytest.mark.parametrize("request_", [ConvertRequest(), FULL], ids=["defaults", "all fields"])
def test_round_trip(request_: ConvertRequest) -> None:
    assert ConvertRequest.from_json(json.loads(json.dumps(request_.to_json()))) == request_


@pytest.mark.parametrize(
    "values",
    [
        {"target": 1},
        {"dims": {"batch": "2"}},
        {"dims": {"batch": True}},
        {"shapes": {"x": 3}},
        {"shapes": {"x": [1, None]}},
        {"freeze": {"k": 5}},
        {"host": 1},
        {"keep_fp32": "MatMul"},
        {"options": {"fast_math": 1}},
        {"timeout": "1"},
        {"timeout": True},
        {"timeout": 0},
        {"memory": -1.0},
        {"runtime": 1},
    ],
)
def test_wrong_types_are_refused(values: dict[str, Any]) -> None:
    (name,) = values
    with pytest.raises(InputError, match=name):
        ConvertRequest.from_json(values)


def test_an_unknown_field_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(InputError, match="did you mean shapes"):
        ConvertRequest.from_json({"shape": {}})


def test_samples_in_memory_are_not_recorded() -> None:
    assert ConvertRequest(calibration=[{"x": np.zeros(2)}]).to_json()["calibration"] is None


def test_values_of_the_api_become_plain() -> None:
    assert as_shapes({"x": [1, 2]}) == {"x": (1, 2)}
    assert as_json({"a": np.array([1, 2]), "b": "[3]"}) == {"a": "[1, 2]", "b": "[3]"}
    assert as_shapes(None) == as_json(None) == {}
