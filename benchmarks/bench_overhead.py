"""What measuring costs: the same calls timed by ``bench`` and in a bare loop, in turns.

    python benchmarks/bench_overhead.py

The bare loop calls the engine itself, with nothing around it, and looks at the clock before and after all calls. The
models are single products, so that a call is short and what is around it shows most. Printed is, for each engine and
size, the ratio of the latencies that ``bench`` records to those of the bare loop, with its confidence interval.
"""

from __future__ import annotations

import functools
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime

import onnx_bridge
from onnx_bridge.benchmark.engines import Call, Opened, open_bundle, open_session
from onnx_bridge.benchmark.measure import Rounds, measure
from onnx_bridge.benchmark.statistics import ratio
from onnx_bridge.samples.inputs import Sample, generate

BLOCKS, READINGS = 200, 20


def main() -> None:
    """Print a line an engine and size."""
    with tempfile.TemporaryDirectory() as folder:
        for size in (8, 64, 512):
            path = _product(Path(folder) / f"model{size}.onnx", size)
            bundle = onnx_bridge.convert(path, Path(folder) / f"bundle{size}", target="ref")
            (sample,) = generate(bundle.specs)
            if size == 8:  # larger ones take ``ref`` so long that nothing else shows
                _compare(f"migraphx, {size}", open_bundle(bundle), bundle, sample)
            session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
            _compare(f"ort, {size}", open_session(path, "ort"), functools.partial(session.run, None), sample)


def _product(path: Path, size: int) -> Path:
    shape = f"float[{size},{size}]"
    text = f'<ir_version: 10, opset_import: ["": 17]> g ({shape} x) => ({shape} y) {{ y = MatMul(x, w) }}'
    proto = onnx.parser.parse_model(text)
    weight = np.random.default_rng(0).standard_normal((size, size)).astype(np.float32)
    proto.graph.initializer.append(ir.serde.serialize_tensor(ir.Tensor(weight, name="w")))
    onnx.save(proto, path)
    return path


def _compare(name: str, opened: Opened, engine: Call, sample: Sample) -> None:
    bare: list[float] = []
    benched: list[float] = []
    together = 1
    for block in range(BLOCKS):
        for which in ("bench", "bare") if block % 2 == 0 else ("bare", "bench"):
            if which == "bench":
                (series,) = measure([(opened.call, sample)], Rounds(READINGS, warmup=3))
                benched.append(min(series.latencies))
                together = series.together
            else:
                bare.append(min(_bare(engine, sample, together) for _ in range(READINGS)))
    shortest = 1e6 * min(bare)
    print(f"{name}: bench {ratio(benched, bare, paired=True)} × the bare loop, from {shortest:.1f} µs a call")


def _bare(engine: Call, sample: Sample, calls: int) -> float:
    started = time.perf_counter()
    for _ in range(calls):
        engine(sample)
    return (time.perf_counter() - started) / calls


if __name__ == "__main__":
    main()
