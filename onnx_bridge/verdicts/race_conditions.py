"""Race conditions of MIGraphX, which a run of a probe cannot show reliably.

    TopK of many rows on ``ref``, before 2.16: the threads share the rows, and all of them sort in the same memory

A run with right results proves nothing, and on one core the race never shows. Such verdicts are therefore known in
advance. Other targets have another TopK, and versions without the race are probed as usual.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import onnx_ir as ir

from onnx_bridge.migraphx.runtime import Runtime
from passes.graphs.traversal import with_nested
from passes.probing.probe import Probe

_FIXED = (2, 16)
"""The first version whose threads sort in memory of their own: ROCm/AMDMIGraphX pull request 4767."""
_SHARED = {"private": 16}
"""The fewest rows that several threads share, by kind of runtime: Debian's gives each thread at least eight."""
_ALWAYS_SHARED = 2
"""The same for builds with the C++ library's parallel algorithms, which may start a thread for every row."""


def race_condition(probe: Probe, runtime: Runtime, target: str) -> str | None:
    """Return the race condition that a probe is subject to if the whole model is for ``target``; otherwise None."""
    if target != "ref" or runtime.release >= _FIXED:
        return None
    limit = _SHARED.get(runtime.kind, _ALWAYS_SHARED)
    most = max(_rows(with_nested(probe.nodes), probe), default=0)
    return f"MIGraphX's threads sort the {most} rows of TopK in the same memory" if most >= limit else None


def _rows(nodes: Iterable[ir.Node], probe: Probe) -> Iterable[int]:
    """Yield the number of rows that each TopK sorts, if it is known; if it is not, no probe of it passes."""
    for node in nodes:
        shape = probe.scope.shape(node.inputs[0]) if node.op_type == "TopK" and node.domain == "" else None
        if shape is not None and shape.is_static() and len(shape):
            sizes = list(shape.numpy())
            del sizes[node.attributes.get_int("axis", -1)]
            yield math.prod(sizes)
