"""Sizes that ONNX infers otherwise than ONNX Runtime computes them, and which are corrected.

    x: [1, 1, 10]   y = Resize(x, scales = [1, 1, .7])   →  ONNX says [1, 1, 6], and the product of float32 is 7

Such a result is detached from its node: what follows is inferred from a declaration, which has the right sizes as far
as they are known. As such nodes can follow each other, this is repeated until all are right.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import onnx

from passes.graphs.limits import MAX_ELEMENTS
from passes.shapes.corrections.proto_nodes import DETACHED, Placed, placed, with_nested

_ROUNDS = 20
"""The most inferences; what is not right after them is unknown."""
_Sizes = list[int | None]
"""The sizes of a tensor; None where they are open."""
_Rule = Callable[[Placed, Sequence[_Sizes | None], _Sizes], _Sizes | None]
"""The right sizes of a result, by its node, the sizes of the inputs as far as known, and those that ONNX infers."""


def infer(model: onnx.ModelProto, run: Callable[[onnx.ModelProto], onnx.ModelProto]) -> onnx.ModelProto:
    """Infer a model that has such nodes; those of functions are left as they are.

    Args:
        model: not changed.
        run: ONNX's inference.
    """
    found = run(model)
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    for turn in range(_ROUNDS + 1):
        pairs = list(zip(placed(changed.graph), placed(found.graph), strict=True))
        wrong = [(before, *each) for before, here in pairs for each in _wrong(here)]
        if not wrong:
            break
        for before, index, dtype, sizes in wrong:
            _declare(before, index, dtype, sizes if turn < _ROUNDS else None)
        found = run(changed)
    for here in list(placed(found.graph)):
        detached = {name for name in here.node.output if _is_concerned(here.node) and name.endswith(DETACHED)}
        if detached:
            here.node.output[:] = [name.removesuffix(DETACHED) for name in here.node.output]
            kept = [each for each in here.graph.value_info if each.name not in detached]
            del here.graph.value_info[:]
            here.graph.value_info.extend(kept)
    return found


def infer_node(
    node: onnx.NodeProto,
    types: Mapping[str, onnx.TypeProto],
    constants: Mapping[str, onnx.TensorProto],
    run: Callable[[onnx.NodeProto], dict[str, onnx.TypeProto]],
) -> dict[str, onnx.TypeProto]:
    """Infer the types of the outputs of one node; of what such nodes within it give, no shape is known.

    Args:
        node: not changed.
        types: those of its operands that are known.
        constants: those of its operands that are.
        run: ONNX's inference.
    """
    inferred = run(node)
    concerned = list(filter(_is_concerned, with_nested([node])))
    if not concerned:
        return inferred
    if concerned != [node]:
        return {name: _tensor(kind.tensor_type.elem_type, None) for name, kind in inferred.items() if _is_tensor(kind)}
    here = Placed(onnx.GraphProto(), node, {**types, **inferred}, constants)
    return inferred | {node.output[index]: _tensor(dtype, sizes) for index, dtype, sizes in _wrong(here)}


def _is_concerned(node: onnx.NodeProto) -> bool:
    return node.op_type in OPERATORS and node.domain in ("", "ai.onnx")


def _wrong(here: Placed) -> Iterator[tuple[int, int, onnx.TensorShapeProto | None]]:
    """The results of a node whose shapes are not right, with the dtypes and the right shapes, as far as known."""
    if not _is_concerned(here.node):
        return
    inputs = [_sizes(here.types.get(name)) for name in here.node.input]
    for index, name in enumerate(here.node.output):
        kind, sizes = here.types.get(name, onnx.TypeProto()), _sizes(here.types.get(name))
        if sizes is None:
            continue
        right = _RULES[here.node.op_type](here, inputs, sizes)
        shape = None
        if right is not None:
            dims = zip(kind.tensor_type.shape.dim, sizes, right, strict=True)
            kept = (dim if size == new else onnx.TensorShapeProto.Dimension(dim_value=new) for dim, size, new in dims)
            shape = onnx.TensorShapeProto(dim=kept)
        known = _sizes(here.types.get(name.removesuffix(DETACHED)))
        if known != right:
            yield index, kind.tensor_type.elem_type, shape


def _declare(before: Placed, index: int, dtype: int, shape: onnx.TensorShapeProto | None) -> None:
    """Declare what the result of a node is, and detach it from the node."""
    name = before.node.output[index].removesuffix(DETACHED)
    before.node.output[index] = name + DETACHED
    infos = (*before.graph.value_info, *before.graph.output)
    info = next((each for each in infos if each.name == name), None) or before.graph.value_info.add(name=name)
    info.type.CopyFrom(_tensor(dtype, shape))


def _tensor(dtype: int, shape: onnx.TensorShapeProto | None) -> onnx.TypeProto:
    return onnx.TypeProto(tensor_type=onnx.TypeProto.Tensor(elem_type=dtype, shape=shape))


def _is_tensor(kind: onnx.TypeProto) -> bool:
    return bool(kind.WhichOneof("value") == "tensor_type")


def _sizes(kind: onnx.TypeProto | None) -> _Sizes | None:
    if kind is None or not kind.tensor_type.HasField("shape"):
        return None
    return [int(dim.dim_value) if dim.HasField("dim_value") else None for dim in kind.tensor_type.shape.dim]


def _attribute(node: onnx.NodeProto, name: str) -> onnx.AttributeProto:
    """An attribute, whose fields are all empty if there is none."""
    return next((each for each in node.attribute if each.name == name), onnx.AttributeProto())


def _is_same(node: onnx.NodeProto) -> bool:
    """Whether the padding is chosen such that the sizes are those of the input, divided by the strides."""
    return _attribute(node, "auto_pad").s in (b"SAME_UPPER", b"SAME_LOWER")


def _resized(here: Placed, inputs: Sequence[_Sizes | None], found: _Sizes) -> _Sizes:
    """ONNX Runtime multiplies in float32, and ONNX in float64."""
    node, data = here.node, inputs[0] if inputs else None
    tensor = here.constants.get(next(iter(node.input[1 if len(node.input) == 2 else 2 :]), ""))
    scales = _attribute(node, "scales").floats if tensor is None else onnx.numpy_helper.to_array(tensor).ravel()
    axes = _attribute(node, "axes").ints or range(len(found))
    right = list(found)
    for axis, scale in zip(axes, scales, strict=False):
        size = data[axis] if data is not None and len(data) == len(found) and -len(data) <= axis < len(data) else None
        product = np.float32(size or 0) * np.float32(scale)
        if size is not None and found[axis] is not None and 0 <= product < MAX_ELEMENTS:
            right[axis] = int(product)
    return right


def _pooled(here: Placed, inputs: Sequence[_Sizes | None], found: _Sizes) -> _Sizes:
    """No window begins in the padding at the end; where the padding follows from dilated windows, nothing is known."""
    node, data, count = here.node, inputs[0] if inputs else None, len(found) - 2
    kernel, strides, dilations = (
        list(_attribute(node, name).ints) or [1] * count for name in ("kernel_shape", "strides", "dilations")
    )
    if _is_same(node):
        return found if dilations == [1] * count else [*found[:2], *[None] * count]
    pads = list(_attribute(node, "pads").ints) or [0] * 2 * count
    given = len(data or ()) - 2, len(kernel), len(strides), len(dilations), len(pads) // 2
    if _attribute(node, "ceil_mode").i != 1 or data is None or given != (count,) * 5 or min(strides, default=1) < 1:
        return found
    right = found[:2]
    for axis, size in enumerate(data[2:]):
        begin, step, length = pads[axis], strides[axis], dilations[axis] * (kernel[axis] - 1) + 1
        windows = None if size is None else -(-(size + begin + pads[axis + count] - length) // step) + 1
        is_beyond = size is not None and windows is not None and (windows - 1) * step >= size + begin
        right.append(windows - 1 if windows is not None and is_beyond else windows)
    return right


def _transposed(here: Placed, inputs: Sequence[_Sizes | None], found: _Sizes) -> _Sizes | None:
    """Where the padding is chosen for a size, ONNX adds that of the output to it; at a size that is less than that of
    the input, it stops."""
    if _attribute(here.node, "output_shape").ints and len(found) != len(inputs[0] or ()):
        return None
    is_added = _is_same(here.node) and any(_attribute(here.node, "output_padding").ints)
    return [*found[:2], *[None] * len(found[2:])] if is_added else found


def _summed(here: Placed, inputs: Sequence[_Sizes | None], found: _Sizes) -> _Sizes:
    """ONNX Runtime lets a size of 1 stand for any other of the same letter, and ONNX takes the first."""
    terms, arrow, result = _attribute(here.node, "equation").s.decode(errors="replace").replace(" ", "").partition("->")
    sizes: dict[str, set[int | None]] = {}
    for term, given in zip(terms.split(","), inputs, strict=False):
        for letter, size in _lettered(term, given or []):
            sizes.setdefault(letter, set()).add(size)
    right = list(found)
    for letter, axis in _lettered(result, list(range(len(found)))) if arrow else ():
        if axis is not None and 1 in sizes.get(letter, ()) and len(sizes[letter]) > 1:
            right[axis] = None
    return right


def _lettered(term: str, sizes: Sequence[int | None]) -> Iterator[tuple[str, int | None]]:
    """The letters of a term of an Einsum, each with its size."""
    head, _, tail = term.partition("...")
    yield from zip(head, sizes, strict=False)
    yield from zip(reversed(tail), reversed(sizes), strict=False)


def _attended(here: Placed, inputs: Sequence[_Sizes | None], found: _Sizes) -> _Sizes:
    """Of open sizes, ONNX takes that they are 0."""
    is_open = any(sizes is None or None in sizes for name, sizes in zip(here.node.input, inputs, strict=True) if name)
    return [None if size == 0 else size for size in found] if is_open else found


def _activated(here: Placed, inputs: Sequence[_Sizes | None], found: _Sizes) -> _Sizes:
    """ONNX Runtime also repeats the data for a longer slope."""
    slope = inputs[1] if len(inputs) > 1 else None
    pairs = list(zip(reversed(found), reversed(slope or []), strict=False))
    right = [None if size == 1 and other != 1 else size for size, other in reversed(pairs)]
    return [*found[: len(found) - len(right)], *right]


_RULES: dict[str, _Rule] = {
    "Attention": _attended,
    "AveragePool": _pooled,
    "ConvTranspose": _transposed,
    "Einsum": _summed,
    "LpPool": _pooled,
    "MaxPool": _pooled,
    "PRelu": _activated,
    "Resize": _resized,
    "Upsample": _resized,
}
OPERATORS = frozenset(_RULES)
