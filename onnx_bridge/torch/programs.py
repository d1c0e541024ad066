"""The programs of a module: a folder with a bundle for each bucket, and what tensors they take and give.

entry.json      inputs and outputs by name, and the buckets
samples.pt      inputs that the module was tried on, and what it returned
0/, 1/, …       a bundle for each bucket
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from onnx_bridge.conversion.bundle import Bundle
from onnx_bridge.errors import InputError
from onnx_bridge.exporting.tensors import to_array, to_tensor
from onnx_bridge.torch.gradients import without_gradients
from onnx_bridge.torch.packing import Folder
from onnx_bridge.torch.padding import Dims, cut, padded, shape_of, smallest, solve

FORMAT = 1
_ENTRY, _SAMPLES = "entry.json", "samples.pt"


@dataclass(frozen=True)
class Port:
    """An input or output.

    Attributes:
        name: of the ONNX model.
        dtype: torch's, as text: ``torch.float32``.
        dims: sizes and symbols.
    """

    name: str
    dtype: str
    dims: Dims


@dataclass(frozen=True)
class Entry:
    """What a folder of programs says of itself.

    Attributes:
        inputs: in order.
        outputs: in order.
        buckets: for each bundle the sizes of symbols; one without any where nothing is open.
        exporter: of torch.onnx.
        notes: what the user should know, in sentences.
    """

    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    buckets: tuple[dict[str, int], ...]
    exporter: str
    notes: tuple[str, ...]

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
            said = json.loads((folder / _ENTRY).read_text())
            if said.pop("format") != FORMAT:
                raise ValueError("it is of another format")
            for ports in ("inputs", "outputs"):
                said[ports] = tuple(Port(each["name"], each["dtype"], tuple(each["dims"])) for each in said[ports])
            return cls(**{**said, "buckets": tuple(said["buckets"]), "notes": tuple(said["notes"])})
        except (OSError, ValueError, KeyError, TypeError) as error:
            what = f"the programs cannot be read: {error}"
            raise InputError(what, where=str(folder), hint="lower the module again") from None


Samples = list[tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]]
"""Pairs of inputs and outputs by name."""


def write_samples(folder: Path, samples: Samples) -> None:
    """Keep what the module was tried on."""
    torch.save(samples, folder / _SAMPLES)


def read_samples(folder: Path) -> Samples:
    """What was kept; raises what `torch.load` does."""
    found: Samples = torch.load(folder / _SAMPLES, weights_only=True)
    return found


class Programs:
    """Runs named tensors through the bundle that fits them.

    Attributes:
        folder: where the bundles are.
        entry: what they take and give.
        bundles: one for each of the entry's buckets.
        limits: the runtime, and what each call may take.
    """

    def __init__(
        self, folder: Folder, *, runtime: str | None = None, timeout: float | None = None, memory: float | None = None
    ) -> None:
        """Read a folder; the programs are loaded with the first call.

        Raises:
            InputError: there are no programs in it, or they are damaged.
        """
        self.folder = folder
        self.limits: dict[str, Any] = {"runtime": runtime, "timeout": timeout, "memory": memory}
        self.entry = Entry.read(folder.path)
        self.bundles = [Bundle(folder.path / str(index), **self.limits) for index in range(len(self.entry.buckets))]
        self._dims = {port.name: port.dims for port in self.entry.inputs}
        sizes = {symbol: [each[symbol] for each in self.entry.buckets] for symbol in self.entry.buckets[0]}
        self._sizes = {symbol: sorted(set(each)) for symbol, each in sizes.items()}

    def open(self) -> None:
        """Load the programs; raises as `onnx_bridge.load`."""
        for each in self.bundles:
            each.open()

    def run(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Compute all outputs by name, on the device of the inputs.

        Raises:
            InputError: a tensor is missing, or of another dtype or shape, on a device without memory, or they are on
                different devices.
            RuntimeFailure: MIGraphX failed.
        """
        device = self._check(tensors)
        sizes = solve({name: tuple(tensors[name].shape) for name in self._dims}, self._dims)
        bucket = smallest(sizes, self._sizes)
        bundle = self.bundles[self.entry.buckets.index(bucket)]
        arrays = {}
        for name, dims in self._dims.items():
            shape = [size or 0 for size in shape_of(dims, bucket)]
            arrays[name] = to_array(padded(tensors[name].detach(), shape))
        found = bundle(arrays)
        outputs = {}
        for port in self.entry.outputs:
            value = found[port.name]
            assert value is not None
            assert not isinstance(value, list)
            tensor = to_tensor(value)
            outputs[port.name] = (cut(tensor, shape_of(port.dims, sizes)) if sizes else tensor).to(device)
        return without_gradients(outputs, tensors.values())

    def _check(self, tensors: Mapping[str, torch.Tensor]) -> torch.device:
        devices: dict[torch.device, str] = {}
        for port in self.entry.inputs:
            tensor, where = tensors[port.name], f"input {port.name!r}"
            if str(tensor.dtype) != port.dtype:
                what = f"its dtype is {tensor.dtype}, and it was lowered for {port.dtype}"
                raise InputError(what, where=where, hint=f"cast it: .to({port.dtype})")
            if tensor.device.type == "meta":
                raise InputError("it is on the device meta, and so has no values", where=where)
            devices.setdefault(tensor.device, port.name)
        if len(devices) > 1:
            (first, one), (second, other), *_ = devices.items()
            what = f"it is on {second}, and input {one!r} is on {first}"
            raise InputError(what, where=f"input {other!r}", hint="put all of them on one device")
        return next(iter(devices))
