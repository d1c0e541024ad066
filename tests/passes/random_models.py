"""Random small models of what passes rewrite: shape arithmetic, constants, identities, branches, quantization."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

Draw = Callable[[st.SearchStrategy[Any]], Any]
Shape = tuple[int, ...]

X: Shape = (3, 4)
"""The size of the input ``x``, whose first dimension is open."""


class Builder:
    """Adds nodes whose outputs are floats of known sizes, at most 3-dimensional.

    Args:
        draw: makes the choices.
    """

    def __init__(self, draw: Draw) -> None:
        self.draw = draw
        self.random = np.random.default_rng(draw(st.integers(0, 99)))
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []
        self.shapes: dict[str, Shape] = {"x": X}
        for shape in ((3, 4), (4,), ()):
            self.shapes[self.constant(self.random.standard_normal(shape).astype(np.float32))] = shape

    def name(self) -> str:
        return f"v{len(self.nodes)}_{len(self.initializers)}"

    def constant(self, array: Any) -> str:
        """An initializer, or a Constant node."""
        name, array = self.name(), np.asarray(array)
        if self.draw(st.booleans()):
            self.initializers.append(numpy_helper.from_array(array, name))
        else:
            self.nodes.append(helper.make_node("Constant", [], [name], value=numpy_helper.from_array(array)))
        return name

    def ints(self, *values: int) -> str:
        return self.constant(np.array(values, np.int64))

    def node(self, op_type: str, *inputs: str, **attributes: Any) -> str:
        name = self.name()
        self.nodes.append(helper.make_node(op_type, inputs, [name], name=f"node_{name}", **attributes))
        return name

    def any(self) -> tuple[str, Shape]:
        name = self.draw(st.sampled_from(list(self.shapes)))
        return name, self.shapes[name]

    def step(self) -> None:
        """Add one operator, with what it needs."""
        name, shape = self.draw(st.sampled_from(STEPS))(self, *self.any())
        if len(shape) <= 3 and np.prod(shape) <= 500:
            self.shapes[name] = shape


def unary(build: Builder, value: str, shape: Shape) -> tuple[str, Shape]:
    return build.node(build.draw(st.sampled_from(["Neg", "Abs", "Tanh", "Identity", "Sum", "Dropout"])), value), shape


def binary(build: Builder, value: str, shape: Shape) -> tuple[str, Shape]:
    other, size = build.any()
    try:
        size = np.broadcast_shapes(shape, size)
    except ValueError:
        other, size = value, shape
    return build.node(build.draw(st.sampled_from(["Add", "Sub", "Mul", "Max"])), value, other), size


def cast(build: Builder, value: str, shape: Shape) -> tuple[str, Shape]:
    if build.draw(st.booleans()):
        value = build.node("Cast", value, to=TensorProto.DOUBLE)
    return build.node("Cast", value, to=TensorProto.FLOAT), shape


def reshape(build: Builder, value: str, shape: Shape) -> tuple[str, Shape]:
    """To sizes that are written down: the same, with one left to be computed, or flat."""
    kind = build.draw(st.sampled_from(["same", "free", "zeros", "flat"]))
    wanted = list(shape)
    if kind == "free" and shape:
        wanted[build.draw(st.integers(0, len(shape) - 1))] = -1
    if kind == "zeros":
        wanted = [0] * len(shape)
    if kind == "flat":
        wanted, shape = [-1], (int(np.prod(shape)),)
    return build.node("Reshape", value, build.ints(*wanted)), shape


def reshape_by_arithmetic(build: Builder, value: str, shape: Shape) -> tuple[str, Shape]:
    """To sizes that are computed from those of another value, as exporters write it."""
    if len(shape) < 2:
        return unary(build, value, shape)
    sizes = build.node("Shape", value)
    first = build.node("Gather", sizes, build.constant(np.int64(0)), axis=0)
    rest = build.node("Slice", sizes, build.ints(1), build.ints(2**31))
    product = build.node("ReduceProd", rest, keepdims=1)
    wanted = build.node("Concat", product, build.node("Unsqueeze", first, build.ints(0)), axis=0)
    return build.node("Reshape", value, wanted), (int(np.prod(shape[1:])), shape[0])


def transpose(build: Builder, value: str, shape: Shape) -> tuple[str, Shape]:
    if not shape:
        return unary(build, value, shape)
    order = build.draw(st.permutations(range(len(shape))))
    return build.node("Transpose", value, perm=order), tuple(shape[axis] for axis in order)


def slices(build: Builder, value: str, shape: Shape) -> tuple[str, Shape]:
    if not shape:
        return unary(build, value, shape)
    axis = build.draw(st.integers(0, len(shape) - 1))
    start = build.draw(st.integers(0, shape[axis] - 1))
    end = build.draw(st.sampled_from([2**31, 2**63 - 1, shape[axis]]))
    size = (*shape[:axis], shape[axis] - start, *shape[axis + 1 :])
    return build.node("Slice", value, build.ints(start), build.ints(end), build.ints(axis)), size


def expand(build: Builder, value: str, shape: Shape) -> tuple[str, Shape]:
    if build.draw(st.booleans()):
        return build.node("Expand", value, build.node("Shape", value)), shape
    return build.node("Expand", value, build.ints(1)), shape or (1,)


def fill(build: Builder, value: str, shape: Shape) -> tuple[str, Shape]:
    tensor = numpy_helper.from_array(np.array([1.5], np.float32))
    return build.node("ConstantOfShape", build.node("Shape", value), value=tensor), shape


def concat(build: Builder, value: str, shape: Shape) -> tuple[str, Shape]:
    if not shape:
        return unary(build, value, shape)
    count = build.draw(st.integers(1, 2))
    return build.node("Concat", *[value] * count, axis=0), (count * shape[0], *shape[1:])


def pad(build: Builder, value: str, shape: Shape) -> tuple[str, Shape]:
    if not shape:
        return unary(build, value, shape)
    after = build.draw(st.integers(0, 1))
    pads = build.ints(*[0] * (2 * len(shape) - 1), after)
    return build.node("Pad", value, pads), (*shape[:-1], shape[-1] + after)


def unsqueeze(build: Builder, value: str, shape: Shape) -> tuple[str, Shape]:
    value = build.node("Unsqueeze", value, build.ints(0))
    if build.draw(st.booleans()):
        return build.node("Squeeze", value, build.ints(0)), shape
    return value, (1, *shape)


def quantize(build: Builder, value: str, shape: Shape) -> tuple[str, Shape]:
    scale, zero = build.constant(np.float32(0.125)), build.constant(np.int8(build.draw(st.integers(-3, 3))))
    return build.node("DequantizeLinear", build.node("QuantizeLinear", value, scale, zero), scale, zero), shape


def product(build: Builder, value: str, shape: Shape) -> tuple[str, Shape]:
    if len(shape) != 2:
        return unary(build, value, shape)
    return build.node("MatMul", value, build.node("Transpose", value)), (shape[0], shape[0])


def branch(build: Builder, value: str, shape: Shape) -> tuple[str, Shape]:
    """Branches that use values from outside, constants and names of their own; the condition may be constant."""
    other = build.draw(st.sampled_from([name for name, size in build.shapes.items() if size == shape]))
    condition = build.constant(np.array(build.draw(st.booleans()))) if build.draw(st.booleans()) else "c"
    graphs = {}
    for index, name in enumerate(("then_branch", "else_branch")):
        label = f"{build.name()}_{index}"
        constant = numpy_helper.from_array(np.array(0.5 + index, np.float32))
        nodes = [
            helper.make_node("Constant", [], [f"{label}k"], value=constant),
            helper.make_node("Neg", [f"{label}k"], [f"{label}n"]),
            helper.make_node("Identity", [other], [f"{label}i"]),
            helper.make_node(("Mul", "Add")[index], [f"{label}i", f"{label}n"], [f"{label}o"]),
        ]
        result = helper.make_tensor_value_info(f"{label}o", TensorProto.FLOAT, None)
        graphs[name] = helper.make_graph(nodes, name, [], [result])
    return build.node("If", condition, **graphs), shape


STEPS = [
    unary,
    binary,
    cast,
    reshape,
    reshape_by_arithmetic,
    transpose,
    slices,
    expand,
    fill,
    concat,
    pad,
    unsqueeze,
    quantize,
    product,
    branch,
]


@st.composite
def models(draw: Draw) -> onnx.ModelProto:
    """Models with the inputs ``x``, floats of [n, 4], and ``c``, a truth value."""
    build = Builder(draw)
    for _ in range(draw(st.integers(2, 12))):
        build.step()
    made = {name for node in build.nodes for name in node.output}
    names = [name for name in build.shapes if name in made] or [build.node("Neg", "x")]
    outputs = draw(st.lists(st.sampled_from(names), min_size=1, max_size=3, unique=True))
    outputs = sorted({*outputs, names[-1]})
    graph = helper.make_graph(
        build.nodes,
        "random",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4]),
            helper.make_tensor_value_info("c", TensorProto.BOOL, []),
        ],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
        build.initializers,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
