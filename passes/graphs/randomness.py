"""Random nodes, which draw new numbers each time they run.

A compiler makes constants of such numbers. MIGraphX draws those of RandomNormal and RandomUniform while it parses,
folds Multinomial while it compiles for a GPU, and reads every Dropout as Identity. Then all runs of a program give the
same numbers, which no verdict on a single run shows.
"""

from __future__ import annotations

import onnx_ir as ir

from passes.graphs.scopes import Scope

RANDOM = frozenset(
    ("", name)
    for name in ["Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"]
)
"""Operators that are always random."""
RANDOM_REASON = (
    "draws new numbers in each run, and a compiled program would draw them once: freeze-random makes them constants"
)
"""The predicate of messages about a random node."""
FUSED_DROPOUTS = {"BiasDropout": (3, 3, 4), "BitmaskBiasDropout": (3, 3, 4), "BitmaskDropout": (1, 1, 2)}
"""com.microsoft's forms of Dropout: how many terms they add, and which inputs are the ratio and the training mode."""


def is_random(node: ir.Node, scope: Scope) -> bool:
    """Return whether a node draws random numbers, or may do so; nodes in its subgraphs are not considered."""
    if (node.domain, node.op_type) in RANDOM:
        return True
    if node.domain == "com.microsoft" and node.op_type in FUSED_DROPOUTS:
        return _may_drop(node, scope, *FUSED_DROPOUTS[node.op_type][1:])
    if node.domain != "" or node.op_type != "Dropout":
        return False
    return scope.opset() >= 12 and _may_drop(node, scope, 1, 2)


def _may_drop(node: ir.Node, scope: Scope, *indices: int) -> bool:
    """Return whether a Dropout may be in training mode with a ratio other than 0, which are the inputs ``indices``."""
    ratio, training = (node.inputs[index] if index < len(node.inputs) else None for index in indices)
    return training is not None and not _is_zero(training, scope) and not (ratio is not None and _is_zero(ratio, scope))


def _is_zero(value: ir.Value, scope: Scope) -> bool:
    tensor = scope.constant(value)
    return tensor is not None and tensor.size == 1 and not tensor.numpy().item()
