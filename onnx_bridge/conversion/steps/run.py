"""The conversion of a model into one program, from the first step to the last."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from onnx_bridge.bundle.bundle import Bundle
from onnx_bridge.conversion.source import Source
from onnx_bridge.conversion.steps.clean import clean
from onnx_bridge.conversion.steps.describe import describe
from onnx_bridge.conversion.steps.place import compile_or_place
from onnx_bridge.conversion.steps.prove import prove
from onnx_bridge.conversion.steps.publish import publish
from onnx_bridge.conversion.steps.resolve import resolve
from onnx_bridge.core.progress import Progress
from onnx_bridge.requests.conversion import ConvertRequest
from onnx_bridge.requests.request import ModelSource
from onnx_bridge.samples.inputs import Sample


def run(
    model: ModelSource | Source,
    out: Path,
    request: ConvertRequest,
    progress: Progress | None = None,
    samples: Sequence[Sample] = (),
) -> Bundle:
    """Convert a model as a request says, proven on ``samples`` (default: a generated one); errors as `convert`."""
    with resolve(Source.of(model), out, request, progress) as plan:
        cleaned = clean(plan)
        compiled = compile_or_place(cleaned)
        manifest = prove(compiled, describe(compiled), samples)
        return publish(manifest, plan)
