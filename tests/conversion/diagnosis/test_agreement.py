"""`doctor` and `convert` agree: on whether a model runs, on what runs where, and on every node."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import onnx_bridge
from fixtures.suites.differential import run
from onnx_bridge.conversion.diagnosis.diagnosis import NOT_NEEDED, NodeDiagnosis
from onnx_bridge.conversion.diagnosis.diagnosis import PlannedAction as Action
from onnx_bridge.conversion.sizes.open_sizes import OpenSizesError
from onnx_bridge.core.errors import BridgeError
from onnx_bridge.migraphx.process.printed_error import PrintedError
from onnx_bridge.migraphx.runtime import Runtime
from tests.passes.harness import model


@pytest.fixture(scope="module")
def generator() -> Iterator[run.Judges]:
    judges = run.Judges(11, legalize=False, every=0)
    yield judges
    judges.close()


def contradiction(node: NodeDiagnosis) -> bool:
    """Return whether a node is to run on MIGraphX as it is, though something is known against it."""
    return node.action is Action.UNCHANGED and node.verdict != "ok"


@pytest.mark.runtime
@pytest.mark.parametrize("index", [0, 4, 12, 13, 20, 22, 24])
def test_generated_models(generator: run.Judges, runtime: Runtime, tmp_path: Path, index: int) -> None:
    source = ir.from_proto(onnx.ModelProto.FromString(generator.judge(index).model))
    dims: dict[str, int] = {}
    try:
        diagnosis = onnx_bridge.doctor(source, dim_default=1)
    except OpenSizesError as error:  # both refuse sizes that nobody chose, and advise others
        with pytest.raises(OpenSizesError) as refusal:
            onnx_bridge.convert(source, tmp_path / "out", target="ref", prove="never", dim_default=1)
        assert refusal.value.details == error.details
        dims = error.advised
        diagnosis = onnx_bridge.doctor(source, dims=dims, dim_default=1)
    assert not [node for node in diagnosis.nodes if contradiction(node)]
    try:
        bundle = onnx_bridge.convert(source, tmp_path / "out", target="ref", prove="never", dims=dims, dim_default=1)
    except BridgeError:
        assert not diagnosis.passed
        return
    assert diagnosis.passed
    manifest = bundle.manifest
    if manifest.partitions:
        planned = [(part["side"] == "device", part["nodes"]) for part in diagnosis.partitions]
        assert [(part.program is not None, part.nodes) for part in manifest.partitions] == planned


ONE = np.ones(1, np.float32)
CASES = {
    "constants-of-sizes": ("(float[N,4] x) => (y) { s = Shape(x) k = ConstantOfShape(s) y = Add(x, k) }", {}),
    "merged": ("(float[2,4] x) => (y) { a = Transpose(x) b = Transpose(a) y = Mul(b, one) }", {"one": ONE}),
    "branches": ("(float[2,4] x) => (y) { c = Size(one) t = Cast<to=9>(c) y = If(t) <then_branch = t () => (a)"
                 " { a = Relu(x) }, else_branch = e () => (b) { b = NonZero(x) }> }", {"one": ONE}),
    "open": ("(float[N,M] x) => (y) { s = Shape(x) r = Reshape(x, s) y = Expand(r, s) }", {}),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_what_cleaning_cures_is_not_judged(name: str, runtime: Runtime) -> None:
    text, arrays = CASES[name]
    diagnosis = onnx_bridge.doctor(model(text, **arrays), dim_default=1)
    assert diagnosis.passed
    assert {node.verdict for node in diagnosis.nodes} <= {"ok", NOT_NEEDED}
    assert all(node.action is Action.REMOVED for node in diagnosis.nodes if node.verdict == NOT_NEEDED)


def test_an_input_of_unknown_rank_is_refused_by_both(runtime: Runtime, tmp_path: Path) -> None:
    source = model("(float[2] x) => (y) { y = Relu(x) }")
    source.graph.inputs[0].shape = None
    assert "number of dimensions is unknown" in onnx_bridge.doctor(source).problem
    with pytest.raises(BridgeError, match="number of dimensions is unknown"):
        onnx_bridge.convert(source, tmp_path / "out", target="ref")


def test_a_valid_model_is_not_called_invalid() -> None:
    where = "Error: /a/onnx_parser.cpp:42: parse_graph: PARSE_GRAPH:"
    printed = f'{where} invalid onnx file. Input "k" is unavailable due to unordered nodes!'
    assert PrintedError.parse(printed).text == "it has parsed no node that computes 'k'"
