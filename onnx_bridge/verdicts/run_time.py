"""How long a runtime would take to run a probe, estimated from its work.

The estimate decides which probes are run at real size, so it depends on the probe and the version of MIGraphX alone,
never on the load of the machine. Measured on ``ref`` with one core, in millions a second: 20 multiply-adds of a
convolution, half as many of a transposed one, 30 of a product before 2.16 and 5,000 since then; 15 to 40 elements read
or written.
"""

from __future__ import annotations

from onnx_bridge.migraphx.runtime import Runtime
from passes.analysis.cost import Work
from passes.target.probe import Probe

_SAMPLES = 2
"""How many samples a probe is run on, at most."""
_CONVOLVED, _MOVED = 15e6, 20e6
_MULTIPLIED, _MULTIPLIED_FAST = 30e6, 2000e6
_FAST_PRODUCTS = (2, 16)
"""The first version that multiplies matrices with Eigen."""


def run_seconds(probe: Probe, runtime: Runtime) -> float:
    """The estimated seconds for all runs of a probe."""
    return _SAMPLES * work_seconds(probe.work, runtime)


def work_seconds(work: Work, runtime: Runtime) -> float:
    """The estimated seconds for some work."""
    multiplied = _MULTIPLIED_FAST if runtime.release >= _FAST_PRODUCTS else _MULTIPLIED
    return work.convolved / _CONVOLVED + work.multiplied / multiplied + work.moved / _MOVED
