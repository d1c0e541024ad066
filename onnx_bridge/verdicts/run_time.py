"""The time that a runtime would take to compile and run a probe, estimated from its work.

The estimate decides which probes are run at real size, so it depends on the probe and the build of MIGraphX alone,
never on the load of the machine. Measured on ``ref`` with one core, in millions a second: 20 multiply-adds of a
convolution, half as many of a transposed one, 30 of a product without Eigen and 5,000 with it; 15 to 40 elements read
or written.

MIGraphX compiles and saves a program in a time that grows with the square of its instructions, those of unrolled
recurrent operators included. Where its assertions are compiled in, as Debian does, dead code elimination counts all
instructions before each one: 18 seconds of a processor for 10,000 instructions (2.14), 5 without assertions (2.16).
"""

from __future__ import annotations

import functools
import mmap
from collections.abc import Iterable

import onnx_ir as ir

from onnx_bridge.migraphx.runtime import Runtime
from passes.graphs.cost import Work
from passes.graphs.traversal import with_nested
from passes.probing.instructions import instructions, steps
from passes.probing.probe import Probe

_SAMPLES = 2
"""The most samples that a probe is run on."""
_CONVOLVED, _MOVED = 15e6, 20e6
_MULTIPLIED, _MULTIPLIED_FAST = 30e6, 2000e6
_ASSERTED_GROWTH, _GROWTH = 1.8e-7, 0.5e-7
"""The seconds that compiling and saving takes for each squared instruction, with assertions and without."""
_LOADED = 1.6e-6
"""The same for each squared node, at most, on a busy machine that checks the heap."""
_EIGEN = b"5Eigen8internal"
"""In names of symbols of a core library that multiplies matrices with Eigen: an option of those who build MIGraphX,
since ROCm/AMDMIGraphX pull request 4631."""
_ASSERTION = b"std::distance(m.begin(), leaf) < std::distance(m.begin(), last)"
"""The text of an assertion of dead code elimination."""


def run_seconds(probe: Probe, runtime: Runtime) -> float:
    """Return the estimated seconds for all runs of a probe, and for compiling it, if that depends on its sizes."""
    return unrolling_seconds(probe, runtime) + _SAMPLES * work_seconds(probe.work, runtime)


def unrolling_seconds(probe: Probe, runtime: Runtime) -> float:
    """Return the estimated seconds for compiling the recurrent operators of a probe; 0 without any."""
    return compile_seconds(filter(steps, with_nested(probe.nodes)), runtime)


def compile_seconds(nodes: Iterable[ir.Node], runtime: Runtime) -> float:
    """Return the estimated seconds for compiling and saving nodes as one program for ``ref``."""
    return growth(runtime) * instructions(nodes) ** 2


def growth(runtime: Runtime) -> float:
    """Return the seconds that compiling and saving takes for each squared instruction."""
    return _ASSERTED_GROWTH if _core_contains(runtime, _ASSERTION) else _GROWTH


def longest_seconds(probe: Probe, runtime: Runtime, *, run: bool) -> float:
    """Return the estimated seconds that a time limit is made of: for compiling all nodes, and perhaps for all runs."""
    nodes = sum(1 for _ in with_nested(probe.nodes))
    return _LOADED * nodes**2 + (run_seconds(probe, runtime) if run else unrolling_seconds(probe, runtime))


def work_seconds(work: Work, runtime: Runtime) -> float:
    """Return the estimated seconds for some work."""
    multiplied = _MULTIPLIED_FAST if _core_contains(runtime, _EIGEN) else _MULTIPLIED
    return work.convolved / _CONVOLVED + work.multiplied / multiplied + work.moved / _MOVED


@functools.lru_cache(maxsize=8)
def _core_contains(runtime: Runtime, text: bytes) -> bool:
    core = runtime.core
    if core is None:
        return False
    with core.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        return mapped.find(text) >= 0
