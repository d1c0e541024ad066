"""Converting a model for several sizes: a bundle for each, in one folder, with large weights written once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import onnx_ir as ir

from onnx_bridge.bundle.bundle import Bundle
from onnx_bridge.bundle.manifest.axes import EDGE, Axis, fitted, label, size_of
from onnx_bridge.bundle.manifest.entries import TensorInfo
from onnx_bridge.bundle.manifest.manifest import Manifest
from onnx_bridge.conversion.keys import content_key
from onnx_bridge.conversion.programs.instances import Instance, check_place
from onnx_bridge.conversion.programs.several import Converted, Resolved, Several
from onnx_bridge.conversion.selecting_inputs import selecting_inputs
from onnx_bridge.conversion.sizes.buckets import BucketSizes, selected
from onnx_bridge.conversion.sizes.freezing import freezing
from onnx_bridge.conversion.sizes.output_sizes import inferred_axes, output_axes
from onnx_bridge.conversion.sizes.padding_trial import Tried, try_padding
from onnx_bridge.conversion.sizes.refusals import is_by_sizes, refusal
from onnx_bridge.conversion.source import Source
from onnx_bridge.core.errors import InputError, nearest
from onnx_bridge.core.progress import Progress, Stage
from onnx_bridge.core.values import Kind
from onnx_bridge.requests.conversion import CleanRequest, ConvertRequest
from onnx_bridge.samples.dimensions import dims_of
from onnx_bridge.samples.inferred_roles import index_bounds
from passes.cleanup.inline_functions import inlined
from passes.graphs.scopes import required_inputs
from passes.rewriting.base import Context


def run_buckets(source: Source, out: Path, request: ConvertRequest, progress: Progress) -> Bundle:
    """Convert a model for the buckets of a request; errors are those of `onnx_bridge.convert`."""
    return BucketConversion.of(source, out, request, progress).run(progress)


@dataclass(frozen=True)
class BucketConversion(Several):
    """The conversion of a model for several buckets, and what is known of it beforehand.

    Attributes:
        request: the request, with the buckets of selecting inputs.
        key: the content key of the request as it was given.
        sizes: the sizes of all dimensions, in each bucket.
        axes: the dimensions of outputs that inference finds.
        tried: the result of trying to pad.
    """

    source: Source
    out: Path
    request: ConvertRequest
    key: str | None
    model: ir.Model
    sizes: BucketSizes
    axes: Mapping[str, Sequence[Axis]]
    tried: Tried

    @classmethod
    def of(cls, source: Source, out: Path, request: ConvertRequest, progress: Progress) -> BucketConversion:
        """Find the sizes of all buckets, and try whether padding is harmless; raises InputError, ParityError."""
        source.hash()
        model, key = source.model(), content_key(source.digest, request)
        request = replace(request, buckets={**selecting_inputs(model, request), **request.buckets})
        _check(model, request)
        progress(Stage.LOAD)
        model = inlined(model)
        sizes = BucketSizes.of(model, request, lambda shapes: _refused(model, shapes, request))
        check_place(source, out, list(map(label, sizes.buckets)))
        tried, axes = Tried(), inferred_axes(model, sizes, request)
        if request.prove != "never" and (request.application is None or isinstance(source.given, ir.Model)):
            progress("trying with the reference whether padding changes outputs")
            tried = try_padding(source, sizes, request, axes)
        return cls(source, out, request, key, model, sizes, axes, tried)

    @property
    def folders(self) -> list[str]:
        return list(map(label, self.sizes.buckets))

    def resolve(self, folder: Path, progress: Progress) -> Resolved:
        """Return a program for each bucket; the whole keeps its bucketed dimensions."""
        request = self.request
        instances = [
            Instance(bucket, self.sizes.request_of(self.model, bucket, request)) for bucket in self.sizes.buckets
        ]
        names = {dim for value in required_inputs(self.model) for dim in dims_of(value) or () if isinstance(dim, str)}
        fixed = {name: size for name, size in self.sizes.fixed.items() if name in names}
        whole = CleanRequest(request.pipeline, dims={**request.dims, **fixed}, freeze=request.freeze)
        return Resolved(self.source, instances, whole)

    def describe(self, manifest: Manifest, converted: Converted) -> Manifest:
        """Return the manifest, with inputs and outputs whose sizes are symbols."""
        inputs = [value for value in required_inputs(self.model) if value.name not in self.request.freeze]
        outputs = tuple(self._output(value, converted.manifests) for value in converted.cleaned.graph.outputs)
        notes = [*self.sizes.left_out, *self.tried.notes, *manifest.notes]
        if unknown := [info.name for info in outputs if None in (info.shape or ())]:
            notes.append(f"{', '.join(unknown)}: some sizes depend on the data, so that these outputs are not cropped")
        return replace(
            manifest,
            inputs=tuple(self._input(value, converted.manifests[0].inputs, inputs) for value in inputs),
            outputs=outputs,
            notes=list(dict.fromkeys(notes)),
            chosen={name: dict(sizes) for name, sizes in self.sizes.chosen.items()},
        )

    def _input(self, value: ir.Value, infos: Sequence[TensorInfo], inputs: Sequence[ir.Value]) -> TensorInfo:
        info = next((info for info in infos if info.name == value.name), None)
        if info is None:  # it selects a bucket by its value
            return replace(TensorInfo.of(value), shape=self.sizes.axes(value) or ())
        known = self.sizes.axes(value) or (None,) * len(info.shape or ())
        shape = (size if axis is None else axis for axis, size in zip(known, info.shape or (), strict=True))
        bounds = self._bounds(value, inputs) or (((0, None),) if info.name in self.tried.from_start else ())
        return replace(info, shape=tuple(shape), bounds=bounds)

    def _bounds(self, value: ir.Value, inputs: Sequence[ir.Value]) -> tuple[tuple[int, Axis], ...]:
        """Return the bounds of an input, by the sizes of what is real; () if they are not known."""
        last, axes_of = self.sizes.buckets[-1], self.sizes.axes
        points = [*self.sizes.buckets, *({**last, name: size + 1} for name, size in last.items())]
        pairs = (pair for each in inputs for pair in zip(dims_of(each) or (), axes_of(each) or (), strict=True))
        axes, known = dict(pairs), []
        for point in points:
            numbers = ((dim, size_of(axis, point)) for dim, axis in axes.items())
            sizes = {dim: size for dim, size in numbers if size is not None}
            known.append(index_bounds(value, sizes, padded=True))
        if len(set(map(len, known))) > 1:
            return ()
        bounds = []
        for ends in zip(*known, strict=True):
            lows = {low for low, _ in ends}
            bounds.append((lows.pop() if len(lows) == 1 else 0, fitted(points, [high for _, high in ends])))
        return tuple(bounds)

    def _output(self, value: ir.Value, manifests: Sequence[Manifest]) -> TensorInfo:
        infos = [next(info for info in manifest.outputs if info.name == value.name) for manifest in manifests]
        observed = zip(self.sizes.buckets, (info.sizes or () for info in infos), strict=True)
        seen = self.tried.shapes.get(str(value.name), ())
        single = {name for name in selected(self.model, self.request.buckets) if len(self.request.buckets[name]) == 1}
        points = [({name: dims[name] for name in dims.keys() - single}, shape) for dims, shape in (*observed, *seen)]
        declared = next(output for output in self.model.graph.outputs if output.name == value.name)
        claims = self.sizes.axes(value), self.sizes.axes(declared), self.axes.get(str(value.name))
        return replace(infos[0], shape=output_axes(claims, points))


def _refused(model: ir.Model, shapes: Mapping[str, tuple[int, ...]], request: ConvertRequest) -> str | None:
    """Return why ONNX Runtime does not run a model with some input shapes, if that is quick and due to sizes alone."""
    sized = model.clone()
    freezing(CleanRequest(shapes={**shapes}, freeze=request.freeze)).run(sized, Context())
    error = refusal(sized)
    return error.what if error is not None and is_by_sizes(error, sized) else None


def _check(model: ir.Model, request: ConvertRequest) -> None:
    """Require that buckets and padding rules fit the model; raises InputError."""
    inputs = [value for value in required_inputs(model) if value.name not in request.freeze]
    selecting = selected(model, request.buckets)
    boolean = {str(value.name) for value in inputs if value.dtype == ir.DataType.BOOL}
    for name in selecting & boolean:
        if not request.buckets[name] or not {*request.buckets[name]} <= {0, 1}:
            raise InputError("the values of a boolean input are false and true", where=f"bucket {name}")
    symbols = {axis for value in inputs for axis in dims_of(value) or () if isinstance(axis, str)}
    _check_sizes(symbols | selecting, request)
    names = [str(value.name) for value in inputs]
    for name, rule in request.pad.items():
        if name not in names:
            hint = nearest(name, names) or f"there are {', '.join(names)}"
            raise InputError(f"the model has no input {name}", where="pad", hint=hint)
        if rule != EDGE and not _is_number(rule):
            raise InputError(f"{rule!r} is neither a number nor {EDGE}", where=f"pad {name}")
    for value in inputs:
        if Kind.of(value.type) is not Kind.TENSOR or value.dtype == ir.DataType.STRING or value.shape is None:
            raise InputError("only tensors of numbers can be padded", where=f"input {value.name!r}")


def _check_sizes(symbols: set[str], request: ConvertRequest) -> None:
    for name, sizes in request.buckets.items():
        if name not in symbols:
            hint = nearest(name, symbols) or f"there are {', '.join(sorted(symbols)) or 'none'}"
            raise InputError(f"no input has a dimension {name}", where="bucket", hint=hint)
        if name in request.dims:
            raise InputError("the dimension has a fixed size as well", where=f"bucket {name}")
        if not sizes or min(sizes) < 0:
            raise InputError("sizes must be 0 or more", where=f"bucket {name}", hint=f"for example {name}=1,4,16")
    for name in request.pad_before:
        if name not in request.buckets:
            hint = nearest(name, request.buckets) or f"there are {', '.join(request.buckets)}"
            raise InputError(f"{name} has no sizes", where="pad before", hint=hint)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
