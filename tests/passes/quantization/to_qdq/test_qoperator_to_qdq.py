"""qoperator-to-qdq: chains of operators on integers, whose shapes become known one after the other."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from passes.quantization.to_qdq.qoperator_to_qdq import qoperator_to_qdq
from passes.rewriting.base import Context
from tests.passes.harness import operators, run
from tests.passes.helpers import tiny

S, Z = np.float32(0.05), np.uint8(128)


def test_a_chain() -> None:
    source = tiny(
        """(uint8[2,6] x) => (uint8[2,5] y) { a = com.microsoft.QLinearAdd(x, s, z, x, s, z, s, z)
            b = com.microsoft.QLinearSigmoid(a, s, z, t, u) c = com.microsoft.QGemm(b, t, u, w, s, v, k, s, z)
            y = com.microsoft.QLinearMul(c, s, z, c, s, z, s, z) }""",
        s=S,
        z=Z,
        t=np.float32(1 / 256),
        u=np.uint8(0),
        w=np.random.default_rng(0).integers(-50, 50, (6, 5)).astype(np.int8),
        v=np.int8(0),
        k=np.arange(5, dtype=np.int32) * 1000,
    )
    source.opset_imports["com.microsoft"] = 1
    inputs = {"x": np.random.default_rng(1).integers(0, 256, (2, 6)).astype(np.uint8)}
    before = run(ir.to_proto(source), inputs)["y"]
    result = qoperator_to_qdq.run(source, Context())
    assert len(result.rewrites) == 4
    assert not [node for node in source.graph if node.domain]
    after = run(ir.to_proto(source), inputs)["y"]
    assert np.abs(after.astype(int) - before).max() <= 1
    assert not qoperator_to_qdq.run(source, Context()).rewrites


def test_nothing_to_do() -> None:
    source = tiny("(float[2] x) => (float[2] y) { y = Abs(x) }")
    assert not qoperator_to_qdq.run(source, Context()).rewrites
    assert operators(source) == ["Abs"]
