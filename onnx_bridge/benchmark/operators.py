"""Where MIGraphX's time goes, by operator.

MIGraphX's libraries offer no profile, but with ``MIGRAPHX_TRACE_EVAL=1`` the program says of each instruction how long
it took, once the device has finished it:

    Run instruction: @2 = ref::dot(x,@1) -> float_type, {4, 8}, {8, 1}
    Time: 2.81257ms, 2.81359ms

So a bundle is loaded into a process of its own with that variable, and called a few times. Instructions wait for each
other then, and printing takes its time, which is why this is no part of the latencies. An instruction with a subgraph
is printed around those of the subgraph, whose time is taken off its own.

The names are MIGraphX's. They are followed back to operators of ONNX by name alone, among those that the cleaned model
has: ``dot`` is MatMul or Gemm, ``mlir_convolution_add_relu`` is Conv, Add and Relu. What MIGraphX adds by itself
(``contiguous``, ``convert``) belongs to none. A partition on ONNX Runtime is one row, with the operators for which it
is there.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from onnx_bridge.bundle.bundle import Bundle
from onnx_bridge.bundle.loaded_partitions import HostPartition
from onnx_bridge.core.errors import InputError
from onnx_bridge.migraphx import runtime as runtimes
from onnx_bridge.migraphx.worker import Worker
from onnx_bridge.model import io as models
from onnx_bridge.samples.inputs import Sample

HOST = "ONNX Runtime"
CALLS = 5
"""Calls of which the median is taken."""
_TRACE = {"MIGRAPHX_TRACE_EVAL": "1"}
_RUN = re.compile(r"^Run instruction: (?P<name>\S+) = (?P<text>.*)$")
_TIME = re.compile(r"^Time: \S+ms, (?P<ms>\S+)ms$")
_KERNEL = re.compile(r"symbol_name=(?P<name>\w+)")
_SYNONYMS: Mapping[str, tuple[str, ...]] = {
    "dot": ("MatMul", "Gemm"),
    "gemm": ("MatMul", "Gemm"),
    "quantdot": ("MatMul", "Gemm", "MatMulInteger"),
    "quantconvolution": ("Conv", "ConvInteger"),
    "convolution": ("Conv",),
    "convolutionbackwards": ("ConvTranspose",),
    "pooling": ("MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool", "LpPool"),
    "layernorm": ("LayerNormalization",),
    "groupnorm": ("GroupNormalization",),
    "convert": ("Cast",),
    "multibroadcast": ("Expand",),
    "broadcast": ("Expand",),
    "squeeze": ("Squeeze", "Reshape"),
    "unsqueeze": ("Unsqueeze", "Reshape"),
    "reshapelazy": ("Reshape", "Flatten"),
    "reshape": ("Reshape", "Flatten"),
    "recip": ("Reciprocal",),
    "reducemean": ("LayerNormalization", "InstanceNormalization", "RMSNormalization"),
    "sqdiff": ("LayerNormalization", "InstanceNormalization"),
    "rsqrt": ("LayerNormalization", "InstanceNormalization", "RMSNormalization", "BatchNormalization"),
    "erf": ("Gelu",),
    "logicaland": ("And",),
    "logicalor": ("Or",),
    "logicalnot": ("Not",),
    "logicalxor": ("Xor",),
}
"""ONNX's operators by MIGraphX's name, where they differ in more than writing, or where MIGraphX takes one apart."""


@dataclass(frozen=True)
class Instruction:
    """One instruction of one run.

    Attributes:
        name: within the program ("@2").
        operator: MIGraphX's ("dot", "gpu::gemm"); of a compiled kernel, its name; of a partition on the host, `HOST`.
        seconds: without those of its subgraphs.
    """

    name: str
    operator: str
    seconds: float


@dataclass(frozen=True)
class OperatorTime:
    """What all instructions of one operator take.

    Attributes:
        operator: MIGraphX's, or `HOST`.
        onnx: the operators of the model that it may come from.
        count: its instructions in one call.
        seconds: in one call, of all of them; the median of `CALLS`.
        share: of the time of all operators.
        slowest: the instruction that takes longest.
        longest: seconds of that.
    """

    operator: str
    onnx: tuple[str, ...]
    count: int
    seconds: float
    share: float
    slowest: str
    longest: float

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return {**asdict(self), "onnx": list(self.onnx)}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> OperatorTime:
        """What `to_json` gave."""
        return cls(**{**values, "onnx": tuple(values["onnx"])})


def per_operator(bundle: Bundle, sample: Sample) -> tuple[OperatorTime, ...]:
    """The time of each operator of a bundle's programs, and of its partitions on ONNX Runtime, the slowest first.

    Args:
        bundle: left as it is.
        sample: what it is called with.

    Raises:
        InputError: this MIGraphX prints no times.
        RuntimeFailure: MIGraphX failed.
    """
    if not bundle.manifest.programs:
        return ()
    said: list[str] = []
    runtime = runtimes.find()
    environment = {**bundle.manifest.environment, **_TRACE}
    worker = Worker(runtime, environment, bundle.limits, on_output=said.append)
    runs: list[list[Instruction]] = []
    silent = False
    try:
        traced = Bundle(bundle.path)
        traced.open(worker)
        for _ in range(CALLS + 1):
            said.clear()
            traced(sample)
            told = [each for text in said for each in instructions(text)]
            silent = silent or not told
            runs.append(told + _host(traced))
        traced.close()
    finally:
        worker.close()
    if silent:
        what = f"MIGraphX {runtime.version} says nothing of its instructions"
        raise InputError(what, where="per-operator", hint="leave it out, or choose another runtime")
    names = {node.op_type for node in models.load(bundle.model_path).graph.all_nodes()} if bundle.model_path else set()
    there = tuple(dict.fromkeys(node.operator for info in bundle.manifest.partitions for node in info.host))
    return summarize(runs[1:], names, there)  # the first call is slower than those that follow


def _host(bundle: Bundle) -> list[Instruction]:
    partitions = enumerate(bundle.loaded)
    return [
        Instruction(f"partition {index}", HOST, each.seconds)
        for index, each in partitions
        if isinstance(each, HostPartition)
    ]


def instructions(text: str) -> list[Instruction]:
    """The instructions of what MIGraphX printed, in the order in which they ended."""
    found = []
    open_: list[tuple[str, str, float]] = []
    for line in text.splitlines():
        if run := _RUN.match(line):
            open_.append((run["name"], _operator(run["text"]), 0.0))
        elif (time := _TIME.match(line)) and open_:
            name, operator, inner = open_.pop()
            seconds = float(time["ms"]) / 1e3
            found.append(Instruction(name, operator, max(0.0, seconds - inner)))
            if open_:
                outer, its, before = open_.pop()
                open_.append((outer, its, before + seconds))
    return found


def _operator(text: str) -> str:
    """MIGraphX's operator, of ``ref::dot(x,@1) -> …`` or ``gpu::code_object[symbol_name=add_kernel,…](…) -> …``."""
    if kernel := _KERNEL.search(text):
        return kernel["name"]
    return re.split(r"[\[(]| -> ", text, maxsplit=1)[0].removeprefix("ref::")


