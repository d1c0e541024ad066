"""Give the decoder's step a cache of fixed size.

    scores = q · [past, new]ᵀ,  Softmax(scores)            →  Softmax(Where(mask, scores, lowest))
    x + positions[size of the past]                        →  x + table[length]

Exporters compute positions, biases and masks from the size of the cache, which they take for the number of tokens. With
a cache of fixed size, these are constants. A constant whose end is right for fewer tokens as well stays, as a bias by
distance (tokens are at the end of the cache); any other becomes a row of a table, which ONNX Runtime computes
beforehand for each length. Softmax over the cache gets a mask, recognized by its size alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from onnx_bridge.conversion.cleaning import rewrite
from onnx_bridge.core.errors import InputError
from onnx_bridge.core.values import Array, as_array
from onnx_bridge.reference.reference import Reference
from onnx_bridge.requests.conversion import CleanRequest
from passes.graphs.scopes import Scope, required_inputs
from passes.graphs.structural_inputs import OPERANDS

Shapes = Mapping[str, tuple[int, ...]]
_INDEXING = ("Gather", "GatherElements", "GatherND")
_MOST = 1 << 28
"""The most bytes of a table."""


@dataclass(frozen=True)
class StaticStep:
    """A step over a cache of fixed size.

    Attributes:
        model: the model, whose inputs have fixed sizes.
        mask: the new input, (batch, size of the cache) int64: 1 for tokens, 0 for what is hidden.
        length: the new input, (1) int64, of the number of tokens in the cache; None if nothing depends on it.
    """

    model: ir.Model
    mask: str
    length: str | None


def static_step(step: ir.Model, shapes: Callable[[int], Shapes], batch: int, length: int) -> StaticStep:
    """Return a step with a cache of fixed size.

    Args:
        step: the step, which appends one token to a cache of any size; it is not changed.
        shapes: returns the shapes of its inputs for some size of the past.
        batch: the number of texts.
        length: the most tokens, the new one included.

    Raises:
        InputError: no attention to the cache was found, or the tables would be too large.
    """
    fixed, larger = (sized(step, shapes(past)) for past in (length - 1, length))
    scope = Scope(fixed, fixed.graph)
    mask = _input(scope, "cache_mask", (batch, length))
    _hide(fixed, _over_cache(fixed, larger, length), mask)
    return StaticStep(fixed, str(mask.name), look_up_by_length(step, fixed, shapes, length - 1))


def look_up_by_length(model: ir.Model, fixed: ir.Model, shapes: Callable[[int], Shapes], most: int) -> str | None:
    """Take constants that depend on the number of tokens in the cache from tables.

    Args:
        model: the model, which appends tokens to a cache of any size; it is not changed.
        fixed: the same model with ``most`` tokens in the cache (`sized`); it is changed.
        shapes: returns the shapes of the inputs of ``model`` for some size of the past.
        most: the most tokens.

    Returns:
        The new input of ``fixed``, (1) int64, of the number of tokens; None if nothing depends on it.

    Raises:
        InputError: the tables would be too large, or ONNX Runtime does not compute them.
    """
    tables = _tables(model, fixed, shapes, most + 1)
    if not tables:
        return None
    scope = Scope(fixed, fixed.graph)
    count = _input(scope, "cache_length", (1,))
    for value, table in tables.items():
        _look_up(scope, value, table, count)
    return str(count.name)


def sized(model: ir.Model, shapes: Shapes) -> ir.Model:
    """Return a copy with fixed sizes, all that follows from them computed, and without unused inputs."""
    known = {str(value.name): shapes[str(value.name)] for value in required_inputs(model)}
    request = CleanRequest("fold-constants,remove-dead,infer-shapes", shapes=known)
    fixed = rewrite(model.clone(), request).model
    fixed.graph.inputs[:] = [value for value in fixed.graph.inputs if value.uses()]
    return fixed


def _input(scope: Scope, name: str, shape: tuple[int, ...]) -> ir.Value:
    value = ir.Value(name=scope.names.value(name), type=ir.TensorType(ir.DataType.INT64), shape=ir.Shape(shape))
    scope.graph.inputs.append(value)
    return value


def _constant(scope: Scope, name: str, array: Array) -> ir.Value:
    return scope.new_constant(scope.graph, ir.tensor(array), scope.names.value(name))


def _over_cache(fixed: ir.Model, larger: ir.Model, length: int) -> list[ir.Node]:
    """Return the softmax nodes over the tokens of the cache, whose axis grows with it."""
    others = {node.name: node for node in larger.graph}
    return [
        node
        for node in fixed.graph
        if node.op_type == "Softmax" and node.name in others
        if (_last(node), _last(others[node.name])) == (length, length + 1)
    ]


def _last(softmax: ir.Node) -> int | None:
    """Return the size of the last axis; None if the softmax is over another one, or the size is not known."""
    shape = softmax.inputs[0].shape if softmax.inputs[0] is not None else None
    if shape is None or not shape.is_static() or softmax.attributes.get_int("axis", -1) not in (-1, len(shape) - 1):
        return None
    return int(shape.numpy()[-1])


def _hide(model: ir.Model, softmaxes: Sequence[ir.Node], mask: ir.Value) -> None:
    """Let attention ignore what the mask hides."""
    if not softmaxes:
        what = "there is no softmax over the tokens of the cache, so that the cache cannot be of fixed size"
        raise InputError(what, where="decoder", hint="export the model with attention of its own operators (eager)")
    scope = Scope(model, model.graph)
    name = str(mask.name)
    cast = ir.node("Cast", [mask], {"to": int(ir.DataType.BOOL)}, name=scope.names.node(f"{name}/cast"))
    nodes = [cast]
    visible: dict[int, ir.Value] = {}
    for node in softmaxes:
        scores = node.inputs[0]
        assert scores is not None
        assert scores.shape is not None
        assert mask.shape is not None
        rank = len(scores.shape)
        if mask.shape[0] not in (1, scores.shape[0]):
            what = f"the scores of {node.name} have the shape {scores.shape}: heads and texts are one axis"
            raise InputError(what, where="decoder", hint="convert it for one text at a time")
        if rank not in visible:
            sizes = _constant(scope, f"{name}/shape", np.array([mask.shape[0], *[1] * (rank - 2), -1]))
            reshaped = ir.node("Reshape", [cast.outputs[0], sizes], name=scope.names.node(f"{name}/reshape"))
            visible[rank] = reshaped.outputs[0]
            nodes.append(reshaped)
        dtype = (scores.dtype or ir.DataType.FLOAT).numpy()
        lowest = _constant(scope, f"{name}/lowest", np.array(ir.DataType.from_numpy(dtype).min, dtype))
        hidden = ir.node("Where", [visible[rank], scores, lowest], name=scope.names.node(f"{node.name}/{name}"))
        _name(scope, hidden)
        hidden.outputs[0].type, hidden.outputs[0].shape = scores.type, scores.shape
        model.graph.insert_before(node, hidden)
        node.replace_input_with(0, hidden.outputs[0])
    for node in nodes:
        _name(scope, node)
    model.graph.insert_before(model.graph[0], nodes)


def _name(scope: Scope, node: ir.Node) -> None:
    node.outputs[0].name = scope.names.value(f"{node.name}_output")


def _tables(step: ir.Model, fixed: ir.Model, shapes: Callable[[int], Shapes], length: int) -> dict[ir.Value, Array]:
    """Return constants that depend on the number of tokens, with their values for each number, (length, …)."""
    candidates = _computed(step, fixed)
    if not candidates:
        return {}
    model = step.clone()
    values = {str(value.name): value for node in model.graph for value in node.outputs}
    model.graph.outputs[:] = [values[str(value.name)] for value in candidates]
    rewrite(model, CleanRequest("remove-dead"))
    model.graph.inputs[:] = [value for value in required_inputs(model) if value.uses()]
    dtypes = {str(value.name): (value.dtype or ir.DataType.FLOAT).numpy() for value in model.graph.inputs}
    reference = Reference(model)
    rows: dict[ir.Value, list[Array]] = {value: [] for value in candidates}
    for past in range(length):
        sample = {name: np.zeros(shapes(past)[name], dtype) for name, dtype in dtypes.items()}
        outputs = reference.run(sample)
        for value, tensor in candidates.items():
            row = _at_end(as_array(outputs[str(value.name)]), tensor)
            same = np.array_equal(row, tensor)
            rows[value].append(tensor if same else row)
            if not same and tensor.nbytes * length > _MOST:
                what = f"{value.name} depends on the number of tokens, and takes {tensor.nbytes:,} bytes for each"
                raise InputError(what, where="decoder", hint="give a smaller `max_length`")
    changing = [value for value, tensor in candidates.items() if any(row is not tensor for row in rows[value])]
    return {value: np.stack(rows[value]) for value in changing}


def _computed(step: ir.Model, fixed: ir.Model) -> dict[ir.Value, Array]:
    """Return the constants of a sized model that follow from sizes of inputs, and are data for some operator."""
    before = {str(value.name): value for node in step.graph for value in node.outputs}
    constants = {}
    for name, value in fixed.graph.initializers.items():
        if name in before and value.const_value is not None and any(_is_data(*use) for use in value.uses()):
            constants[value] = value.const_value.numpy()
    return constants


def _is_data(node: ir.Node, index: int) -> bool:
    """Return whether an operand is data, rather than a size, an axis, or an index of what has the size of the cache."""
    data = node.inputs[0]
    if node.op_type in _INDEXING and index == 1 and data is not None and data.const_value is None:
        return False
    return node.domain != "" or index not in OPERANDS.get(node.op_type, ())


def _at_end(row: Array, tensor: Array) -> Array:
    """Copy ``row`` into the end of a full-length constant; keep the masked elements."""
    if row.shape == tensor.shape:
        return row
    full = tensor.copy()
    full[tuple(slice(size - count, None) for size, count in zip(tensor.shape, row.shape, strict=True))] = row
    return full


def _look_up(scope: Scope, value: ir.Value, table: Array, count: ir.Value) -> None:
    """Replace the uses of a constant as data by a look-up in a table."""
    name = str(value.name)
    rows = _constant(scope, f"{name}/by_length", table)
    row = ir.node("Gather", [rows, count], {"axis": 0}, name=scope.names.node(f"{name}/of_length"))
    shape = _constant(scope, f"{name}/shape", np.array(table.shape[1:], np.int64))
    reshaped = ir.node("Reshape", [row.outputs[0], shape], name=scope.names.node(f"{name}/of_length_shape"))
    for node in (row, reshaped):
        _name(scope, node)
        node.outputs[0].type = value.type
    row.outputs[0].shape, reshaped.outputs[0].shape = ir.Shape((1, *table.shape[1:])), ir.Shape(table.shape[1:])
    scope.graph.insert_before(scope.graph[0], [row, reshaped])
    for node, index in list(value.uses()):
        if _is_data(node, index):
            node.replace_input_with(index, reshaped.outputs[0])
