"""Requests of jobs, from the fields of all their parts, and batches of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from onnx_bridge.batch import convert_all as batches
from onnx_bridge.batch.engines.base import Engine
from onnx_bridge.batch.outcome import Outcome
from onnx_bridge.core.files.locations import parse_location
from onnx_bridge.requests.batch import BatchRequest, JobRequest
from onnx_bridge.requests.conversion import ConvertRequest
from onnx_bridge.requests.parity import CheckRequest

_PARITY = ("inputs", "seed", "samples", "rtol", "atol", "tolerance")


def job(*, check: bool = False, **values: Any) -> JobRequest:
    """A request; ``values`` are fields of its conversion and of its comparison."""
    parity = {name: values.pop(name) for name in _PARITY if name in values}
    return JobRequest(ConvertRequest(**values), check, CheckRequest(**parity))


def convert_all(
    sources: Sequence[Any], out: Any, request: JobRequest | None = None, *, engine: Engine | None = None, **options: Any
) -> Outcome:
    """Convert many models with the request of a job; ``options`` are the other fields of a batch."""
    places = tuple(parse_location(source) for source in sources)
    return batches.run(BatchRequest(places, parse_location(out), request or JobRequest(), **options), engine)
