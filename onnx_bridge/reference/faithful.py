"""Undo and settle, for the reference, what ONNX Runtime computes unlike the model says, leaves open, or refuses.

    MatMulNBits{accuracy_level=4}(x, w)                   ONNX Runtime quantizes x to int8 first; the weights alone are
                                                          quantized
    GroupQueryAttention{sliding_window_cache=1}(…)        rows of the cache that hold no position are whatever is in
                                                          memory; they are 0
    GroupQueryAttention(q, k, …, q_norm, k_norm)          has no kernel; q and k are normalized by nodes before it
    STFT(x), DFT(x)                                       off by a thousandth in float32 unless the length is a power
                                                          of two; they are computed in float64
    MatMulInteger(uint8, int8)                            saturates on some processors (`passes.evaluation.saturation`)

``accuracy_level`` (0: unset, 1: float32, 2: float16, 3: bfloat16, 4: int8) is a licence for kernels to round the inputs
of a product. Builders of language models write 4 for CPUs; MIGraphX has no such kernels. Source: ONNX Runtime's
ContribOperators.md, MatMulNBits, QMoE and GroupQueryAttention.
"""

from __future__ import annotations

import contextlib
import mmap
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from onnx_bridge.core.errors import InputError
from onnx_bridge.model import io as models
from passes.evaluation.saturation import PRODUCTS, avoid_saturation, may_saturate, saturates
from passes.graphs.scopes import Scope, scopes
from passes.rewriting.base import Context
from passes.rewriting.invented import NAMES, define_invented, invented
from passes.specialize.convert_opset import ConvertOpset

_LEVEL, _WINDOWED = "accuracy_level", "sliding_window_cache"
_TRANSFORMS = {"DFT": (0,), "STFT": (0, 2)}
"""The operands that are numbers."""
_WRITTEN = [bytes((0x22, len(name))) + name.encode() for name in _TRANSFORMS]
"""The operator of a node as a file has it: names as short as these are in weights by chance."""
_HEADS = ("num_heads", "kv_num_heads")
_OF_DATA = ("Reshape", "SimplifiedLayerNormalization", "Split")
_DOMAIN = "com.microsoft"
_FLOAT32 = 1
_SINCE = 12
"""The first opset with all nodes that clear the rows of a cache."""


def faithful(model: ir.Model | Path | bytes) -> tuple[ir.Model | Path | bytes, tuple[str, ...]]:
    """Return a model that ONNX Runtime computes as it is written, and notes on changes; without changes the same model.

    Args:
        model: it is not changed. The weights of a file stay there.
    """
    if isinstance(model, ir.Model):
        return (model, ()) if not (_unfaithful(model) or may_saturate(model)) else _settled(model.clone())
    if not _mentions(model):
        return model, ()
    loaded = models.load(model) if isinstance(model, Path) else ir.from_proto(onnx.ModelProto.FromString(model))
    define_invented(loaded)
    return _settled(loaded) if _unfaithful(loaded) or may_saturate(loaded) or invented(loaded) else (model, ())


def _settled(model: ir.Model) -> tuple[ir.Model, tuple[str, ...]]:
    notes = []
    nodes = _unfaithful(model)
    if licensed := [node for node in nodes if _is_licensed(node)]:
        for node in licensed:
            node.attributes[_LEVEL] = ir.AttrInt64(_LEVEL, 0)
        kinds = ", ".join(sorted({node.op_type for node in licensed}))
        changed = f"{_LEVEL} of {len(licensed)} node{'s' if len(licensed) > 1 else ''} ({kinds}) is 0 in the reference"
        notes.append(f"{changed}: else ONNX Runtime rounds their inputs")
    if any(map(_is_windowed, nodes)) and Scope(model, model.graph).opset() < _SINCE:
        with contextlib.suppress(InputError):  # a node cannot be converted
            ConvertOpset(_SINCE).run(model, Context())
    for node in nodes:
        if _is_normalizing(node):
            _normalize_before(node)
        if _is_windowed(node):
            _clear_rows(node)
        if _is_transform(node):
            _widen(node)
    avoid_saturation(model)
    return model, tuple(notes)


class _Nodes:
    """New nodes, in order, with operands that are values or constants."""

    def __init__(self) -> None:
        self.nodes: list[ir.Node] = []

    def __call__(self, kind: str, *operands: ir.Value | np.generic | np.ndarray | None, **attributes: Any) -> ir.Value:
        values = [value if isinstance(value, ir.Value | None) else self._constant(value) for value in operands]
        self.nodes.append(ir.node(kind, values, attributes or None))
        self.nodes[-1].outputs[0].dtype = ir.DataType.INT64
        return self.nodes[-1].outputs[0]

    def _constant(self, array: np.generic | np.ndarray) -> ir.Value:
        constant = self("Constant", value=ir.tensor(np.asarray(array)))
        constant.dtype = ir.DataType.from_numpy(np.asarray(array).dtype)
        return constant


