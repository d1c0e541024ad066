"""The programs of a module: a bundle, and the samples that the module was run on (``samples.pt``)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path

import numpy as np
import torch

from onnx_bridge.bundle.bundle import Bundle
from onnx_bridge.bundle.program import Program
from onnx_bridge.core.errors import InputError
from onnx_bridge.requests.lowering import LowerRequest
from onnx_bridge.torch.lowering.gradients import without_gradients
from onnx_bridge.torch.lowering.in_process import InProcess, require_in_process
from onnx_bridge.torch.lowering.packed_folder import Folder
from onnx_bridge.torch.lowering.padding import cut, padded
from onnx_bridge.torch.modules.tensors import require_dtype, to_array, to_tensor

_SAMPLES = "samples.pt"

Samples = list[tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]]
"""Pairs of inputs and outputs by name."""


def write_samples(folder: Path, samples: Samples) -> None:
    """Write the samples of a folder."""
    torch.save(samples, folder / _SAMPLES)


def read_samples(folder: Path) -> Samples:
    """Read the samples of a folder; raises like `torch.load`."""
    samples: Samples = torch.load(folder / _SAMPLES, weights_only=True)
    return samples


class Programs:
    """Runs named tensors through the bundle in a folder; its programs are loaded by `open`, or the first call.

    Raises:
        InputError: there is no bundle in the folder, or it is damaged.
    """

    def __init__(self, folder: Folder, request: LowerRequest) -> None:
        self.folder = folder
        self.request = request
        self.bundle = Bundle.of(folder.path, request.convert)
        self._residents: dict[Program, InProcess] = {}

    @cached_property
    def dtypes(self) -> dict[str, torch.dtype]:
        """The dtype of each input and output."""
        infos = (*self.bundle.inputs, *self.bundle.outputs)
        return {info.name: to_tensor(np.empty(0, info.numpy)).dtype for info in infos}

    def open(self) -> None:
        """Load the programs; raises like `onnx_bridge.load`."""
        if not self.request.in_process:
            self.bundle.open()
            return
        for program in self.bundle.programs:
            self._resident(program)

    def _resident(self, program: Program) -> InProcess:
        """Return a program that is loaded into this process."""
        if program not in self._residents:
            require_in_process(self.request.convert.runtime, self.bundle.manifest.target)
            self._residents[program] = InProcess(program)
        return self._residents[program]

    def run(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Compute all outputs by name, on the device of the inputs.

        Raises:
            InputError: a tensor is missing, has another dtype or shape or no memory, or devices differ.
            RuntimeFailure: MIGraphX failed.
        """
        device = self._check(tensors)
        computed = self._run_in_process(tensors) if self.request.in_process else self._run_in_worker(tensors)
        outputs = {info.name: computed[info.name].to(device) for info in self.bundle.outputs}
        return without_gradients(outputs, tensors.values())

    def _run_in_worker(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Run in MIGraphX's worker process, through CPU memory."""
        values = self.bundle({info.name: to_array(tensors[info.name]) for info in self.bundle.inputs})
        return {name: to_tensor(array) for name, array in values.items() if isinstance(array, np.ndarray)}

    def _run_in_process(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Run in this process, on the GPU."""
        manifest = self.bundle.manifest
        small = self.bundle.sizes({info.name: tuple(tensors[info.name].shape) for info in manifest.inputs})
        program = self.bundle.choose(small)
        sizes = small, program.info.dims, manifest.request.pad_before
        given = {info.name: padded(tensors[info.name].detach(), info.shape or (), *sizes) for info in manifest.inputs}
        outputs = self._resident(program).run(given, self.dtypes)
        return {info.name: cut(outputs[info.name], info.shape or (), *sizes) for info in manifest.outputs}

    def _check(self, tensors: Mapping[str, torch.Tensor]) -> torch.device:
        """Return the device of the tensors; raises InputError."""
        devices: dict[torch.device, str] = {}
        for info in self.bundle.inputs:
            tensor = tensors[info.name]
            require_dtype(info.name, tensor, self.dtypes[info.name])
            if tensor.device.type == "meta":
                what = "the tensor is on the device meta, so it has no values"
                raise InputError(what, where=f"input {info.name!r}")
            devices.setdefault(tensor.device, info.name)
        if len(devices) > 1:
            (first, one), (second, other), *_ = devices.items()
            what = f"the tensor is on {second}, and input {one!r} is on {first}"
            raise InputError(what, where=f"input {other!r}", hint="move all inputs to one device")
        return next(iter(devices))
