"""Recognize a decoder: which inputs and outputs of a model are token ids, mask, positions, logits and cache.

They are recognized by the names that optimum, onnxruntime-genai and most scripts give them:

    input_ids, attention_mask, position_ids            past_key_values.0.key   past_key_0   past_0
    logits                                             present.0.key           present_key_0   present_0
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import onnx_ir as ir

from onnx_bridge.bundle.manifest.layout import CacheTensor, Layout
from onnx_bridge.core.errors import InputError
from onnx_bridge.requests.conversion import ConvertRequest, DecoderSizes
from onnx_bridge.samples.roles import Dim, Positions, dims_of, roles

PAST = re.compile(r"past(?:_key_values?)?[._]?(.+)")
PRESENT = re.compile(r"present(?:_key_values?)?[._]?(.+)")
BRANCH = "use_cache_branch"
"""The input of a merged decoder (optimum) that chooses the branch with a cache."""


def recognize(model: ir.Model, request: ConvertRequest, sizes: DecoderSizes) -> Layout:
    """Return the layout of a decoder; raises InputError if it is not one, or its cache cannot be of fixed size."""
    inputs = {
        str(value.name): value
        for value in model.graph.inputs
        if value.name not in model.graph.initializers and value.name not in request.freeze
    }
    outputs = {str(output.name): output for output in model.graph.outputs}
    pasts, presents = matching(PAST, inputs), matching(PRESENT, outputs)
    if not pasts or pasts.keys() != presents.keys():
        what = f"the inputs are {listed(inputs)}, and the outputs {listed(outputs)}"
        hint = "a decoder has a cache: inputs past_key_values.0.key, …, and outputs present.0.key, …"
        raise InputError(f"this is not a decoder with a cache: {what}", where="decoder", hint=hint)
    others = [name for name in inputs if name not in pasts.values()]
    ids = _one(
        "token ids", [name for name in others if name.endswith("input_ids") or name in ("tokens", "ids")], others
    )
    mask = _at_most_one([name for name in others if "mask" in name])
    positions = _at_most_one([name for name in others if "position" in name])
    if unknown := [name for name in others if name not in (ids, mask, positions)]:
        hint = f"give them values: {' '.join(f'--freeze {name}=…' for name in unknown)}"
        raise InputError(f"the role of its inputs {listed(unknown)} is not known", where="decoder", hint=hint)
    in_place = _writes_in_place(inputs, pasts)
    logits = _one(
        "logits", [n for n in outputs if n == "logits"] or [n for n in outputs if n not in presents.values()], outputs
    )
    rank = len(dims_of(inputs[mask]) or ()) if mask is not None else None
    if rank != 2:
        what = "there is no attention mask" if mask is None else f"the attention mask has {rank} dimensions"
        hint = "export it with an attention mask, [batch, tokens], which hides what the cache does not hold yet"
        raise InputError(f"the cache cannot be of fixed size: {what}", where="decoder", hint=hint)
    batch = _batch(inputs[ids], request)
    _check_positions(inputs, positions, sizes)
    cache = tuple(
        CacheTensor(past, presents[key], *cache_shape(inputs[past], batch, sizes.max_length))
        for key, past in pasts.items()
    )
    return Layout(batch, sizes.max_length, ids, logits, cache, mask, positions, in_place)


def matching(pattern: re.Pattern[str], names: Mapping[str, ir.Value]) -> dict[str, str]:
    """Return names by what follows the prefix."""
    return {match[1]: name for name in names if (match := pattern.fullmatch(name))}


def listed(names: Mapping[str, ir.Value] | Sequence[str]) -> str:
    """Return the first names, for messages."""
    shown = list(names)
    return ", ".join(shown[:4]) + (", …" if len(shown) > 4 else "") or "none"


def _one(what: str, matches: Sequence[str], among: Mapping[str, ir.Value] | Sequence[str]) -> str:
    if len(matches) != 1:
        hint = "name them input_ids and logits" if not matches else "freeze or remove the others"
        raise InputError(f"which of {listed(among)} are the {what} is not known", where="decoder", hint=hint)
    return matches[0]


def _at_most_one(matches: Sequence[str]) -> str | None:
    return matches[0] if len(matches) == 1 else None


def _writes_in_place(inputs: Mapping[str, ir.Value], pasts: Mapping[str, str]) -> bool:
    """Return whether the caches belong to GroupQueryAttention, which writes new tokens behind the valid ones."""
    return all(
        any(node.op_type == "GroupQueryAttention" and index in (3, 4) for node, index in inputs[name].uses())
        for name in pasts.values()
    )


def _batch(ids: ir.Value, request: ConvertRequest) -> int:
    dims = dims_of(ids) or ()
    if len(dims) != 2:
        what = f"the token ids {ids.name} have {len(dims)} dimensions"
        raise InputError(what, where="decoder", hint="they should have the shape [batch, tokens]")
    return dims[0] if isinstance(dims[0], int) else request.dims.get(dims[0] or "", 1)


def cache_shape(past: ir.Value, batch: int, length: int) -> tuple[tuple[int, ...], int]:
    """Return the shape of a cache for some tokens, and their axis."""
    dims = dims_of(past) or ()
    open_axes = [axis for axis, dim in enumerate(dims) if not isinstance(dim, int) and axis > 0]
    if len(open_axes) != 1:
        what = f"which axis of {past.name} has the tokens is not known: its shape is {list(dims)}"
        raise InputError(what, where="decoder", hint="its batch and its tokens should have symbols, and nothing else")
    shape = tuple(
        length if axis == open_axes[0] else dim if isinstance(dim, int) else batch for axis, dim in enumerate(dims)
    )
    return shape, open_axes[0]


def _check_positions(inputs: Mapping[str, ir.Value], positions: str | None, sizes: DecoderSizes) -> None:
    """Require that the tables of positions are long enough; raises InputError."""
    known: list[Dim] = [_rows(inputs, positions)] if positions is not None else []
    users = {node for value in inputs.values() for node, _ in value.uses()}
    for node in users:
        table = node.inputs[7] if node.op_type == "GroupQueryAttention" and len(node.inputs) > 7 else None
        known += (dims_of(table) or ())[:1] if table is not None else ()
    least = min((rows for rows in known if isinstance(rows, int)), default=sizes.max_length)
    if least < sizes.max_length:
        what = f"the model knows {least} positions"
        raise InputError(what, where=f"max_length {sizes.max_length}", hint=f"give {least} or less")


def _rows(inputs: Mapping[str, ir.Value], positions: str) -> int | None:
    """Return the number of rows of the table that positions are looked up in."""
    values = [value for value in inputs.values() if value.dtype is not None]
    role = dict(zip((str(value.name) for value in values), roles(values), strict=True)).get(positions)
    highs = [dim + more for dim, more in role.highs if isinstance(dim, int)] if isinstance(role, Positions) else []
    return min(highs, default=None)
