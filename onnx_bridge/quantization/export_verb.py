"""``onnx_bridge.export``: the verb itself, and ``onnx_bridge.export.quark``, which quantizes on the way."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from onnx_bridge.torch.export.export import export as _export
from onnx_bridge.torch.export.export import require_torch

if TYPE_CHECKING:
    import torch

    from onnx_bridge.quantization.quantized import Quantized
    from onnx_bridge.samples.files import SampleSource


class Export:
    """Export a PyTorch module to ONNX: as it is by a call, see `onnx_bridge.torch.export.export.export`; or
    quantized."""

    __call__ = staticmethod(_export)

    def quark(
        self,
        module: torch.nn.Module,
        args: Any,
        kwargs: Mapping[str, Any] | None = None,
        *,
        scheme: str = "int8",
        mode: Literal["fx", "eager"] = "fx",
        calibration: SampleSource | None = None,
        per_channel: bool = False,
        exclude: Sequence[str] = (),
        train: Callable[[torch.nn.Module], object] | None = None,
        dynamic: Mapping[str, Mapping[int, str]] | None = None,
        out: str | os.PathLike[str] | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> Quantized:
        """Quantize a PyTorch module with AMD Quark, export it, and say how far it is from the module in float.

        Inputs, outputs and weights are named as `onnx_bridge.export` names them. Weights are stored as integers where
        the scheme has any.

        Args:
            module: left as it is; quantized as it computes after ``eval()``.
            args: arguments by position: a tuple or list of them, or the only one.
            kwargs: arguments by name.
            scheme: what to quantize to: a name of `onnx_bridge.quantization.schemes.SCHEMES`.
            mode: ``fx`` quantizes the graph of torch.export, with all that is between layers; ``eager`` the layers of
                the module, their weights and what they take.
            calibration: the data that ranges are measured on (see `onnx_bridge.samples.calibration`), by the names of
            inputs;
                by default the arguments alone. The result is compared with the float module on it.
            per_channel: whether weights get a scale for each output channel.
            exclude: names of the module's layers that stay in float; for the eager mode.
            train: quantization-aware training: called with the quantized module, after calibration and before its
                scales are frozen. That module is called like the original one, and trained in place. With ``mode="fx"``
                it takes the sizes of ``args`` alone.
            dynamic: sizes that stay open, as for `onnx_bridge.export`; for the eager mode.
            out: the file to write; None writes nothing.
            progress: told each stage as it begins.

        Raises:
            InputError: Quark or torchao is not installed; Quark cannot do the scheme, or this module; the data does not
                fit; or ``out`` cannot be written.
        """
        require_torch()
        from onnx_bridge.quantization.from_torch import quark

        return quark(
            module,
            args,
            kwargs,
            scheme=scheme,
            mode=mode,
            calibration=calibration,
            per_channel=per_channel,
            exclude=exclude,
            train=train,
            dynamic=dynamic,
            out=out,
            progress=progress,
        )


export = Export()
