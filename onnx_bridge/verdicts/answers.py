"""From what MIGraphX's worker replies to a probe to a verdict.

Accepting is not enough: the number, dtypes and shapes of the outputs must be those that the model declares, and the
outputs must be those of the reference, if there are any.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import numpy as np
import onnx_ir as ir

from onnx_bridge.migraphx.process.printed_error import PrintedError
from onnx_bridge.migraphx.program import Shape, Tensor
from onnx_bridge.reference import evaluations
from onnx_bridge.reference.comparison.choices import chooses
from onnx_bridge.reference.comparison.compare import compare
from onnx_bridge.reference.comparison.conditioning import SEEDS, explains_all, nudged
from onnx_bridge.verdicts.node_tolerances import node_tolerance
from onnx_bridge.verdicts.probe_request import ProbeRequest, migraphx_type, unordered_axis, widened
from passes.core.text import counted
from passes.graphs.traversal import has_subgraphs, with_nested
from passes.isolation.failure import NativeFailure
from passes.isolation.messages import Array
from passes.probing.probe import Probe
from passes.rewriting.base import Obstacle, Proof, Status, Unproven, Verdict
from passes.shapes.steered_sizes import steered_outputs

_STANDARD = frozenset(("", "ai.onnx.ml"))


@dataclass(frozen=True)
class Answer:
    """A verdict, and how far it holds.

    Attributes:
        transient: whether it is due to the state of the machine: then it must not be cached.
        by_constants: whether it holds for the constants of the probe alone, and not for others of the same types.
    """

    verdict: Verdict
    transient: bool = False
    by_constants: bool = False


def answer_of(
    request: ProbeRequest,
    reply: Mapping[str, Any],
    outputs: Mapping[str, Tensor],
    stands_in: bool = False,
    rehearsed: bool = False,
) -> Answer:
    """Return the answer to a request.

    Args:
        outputs: MIGraphX's outputs, as ``sample:output``.
        stands_in: whether the probe ran on another target than the model will.
        rehearsed: whether the passes of the gpu target came before.
    """
    verdict = _verdict(request, reply, outputs, stands_in, rehearsed)
    return Answer(verdict, request.in_doubt or _is_transient(reply))


def _is_transient(reply: Mapping[str, Any]) -> bool:
    """Return whether MIGraphX lacked memory, or the processor: the system kills processes when memory is short."""
    printed = PrintedError.parse(reply.get("printed", ""))
    lacked_memory = reply.get("error", {}).get("out_of_memory", False) or printed.out_of_memory
    return lacked_memory or reply.get("died") == -signal.SIGKILL or reply.get("idle", False)


def _verdict(
    request: ProbeRequest, reply: Mapping[str, Any], outputs: Mapping[str, Tensor], stands_in: bool, rehearsed: bool
) -> Verdict:
    if "timeout" in reply:
        return Verdict(Status.HANGS, f"no answer within {reply['timeout']:g} s")
    if "died" in reply:
        return Verdict(Status.CRASHES, _crash(reply["died"], reply["printed"]))
    if "error" in reply and reply["error"]["not_emulated"]:
        return Verdict(Status.OK, unproven=Unproven(Obstacle.REFERENCE, reply["error"]["what"]))
    if "error" in reply:
        return Verdict(Status.REJECTED, reply["error"]["what"])
    shapes = msgspec.convert(reply["ok"]["outputs"], list[Shape])
    mismatch = _wrong_description(request.probe, shapes)
    if mismatch is not None:
        return Verdict(Status.WRONG, mismatch)
    steered = _fixed_size(request.probe, shapes, foreign=True)
    if steered is not None:  # the samples may happen to have it
        return Verdict(Status.WRONG, steered)
    if request.samples:
        verdict = compare_outputs(request, outputs, stands_in, rehearsed)  # which may find that it proves nothing
        proves = verdict.status is Status.WRONG or request.unproven is None
        return verdict if proves else replace(verdict, proof=Proof.NONE, unproven=request.unproven)
    fixed = _fixed_size(request.probe, shapes, foreign=False)
    return Verdict(Status.OK if fixed is None else Status.WRONG, fixed or "", unproven=request.unproven)


def _wrong_description(probe: Probe, shapes: Sequence[Shape]) -> str | None:
    """Return how the outputs differ from what the model declares; None if they do not."""
    if len(shapes) != len(probe.outputs):
        return f"accepted, but with {len(shapes)} of {counted(len(probe.outputs), 'output')}"
    for index, (value, given) in enumerate(zip(probe.outputs, shapes, strict=True)):
        dtype, shape = probe.dtype(value), probe.shape(value)
        if dtype is not None and given.type != migraphx_type(dtype):
            return f"accepted, but output {index} is of {given.type.removesuffix('_type')}, not of {dtype.name.lower()}"
        if given.dynamic:
            return f"accepted, but with a dynamic shape of output {index}"
        if shape is not None and given.type != "fp4x2_type" and not _fits(given.lens, shape):
            return f"accepted, but output {index} has the shape {list(given.lens)}, not {list(shape)}"
    return None


def _fits(lens: Sequence[int], shape: Sequence[int | None]) -> bool:
    """Return whether MIGraphX's sizes are the declared ones; it has scalars as (1,)."""
    if not shape:
        return list(lens) in ([], [1])
    return len(lens) == len(shape) and all(size in (None, actual) for actual, size in zip(lens, shape, strict=True))


