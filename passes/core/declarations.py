"""What a model says of its own values, as far as it cannot be so.

x: [-1, ?, 3]  →  x: [unknown, unknown, 3]         sizes of old Paddle exports, each its own
"""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from passes.core import graphs


def forget_impossible_sizes(model: ir.Model) -> None:
    """Make sizes unknown that are negative, and those whose name says nothing: ``?``, or none at all.

    Each is a size of its own, whatever other values have in its place.
    """
    for value in _all_values(model):
        if value.shape is not None and any(map(_is_impossible, value.shape)):
            value.shape = ir.Shape([None if _is_impossible(dim) else dim for dim in value.shape])


def names_a_size(name: str) -> bool:
    """Whether values that have the same name of a size have the same size."""
    return name.strip() not in ("", "?")


def _is_impossible(dim: int | ir.SymbolicDim) -> bool:
    return dim < 0 if isinstance(dim, int) else dim.value is not None and not names_a_size(dim.value)


def _all_values(model: ir.Model) -> Iterator[ir.Value]:
    for scope in graphs.scopes(model):
        for graph in scope.graphs():
            yield from graph.inputs
            for node in graph:
                yield from node.outputs
