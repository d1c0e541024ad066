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
from onnx_bridge.requests.lowering import LowerRequest
from onnx_bridge.requests.parity import BisectRequest, CheckRequest, ReduceRequest
from onnx_bridge.requests.request import Request, fields_of
from onnx_bridge.requests.search import BenchRequest, MixedPrecisionRequest, TuneRequest

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
    request = BatchRequest.of(
        {"dims": {"n": 2}, "buckets": {"b": [1, 2], "c": "b + 1"}, "check": True, "rtol": 0.1, "jobs": 3}
    )
    assert request.job.conversion == ConvertRequest(dims={"n": 2}, buckets={"b": (1, 2)}, ties={"c": "b + 1"})
    assert (request.job.parity.rtol, request.jobs) == (0.1, 3)


def test_an_unknown_option_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(InputError, match="did you mean shapes"):
        ConvertRequest.of({"shape": {}})


def test_the_keywords_of_the_api_are_those_of_the_requests() -> None:
    command = [sys.executable, "-m", "ruff", "format", "--quiet", "--stdin-filename", str(keywords.STUB), "-"]
    made = subprocess.run(command, input=keywords.stub(), capture_output=True, text=True, check=True).stdout
    assert keywords.STUB.read_text() == made, "run `make keywords`"


CASES: list[tuple[type[Request], dict[str, Any], dict[str, Any]]] = [
    (ConvertRequest, {"pad": {"mask": "0"}}, {"buckets": {"n": [1, 4]}}),
    (ConvertRequest, {"pad_before": ["n"]}, {"buckets": {"n": [1, 4]}}),
    (ConvertRequest, {"prove": "never", "prove_budget": 5.0}, {"prove": "always"}),
    (BatchRequest, {"rtol": 0.1}, {"check": True}),
    (BatchRequest, {"atol": 0.1}, {"check": True}),
    (BatchRequest, {"pad": {"mask": "0"}}, {"buckets": {"n": [1, 4]}}),
    (CheckRequest, {"layers_memory": 2.0}, {"layers": True}),
    (CheckRequest, {"seed": 3, "inputs": "x.npz"}, {"inputs": None}),
    (BisectRequest, {"seed": 3, "inputs": "x.npz"}, {"inputs": None}),
    (ReduceRequest, {"seed": 3, "inputs": "x.npz"}, {"inputs": None}),
    (MixedPrecisionRequest, {"seed": 3, "inputs": "x.npz"}, {"inputs": None}),
    (BenchRequest, {"module": "net.py:make"}, {"engines": ["ort", "torch"]}),
    (BenchRequest, {"max_slowdown": 0.5}, {"against": "before.json"}),
    (BenchRequest, {"calibration": "x.npz"}, {"precisions": ["fp32", "int8"]}),
    (BenchRequest, {"keep_fp32": ["Softmax"]}, {"precisions": ["fp16"]}),
    (BenchRequest, {"per_operator": True, "engines": ["ort"]}, {"engines": ["ort", "migraphx"]}),
    (BenchRequest, {"pipeline": "minimal", "engines": ["ort"]}, {"engines": ["migraphx"]}),
    (BenchRequest, {"options": {"fast_math": "false"}, "engines": ["ort"]}, {"engines": ["migraphx"]}),
    (TuneRequest, {"pad": {"mask": "0"}}, {"buckets": {"n": [1, 4]}}),
    (TuneRequest, {"calibration": "x.npz", "precisions": ["fp32"]}, {"precisions": ["fp32", "fp8"]}),
    (LowerRequest, {"pad_before": ["n"]}, {"buckets": {"n": [1, 4]}}),
]


@pytest.mark.parametrize(("kind", "given", "more"), CASES, ids=lambda value: str(getattr(value, "__name__", "")))
def test_options_that_would_have_no_effect(kind: type[Request], given: dict[str, Any], more: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="no effect") as error:
        kind.of(given)
    assert error.value.where in given
    kind.of({**given, **more})
    kind.of({name: value for name, value in more.items() if value is not None})


def test_needs_name_options() -> None:
    """In at least one of the requests that an option is of; in a part, an option that the whole lacks is not needed."""
    requests = dict.fromkeys(kind for kind, _, _ in CASES)
    needed = {(name.name, need.name) for kind in requests for name in fields_of(kind) if (need := name.option.needs)}
    known = {field.name for kind in requests for field in fields_of(kind)}
    assert len(needed) >= 12
    assert {other for _, other in needed} <= known
