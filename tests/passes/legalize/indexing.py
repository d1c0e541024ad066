"""Shared by tests of rules that rearrange, gather and scatter: one rule, on ONNX Runtime and MIGraphX."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from passes.rewriting.base import Context, Exactness, Result
from passes.rewriting.rewrite import NodeRewrite
from tests.passes.device import Device
from tests.passes.harness import Array, apply, model, reasons, run

DTYPES = ("float32", "float64", "float16", "int8", "int16", "int32", "int64", "uint8", "uint32", "uint64", "bool")
SOME = ("float32", "float16", "int64", "bool")
"""Enough for parametrized tests; property tests use all."""
ONNX = {"float32": "float", "float64": "double"}


def numbers(shape: tuple[int, ...], dtype: str = "float32", seed: int = 0) -> Array:
    """Numbers that every dtype can hold, without much repetition."""
    drawn = np.random.default_rng(seed).integers(0, 100, shape)
    return np.asarray(drawn % 2 if dtype == "bool" else drawn).astype(dtype)


def declared(name: str, array: Array) -> str:
    """Return how ONNX text declares an array: ``float[2,3] x``; without brackets for a scalar."""
    shape = f"[{','.join(map(str, array.shape))}]" if array.ndim else ""
    return f"{ONNX.get(array.dtype.name, array.dtype.name)}{shape} {name}"


def legal(
    rule: NodeRewrite,
    device: Device,
    nodes: str,
    inputs: Mapping[str, Array],
    outputs: str,
    *,
    opset: int = 18,
    rtol: float = 1e-5,
    matches: bool = True,
    **constants: Array,
) -> Result:
    """Apply a rule, and require the same numbers of ONNX Runtime before and after, and of MIGraphX.

    Args:
        rule: to be applied everywhere, by itself.
        device: where MIGraphX is.
        nodes: as ONNX text.
        inputs: of the graph, by name.
        outputs: of the graph, as ONNX text: ``float[2] y``.
        opset: of the standard operators.
        matches: whether the rule must match; else what it leaves must be right too.
        rtol: of rules that round; as much of the largest number is the absolute tolerance.
        constants: initializers, by name.
    """
    given = ", ".join(declared(name, array) for name, array in inputs.items())
    source = model(f"({given}) => ({outputs}) {{ {nodes} }}", opset=opset, **constants)
    expected = run(ir.to_proto(source), inputs)
    largest = max(float(np.abs(each.astype(np.float64)).max(initial=1)) for each in expected.values())
    result = apply(rule, source, rtol=rtol, atol=rtol * largest, inputs=inputs)
    assert result.rewrites or not matches
    tolerance = 0.0 if rule.exactness is Exactness.BITWISE else rtol
    for wanted, found in zip(expected.values(), device.run(ir.to_proto(result.model), inputs), strict=True):
        assert found.dtype == wanted.dtype
        if wanted.size == 0:  # a constant without elements has no axes there
            continue
        found = found.reshape(wanted.shape)  # and a scalar has one
        np.testing.assert_allclose(
            found.astype(np.float64), wanted.astype(np.float64), rtol=tolerance, atol=tolerance * largest
        )
    return result


def left(rule: NodeRewrite, text: str, *, opset: int = 18, **constants: Array) -> list[str]:
    """The reasons of a rule that does not change a model; empty if it does not match."""
    result = rule.run(model(text, opset=opset, **constants), Context())
    assert not result.rewrites
    return reasons(result)
