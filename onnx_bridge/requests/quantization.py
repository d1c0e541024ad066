"""The request of `onnx_bridge.quantize`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from onnx_bridge.core.errors import InputError
from onnx_bridge.requests import algorithms, texts
from onnx_bridge.requests.parity import Dataset
from onnx_bridge.requests.request import Data, Needs, Option, Request
from onnx_bridge.requests.schemes import SCHEMES, Method, Quantizer, Recipe, Route, Scheme, scheme_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

    Train = Callable[[nn.Module], object]
    Validate = Callable[[nn.Module], float]
else:
    Train = Annotated[Any, "Callable[[nn.Module], object]"]
    Validate = Annotated[Any, "Callable[[nn.Module], float]"]

Learnt = Literal["tqt", "lsq"]
"""The learners of scales: thresholds of powers of two (Jain et al. 2020), or step sizes (Esser et al. 2020)."""
_LEARNT_FOR = {"tqt": "int8-pow2", "lsq": "int8"}
_INTEGERS = ("int8", "int8-pow2", "uint8", "int16")
Mode = Literal["fx", "eager"]


@dataclass(frozen=True)
class QuantizeRequest(Request):
    """The request to quantize a model or module, without the model.

    Attributes:
        out: the file to write, if any.

    Raises:
        InputError: the quantizer, the scheme or the mode does not exist.
    """

    with_: Annotated[Quantizer, Option("Quantize with AMD Quark or ONNX Runtime.", "--with", "quark|ort")] = "quark"
    scheme: Annotated[
        str,
        Option(
            "Store numbers as int8, int8-pow2, uint8, int16, fp8, bf16, bfp16, mxfp4 or int4-weights.",
            metavar="SCHEME",
            complete=texts.complete(*SCHEMES),
        ),
    ] = "int8"
    mode: Annotated[
        Mode | None,
        Option(
            "Quark's mode for a module: fx (the graph of torch.export) or eager (the layers); default: fx if it can, "
            "or the ONNX export.",
            cli=False,
        ),
    ] = None
    calibration: Annotated[
        Data | None,
        Option("Data to measure ranges on: an .npz, .npy, folder of images or .pb, or loader script.", metavar="DATA"),
    ] = None
    calibrate: Annotated[
        Method | None,
        Option("Way to find the range of an activation in what was measured; default: the scheme's first."),
    ] = None
    algorithm: Annotated[
        str,
        Option(
            "Algorithms that win accuracy back: cle, smoothquant, bias-correction, adaround, adaquant; of a module, "
            "smoothquant or autosmoothquant; of 4-bit weights, awq, gptq, gptaq or qronos of a module, and gptq, hqq "
            "or k-quant with ort. Options as in adaround{iterations=200}.",
            metavar="NAME{OPTION=VALUE},…",
        ),
    ] = ""
    per_channel: Annotated[bool, Option("A scale for each output channel of a weight, instead of one.")] = False
    exclude: Annotated[
        tuple[str, ...],
        Option(
            "Nodes or operators that stay in float: A,B; repeatable.", metavar="NODES", parse=texts.all_names, many=True
        ),
    ] = ()
    float_ends: Annotated[
        bool, Option("Leave the first and the last convolution or matrix product in float as well.")
    ] = False
    bias: Annotated[
        bool,
        Option("Quantize the biases of a module, too, as flows for NPUs do; MIGraphX adds them in float.", cli=False),
    ] = False
    data: Annotated[
        Dataset | None,
        Option(
            "Data to measure what --min asks for, as for `check`.", metavar="DIR|FILE|SCRIPT.py", needs=Needs("least")
        ),
    ] = None
    least: Annotated[
        Mapping[str, float],
        Option(
            "Least value of a metric on the data (the largest of perplexity), with most work in 8 bits: top1, top5, "
            "cosine, sqnr, iou, perplexity; repeatable.",
            "--min",
            "METRIC=VALUE",
            texts.metrics,
            many=True,
            needs=Needs("data"),
        ),
    ] = field(default_factory=dict)
    runs: Annotated[
        int, Option("The most quantizations to try for --min.", metavar="N", minimum=1, needs=Needs("least"))
    ] = 30
    train: Annotated[
        Train | None,
        Option("Trains the module with its quantizers, after calibration and before its scales are frozen.", cli=False),
    ] = None
    observer: Annotated[
        Learnt | None,
        Option(
            "Scales that are trained, too: tqt (of int8-pow2) or lsq (of int8); default: those that were measured.",
            cli=False,
            needs=Needs("train"),
        ),
    ] = None
    validate: Annotated[
        Validate | None,
        Option("Returns the accuracy of a module, which is measured in float, quantized, and trained.", cli=False),
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
        scheme = self.format.name
        if self.bias and scheme not in _INTEGERS:
            what = f"biases are quantized to 8 bits, and {scheme} is another format"
            raise InputError(what, where="bias", hint=f"it is for {', '.join(_INTEGERS)}")
        if self.bias and self.module_mode == "eager":
            what = "Quark's eager mode leaves all biases in float if a layer has none"
            raise InputError(what, where="bias", hint="mode='fx'")
        if self.observer is None:
            return
        if (fitting := _LEARNT_FOR[self.observer]) != scheme:
            kind = "powers of two" if self.observer == "tqt" else "any numbers"
            what = f"{self.observer} learns scales that are {kind}, which {scheme} does not have"
            raise InputError(what, where="observer", hint=f"give `scheme='{fitting}'`")
        if self.observer == "tqt" and self.per_channel:
            raise InputError("tqt has one scale for each tensor", where="per_channel", hint="leave it out")

    @property
    def format(self) -> Scheme:
        """The form in which numbers are stored, and the quantizers that support it."""
        return scheme_of(self.scheme)

    @property
    def module_mode(self) -> Mode:
        """The mode of Quark for a module: eager if fx, which has no algorithms, has not what is asked for."""
        chosen = [algorithms.ALGORITHMS[algorithm.name] for algorithm in algorithms.parse(self.algorithm)]
        by_layers = any(algorithm.supports("eager", self.scheme) for algorithm in chosen)
        return self.mode or ("eager" if by_layers or "fx" in self.format.refusals else "fx")

    def recipe(self, route: Route) -> Recipe:
        """Return what a route is asked to do; raises InputError if it cannot."""
        self.format.check(route, per_channel=self.per_channel, method=self.calibrate)
        method, chosen = self.format.method(route, self.calibrate), algorithms.parse(self.algorithm)
        algorithms.check(chosen, route, self.scheme, method)
        named = tuple((algorithm.name, algorithm.options) for algorithm in chosen)
        return Recipe(self.scheme, self.per_channel, method, named, self.bias)
