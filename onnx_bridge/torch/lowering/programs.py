"""The programs of a module: a folder with a bundle for each bucket, and a description of its inputs and outputs.

entry.json      inputs and outputs by name, and the buckets
samples.pt      inputs that the module was run on, and its outputs
0/, 1/, …       a bundle for each bucket
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from onnx_bridge.bundle.bundle import Bundle
from onnx_bridge.bundle.manifest.axes import label
from onnx_bridge.bundle.manifest.proof import BundleProof, together
from onnx_bridge.core.errors import InputError
from onnx_bridge.requests.lowering import LowerRequest
from onnx_bridge.torch.lowering.gradients import without_gradients
from onnx_bridge.torch.lowering.in_process import InProcess, require_in_process
from onnx_bridge.torch.lowering.packed_folder import Folder
from onnx_bridge.torch.lowering.padding import Dims, cut, padded, shape_of, smallest, solve, widths_of
from onnx_bridge.torch.modules.tensors import to_array, to_tensor
from passes.isolation.limits import Limits

FORMAT = 1
_ENTRY, _SAMPLES = "entry.json", "samples.pt"


@dataclass(frozen=True)
class Port:
    """An input or output.

    Attributes:
        name: in the ONNX model.
        dtype: of torch, as text: ``torch.float32``.
        dims: sizes and symbols.
    """

    name: str
    dtype: str
    dims: Dims


@dataclass(frozen=True)
class Entry:
    """The description of a folder of programs.

    Attributes:
        inputs: in order.
        outputs: in order.
        buckets: the sizes of symbols of each bundle; a single empty one if no dimension is open.
        exporter: of torch.onnx.
        notes: what the user should know, in sentences.
        pad_before: the symbols that are padded at their start.
    """

    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    buckets: tuple[dict[str, int], ...]
    exporter: str
    notes: tuple[str, ...]
    pad_before: tuple[str, ...] = ()

    def write(self, folder: Path) -> None:
        """Write it into a folder."""
        (folder / _ENTRY).write_text(json.dumps({"format": FORMAT, **asdict(self)}, indent=1) + "\n")

    @classmethod
    def read(cls, folder: Path) -> Entry:
        """The entry of a folder.

        Raises:
            InputError: there is none, or it is damaged.
        """
        try:
            values = json.loads((folder / _ENTRY).read_text())
            if values.pop("format") != FORMAT:
                raise ValueError("unknown format")
            for ports in ("inputs", "outputs"):
                values[ports] = tuple(Port(each["name"], each["dtype"], tuple(each["dims"])) for each in values[ports])
            listed = {name: tuple(values.get(name, ())) for name in ("buckets", "notes", "pad_before")}
            return cls(**{**values, **listed})
        except (OSError, ValueError, KeyError, TypeError) as error:
            what = f"the programs cannot be read: {error}"
            raise InputError(what, where=str(folder), hint="lower the module again") from None


Samples = list[tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]]
"""Pairs of inputs and outputs by name."""


def write_samples(folder: Path, samples: Samples) -> None:
    """Write the samples of a folder."""
    torch.save(samples, folder / _SAMPLES)


def read_samples(folder: Path) -> Samples:
    """Read the samples of a folder; raises like `torch.load`."""
    found: Samples = torch.load(folder / _SAMPLES, weights_only=True)
    return found


class Programs:
    """Runs named tensors through the bundle whose sizes fit.

    Attributes:
        folder: of the bundles.
        entry: their description.
        bundles: one for each bucket.
        request: the runtime, and the limits of each call.
    """

    def __init__(self, folder: Folder, request: LowerRequest) -> None:
        """Read a folder; the programs are loaded by `open`, or the first call.

        Raises:
            InputError: there are no programs in it, or they are damaged.
        """
        self.folder = folder
        self.request = request
        self.entry = Entry.read(folder.path)
        self.bundles = [
            Bundle(folder.path / str(index), runtime=request.runtime, timeout=request.timeout, memory=request.memory)
            for index in range(len(self.entry.buckets))
        ]
        self._residents: dict[int, InProcess] = {}
        self._dims = {port.name: port.dims for port in self.entry.inputs}
        sizes = {symbol: [each[symbol] for each in self.entry.buckets] for symbol in self.entry.buckets[0]}
        self._sizes = {symbol: sorted(set(each)) for symbol, each in sizes.items()}

    @property
    def proof(self) -> BundleProof:
        """How far the numbers of all of them are known."""
        labels = [label(sizes) or str(index) for index, sizes in enumerate(self.entry.buckets)]
        if len(labels) == 1:
            return self.bundles[0].proof
        return together({name: each.proof for name, each in zip(labels, self.bundles, strict=True)})

    def open(self) -> None:
        """Load the programs; raises like `onnx_bridge.load`."""
        for index, each in enumerate(self.bundles):
            if self.request.in_process:
                self._resident(index)
            else:
                each.open()

    def _resident(self, index: int) -> InProcess:
        """The program of a bundle, loaded into this process."""
        if index not in self._residents:
            bundle, runtime = self.bundles[index], self.request.runtime
            require_in_process(runtime, bundle.manifest.target)
            limits = Limits.of(self.request.timeout, self.request.memory)
            self._residents[index] = InProcess(bundle, runtime, limits)
        return self._residents[index]

    def run(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Compute all outputs by name, on the device of the inputs.

        Raises:
            InputError: a tensor is missing, has another dtype or shape or no memory, or devices differ.
            RuntimeFailure: MIGraphX failed.
        """
        device = self._check(tensors)
        sizes = solve({name: tuple(tensors[name].shape) for name in self._dims}, self._dims)
        bucket = smallest(sizes, self._sizes)
        index = self.entry.buckets.index(bucket)
        before = self.entry.pad_before
        padded_inputs = {
            name: padded(tensors[name].detach(), widths_of(dims, sizes, bucket, before))
            for name, dims in self._dims.items()
        }
        found = (
            self._run_in_process(index, padded_inputs)
            if self.request.in_process
            else self._run_in_worker(index, padded_inputs)
        )
        outputs = {}
        for port in self.entry.outputs:
            tensor = found[port.name]
            if sizes:
                tensor = cut(tensor, shape_of(port.dims, sizes), widths_of(port.dims, sizes, bucket, before))
            outputs[port.name] = tensor.to(device)
        return without_gradients(outputs, tensors.values())

    def _run_in_worker(self, index: int, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """In MIGraphX's worker process, through CPU memory."""
        found = self.bundles[index]({name: to_array(each) for name, each in tensors.items()})
        outputs = {}
        for port in self.entry.outputs:
            value = found[port.name]
            assert value is not None
            assert not isinstance(value, list)
            outputs[port.name] = to_tensor(value)
        return outputs

    def _run_in_process(self, index: int, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """In this process, on the GPU."""
        resident = self._resident(index)
        shapes = {each.name: tuple(size or 0 for size in each.sizes or ()) for each in self.bundles[index].outputs}
        wanted = {
            port.name: (getattr(torch, port.dtype.removeprefix("torch.")), shapes[port.name])
            for port in self.entry.outputs
        }
        return resident.run(tensors, wanted)

    def _check(self, tensors: Mapping[str, torch.Tensor]) -> torch.device:
        devices: dict[torch.device, str] = {}
        for port in self.entry.inputs:
            tensor, where = tensors[port.name], f"input {port.name!r}"
            if str(tensor.dtype) != port.dtype:
                what = f"its dtype is {tensor.dtype}, but it was lowered for {port.dtype}"
                raise InputError(what, where=where, hint=f"cast it: .to({port.dtype})")
            if tensor.device.type == "meta":
                raise InputError("it is on the device meta, so it has no values", where=where)
            devices.setdefault(tensor.device, port.name)
        if len(devices) > 1:
            (first, one), (second, other), *_ = devices.items()
            what = f"it is on {second}, and input {one!r} is on {first}"
            raise InputError(what, where=f"input {other!r}", hint="move all inputs to one device")
        return next(iter(devices))
