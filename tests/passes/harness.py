"""Helpers for tests of one rewrite: small models as text, and checks of what every rewrite guarantees."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort

from passes.evaluation.saturation import without_saturation
from passes.graphs import lineage
from passes.graphs.scopes import scopes
from passes.rewriting.base import Budget, Context, Exactness, Pass, Result

Array = np.ndarray[Any, np.dtype[Any]]


def model(text: str, *, opset: int = 17, functions: str = "", **constants: Any) -> ir.Model:
    """A model of ONNX text whose free names are ``constants``, initializers of the main graph.

    Args:
        text: the main graph, as in ``(float[2] x) => (float[2] y) { y = Add(x, w) }``.
        opset: of the standard operators.
        functions: more text, in the domain ``local``.
        constants: arrays, by name.
    """
    header = f'<ir_version: 10, opset_import: ["": {opset}, "local": 1]>'
    proto = onnx.parser.parse_model(f"{header} g {text} {functions}")
    for name, array in constants.items():
        proto.graph.initializer.append(ir.serde.serialize_tensor(ir.Tensor(array, name=name)))
    return ir.from_proto(onnx.shape_inference.infer_shapes(proto))


def feeds(proto: onnx.ModelProto, seed: int = 0) -> dict[str, Array]:
    """Normal numbers for every input; 3 for dimensions that are open."""
    random = np.random.default_rng(seed)
    found = {}
    for value in proto.graph.input:
        shape = [dim.dim_value or 3 for dim in value.type.tensor_type.shape.dim]
        dtype = onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        scale = 9 if dtype.kind in "iu" else 1
        found[value.name] = np.asarray(random.standard_normal(shape) * scale).astype(dtype)
    return found


def run(proto: onnx.ModelProto, inputs: Mapping[str, Array] | None = None, threads: int = 1) -> dict[str, Array]:
    """All outputs, by ONNX Runtime without optimizations."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    options.intra_op_num_threads = threads
    session = ort.InferenceSession(
        without_saturation(proto.SerializeToString()), options, providers=["CPUExecutionProvider"]
    )
    names = [value.name for value in session.get_outputs()]
    return dict(zip(names, session.run(names, dict(inputs or feeds(proto))), strict=True))


def apply(
    step: Pass, source: ir.Model, *, rtol: float = 1e-5, atol: float = 1e-5, inputs: Mapping[str, Array] | None = None
) -> Result:
    """Run a pass, and check what every rewrite guarantees.

    The model is valid, with the same numbers, inputs and outputs as before; a second run finds nothing; new nodes
    record the pass and their origin.
    """
    before = ir.to_proto(source)
    old = set(all_nodes(source))
    result = step.run(source, Context())
    after = ir.to_proto(result.model)
    onnx.checker.check_model(after, full_check=True)
    assert interface(after) == interface(before)
    given = inputs or feeds(before)
    expected, actual = run(before, given), run(after, given)
    for name, array in expected.items():
        assert actual[name].dtype == array.dtype
        exact = step.exactness is Exactness.BITWISE or not result.rewrites
        np.testing.assert_allclose(
            actual[name].astype(np.float64), array.astype(np.float64), rtol * (not exact), atol * (not exact)
        )
    names = {node.name for node in old}
    for node in all_nodes(result.model):
        if node not in old and node.op_type != "Constant":
            assert node.metadata_props[lineage.PASS] == step.name
            assert names.issuperset(json.loads(node.metadata_props[lineage.ORIGIN]))
    assert not step.run(result.model, Context()).rewrites
    return result


def stops(step: Pass, source: ir.Model, limit: int) -> int:
    """Return how many rewrites a pass commits that may commit ``limit``."""
    return len(step.run(source, Context(budget=Budget(limit))).rewrites)


def all_nodes(source: ir.Model) -> Iterator[ir.Node]:
    """Return the nodes of the main graph, of its subgraphs and of all functions."""
    for scope in scopes(source):
        yield from scope.nodes()


def operators(source: ir.Model) -> list[str]:
    """The operators of all nodes, without constants."""
    return [node.op_type for node in all_nodes(source) if node.op_type != "Constant"]


def reasons(result: Result) -> list[str]:
    """Return why a pass left what it left."""
    return [skip.reason for skip in result.skips]


def interface(proto: onnx.ModelProto) -> list[str]:
    """Names and types of inputs and outputs."""
    return [
        str(value.name) + str(value.type.tensor_type.elem_type) for value in (*proto.graph.input, *proto.graph.output)
    ]
