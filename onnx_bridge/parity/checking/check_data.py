"""The verb ``check --data``: metrics of a model, or of its bundle, over a dataset."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import onnx_ir as ir

from onnx_bridge.bundle.bundle import Bundle, is_bundle
from onnx_bridge.bundle.gpu_preview import GpuPreview
from onnx_bridge.conversion import convert as conversion
from onnx_bridge.core.countdown import Countdown
from onnx_bridge.core.errors import BridgeError, RuntimeFailure, RuntimeNotFound, Step
from onnx_bridge.core.progress import Progress, silent
from onnx_bridge.core.values import Array, Value
from onnx_bridge.migraphx.targets import target_beside
from onnx_bridge.model import io as models
from onnx_bridge.parity.checking.accuracy import AccuracyReport, Scores
from onnx_bridge.parity.checking.baseline import CLEANED, device_name, original_of
from onnx_bridge.parity.checking.check import AS_GPU
from onnx_bridge.parity.checking.report import REFERENCE
from onnx_bridge.parity.failure import Failure
from onnx_bridge.parity.reference_runs import failed_on, versions
from onnx_bridge.reference.reference import Reference
from onnx_bridge.requests.cleaning import as_json, as_shapes
from onnx_bridge.requests.conversion import ConvertRequest
from onnx_bridge.requests.parity import CheckRequest
from onnx_bridge.samples.dataset import Dataset, DataSource
from onnx_bridge.samples.inputs import Sample
from onnx_bridge.samples.suitable import frozen_values

Side = Callable[[Sample], Mapping[str, Value]]


@dataclass
class _Sides:
    """What is measured, in the order of columns; a side that fails is not run again.

    Attributes:
        cleaned: the cleaned model on ONNX Runtime, if a bundle has it.
        device: the bundle, and what a GPU would compute.
        failures: of the sides that failed.
    """

    cleaned: Mapping[str, Side]
    device: Mapping[str, Side]
    failures: dict[str, Failure] = field(default_factory=dict)

    def run(self, sample: Sample, number: int) -> dict[str, Mapping[str, Value]]:
        found = {name: side(sample) for name, side in self.cleaned.items()}
        for name, side in self.device.items():
            if name in self.failures:
                continue
            try:
                found[name] = side(sample)
            except RuntimeNotFound:
                raise
            except RuntimeFailure as error:
                self.failures[name] = Failure(error.step or Step.RUN, error, number)
        return found


def check_data(  # noqa: PLR0913
    model: str | os.PathLike[str] | ir.Model | Bundle,
    data: DataSource,
    *,
    metrics: Sequence[str] = (),
    least: Mapping[str, float] | None = None,
    reference: str | os.PathLike[str] | None = None,
    samples: int | None = None,
    as_target: Literal["gpu"] | None = None,
    target: str = "auto",
    pipeline: str = "default",
    dims: Mapping[str, int] | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    freeze: Mapping[str, Array | str] | None = None,
    host: bool = True,
    cache: bool = True,
    timeout: float | None = None,
    memory: float | None = None,
    progress: Progress | None = None,
) -> AccuracyReport:
    """Measure metrics over a dataset: of the original on ONNX Runtime, of the cleaned model, and of the bundle.

    Where the dataset has labels, top1, top5 and the iou of masks are those of each side, the reference included,
    against the labels; without, they are those of each side against the reference. The samples are read one at a time.

    Args:
        model: a model, which is converted first (into a temporary folder), or a bundle, also one with buckets, whose
            samples have any size up to the largest. With a reference, it may be a quantized model: then the table is
            that of what quantization costs.
        data: where to read samples from, with or without labels (`onnx_bridge.samples.dataset`).
        metrics: by name (`onnx_bridge.reference.comparison.dataset_metrics.METRICS`).
        least: by metric, what the cleaned model and the bundle must reach; these metrics are measured as well.
        reference: the model to compare with; default: the model itself, or that which a bundle was converted from.
        samples: how many to take; default: all.
        as_target: as for `onnx_bridge.check`.
        target: likewise.
        pipeline: likewise.
        dims: likewise.
        shapes: likewise.
        freeze: likewise.
        host: likewise.
        cache: likewise.
        timeout: likewise.
        memory: likewise.
        progress: called with each sample.

    Raises:
        InputError: the model or the data are wrong, there is no such metric, or one applies to no output.
        RuntimeFailure: MIGraphX does not take the model, or is missing.
    """
    settings = ConvertRequest(
        target=target_beside(as_target, target),
        pipeline=pipeline,
        dims=dict(dims or {}),
        shapes=as_shapes(shapes),
        freeze=as_json(freeze),
        host=host,
        cache=cache,
        timeout=timeout,
        memory=memory,
        prove="never",
    )
    given = None if reference is None else Path(reference)
    request = CheckRequest(samples=samples, conversion=settings, reference=given, as_target=as_target)
    tell = progress or silent
    scores = Scores(metrics, least or {}, REFERENCE)
    if not isinstance(model, ir.Model | Bundle) and is_bundle(model):
        model = Bundle(model, timeout=timeout, memory=memory)
    if isinstance(model, Bundle):
        return _measure(model, data, scores, request, tell)
    with tempfile.TemporaryDirectory(prefix="onnx-bridge-") as folder:
        bundle = conversion.run(model, Path(folder) / "bundle", settings, progress)
        if isinstance(model, ir.Model) and request.reference is None:
            original = Path(folder) / "original.onnx"
            models.save(model, original)
            request = replace(request, reference=original)
        return _measure(bundle, data, scores, request, tell)


def _measure(bundle: Bundle, data: DataSource, scores: Scores, request: CheckRequest, tell: Progress) -> AccuracyReport:
    original, notes = original_of(bundle, request.reference)
    reference = Reference(original)
    frozen = frozen_values(models.load(original), bundle.manifest.request.freeze)
    dataset = Dataset(data, bundle.specs, request.samples, bundle.most_rows)
    cleaned = {} if bundle.model_path is None else {CLEANED: Reference(bundle.model_path).run}
    device: dict[str, Side] = {device_name(bundle): bundle}
    if request.as_target is not None:
        device[AS_GPU] = GpuPreview(bundle)
    sides = _Sides(cleaned, device)
    countdown = Countdown(tell, "dataset", dataset.count)
    for sample, label in dataset:
        try:
            expected = reference.run({**sample, **frozen})
        except BridgeError as error:
            raise failed_on(error, "reference", countdown.done, dataset.count) from None
        scores.add(REFERENCE, expected, expected, label)
        for name, outputs in sides.run(sample, countdown.done).items():
            scores.add(name, outputs, expected, label)
        countdown.step()
    return AccuracyReport(
        bundle.manifest.name,
        scores.result(),
        countdown.done,
        sides.failures,
        versions(bundle.manifest.versions["migraphx"]),
        (*bundle.manifest.notes, *bundle.notes, *notes, *reference.notes),
    )