def summarize(
    runs: Sequence[Sequence[Instruction]], model: Iterable[str], host: tuple[str, ...] = ()
) -> tuple[OperatorTime, ...]:
    """By operator, the slowest first; parameters and literals, which compute nothing, are left out.

    Args:
        runs: the instructions of calls of the same program.
        model: the operators that the ONNX model has.
        host: those for which there are partitions on ONNX Runtime.
    """
    times: dict[str, dict[str, list[float]]] = {}
    for run in runs:
        for each in run:
            if not each.operator.startswith("@"):
                times.setdefault(each.operator, {}).setdefault(each.name, []).append(each.seconds)
    calls, kinds = len(runs), _kinds(model)
    found = []
    for operator, by_name in times.items():
        medians = {name: statistics.median(series) * len(series) / calls for name, series in by_name.items()}
        slowest = max(medians, key=lambda name: medians[name])
        count = sum(map(len, by_name.values())) // calls
        found.append((operator, count, sum(medians.values()), slowest, medians[slowest]))
    whole = sum(seconds for _, _, seconds, *_ in found) or 1.0
    found.sort(key=lambda each: -each[2])
    return tuple(
        OperatorTime(
            operator,
            host if operator == HOST else _onnx(operator, kinds),
            count,
            seconds,
            seconds / whole,
            slowest,
            longest,
        )
        for operator, count, seconds, slowest, longest in found
    )


def _kinds(model: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """The model's operators by MIGraphX's name for them."""
    there = set(model)
    found: dict[str, tuple[str, ...]] = {each.lower(): (each,) for each in there}
    for name, kinds in _SYNONYMS.items():
        if known := tuple(each for each in kinds if each in there):
            found[name] = (*found.get(name, ()), *(each for each in known if each.lower() != name))
    return found


def _onnx(operator: str, kinds: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    """The model's operators behind one of MIGraphX's: its whole name, or else the parts of a fused kernel's name."""
    words = operator.rpartition("::")[2].lower().split("_")
    if (whole := kinds.get("".join(words))) is not None:
        return whole
    found: dict[str, None] = {}
    start = 0
    while start < len(words):  # the longest name that begins here, as in quant_dot or reduce_sum
        ends = range(len(words), start, -1)
        end = next((each for each in ends if "".join(words[start:each]) in kinds), None)
        if end is not None:
            found |= dict.fromkeys(kinds["".join(words[start:end])])
        start = end or start + 1
    return tuple(found)
