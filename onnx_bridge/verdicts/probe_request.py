"""From a probe to a request that MIGraphX can carry out, with the outputs that are expected.

A probe is compiled for ``ref``; if it is also run, its outputs are compared with the reference.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from onnx_bridge.migraphx.program import Tensor, type_of
from onnx_bridge.reference import evaluations
from onnx_bridge.reference.evaluations import Values
from onnx_bridge.verdicts.probe_samples import samples, special_sample
from passes.graphs.byte_strings import from_proto
from passes.graphs.traversal import has_subgraphs
from passes.isolation.failure import NativeFailure
from passes.probing.probe import Probe
from passes.rewriting.base import Obstacle, Unproven

TARGET = "ref"

_TYPES = {
    ir.DataType.INT4: "int8_type",
    ir.DataType.UINT4: "uint8_type",
    ir.DataType.FLOAT4E2M1: "fp4x2_type",
}
"""The types that MIGraphX uses instead of dtypes that it lacks."""


@dataclass
class ProbeRequest:
    """A probe as MIGraphX gets it.

    Attributes:
        model: its model, serialized.
        whole: whether the model has the elements of all constants.
        expected: the right outputs for each sample.
        unproven: why it is not run, or why its run proves too little; None if it proves all.
        in_doubt: whether the reference did not answer, which it may do the next time.
        special: whether the last sample is one of NaN and infinities: what is made of these alone is no wrong verdict.
    """

    probe: Probe
    model: bytes
    whole: bool
    samples: list[Values] = field(default_factory=list)
    expected: list[Values] = field(default_factory=list)
    unproven: Unproven | None = None
    in_doubt: bool = False
    special: bool = False

    def with_special_sample(self) -> ProbeRequest:
        """Return the request with a sample of NaN and infinities, if the probe is of an operator on floats."""
        if not self.samples or self.probe.replaces is not None:
            return self
        sample = special_sample(from_proto(onnx.ModelProto.FromString(self.model)), self.samples[0])
        if sample is None:
            return self
        try:
            (outputs,) = evaluations.evaluate(self.model, [sample])
        except NativeFailure:
            return self
        if outputs is None:
            return self
        return replace(self, samples=[*self.samples, sample], expected=[*self.expected, outputs], special=True)

    @property
    def reload(self) -> bool:
        """True if its program is saved and loaded before it runs: MIGraphX 2.14 loads some control flow wrong."""
        return any(map(has_subgraphs, self.probe.nodes))

    @property
    def empty_inputs(self) -> dict[str, list[int]]:
        """The shapes of inputs without elements: MIGraphX reads a size of 0 as unknown unless it is given."""
        shapes = (self.probe.shape(value) for value in self.probe.inputs)
        return {f"v{index}": [dim or 0 for dim in shape] for index, shape in enumerate(shapes) if shape and 0 in shape}

    def tensors(self, prefix: str) -> dict[str, Tensor]:
        """Return the model as ``prefix``, and the inputs as ``prefix:sample:name``."""
        tensors = {prefix: Tensor("uint8_type", np.frombuffer(self.model, np.uint8))}
        for number, sample in enumerate(self.samples):
            tensors |= {f"{prefix}:{number}:{name}": Tensor.of(widened(array)) for name, array in sample.items()}
        return tensors

    def to_json(self) -> dict[str, Any]:
        """Return the request without its tensors."""
        samples = [list(sample) for sample in self.samples]
        return {"reload": self.reload, "shapes": self.empty_inputs, "samples": samples}


def prepare(
    probe: Probe, *, run: bool, edge_cases: bool = True, full: bool = False, by_onnx: bool = False
) -> ProbeRequest:
    """Return the request for a probe.

    Args:
        probe: a probe without a problem.
        run: whether it is small enough to be run.
        edge_cases: whether it is run on samples of edge cases as well.
        full: whether its model has all constants, whatever their size.
        by_onnx: whether ONNX's own evaluator, and not ONNX Runtime, computes what the probe replaces.
    """
    if not run:
        model = probe.to_proto(full=full).SerializeToString()
        return ProbeRequest(probe, model, full or probe.has_all_data, unproven=Unproven(Obstacle.SIZE))
    proto = probe.to_proto(full=True)
    request = ProbeRequest(probe, proto.SerializeToString(), True)
    dtypes = [ir.DataType(value.type.tensor_type.elem_type) for value in proto.graph.input]
    unfed = [dtype for dtype in dtypes if migraphx_type(dtype) in (None, "fp4x2_type")]  # MIGraphX wants it packed
    if not _is_determined(probe):
        request.unproven = Unproven(Obstacle.ORDER)
    elif unfed:
        request.unproven = Unproven(Obstacle.DTYPE, unfed[0].name.lower())
    else:
        try:
            if not _expect_original(request, proto, by_onnx):
                given = samples(from_proto(proto), probe.input_ranges, edge_cases=edge_cases)
                _expect(request, given, evaluations.evaluate(request.model, given))
                if probe.replaces is not None:
                    request.unproven = Unproven(Obstacle.REFERENCE, f"{probe.replaces.problem or 'what it replaces'}")
            if not request.samples:
                request.unproven = Unproven(Obstacle.REFERENCE)
        except NativeFailure as failure:
            request.unproven, request.in_doubt = Unproven(Obstacle.REFERENCE, failure.what), True
    return request


def _expect_original(request: ProbeRequest, proto: onnx.ModelProto, by_onnx: bool) -> bool:
    """Expect the outputs of what the probe replaces, for samples that suit that; False without a reference for it."""
    original, places = request.probe.replaces, request.probe.input_indices(full=True)
    if original is None or original.problem is not None or places is None or not _is_determined(original):
        return False
    before = original.to_proto(full=True)
    given = samples(from_proto(before), original.input_ranges)
    original_names = [[value.name for value in values] for values in (before.graph.input, before.graph.output)]
    inputs = {ours.name: original_names[0][place] for ours, place in zip(proto.graph.input, places, strict=True)}
    outputs = dict(zip((output.name for output in proto.graph.output), original_names[1], strict=True))
    answers = evaluations.evaluate(before.SerializeToString(), given, by_onnx=by_onnx)
    _expect(
        request,
        [{ours: sample[name] for ours, name in inputs.items()} for sample in given],
        [None if answer is None else {ours: answer[name] for ours, name in outputs.items()} for answer in answers],
    )
    return bool(request.samples)


def _expect(request: ProbeRequest, given: Sequence[Values], answers: Sequence[Values | None]) -> None:
    for sample, outputs in zip(given, answers, strict=True):
        if outputs is not None:  # a sample that the reference refuses proves nothing
            request.samples.append(sample)
            request.expected.append(outputs)


def _is_determined(probe: Probe) -> bool:
    """Return whether ONNX defines the outputs of the probe, up to rounding and the order along `unordered_axis`."""
    return unordered_axis(probe) is not None or not any(map(_is_unordered, probe.nodes))


def unordered_axis(probe: Probe) -> int | None:
    """Return the axis along which outputs of a probe, or of what it replaces, have no defined order, or None."""
    nodes = (probe.replaces or probe).nodes
    return nodes[0].attributes.get_int("axis", -1) if len(nodes) == 1 and _is_unordered(nodes[0]) else None


def _is_unordered(node: ir.Node) -> bool:
    return node.op_type == "TopK" and not node.attributes.get_int("sorted", 1)


def migraphx_type(dtype: ir.DataType) -> str | None:
    """Return MIGraphX's type for a dtype; None if it has none."""
    unknown = dtype in (ir.DataType.STRING, ir.DataType.UNDEFINED)
    return _TYPES.get(dtype) or (None if unknown else type_of(dtype.numpy()))


def widened(array: np.ndarray[Any, np.dtype[Any]]) -> np.ndarray[Any, np.dtype[Any]]:
    """Return 4-bit integers as 8-bit integers, as MIGraphX has them."""
    if array.dtype.name in ("int4", "uint4"):
        return array.astype(np.int8 if array.dtype.name == "int4" else np.uint8)
    return array
