"""Quantized networks: cleaned, they compute what they did, run in 8 bits after MIGraphX's gpu pass, and as forecast.

What the gpu target makes of them is MIGraphX's own word: its ``simplify_qdq`` runs over each, and ``ref`` computes it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import onnx_bridge
from fixtures.gpu_view import GpuView, gpu_view
from fixtures.models import grouped_query
from fixtures.suites.quantized import run as quantized_run
from onnx_bridge.migraphx.program import Tensor
from onnx_bridge.migraphx.runtime import Runtime
from onnx_bridge.migraphx.worker import Worker
from onnx_bridge.model.int8_forecast import Forecast, forecast
from passes.rewriting.pipeline import Pipeline
from tests.passes.harness import run

STATIC = [
    "qdq-uint8-int8",
    "qdq-int8-int8-channel",
    "qdq-uint8-uint8",
    "qdq-int16-int8",
    "qoperator-uint8-int8-channel",
]
SCHEMES = [*STATIC, "dynamic-int8", "dynamic-uint8"]
PRODUCTS = {"residual": 3, "mobile": 4, "dense": 3, "attention": 8, "rearranging": 2}

Outputs = list[np.ndarray[Any, np.dtype[Any]]]


@pytest.fixture(scope="module")
def worker(runtime: Runtime) -> Iterator[Worker]:
    worker = Worker(runtime)
    yield worker
    worker.close()


def distance(actual: Outputs, expected: Outputs) -> float:
    """The largest difference, relative to the largest value."""
    return max(
        float(np.abs(one.astype(np.float64) - other).max() / np.abs(other).max())
        for one, other in zip(actual, expected, strict=True)
    )


def flips(actual: Outputs, expected: Outputs, step: float) -> int:
    """Return how many values differ by one step of the last quantizer, rounded to the other side of a tie.

    All others agree within 1e-5 of the largest.
    """
    count = 0
    for one, other in zip(actual, expected, strict=True):
        difference = np.abs(one.astype(np.float64) - other)
        far = difference > 1e-5 * np.abs(other).max()
        assert np.allclose(difference[far], step, rtol=1e-3), difference[far]
        count += int(far.sum())
    return count


class Seen:
    """A quantized network, cleaned; its results in every way, and the forecast."""

    def __init__(self, path: Path, network: str, runtime: Runtime, worker: Worker) -> None:
        self.worker, self.inputs = worker, quantized_run.sample(network, seed=9)
        source = onnx.load(path)
        self.expected: Outputs = list(run(source, self.inputs).values())
        self.plain: Outputs = list(run(quantized_run.network(network, opset=21), self.inputs).values())
        model = ir.from_proto(source)
        Pipeline.parse("quantized").run(model)
        self.cleaned = ir.to_proto(model)
        clean = path.with_suffix(".clean.onnx")
        onnx.save(self.cleaned, clean)
        self.forecast: Forecast = forecast(clean)
        self.view: GpuView = gpu_view(clean, path.with_suffix(".mxr"), runtime)

    @property
    def step(self) -> float:
        """The scale of the quantizer of the output; 0 if there is none."""
        (output,) = (value.name for value in self.cleaned.graph.output)
        (last,) = (node for node in self.cleaned.graph.node if output in node.output)
        scales = {each.name: onnx.numpy_helper.to_array(each) for each in self.cleaned.graph.initializer}
        return float(scales[last.input[1]].max()) if last.op_type == "DequantizeLinear" else 0.0

    def on_ort(self) -> Outputs:
        return list(run(self.cleaned, self.inputs).values())

    def on_ref(self) -> Outputs:
        return self._compute(self.worker.parse_onnx_buffer(self.cleaned.SerializeToString()))

    def on_gpu(self) -> Outputs:
        return self._compute(self.worker.load(self.view.program))

    def _compute(self, program: Any) -> Outputs:
        program.compile("ref")
        given = {name: Tensor.of(array) for name, array in self.inputs.items()}
        return [each.numpy() for each in program.run(given)]


@pytest.mark.parametrize("network", list(quantized_run.TEXTS))
def test_networks(network: str, tmp_path: Path, runtime: Runtime, worker: Worker) -> None:
    made = list(quantized_run.generate(tmp_path, [network], SCHEMES))
    assert len(made) == len(SCHEMES)
    for _, scheme, path in made:
        seen = Seen(path, network, runtime, worker)
        assert distance(seen.on_ort(), seen.expected) <= 1e-6, scheme
        # the sigmoid of "mobile" takes integers, some of which it brings to a tie; Resize makes four of each
        assert flips(seen.on_ref(), seen.expected, seen.step) <= (20 if network == "mobile" else 0), scheme
        gpu = seen.on_gpu()
        assert distance(gpu, seen.expected) <= 0.05, scheme
        assert distance(gpu, seen.plain) <= 2 * distance(seen.expected, seen.plain), scheme
        kernels = Counter(each.kernel for each in seen.view.products)
        assert seen.forecast.kernels() == kernels, scheme
        assert not seen.forecast.lost, scheme
        assert not [each for each in seen.forecast.products if each.wrong]
        assert kernels.total() == PRODUCTS[network]
        if "int16" in scheme:
            assert {each.condition for each in seen.forecast.products} == {"dtype"}
        elif scheme in STATIC:
            assert set(kernels) == {"int8"}, scheme


def test_without_it_uint8_runs_in_float_and_loses_its_saturation(
    tmp_path: Path, runtime: Runtime, worker: Worker
) -> None:
    """For comparison: the model as the quantizer wrote it."""
    ((_, _, path),) = quantized_run.generate(tmp_path, ["residual"], ["qdq-uint8-int8"])
    view = gpu_view(path, tmp_path / "program.mxr", runtime)
    found = forecast(path)
    assert found.kernels() == Counter(each.kernel for each in view.products) == {"float": 3}
    assert {each.condition for each in found.products} == {"dtype"}
    assert found.lost
    assert "saturation lost" in found.summary()
    inputs = quantized_run.sample("residual", seed=9)
    program = worker.load(view.program)
    program.compile("ref")
    actual = [each.numpy() for each in program.run({name: Tensor.of(array) for name, array in inputs.items()})]
    assert distance(actual, list(run(onnx.load(path), inputs).values())) > 0.2


def test_weights_of_4_bits(tmp_path: Path, runtime: Runtime, worker: Worker) -> None:
    """Those of ONNX Runtime's quantizer, through the rules of legalization."""
    from passes.cleanup.remove_dead import RemoveDead
    from passes.legalize.contrib.block_weights import plain_mat_mul_n_bits
    from passes.legalize.contrib.quantized_weights import decompose_mat_mul_n_bits
    from passes.rewriting.base import Context
    from passes.shapes.inference import infer

    schemes = ["nbits-4-symmetric-qoperator", "nbits-4-asymmetric-qoperator", "nbits-8-asymmetric-qoperator"]
    for _, scheme, path in quantized_run.generate(tmp_path, ["attention"], schemes):
        source, inputs = onnx.load(path), quantized_run.sample("attention", seed=9)
        model = ir.from_proto(source)
        Pipeline.parse("quantized").run(model)
        infer(model)
        (plain_mat_mul_n_bits if "-4-" in scheme else decompose_mat_mul_n_bits).run(model, Context())
        RemoveDead().run(model, Context())
        clean = tmp_path / "clean.onnx"
        onnx.save(ir.to_proto(model), clean)
        view = gpu_view(clean, tmp_path / "clean.mxr", runtime)
        assert forecast(clean).kernels() == Counter(each.kernel for each in view.products)
        assert ("int4-weight" in forecast(clean).kernels()) is ("-4-" in scheme)
        program = worker.load(view.program)
        program.compile("ref")
        actual = [each.numpy() for each in program.run({name: Tensor.of(array) for name, array in inputs.items()})]
        assert distance(actual, list(run(source, inputs).values())) < 1e-4, scheme


def test_a_decoder_has_the_sizes_of_its_nodes(tmp_path: Path) -> None:
    """The head size of a cache follows from the nodes, as for `convert`."""
    path = grouped_query.build(tmp_path / "model.onnx", size="kv_cache_dim")
    made = onnx_bridge.quantize(path, tmp_path / "out.onnx", with_="ort", scheme="int4-weights")
    assert made.path is not None and made.path.exists()
