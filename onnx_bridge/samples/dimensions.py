"""The dimensions of values, and how those without a name are called: ``input[axis]``."""

from __future__ import annotations

import onnx_ir as ir

from passes.shapes.size_expressions import by_place

Dim = int | str | None
"""A size, a symbol or expression of symbols, or unknown."""


def dims_of(value: ir.Value) -> tuple[Dim, ...] | None:
    """Return the dimensions of a value; None if its rank is unknown. Negative sizes are treated as unknown."""
    if value.const_value is not None:  # an initializer need not declare its shape
        return tuple(value.const_value.shape.numpy())
    if value.shape is None:
        return None
    dims = (dim.value if isinstance(dim, ir.SymbolicDim) else int(dim) for dim in value.shape)
    return tuple(None if dim == "" or (isinstance(dim, int) and dim < 0) else dim for dim in dims)


def named_dims(value: ir.Value) -> tuple[int | str, ...] | None:
    """Return the dimensions of a value, with names for those that are unknown; None if its rank is unknown."""
    if (dims := dims_of(value)) is None:
        return None
    return tuple(by_place(value.name, axis) if dim is None else dim for axis, dim in enumerate(dims))
