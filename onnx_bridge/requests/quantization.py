"""The request of `onnx_bridge.quantize`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from onnx_bridge.requests import texts
from onnx_bridge.requests.request import Data, Option, Request
from onnx_bridge.requests.schemes import Quantizer, Route, Scheme, scheme_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

    Train = Callable[[nn.Module], object]
else:
    Train = Annotated[Any, "Callable[[nn.Module], object]"]

Mode = Literal["fx", "eager"]


@dataclass(frozen=True)
class QuantizeRequest(Request):
    """The request to quantize a model or module, without the model.

    Attributes:
        out: the file to write, if any.

    Raises:
        InputError: the quantizer, the scheme or the mode does not exist.
    """

    with_: Annotated[Quantizer, Option("AMD Quark or ONNX Runtime.", "--with", "quark|ort")] = "quark"
    scheme: Annotated[
        str,
        Option(
            "What numbers are stored as: int8, int8-pow2, uint8, int16, fp8, bf16, bfp16, mxfp4 or int4-weights.",
            metavar="SCHEME",
        ),
    ] = "int8"
    mode: Annotated[
        Mode | None,
        Option(
            "Quark's mode for a module: fx (the graph of torch.export) or eager (the layers); default: fx if it can.",
            cli=False,
        ),
    ] = None
    calibration: Annotated[
        Data | None,
        Option("Data to measure ranges on: an .npz, .npy, folder of images or .pb, or loader script.", metavar="DATA"),
    ] = None
    per_channel: Annotated[bool, Option("A scale for each output channel of a weight, instead of one.")] = False
    exclude: Annotated[
        tuple[str, ...],
        Option(
            "Nodes or operators that stay in float: A,B; repeatable.", metavar="NODES", parse=texts.all_names, many=True
        ),
    ] = ()
    train: Annotated[
        Train | None,
        Option("Trains the module with its quantizers, after calibration and before its scales are frozen.", cli=False),
    ] = None
    timeout: Annotated[
        float | None,
        Option(
            "Limit in seconds for each step of a process that runs or quantizes models; default: 600 for each sample.",
            metavar="S",
            above=0.0,
        ),
    ] = None
    memory: Annotated[
        float | None, Option("Memory limit of such a process; default: 80 % of what is free.", metavar="GiB", above=0.0)
    ] = None
    out: Path | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self.format  # noqa: B018 — validates it

    @property
    def format(self) -> Scheme:
        """The form in which numbers are stored, and the quantizers that support it."""
        return scheme_of(self.scheme)

    @property
    def module_mode(self) -> Mode:
        """The mode of Quark for a module."""
        return self.mode or ("eager" if "fx" in self.format.refusals else "fx")

    def check_route(self, route: Route) -> None:
        """Check that a quantizer supports the scheme; raises InputError otherwise."""
        self.format.check(route, per_channel=self.per_channel)
