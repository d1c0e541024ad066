"""Compute what depends on constants only, and what shapes imply, before the model runs.

    y = f(constants)                                       →  y, an initializer
    If(true){ then: … else: … }                            →  the nodes of the branch that it takes
    Shape(x: [2, n, 12])[2], Size(x: [2, 3])               →  12, 6
    Constant                                               →  an initializer

ONNX Runtime computes, with its optimizations off, all islands of constants in one session. In functions, which have no
initializers, results are Constant nodes. Folding, shape inference and the inlining of branches
(`passes.cleanup.inline_constant_if`) alternate until nothing changes: exporters nest branches over the rank of a
result, which is known only once the branch around them is gone.

Skips: random operators, operators outside of ONNX, what ONNX Runtime cannot compute (with its reason), results larger
than ``max-bytes`` and than the weights that they replace, and what inline-constant-if skips. Quantized constants are
left to fold-qdq, and Identity to remove-identity.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import onnx_ir as ir

from passes.cleanup.inline_constant_if import inline_constant_ifs
from passes.cleanup.lift_constant_nodes import LiftConstantNodes
from passes.evaluation.folding import Folder, Refusal
from passes.graphs.randomness import is_random
from passes.graphs.scopes import Scope, name_nodes, scopes
from passes.rewriting.base import Context, Pass, Result, Skip
from passes.shapes.declarations import claims, settle_foreign
from passes.shapes.inference import infer, infer_after, infer_foreign

_LEFT = {
    # quantized constants
    "DequantizeLinear",
    "DynamicQuantizeLinear",
    "QuantizeLinear",
    # results that are not tensors
    "Optional",
    "OptionalGetElement",
    "SequenceConstruct",
    "SequenceEmpty",
    "SequenceErase",
    "SequenceInsert",
    "SequenceMap",
    "SplitToSequence",
}


@dataclass(frozen=True)
class FoldConstants(Pass):
    """Compute what depends on constants only, and what shapes imply.

    Attributes:
        max_bytes: a result may be larger than this only if it replaces as many bytes of weights.
    """

    name = "fold-constants"
    idempotent = True
    declares = False
    max_bytes: int = field(default=64 * 2**20, metadata={"unit": "bytes"})

    def run(self, model: ir.Model, context: Context) -> Result:
        """Fold each function, then the main graph with its subgraphs, since inference takes shapes from functions."""
        result = Result(model)
        main, *functions = map(name_nodes, scopes(model))
        for scope in (*functions, main):
            folder = Folder(
                scope, context, result, name=self.name, accept=_accept, max_bytes=self.max_bytes, shapes=True
            )
            skips = _fold(folder, context, result)
            if scope.function is None:
                result.rewrites += LiftConstantNodes().run(model, context).rewrites
            folder.report()
            result.skips += skips
        return result


def _fold(folder: Folder, context: Context, result: Result) -> list[Skip]:
    """Fold, inline and infer until nothing changes; returns why branches that are taken were not inlined."""
    scope = folder.scope
    infers = scope.function is None
    if infers:
        settle_foreign(scope.model, context)
        inferred = context.inferred
        context.has_changed(declares=False)
        infer(scope.model, propagate=False, known=inferred)
    while True:
        while constants := folder.fold():
            if infers:
                infer_after(constants, scope)
        inlined = inline_constant_ifs(scope, context, FoldConstants.name)
        result.rewrites += inlined.rewrites
        if not (inlined.modified or (infers and _infer_further(scope.model, context))):
            return inlined.skips


def _infer_further(model: ir.Model, context: Context) -> bool:
    """Infer with the values of shapes, then behind operators that are not ONNX's; whether anything was learned.

    What was learned may prove what was only declared.
    """
    if infer(model).learned or infer_foreign(model):
        return True
    before = claims(model)
    if before:
        settle_foreign(model, context)
    return claims(model) != before


def _accept(node: ir.Node, scope: Scope) -> Refusal | None:
    if node.domain not in ("", "ai.onnx.ml"):
        return f"{node.domain}::{node.op_type} is no operator of ONNX"
    if is_random(node, scope):
        return "it is random"
    return "" if node.op_type in _LEFT else None
