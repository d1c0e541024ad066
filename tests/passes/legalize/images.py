"""Shared by tests of rules for images: a model of one operator, and its results in both runtimes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx import helper
from onnxruntime.capi import onnxruntime_pybind11_state as ort_errors

from passes.rewriting.base import Context, Pass, Result
from tests.passes.device import Device
from tests.passes.harness import Array, apply, reasons, run

REFUSALS = (ort_errors.Fail, ort_errors.InvalidArgument, ort_errors.RuntimeException, ort_errors.NotImplemented)
"""The errors of ONNX Runtime for what it does not support."""


def floats(*shape: int, seed: int = 0) -> Array:
    """Normal numbers."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def one(
    operator: str,
    inputs: Mapping[str, Array | None],
    *,
    opset: int = 17,
    constants: tuple[str, ...] = (),
    outputs: int = 1,
    **attributes: Any,
) -> tuple[ir.Model, dict[str, Array]]:
    """A model of one node, and its inputs.

    Args:
        operator: of the standard domain.
        inputs: by name, in order; None for those left out.
        opset: of the model.
        constants: the inputs that are initializers.
        outputs: how many; of the dtype of the first input, those of MaxPool beyond the first are int64.
        attributes: of the node.
    """
    arrays = {name: array for name, array in inputs.items() if array is not None}
    names = [name if array is not None else "" for name, array in inputs.items()]
    node = helper.make_node(operator, names, [f"y{index}" for index in range(outputs)], name="node", **attributes)
    kind = helper.np_dtype_to_tensor_dtype(next(iter(arrays.values())).dtype)
    kinds = [kind if index == 0 else onnx.TensorProto.INT64 for index in range(outputs)]
    graph = helper.make_graph(
        [node],
        "graph",
        [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
            for name, array in arrays.items()
            if name not in constants
        ],
        [helper.make_tensor_value_info(f"y{index}", each, None) for index, each in enumerate(kinds)],
        [onnx.numpy_helper.from_array(arrays[name], name) for name in constants if name in arrays],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    feeds = {name: array for name, array in arrays.items() if name not in constants}
    return ir.from_proto(onnx.shape_inference.infer_shapes(proto)), feeds


def refused(source: ir.Model, feeds: Mapping[str, Array]) -> bool:
    """Return whether ONNX Runtime does not support the model."""
    try:
        run(ir.to_proto(source), feeds)
    except REFUSALS:
        return True
    return False


def skipped(step: Pass, source: ir.Model) -> list[str]:
    """Return why a rule leaves a model alone, which it must."""
    result = step.run(source, Context())
    assert not result.rewrites
    return reasons(result)


def check(
    step: Pass,
    source: ir.Model,
    feeds: Mapping[str, Array],
    device: Device,
    *,
    rtol: float = 1e-4,
    atol: float = 1e-5,
    then: Callable[[ir.Model], None] | None = None,
) -> Result:
    """Apply a rule, with all that it owes, and require the same numbers from MIGraphX.

    Args:
        step: the rule.
        source: rewritten in place.
        feeds: the inputs.
        device: where MIGraphX is.
        rtol: by how much numbers may differ.
        atol: likewise.
        then: what else to do to the model before MIGraphX takes it, as other rules would.
    """
    expected = run(ir.to_proto(source), feeds)
    result = apply(step, source, rtol=rtol, atol=atol, inputs=feeds)
    assert result.rewrites, reasons(result)
    if then is not None:
        then(source)
    found = device.run(ir.to_proto(source), {name: np.asarray(array, order="C") for name, array in feeds.items()})
    assert len(found) == len(expected)
    for actual, wanted in zip(found, expected.values(), strict=True):
        assert actual.dtype == wanted.dtype
        np.testing.assert_allclose(actual, wanted, rtol, atol, verbose=True)
    return result
