"""Comparison by layer: planted errors are localized, correct models pass, memory stays within its limit."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from rich.console import Console

import onnx_bridge
from onnx_bridge.bundle.device import Device
from onnx_bridge.core.tolerance import Tolerance
from onnx_bridge.migraphx.runtime import Runtime
from onnx_bridge.migraphx.worker import Worker
from onnx_bridge.model import io as models
from onnx_bridge.parity.layers import walk
from onnx_bridge.parity.layers.compare import compare_layers
from onnx_bridge.parity.layers.report import Layer, LayerReport
from onnx_bridge.parity.layers.subject import LayerSubject
from onnx_bridge.reference.comparison.compare import OutputComparison, compare
from onnx_bridge.samples import inputs as samplers
from onnx_bridge.views.terminal.view import render
from passes.graphs import lineage
from tests.passes.harness import model
from tests.passes.helpers import mentioned

RNG = np.random.default_rng(0)
CONSTANTS = {
    "w": RNG.standard_normal((16, 16), np.float32),
    "v": RNG.standard_normal((16, 16), np.float32),
    "kernel": RNG.standard_normal((4, 3, 3, 3), np.float32),
    "pads": np.array([0, 0, 2, 2, 0, 0, 2, 2]),
    "five": np.array(5.0, np.float32),
    "two": np.array(2.0, np.float32),
    "flat": np.array([16, 16]),
    "scale": np.array(0.05, np.float32),
    "point": np.array(0, np.int8),
}
CHAIN = """(float[16, 16] x) => (float[16, 16] y) {
    [mul] a = MatMul(x, w) [tanh] b = Tanh(a) [soft] c = Softmax <axis = 1> (b) [again] d = MatMul(c, v)
    [cut] e = Relu(d) [end] y = Add(e, b)
}"""


def built(text: str, opset: int = 18, **constants: Any) -> ir.Model:
    return model(text, opset=opset, **mentioned(text, CONSTANTS | constants))


def compared(
    runtime: Runtime,
    cleaned: ir.Model,
    sample: Mapping[str, Any] | None = None,
    *,
    original: ir.Model | Path | None = None,
    host: Mapping[str, str] = {},
    **options: Any,
) -> LayerReport:
    worker = Worker(runtime)
    subject = LayerSubject(cleaned, sample or samplers.generate(cleaned)[0], original, host=host)
    try:
        return compare_layers(subject, Device(worker), **options)
    finally:
        worker.close()


def by_node(layers: LayerReport) -> dict[str, Layer]:
    return {row.node: row for row in layers.rows}


def rendered(layers: LayerReport) -> str:
    console = Console(file=io.StringIO(), width=200)
    console.print(render(layers))
    return console.file.getvalue()  # type: ignore[attr-defined]


class TestCleanModels:
    @pytest.mark.parametrize("name", ["bert", "vit"])
    def test_networks_agree(self, runtime: Runtime, exported: Callable[..., Path], name: str) -> None:
        cleaned = onnx_bridge.clean(exported(name)).model
        layers = compared(runtime, cleaned, original=exported(name))
        assert layers.passed, layers.sentence
        assert layers.first is layers.culprit is None
        made = [value for node in cleaned.graph for value in node.outputs if value.uses() or value.is_graph_output()]
        assert [row.tensor for row in layers.rows] == [value.name for value in made]
        assert all(row.accumulated is not None and row.local is not None for row in layers.rows)
        assert sum(row.cleaning is not None for row in layers.rows) > len(layers.rows) / 2
        assert sum(bool(row.module) for row in layers.rows) > len(layers.rows) / 2

    def test_model_and_samples_are_not_changed(self, runtime: Runtime) -> None:
        cleaned = built(CHAIN)
        before = ir.to_proto(cleaned).SerializeToString()
        (sample,) = samplers.generate(cleaned)
        kept = {name: np.array(array) for name, array in sample.items()}
        assert compared(runtime, cleaned, sample, original=cleaned).passed
        assert ir.to_proto(cleaned).SerializeToString() == before
        np.testing.assert_array_equal(sample["x"], kept["x"])

    def test_quantized_values_may_differ_by_propagated_steps(self, runtime: Runtime) -> None:
        cleaned = built(
            """(float[16, 16] x) => (float[16, 16] y) {
                q = QuantizeLinear(x, scale, point) d = DequantizeLinear(q, scale, point) a = MatMul(d, w)
                [second] r = QuantizeLinear(a, scale, point) [last] y = DequantizeLinear(r, scale, point)
            }"""
        )
        layers = compared(runtime, cleaned)
        assert layers.passed, layers.sentence
        rows = by_node(layers)
        assert rows["second"].accumulated.tolerance.atol == 6.0
        assert rows["second"].local.tolerance.atol == 1.0
        assert rows["last"].local.tolerance.rtol == 1e-3
        assert rows["last"].accumulated.tolerance.rtol == 5e-2

    def test_random_values_are_not_compared(self, runtime: Runtime) -> None:
        cleaned = built(
            """(float[16, 16] x) => (float[16, 16] y, float[16, 16] z) {
                [dice] r = RandomNormalLike <seed = 1.0> (x) [sum] y = Add(x, r) [sure] z = Relu(x)
            }"""
        )
        layers = compared(runtime, cleaned)
        assert layers.passed
        assert {row.node: row.reason for row in layers.rows} == {
            "dice": "it depends on random numbers",
            "sum": "it depends on random numbers",
            "sure": "",
        }


class TestErrorsOfCleaning:
    def test_changed_weight(self, runtime: Runtime, exported: Callable[..., Path]) -> None:
        cleaned = onnx_bridge.clean(exported("bert")).model
        node = next(node for node in cleaned.graph if node.name == "node_MatMul_92")
        weight = node.inputs[1]
        changed = weight.const_value.numpy().copy()
        changed[3, 5] += 0.5
        weight.const_value = ir.Tensor(changed)
        layers = compared(runtime, cleaned, original=exported("bert"))
        first = layers.first
        assert first is not None
        assert first.node in ("node_MatMul_92", "node_linear_5")  # the first whose value the original has as well
        assert not first.cleaning.passed
        assert first.module == "model.encoder.layer.0.output.dense"
        assert layers.culprit is None
        assert "cleaning changed it" in layers.sentence
        assert all(row.accumulated.passed and row.local.passed for row in layers.rows)

    def test_the_pass_that_made_the_node_is_named(self, runtime: Runtime) -> None:
        original = built(CHAIN)
        cleaned = original.clone()
        node = next(node for node in cleaned.graph if node.name == "soft")
        node.attributes["axis"] = ir.AttrInt64("axis", 0)
        lineage.stamp([node], "turn-softmax", [node])
        layers = compared(runtime, cleaned, original=original)
        assert layers.first.tensor == "c"
        assert layers.first.by == ("turn-softmax",)
        assert (
            "Softmax soft (made by turn-softmax from soft) is the first that differs; the pass turn-softmax changed"
            in layers.sentence
        )
        assert [row.node for row in layers.rows if not row.cleaning.passed] == ["soft", "again", "cut", "end"]
        assert "cleaning" in rendered(layers)

    SHIFTED = """(float[16, 16] x) => (float[16, 16] y) {
        [quantize] q = QuantizeLinear(x, scale, middle) [turn] t = Transpose(q)
        [back] d = DequantizeLinear(t, scale, middle) [end] y = MatMul(d, w)
    }"""

    def test_shifted_integers_are_compared_by_their_relation(self, runtime: Runtime) -> None:
        original = built(self.SHIFTED, middle=np.array(120, np.uint8))
        cleaned = onnx_bridge.clean(original).model
        rows = by_node(compared(runtime, cleaned, original=original))
        assert [rows[name].tensor for name in ("quantize", "turn", "back")] == ["q_int8", "t_int8", "d"]
        for name in ("quantize", "turn", "back", "end"):
            assert rows[name].cleaning.same == 1.0
            assert rows[name].passed

    def test_wrong_shift(self, runtime: Runtime) -> None:
        original = built(self.SHIFTED, middle=np.array(120, np.uint8))
        cleaned = onnx_bridge.clean(original).model
        node = next(node for node in cleaned.graph if node.name == "quantize")
        wrong = ir.Tensor(np.array(-8 + 20, np.int8), name="wrong")
        node.replace_input_with(2, ir.Value(name="wrong", const_value=wrong, type=ir.TensorType(wrong.dtype)))
        cleaned.graph.initializers.add(node.inputs[2])
        layers = compared(runtime, cleaned, original=original)
        assert layers.first.tensor == "q_int8"
        assert layers.first.cleaning.max_abs == 20.0

    def test_original_that_cannot_run_is_a_note(self, runtime: Runtime) -> None:
        original = built(CHAIN)
        next(iter(original.graph)).domain = "unknown"
        layers = compared(runtime, built(CHAIN), original=original)
        assert layers.passed
        assert "values of the original could not be computed" in layers.notes[0]


GATHERED = """(float[16, 16] x, int64[16, 2] i) => (float[16, 2] y) {
    [first] r = Relu(x) [take] g = GatherElements <axis = 1> (r, i) [twice] s = Mul(g, two) [end] y = Add(s, g)
}"""
INDICES = np.tile([[-1, 0]], (16, 1))
PADDED = """(float[1, 3, 8, 8] x) => (float[1, 4, 10, 10] y) {
    [first] r = Relu(x) [pad] p = Pad(r, pads, five) [conv] c = Conv(p, kernel) [end] y = Relu(c)
}"""


class TestErrorsOfMigraphx:
    def test_local_error_is_separated_from_propagated_errors(self, runtime: Runtime) -> None:
        """MIGraphX reads negative indices of GatherElements wrongly where the axis is not the first."""
        x = RNG.standard_normal((16, 16), np.float32) + 3
        layers = compared(runtime, built(GATHERED), {"x": x, "i": INDICES})
        assert layers.first is layers.culprit
        assert layers.first.node == "take"
        assert "GatherElements take is the first that differs, by its own error" in layers.sentence
        rows = by_node(layers)
        assert [rows[name].accumulated.passed for name in ("first", "take", "twice", "end")] == [True] + [False] * 3
        assert [rows[name].local.passed for name in ("first", "take", "twice", "end")] == [True, False, True, True]

    def test_nodes_that_are_wrong_only_together(self, runtime: Runtime) -> None:
        layers = compared(runtime, built(PADDED))
        assert layers.first.node == "conv"
        assert layers.culprit is None
        assert layers.together == ("pad",)
        assert "agrees alone, and differs together with pad" in layers.sentence

    def test_other_nodes_are_compared_after_a_rejection(self, runtime: Runtime) -> None:
        text = """(float[16, 16] x) => (float[16, 16] y, float z) {
            [mul] a = MatMul(x, w) [odd] z = Det(a) [end] y = Relu(a)
        }"""
        rows = by_node(compared(runtime, built(text)))
        assert rows["odd"].accumulated is rows["odd"].local is None
        assert "MIGraphX in context: " in rows["odd"].reason
        assert "MIGraphX in isolation: " in rows["odd"].reason
        for name in ("mul", "end"):
            assert rows[name].accumulated.passed
            assert rows[name].local.passed

    def test_other_nodes_are_compared_after_a_crash(self, runtime: Runtime) -> None:
        text = """(float[16, 16] x, int64[2, 1] i, float[2, 16] u) => (float[16, 16] y, float[16, 16] z) {
            [mul] a = MatMul(x, w) [odd] y = ScatterND(a, i, u) [end] z = Relu(a)
        }"""
        sample = {
            "x": np.ones((16, 16), np.float32),
            "i": np.array([[-1], [0]]),
            "u": np.ones((2, 16), np.float32),
        }
        rows = by_node(compared(runtime, built(text), sample))
        assert rows["odd"].accumulated is None
        assert "process" in rows["odd"].reason
        assert rows["end"].accumulated.passed
        assert rows["end"].local.passed

    def test_unsupported_types_are_skipped_with_a_reason(self, runtime: Runtime) -> None:
        text = """(float[16, 16] x) => (float[16, 16] y, float[1, 16] z) {
            [mul] a = MatMul(x, w) [split] s = SplitToSequence <axis = 0> (a) [one] z = SequenceAt(s, third)
            [end] y = Relu(a)
        }"""
        rows = by_node(compared(runtime, built(text, third=np.array(3))))
        assert rows["split"].reason == "MIGraphX has no such type of values"
        assert "MIGraphX" in rows["one"].reason
        assert rows["end"].accumulated.passed
        assert rows["end"].local.passed


class TestHostPartitions:
    TEXT = """(float[16, 16] x) => (float[16, 16] y) {
        [mul] a = MatMul(x, w) [zero] i = NonZero(a) [cast] f = Cast <to = 1> (i)
        [mean] r = ReduceMean <keepdims = 0> (f) [add] b = Add(a, r) [end] y = MatMul(b, v)
    }"""

    def test_host_nodes_take_the_values_of_migraphx(self, runtime: Runtime) -> None:
        host = dict.fromkeys(("zero", "cast", "mean"), "no fixed shape")
        layers = compared(runtime, built(self.TEXT), host=host)
        assert layers.passed, layers.sentence
        assert layers.segments == 3
        for row in layers.rows:
            on_host = row.node in host
            assert row.runs_on == ("ONNX Runtime" if on_host else "MIGraphX")
            assert (row.local is None) == on_host
            assert row.accumulated is not None


class TestManyNodes:
    def test_several_programs_give_the_same_rows(self, runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
        x = RNG.standard_normal((16, 16), np.float32) + 3
        whole = compared(runtime, built(GATHERED), {"x": x, "i": INDICES})
        monkeypatch.setattr(walk, "_MAX_IN_CONTEXT", 2)
        monkeypatch.setattr(walk, "_MAX_IN_ISOLATION", 3)
        cut = compared(runtime, built(GATHERED), {"x": x, "i": INDICES})
        assert cut.rows == whole.rows


class TestMemory:
    def test_memory_limit_does_not_change_the_numbers(
        self, runtime: Runtime, exported: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        cleaned = onnx_bridge.clean(exported("bert")).model
        peaks: list[int] = []
        total = walk._total_bytes
        monkeypatch.setattr(walk, "_total_bytes", lambda *groups: peaks.append(total(*groups)) or peaks[-1])
        whole = compared(runtime, cleaned, original=exported("bert"))
        assert whole.segments == 1
        limit = max(peaks) // 4
        peaks.clear()
        cut = compared(runtime, cleaned, original=exported("bert"), memory_limit=limit)
        assert 4 <= cut.segments <= 12
        assert max(peaks) <= limit
        assert not cut.notes
        assert cut.passed
        for one, other in zip(whole.rows, cut.rows, strict=True):
            assert one.tensor == other.tensor
            assert (one.cleaning is None) == (other.cleaning is None)
            assert other.accumulated.max_abs == pytest.approx(one.accumulated.max_abs, abs=2e-6)
            assert other.local.max_abs == one.local.max_abs

    def test_limit_below_a_single_node_is_a_note(self, runtime: Runtime) -> None:
        layers = compared(runtime, built(CHAIN), memory_limit=1000)
        assert layers.segments == 6
        assert layers.passed
        assert "more than the limit" in layers.notes[0]

    def test_errors_accumulate_across_segments(self, runtime: Runtime) -> None:
        x = RNG.standard_normal((16, 16), np.float32) + 3
        layers = compared(runtime, built(GATHERED), {"x": x, "i": INDICES}, memory_limit=1)
        assert layers.segments == 4
        assert [row.accumulated.passed for row in layers.rows] == [True, False, False, False]
        assert layers.culprit.node == "take"

    def test_computed_shapes_stay_constant_at_cuts(self, runtime: Runtime) -> None:
        cleaned = built(
            """(float[4, 64] x) => (float[16, 16] y) {
                s = Shape(x) p = ReduceProd <keepdims = 1> (s) f = Relu(x) h = Div(p, sixteen)
                k = Concat <axis = 0> (h, h2) [reshaped] y = Reshape(f, k)
            }""",
            sixteen=np.array([16]),
            h2=np.array([16]),
        )
        layers = compared(runtime, cleaned, memory_limit=1)
        assert layers.passed
        assert by_node(layers)["reshaped"].local is not None


def test_json_is_strict_and_complete(runtime: Runtime) -> None:
    x = np.full((16, 16), math.inf, np.float32)
    layers = compared(runtime, built(GATHERED), {"x": x, "i": INDICES})
    data = json.loads(json.dumps(layers.to_json(), allow_nan=False))
    assert len(data["rows"]) == 4
    assert data["rows"][1]["inputs"] == ["r", "i"]
    assert data["rows"][1]["local"]["name"] == "g"
    assert {"passed", "sentence", "first", "culprit", "together", "segments", "notes", "sample"} <= data.keys()


def layer(node: str, accumulated: float, local: float) -> Layer:
    """A layer with one expected value of 1 and an absolute tolerance of 1."""

    def compared(error: float) -> OutputComparison:
        right = {node: np.ones(1)}
        return compare({node: right[node] + error}, right, Tolerance(0.0, 1.0)).outputs[0]

    return Layer(node, "Add", "", node, (), "MIGraphX", None, compared(accumulated), compared(local), "", (), (node,))


def test_accumulated_error_has_no_culprit() -> None:
    layers = LayerReport((layer("one", 0.5, 0.5), layer("two", 0.9, 0.4), layer("three", 1.2, 0.3)))
    assert layers.first.node == "three"
    assert layers.culprit is None
    said = "the error has accumulated; the largest local error is 0.5 of the tolerance, of Add one"
    assert layers.sentence.endswith(said)
    assert "three" in rendered(layers)


def test_long_tables_are_truncated() -> None:
    rows = [layer(f"n{index}", 0.001 * index, 0.0) for index in range(100)]
    assert "these are the 10 of 100 layers with the largest errors" in rendered(LayerReport(tuple(rows)))
    rows[7] = layer("bad", 5.0, 5.0)
    text = rendered(LayerReport(tuple(rows)))
    assert "these are the 60 of 100" in text
    assert "Add bad is the first that differs, by its own error" in text


def test_no_layers_do_not_pass() -> None:
    assert not LayerReport(()).passed


def test_a_model_as_a_file(runtime: Runtime, tmp_path: Path) -> None:
    models.save(built(CHAIN), tmp_path / "m.onnx")
    assert compared(runtime, models.load(tmp_path / "m.onnx")).passed
    (sample,) = samplers.generate(models.load(tmp_path / "m.onnx"))
    assert compared(runtime, tmp_path / "m.onnx", sample, original=tmp_path / "m.onnx").passed  # type: ignore[arg-type]
