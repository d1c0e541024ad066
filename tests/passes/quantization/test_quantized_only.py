"""Which passes a pipeline leaves out, and does not import, where a model is not quantized."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path
from typing import Any

import onnx_ir as ir
import pytest

import passes
from passes.graphs.quantization import is_quantized
from passes.rewriting.base import Context
from passes.rewriting.pipeline import Pipeline, Step
from passes.rewriting.rewrite import NodeRewrite
from tests.passes.harness import model

ROOT = Path(__file__).parents[3]
PRODUCTS = {("", "Conv"), ("", "Gemm"), ("", "MatMul")}
"""Of integers: the two passes that start from them need a DequantizeLinear at an operand."""
FLOAT = "(float[2, 3] x, float[3, 2] w) => (float[2, 2] y) { h = MatMul(x, w) y = Relu(h) }"
QUANTIZED = (
    "(float[2, 3] x) => (float[2, 3] y) {"
    "s = Constant <value_float = 0.5> () q = QuantizeLinear (x, s) d = DequantizeLinear (q, s) y = Relu (d) }"
)


def one_node(domain: str, operator: str) -> ir.Model:
    node = ir.Node(domain, operator, [])
    return ir.Model(ir.Graph([], [], nodes=[node], opset_imports={"": 17, domain: 1}), ir_version=10)


@pytest.mark.parametrize("name", sorted(passes.QUANTIZED_ONLY))
def test_their_operators_make_a_model_quantized(name: str) -> None:
    module = sys.modules[passes.get(name).__module__]
    rewrites = [each for each in vars(module).values() if inspect.isclass(each) and issubclass(each, NodeRewrite)]
    operators = {each for rewrite in rewrites for each in getattr(rewrite, "operators", ())}
    assert {each for each in operators if not is_quantized(one_node(*each))} <= PRODUCTS


@pytest.mark.parametrize("operator", ["Relu", "QuickGelu", "Cast"])
def test_other_operators_do_not(operator: str) -> None:
    assert not is_quantized(one_node("", operator))
    assert not is_quantized(one_node("com.microsoft", operator))


def summary(steps: list[Any]) -> list[dict[str, Any]]:
    left_out = ("seconds", "exactness")
    return [{key: value for key, value in each.to_json().items() if key not in left_out} for each in steps]


@pytest.mark.parametrize("text", [FLOAT, QUANTIZED], ids=["float", "quantized"])
def test_the_result_is_that_of_running_them(text: str) -> None:
    pipeline = Pipeline.parse("default")
    told: list[Step] = []
    found = pipeline.run(model(text), Context(), between=told.append)
    assert told == found
    assert summary(found) == summary(Pipeline(pipeline.passes).run(model(text), Context()))
    assert [each.name for each in found] == [each.name for each in pipeline.passes]


def test_a_model_that_a_pass_quantizes() -> None:
    class Quantize(passes.get("infer-shapes")):  # type: ignore[misc]
        """Quantize the output."""

        name = "quantize-in-a-test"

        def run(self, source: ir.Model, context: Context) -> Any:
            source.graph.node(0).op_type = "DequantizeLinear"
            found = super().run(source, context)
            found.rewrites.append(passes.rewriting.base.Rewrite(("a",)))
            return found

    pipeline = Pipeline(["explicit-zero-point", Quantize(), "explicit-zero-point"])
    before, _, after = pipeline.run(model("(uint8[2] x, float s) => (float[2] y) { y = Mul (x, s) }"), Context())
    assert not before.result.modified
    assert after.result.modified


def test_a_float_model_imports_neither_them_nor_what_asks_a_runtime() -> None:
    code = (
        "import sys\n"
        "from passes.rewriting.pipeline import Pipeline\n"
        "from tests.passes.harness import model\n"
        f"Pipeline.parse('default').run(model({FLOAT!r}))\n"
        "found = [name for name in sys.modules if name.startswith(('passes.quantization.', 'passes.probing.'))]\n"
        "assert not found, found"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
