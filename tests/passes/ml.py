"""Models of one operator of ai.onnx.ml."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx import TensorProto, helper

from passes.rewriting.base import Context, Pass
from tests.passes.harness import Array, reasons

Shape = tuple[int, ...]


def one(
    operator: str,
    *inputs: tuple[int, Shape],
    outputs: tuple[int, ...] = (TensorProto.FLOAT,),
    opset: int | None = 17,
    version: int = 3,
    **attributes: Any,
) -> ir.Model:
    """A model of one node, with inputs a, b, … and outputs y, z.

    Args:
        operator: of ai.onnx.ml.
        inputs: their dtypes and shapes.
        outputs: their dtypes.
        opset: of the standard operators; None for no import.
        version: of ai.onnx.ml.
        attributes: of the node; None for omitted ones.
    """
    given = {name: value for name, value in attributes.items() if value is not None}
    node = helper.make_node(
        operator, list("abcd"[: len(inputs)]), list("yz"[: len(outputs)]), domain="ai.onnx.ml", **given
    )
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info(name, *each) for name, each in zip("abcd", inputs, strict=False)],
        [helper.make_tensor_value_info(name, each, None) for name, each in zip("yz", outputs, strict=False)],
    )
    imports = [helper.make_opsetid("ai.onnx.ml", version)]
    if opset is not None:
        imports.append(helper.make_opsetid("", opset))
    proto = helper.make_model(graph, opset_imports=imports, ir_version=10)
    for value in proto.graph.output:
        value.type.tensor_type.ClearField("shape")
    return ir.from_proto(onnx.shape_inference.infer_shapes(proto))


def why_not(step: Pass, source: ir.Model) -> str:
    """The reason of the only skip of a pass that does nothing."""
    result = step.run(source, Context())
    assert not result.rewrites
    (reason,) = reasons(result)
    return reason


def numbers(shape: Shape, dtype: int = TensorProto.FLOAT, seed: int = 0) -> Array:
    """Seeded numbers, some of them equal and some of them zero."""
    random = np.random.default_rng(seed)
    found = np.round(random.standard_normal(shape) * 3, 1)
    kind: Array = found.astype(helper.tensor_dtype_to_np_dtype(dtype))
    return kind
