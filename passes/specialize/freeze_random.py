"""Replace random operators by constants, so that every run uses the same numbers.

    RandomNormal(), RandomUniform(), RandomNormalLike(x), …  →  a constant
    Bernoulli(p), Multinomial(x), Dropout(x) in training     →  computed from constants

Otherwise random operators run on the host, since a compiled program cannot draw new numbers in each run. The numbers
depend on the seed of the pass and the name of the node, or only on the node's own seed where it has one.

Skips: unknown shapes; loop bodies and functions, which draw new numbers in each iteration and call; a Dropout whose
mode is not constant, or of an opset before 12.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from passes.builders import random_numbers
from passes.graphs.matching import is_op
from passes.graphs.randomness import RANDOM, is_random
from passes.graphs.scopes import Scope
from passes.graphs.traversal import subgraphs
from passes.rewriting.base import Context, Exactness, Result, Skip
from passes.rewriting.edit import Edit
from passes.rewriting.rewrite import Match, NodeContext, NodeRewrite
from passes.shapes.inference import infer


@dataclass(frozen=True)
class _Drawn(Match):
    shape: tuple[int, ...]
    dtype: ir.DataType


@dataclass(frozen=True)
class FreezeRandom(NodeRewrite[_Drawn]):
    """Replace random operators by constants, so that every run uses the same numbers.

    Attributes:
        seed: of the random number generator.
    """

    name = "freeze-random"
    exactness = Exactness.ROUNDING
    operators = RANDOM | random_numbers.FROM_UNIFORM
    seed: int = 0

    def run(self, model: ir.Model, context: Context) -> Result:
        """Infer shapes where there are random operators, then rewrite."""
        if any((node.domain, node.op_type) in self.operators for node in model.graph.all_nodes()):
            infer(model)
        return super().run(model, context)

    def match(self, node: ir.Node, context: NodeContext) -> _Drawn | Skip | None:
        """Match random operators of static shape that run once."""
        scope = context.scope
        if not is_random(node, scope):
            return None
        if scope.function is not None:
            return Skip("it is in a function, which draws new numbers in each call: inline-functions comes first")
        if node.graph in _repeated(scope):
            return Skip("it is in a loop body, which draws new numbers in each iteration")
        if (reason := random_numbers.unsupported_reason(node, scope)) is not None:
            return Skip(reason)
        shape, dtype = scope.shape(node.outputs[0]), scope.dtype(node.outputs[0])
        if shape is None or not shape.is_static() or dtype is None:
            return Skip("its shape is unknown: freeze the dynamic dimensions")
        return _Drawn(node, shape.numpy(), dtype)

    def rewrite(self, match: _Drawn, edit: Edit) -> Sequence[ir.Value | None]:
        """A constant, or operators on one."""
        node, dtype = match.node, match.dtype.numpy()
        generator = np.random.default_rng(self._key(node))
        match node.op_type:
            case "RandomNormal" | "RandomNormalLike":
                mean, scale = (node.attributes.get_float(*each) for each in (("mean", 0.0), ("scale", 1.0)))
                return [edit.constant(generator.normal(mean, scale, match.shape).astype(dtype))]
            case "RandomUniform" | "RandomUniformLike":
                low, high = (node.attributes.get_float(*each) for each in (("low", 0.0), ("high", 1.0)))
                return [edit.constant(generator.uniform(low, high, match.shape).astype(dtype))]
        kind = random_numbers.precision(node, edit.scope).numpy()
        even = generator.random(match.shape).astype(kind)
        below_one = np.minimum(even, np.nextafter(kind.type(1), kind.type(0)))  # rounding may give 1
        return random_numbers.from_uniform(node, edit.constant(below_one), edit)

    def _key(self, node: ir.Node) -> list[int]:
        own = node.attributes.get("seed")
        if own is not None and own.type == ir.AttributeType.FLOAT:
            return list(struct.pack("<f", own.as_float()))
        return [self.seed % 2**64, zlib.crc32((node.name or "").encode())]


def _repeated(scope: Scope) -> set[ir.Graph]:
    """The graphs that run more than once per run: loop bodies, and graphs nested in them."""
    found: set[ir.Graph] = set()
    for node in scope.nodes():
        if node.graph in found or not is_op(node, "If"):
            found.update(subgraphs(node))
    return found
