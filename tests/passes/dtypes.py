"""What tests of rules about dtypes share: models of one operator or few, and numbers that must agree bit for bit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
from onnx import helper
from onnx.reference import ReferenceEvaluator

from passes.cleanup.remove_dead import RemoveDead
from passes.evaluation.saturation import without_saturation
from passes.graphs.tensors import tensor_proto
from passes.rewriting.base import Context, Pass
from tests.passes.harness import Array, reasons

T = onnx.TensorProto


def single(
    op_type: str,
    inputs: Sequence[Array | None],
    outputs: Sequence[int],
    *,
    constant: Iterable[int] = (),
    opset: int = 21,
    domain: str = "",
    more: Mapping[str, Any] | None = None,
    **attributes: Any,
) -> tuple[ir.Model, dict[str, Array]]:
    """A model of one node, and its inputs by name: ``i0``, ``i1``, …; the outputs are ``y0``, ``y1``, …

    Args:
        op_type: the operator.
        inputs: arrays; None for those left out.
        outputs: their ONNX dtypes.
        constant: the indices of inputs that are initializers.
        opset: of the standard operators.
        domain: the operator's.
        more: attributes by the name of an argument here.
        attributes: the node's.
    """
    names = ["" if array is None else f"i{index}" for index, array in enumerate(inputs)]
    node = helper.make_node(op_type, names, [f"y{index}" for index in range(len(outputs))], domain=domain)
    node.attribute.extend(helper.make_attribute(*each) for each in {**attributes, **(more or {})}.items())
    arrays = {name: array for name, array in zip(names, inputs, strict=True) if array is not None}
    return chain([node], arrays, dict(zip(node.output, outputs, strict=True)), [f"i{each}" for each in constant], opset)


def chain(
    nodes: Sequence[onnx.NodeProto],
    arrays: Mapping[str, Array],
    outputs: Mapping[str, int],
    constant: Iterable[str] = (),
    opset: int = 21,
) -> tuple[ir.Model, dict[str, Array]]:
    """A model of some nodes, and its inputs by name.

    Args:
        nodes: in order.
        arrays: what they take, by name.
        outputs: ONNX dtypes by name.
        constant: which of the arrays are initializers.
        opset: of the standard operators.
    """
    fixed = set(constant)
    graph = helper.make_graph(
        nodes,
        "g",
        [
            helper.make_tensor_value_info(name, ir.DataType.from_numpy(each.dtype).value, each.shape)
            for name, each in arrays.items()
            if name not in fixed
        ],
        [helper.make_tensor_value_info(name, dtype, None) for name, dtype in outputs.items()],
        [tensor_proto(ir.tensor(arrays[name]), name) for name in sorted(fixed)],
    )
    imports = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    proto = helper.make_model(graph, opset_imports=imports, ir_version=12)
    model = ir.from_proto(onnx.shape_inference.infer_shapes(proto))
    return model, {name: each for name, each in arrays.items() if name not in fixed}


def on_ort(proto: onnx.ModelProto, inputs: Mapping[str, Array]) -> list[Array]:
    """All outputs, by ONNX Runtime without optimizations, which also takes dtypes that numpy does not know."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(
        without_saturation(proto.SerializeToString()), options, providers=["CPUExecutionProvider"]
    )
    given = {}
    for name, each in inputs.items():
        dtype = ir.DataType.from_numpy(each.dtype)
        plain = each if each.dtype.kind in "biuf" else each.view(f"u{each.dtype.itemsize}")
        given[name] = ort.OrtValue.ortvalue_from_numpy_with_onnx_type(np.ascontiguousarray(plain), dtype.value)
    return [value.numpy() for value in session.run_with_ort_values(None, given)]


def on_onnx(proto: onnx.ModelProto, inputs: Mapping[str, Array]) -> list[Array]:
    """All outputs, by ONNX's own reference."""
    return [np.asarray(each) for each in ReferenceEvaluator(proto).run(None, dict(inputs))]


def rewritten(rule: Pass, model: ir.Model) -> onnx.ModelProto:
    """Apply a rule, which the checker accepts, and which finds nothing a second time; then drop what is unused."""
    result = rule.run(model, Context())
    assert result.rewrites, reasons(result)
    onnx.checker.check_model(ir.to_proto(result.model), full_check=True)
    assert not rule.run(result.model, Context()).rewrites
    RemoveDead().run(result.model, Context())
    return ir.to_proto(result.model)


def why_not(rule: Pass, model: ir.Model) -> list[str]:
    """The reasons for which a rule does nothing."""
    result = rule.run(model, Context())
    assert not result.rewrites
    return reasons(result)


def same(actual: Sequence[Array], expected: Sequence[Array], tolerance: float = 0.0) -> None:
    """Require equal dtypes and numbers, NaN and the signs of zeros included.

    Args:
        actual: what was computed.
        expected: by the reference.
        tolerance: relative and absolute; with 0, not a bit may differ.
    """
    for one, other in zip(actual, expected, strict=True):
        assert one.dtype == other.dtype
        one = one.reshape(other.shape)
        if other.dtype.kind in "biu" and not tolerance:
            np.testing.assert_array_equal(one, other)
            continue
        one, other = one.astype(np.float64), other.astype(np.float64)
        np.testing.assert_allclose(one, other, tolerance, tolerance)
        if not tolerance:
            known = ~np.isnan(other)
            np.testing.assert_array_equal(np.signbit(one)[known], np.signbit(other)[known])
