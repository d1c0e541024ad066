"""`bisect` and `reduce` with ONNX Runtime's provider, and the lines that they write for its tracker."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import onnx
import pytest
from onnx import parser

import onnx_bridge
from onnx_bridge.core.errors import Step
from onnx_bridge.migraphx.runtime import Runtime
from onnx_bridge.parity.bisect.bisection import Component
from onnx_bridge.parity.symptoms.symptom import SymptomKind

HEAD = '<ir_version: 8, opset_import: ["": 18]> g '
BRANCH = (
    " n = ReduceSum<keepdims = 0>(y) zero = Constant<value = float {0}>() k = Greater(n, zero)"
    " z = If(k)<then_branch = t () => (float[1,1,7,9] o) { o = Sigmoid(y) },"
    " else_branch = u () => (float[1,1,7,9] p) { p = Mul(y, y) }>"
)
MODELS = {
    "rejected": (
        "(float[1,1,4,4] x) => (float[1,1,7,9] z) { a = Exp(x) n = Constant<value = int64[4] {1, 1, 7, 9}>()"
        ' y = Resize<mode = "linear", keep_aspect_ratio_policy = "stretch">(a, , , n) z = Tanh(y) }',
        "Resize",
        (Component.MIGRAPHX, Step.PARSE),
    ),
    "a scalar": (
        "(float[1,1,7,9] x) => (float z) { a = Exp(x) b = Tanh(a) z = ReduceMean<keepdims = 0>(b) }",
        "ReduceMean",
        (Component.PROVIDER, Step.RUN),
    ),
    "a branch": (
        f"(float[1,1,7,9] x) => (float[1,1,7,9] z) {{ y = Tanh(x) {BRANCH} }}",
        "If",
        (Component.PROVIDER, Step.SESSION),
    ),
}


@pytest.fixture(params=MODELS)
def failing(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, str, tuple[Component, Step]]:
    """A model, the operator with which a session with it fails, and what is at fault, in which step."""
    text, operator, blamed = MODELS[request.param]
    onnx.save(parser.parse_model(HEAD + text), tmp_path / "model.onnx")
    return tmp_path / "model.onnx", operator, blamed


def test_what_the_provider_gets_wrong_is_named_and_reduced_and_gone_when_converted(
    runtime: Runtime,
    tmp_path: Path,
    failing: tuple[Path, str, tuple[Component, Step]],
    with_wheel: Callable[[str, Path], CompletedProcess[str]],
) -> None:
    model, operator, blamed = failing
    bisection = onnx_bridge.bisect(model, application="onnxruntime", host=False, pipeline="none")
    fault = bisection.fault
    assert fault is not None and (fault.component, fault.step) == blamed
    assert operator in {node.operator for node in fault.nodes}
    reduction = onnx_bridge.reduce(model, tmp_path / "reduced", application="onnxruntime", pipeline="none")
    assert reduction.reproduction is not None and reduction.path is not None
    operators = [node.op_type for node in reduction.reproduction.model.graph if node.op_type != "Constant"]
    assert operators[-1] == operator and ("Tanh" not in operators or operator == "If")
    readme = (reduction.path / "README.md").read_text()
    (lines,) = re.findall("```python\n(.*?)```", readme, re.DOTALL)
    shown = with_wheel(lines, reduction.path)
    wrong = reduction.reproduction.symptom.kind is SymptomKind.WRONG
    assert (shown.returncode == 0) is wrong and ("expected" in shown.stdout) is wrong, shown.stderr
    bundle = onnx_bridge.convert(model, tmp_path / "out", application="onnxruntime")
    agreed = onnx_bridge.bisect(bundle.path)
    assert agreed.passed and Component.PROVIDER in agreed.runs
    assert onnx_bridge.reduce(bundle.path, tmp_path / "nothing").path is None
