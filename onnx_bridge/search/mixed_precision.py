"""The API function `onnx_bridge.mixed_precision`: the nodes that must stay in float32 for a model to agree.

In 16 bits any node that can be computed in the format may stay; in int8 and fp8 the products may. The search is that of
`onnx_bridge.placement.placement`: each trial converts the model with some nodes in float32, compiles it, and compares
it with its reference. A node costs its share of the work and its share of the nodes, at one half each: Casts are around
it, whatever it computes. Names of nodes are values of ``--keep-fp32``.
"""

from __future__ import annotations

import functools
import math
import os
import shlex
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, starmap
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import ml_dtypes
import onnx_ir as ir

from onnx_bridge.conversion import cleaning, convert
from onnx_bridge.conversion.cleaning import Cleaned
from onnx_bridge.conversion.precision.precision import BY_CALIBRATION, Precision
from onnx_bridge.conversion.precision.quantized_products import largest_magnitudes, products, quantize_products
from onnx_bridge.core.errors import InputError
from onnx_bridge.core.progress import Progress, silent
from onnx_bridge.migraphx import runtime as runtimes
from onnx_bridge.model import io as models
from onnx_bridge.parity.checking import check
from onnx_bridge.parity.reference_runs import samples_for
from onnx_bridge.placement.noise import noise_of_products, noise_of_rounding
from onnx_bridge.placement.placement import Placement, Point, Trials
from onnx_bridge.reference.comparison.compare import OutputComparison
from onnx_bridge.reference.comparison.scores import Score
from onnx_bridge.reference.reference import Reference
from onnx_bridge.requests.conversion import ConvertRequest
from onnx_bridge.requests.parity import CheckRequest
from onnx_bridge.requests.search import MixedPrecisionRequest
from onnx_bridge.requests.spelling import as_typed
from onnx_bridge.samples.inputs import Sample, specs
from onnx_bridge.verdicts.probed_runtime import ProbedRuntime
from passes.core.text import counted
from passes.graphs.cost import estimate
from passes.isolation.limits import limited
from passes.rewriting.pipeline import Pipeline
from passes.specialize.convert_precision import FORMATS, ConvertPrecision

if TYPE_CHECKING:
    from onnx_bridge.requests.keywords import MixedPrecisionOptions

Model = str | os.PathLike[str] | ir.Model


class _Margin(Score):
    """The distance of an output from the largest error that its tolerance allows, −20·log₁₀(error / limit), in dB."""

    falls = False

    @classmethod
    def of(cls, name: str, comparisons: Sequence[OutputComparison]) -> _Margin:
        """Return the margin of an output, the least of several comparisons."""
        passed = all(comparison.passed for comparison in comparisons)
        severity = max(comparison.severity for comparison in comparisons)
        value = -20 * math.log10(severity) if severity else math.inf
        if passed != (value >= 0):  # the comparison has reasons beside the error
            value = 0.0 if passed else -math.inf
        return cls("converted", name, "margin", value, "dB", least=0.0)


@dataclass(frozen=True, kw_only=True)
class MixedPrecision(Placement):
    """The nodes that must stay in float32.

    Attributes:
        precision: what the others are computed in.
        candidates: the number of nodes that may stay in float32.
        out_of_range: the nodes with activations outside the format's range, each with the largest magnitude.
    """

    in_json = ("trials", "option")

    precision: str
    candidates: int
    out_of_range: Mapping[str, float]

    @property
    def bits(self) -> str:
        return self.precision

    @property
    def nodes(self) -> tuple[str, ...]:
        """The names of the nodes, in the order of the graph; empty if the model agrees without any."""
        return self.chosen.excluded

    @property
    def trials(self) -> int:
        """The number of conversions that were compared."""
        return len(self.points)

    @property
    def option(self) -> str:
        """The options for ``convert``."""
        return as_typed(f"`precision={self.precision!r}` `keep_fp32={list(self.nodes)}`").rstrip()

    def to_json(self) -> dict[str, Any]:
        return {"keep_fp32": list(self.nodes)} | super().to_json()


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
    precision, tell = request.conversion.precision, progress or silent
    Precision(precision, (), request.conversion.calibration)
    with limited(request.conversion.limits), tempfile.TemporaryDirectory(prefix="onnx-bridge-") as temporary:
        folder = Path(temporary)
        subject = _Subject.of(models.as_file(model, folder / "model.onnx"), request, folder / "bundle")
        trials = Trials(subject.trial, request.runs, tell)
        noise: Mapping[str, float] = {}
        first = trials(())
        if not first.passed:
            tell("measure the noise of each node")
            noise = subject.noise()

            def trial(nodes: Sequence[str]) -> Point:
                point = trials(subject.ordered(nodes))
                if not point.passed and len(trials.points) == 2:
                    subject.check_float32(trials)
                return point

            trials.place(subject.costs, noise, trial, first, min(subject.costs.values(), default=0.0))
        chosen = trials.best or next((point for point in trials.points.values() if point.passed), None)
        if chosen is None:
            subject.check_float32(trials)
            what = f"no conversion in {counted(len(trials.points), 'run')} agrees with the reference"
            raise InputError(what, where=str(subject.file), hint="give more `runs`")
        return MixedPrecision(
            points=tuple(trials.points.values()),
            chosen=chosen,
            noise=noise,
            command=_command(model, request, chosen.excluded),
            precision=precision,
            candidates=len(subject.names),
            out_of_range=subject.out_of_range(),
        )