def _normalize_before(node: ir.Node) -> None:
    """Normalize the heads of queries and keys before a node, by √(mean(x²) + ε), instead of in it."""
    op, graph, query = _Nodes(), node.graph, node.inputs[0]
    heads = [node.attributes.get_int(name, 1) for name in _HEADS]
    if graph is None or query is None or query.dtype is None:
        return
    if node.inputs[1] is None:  # queries, keys and values are one input
        size = op("Div", op("Gather", op("Shape", query), np.int64(2)), np.int64(heads[0] + 2 * heads[1]))
        parts = op("Mul", size, np.array([heads[0], heads[1], heads[1]]))
        op("Split", query, parts, axis=2)
        op.nodes[-1].resize_outputs(3)
    operands: list[ir.Value | None] = [*(op.nodes[-1].outputs if op.nodes else node.inputs[:3])]
    for index, weight in enumerate(node.inputs[14:16]):
        if weight is not None and (x := operands[index]) is not None:
            shape = np.array([0, 0, heads[index], -1])
            options = {"axis": -1, "epsilon": node.attributes.get_float("qk_norm_epsilon", 1e-6)}
            normal = op("SimplifiedLayerNormalization", op("Reshape", x, shape), weight, **options)
            operands[index] = op("Reshape", normal, np.array([0, 0, -1]))
    for value in (value for new in op.nodes if new.op_type in _OF_DATA for value in new.outputs):
        value.dtype = query.dtype
    for index, operand in enumerate(operands):
        node.replace_input_with(index, operand)
    for index in range(14, min(len(node.inputs), 16)):
        node.replace_input_with(index, None)
    graph.insert_before(node, op.nodes)


def _clear_rows(node: ir.Node) -> None:
    """Let the rows of a cache that hold no position be 0: from L(T) on (`passes.legalize.contrib.windowed_cache`)."""
    graph, past, lengths = node.graph, node.inputs[3], node.inputs[5]
    if graph is None or past is None or lengths is None or past.dtype is None:
        return
    op, one = _Nodes(), np.int64(1)
    capacity = op("Gather", op("Shape", past), np.int64(2), axis=0)
    step = op("Sub", capacity, np.int64(node.attributes.get_int("local_window_size", 1) - 1))
    total = op("Add", op("Cast", lengths, to=int(ir.DataType.INT64)), one)
    over = op("Sub", op("Add", total, step), op("Add", capacity, one))
    evictions = op("Max", op("Div", over, step), np.int64(0))
    left = op("Reshape", op("Sub", total, op("Mul", evictions, step)), np.array([-1, 1, 1, 1]))
    rows = op("Reshape", op("Range", np.int64(0), capacity, one), np.array([1, 1, -1, 1]))
    held = op("Less", rows, left)
    held.dtype = ir.DataType.BOOL
    zero = np.zeros((), past.dtype.numpy())
    for present in node.outputs[1:3]:
        uses = [*present.uses()]
        cleared = op("Where", held, present, zero)
        cleared.dtype = present.dtype or past.dtype
        _take_over(present, cleared, uses)
    graph.insert_after(node, op.nodes)


def _widen(node: ir.Node) -> None:
    """Compute a node in float64, whose result has the type of its first operand."""
    before, after, (output,), operand = _Nodes(), _Nodes(), node.outputs, node.inputs[0]
    if node.graph is None or operand is None:
        return
    uses = [*output.uses()]
    narrow = after("CastLike", output, operand)
    narrow.dtype = operand.dtype or output.dtype or ir.DataType.FLOAT
    _take_over(output, narrow, uses)
    output.type = ir.TensorType(ir.DataType.DOUBLE)  # a clone shares the types of the original
    for index in _TRANSFORMS[node.op_type]:
        if index < len(node.inputs) and (value := node.inputs[index]) is not None:
            wide = before("Cast", value, to=int(ir.DataType.DOUBLE))
            wide.dtype = ir.DataType.DOUBLE
            node.replace_input_with(index, wide)
    node.graph.insert_before(node, before.nodes)
    node.graph.insert_after(node, after.nodes)


def _take_over(old: ir.Value, new: ir.Value, uses: Iterable[tuple[ir.Node, int]]) -> None:
    """Let a value take the place of another one, also as an output."""
    new.shape, new.name, old.name = old.shape, old.name, f"{old.name}_before"
    for user, index in uses:
        user.replace_input_with(index, new)
    if old.is_graph_output() and old.graph is not None:
        old.graph.outputs[:] = [new if value is old else value for value in old.graph.outputs]


def _unfaithful(model: ir.Model) -> list[ir.Node]:
    """Return the nodes that ONNX Runtime computes unlike the model says, leaves open, or refuses."""
    return [node for scope in scopes(model) for node in scope.nodes() if _is_unfaithful(node)]


def _is_unfaithful(node: ir.Node) -> bool:
    if node.domain == _DOMAIN:
        return _is_licensed(node) or _is_windowed(node) or _is_normalizing(node)
    return _is_transform(node)


def _is_licensed(node: ir.Node) -> bool:
    """Return whether ONNX Runtime may round its inputs before it computes."""
    return _LEVEL in node.attributes and node.attributes.get_int(_LEVEL, 0) > _FLOAT32


def _is_windowed(node: ir.Node) -> bool:
    """Return whether it leaves rows of its cache as they are in memory."""
    return node.op_type == "GroupQueryAttention" and node.attributes.get_int(_WINDOWED, 0) == 1


def _is_normalizing(node: ir.Node) -> bool:
    """Return whether it normalizes queries and keys, for which ONNX Runtime's CPU has no kernel."""
    return node.op_type == "GroupQueryAttention" and any(value is not None for value in node.inputs[14:16])


def _is_transform(node: ir.Node) -> bool:
    """Return whether it is computed too coarsely in float32."""
    operand = node.inputs[0] if node.inputs else None
    return node.domain == "" and node.op_type in _TRANSFORMS and getattr(operand, "dtype", None) != ir.DataType.DOUBLE


def _mentions(model: Path | bytes) -> bool:
    """Return whether a serialized model has the name of one of the attributes, or of an operator, anywhere."""
    names = [
        _LEVEL.encode(),
        b"GroupQueryAttention",
        *map(str.encode, NAMES),
        *_WRITTEN,
        *(PRODUCTS if saturates() else ()),
    ]
    if isinstance(model, bytes):
        return any(name in model for name in names)
    try:
        with model.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            return any(content.find(name) >= 0 for name in names)
    except (OSError, ValueError):  # missing or empty: ONNX Runtime says so
        return False
