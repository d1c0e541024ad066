"""Build the programs of a module: export it, check that padding is harmless, and convert it for each bucket."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from onnx_bridge.bundle.manifest.text import manifest_path
from onnx_bridge.conversion.buckets import run_buckets
from onnx_bridge.conversion.source import Source
from onnx_bridge.conversion.steps.run import run as convert
from onnx_bridge.core.errors import InputError, nearest
from onnx_bridge.core.progress import Progress
from onnx_bridge.core.third_party import suppressed_output
from onnx_bridge.requests.lowering import LowerRequest
from onnx_bridge.samples.dimensions import dims_of
from onnx_bridge.torch.export.exported import Exported
from onnx_bridge.torch.export.exporters import Dims
from onnx_bridge.torch.export.samples import check_dynamic, resized, symbol_sizes
from onnx_bridge.torch.export.try_exporters import try_exporters
from onnx_bridge.torch.lowering import padding
from onnx_bridge.torch.lowering.packed_folder import Folder
from onnx_bridge.torch.lowering.programs import Samples, write_samples
from onnx_bridge.torch.modules.calls import Call, FlatModule, run_module
from onnx_bridge.torch.modules.modules import inference_copy
from onnx_bridge.torch.modules.structure import Structure
from onnx_bridge.torch.modules.tensors import to_tensor
from passes.isolation.limits import limited


@dataclass(frozen=True)
class LoweringCall:
    """A module in evaluation mode, and a call that it is lowered for, with its open dimensions (``dims``).

    ``call`` has both kinds of arguments, flattened, and ``tensors`` the tensors among them, by name.
    """

    module: nn.Module
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    call: Call
    tensors: Mapping[str, torch.Tensor]
    dims: Dims
    request: LowerRequest

    @classmethod
    def of(
        cls, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], request: LowerRequest
    ) -> LoweringCall:
        """Check the arguments and the buckets; raises InputError if they do not fit."""
        call, tensors = Call.of(module, args, kwargs)
        dims = check_dynamic(tensors, request.export.dynamic)
        _check_buckets(dims, request.convert.buckets, request.convert.pad_before)
        return cls(module, args, kwargs, call, tensors, dims, request)

    def build(self, folder: Folder, progress: Progress) -> Structure:
        """Build the programs into a folder, and return how the module's result is built from the outputs."""
        request = self.request
        how = replace(request.export, args=self.args, kwargs=self.kwargs)
        exported = try_exporters(self.module, how, progress)
        if exported.changing:
            raise InputError(exported.changing[0], where=type(self.module).__name__)
        self._check_padding(exported)
        source, conversion = Source(exported.model), request.convert
        with limited(conversion.limits):
            if conversion.buckets:
                bundle = run_buckets(source, folder.path, conversion, progress)
            else:
                bundle = convert(source, folder.path, conversion, progress, [{**exported.samples[0]}])
        notes = list(dict.fromkeys((*exported.notes, *bundle.manifest.notes)))
        replace(bundle.manifest, notes=notes).write(manifest_path(folder.path))
        write_samples(folder.path, _samples(exported))
        return exported.result

    def _check_padding(self, exported: Exported) -> None:
        """Check that padding changes no output; raises an InputError that names an output otherwise."""
        if not self.request.convert.buckets:
            return
        graph = exported.model.graph
        dims = {str(value.name): dims_of(value) or () for value in (*graph.inputs, *graph.outputs)}
        names, given = list(exported.expected[0]), symbol_sizes(self.tensors, self.dims)
        with inference_copy(self.module) as copied, suppressed_output():
            flat = FlatModule(copied, self.call).eval()

            def run(tensors: padding.Tensors, _sizes: padding.Sizes) -> dict[str, torch.Tensor]:
                return dict(zip(names, run_module(flat, tensors).tensors.values(), strict=True))

            for sizes in itertools.product(*map(sorted, self.request.convert.buckets.values())):
                large = dict(zip(self.request.convert.buckets, sizes, strict=True))
                small = {symbol: min(given[symbol], max(1, size - 1)) for symbol, size in large.items()}
                if small == large:
                    continue
                tensors = resized(self.tensors, self.dims, small)
                changed = padding.changed_output(run, tensors, dims, small, large, self.request.convert.pad_before)
                if changed is not None:
                    listed = ", ".join(f"{symbol} from {small[symbol]} to {size}" for symbol, size in large.items())
                    what = f"the module returns something else when it is padded ({listed}): {changed}"
                    hint = "give it a mask that excludes padding, or lower it once for each size"
                    raise InputError(what, where=type(self.module).__name__, hint=hint)


def _check_buckets(dims: Dims, buckets: Mapping[str, Sequence[int]], before: Sequence[str]) -> None:
    """Check that each open dimension has sizes, and vice versa."""
    for symbol in before:
        if symbol not in buckets:
            what = "the dimension is to be padded at its start, but has no buckets"
            raise InputError(what, where=f"dimension {symbol!r}", hint=nearest(symbol, buckets))
    symbols = {symbol for dim in dims.values() for symbol in dim.values() if symbol.isidentifier()}
    for symbol in symbols ^ buckets.keys():
        if symbol in symbols:
            hint = f"give sizes: buckets={{{symbol!r}: […]}}"
            raise InputError(
                "the dimension is open, and MIGraphX needs its sizes", where=f"dimension {symbol!r}", hint=hint
            )
        known = f"the open dimensions are {', '.join(sorted(symbols))}" if symbols else "name dimensions with `dynamic`"
        raise InputError("the dimension has buckets, but no input has it", where=f"dimension {symbol!r}", hint=known)
    for symbol, sizes in buckets.items():
        if not sizes or any(type(size) is not int or size < 1 for size in sizes):
            raise InputError(f"the sizes are {list(sizes)}", where=f"dimension {symbol!r}", hint="give positive sizes")


def _samples(exported: Exported) -> Samples:
    return [
        (
            {name: to_tensor(array).clone() for name, array in given.items()},
            {name: to_tensor(array).clone() for name, array in expected.items()},
        )
        for given, expected in zip(exported.samples, exported.expected, strict=True)
    ]
