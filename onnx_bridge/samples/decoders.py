"""The inputs and outputs of a decoder by the names that optimum, onnxruntime-genai and most scripts give them."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence

import onnx_ir as ir

from onnx_bridge.model.embedding import EMBEDS
from onnx_bridge.samples.dimensions import dims_of
from onnx_bridge.samples.inferred_roles import roles
from onnx_bridge.samples.roles import Positions

_LONGEST = 1024
"""The most tokens of a cache that nobody chose."""
PAST = re.compile(r"past(?:_key_values?)?[._]?(.+)")
PRESENT = re.compile(r"present(?:_key_values?)?[._]?(.+)")
_RETURNED = ("output.{}", "{}_out", "{}_next", "out_{}", "new_{}", "next_{}", "updated_{}")
"""The names of outputs that are the next value of an input."""


def is_decoder(model: ir.Model) -> bool:
    """Return whether a model has token ids or their embeddings, and a cache or a state."""
    inputs, outputs = ([str(value.name) for value in values] for values in (model.graph.inputs, model.graph.outputs))
    has_state = matching(PAST, inputs) or any(returned_as(name, outputs) is not None for name in inputs)
    return bool(has_state) and any(is_ids(name) or name == EMBEDS for name in inputs)


def is_ids(name: str) -> bool:
    """Return whether an input of this name has token ids."""
    return name.endswith("input_ids") or name in ("tokens", "ids")


def matching(pattern: re.Pattern[str], names: Iterable[str]) -> dict[str, str]:
    """Return names by what follows the prefix."""
    return {match[1]: name for name in names if (match := pattern.fullmatch(name))}


def returned_as(state: str, outputs: Collection[str]) -> str | None:
    """Return the output that is the next value of an input, by the names that scripts give; None without one."""
    names = (pattern.format(state) for pattern in _RETURNED)
    return next((name for name in names if name in outputs and PRESENT.fullmatch(name) is None), None)


def if_single(matches: Sequence[str]) -> str | None:
    """Return the only match; None if there is not exactly one."""
    return matches[0] if len(matches) == 1 else None


def known_positions(inputs: Mapping[str, ir.Value]) -> int | None:
    """Return the rows of the smallest table that positions are looked up in; None if there is no table."""
    positions = if_single([name for name in inputs if "position" in name])
    typed = {name: value for name, value in inputs.items() if value.dtype is not None}
    role = dict(zip(typed, roles(list(typed.values())), strict=True)).get(positions or "")
    rows = [dim + more for dim, more in role.highs if isinstance(dim, int)] if isinstance(role, Positions) else []
    for node in {use.node for value in inputs.values() for use in value.uses()}:
        table = node.inputs[7] if node.op_type == "GroupQueryAttention" and len(node.inputs) > 7 else None
        dims = () if table is None else dims_of(table) or ()
        rows += [dim for dim in dims[:1] if isinstance(dim, int)]
    return min(rows, default=None)


def usual_length(inputs: Mapping[str, ir.Value]) -> int:
    """Return the tokens of a cache that nobody chose."""
    return min(known_positions(inputs) or _LONGEST, _LONGEST)
