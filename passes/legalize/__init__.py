"""Rewriting what a runtime rejects into standard operators that it accepts; one file a family of operators.

A rule is a `NodeRewrite` that says for which operator, when, and into what. It need not know what the runtime accepts:
the pass ``legalize`` (``driver.py``) tries a rule only where the runtime's verdict demands it, and asks about what the
rule proposes before it is committed. Each module of a family lists its rules, preferred ones first, as ``RULES``.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from passes.core.rewrite import NodeRewrite

FAMILIES: tuple[str, ...] = (
    "tensor.empty",
    "tensor.generators",
    "types.float8_fnuz",
    "types.small_types",
    "types.casts",
    "types.quantized_operators",
    "math.integer_products",
    "types.quantize_linear",
    "nn.activations",
    "nn.attention",
    "types.bit_cast",
    "math.bitwise",
    "control_flow.conditionals",
    "contrib.attention",
    "contrib.block_weights",
    "contrib.channels_last",
    "contrib.elementary",
    "contrib.fused",
    "contrib.group_norm",
    "contrib.normalization",
    "contrib.packed_attention",
    "contrib.quantized_weights",
    "contrib.relative_bias",
    "nn.convolution",
    "math.cumulative",
    "nn.deform_conv",
    "tensor.random",
    "math.einsum",
    "math.elementwise",
    "math.fourier",
    "tensor.gathering",
    "nn.grid_sample",
    "contrib.grouped_query_attention",
    "tensor.indices",
    "math.integers",
    "math.linear_algebra",
    "control_flow.loops",
    "math.losses",
    "ml.features",
    "ml.linear",
    "ml.trees",
    "nn.normalization",
    "math.old_broadcast",
    "tensor.pad",
    "nn.pooling",
    "tensor.rearranging",
    "nn.recurrent",
    "math.reductions",
    "nn.regions",
    "nn.resize",
    "nn.rotary",
    "control_flow.scans",
    "tensor.scattering",
    "tensor.reshaping",
    "tensor.slicing",
    "tensor.topk",
    "nn.training",
    "tensor.triangles",
    "types.half_precision",
    "control_flow.functions",
)
"""The modules of this package that hold rules; where two know an operator, the earlier one's rules are tried first.

Rules written by hand come before the bodies that ONNX has for operators: there is one where the body does not do."""


@functools.cache
def rules() -> Mapping[tuple[str, str], tuple[NodeRewrite[Any], ...]]:
    """The rules by (domain, operator), in the order in which they are tried."""
    found: dict[tuple[str, str], list[NodeRewrite[Any]]] = {}
    for family in FAMILIES:
        for rule in importlib.import_module(f"{__name__}.{family}").RULES:
            for operator in rule.operators:
                found.setdefault(operator, []).append(rule)
    return {operator: tuple(each) for operator, each in found.items()}