@dataclass
class _Subject:
    """A model that is converted with some nodes in float32, and compared with its reference.

    Attributes:
        out: the bundle to write.
        model: the model in float32 whose nodes are computed in the precision.
        names: the nodes that may stay in float32.
    """

    file: Path
    request: MixedPrecisionRequest
    out: Path
    model: ir.Model
    names: Sequence[str]

    @classmethod
    def of(cls, file: Path, request: MixedPrecisionRequest, out: Path) -> _Subject:
        """Clean a model up to its conversion, which says what it can be for."""
        conversion = request.conversion
        target = ProbedRuntime(runtimes.find(conversion.runtime))

        def cleaned(pipeline: Pipeline) -> Cleaned:
            return cleaning.run(file, None, replace(conversion.cleaning, pipeline=str(pipeline) or "none"), target)

        pipeline = Pipeline.parse(conversion.pipeline)
        if conversion.precision in BY_CALIBRATION:
            model = cleaned(pipeline).model
            return cls(file, request, out, model, [str(node.name) for node in products(model)])
        items = Precision(conversion.precision).pipeline(pipeline, models.load(file)).items
        place = next(i for i, item in enumerate(items) if isinstance(item, ConvertPrecision))
        step = cleaned(Pipeline(items[: place + 1])).steps[-1]
        names = [rewrite.before[0] for rewrite in step.result.rewrites]
        return cls(file, request, out, cleaned(Pipeline(items[:place])).model, names)

    @functools.cached_property
    def costs(self) -> Mapping[str, float]:
        """The share of the work and the nodes of each node."""
        work = {str(node.name): estimate(node) for node in self.model.graph}
        total, count = sum(work[name] for name in self.names) or 1, len(self.names)
        return {name: work[name] / total / 2 + 1 / count / 2 for name in self.names}

    @functools.cached_property
    def samples(self) -> Sequence[Sample]:
        return samples_for(self.request, specs(self.model), self.model, Reference(self.model).run)

    def ordered(self, nodes: Sequence[str]) -> tuple[str, ...]:
        """Return nodes in the order of the graph."""
        return tuple(name for name in self.names if name in nodes)

    def trial(self, nodes: Sequence[str]) -> Point:
        """Convert the model with these nodes in float32, and compare it."""
        request, conversion = self.request, self.request.conversion
        if conversion.precision in BY_CALIBRATION and len(nodes) == len(self.names):  # nothing is quantized
            conversion = replace(conversion, precision="fp32", calibration=None)
        else:
            conversion = replace(conversion, keep_fp32=tuple(nodes))
        given = {name: value for name, value in vars(request).items() if name not in ("conversion", "runs")}
        bundle = convert.run(self.file, self.out, replace(conversion, prove="never"))
        report = check.run(bundle, CheckRequest(reference=self.file, **given))
        report.raise_failure()
        outputs: dict[str, list[OutputComparison]] = {}
        for _, _, output in report.outputs():
            outputs.setdefault(output.name, []).append(output)
        share = max(1.0 - sum(self.costs[name] for name in nodes), 0.0)
        return Point(tuple(nodes), share, tuple(starmap(_Margin.of, outputs.items())))

    def check_float32(self, trials: Trials) -> None:
        """Raise InputError if the model differs with all nodes in float32."""
        point = trials(self.names)
        if not point.passed and point.failure is None:
            what = "the model differs from its reference even with all of its nodes in float32"
            raise InputError(what, where=str(self.file), hint="`onnx-bridge check` and `bisect` say where")

    def noise(self) -> dict[str, float]:
        """Return the noise that each node causes in the precision by itself."""
        precision = self.request.conversion.precision
        if precision not in BY_CALIBRATION:
            return noise_of_rounding(self.model, self.names, FORMATS[precision], self.samples)
        calibration = Precision(precision, (), self.request.conversion.calibration).samples(self.model)
        quantized = quantize_products(self.model, precision, (), calibration).model
        noise = noise_of_products(self.model, quantized, self.samples)
        results = {str(node.name): str(node.outputs[0].name) for node in self.model.graph}
        return {name: noise[results[name]] for name in self.names if results[name] in noise}

    def out_of_range(self) -> dict[str, float]:
        """Return the nodes with inputs or outputs outside the range of 16 bits, each with the largest magnitude."""
        if self.request.conversion.precision in BY_CALIBRATION:
            return {}
        format_ = FORMATS[self.request.conversion.precision]
        limit = float(ml_dtypes.finfo(format_.numpy()).max)  # type: ignore[no-untyped-call]
        nodes = [node for node in self.model.graph if node.name in set(self.names)]
        around = {
            str(node.name): [
                value for value in (*node.inputs, *node.outputs) if value and value.dtype == ir.DataType.FLOAT
            ]
            for node in nodes
        }
        largest = largest_magnitudes(self.model, dict.fromkeys(chain(*around.values())), self.samples)
        sizes = {name: max(largest[str(value.name)] for value in values) for name, values in around.items()}
        return {name: size for name, size in sizes.items() if size > limit}


def _command(model: Model, request: MixedPrecisionRequest, nodes: Sequence[str]) -> str:
    """Return the command that converts a model so; empty if the model or the data is in memory."""
    conversion = request.conversion
    if isinstance(model, ir.Model) or not isinstance(conversion.calibration, (Path, str, type(None))):
        return ""
    values, defaults = conversion.to_json(), ConvertRequest().to_json()
    given = {name: value for name, value in values.items() if value != defaults[name]} | {"keep_fp32": list(nodes)}
    options = [text for name, value in given.items() if (text := as_typed(f"`{name}={value!r}`"))]
    path = os.fspath(model)
    return " ".join(["onnx-bridge convert", shlex.quote(path), "-o", shlex.quote(Path(path).stem), *options])
