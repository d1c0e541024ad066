"""Branches that cannot be taken: the other one is computed ahead, and a run that takes the closed one fails."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest

from passes.cleanup.close_branches import BRANCHES, close_branch, closed_branch, force_branch, is_if
from passes.graphs.traversal import with_nested

TEXT = """<ir_version: 8, opset_import: ["": OPSET]> g (bool[1] c, KIND[2, n] x) => (KIND[2, n] y, int64 k) {
    y, k = If (c) <
        then_branch = yes () => (KIND[2, n] a, int64 i) { a = Identity(x) i = Constant <value = int64 {1}> () },
        else_branch = no () => (KIND[2, n] b, int64 j) { b = Identity(x) j = Size(x) }
    > }"""


def run(model: ir.Model, condition: bool, kind: str) -> list[np.ndarray]:
    proto = ir.to_proto(model)
    onnx.checker.check_model(proto, full_check=True)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options)
    x = np.arange(6).reshape(2, 3).astype({"float": np.float32, "bool": bool, "string": object}.get(kind, kind))
    return list(session.run(None, {"c": np.array([condition]), "x": x}))


@pytest.mark.parametrize("opset", [9, 16, 21])
@pytest.mark.parametrize("kind", ["float", "bool", "float16", "uint8", "double"])
@pytest.mark.parametrize("closed", list(BRANCHES))
def test_only_the_other_branch_runs(closed: str, kind: str, opset: int) -> None:
    model = ir.from_proto(onnx.parser.parse_model(TEXT.replace("OPSET", str(opset)).replace("KIND", kind)))
    open_ = closed == "else_branch"
    expected = run(model, open_, kind)
    node = next(node for node in model.graph if is_if(node))
    assert close_branch(model, node, closed, "too small")
    assert closed_branch(node) == closed
    for actual, right in zip(run(model, open_, kind), expected, strict=True):
        np.testing.assert_array_equal(actual, right)
    with pytest.raises(Exception, match=f"{closed} of "):
        run(model, not open_, kind)
    inside = [inner.op_type for name in BRANCHES for inner in with_nested(node.attributes[name].as_graph())]
    assert "Size" not in inside or closed == "then_branch"


def test_what_is_not_closed() -> None:
    model = ir.from_proto(onnx.parser.parse_model(TEXT.replace("OPSET", "8").replace("KIND", "float")))
    assert not close_branch(model, next(iter(model.graph)), "then_branch", "")


@pytest.mark.parametrize("branch", list(BRANCHES))
def test_forcing(branch: str) -> None:
    model = ir.from_proto(onnx.parser.parse_model(TEXT.replace("OPSET", "16").replace("KIND", "float")))
    force_branch(model, next(iter(model.graph)), branch)
    assert not any(map(is_if, with_nested(model.graph)))
    assert run(model, False, "float")[1] == (1 if branch == "then_branch" else 6)
