"""The rules for operators on 8-bit integers with scales; see `passes.builders.quantized_operators`."""

from __future__ import annotations

from typing import Any

from passes.builders.quantized_operators import QuantizedOperator, QuantizedProductToFloat
from passes.rewriting.rewrite import NodeRewrite

RULES: tuple[NodeRewrite[Any], ...] = (QuantizedOperator(), QuantizedProductToFloat())
