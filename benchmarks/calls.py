"""What a call costs beyond the bare library: of a bundle, and of a lowered module: ``python -m benchmarks.calls``.

The bare library is a process that runs the same program by MIGraphX's C library, on tensors that it has already. A
bundle's call goes through its worker process; it copies the inputs there and the outputs back, and what such copies
take is measured beside it. The program returns its input, so that it takes next to nothing itself.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import onnx
import torch

import onnx_bridge
from benchmarks.bounds import Bound, report
from onnx_bridge.migraphx import runtime as runtimes

_WORKER, _LOWERED, _SECOND = 100e-6, 200e-6, 0.1
_SIZES = {"1 KB": 256, "1 MB": 1 << 18, "100 MB": 25_000_000}
"""Elements of float32 in each tensor."""
_ELEMENTS = 1 << 28
"""Those of all calls together, if that is no fewer than 20 and no more than 2,000 calls."""

_BARE = """
import statistics, sys, time
from pathlib import Path
import numpy as np
from onnx_bridge.migraphx.c_api import CLibrary
from onnx_bridge.migraphx.program import Tensor
library, program, calls = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
loaded = CLibrary(library).load(program)
given = {
    name: Tensor.of(np.random.default_rng(0).random(shape.lens, np.float32))
    for name, shape in loaded.get_parameter_shapes().items()
}
taken = []
for _ in range(calls):
    started = time.perf_counter()
    loaded.run(given)
    taken.append(time.perf_counter() - started)
print(statistics.median(taken[calls // 10 :]))
"""


class _Sum(torch.nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x + y


def main() -> int:
    """Measure, and print a line each; exit code 1 if a bound is missed."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        missed = sum(report(_worker(Path(folder), label, size)) for label, size in _SIZES.items())
    return 1 if missed + report(_lowered()) else 0


def _worker(folder: Path, label: str, size: int) -> Iterator[Bound]:
    """The way through the worker, for tensors of one size."""
    text = f'<ir_version: 9, opset_import: ["": 17]> g (float[{size}] x) => (float[{size}] y) {{ y = Identity(x) }}'
    source = folder / f"identity{size}.onnx"
    onnx.save(onnx.parser.parse_model(text), source)
    bundle = onnx_bridge.convert(source, folder / f"bundle{size}", target="ref", prove="never")
    given = {"x": np.random.default_rng(0).random(size, np.float32)}
    calls = min(2000, max(20, _ELEMENTS // size))
    library = runtimes.find("private")
    program = next((folder / f"bundle{size}").glob("*.mxr"))
    command = library.command(Path(sys.executable), ["-c", _BARE, str(library.library), str(program), str(calls)])
    bare = float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    ours = _median(lambda: bundle(given), calls)
    copy = _median(lambda: [given["x"].copy() for _ in range(2)], calls)  # there and back
    print(f"a call with tensors of {label}: {ours * 1e6:.0f} µs, bare {bare * 1e6:.0f} µs, copies {copy * 1e6:.0f} µs")
    limit = bare + copy + _WORKER
    yield Bound(f"through the worker, {label}", ours * 1e6, limit * 1e6, "µs", "bare + copies + 100 µs")


def _lowered() -> Iterator[Bound]:
    """The second lowering of a module, and a call of it beside one of its bundle."""
    module, sample = _Sum().eval(), (torch.rand(256), torch.rand(256))
    with tempfile.TemporaryDirectory(prefix="bench-") as cache:
        onnx_bridge.lower(module, sample, target="ref", cache=cache)
        started = time.perf_counter()
        lowered = onnx_bridge.lower(module, sample, target="ref", cache=cache)
        second = time.perf_counter() - started
        bundle = lowered.programs.bundle
        given = {each.name: tensor.numpy() for each, tensor in zip(bundle.inputs, sample, strict=True)}
        beside = _median(lambda: bundle(given), 2000)
        call = _median(lambda: lowered(*sample), 2000)
    yield Bound("the second lower of a module", second, _SECOND, "s", "in the same process")
    yield Bound("a call of a lowered module", call * 1e6, (beside + _LOWERED) * 1e6, "µs", "its bundle's + 200 µs")


def _median(call: Callable[[], object], calls: int) -> float:
    """Seconds of a call, without the first tenth."""
    taken = []
    for _ in range(calls):
        started = time.perf_counter()
        call()
        taken.append(time.perf_counter() - started)
    return statistics.median(taken[calls // 10 :])


if __name__ == "__main__":
    sys.exit(main())
