"""What measuring costs: the same calls timed by ``bench`` and in a bare loop, in turns.

    python -m benchmarks.overhead

The bare loop calls the engine itself, with nothing around it, and looks at the clock before and after all calls. The
models are single products, so that a call is short and what is around it shows most. Printed is, for each engine and
size, the ratio of the latencies that ``bench`` records to those of the bare loop, with its confidence interval.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir

import onnx_bridge
from benchmarks.bounds import Bound, report
from onnx_bridge.benchmark.engines import Call, Engine, open_engine
from onnx_bridge.benchmark.measure import Rounds, measure
from onnx_bridge.benchmark.statistics import ratio
from onnx_bridge.samples.inputs import Sample, generate

BLOCKS, READINGS = 200, 20
_MOST = 1.02


def main() -> int:
    """Print a line an engine and size; exit code 1 if ``bench`` adds more than two hundredths."""
    missed = 0
    with tempfile.TemporaryDirectory() as folder:
        for size in (8, 64, 512):
            path = _product(Path(folder) / f"model{size}.onnx", size)
            bundle = onnx_bridge.convert(path, Path(folder) / f"bundle{size}", target="ref")
            (sample,) = generate(bundle.specs)
            if size == 8:  # larger ones take ``ref`` so long that nothing else shows
                missed += _compare(open_engine("migraphx", bundle, path, None, sample), sample, "migraphx, 8")
            missed += _compare(open_engine("ort", None, path, None, sample), sample, f"ort, {size}")
    return 1 if missed else 0


def _product(path: Path, size: int) -> Path:
    shape = f"float[{size},{size}]"
    text = f'<ir_version: 10, opset_import: ["": 17]> g ({shape} x) => ({shape} y) {{ y = MatMul(x, w) }}'
    proto = onnx.parser.parse_model(text)
    weight = np.random.default_rng(0).standard_normal((size, size)).astype(np.float32)
    proto.graph.initializer.append(ir.serde.serialize_tensor(ir.Tensor(weight, name="w")))
    onnx.save(proto, path)
    return path


def _compare(engine: Engine, sample: Sample, name: str) -> int:
    bare: list[float] = []
    benched: list[float] = []
    together = 1
    for block in range(BLOCKS):
        for which in ("bench", "bare") if block % 2 == 0 else ("bare", "bench"):
            if which == "bench":
                (series,) = measure([(engine.call, sample)], Rounds(READINGS, warmup=3))
                benched.append(min(series.latencies))
                together = series.together
            else:
                bare.append(min(_bare(engine.call, sample, together) for _ in range(READINGS)))
    shortest = 1e6 * min(bare)
    measured = ratio(benched, bare, paired=True)
    print(f"{name}: bench {measured} × the bare loop, from {shortest:.1f} µs a call")
    return report([Bound(f"bench of {name}", measured.low, _MOST, "× the bare loop", "the low end of its interval")])


def _bare(engine: Call, sample: Sample, calls: int) -> float:
    started = time.perf_counter()
    for _ in range(calls):
        engine(sample)
    return (time.perf_counter() - started) / calls


if __name__ == "__main__":
    sys.exit(main())
