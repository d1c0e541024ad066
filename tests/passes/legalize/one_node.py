"""Shared by tests of legalization rules: a model of one node, and the checks of its replacement."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from passes.rewriting.base import Context
from passes.rewriting.rewrite import NodeRewrite
from tests.passes.device import Device, MIGraphX
from tests.passes.harness import Array, apply, operators, reasons, run

IR_VERSION = 10


@dataclass(frozen=True)
class Case:
    """A model of one node, and its inputs."""

    proto: onnx.ModelProto
    feeds: Mapping[str, Array]

    @property
    def model(self) -> ir.Model:
        """A model of its own."""
        return ir.from_proto(onnx.shape_inference.infer_shapes(self.proto))

    def expected(self) -> list[Array]:
        """The results of ONNX Runtime."""
        return list(run(self.proto, self.feeds).values())


def case(
    op_type: str,
    inputs: Sequence[Array | None],
    attributes: Mapping[str, Any] | None = None,
    *,
    opset: int = 21,
    constants: Collection[int] = (),
    outputs: int | Sequence[str] = 1,
    domain: str = "",
) -> Case:
    """A model of one node.

    Args:
        op_type: the operator.
        inputs: arrays, whose shapes and dtypes become those of the model's inputs; None for those left out.
        attributes: by name.
        opset: of the standard operators.
        constants: which inputs are initializers.
        outputs: how many, or their names, an empty one being left out.
        domain: the operator's.
    """
    names = [f"y{index}" for index in range(outputs)] if isinstance(outputs, int) else list(outputs)
    given = {f"x{index}": array for index, array in enumerate(inputs) if array is not None}
    fixed = {f"x{index}" for index in constants}
    node = onnx.helper.make_node(
        op_type,
        ["" if array is None else f"x{index}" for index, array in enumerate(inputs)],
        names,
        name="node",
        domain=domain,
        **(attributes or {}),
    )
    infos = [
        onnx.helper.make_tensor_value_info(name, onnx.helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in given.items()
        if name not in fixed
    ]
    graph = onnx.helper.make_graph(
        [node],
        "g",
        infos,
        [onnx.helper.make_empty_tensor_value_info(name) for name in names if name],
        [onnx.numpy_helper.from_array(array, name) for name, array in given.items() if name in fixed],
    )
    imports = [onnx.helper.make_opsetid("", opset)]
    if domain:
        imports.append(onnx.helper.make_opsetid(domain, 1))
    proto = onnx.helper.make_model(graph, opset_imports=imports, ir_version=IR_VERSION)
    proto = onnx.shape_inference.infer_shapes(proto)
    return Case(proto, {name: array for name, array in given.items() if name not in fixed})


def declare(source: Case, expected: Sequence[Array]) -> Case:
    """The case with declared outputs, for operators that shape inference does not support."""
    proto = onnx.ModelProto()
    proto.CopyFrom(source.proto)
    for info, array in zip(proto.graph.output, expected, strict=True):
        kind = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
        info.CopyFrom(onnx.helper.make_tensor_value_info(info.name, kind, array.shape))
    return Case(proto, source.feeds)


def legalized(
    rule: NodeRewrite,
    source: Case,
    expected: Sequence[Array] | None = None,
    *,
    device: Device | None = None,
    rtol: float = 1e-5,
    atol: float = 1e-6,
) -> list[str]:
    """Apply a rule to a node, check the replacement, and return its operators.

    The node is replaced, the checker agrees, the numbers are the same, and a second run finds nothing.

    Args:
        rule: applied by itself.
        source: the node.
        expected: its outputs, where ONNX Runtime does not know it.
        device: MIGraphX too has to compute what is expected, to the tolerance of the standard's own tests.
        rtol: of ONNX Runtime after and before; 0 for rules that say they are exact.
        atol: likewise.
    """
    model = source.model
    if expected is None:
        result = apply(rule, model, rtol=rtol, atol=atol, inputs=source.feeds)
        assert result.rewrites, reasons(result)
    else:
        result = rule.run(model, Context())
        assert result.rewrites, reasons(result)
        after = ir.to_proto(model)
        onnx.checker.check_model(after, full_check=True)
        for actual, wanted in zip(run(after, source.feeds).values(), expected, strict=True):
            agree(actual, wanted, rtol, atol)
        assert not rule.run(model, Context()).rewrites
    if isinstance(device, MIGraphX):
        expected = source.expected() if expected is None else expected
        for actual, wanted in zip(device.run(ir.to_proto(model), source.feeds), expected, strict=True):
            agree(actual.reshape(wanted.shape), wanted, 1e-3, 1e-6)
    return operators(model)


def agree(actual: Array, expected: Array, rtol: float, atol: float) -> None:
    """Require the same dtype and shape, and numbers that are close, NaN being itself."""
    assert actual.dtype == expected.dtype
    assert actual.shape == expected.shape
    np.testing.assert_allclose(actual.astype(np.float64), expected.astype(np.float64), rtol, atol)


def skipped(rule: NodeRewrite, source: Case) -> list[str]:
    """The reasons of a rule that does not change a node; empty if it does not match."""
    result = rule.run(source.model, Context())
    assert not result.rewrites
    return reasons(result)


def normal(*shape: int, dtype: Any = np.float32, seed: int = 0) -> Array:
    """Normally distributed floats, or integers between −9 and 9 (0 and 9 if unsigned)."""
    random = np.random.default_rng((seed, *shape))
    kind = np.dtype(dtype)
    if kind.kind in "iu":
        return random.integers(0 if kind.kind == "u" else -9, 9, shape).astype(kind)
    return np.asarray(random.standard_normal(shape)).astype(kind)
