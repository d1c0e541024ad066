"""Requests of jobs, from the fields of all their parts."""

from __future__ import annotations

from typing import Any

from onnx_bridge.requests.batch import JobRequest
from onnx_bridge.requests.conversion import ConvertRequest
from onnx_bridge.requests.parity import CheckRequest

_PARITY = ("inputs", "seed", "samples", "rtol", "atol", "tolerance")


def job(*, check: bool = False, **values: Any) -> JobRequest:
    """A request; ``values`` are fields of its conversion and of its comparison."""
    parity = {name: values.pop(name) for name in _PARITY if name in values}
    return JobRequest(ConvertRequest(**values), check, CheckRequest(**parity))
