"""The conversion of a model into one program, from the first step to the last."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from onnx_bridge.bundle.bundle import Bundle
from onnx_bridge.bundle.manifest.manifest import Manifest
from onnx_bridge.conversion.source import Source
from onnx_bridge.conversion.steps.clean import CleanedModel, clean
from onnx_bridge.conversion.steps.compile import WIDENED, can_widen
from onnx_bridge.conversion.steps.describe import describe
from onnx_bridge.conversion.steps.place import compile_or_place
from onnx_bridge.conversion.steps.prove import prove
from onnx_bridge.conversion.steps.publish import publish
from onnx_bridge.conversion.steps.resolve import resolve
from onnx_bridge.core.errors import ParityError
from onnx_bridge.core.progress import Progress
from onnx_bridge.requests.conversion import ConvertRequest
from onnx_bridge.requests.request import ModelSource
from onnx_bridge.samples.inputs import Sample
from passes.rewriting.base import Proof


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
        try:
            manifest = _compile_and_prove(cleaned, samples)
            is_doubtful = plan.request.prove != "never" and manifest.proof.level is not Proof.RUN
        except ParityError:
            if not can_widen(cleaned):
                raise
            is_doubtful = True
        if is_doubtful and can_widen(cleaned):
            plan.stopwatch.progress(WIDENED)
            manifest = _compile_and_prove(cleaned, samples, widened=True)
        return publish(manifest, plan)


def _compile_and_prove(cleaned: CleanedModel, samples: Sequence[Sample], *, widened: bool = False) -> Manifest:
    compiled = compile_or_place(cleaned, widened=widened)
    return prove(compiled, describe(compiled), samples)
