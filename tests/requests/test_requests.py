"""Requests: the same after a round through JSON; what does not fit is refused with the field's name."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from docs.generator import keywords
from onnx_bridge.core.errors import InputError
from onnx_bridge.requests.batch import BatchRequest
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
    options = {"shapes": {"x": [1, 2]}, "freeze": {"a": np.array([1, 2]), "b": "[3]"}, "dims": None}
    request = ConvertRequest.of(options)
    assert request == ConvertRequest(shapes={"x": (1, 2)}, freeze={"a": "[1, 2]", "b": "[3]"})


def test_options_of_parts_are_options_of_the_whole() -> None:
    request = BatchRequest.of({"dims": {"n": 2}, "buckets": {"b": [1, 2], "c": "b + 1"}, "rtol": 0.1, "jobs": 3})
    assert request.job.conversion == ConvertRequest(dims={"n": 2}, buckets={"b": (1, 2)}, ties={"c": "b + 1"})
    assert (request.job.parity.rtol, request.jobs) == (0.1, 3)


def test_an_unknown_option_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(InputError, match="did you mean shapes"):
        ConvertRequest.of({"shape": {}})


def test_the_keywords_of_the_api_are_those_of_the_requests() -> None:
    command = [sys.executable, "-m", "ruff", "format", "--quiet", "--stdin-filename", str(keywords.STUB), "-"]
    made = subprocess.run(command, input=keywords.stub(), capture_output=True, text=True, check=True).stdout
    assert keywords.STUB.read_text() == made, "run `make keywords`"
