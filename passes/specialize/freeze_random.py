"""Draw random numbers once, so that every run computes with the same.

    RandomNormal(), RandomUniform(), RandomNormalLike(x), …  →  a constant
    Bernoulli(p), Multinomial(x), Dropout(x) in training     →  what follows from constants (``draws.py``)

By itself an operator that draws runs on the host, since a compiled program cannot draw anew. What is drawn depends on
the pass's seed and the node's name, or, where the node has a seed of its own, on that alone.

Skips: sizes that are not known; bodies of loops, each of whose turns draws anew; functions, each of whose calls does;
a Dropout whose mode is not constant, or which is older than opset 12.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from passes.analysis.randomness import RANDOM, is_random
from passes.build import random_numbers
from passes.core import graphs
from passes.core.base import Context, Exactness, Result, Skip
from passes.core.edit import Edit
from passes.core.inference import infer
from passes.core.matching import is_plain
from passes.core.rewrite import Match, NodeContext, NodeRewrite


@dataclass(frozen=True)
class _Drawn(Match):
    shape: tuple[int, ...]
    dtype: ir.DataType


@dataclass(frozen=True)
class FreezeRandom(NodeRewrite[_Drawn]):
    """Draw random numbers once, so that every run computes with the same.

    Attributes:
        seed: decides on the numbers.
    """

    name = "freeze-random"
    exactness = Exactness.ROUNDING
    operators = RANDOM | random_numbers.FROM_UNIFORM
    seed: int = 0

    def run(self, model: ir.Model, context: Context) -> Result:
        """Infer shapes where there is something to draw, then draw."""
        if any((node.domain, node.op_type) in self.operators for node in model.graph.all_nodes()):
            infer(model)
        return super().run(model, context)

    def match(self, node: ir.Node, context: NodeContext) -> _Drawn | Skip | None:
        """Whether a node draws, how much, and of what dtype its result is."""
        scope = context.scope
        if not is_plain(node, scope) or not is_random(node, scope):
            return None
        if scope.function is not None:
            return Skip("it is in a function, each of whose calls draws anew: inline-functions comes first")
        if node.graph in _repeated(scope):
            return Skip("it is in the body of a loop, each of whose turns draws anew")
        if (reason := random_numbers.unsupported_reason(node, scope)) is not None:
            return Skip(reason)
        shape, dtype = scope.shape(node.outputs[0]), scope.dtype(node.outputs[0])
        if shape is None or not shape.is_static() or dtype is None:
            return Skip("its size is not known: fix the dimensions that are open")
        return _Drawn(node, shape.numpy(), dtype)

    def rewrite(self, match: _Drawn, edit: Edit) -> Sequence[ir.Value | None]:
        """A constant, or what follows from one."""
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
        below_one = np.minimum(even, np.nextafter(kind.type(1), kind.type(0)))  # what is nearly 1 was rounded to it
        return random_numbers.from_uniform(node, edit.constant(below_one), edit)

    def _key(self, node: ir.Node) -> list[int]:
        own = node.attributes.get("seed")
        if own is not None and own.type == ir.AttributeType.FLOAT:
            return list(struct.pack("<f", own.as_float()))
        return [self.seed % 2**64, zlib.crc32((node.name or "").encode())]


def _repeated(scope: graphs.Scope) -> set[ir.Graph]:
    """The graphs that run more than once in a run: bodies of loops, and what is nested in them."""
    found: set[ir.Graph] = set()
    for node in scope.nodes():
        if node.graph in found or node.op_type != "If":
            found.update(graphs.subgraphs(node))
    return found
