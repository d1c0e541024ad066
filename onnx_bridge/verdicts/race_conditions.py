"""What a run of a probe cannot show, because MIGraphX computes it right or wrong by chance.

    TopK of many rows on ``ref``, before 2.16: threads share the rows, and all of them sort in the same memory

A run that happens to go well is no proof, and a machine with one core never shows it. So this is known, not asked;
other targets have a TopK of their own, and versions without the race are asked like about anything else.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import onnx_ir as ir

from onnx_bridge.migraphx.runtime import Runtime
from passes.core import graphs
from passes.target.probe import Probe

_MENDED = (2, 16)
"""The first version whose threads sort in memory of their own."""
_SHARED = {"private": 16}
"""From how many rows on threads share them, by the kind of runtime: Debian's gives each thread eight at least."""
_ALWAYS_SHARED = 2
"""Builds with the C++ library's parallel algorithms may give a thread to every row."""


def race_condition(probe: Probe, runtime: Runtime, target: str) -> str | None:
    """Why no run can show whether a probe is right; None where one can.

    Args:
        probe: what would be asked about.
        runtime: who would be asked.
        target: what the model is meant for in the end.
    """
    if target != "ref" or _version(runtime.version) >= _MENDED:
        return None
    limit = _SHARED.get(runtime.kind, _ALWAYS_SHARED)
    most = max(_rows(graphs.with_nested(probe.nodes), probe), default=0)
    return f"its threads sort the {most} rows of TopK in the same memory" if most >= limit else None


def _rows(nodes: Iterable[ir.Node], probe: Probe) -> Iterable[int]:
    """How many rows each TopK sorts, where that is known; where it is not, no probe of it passes."""
    for node in nodes:
        shape = probe.scope.shape(node.inputs[0]) if node.op_type == "TopK" and node.domain == "" else None
        if shape is not None and shape.is_static() and len(shape):
            sizes = list(shape.numpy())
            del sizes[node.attributes.get_int("axis", -1)]
            yield math.prod(sizes)


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".")[:2] if part.isdigit())
