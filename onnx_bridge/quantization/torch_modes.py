"""Quark's two modes behind one face: insert quantizers into a module and calibrate them, then freeze them.

Quark calls a model with one argument for each batch. So what it gets is the module as a function of a list of tensors,
which gives a tuple of tensors.
"""

from __future__ import annotations

import contextlib
import copy
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from onnx_bridge.core.errors import InputError
from onnx_bridge.core.values import Array
from onnx_bridge.quantization import quark, torch_specs
from onnx_bridge.quantization.data_reader import Tell
from onnx_bridge.quantization.schemes import Scheme
from onnx_bridge.quantization.silence import silence
from onnx_bridge.quantization.torch_specs import Mode
from onnx_bridge.torch.export.calls import Call, Flat
from onnx_bridge.torch.export.exporters import reason as reason_of
from onnx_bridge.torch.export.structure import Structure, leaf_names, rebuild
from onnx_bridge.torch.export.tensors import to_tensor

_REPLACED = {"sigmoid": ("hardsigmoid", "Sigmoid by HardSigmoid"), "silu": ("hardswish", "SiLU by HardSwish")}
"""What the graph mode replaces without a word: an operator of torch's, by what, and in words."""
_LAYERS = "flat.module."
"""What the names of a module's layers begin with, in what Quark gets."""


def uncompiled() -> contextlib.AbstractContextManager[None]:
    """Quark compiles what rounds a tensor, which takes longer than to round all of a model's."""
    if torch.compiler.is_compiling():
        return contextlib.nullcontext()
    stance: contextlib.AbstractContextManager[None] = torch.compiler.set_stance("force_eager")
    return stance


class Listed(nn.Module):
    """A module as a function of one list of tensors."""

    def __init__(self, flat: Flat) -> None:
        super().__init__()
        self.flat = flat

    def forward(self, tensors: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """The leaves of what the module returns."""
        found: tuple[torch.Tensor, ...] = self.flat(*tensors)
        return found


class Frozen(Flat):
    """A quantized module as exporters see it: a function of tensors."""

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The leaves of what the module returns."""
        found: tuple[torch.Tensor, ...] = self.module(list(tensors))
        return found


class AsOriginal(nn.Module):
    """A quantized module that is called like the original one."""

    def __init__(self, listed: nn.Module, original: nn.Module, result: Structure) -> None:
        super().__init__()
        self.quantized = listed
        self._original, self._result = [original], result  # in a list, so that its parameters are not this one's

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the original returns, as the quantized one computes it."""
        _, tensors = Call.of(self._original[0], args, kwargs)
        with uncompiled():
            leaves = self.quantized(list(tensors.values()))
        return rebuild(self._result, dict(zip(leaf_names(self._result), leaves, strict=True)))


class Quantizer:
    """Quark's quantizer for one scheme and mode.

    Attributes:
        notes: what it did besides, in sentences.
    """

    def __init__(self, scheme: Scheme, mode: Mode, *, per_channel: bool, exclude: Sequence[str]) -> None:
        if mode == "fx":
            quark.require_torchao()
        layers = [f"{_LAYERS}{each}" for each in exclude]
        self._quantizer = quark.load("quark.torch").ModelQuantizer(
            torch_specs.config(scheme, mode, per_channel=per_channel, exclude=layers)
        )
        self._scheme, self._mode = scheme, mode
        self.notes: list[str] = []

    def insert(
        self,
        flat: Flat,
        tensors: Mapping[str, torch.Tensor],
        samples: Sequence[Mapping[str, Array]],
        tell: Tell,
    ) -> nn.Module:
        """A copy of a module with quantizers, whose ranges are measured.

        Args:
            flat: in evaluation mode; left as it is.
            tensors: its arguments by name.
            samples: the calibration data.
            tell: is told every sample.

        Raises:
            InputError: Quark cannot, in its own words.
        """
        try:
            listed: nn.Module = copy.deepcopy(Listed(flat))
        except Exception as error:  # whatever an attribute that cannot be copied raises
            raise InputError(f"the module cannot be copied: {reason_of(error)}", where="the module") from error
        if self._mode == "fx":
            listed = _graph(listed, tensors)
        before = _operators(listed)
        with self._reasons(), uncompiled(), silence():
            found: nn.Module = self._quantizer.quantize_model(listed, Feeding(samples, tell))
        after = _operators(found)
        for old, (new, said) in _REPLACED.items():
            if count := min(before[old], after[new] - before[new]):
                self.notes.append(f"Quark's graph mode replaced {count} {said}, which computes something else")
        return found

    def freeze(self, quantized: nn.Module) -> nn.Module:
        """The module with fixed scales, whose weights are still in float, in front of their quantizers.

        Raises:
            InputError: Quark cannot, in its own words.
        """
        options = {} if self._mode == "fx" or torch_specs.note(self._scheme) else {"quantize": False}
        with self._reasons(), uncompiled(), silence():
            frozen: nn.Module = self._quantizer.freeze(quantized.eval(), **options)
            fake = quark.load("quark.torch.quantization.tensor_quantize").ScaledFakeQuantize
            for each in frozen.modules():
                if isinstance(each, fake):
                    each.disable_observer()
                    each.enable_fake_quant()
        return frozen

    def _reasons(self) -> _Reasons:
        return _Reasons(f"Quark's {'graph' if self._mode == 'fx' else 'eager'} mode", self._scheme.name)


class _Reasons:
    """Turns all that Quark raises into an InputError."""

    def __init__(self, who: str, scheme: str) -> None:
        self._who, self._scheme = who, scheme

    def __enter__(self) -> None:
        return None

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, Exception) and not isinstance(error, InputError):
            what = f"{self._who} cannot do it: {reason_of(error)}"
            raise InputError(what, where=f"scheme {self._scheme}") from error


class Feeding(Sequence[list[torch.Tensor]]):
    """Samples as Quark reads them: it looks at the first one before it reads all."""

    def __init__(self, samples: Sequence[Mapping[str, Array]], tell: Tell) -> None:
        self._samples, self._tell = samples, tell

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, index: Any) -> Any:
        return [to_tensor(array) for array in self._samples[index].values()]

    def __iter__(self) -> Iterator[list[torch.Tensor]]:
        for index in range(len(self)):
            self._tell(f"calibrate: sample {index + 1} of {len(self)}")
            yield self[index]


def _graph(listed: nn.Module, tensors: Mapping[str, torch.Tensor]) -> nn.Module:
    """The module as a graph of torch.export."""
    try:
        with silence():
            return torch.export.export(listed, ([each.clone() for each in tensors.values()],)).module()
    except Exception as error:  # torch.export raises everything
        what = f"torch.export cannot make a graph of it: {reason_of(error)}"
        raise InputError(what, where="the module", hint="mode='eager' needs no graph") from error


def _operators(module: nn.Module) -> Counter[str]:
    """How often each of torch's operators is in a graph; nothing for what is none."""
    if not isinstance(module, torch.fx.GraphModule):
        return Counter()
    targets = [str(node.target) for node in module.graph.nodes if node.op == "call_function"]
    return Counter(each.split(".")[1].rstrip("_") if each.startswith("aten.") else each for each in targets)
