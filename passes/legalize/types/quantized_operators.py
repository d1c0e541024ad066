"""The rules for operators on 8-bit integers with scales; see `passes.build.quantized_operators`."""

from __future__ import annotations

from typing import Any

from passes.build.quantized_operators import QuantizedOperator, QuantizedProductToFloat
from passes.core.rewrite import NodeRewrite

RULES: tuple[NodeRewrite[Any], ...] = (QuantizedOperator(), QuantizedProductToFloat())
