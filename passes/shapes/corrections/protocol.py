"""The protocol of corrections: one function for each kind of thing that ONNX's shape inference gets wrong.

- One that rewrites changes the message of a node before ONNX sees it, such that what ONNX infers of it is right; or
  hides it, so that ONNX infers nothing. It is applied in functions as well.
- One that resizes is given the dimensions that ONNX infers of a result, and returns the right ones.
"""

from __future__ import annotations

from collections.abc import Callable

import onnx

from passes.shapes.corrections.nodes import Dim, Node

DETACHED = "/detached_for_inference"
"""The end of the names of results whose own names are declared."""
HIDDEN = "onnx_bridge"
"""The domain of nodes that ONNX does not infer, except for `STAND_INS`."""
STAND_INS: dict[str, onnx.FunctionProto] = {}
"""Operators that ONNX does infer in the domain `HIDDEN`: by a function that calls them as they are in another opset."""

Rewrite = Callable[[Node], None]
"""Changes the message of a node."""
Resize = Callable[[Node, int, list[Dim]], list[Dim] | None]
"""Returns the right dimensions for a node, the index of a result, and its inferred dimensions; None for no rank."""

REWRITES: dict[str, Rewrite] = {}
PROPAGATED: set[str] = set()
"""The operators that are rewritten only if ONNX propagates the values of shapes."""
RESIZES: dict[str, tuple[Resize, int]] = {}
"""Each with the last version of ONNX's operators of which ONNX infers wrong sizes."""


def rewrites(*operators: str, propagated: bool = False) -> Callable[[Rewrite], Rewrite]:
    """Register a function that rewrites nodes of some operators, or does so only if values of shapes are propagated."""

    def register(function: Rewrite) -> Rewrite:
        REWRITES.update(dict.fromkeys(operators, function))
        PROPAGATED.update(operators if propagated else ())
        return function

    return register


def resizes(*operators: str, last_opset: int = 2**31) -> Callable[[Resize], Resize]:
    """Register a function that corrects the sizes of results of some operators, in the opsets up to the last."""

    def register(function: Resize) -> Resize:
        RESIZES.update(dict.fromkeys(operators, (function, last_opset)))
        return function

    return register
