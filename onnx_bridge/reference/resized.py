"""A model whose inputs have other sizes than it declares."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx_ir as ir

from passes.graphs.scopes import values_of


def resize(model: ir.Model, shapes: Mapping[str, Sequence[int]]) -> ir.Model:
    """Give inputs other shapes, in place; the shapes of all values that nodes compute become unknown.

    Constants that name sizes (of a Reshape, for example) are not changed, so that the result may be invalid.
    """
    inputs = set(model.graph.inputs)
    for value in values_of(model):
        if value not in inputs and not value.is_initializer():
            value.shape = None
    for value in model.graph.inputs:
        if value.name in shapes:
            value.shape = ir.Shape(shapes[str(value.name)])
    return model
