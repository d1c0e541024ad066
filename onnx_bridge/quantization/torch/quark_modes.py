"""Quark's two modes behind one interface: insert quantizers into a module and calibrate them, then freeze them.

Quark calls a module with one argument for each batch, so it gets the module as a function of a list of tensors that
returns a tuple of tensors.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from onnx_bridge.core.countdown import Countdown
from onnx_bridge.core.errors import InputError
from onnx_bridge.core.progress import Progress
from onnx_bridge.core.third_party import suppressed_output
from onnx_bridge.core.values import Array
from onnx_bridge.quantization import quark
from onnx_bridge.quantization.torch import quark_configs, quark_graph
from onnx_bridge.quantization.torch.quark_graph import LAYERS
from onnx_bridge.quantization.torch.quark_layers import hold_weights, pad_by_numbers
from onnx_bridge.requests.quantization import Learnt, Mode
from onnx_bridge.requests.schemes import Recipe, scheme_of
from onnx_bridge.torch.export.exporters import reason as reason_of
from onnx_bridge.torch.modules.calls import Call, FlatModule
from onnx_bridge.torch.modules.structure import Structure, leaf_names, rebuild
from onnx_bridge.torch.modules.tensors import to_tensor

_ROUNDING = "fake_quantize_with_qparams"
"""The method of Quark's quantizers that rounds."""
_LEAST = float(torch.finfo(torch.float32).eps)
"""The smallest scale that is learnt, as Quark's quantizers have it."""


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


class NamedModule(ListModule):
    """A decoder as Quark's algorithms take it: a function of named tensors, with the attributes that they read."""

    def __init__(self, flat: FlatModule, config: Any) -> None:
        super().__init__(flat)
        self.config, self.device = config, torch.device("cpu")

    def forward(  # type: ignore[override]
        self, tensors: Sequence[torch.Tensor] = (), /, **named: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        return super().forward([*tensors, *named.values()])


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
    """Quark's quantizer for one module, recipe and mode.

    Raises:
        InputError: Quark has no algorithm of the recipe for the module.
    """

    def __init__(self, flat: FlatModule, recipe: Recipe, mode: Mode, *, exclude: Sequence[str]) -> None:
        if mode == "fx":
            quark.require_torchao()
        self._layers = [f"{LAYERS}{name}" for name in exclude]
        self._module, algorithms = ListModule(flat), []
        for name, options in recipe.algorithms:
            path, algorithm = quark_configs.algorithm_config(name, flat.module)
            algorithm.model_decoder_layers = f"{LAYERS}{path}.{algorithm.model_decoder_layers}".replace("..", ".")
            self._module = NamedModule(flat, flat.module.get_submodule(path).config)
            algorithms.append(dataclasses.replace(algorithm, **options))
        excluded = self._layers if mode == "eager" else []
        config = quark_configs.config(recipe, mode, exclude=excluded, algorithms=algorithms)
        self._quantizer = quark.load("quark.torch").ModelQuantizer(config)
        self._scheme, self._mode = scheme_of(recipe.scheme), mode

    def insert(
        self, tensors: Mapping[str, torch.Tensor], samples: Sequence[Mapping[str, Array]], progress: Progress
    ) -> nn.Module:
        """Return a copy of the module in evaluation mode with calibrated quantizers; raises InputError if Quark fails.

        ``tensors`` are the arguments that a graph is made for.
        """
        try:
            listed: nn.Module = copy.deepcopy(self._module)
        except Exception as error:  # raised by any attribute that cannot be copied
            raise InputError(f"the module cannot be copied: {reason_of(error)}", where="the module") from error
        hold_weights(listed)
        uneven = [name for name in pad_by_numbers(listed) if name not in self._layers]
        if self._mode == "fx":
            listed = quark_graph.exported(listed, tensors)
        elif uneven:
            what = "padding='same' of an even kernel differs at both ends, which Quark's eager mode does not have"
            where = f"layer {uneven[0].removeprefix(LAYERS)}"
            raise InputError(what, where=where, hint="exclude it, or use mode='fx'")
        with self._errors(), quark_graph.same_results(), uncompiled(), suppressed_output():
            batches = CalibrationBatches(samples, progress, named=isinstance(listed, NamedModule))
            quantized: nn.Module = self._quantizer.quantize_model(listed, batches)
        if isinstance(quantized, torch.fx.GraphModule):
            parts = _fake_quantizers(quantized)
            quantizers = {name for name, part in quantized.named_modules() if part in parts}
            quark_graph.refuse_integers(quantized, quantizers)
            quark_graph.leave_in_float(quantized, quantizers, self._layers)
        return quantized

    @contextlib.contextmanager
    def paused(self, quantized: nn.Module) -> Iterator[None]:
        """Measure no ranges meanwhile."""
        quantizers = _fake_quantizers(quantized)
        for quantizer in quantizers:
            quantizer.disable_observer()
        yield
        for quantizer in quantizers:
            quantizer.enable_observer()

    @contextlib.contextmanager
    def learnt_scales(self, quantized: nn.Module, by: Learnt | None) -> Iterator[None]:
        """Make scales parameters meanwhile, which begin as they were measured; None goes on measuring them."""
        learners = {part: _LEARNERS[by](part) for part in _fake_quantizers(quantized)} if by is not None else {}
        for quantizer, learner in learners.items():
            quantizer.learner = learner
            setattr(quantizer, _ROUNDING, functools.partial(learner.rounded, quantizer))
            quantizer.observe = _ignore  # the graph mode's `train` turns observers on again
        yield
        for quantizer, learner in learners.items():
            quantizer.scale = learner.learnt().detach().abs().clamp(min=_LEAST).reshape(quantizer.scale.shape)
            del quantizer.learner, quantizer.observe
            delattr(quantizer, _ROUNDING)

    def freeze(self, quantized: nn.Module) -> nn.Module:
        """Return the module with fixed scales, its weights floats with quantizers; raises InputError if Quark fails."""
        options = {"quantize": False} if self._mode == "eager" and self._scheme.calibrated else {}
        with self._errors(), quark_graph.same_results(), uncompiled(), suppressed_output():
            frozen: nn.Module = self._quantizer.freeze(quantized.eval(), **options)
            for module in _fake_quantizers(frozen):
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
            kind, mode = (quark.GraphModeError, "graph") if self._mode == "fx" else (InputError, "eager")
            what = f"Quark's {mode} mode cannot do it: {reason_of(error)}"
            raise kind(what, where=f"scheme {self._scheme.name}") from error


class CalibrationBatches(Sequence[Any]):
    """The samples as Quark reads them, as lists or by name: it indexes the first one before it iterates."""

    def __init__(self, samples: Sequence[Mapping[str, Array]], progress: Progress, *, named: bool = False) -> None:
        self._samples, self._progress, self._named = samples, progress, named

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, index: Any) -> Any:
        tensors = {name: to_tensor(array) for name, array in self._samples[index].items()}
        return tensors if self._named else [*tensors.values()]

    def __iter__(self) -> Iterator[Any]:
        countdown = Countdown(self._progress, "calibrate", len(self))
        for index in range(len(self)):
            yield self[index]
            countdown.step()


