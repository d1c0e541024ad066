"""Build the programs of a module: export it, check that padding is harmless, and convert it for each bucket."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import onnx_ir as ir
import torch
from torch import nn

from onnx_bridge.conversion import convert
from onnx_bridge.core.errors import InputError, nearest
from onnx_bridge.core.progress import Progress
from onnx_bridge.core.third_party import suppressed_output
from onnx_bridge.requests.export import ExportRequest
from onnx_bridge.requests.lowering import LowerRequest
from onnx_bridge.samples.inputs import Sample
from onnx_bridge.torch.export.exported import Exported
from onnx_bridge.torch.export.exporters import Dims
from onnx_bridge.torch.export.samples import check_dynamic, resized, symbol_sizes
from onnx_bridge.torch.export.try_exporters import try_exporters
from onnx_bridge.torch.lowering import padding
from onnx_bridge.torch.lowering.packed_folder import Folder
from onnx_bridge.torch.lowering.programs import Entry, Port, Samples, write_samples
from onnx_bridge.torch.modules.calls import Call, FlatModule, run_module
from onnx_bridge.torch.modules.modules import inference_copy
from onnx_bridge.torch.modules.structure import Structure
from onnx_bridge.torch.modules.tensors import to_tensor


@dataclass(frozen=True)
class LoweringCall:
    """A module, and a call that it is lowered for.

    Attributes:
        module: in evaluation mode.
        args: arguments by position.
        kwargs: arguments by name.
        call: both, flattened.
        tensors: the tensors among them, by name.
        dims: the open dimensions.
        request: how to lower it.
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
        """Check the arguments and the buckets.

        Raises:
            InputError: they do not fit.
        """
        call, tensors = Call.of(module, args, kwargs)
        dims = check_dynamic(tensors, request.dynamic)
        _check_buckets(dims, request.buckets, request.pad_before)
        return cls(module, args, kwargs, call, tensors, dims, request)

    def build(self, folder: Folder, progress: Progress) -> Structure:
        """Build the programs into a folder.

        Returns:
            How the value that the module returns is built from the outputs.
        """
        request = self.request
        how = ExportRequest(self.args, self.kwargs, request.dynamic, request.exporter, request.opset)
        exported = try_exporters(self.module, how, progress)
        if exported.changing:
            raise InputError(exported.changing[0], where=type(self.module).__name__)
        combined = padding.combinations(request.buckets)
        self._check_padding(exported, combined)
        notes = list(exported.notes)
        for index, sizes in enumerate(combined):
            path = folder.path / str(index)
            conversion = request.conversion(sizes)
            conversion = replace(conversion, prove_budget=conversion.prove_budget / len(combined))
            given: list[Sample] = [] if sizes else [{**exported.samples[0]}]  # those of buckets have other sizes
            bundle = convert.run(exported.model, path, conversion, _for_bucket(progress, sizes), given)
            notes += [note for note in bundle.manifest.notes if note not in notes]
        self._entry(exported, combined, notes).write(folder.path)
        write_samples(folder.path, _samples(exported))
        return exported.result

    def _entry(self, exported: Exported, combined: Sequence[dict[str, int]], notes: Sequence[str]) -> Entry:
        graph = exported.model.graph
        dtypes = {name: str(each.dtype) for name, each in self.tensors.items()}
        dtypes |= {name: str(to_tensor(array).dtype) for name, array in exported.expected[0].items()}
        inputs, outputs = (
            tuple(Port(str(value.name), dtypes[str(value.name)], _dims(value)) for value in values)
            for values in (graph.inputs, graph.outputs)
        )
        return Entry(inputs, outputs, tuple(combined), exported.exporter, tuple(notes), self.request.pad_before)

    def _check_padding(self, exported: Exported, combined: Sequence[Mapping[str, int]]) -> None:
        """Check that padding changes no output.

        Raises:
            InputError: it does; the error names the output.
        """
        if not self.request.buckets:
            return
        inputs = {str(value.name): _dims(value) for value in exported.model.graph.inputs}
        outputs = {str(value.name): _dims(value) for value in exported.model.graph.outputs}
        names = list(exported.expected[0])
        given = symbol_sizes(self.tensors, self.dims)
        with inference_copy(self.module) as copied, suppressed_output():
            flat = FlatModule(copied, self.call).eval()

            def run(tensors: padding.Tensors, _sizes: padding.Sizes) -> dict[str, torch.Tensor]:
                return dict(zip(names, run_module(flat, tensors).tensors.values(), strict=True))

            for large in combined:
                small = {symbol: min(given[symbol], max(1, size - 1)) for symbol, size in large.items()}
                if small == large:
                    continue
                tensors = resized(self.tensors, self.dims, small)
                before = self.request.pad_before
                changed = padding.changed_output(run, tensors, inputs, outputs, small, large, before)
                if changed is not None:
                    sizes = ", ".join(f"{symbol} from {small[symbol]} to {size}" for symbol, size in large.items())
                    what = f"the module returns something else when it is padded ({sizes}): {changed}"
                    hint = "give it a mask that excludes padding, or lower it once for each size"
                    raise InputError(what, where=type(self.module).__name__, hint=hint)


def _for_bucket(progress: Progress, sizes: Mapping[str, int]) -> Callable[[str], None]:
    """Progress that adds the bucket to each stage."""
    bucket = ", ".join(f"{symbol}={size}" for symbol, size in sizes.items())
    return lambda stage: progress(f"{stage} ({bucket})" if bucket else stage)


def _check_buckets(dims: Dims, buckets: Mapping[str, Sequence[int]], before: Sequence[str]) -> None:
    """Check that each open dimension has sizes, and vice versa."""
    for symbol in before:
        if symbol not in buckets:
            what = "it is to be padded at its start, but has no buckets"
            raise InputError(what, where=f"dimension {symbol!r}", hint=nearest(symbol, buckets))
    symbols = {symbol for each in dims.values() for symbol in each.values() if symbol.isidentifier()}
    for symbol in symbols ^ buckets.keys():
        if symbol in symbols:
            hint = f"give sizes: buckets={{{symbol!r}: […]}}"
            raise InputError("it is open, and MIGraphX needs its sizes", where=f"dimension {symbol!r}", hint=hint)
        known = f"the open dimensions are {', '.join(sorted(symbols))}" if symbols else "name dimensions with `dynamic`"
        raise InputError("it has buckets, but no input has it", where=f"dimension {symbol!r}", hint=known)
    for symbol, sizes in buckets.items():
        if not sizes or any(type(size) is not int or size < 1 for size in sizes):
            raise InputError(f"its sizes are {list(sizes)}", where=f"dimension {symbol!r}", hint="give positive sizes")


def _samples(exported: Exported) -> Samples:
    return [
        (
            {name: to_tensor(array).clone() for name, array in given.items()},
            {name: to_tensor(array).clone() for name, array in expected.items()},
        )
        for given, expected in zip(exported.samples, exported.expected, strict=True)
    ]


def _dims(value: ir.Value) -> padding.Dims:
    return tuple(dim if isinstance(dim, int) else dim.value for dim in value.shape or ())
