"""The verb ``check --data``: metrics of a model, or of its bundle, over a dataset."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from onnx_bridge.bundle.bundle import Bundle
from onnx_bridge.bundle.decoding.caches import Cache
from onnx_bridge.bundle.decoding.trial import Original
from onnx_bridge.bundle.gpu_preview import GpuPreview
from onnx_bridge.core.countdown import Countdown
from onnx_bridge.core.errors import BridgeError, InputError, RuntimeFailure, RuntimeNotFound, Step
from onnx_bridge.core.progress import Progress, silent
from onnx_bridge.core.values import Value, as_array
from onnx_bridge.migraphx import runtime as runtimes
from onnx_bridge.migraphx.gpu.rehearse import rehearsal
from onnx_bridge.model import io as models
from onnx_bridge.model.folder import folders_of
from onnx_bridge.parity.checking.accuracy import AccuracyReport
from onnx_bridge.parity.checking.baseline import CLEANED, converted, device_name, original_of
from onnx_bridge.parity.checking.report import REFERENCE
from onnx_bridge.parity.failure import Failure
from onnx_bridge.parity.reference_runs import failed_on, versions
from onnx_bridge.reference.comparison.scores import Scores
from onnx_bridge.reference.reference import Reference
from onnx_bridge.requests.parity import CheckRequest, DataRequest
from onnx_bridge.requests.request import ModelSource
from onnx_bridge.samples import files
from onnx_bridge.samples.dataset import Dataset, DataSource
from onnx_bridge.samples.inputs import Sample, TensorSpec
from onnx_bridge.samples.suitable import frozen_values
from onnx_bridge.samples.text import as_data

Side = Callable[[Sample], Mapping[str, Value]]


@dataclass
class _Sides:
    """The columns of the table, in order; a side that fails is not run again."""

    cleaned: Mapping[str, Side]
    device: Mapping[str, Side]
    failures: dict[str, Failure] = field(default_factory=dict)

    def run(self, sample: Sample, number: int) -> dict[str, Mapping[str, Value]]:
        outputs = {name: side(sample) for name, side in self.cleaned.items()}
        for name, side in self.device.items():
            if name in self.failures:
                continue
            try:
                outputs[name] = side(sample)
            except RuntimeNotFound:
                raise
            except RuntimeFailure as error:
                self.failures[name] = Failure(error.step or Step.RUN, error, number)
        return outputs


def measure(model: ModelSource | Bundle, request: DataRequest, progress: Progress | None = None) -> AccuracyReport:
    """Measure metrics over a dataset as a request says; errors are those of `onnx_bridge.check`."""
    scores, data = Scores(request.metrics, request.least, REFERENCE), request.data
    assert data is not None
    with converted(model, request, progress) as (bundle, asked):
        return _measure(bundle, data, scores, asked, progress or silent)


def _measure(bundle: Bundle, data: DataSource, scores: Scores, request: CheckRequest, tell: Progress) -> AccuracyReport:
    original, notes = original_of(bundle, request.reference)
    folders = [bundle.path, *folders_of(original)]
    if bundle.manifest.decoder is not None:
        whole, sides, specs = _generating(bundle, original)
        data = as_data(data, specs, folders, bundle.decoder.layout.max_length)
        dataset = Dataset(data, specs, request.samples)
    else:
        reference = Reference(original)
        frozen = frozen_values(models.load(original), bundle.manifest.request.freeze)
        notes = [*notes, *reference.notes]

        def whole(sample: Sample) -> Mapping[str, Value]:
            return reference.run({**sample, **frozen})

        sides = _sides(bundle, request)
        dataset = Dataset(as_data(data, bundle.specs, folders), bundle.specs, request.samples, bundle.most_rows)
    countdown, count = Countdown(tell, "dataset", dataset.count), 0
    for sample, label in dataset:
        try:
            expected = whole(sample)
        except BridgeError as error:
            raise failed_on(error, "reference", countdown.done, dataset.count) from None
        scores.add(REFERENCE, expected, expected, label)
        for name, outputs in sides.run(sample, countdown.done).items():
            scores.add(name, outputs, expected, label)
        countdown.step()
        count += files.count([sample], dataset.specs)
    return AccuracyReport(
        bundle.manifest.name,
        scores.result(),
        count,
        countdown.done,
        sides.failures,
        versions(bundle.manifest.versions["migraphx"]),
        (*bundle.manifest.notes, *bundle.notes, *notes),
    )


def _sides(bundle: Bundle, request: CheckRequest) -> _Sides:
    cleaned = {} if bundle.model_path is None else {CLEANED: Reference(bundle.model_path).run}
    device: dict[str, Side] = {device_name(bundle): bundle}
    passes = rehearsal(request.rehearsed, runtimes.find(bundle.programs[0].runtime_name))
    if passes is not None and passes.computes:
        device[passes.leg] = GpuPreview(bundle, passes)
    return _Sides(cleaned, device)


def _generating(bundle: Bundle, path: Path) -> tuple[Side, _Sides, list[TensorSpec]]:
    """Return the original of a decoder, and the decoder, for whole texts: they get one token after the other."""
    layout = bundle.decoder.layout
    if layout.encoder is not None:
        what = "a dataset has no source for the encoder of this model"
        raise InputError(what, where=str(bundle.path), hint="check it without data")
    original = Original(path, bundle.manifest.request.freeze)

    def fed(empty: Callable[[], Cache]) -> Side:
        def run(sample: Sample) -> Mapping[str, Value]:
            cache, ids = empty(), as_array(sample[layout.ids])
            return {layout.logits: np.stack([cache.feed(ids[:, [at]]) for at in range(ids.shape[1])], axis=1)}

        return run

    spec = TensorSpec(layout.ids, np.dtype(np.int64), (layout.batch, None))
    return fed(lambda: original.cache(layout)), _Sides({}, {device_name(bundle): fed(bundle.decoder.cache)}), [spec]
