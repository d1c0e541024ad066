"""What models can be quantized to, and which quantizer can do it in which of its ways.

A *scheme* says what numbers are stored as. A *route* is a way of a quantizer: Quark on an ONNX graph, Quark on a
PyTorch module (as a graph of torch.export's, or layer by layer), and ONNX Runtime's own quantizer. What a route cannot
do, this table knows, with the reason: users meet one sentence instead of a traceback.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from onnx_bridge.core.errors import InputError, nearest

Quantizer = Literal["quark", "ort"]
QUANTIZERS: tuple[Quantizer, ...] = ("quark", "ort")

Route = Literal["quark", "fx", "eager", "ort"]
_ROUTES: Mapping[Route, str] = {
    "quark": "Quark, from an ONNX model,",
    "fx": "Quark's graph mode",
    "eager": "Quark's eager mode",
    "ort": "ONNX Runtime's quantizer",
}
_OTHERS: Mapping[Route, str] = {
    "quark": "Quark",
    "eager": "Quark's eager mode, from a PyTorch module,",
    "ort": "ONNX Runtime's quantizer",
}
"""Who else is asked, in this order."""
_INTEGERS_ONLY = "it quantizes to integers alone"


@dataclass(frozen=True)
class Scheme:
    """What numbers are stored as.

    Attributes:
        name: as users say it.
        text: that, in words.
        refusals: the routes that cannot, and why not.
        calibrated: whether ranges of activations are measured, so that data is needed.
        channels: whether weights may have a scale for each output channel.
        opset: the least in which its operators exist; models of a lower one are converted.
    """

    name: str
    text: str
    refusals: Mapping[Route, str] = field(default_factory=dict)
    calibrated: bool = True
    channels: bool = True
    opset: int = 13

    def check(self, route: Route, *, per_channel: bool) -> None:
        """Make sure that a route can do it.

        Raises:
            InputError: it cannot; the error says why, and who can.
        """
        if (reason := self.refusals.get(route)) is not None:
            able = next((each for each in _OTHERS if each != route and each not in self.refusals), None)
            hint = f"{_OTHERS[able]} can" if able else None
            raise InputError(f"{_ROUTES[route]} cannot do it: {reason}", where=f"scheme {self.name}", hint=hint)
        if per_channel and not self.channels:
            what = f"there are no scales per channel in {self.name}: {self.text}"
            raise InputError(what, where="--per-channel", hint="leave it out")


_ORT_NONE = {"ort": "it has no such format"}
_BLOCKS: Mapping[Route, str] = {"fx": _INTEGERS_ONLY, **_ORT_NONE}  # type: ignore[dict-item]

SCHEMES: Mapping[str, Scheme] = {
    each.name: each
    for each in (
        Scheme("int8", "weights and activations in int8, symmetric"),
        Scheme(
            "int8-pow2",
            "int8, symmetric, with scales that are powers of two",
            {"ort": "its scales are any numbers, not powers of two"},
        ),
        Scheme("uint8", "activations in uint8 with zero points, weights in int8"),
        Scheme("int16", "activations in int16, symmetric, weights in int8"),
        Scheme(
            "fp8",
            "weights and activations in float8 (e4m3)",
            {"quark": "it knows fp8 in blocks of a shared scale (MX) alone", "fx": _INTEGERS_ONLY},
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
"""How many weights of 4 bits share a scale."""


def scheme_of(name: str) -> Scheme:
    """A scheme by its name.

    Raises:
        InputError: there is none.
    """
    if name not in SCHEMES:
        hint = nearest(name, SCHEMES) or f"there are {', '.join(SCHEMES)}"
        raise InputError(f"there is no scheme {name!r}", where="--scheme", hint=hint)
    return SCHEMES[name]