def _fake_quantizers(module: nn.Module) -> list[Any]:
    kind = quark.load("quark.torch.quantization.tensor_quantize").ScaledFakeQuantize
    return [part for part in module.modules() if isinstance(part, kind)]


def _ignore(x: torch.Tensor) -> None:
    """Measure nothing."""


class _StepSizes(nn.Module):
    """The scales of a quantizer, with the gradients of LSQ; Quark's own run only on a GPU.

    The parameters are factors of what was measured: the steps of an optimizer such as Adam suit them as they suit
    weights, and would be larger than most scales.
    """

    def __init__(self, quantizer: Any) -> None:
        super().__init__()
        self.measured: torch.Tensor = quantizer.scale.detach().clone().reshape(-1)
        self.learnable = nn.Parameter(torch.ones_like(self.measured))
        self.zero_point = torch.zeros_like(self.measured)

    def rounded(self, quantizer: Any, x: torch.Tensor, **_: torch.Tensor) -> torch.Tensor:
        bounds = quantizer.quant_min, quantizer.quant_max, self.gradient_factor(quantizer, x)
        if quantizer.ch_axis is None:
            return torch._fake_quantize_learnable_per_tensor_affine(x, self.learnt(), self.zero_point, *bounds)
        axis = quantizer.ch_axis % x.dim()
        return torch._fake_quantize_learnable_per_channel_affine(x, self.learnt(), self.zero_point, axis, *bounds)

    def gradient_factor(self, quantizer: Any, x: torch.Tensor) -> float:
        """Return what the gradient of a scale is multiplied by."""
        return 1 / math.sqrt(x.numel() * quantizer.quant_max)

    def learnt(self) -> torch.Tensor:
        return self.measured * self.learnable


class _Thresholds(_StepSizes):
    """The logarithms of a quantizer's scales, rounded up as in TQT; gradients pass the rounding unchanged.

    Quark's own computes the same, and takes three times as long.
    """

    def __init__(self, quantizer: Any) -> None:
        super().__init__(quantizer)
        self.learnable = nn.Parameter(torch.log2(self.measured) - 0.5)  # the middle of those that are rounded up to it

    def gradient_factor(self, quantizer: Any, x: torch.Tensor) -> float:
        return 1.0

    def learnt(self) -> torch.Tensor:
        return torch.exp2(self.learnable.ceil().detach() + (self.learnable - self.learnable.detach()))


_LEARNERS: dict[Learnt, Callable[[Any], Any]] = {"tqt": _Thresholds, "lsq": _StepSizes}