def _fixed_size(probe: Probe, shapes: Sequence[Shape], *, foreign: bool) -> str | None:
    """Return which size MIGraphX fixes though it depends on the data; None if it fixes none.

    Of ``foreign`` operators, ONNX does not infer sizes that are fixed: only those count that are known to be steered.
    """
    if not foreign and (not {domain for domain, _ in probe.operators} <= _STANDARD or probe.scope.model.functions):
        return None
    steered = {value for node in probe.nodes for value in steered_outputs(node, probe.scope)}
    for index, (value, given) in enumerate(zip(probe.outputs, shapes, strict=True)):
        shape = probe.shape(value)
        is_open = value in steered if foreign else shape is not None and None in shape
        if is_open and not given.dynamic:
            return f"accepted, but the size of output {index} depends on the data"
    return None


def compare_outputs(
    request: ProbeRequest, outputs: Mapping[str, Tensor], stands_in: bool, rehearsed: bool = False
) -> Verdict:
    """Return the verdict by the outputs of a request, as ``sample:output``; a scalar may have the shape (1,)."""
    errors, reasons = [], []
    unordered = unordered_axis(request.probe)
    numbers = request.expected[:-1] if request.special else request.expected
    for number, expected in enumerate(numbers):
        for index, (name, array) in enumerate(expected.items()):
            right, actual = widened(array), outputs[f"{number}:{index}"].numpy()
            if right.shape == () and actual.shape == (1,):
                actual = actual.reshape(())
            if unordered is not None and right.ndim and actual.ndim:
                actual, right = np.sort(actual, unordered), np.sort(right, unordered)
            held = node_tolerance(request.probe, right, stands_in=stands_in, rehearsed=rehearsed)
            reason, error = held.reason(actual, right)
            if error is not None:
                errors.append(error)
            if reason is not None and _is_own(request, number, name, actual):
                request.unproven = request.unproven or Unproven(Obstacle.CONDITION)
            elif reason is not None:
                reasons.append(f"output {index}: {reason}")
    worst = max(errors, default=None)
    if reasons:
        return Verdict(Status.WRONG, reasons[0], worst, Proof.RUN)
    return Verdict(Status.OK, _made_of_nan(request, outputs), worst, Proof.RUN)


def _made_of_nan(request: ProbeRequest, outputs: Mapping[str, Tensor]) -> str:
    """Return what differs of the sample of NaN and infinities; empty if nothing does, or without such a sample.

    Only what is no number is compared: NaN, and infinities by their signs.
    """
    last = len(request.expected) - 1
    for index, right in enumerate(request.expected[last].values() if request.special else ()):
        expected, actual = (array.astype(np.float64).ravel() for array in (right, outputs[f"{last}:{index}"].numpy()))
        if expected.size == actual.size:
            kinds = [np.where(np.isfinite(array), 0, np.nan_to_num(array, nan=1)) for array in (expected, actual)]
            if (differing := np.flatnonzero(kinds[0] != kinds[1])).size:
                first = differing[0]
                return f"of NaN and infinities: {actual[first]:g} instead of {expected[first]:g}"
    return ""


def _is_own(request: ProbeRequest, number: int, name: str, actual: Array) -> bool:
    """Return whether a whole network, in a subgraph, moves by itself as far as an output differs.

    A single operator has a tolerance of its own, and what chooses between numbers jumps at ties, whoever computes it.
    """
    nodes = list(with_nested(request.probe.nodes))
    if request.probe.replaces is not None or not any(map(has_subgraphs, nodes)) or any(map(_chooses_of_floats, nodes)):
        return False
    expected = {name: request.expected[number][name]}
    try:
        moved = evaluations.evaluate(request.model, [_nudged(request.samples[number], seed) for seed in SEEDS])
    except NativeFailure:
        request.in_doubt = True
        return False
    runs = [compare({name: outputs[name]}, expected) for outputs in moved if outputs is not None]
    return bool(runs) and explains_all(compare({name: actual}, expected).outputs, runs)


def _nudged(sample: Mapping[str, Array], seed: int) -> dict[str, Array]:
    return {name: array for name, array in nudged(sample, seed).items() if isinstance(array, np.ndarray)}


def _chooses_of_floats(node: ir.Node) -> bool:
    dtypes = [value.dtype for value in node.inputs if value is not None]
    return chooses(node) and any(dtype is None or dtype.is_floating_point() for dtype in dtypes)


def _crash(status: int, printed: str) -> str:
    """Return the signal or status that a process ended with, and the last line that it printed."""
    how = signal.Signals(-status).name if status < 0 else f"exit status {status}"
    lines = [line.strip() for line in printed.splitlines() if line.strip()]
    last = re.sub(r"^.*?(?=Assertion )", "", lines[-1]) if lines else ""
    return f"{how}: {last}" if last else how
