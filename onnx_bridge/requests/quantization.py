"""The request of `onnx_bridge.quantize`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from onnx_bridge.core.errors import InputError, nearest
from onnx_bridge.requests.schemes import QUANTIZERS, SCHEMES, Route, Scheme
from onnx_bridge.samples.files import SampleSource

if TYPE_CHECKING:
    from torch import nn

Mode = Literal["fx", "eager"]


@dataclass(frozen=True)
class QuantizeRequest:
    """How to quantize a model or module; which one is not part of it.

    Attributes:
        quantizer: ``quark`` or ``ort``.
        scheme: what numbers are stored as.
        mode: Quark's mode for modules: ``fx``, ``eager``, or None: fx if it supports the scheme.
        calibration: the data that ranges are measured on.
        per_channel: whether weights get a scale for each output channel.
        exclude: names of nodes, operators or layers that stay in float.
        train: trains the module with its quantizers.
        out: the file to write, if any.

    Raises:
        InputError: there is no such quantizer or mode.
    """

    quantizer: str = "quark"
    scheme: Scheme = SCHEMES["int8"]
    mode: Mode | None = None
    calibration: SampleSource | None = None
    per_channel: bool = False
    exclude: tuple[str, ...] = ()
    train: Callable[[nn.Module], object] | None = None
    out: Path | None = None

    def __post_init__(self) -> None:
        if self.quantizer not in QUANTIZERS:
            hint = nearest(self.quantizer, QUANTIZERS) or f"use {' or '.join(QUANTIZERS)}"
            raise InputError(f"there is no quantizer {self.quantizer!r}", where="--with", hint=hint)
        if self.mode not in (None, "fx", "eager"):
            raise InputError(f"there is no mode {self.mode!r}", where="mode", hint="use fx or eager")

    @property
    def module_mode(self) -> Mode:
        return self.mode or ("eager" if "fx" in self.scheme.refusals else "fx")

    def check_route(self, route: Route) -> None:
        """Check that a quantizer supports the scheme; raises InputError otherwise."""
        self.scheme.check(route, per_channel=self.per_channel)
