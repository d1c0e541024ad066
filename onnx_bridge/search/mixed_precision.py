"""The API function `onnx_bridge.mixed_precision`: the nodes that must stay in float32 for a model to agree.

In 16 bits any node that can be computed in the format may stay; in int8 and fp8 the products may. For 16 bits all
activations are measured first: nodes with inputs or outputs outside the format's range are tried before all others.
Then `onnx_bridge.core.delta_debug.ranked_subset` converts, compiles and compares the model with some nodes in float32,
until none of them can be computed in the lower precision. Their names are values of ``--keep-fp32``.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import ml_dtypes
import numpy as np
import onnx_ir as ir

from onnx_bridge.conversion import cleaning, convert
from onnx_bridge.conversion.cleaning import Cleaned
from onnx_bridge.conversion.precision.precision import BY_CALIBRATION, Precision
from onnx_bridge.conversion.precision.quantized_products import products
from onnx_bridge.core.delta_debug import Asked, ranked_subset
from onnx_bridge.core.errors import InputError
from onnx_bridge.core.progress import Progress, silent
from onnx_bridge.core.schema import JsonRecord
from onnx_bridge.core.values import flat
from onnx_bridge.migraphx import runtime as runtimes
from onnx_bridge.model import io as models
from onnx_bridge.parity.checking import check
from onnx_bridge.parity.reference_runs import samples_for
from onnx_bridge.reference.reference import Reference
from onnx_bridge.requests.parity import CheckRequest
from onnx_bridge.requests.search import MixedPrecisionRequest
from onnx_bridge.samples import inputs as samplers
from onnx_bridge.verdicts.probed_runtime import ProbedRuntime
from passes.core.text import counted
from passes.graphs.scopes import required_names
from passes.isolation.limits import limited
from passes.probing.partition import extract
from passes.rewriting.pipeline import Pipeline
from passes.specialize.convert_precision import FORMATS

if TYPE_CHECKING:
    from onnx_bridge.requests.keywords import MixedPrecisionOptions

Model = str | os.PathLike[str] | ir.Model

_VALUES = 64
"""The number of activations that are fetched in one run."""


@dataclass(frozen=True)
class MixedPrecision(JsonRecord):
    """The nodes that must stay in float32.

    Attributes:
        precision: what the others are computed in.
        nodes: their names, in the order of the graph; empty if the model agrees without any.
        candidates: the number of nodes that may stay in float32.
        trials: how often the model was converted and compared.
        out_of_range: the nodes with activations outside the format's range, each with the largest magnitude.
    """

    in_json = ("option",)

    precision: str
    nodes: tuple[str, ...]
    candidates: int
    trials: int
    out_of_range: Mapping[str, float]

    @property
    def option(self) -> str:
        """The options for ``convert``."""
        return " ".join([f"--precision {self.precision}", *(f"--keep-fp32 {name}" for name in self.nodes)])

    def to_json(self) -> dict[str, Any]:
        values = super().to_json()
        return {"keep_fp32": values.pop("nodes")} | values


def mixed_precision(
    model: Model, *, progress: Progress | None = None, **options: Unpack[MixedPrecisionOptions]
) -> MixedPrecision:
    """Find the nodes that must stay in float32 for a model to agree with its reference in another precision.

    Args:
        model: an ONNX file, or a model in memory.
        progress: called with each trial as it begins.
        options: the fields of `onnx_bridge.requests.search.MixedPrecisionRequest`.

    Raises:
        InputError: an option is wrong, or the model differs even with all of these nodes in float32.
        RuntimeFailure: MIGraphX failed.
    """
    return run(model, MixedPrecisionRequest.of(options), progress)


def run(model: Model, request: MixedPrecisionRequest, progress: Progress | None = None) -> MixedPrecision:
    """Search as a request says; errors are those of `mixed_precision`."""
    precision = request.conversion.precision
    Precision(precision, (), request.conversion.calibration)
    limits = request.conversion.limits
    with limited(limits), tempfile.TemporaryDirectory(prefix="onnx-bridge-") as temporary:
        folder = Path(temporary)
        file = models.as_file(model, folder / "model.onnx")
        names, out_of_range = _candidates(file, request)
        trials = Asked(_Trials(file, request, folder / "bundle", len(names), progress or silent).agrees)
        ordered = sorted(names, key=lambda name: name not in out_of_range)
        if not trials([]) and not trials(ordered):
            what = "the model differs from its reference even with all of its nodes in float32"
            raise InputError(what, where=str(file), hint="`onnx-bridge check` and `bisect` say where")
        kept = ranked_subset(ordered, trials) or ()
    nodes = tuple(name for name in names if name in kept)
    return MixedPrecision(precision, nodes, len(names), len(trials.answers), out_of_range)


@dataclass
class _Trials:
    """Converts a model with some nodes in float32, and compares it with its reference.

    Attributes:
        out: the bundle to write.
        candidates: the number of nodes that may stay in float32.
        done: the number of trials.
    """

    file: Path
    request: MixedPrecisionRequest
    out: Path
    candidates: int
    tell: Progress
    done: int = 0

    def agrees(self, nodes: Sequence[str]) -> bool:
        """Return whether the model agrees with these nodes in float32."""
        self.done += 1
        self.tell(f"trial {self.done}: {len(nodes)} of {counted(self.candidates, 'node')} in float32")
        request, conversion = self.request, self.request.conversion
        if conversion.precision in BY_CALIBRATION and len(nodes) == self.candidates:  # nothing is quantized
            conversion = replace(conversion, precision="fp32", calibration=None)
        else:
            conversion = replace(conversion, keep_fp32=tuple(nodes))
        given = {name: value for name, value in vars(request).items() if name != "conversion"}
        bundle = convert.run(self.file, self.out, replace(conversion, prove="never"))
        report = check.run(bundle, CheckRequest(reference=self.file, **given))
        report.raise_failure()
        return report.passed


def _candidates(file: Path, request: MixedPrecisionRequest) -> tuple[list[str], dict[str, float]]:
    """Return the nodes that may stay in float32, and those of them with activations outside the range of 16 bits."""
    conversion = request.conversion
    target = ProbedRuntime(runtimes.find(conversion.runtime))

    def cleaned(pipeline: str) -> Cleaned:
        return cleaning.run(file, None, replace(conversion.cleaning, pipeline=pipeline), target)

    if conversion.precision in BY_CALIBRATION:
        return [str(node.name) for node in products(cleaned(conversion.pipeline).model)], {}
    precision = Precision(conversion.precision)
    pipeline = precision.pipeline(Pipeline.parse(conversion.pipeline), models.load(file))
    steps = cleaned(str(pipeline) or "none").steps
    step = next(record for record in steps if record.name == "convert-precision")
    names = [rewrite.before[0] for rewrite in step.result.rewrites]
    float_model = cleaned(conversion.pipeline).model
    samples = samples_for(request, samplers.specs(float_model), float_model, Reference(float_model).run)
    return names, _out_of_range(float_model, set(names), conversion.precision, samples)


def _out_of_range(
    model: ir.Model, names: set[str], precision: str, samples: Sequence[samplers.Sample]
) -> dict[str, float]:
    """Return the nodes with inputs or outputs outside the range of a format, each with the largest magnitude."""
    limits: Any = ml_dtypes.finfo(FORMATS[precision].numpy())  # type: ignore[no-untyped-call]
    limit = float(limits.max)
    values = {
        str(value.name): value
        for node in model.graph
        for value in node.outputs
        if value.name and value.dtype == ir.DataType.FLOAT and value.uses()
    }
    inputs = required_names(model)
    largest: dict[str, float] = {}
    wanted = list(values)
    for start in range(0, len(wanted), _VALUES):
        part = Reference(extract(model, inputs, wanted[start : start + _VALUES]))
        for sample in samples:
            outputs = part.run({name: sample[name] for name in part.input_names})
            for name, array in flat(outputs).items():
                magnitude = float(np.max(np.abs(array), initial=0.0, where=~np.isnan(array)))
                largest[name] = max(largest.get(name, 0.0), magnitude)
    sizes: dict[str, float] = {}
    for node in model.graph:
        around = [str(value.name) for value in (*node.inputs, *node.outputs) if value is not None]
        size = max((largest.get(name, 0.0) for name in around), default=0.0)
        if size > limit and node.name in names:
            sizes[str(node.name)] = size
    return sizes
