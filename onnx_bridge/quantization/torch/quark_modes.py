"""Quark's two modes behind one interface: insert quantizers into a module and calibrate them, then freeze them.

Quark calls a module with one argument for each batch, so it gets the module as a function of a list of tensors that
returns a tuple of tensors.
"""

from __future__ import annotations

import contextlib
import copy
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from onnx_bridge.core.countdown import Countdown
from onnx_bridge.core.errors import InputError
from onnx_bridge.core.progress import Progress
from onnx_bridge.core.third_party import suppressed_output
from onnx_bridge.core.values import Array
from onnx_bridge.quantization import quark
from onnx_bridge.quantization.torch import quark_configs
from onnx_bridge.requests.quantization import Mode
from onnx_bridge.requests.schemes import Scheme
from onnx_bridge.torch.export.exporters import reason as reason_of
from onnx_bridge.torch.modules.calls import Call, FlatModule
from onnx_bridge.torch.modules.structure import Structure, leaf_names, rebuild
from onnx_bridge.torch.modules.tensors import to_tensor

_REPLACED = {"sigmoid": ("hardsigmoid", "Sigmoid by HardSigmoid"), "silu": ("hardswish", "SiLU by HardSwish")}
"""The silent replacements of the graph mode: an operator of torch, its replacement, and both in words."""
_LAYERS = "flat.module."
"""The prefix of the names of layers in the module that Quark gets."""


def uncompiled() -> contextlib.AbstractContextManager[None]:
    """Disable torch.compile: Quark compiles its rounding, which takes longer than rounding all tensors of a model."""
    if torch.compiler.is_compiling():
        return contextlib.nullcontext()
    stance: contextlib.AbstractContextManager[None] = torch.compiler.set_stance("force_eager")
    return stance


class ListModule(nn.Module):
    """A module as a function of one list of tensors."""

    def __init__(self, flat: FlatModule) -> None:
        super().__init__()
        self.flat = flat

    def forward(self, tensors: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        returned: tuple[torch.Tensor, ...] = self.flat(*tensors)
        return returned


class FrozenModule(FlatModule):
    """A quantized module as exporters see it."""

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        returned: tuple[torch.Tensor, ...] = self.module(list(tensors))
        return returned


class WithOriginalSignature(nn.Module):
    """A quantized module with the signature of the original one."""

    def __init__(self, listed: nn.Module, original: nn.Module, result: Structure) -> None:
        super().__init__()
        self.quantized = listed
        self._original, self._result = [original], result  # in a list, so that it is not a submodule

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        _, tensors = Call.of(self._original[0], args, kwargs)
        with uncompiled():
            leaves = self.quantized(list(tensors.values()))
        return rebuild(self._result, dict(zip(leaf_names(self._result), leaves, strict=True)))


class Quantizer:
    """Quark's quantizer for one scheme and mode; its ``notes`` say what it replaced."""

    def __init__(self, scheme: Scheme, mode: Mode, *, per_channel: bool, exclude: Sequence[str]) -> None:
        if mode == "fx":
            quark.require_torchao()
        layers = [f"{_LAYERS}{name}" for name in exclude]
        self._quantizer = quark.load("quark.torch").ModelQuantizer(
            quark_configs.config(scheme, mode, per_channel=per_channel, exclude=layers)
        )
        self._scheme, self._mode = scheme, mode
        self.notes: list[str] = []

    def insert(
        self,
        flat: FlatModule,
        tensors: Mapping[str, torch.Tensor],
        samples: Sequence[Mapping[str, Array]],
        progress: Progress,
    ) -> nn.Module:
        """Return a copy of a module in evaluation mode with calibrated quantizers; raises InputError if Quark fails."""
        try:
            listed: nn.Module = copy.deepcopy(ListModule(flat))
        except Exception as error:  # raised by any attribute that cannot be copied
            raise InputError(f"the module cannot be copied: {reason_of(error)}", where="the module") from error
        if self._mode == "fx":
            listed = _graph(listed, tensors)
        before = _operators(listed)
        with self._errors(), uncompiled(), suppressed_output():
            quantized: nn.Module = self._quantizer.quantize_model(listed, CalibrationBatches(samples, progress))
        after = _operators(quantized)
        for old, (new, said) in _REPLACED.items():
            if count := min(before[old], after[new] - before[new]):
                self.notes.append(f"Quark's graph mode replaced {count} {said}, which computes something else")
        return quantized

    def freeze(self, quantized: nn.Module) -> nn.Module:
        """Return the module with fixed scales, its weights floats with quantizers; raises InputError if Quark fails."""
        options = {} if self._mode == "fx" or quark_configs.storage_notes(self._scheme) else {"quantize": False}
        with self._errors(), uncompiled(), suppressed_output():
            frozen: nn.Module = self._quantizer.freeze(quantized.eval(), **options)
            fake = quark.load("quark.torch.quantization.tensor_quantize").ScaledFakeQuantize
            for module in frozen.modules():
                if isinstance(module, fake):
                    module.disable_observer()
                    module.enable_fake_quant()
        return frozen

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        """Turn exceptions of Quark into InputErrors."""
        try:
            yield
        except InputError:
            raise
        except Exception as error:  # of any type
            what = f"Quark's {'graph' if self._mode == 'fx' else 'eager'} mode cannot do it: {reason_of(error)}"
            raise InputError(what, where=f"scheme {self._scheme.name}") from error


class CalibrationBatches(Sequence[list[torch.Tensor]]):
    """The samples as Quark reads them: it indexes the first one before it iterates."""

    def __init__(self, samples: Sequence[Mapping[str, Array]], progress: Progress) -> None:
        self._samples, self._progress = samples, progress

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, index: Any) -> Any:
        return [to_tensor(array) for array in self._samples[index].values()]

    def __iter__(self) -> Iterator[list[torch.Tensor]]:
        countdown = Countdown(self._progress, "calibrate", len(self))
        for index in range(len(self)):
            yield self[index]
            countdown.step()


def _graph(listed: nn.Module, tensors: Mapping[str, torch.Tensor]) -> nn.Module:
    try:
        with suppressed_output():
            return torch.export.export(listed, ([tensor.clone() for tensor in tensors.values()],)).module()
    except Exception as error:  # of any type
        what = f"torch.export fails: {reason_of(error)}"
        raise InputError(what, where="the module", hint="mode='eager' needs no graph") from error


def _operators(module: nn.Module) -> Counter[str]:
    """Return the number of nodes of each operator of a graph; empty for other modules."""
    if not isinstance(module, torch.fx.GraphModule):
        return Counter()
    targets = [str(node.target) for node in module.graph.nodes if node.op == "call_function"]
    return Counter(target.split(".")[1].rstrip("_") if target.startswith("aten.") else target for target in targets)
