"""Rules that rewrite what a runtime rejects into standard operators that it accepts; one module per operator family.

A rule (`passes.rewriting.rewrite`) does not need to know what the runtime accepts: the pass ``legalize``
(``driver.py``) applies a rule only to nodes that the runtime does not run correctly, and probes what the rule proposes
before it commits. The order in which a module defines its rules is the order of preference.
"""

from __future__ import annotations

import functools
import importlib
import itertools
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from passes.rewriting.rewrite import NodeRewrite

_FIRST = (
    "tensor.empty",  # an empty result needs no computation
    "types.float8_fnuz",
    "types.small_types",
)
_BY_SUBPACKAGE = (
    "types.bit_cast",
    "types.casts",
    "types.integer_casts",
    "types.quantize_linear",  # before math.integer_products: compilers have 8-bit kernels for its form
    "types.channel_scales",
    "types.float_weights",
    "math.bitwise",
    "math.cumulative",
    "math.einsum",
    "math.elementwise",
    "math.fourier",
    "math.integer_products",
    "math.linear_algebra",
    "math.losses",
    "math.reductions",
    "nn.convolution",  # before tensor.pad: explicit attributes cost nothing, separating a Pad does
    "tensor.gathering",
    "tensor.generators",
    "tensor.pad",  # before nn.pooling: separating a Pad is cheaper than decomposing the pooling
    "tensor.random",
    "tensor.rearranging",
    "tensor.reshaping",
    "tensor.scattering",
    "tensor.slicing",
    "tensor.topk",
    "tensor.triangles",
    "nn.activations",
    "nn.attention",
    "nn.deform_conv",
    "nn.dropout",  # after tensor.random
    "nn.grid_sample",
    "nn.normalization",
    "nn.optimizers",
    "nn.pooling",
    "nn.recurrent",
    "nn.regions",
    "nn.resize",
    "nn.rotary",
    "control_flow.conditionals",
    "control_flow.loops",
    "control_flow.scans",
    "contrib.attention",
    "contrib.block_weights",
    "contrib.channels_last",
    "contrib.dynamic_quantize_lstm",
    "contrib.elementary",
    "contrib.fused",
    "contrib.grouped_query_attention",
    "contrib.mixture_of_experts",
    "contrib.normalization",
    "contrib.packed_attention",
    "contrib.quantized_weights",
    "contrib.relative_bias",
    "contrib.windowed_cache",
    "ml.features",
    "ml.labels",
    "ml.linear",
    "ml.svm",
    "ml.trees",
)
_LAST = (
    "types.half_precision",
    "control_flow.functions",  # ONNX's function bodies; the rules above exist where a body is not sufficient
)
FAMILIES: tuple[str, ...] = (*_FIRST, *_BY_SUBPACKAGE, *_LAST)
"""The modules that hold rules. Where two know an operator, the rules of the earlier one are tried first."""


def rules_of(family: str) -> tuple[NodeRewrite, ...]:
    """Return the rules of a module, in the order of their definition."""
    module = importlib.import_module(f"{__name__}.{family}")
    from passes.rewriting.rewrite import NodeRewrite  # deferred: passes are listed without importing onnx

    return tuple(
        rule for rule in vars(module).values() if isinstance(rule, NodeRewrite) and rule.__module__ == module.__name__
    )


@functools.cache
def rules() -> Mapping[tuple[str, str], tuple[NodeRewrite, ...]]:
    """Return the rules by (domain, operator), in the order in which they are tried."""
    known: dict[tuple[str, str], list[NodeRewrite]] = {}
    for rule in itertools.chain.from_iterable(map(rules_of, FAMILIES)):
        for operator in rule.operators:
            known.setdefault(operator, []).append(rule)
    return {operator: tuple(tried) for operator, tried in known.items()}
