"""What measuring costs: the same calls timed by ``bench`` and in a bare loop, in turns.

    python benchmarks/bench_overhead.py

The models are single products, so that a call is short and what is around it shows most. Printed is, for each engine
and size, the ratio of the latencies that ``bench`` records to those of a bare loop, with its confidence interval.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import onnx
import onnx_ir as ir

import onnx_bridge
from onnx_bridge.benchmarking.engines import Call, open_bundle, open_session
from onnx_bridge.benchmarking.measuring import Plan, measure
from onnx_bridge.benchmarking.statistics import ratio
from onnx_bridge.inputs import Sample, generate

BLOCKS, CALLS = 40, 20


def main() -> None:
    """Print a line an engine and size."""
    with tempfile.TemporaryDirectory() as folder:
        for size in (64, 512):
            path = _product(Path(folder) / f"model{size}.onnx", size)
            bundle = onnx_bridge.convert(path, Path(folder) / f"bundle{size}", target="ref")
            (sample,) = generate(bundle.specs)
            if size == 64:  # the other takes ``ref`` seconds
                _compare(f"migraphx, {size}", open_bundle(bundle).call, sample)
            _compare(f"ort, {size}", open_session(path, "ort").call, sample)


def _product(path: Path, size: int) -> Path:
    shape = f"float[{size},{size}]"
    text = f'<ir_version: 10, opset_import: ["": 17]> g ({shape} x) => ({shape} y) {{ y = MatMul(x, w) }}'
    proto = onnx.parser.parse_model(text)
    weight = np.random.default_rng(0).standard_normal((size, size)).astype(np.float32)
    proto.graph.initializer.append(ir.serde.serialize_tensor(ir.Tensor(weight, name="w")))
    onnx.save(proto, path)
    return path


def _compare(name: str, call: Call, sample: Sample) -> None:
    bare: list[float] = []
    benched: list[float] = []
    for _ in range(BLOCKS):
        for _ in range(3):
            call(sample)
        for _ in range(CALLS):
            started = time.perf_counter()
            call(sample)
            bare.append(time.perf_counter() - started)
        benched += measure([(call, sample)], Plan(CALLS, warmup=3))[0]
    shortest = 1e6 * min(bare)
    print(f"{name}: bench {ratio(benched, bare, paired=True)} × the bare loop, from {shortest:.0f} µs a call")


if __name__ == "__main__":
    main()
