"""Quantization schemes, the methods that measure ranges for them, and which quantizers support both.

A *scheme* is a form in which numbers are stored. A *route* is a quantizer with its kind of input: Quark on ONNX graphs,
Quark on a PyTorch module (as a graph of torch.export, or layer by layer), and ONNX Runtime's quantizer. This table has
the reason why a route does not support a scheme. A *method* finds the range of an activation from what was measured; a
route has those with which its scales are what the scheme says, and its results are right.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from onnx_bridge.core.errors import InputError, nearest

Quantizer = Literal["quark", "ort"]
QUANTIZERS: tuple[Quantizer, ...] = ("quark", "ort")

Route = Literal["quark", "fx", "eager", "ort"]
ROUTES: Mapping[Route, str] = {
    "quark": "Quark, from an ONNX model,",
    "fx": "Quark's graph mode",
    "eager": "Quark's eager mode",
    "ort": "ONNX Runtime's quantizer",
}
OTHERS: Mapping[Route, str] = {
    "quark": "Quark",
    "eager": "Quark's eager mode, from a PyTorch module,",
    "ort": "ONNX Runtime's quantizer",
}
"""The routes that are suggested instead, in this order."""
_INTEGERS_ONLY = "it quantizes only to integers"

Method = Literal["minmax", "mse", "percentile", "layer-percentile", "entropy", "distribution"]
_ANY: tuple[Method, ...] = ("minmax", "percentile", "layer-percentile", "entropy", "distribution")
_MODULE: Mapping[str, tuple[Method, ...]] = {
    "int8": ("minmax", "mse", "percentile"),
    "int8-pow2": ("mse", "minmax"),
    "uint8": ("minmax", "mse"),
    "int16": ("minmax", "percentile"),
    "fp8": ("minmax",),
}
_ORT: tuple[Method, ...] = ("minmax", "percentile", "entropy")
METHODS: Mapping[Route, Mapping[str, tuple[Method, ...]]] = {
    "quark": {"int8": _ANY, "int8-pow2": ("mse", "minmax"), "uint8": _ANY[:-1], "int16": _ANY},
    "fx": _MODULE,
    "eager": _MODULE,
    "ort": {"int8": _ORT, "uint8": _ORT, "int16": _ORT, "fp8": ("distribution",)},
}
"""The methods of each route and scheme; the first is the default.

Left out: what Quark offers and computes otherwise. Its mean squared error on ONNX graphs, and of its methods on powers
of two all but two, give scales of the other kind; its distribution, and its histograms of modules, ignore the zero
points of uint8.
"""


@dataclass(frozen=True)
class Scheme:
    """A form in which numbers are stored.

    Attributes:
        refusals: why routes do not support it.
        calibrated: whether ranges of activations are measured, which needs data.
        channels: whether weights may have a scale for each output channel.
        opset: the lowest opset with its operators; models with a lower one are converted.
    """

    name: str
    text: str
    refusals: Mapping[Route, str] = field(default_factory=dict)
    calibrated: bool = True
    channels: bool = True
    opset: int = 13

    def check(self, route: Route, *, per_channel: bool, method: Method | None = None) -> None:
        """Check that a route supports the scheme; the InputError otherwise says why, and which route does."""
        if (reason := self.refusals.get(route)) is not None:
            able = next((other for other in OTHERS if other != route and other not in self.refusals), None)
            hint = f"{OTHERS[able]} can" if able else None
            raise InputError(f"{ROUTES[route]} cannot do it: {reason}", where=f"scheme {self.name}", hint=hint)
        if per_channel and not self.channels:
            what = f"there are no scales per channel in {self.name}: {self.text}"
            raise InputError(what, where="per_channel", hint="leave it out")
        methods = METHODS[route].get(self.name, ())
        if method is not None and method not in methods:
            what = f"{ROUTES[route]} has no {method} for {self.name}: {self.text}"
            able = next((other for other in OTHERS if method in METHODS[other].get(self.name, ())), None)
            hints = [f"it has {', '.join(methods)}"] if methods else []
            hints += [] if able is None else [f"{OTHERS[able]} can"]
            raise InputError(what, where="calibrate", hint="; ".join(hints) or "leave it out")

    def method(self, route: Route, chosen: Method | None) -> Method | None:
        """Return the method that a route measures ranges by; None if the scheme has no ranges."""
        return chosen or next(iter(METHODS[route].get(self.name, ())), None)


@dataclass(frozen=True)
class Recipe:
    """The task of a quantizer, besides the model and the data.

    Attributes:
        scheme: the name of the scheme.
        per_channel: whether weights get a scale for each output channel.
        method: what ranges of activations are measured by; None if they are not.
        algorithms: the names of algorithms, each with its options (`onnx_bridge.requests.algorithms`).
        bias: whether the biases of a module are quantized as well.
    """

    scheme: str
    per_channel: bool = False
    method: Method | None = None
    algorithms: tuple[tuple[str, Mapping[str, float]], ...] = ()
    bias: bool = False


_ORT_NONE = {"ort": "it has no such format"}
_BLOCKS: Mapping[Route, str] = {"fx": _INTEGERS_ONLY, **_ORT_NONE}  # type: ignore[dict-item]

SCHEMES: Mapping[str, Scheme] = {
    scheme.name: scheme
    for scheme in (
        Scheme("int8", "weights and activations in int8, symmetric"),
        Scheme(
            "int8-pow2",
            "int8, symmetric, with scales that are powers of two",
            {"ort": "its scales are not powers of two"},
        ),
        Scheme("uint8", "activations in uint8 with zero points, weights in int8"),
        Scheme("int16", "activations in int16, symmetric, weights in int8"),
        Scheme(
            "fp8",
            "weights and activations in float8 (e4m3)",
            {"quark": "it supports fp8 only in blocks with a shared scale (MX)", "fx": _INTEGERS_ONLY},
            channels=False,
            opset=19,
        ),
        Scheme("bf16", "weights and activations rounded to bfloat16", _BLOCKS, calibrated=False, channels=False),
        Scheme("bfp16", "blocks of 8 numbers share an exponent", _BLOCKS, calibrated=False, channels=False),
        Scheme("mxfp4", "blocks of 32 4-bit floats share a scale", _BLOCKS, calibrated=False, channels=False),
        Scheme(
            "int4-weights",
            "blocks of 32 weights of a matrix product share a scale, in 4-bit integers",
            {"fx": "it quantizes activations as well"},
            calibrated=False,
            channels=False,
        ),
    )
}
"""All schemes by name."""

BLOCK = 32
"""The number of 4-bit weights that share a scale."""


def scheme_of(name: str) -> Scheme:
    """Return the scheme with a name; raises InputError if it does not exist."""
    if name not in SCHEMES:
        hint = nearest(name, SCHEMES) or f"there are {', '.join(SCHEMES)}"
        raise InputError(f"the scheme {name!r} does not exist", where="--scheme", hint=hint)
    return SCHEMES[name]
