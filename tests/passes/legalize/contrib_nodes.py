"""Models of one node, and the checks of a rule: the same results by ONNX Runtime, and by MIGraphX."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from passes.rewriting.base import Context, Pass, Result
from passes.rewriting.rewrite import NodeRewrite
from tests.passes.device import Device
from tests.passes.harness import Array, apply, operators, run

MICROSOFT = "com.microsoft"


def random(*shape: int, seed: int = 0, dtype: str = "float32") -> Array:
    """Normally distributed numbers, reproducible for a shape and a seed."""
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(dtype)


def node_model(
    op_type: str,
    inputs: Mapping[str, Array | None],
    outputs: Sequence[str] = ("y",),
    attributes: Mapping[str, Any] | None = None,
    *,
    opset: int = 17,
    domain: str = MICROSOFT,
    constants: Collection[str] = (),
    dtypes: Mapping[str, int] | None = None,
) -> onnx.ModelProto:
    """A model of one node, whose outputs have the shapes that ONNX Runtime gives them.

    Args:
        op_type: the operator.
        inputs: arrays by name, in order; None for an omitted one.
        outputs: names, empty for omitted ones.
        attributes: by name.
        opset: of the standard operators.
        domain: the operator's.
        constants: which inputs are initializers.
        dtypes: of the outputs that are not those of the first floating input.
    """
    arrays = {name: array for name, array in inputs.items() if array is not None}
    first = next(array for array in arrays.values() if array.dtype.kind == "f")
    kinds = {name: onnx.helper.np_dtype_to_tensor_dtype(first.dtype) for name in outputs} | dict(dtypes or {})
    names = [name if array is not None else "" for name, array in inputs.items()]
    node = onnx.helper.make_node(op_type, names, outputs, name="node", domain=domain, **dict(attributes or {}))
    graph = onnx.helper.make_graph(
        [node],
        "g",
        [
            onnx.helper.make_tensor_value_info(name, onnx.helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
            for name, array in arrays.items()
            if name not in constants
        ],
        [onnx.helper.make_tensor_value_info(name, kinds[name], None) for name in outputs if name],
        [onnx.numpy_helper.from_array(arrays[name], name) for name in constants if name in arrays],
    )
    imports = {"": opset, domain: 1} if domain else {"": opset}
    model = onnx.helper.make_model(
        graph, opset_imports=[onnx.helper.make_opsetid(*each) for each in imports.items()], ir_version=10
    )
    given = {name: array for name, array in arrays.items() if name not in constants}
    for info, array in zip(list(graph.output), run(model, given).values(), strict=True):
        kind = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
        next(each for each in model.graph.output if each.name == info.name).CopyFrom(
            onnx.helper.make_tensor_value_info(info.name, kind, array.shape)
        )
    return model


def holds(
    rule: Pass,
    op_type: str,
    inputs: Mapping[str, Array | None],
    outputs: Sequence[str] = ("y",),
    attributes: Mapping[str, Any] | None = None,
    *,
    device: Device | None = None,
    tolerance: float = 1e-4,
    also: Sequence[NodeRewrite] = (),
    **options: Any,
) -> list[str]:
    """Apply a rule to a model of one node, with all that `apply` requires; the operators that it leaves.

    Args:
        rule: rewrites it.
        op_type: see `node_model`, likewise the others.
        inputs: arrays by name.
        outputs: names.
        attributes: by name.
        device: where MIGraphX has to compute the same; it is not asked where there is none.
        tolerance: relative and absolute.
        also: rules for what the first makes, before MIGraphX is asked.
        options: for `node_model`.
    """
    proto = node_model(op_type, inputs, outputs, attributes, **options)
    constants = options.get("constants", ())
    given = {name: array for name, array in inputs.items() if array is not None and name not in constants}
    expected = run(proto, given)
    model = ir.from_proto(proto)
    result = apply(rule, model, rtol=tolerance, atol=tolerance, inputs=given)
    assert result.rewrites, result.skips
    made = operators(model)
    if device is not None:
        for other in also:
            other.run(model, Context())
        for array, wanted in zip(device.run(ir.to_proto(model), given), expected.values(), strict=True):
            np.testing.assert_allclose(array.reshape(wanted.shape), wanted, tolerance, tolerance)
    return made


def skips(
    rule: Pass,
    op_type: str,
    inputs: Mapping[str, Array | None],
    attributes: Mapping[str, Any],
    outputs: Sequence[str] = ("y",),
    **options: Any,
) -> list[str]:
    """Return why a rule leaves a node, which it must, as it is; see `holds`."""
    model = ir.from_proto(node_model(op_type, inputs, outputs, attributes, **options))
    result: Result = rule.run(model, Context())
    assert not result.rewrites
    assert operators(model) == [op_type]
    return [skip.reason for skip in result.skips]
