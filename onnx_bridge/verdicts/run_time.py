"""How long a runtime would take to run a probe, estimated from its work.

The estimate decides which probes are run at real size, so it depends on the probe and the build of MIGraphX alone,
never on the load of the machine. Measured on ``ref`` with one core, in millions a second: 20 multiply-adds of a
convolution, half as many of a transposed one, 30 of a product without Eigen and 5,000 with it; 15 to 40 elements read
or written.
"""

from __future__ import annotations

import functools
import mmap
from pathlib import Path

from onnx_bridge.migraphx.runtime import Runtime
from passes.analysis.cost import Work
from passes.target.probe import Probe

_SAMPLES = 2
"""How many samples a probe is run on, at most."""
_CONVOLVED, _MOVED = 15e6, 20e6
_MULTIPLIED, _MULTIPLIED_FAST = 30e6, 2000e6
_EIGEN = b"5Eigen8internal"
"""In names of symbols of a core library that multiplies matrices with Eigen: an option of those who build MIGraphX,
since ROCm/AMDMIGraphX pull request 4631."""


def run_seconds(probe: Probe, runtime: Runtime) -> float:
    """The estimated seconds for all runs of a probe."""
    return _SAMPLES * work_seconds(probe.work, runtime)


def work_seconds(work: Work, runtime: Runtime) -> float:
    """The estimated seconds for some work."""
    core = runtime.core
    fast = core is not None and _contains(core, core.stat().st_mtime_ns, _EIGEN)
    multiplied = _MULTIPLIED_FAST if fast else _MULTIPLIED
    return work.convolved / _CONVOLVED + work.multiplied / multiplied + work.moved / _MOVED


@functools.lru_cache(maxsize=8)
def _contains(file: Path, _changed: int, text: bytes) -> bool:
    with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        return mapped.find(text) >= 0
