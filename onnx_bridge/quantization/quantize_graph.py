"""Quantize an ONNX graph, by AMD Quark or ONNX Runtime's quantizer.

Quantizers run the model on its calibration data, so they have a process with limits.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain
from pathlib import Path

import onnx_ir as ir

from onnx_bridge.core.countdown import Countdown
from onnx_bridge.core.delta_debug import minimal_subset
from onnx_bridge.core.errors import InputError
from onnx_bridge.core.progress import Progress
from onnx_bridge.core.third_party import shorten
from onnx_bridge.core.values import Array, Value
from onnx_bridge.model import io as models
from onnx_bridge.placement.noise import noise_of_products
from onnx_bridge.quantization.assignment import Assignment, Search
from onnx_bridge.quantization.calibration_data import as_arrays, calibration_samples
from onnx_bridge.quantization.neutral_names import NeutralNames
from onnx_bridge.quantization.prepare import Prepared, Source, prepared
from onnx_bridge.quantization.quantized import (
    FEW,
    Deviation,
    Gain,
    Quantized,
    deviations,
    gains_of,
    kernels_of,
    losses,
    require_quantized,
    saved,
    versioned,
)
from onnx_bridge.reference.reference import SECONDS, Reference
from onnx_bridge.requests.quantization import QuantizeRequest
from onnx_bridge.requests.schemes import Quantizer, Recipe
from onnx_bridge.samples.dataset import Dataset
from onnx_bridge.samples.files import described
from onnx_bridge.samples.inputs import Sample, TensorSpec, specs
from passes.graphs.int8_kernels import PRODUCTS
from passes.graphs.quantization import is_quantized
from passes.isolation import limits, value_messages, worker
from passes.probing.partition import extract
from passes.shapes.open_sizes import OpenDims

_LIBRARIES = {"quark": "Quark", "ort": "ONNX Runtime's quantizer"}
_NAMES = {"quark": ("AMD Quark", "amd-quark"), "ort": ("ONNX Runtime", "onnxruntime")}
_FEW = 16
"""The most nodes of wrong operators that are tried one by one, if other nodes can be quantized."""


@dataclass(frozen=True)
class _Made:
    """A quantized model, in a folder of its own, with its deviations and notes."""

    model: ir.Model
    deviations: tuple[Deviation, ...]
    notes: tuple[str, ...]
    folder: Path


@dataclass(frozen=True)
class _Attempt:
    """A quantization of a prepared model without the nodes of some names, which is checked against the original."""

    request: QuantizeRequest
    recipe: Recipe
    prepared: Prepared
    original: Reference
    samples: Sequence[Sample]
    progress: Progress

    def __call__(self, excluded: Sequence[str]) -> _Made:
        """Return the quantized model; raises InputError if it fails, or is wrong."""
        library, source = _LIBRARIES[self.request.with_], self.prepared.source
        folder = Path(tempfile.mkdtemp(dir=source.path.parent))
        source = replace(source, excluded=tuple(excluded), target=folder / "quantized.onnx")
        names = self.prepared.names
        samples = [{names.inputs[name]: array for name, array in as_arrays(sample).items()} for sample in self.samples]
        notes = _quantize_file(self.request.with_, self.recipe, source, samples, names, self.progress)
        quantized = replace(self.prepared, source=source).result(library)
        self.progress("compare with the float model")
        try:
            reference = Reference(quantized)
        except InputError as error:
            raise InputError(f"{library} wrote a model that ONNX Runtime refuses: {error.what}") from error
        compared = deviations(reference.run, self.original.run, self.samples)
        return _Made(quantized, compared, (*notes, *reference.notes), folder)

    def layers(self, quantized: ir.Model) -> tuple[Deviation, ...]:
        """Compare the results of convolutions and matrix products that both models have."""
        original, names = models.load(self.prepared.source.path), self.prepared.names
        kept = {value.name for node in quantized.graph for value in node.outputs}
        values = [str(node.outputs[0].name) for node in original.graph if node.op_type in PRODUCTS]
        values = [name for name in values if names.original(name) in kept]
        if not values:
            return ()
        whole = Reference(extract(original, list(names.inputs.values()), values))
        part = Reference(extract(quantized, list(names.inputs), [names.original(name) for name in values]))

        def run(sample: Sample) -> Mapping[str, Value]:
            return whole.run({names.inputs[name]: sample[name] for name in names.inputs})

        return deviations(part.run, run, self.samples[:FEW])

    def gains(self, excluded: Sequence[str], quantized: ir.Model, outputs: Sequence[Deviation]) -> tuple[Gain, ...]:
        """Return what each algorithm brought, by quantizing with ever more of them."""

        def measured(recipe: Recipe) -> tuple[Sequence[Deviation], Sequence[Deviation]]:
            made = replace(self, recipe=recipe)(excluded)
            return made.deviations, self.layers(made.model)

        return gains_of(self.recipe, measured, outputs, lambda: self.layers(quantized), self.progress)

    def culprits(self) -> list[ir.Node]:
        """Return a minimal set of nodes without which the attempt succeeds; none if it fails without all of them.

        Operators are searched first; their nodes one by one if they are few, or if all that can be quantized are such.
        """

        def succeeds(nodes: Sequence[ir.Node], *, quantized: bool = False) -> bool:
            with contextlib.suppress(InputError):
                made = self([*self.prepared.source.excluded, *(str(node.name) for node in nodes)])
                return not quantized or is_quantized(made.model)
            return False

        nodes = list(self.prepared.graph)
        if not succeeds(nodes):
            return []
        by_kind: dict[str, list[ir.Node]] = {}
        for node in nodes:
            by_kind.setdefault(node.op_type, []).append(node)
        wrong = list(chain(*minimal_subset([*by_kind.values()], lambda kinds: succeeds([*chain(*kinds)]))))
        few = len(wrong) <= _FEW or not succeeds(wrong, quantized=True)
        return minimal_subset(wrong, succeeds) if few else wrong


def quantize_graph(
    model: ir.Model, request: QuantizeRequest, progress: Progress, own: Sequence[Sample] = ()
) -> Quantized:
    """Quantize a graph in float, which is not changed; raises like `onnx_bridge.quantize`.

    Nodes that the quantizer makes a wrong model of stay in float. ``own`` samples come with the model, for calibration
    if none are given.
    """
    scheme, recipe = request.format, request.recipe(request.with_)
    with prepared(model, request) as ready:
        data = calibration_samples(recipe, request.calibration, specs(model), own, _sizes(model))
        on = f" on {described(data.count, len(data.samples))}" if scheme.calibrated else ""
        progress(f"quantize to {scheme.name}{on}")
        attempt = _Attempt(request, recipe, ready, Reference(model), data.samples, progress)
        excluded = ready.source.excluded
        left: tuple[str, ...] = ()
        try:
            made = attempt(excluded)
        except InputError as error:
            _require_run(attempt.original, data.samples[0], generated=request.calibration is None and not own)
            progress("search what cannot be quantized")
            nodes = attempt.culprits()
            excluded = (*excluded, *(str(node.name) for node in nodes))
            if not nodes or not is_quantized((made := attempt(excluded)).model):
                raise
            names = ", ".join(f"{node.op_type} {ready.names.original(str(node.name))}" for node in nodes)
            left = (f"{shorten(names)} stayed in float, because quantization fails with it: {error.what}",)
        require_quantized(made.model, scheme)
        assignment = None
        if request.least:
            assignment, made = _searched(attempt, made, excluded, specs(model))
            excluded = ready.named(assignment.chosen.excluded)
        quantized = saved(made.model, request.out, progress)
        gains = attempt.gains(excluded, quantized, made.deviations)
    return Quantized(
        model=quantized,
        quantizer=versioned(*_NAMES[request.with_]),
        scheme=scheme.name,
        per_channel=request.per_channel,
        method=recipe.method,
        excluded=tuple(ready.names.original(name) for name in excluded),
        calibration=data.source,
        samples=data.count,
        batches=len(data.samples),
        deviations=made.deviations,
        kernels=kernels_of(quantized),
        gains=gains,
        notes=(*data.notes, *left, *made.notes, *losses(gains)),
        path=request.out,
        assignment=assignment,
    )


def _sizes(model: ir.Model) -> dict[str, int]:
    """Return the sizes of open dimensions that `onnx_bridge.convert` chooses."""
    dims = OpenDims(model, {}, {})
    return {name: size for name, size in dims.sizes(1).all.items() if name in dims.symbols}


def _require_run(original: Reference, sample: Sample, *, generated: bool) -> None:
    """Run the float model on a sample; raises InputError if either is why a quantization fails."""
    try:
        original.run(sample)
    except InputError as error:
        if not generated:
            raise
        what = f"the model does not run on a sample that was generated: {error.what}"
        raise InputError(what, where="calibration", hint="give samples that fit it") from error


def _searched(
    attempt: _Attempt, whole: _Made, excluded: Sequence[str], inputs: Sequence[TensorSpec]
) -> tuple[Assignment, _Made]:
    """Return the assignment that the request asks for, and its model, by attempts with fewer nodes than ``whole``."""
    request, ready = attempt.request, attempt.prepared
    assert request.data is not None

    def noise(model: ir.Model) -> dict[str, float]:
        original = models.load(ready.source.path)
        ready.names.restore(original)
        samples = [as_arrays(sample) for sample in attempt.samples[:FEW]]
        return noise_of_products(original, model, samples)

    search = Search(
        ready,
        attempt.original,
        lambda nodes: attempt(ready.named(nodes)),
        noise,
        Dataset(request.data, inputs),
        request.least,
        request.runs,
        attempt.progress,
    )
    origins = ready.origins()
    return search.run(whole, sorted(set(chain(*(origins[name] for name in excluded)))))


def _quantize_file(
    quantizer: Quantizer,
    recipe: Recipe,
    source: Source,
    samples: Sequence[Mapping[str, Array]],
    names: NeutralNames,
    progress: Progress,
) -> tuple[str, ...]:
    """Quantize a file in a quantizer's process; return sentences for the user. Raises InputError or NativeFailure."""
    entries, arrays = value_messages.pack(samples)
    message = {
        "quantizer": quantizer,
        "path": str(source.path),
        "target": str(source.target),
        "excluded": source.excluded,
        "large": source.large,
        "recipe": asdict(recipe),
        "samples": entries,
    }
    passes: list[Countdown] = []

    def told(read: int) -> None:
        if read:
            passes[-1].step()
        else:
            passes.append(Countdown(progress, "calibrate", len(samples)))

    bounds = limits.current(SECONDS * (2 + len(samples)))  # it loads and writes the model, and runs it on each sample
    server, library = "onnx_bridge.quantization.server", _LIBRARIES[quantizer]
    (answer, _), _ = worker.shared("quantizers").call(
        server, message, arrays, limits=bounds, library=library, told=told
    )
    if "error" in answer:
        raise InputError(**answer["error"] | {"what": names.original(answer["error"]["what"])})
    return tuple(answer["notes"])
