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
    from passes.driver import NodeRewrite

FAMILIES: tuple[str, ...] = (
    "empty",
    "generators",
    "float8_fnuz",
    "small_types",
    "casts",
    "quantized_operators",
    "integer_products",
    "quantize",
    "activations",
    "attention",
    "bit_cast",
    "bitwise",
    "conditionals",
    "contrib_attention",
    "contrib_block_weights",
    "contrib_channels_last",
    "contrib_elementary",
    "contrib_fused",
    "contrib_group_norm",
    "contrib_normalization",
    "contrib_packed_attention",
    "contrib_quantized_weights",
    "contrib_relative_bias",
    "convolution",
    "cumulative",
    "deform_conv",
    "drawing",
    "einsum",
    "elementwise",
    "fourier",
    "gathering",
    "grid_sample",
    "grouped_query_attention",
    "indices",
    "integers",
    "linear_algebra",
    "loops",
    "losses",
    "ml_features",
    "ml_labels",
    "ml_linear",
    "ml_svm",
    "ml_trees",
    "normalization",
    "old_broadcast",
    "pad",
    "pooling",
    "rearranging",
    "recurrent",
    "reductions",
    "regions",
    "resize",
    "rotary",
    "scans",
    "scattering",
    "shapes",
    "slicing",
    "topk",
    "training",
    "triangles",
    "precision",
    "functions",
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
