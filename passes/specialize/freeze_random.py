"""Replace random operators by constants, so that every run uses the same numbers.

    RandomNormal(), RandomUniform(), RandomNormalLike(x), …  →  a constant
    Bernoulli(p), Multinomial(x), Dropout(x) in training     →  computed from constants

Otherwise random operators run on the host, since a compiled program cannot draw new numbers in each run. The numbers
depend on the seed of the pass and the name of the node, or only on the node's own seed if it has one.

Skips: unknown shapes; loop bodies and functions, which draw new numbers in each iteration and call; a Dropout whose
mode is not constant, or of an opset before 12.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from passes.builders import random_numbers
from passes.graphs.matching import is_op
from passes.graphs.randomness import RANDOM, is_random
from passes.graphs.scopes import Scope
from passes.graphs.traversal import subgraphs
from passes.rewriting.base import Exactness, Skip
from passes.rewriting.edit import Edit
from passes.rewriting.rewrite import NodeRewrite, Replacement


@dataclass(frozen=True)
class FreezeRandom(NodeRewrite):
    """Replace random operators by constants, so that every run uses the same numbers.

    Attributes:
        seed: the seed of the random number generator.
    """

    name = "freeze-random"
    exactness = Exactness.ROUNDING
    operators = RANDOM | random_numbers.FROM_UNIFORM
    inferred_for = operators
    seed: int = 0

    def replacement(self, node: ir.Node, edit: Edit) -> Replacement:
        """Write a random operator of static shape that runs once as a constant, or as operators on one."""
        scope = edit.scope
        if not is_random(node, scope):
            return None
        if scope.function is not None:
            return Skip("the node is in a function, which draws new numbers in each call: inline-functions comes first")
        if node.graph in _repeated(scope):
            return Skip("the node is in a loop body, which draws new numbers in each iteration")
        random_numbers.check_supported(node, scope)
        shape, dtype = scope.static_shape(node.outputs[0]), scope.dtype(node.outputs[0])
        if shape is None or dtype is None:
            return Skip("the shape of the output is unknown: freeze the dynamic dimensions")
        generator = np.random.default_rng(self._key(node))
        match node.op_type:
            case "RandomNormal" | "RandomNormalLike":
                mean, scale = node.attributes.get_float("mean", 0.0), node.attributes.get_float("scale", 1.0)
                return edit.constant(generator.normal(mean, scale, shape).astype(dtype.numpy()))
            case "RandomUniform" | "RandomUniformLike":
                low, high = node.attributes.get_float("low", 0.0), node.attributes.get_float("high", 1.0)
                return edit.constant(generator.uniform(low, high, shape).astype(dtype.numpy()))
        kind = random_numbers.precision(node, scope).numpy()
        even = generator.random(shape).astype(kind)
        below_one = np.minimum(even, np.nextafter(kind.type(1), kind.type(0)))  # rounding may give 1
        return random_numbers.from_uniform(node, edit.constant(below_one), edit)

    def _key(self, node: ir.Node) -> list[int]:
        own = node.attributes.get("seed")
        if own is not None and own.type == ir.AttributeType.FLOAT:
            return list(struct.pack("<f", own.as_float()))
        return [self.seed % 2**64, zlib.crc32((node.name or "").encode())]


def _repeated(scope: Scope) -> set[ir.Graph]:
    """Return the graphs that run more than once per run: loop bodies, and graphs nested in them."""
    repeated: set[ir.Graph] = set()
    for node in scope.nodes():
        if node.graph in repeated or not is_op(node, "If"):
            repeated.update(subgraphs(node))
    return repeated
