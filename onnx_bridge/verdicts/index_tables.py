"""Tables of indices that MIGraphX makes of an operator while it parses it.

    Resize to n elements, before 2.16: n indices if nearest, n·2ᵏ and as many weights if linear in k axes

They are literals of the program: for a Resize of [1,256,64,64] to twice its size 16,777,216 indices, 117 MB of the
saved program and 2.7 s. One axis after the other needs 11 KB and no time, and runs faster.
"""

from __future__ import annotations

import math

import onnx_ir as ir

from onnx_bridge.migraphx.runtime import Runtime
from passes.graphs.traversal import with_nested
from passes.probing.probe import Probe

_FIXED = (2, 16)
"""The first version that computes the indices as it runs: ROCm/AMDMIGraphX pull request 4553."""
_LARGEST = 1 << 20
"""The most indices of one operator: 4 MB, and some 0.15 s for parsing them."""
_RESIZING = ("Resize", "Upsample")


def index_table(probe: Probe, runtime: Runtime) -> str | None:
    """Return what is said of the table of indices that MIGraphX makes of a node of a probe, if it is large."""
    if runtime.release >= _FIXED:
        return None
    resizing = (node for node in with_nested(probe.nodes) if node.op_type in _RESIZING and node.domain == "")
    most = max((_indices(node, probe) for node in resizing), default=0)
    return f"it becomes a table of {most:,} indices" if most > _LARGEST else None


def _indices(node: ir.Node, probe: Probe) -> int:
    """Return the indices that a Resize becomes; 0 if a shape is not known, or no Resize has both."""
    before, after = (probe.scope.shape(value) for value in (node.inputs[0], node.outputs[0]))
    if before is None or after is None or not (before.is_static() and after.is_static()):
        return 0
    sizes, results = before.numpy(), after.numpy()
    if len(sizes) != len(results):
        return 0
    linear = node.attributes.get_string("mode", "nearest") != "nearest"
    resized = sum(size != result for size, result in zip(sizes, results, strict=True)) if linear else 0
    return math.prod(results) << resized
