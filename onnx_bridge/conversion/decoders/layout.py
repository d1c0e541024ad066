"""Recognize a decoder: which inputs and outputs of a model are token ids, mask, positions, logits and cache.

They are recognized by the names that optimum, onnxruntime-genai and most scripts give them:

    input_ids, attention_mask, position_ids            past_key_values.0.key   past_key_0   past_0
    logits                                             present.0.key           present_key_0   present_0
    state                                              state_out               new_state       output.state
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

import onnx_ir as ir

from onnx_bridge.bundle.manifest.layout import CacheTensor, Layout
from onnx_bridge.core.errors import InputError, nearest
from onnx_bridge.requests.conversion import ConvertRequest, DecoderSizes
from onnx_bridge.samples.decoders import PAST, PRESENT, if_single, is_ids, known_positions, matching, returned_as
from onnx_bridge.samples.dimensions import dims_of
from passes.core.text import counted
from passes.graphs.scopes import required_inputs
from passes.shapes.open_sizes import OpenDims

BRANCH = "use_cache_branch"
"""The input of a merged decoder (optimum) that chooses the branch with a cache."""
_WHERE = "decoder"


def recognize(model: ir.Model, request: ConvertRequest, sizes: DecoderSizes) -> Layout:
    """Return the layout of a decoder; raises InputError if it is not one, or its cache cannot be of fixed size."""
    inputs = {str(value.name): value for value in required_inputs(model) if value.name not in request.freeze}
    outputs = [str(output.name) for output in model.graph.outputs]
    pasts, presents = matching(PAST, inputs), matching(PRESENT, outputs)
    returned = {name: output for name in inputs if (output := returned_as(name, outputs)) is not None}
    pasts, presents = {**{name: name for name in returned}, **pasts}, {**returned, **presents}
    if not pasts or pasts.keys() != presents.keys():
        what = f"the inputs are {listed(inputs)}, and the outputs {listed(outputs)}"
        hint = "a decoder has a cache: inputs past_key_values.0.key, …, and outputs present.0.key, …"
        raise InputError(f"this is not a decoder with a cache: {what}", where=_WHERE, hint=hint)
    others = [name for name in inputs if name not in pasts.values()]
    results = [name for name in outputs if name not in presents.values()]
    ids = only("token ids", [*filter(is_ids, others)], others)
    most = tokens_at_once(inputs, request)
    if most is not None and {most, *sizes.prefill} != {1}:
        hint = "leave it out" if most == 1 else "export it with a symbol for the tokens, or for one token"
        raise InputError(f"the model takes {most} of a text's tokens at a time", where="prefill", hint=hint)
    mask = if_single([name for name in others if "mask" in name])
    positions = if_single([name for name in others if "position" in name])
    refuse_unknown([name for name in others if name not in (ids, mask, positions)])
    logits = only("logits", ["logits"] if "logits" in outputs else results, outputs)
    rank = None if mask is None else len(dims_of(inputs[mask]) or ())
    batch, known = _batch(inputs[ids], request), _known(model, request)
    known |= {str(dim): batch for dim in (dims_of(inputs[ids]) or ())[:1] if not isinstance(dim, int)}
    present_values = {str(value.name): value for value in model.graph.outputs}
    cache = tuple(
        _cache_tensor(inputs[past], present_values[presents[key]], batch, sizes.max_length, known)
        for key, past in pasts.items()
    )
    tokens = [inputs[tensor.past] for tensor in cache if tensor.axis is not None]
    if rank != 2 and tokens:
        what = "there is no attention mask" if rank is None else f"the attention mask has {rank} dimensions"
        hint = "export it with an attention mask, [batch, tokens], which hides what the cache does not hold yet"
        raise InputError(f"the cache cannot be of fixed size: {what}", where=_WHERE, hint=hint)
    positions_known = known_positions(inputs)
    if positions_known is not None and positions_known < sizes.max_length:
        what = (
            f"the cache cannot have {counted(sizes.max_length, 'token')}: the model knows {positions_known} positions"
        )
        raise InputError(what, where="max_length", hint=f"give {positions_known} or less")
    in_place = all(any(True for _ in _attentions(past)) for past in tokens)
    sections = None if positions is None else _sections(inputs[positions])
    return Layout(batch, sizes.max_length, ids, logits, cache, mask, positions, in_place, sections=sections)


def tokens_at_once(inputs: Mapping[str, ir.Value], request: ConvertRequest) -> int | None:
    """Return the number of tokens of each text that a model takes at a time; None for any number.

    ONNX Runtime's GroupQueryAttention appends single ones to the caches of several texts.
    """
    ids = next((value for name, value in inputs.items() if is_ids(name)), None)
    dims = () if ids is None else dims_of(ids) or ()
    if ids is None or len(dims) != 2:
        return None
    if isinstance(dims[1], int):
        return dims[1]
    is_grouped = any(True for value in inputs.values() for _ in _attentions(value))
    return 1 if is_grouped and _batch(ids, request) > 1 else None


def has_encoder(model: ir.Model, frozen: Collection[str]) -> bool:
    """Return whether a decoder takes what an encoder returns: hidden states, or keys that it does not append to."""
    inputs = {str(value.name): value for value in required_inputs(model) if value.name not in frozen}
    pasts, presents = matching(PAST, inputs), matching(PRESENT, [str(value.name) for value in model.graph.outputs])
    states = any(is_states(value) for name, value in inputs.items() if name not in pasts.values())
    tokens = any(name.endswith("input_ids") for name in inputs)
    return tokens and bool(presents) and (states or bool(pasts.keys() - presents.keys()))


def is_states(value: ir.Value) -> bool:
    """Return whether a value may be hidden states."""
    return not is_integer(value) and len(value.shape or ()) == 3


def is_integer(value: ir.Value) -> bool:
    """Return whether a value has integers or booleans."""
    return value.dtype is not None and (value.dtype.is_integer() or value.dtype == ir.DataType.BOOL)


def listed(names: Iterable[str]) -> str:
    """Return the first names, for messages."""
    shown = list(names)
    return ", ".join(shown[:4]) + (", …" if len(shown) > 4 else "") or "none"


def only(what: str, matches: Sequence[str], among: Iterable[str]) -> str:
    """Return the only match; raises InputError."""
    if len(matches) != 1:
        hint = "freeze or remove the others" if matches else "export it with the names that optimum gives, as input_ids"
        raise InputError(f"which of {listed(among)} are the {what} is not known", where=_WHERE, hint=hint)
    return matches[0]


def refuse_unknown(inputs: Sequence[str]) -> None:
    """Raise InputError if there are inputs without a role."""
    if inputs:
        hint = f"give them values: `freeze={dict.fromkeys(inputs, '…')}`"
        raise InputError(f"the role of its inputs {listed(inputs)} is not known", where=_WHERE, hint=hint)


def cache_shape(
    past: ir.Value, batch: int, length: int, known: Mapping[str, int] | None = None
) -> tuple[tuple[int, ...], int | None]:
    """Return the shape of a cache for a batch of texts of some tokens, and their axis; None if no axis is open."""
    dims = [(known or {}).get(dim, dim) if isinstance(dim, str) else dim for dim in dims_of(past) or ()]
    open_axes = [axis for axis, dim in enumerate(dims) if not isinstance(dim, int) and axis > 0]
    if len(open_axes) > 1:
        what = f"which axis of {past.name} has the tokens is not known: its shape is {dims}"
        names = [dims[axis] for axis in open_axes if dims[axis] is not None]
        options = f"`dims={dict.fromkeys(names, 'N')}`" if names else past.name
        raise InputError(what, where=_WHERE, hint=f"give the sizes of the others, of {options}")
    sizes = dict.fromkeys(open_axes, length)
    shape = tuple(dim if isinstance(dim, int) else sizes.get(axis, batch) for axis, dim in enumerate(dims))
    return shape, next(iter(open_axes), None)


def _cache_tensor(past: ir.Value, present: ir.Value, batch: int, length: int, known: Mapping[str, int]) -> CacheTensor:
    """Return a cache for some tokens, or a state: what evicts tokens, or has no open axis; raises InputError."""
    windows = [node.attributes.get_int("local_window_size", 0) for node in _attentions(past) if _evicts(node)]
    shape, axis = cache_shape(past, batch, max(windows, default=length), known)
    is_state = bool(windows) or (axis is None and not any(_attentions(past)) and dims_of(past) == dims_of(present))
    if not is_state and axis is None:
        what = f"{past.name} has a fixed number of tokens: its shape is {list(shape)}"
        raise InputError(what, where=_WHERE, hint="export it with a symbol for the tokens of the past")
    return CacheTensor(str(past.name), str(present.name), shape, None if is_state else axis)


def _known(model: ir.Model, request: ConvertRequest) -> dict[str, int]:
    """Return the sizes of dimensions that are given, or that follow from the model."""
    dims = OpenDims(model, request.dims, {}, request.freeze)
    if unknown := request.dims.keys() - dims.symbols:
        hint = nearest(min(unknown), dims.symbols) or f"the inputs have {', '.join(sorted(dims.symbols))}"
        raise InputError("inputs have no such dimension", where=f"dimension {min(unknown)!r}", hint=hint)
    return {**dims.determined(), **request.dims}


def _attentions(past: ir.Value) -> Iterator[ir.Node]:
    """Yield the nodes that write new tokens behind the valid ones of a cache."""
    return (node for node, index in past.uses() if node.op_type == "GroupQueryAttention" and index in (3, 4))


def _evicts(attention: ir.Node) -> bool:
    """Return whether a node has a cache of a window, which it writes as a whole."""
    return attention.attributes.get_int("sliding_window_cache", 0) == 1


def _sections(positions: ir.Value) -> int | None:
    """Return the sections of position ids of three dimensions, (sections, batch, tokens); None of two."""
    dims = dims_of(positions) or ()
    if len(dims) != 3:
        return None
    if not isinstance(dims[0], int):
        what = f"the position ids {positions.name} have the shape {list(dims)}"
        raise InputError(what, where=_WHERE, hint="the shape should be [batch, tokens], or [3, batch, tokens]")
    return dims[0]


def _batch(ids: ir.Value, request: ConvertRequest) -> int:
    dims = dims_of(ids) or ()
    if len(dims) != 2:
        what = f"the token ids {ids.name} have {len(dims)} dimensions"
        raise InputError(what, where=_WHERE, hint="they should have the shape [batch, tokens]")
    return dims[0] if isinstance(dims[0], int) else request.dims.get(dims[0] or "", 1)
