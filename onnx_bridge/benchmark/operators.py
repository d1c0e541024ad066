"""The time that MIGraphX spends in each operator.

MIGraphX's libraries have no profiler, but with ``MIGRAPHX_TRACE_EVAL=1`` a program prints the time of each instruction,
after synchronizing with the device:

    Run instruction: @2 = ref::dot(x,@1) -> float_type, {4, 8}, {8, 1}
    Time: 2.81257ms, 2.81359ms

A bundle is loaded into a separate process with that variable, and called a few times. Synchronization and printing
cost time, so these calls are not part of the latencies. An instruction with a subgraph is printed around the subgraph's
instructions, whose time is subtracted.

MIGraphX's names are mapped to ONNX operators of the cleaned model by name: ``dot`` is MatMul or Gemm,
``mlir_convolution_add_relu`` is Conv, Add and Relu. Operators that MIGraphX adds (``contiguous``, ``convert``) map to
none. A partition on ONNX Runtime is one row, with the operators that made it a host partition.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from onnx_bridge.bundle.bundle import Bundle
from onnx_bridge.bundle.partitions import HostPartition
from onnx_bridge.core.errors import InputError
from onnx_bridge.core.schema import JsonRecord
from onnx_bridge.migraphx import runtime as runtimes
from onnx_bridge.migraphx.worker import Worker
from onnx_bridge.model import io as models
from onnx_bridge.samples.inputs import Sample

HOST = "ONNX Runtime"
CALLS = 5
"""The number of calls; times are medians of them."""
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
"""ONNX operators by MIGraphX's name, if that differs in more than spelling, or if MIGraphX decomposes them."""


@dataclass(frozen=True)
class Instruction:
    """One instruction of one run.

    Attributes:
        name: the name in the program ("@2").
        operator: MIGraphX's operator ("dot", "gpu::gemm"); the name of a compiled kernel; `HOST` for a host partition.
        seconds: the time without that of its subgraphs.
    """

    name: str
    operator: str
    seconds: float


@dataclass(frozen=True)
class OperatorTime(JsonRecord):
    """The time of all instructions of one operator.

    Attributes:
        operator: MIGraphX's operator, or `HOST`.
        onnx: the operators of the model that it may come from.
        count: the number of its instructions in one call.
        seconds: the time of all of them in one call; the median of `CALLS`.
        share: the share in the time of all operators.
        longest: its seconds.
    """

    operator: str
    onnx: tuple[str, ...]
    count: int
    seconds: float
    share: float
    slowest: str
    longest: float


def per_operator(bundle: Bundle, sample: Sample) -> tuple[OperatorTime, ...]:
    """Return the time of each operator of a bundle's programs, and of its host partitions, the slowest first.

    Args:
        bundle: it is not changed.

    Raises:
        InputError: this MIGraphX prints no times.
        RuntimeFailure: MIGraphX failed.
    """
    if not bundle.manifest.on_migraphx:
        return ()
    output: list[str] = []
    program = bundle.program
    runtime = runtimes.find(program.runtime_name)
    environment = {**program.info.environment, **_TRACE}
    worker = Worker(runtime, environment, program.limits, on_output=output.append)
    runs: list[list[Instruction]] = []
    silent = False
    try:
        traced = Bundle(bundle.path)
        traced.open(worker)
        for _ in range(CALLS + 1):
            output.clear()
            traced(sample)
            traced_instructions = [instruction for text in output for instruction in instructions(text)]
            silent = silent or not traced_instructions
            runs.append(traced_instructions + _host(traced))
        traced.close()
    finally:
        worker.close()
    if silent:
        what = f"MIGraphX {runtime.version} prints no times of instructions"
        raise InputError(what, where="per-operator", hint="omit it, or choose another runtime")
    names = {node.op_type for node in models.load(bundle.model_path).graph.all_nodes()} if bundle.model_path else set()
    host = tuple(dict.fromkeys(node.operator for info in bundle.manifest.partitions for node in info.host))
    return summarize(runs[1:], names, host)  # without the first call, which is slower


def _host(bundle: Bundle) -> list[Instruction]:
    partitions = enumerate(bundle.program.loaded)
    return [
        Instruction(f"partition {index}", HOST, partition.seconds)
        for index, partition in partitions
        if isinstance(partition, HostPartition)
    ]


def instructions(text: str) -> list[Instruction]:
    """Return the instructions in MIGraphX's output, in the order in which they finished."""
    timed = []
    open_: list[tuple[str, str, float]] = []
    for line in text.splitlines():
        if run := _RUN.match(line):
            open_.append((run["name"], _operator(run["text"]), 0.0))
        elif (time := _TIME.match(line)) and open_:
            name, operator, inner = open_.pop()
            seconds = float(time["ms"]) / 1e3
            timed.append(Instruction(name, operator, max(0.0, seconds - inner)))
            if open_:
                outer, its, before = open_.pop()
                open_.append((outer, its, before + seconds))
    return timed


def _operator(text: str) -> str:
    """Return the operator in ``ref::dot(x,@1) -> …`` or ``gpu::code_object[symbol_name=add_kernel,…](…) -> …``."""
    if kernel := _KERNEL.search(text):
        return kernel["name"]
    return re.split(r"[\[(]| -> ", text, maxsplit=1)[0].removeprefix("ref::")


def summarize(
    runs: Sequence[Sequence[Instruction]], model: Iterable[str], host: tuple[str, ...] = ()
) -> tuple[OperatorTime, ...]:
    """Return times by operator, the slowest first, without parameters and literals.

    ``runs`` are the instructions of each call of the same program, ``model`` and ``host`` operators of ONNX.
    """
    times: dict[str, dict[str, list[float]]] = {}
    for run in runs:
        for instruction in run:
            if not instruction.operator.startswith("@"):
                times.setdefault(instruction.operator, {}).setdefault(instruction.name, []).append(instruction.seconds)
    calls, kinds = len(runs), _kinds(model)
    rows = []
    for operator, by_name in times.items():
        medians = {name: statistics.median(series) * len(series) / calls for name, series in by_name.items()}
        slowest = max(medians, key=lambda name: medians[name])
        count = sum(map(len, by_name.values())) // calls
        rows.append((operator, count, sum(medians.values()), slowest, medians[slowest]))
    whole = sum(seconds for _, _, seconds, *_ in rows) or 1.0
    rows.sort(key=lambda row: -row[2])
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
        for operator, count, seconds, slowest, longest in rows
    )


def _kinds(model: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Return the model's operators by MIGraphX's name for them."""
    there = set(model)
    by_kind: dict[str, tuple[str, ...]] = {operator.lower(): (operator,) for operator in there}
    for name, kinds in _SYNONYMS.items():
        if known := tuple(kind for kind in kinds if kind in there):
            by_kind[name] = (*by_kind.get(name, ()), *(operator for operator in known if operator.lower() != name))
    return by_kind


def _onnx(operator: str, kinds: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    """Return the model's operators for one of MIGraphX: by its whole name, else by the parts of a kernel's name."""
    words = operator.rpartition("::")[2].lower().split("_")
    if (whole := kinds.get("".join(words))) is not None:
        return whole
    operators: dict[str, None] = {}
    start = 0
    while start < len(words):  # the longest match, as in quant_dot or reduce_sum
        ends = range(len(words), start, -1)
        end = next((position for position in ends if "".join(words[start:position]) in kinds), None)
        if end is not None:
            operators |= dict.fromkeys(kinds["".join(words[start:end])])
        start = end or start + 1
    return tuple(operators)
