"""Where MIGraphX's time goes: what it prints is read, and followed back to ONNX."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import onnx_bridge
from onnx_bridge.benchmark.bench import bench
from onnx_bridge.benchmark.operators import HOST, Instruction, OperatorTime, instructions, per_operator, summarize
from onnx_bridge.benchmark.outcome import Baseline, Row
from onnx_bridge.core.schema import read_as
from onnx_bridge.model import io as models
from onnx_bridge.samples.inputs import generate
from tests.passes.harness import model

RNG = np.random.default_rng(0)
WEIGHTS = {name: RNG.standard_normal((8, 8)).astype(np.float32) for name in ("w", "v")}
TEXT = "(float[4,8] x) => (float[4,8] y) { a = MatMul(x, w)  b = Relu(a)  y = MatMul(b, v) }"
PRINTED = """\
Run instruction: x = @param:x -> float_type, {4, 8}, {8, 1}
Time: 0.1ms, 0.2ms
Run instruction: @2 = ref::dot(x,@1) -> float_type, {4, 8}, {8, 1}
Time: 2.5ms, 3ms
Run instruction: @3 = if[inputs_size=1](@2) -> tuple_type
Run instruction: if_0:@1 = ref::softmax[axis=1](@2) -> float_type, {4, 8}, {8, 1}
Time: 1ms, 1ms
Run instruction: if_0:@2 = ref::dot(@1,@1) -> float_type, {4, 8}, {8, 1}
Time: 1ms, 2ms
Time: 4ms, 5ms
Run instruction: @4 = gpu::code_object[code_object=9328,symbol_name=mlir_convolution_add_relu](@3) -> float_type
Time: 1ms, 0.5ms
"""


@pytest.fixture
def chain(tmp_path: Path) -> Path:
    path = tmp_path / "chain.onnx"
    models.save(model(TEXT, **WEIGHTS), path)
    return path


def test_instructions_are_parsed() -> None:
    found = [(each.name, each.operator, round(1e3 * each.seconds, 9)) for each in instructions(PRINTED)]
    assert found == [
        ("x", "@param:x", 0.2),
        ("@2", "dot", 3.0),
        ("if_0:@1", "softmax", 1.0),
        ("if_0:@2", "dot", 2.0),
        ("@3", "if", 2.0),  # without what ran within
        ("@4", "mlir_convolution_add_relu", 0.5),
    ]
    assert instructions("no such lines\nTime: 1ms, 1ms\n") == []


def test_times_are_summed_by_operator_and_medians_over_calls() -> None:
    runs = [
        [Instruction("@1", "@literal", 9.0), Instruction("@2", "dot", slow), Instruction("@3", "dot", 1.0)]
        for slow in (2.0, 2.0, 50.0)
    ]
    (found,) = summarize(runs, {"MatMul"})
    assert found == OperatorTime("dot", ("MatMul",), 2, 3.0, 1.0, "@2", 2.0)


@pytest.mark.parametrize(
    ("operator", "kinds"),
    [
        ("dot", ("MatMul",)),
        ("reduce_sum", ("ReduceSum",)),
        ("pooling", ("MaxPool",)),
        ("gpu::quant_gemm", ("MatMul",)),
        ("mlir_convolution_add_relu", ("Conv", "Add", "Relu")),
        ("mul_reduce_sum_sigmoid_kernel", ("Mul", "ReduceSum")),
        ("contiguous", ()),
        ("load", ()),
    ],
)
def test_names_are_mapped_to_operators_of_the_model(operator: str, kinds: tuple[str, ...]) -> None:
    there = {"MatMul", "ReduceSum", "MaxPool", "Conv", "Add", "Relu", "Mul"}
    (found,) = summarize([[Instruction("@1", operator, 1.0)]], there)
    assert found.onnx == kinds


def test_operator_times_of_a_bundle(chain: Path, tmp_path: Path) -> None:
    bundle = onnx_bridge.convert(chain, tmp_path / "out", target="ref")
    (sample,) = generate(bundle.specs)
    found = {each.operator: each for each in per_operator(bundle, sample)}
    assert (found["dot"].onnx, found["dot"].count) == (("MatMul",), 2)
    assert (found["relu"].onnx, found["relu"].count) == (("Relu",), 1)
    assert all(each.seconds > 0 for each in found.values())
    assert sum(each.share for each in found.values()) == pytest.approx(1)
    assert bundle(sample)  # which is left as it was


def test_a_partition_on_the_host_is_one_row(tmp_path: Path) -> None:
    text = """(float[8,8] x) => (float[8,8] y) {
        a = MatMul(x, w) i = NonZero(a) f = Cast <to = 1> (i) r = ReduceMean <keepdims = 0> (f)
        b = Add(a, r) y = MatMul(b, v)
    }"""
    models.save(model(text, **WEIGHTS), tmp_path / "counts.onnx")
    bundle = onnx_bridge.convert(tmp_path / "counts.onnx", tmp_path / "counts", target="ref")
    found = per_operator(bundle, generate(bundle.specs)[0])
    (host,) = [each for each in found if each.operator == HOST]
    assert (host.onnx[0], host.count, host.slowest) == ("NonZero", 1, "partition 1")
    assert host.seconds > 0
    assert "dot" in {each.operator for each in found}
    assert sum(each.share for each in found) == pytest.approx(1)


def test_int8_quantizes_both_operands_of_every_product(chain: Path, tmp_path: Path) -> None:
    bundle = onnx_bridge.convert(chain, tmp_path / "out", target="ref", precision="int8")
    (sample,) = generate(bundle.specs)
    counts = {each.operator: each.count for each in per_operator(bundle, sample)}
    assert counts["quantizelinear"] == counts["dequantizelinear"] == 2 * counts["dot"] == 4


def test_bench_reports_operator_times_and_reads_them_back(chain: Path, tmp_path: Path) -> None:
    found = bench(chain, engines=["migraphx", "ort"], per_operator=True, target="ref", iterations=5, warmup=0)
    ours, ort = found.rows
    assert {"dot", "relu"} <= {each.operator for each in ours.operators}
    assert ort.operators == ()
    assert read_as(Row, ours.to_json()) == ours
    assert "operators" not in found.to_csv().splitlines()[0].split(",")
    import json

    (tmp_path / "base.json").write_text(json.dumps(found.to_json()))
    assert Baseline.read(tmp_path / "base.json").rows == found.rows
