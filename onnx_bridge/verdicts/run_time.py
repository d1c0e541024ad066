"""The time that a runtime would take to compile and run a probe, estimated from its work.

The estimate decides which probes are run at real size, so it depends on the probe and the build of MIGraphX alone,
never on the load of the machine. Measured on ``ref`` with one core, in millions a second: 20 multiply-adds of a
convolution, half as many of a transposed one, 30 of a product without Eigen and 5,000 with it; 15 to 40 elements read
or written. MIGraphX unrolls recurrent operators, and compiles in a time that grows with the square of the steps: 2
seconds for 100, a minute for 500; and with the square of the nodes: 40 seconds for 5,000.
"""

from __future__ import annotations

import functools
import mmap
from pathlib import Path

import onnx_ir as ir

from onnx_bridge.migraphx.runtime import Runtime
from passes.graphs.cost import Work
from passes.graphs.traversal import with_nested
from passes.probing.probe import Probe

_SAMPLES = 2
"""The most samples that a probe is run on."""
_CONVOLVED, _MOVED = 15e6, 20e6
_MULTIPLIED, _MULTIPLIED_FAST = 30e6, 2000e6
_UNROLLED, _COMPILED = 2e-4, 1.6e-6
_EIGEN = b"5Eigen8internal"
"""In names of symbols of a core library that multiplies matrices with Eigen: an option of those who build MIGraphX,
since ROCm/AMDMIGraphX pull request 4631."""


def run_seconds(probe: Probe, runtime: Runtime) -> float:
    """Return the estimated seconds for compiling a probe, and for all its runs."""
    return compile_seconds(probe) + _SAMPLES * work_seconds(probe.work, runtime)


def compile_seconds(probe: Probe) -> float:
    """Return the estimated seconds for compiling a probe, to the extent that they depend on its sizes."""
    return _UNROLLED * sum(map(_steps, with_nested(probe.nodes))) ** 2


def longest_seconds(probe: Probe, runtime: Runtime, *, run: bool) -> float:
    """Return the estimated seconds that a time limit is made of: for compiling all nodes, and perhaps for all runs."""
    nodes = sum(1 for _ in with_nested(probe.nodes))
    return _COMPILED * nodes**2 + (run_seconds(probe, runtime) if run else compile_seconds(probe))


def work_seconds(work: Work, runtime: Runtime) -> float:
    """Return the estimated seconds for some work."""
    core = runtime.core
    fast = core is not None and _contains(core, core.stat().st_mtime_ns, _EIGEN)
    multiplied = _MULTIPLIED_FAST if fast else _MULTIPLIED
    return work.convolved / _CONVOLVED + work.multiplied / multiplied + work.moved / _MOVED


def _steps(node: ir.Node) -> int:
    """Return the steps that a recurrent operator is unrolled to, in all directions; 0 for other operators."""
    operand = node.inputs[0] if node.op_type in ("GRU", "LSTM", "RNN") and node.inputs else None
    if operand is None or operand.shape is None or operand.shape.rank() != 3:
        return 0
    length = operand.shape[node.attributes.get_int("layout", 0)]
    directions = 2 if node.attributes.get_string("direction", "forward") == "bidirectional" else 1
    return directions * length if isinstance(length, int) else 0


@functools.lru_cache(maxsize=8)
def _contains(file: Path, _changed: int, text: bytes) -> bool:
    with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        return mapped.find(text) >= 0
