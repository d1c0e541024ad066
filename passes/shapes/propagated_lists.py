"""Bound the length of the lists that ONNX's inference propagates as the values of shapes.

It holds each element of such a list as a message. Thirty Concats, each of the one before with itself, make 2³⁰ of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import onnx

_PROPAGATES = frozenset(
    ("Abs", "Add", "Cast", "Ceil", "Concat", "Div", "Floor", "Gather", "Identity", "Max", "Min", "Mod", "Mul", "Neg")
) | {"Reshape", "Slice", "Squeeze", "Sub", "Unsqueeze", "Where"}
"""Operators whose results have values that are propagated, if all inputs have."""
_AXES = 64
"""More than any tensor has."""
_Key = tuple[str, str, str]


def longest_list(model: onnx.ModelProto) -> int:
    """Return an upper bound of the elements of the lists that are propagated; ``model`` has no recursive functions."""
    functions = {(function.domain, function.name, function.overload): function for function in model.functions}
    return _Lists(functions, {}).of_graph(model.graph, {})


class _Lists:
    """The bounds of all lists, by the names of values; a value without data has none.

    ``factors``: how many times longer than the longest input a list of a function may be, if known.
    """

    def __init__(self, functions: Mapping[_Key, onnx.FunctionProto], factors: dict[_Key, int]) -> None:
        self._functions, self._factors = functions, factors

    def of_graph(self, graph: onnx.GraphProto, outer: Mapping[str, int]) -> int:
        """Return the longest list of a graph and its subgraphs."""
        given = {tensor.name: max(1, *tensor.dims) if tensor.dims else 1 for tensor in graph.initializer}
        return self._longest(graph.node, {**outer, **given})

    def _longest(self, nodes: Iterable[onnx.NodeProto], sizes: dict[str, int]) -> int:
        longest = max(sizes.values(), default=0)
        for node in nodes:
            size = self._size(node, sizes)
            for attribute in node.attribute:
                for graph in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
                    longest = max(longest, self.of_graph(graph, sizes))
            if size:
                sizes |= dict.fromkeys(node.output, size)
                longest = max(longest, size)
        return longest

    def _size(self, node: onnx.NodeProto, sizes: Mapping[str, int]) -> int:
        inputs = [sizes.get(name, 0) for name in node.input if name]
        key = (node.domain, node.op_type, node.overload)
        if key in self._functions:
            return max(1, *inputs, 1) * self._factor(key)
        if node.op_type == "Constant":
            tensors = [
                max(1, *attribute.t.dims) if attribute.t.dims else 1
                for attribute in node.attribute
                if attribute.HasField("t")
            ]
            return max(1, *tensors, *(len(attribute.ints) for attribute in node.attribute), 1)
        if node.op_type in ("Shape", "Size"):
            return _AXES
        if node.op_type not in _PROPAGATES or not inputs or not all(inputs):
            return 0
        return sum(inputs) if node.op_type == "Concat" else max(inputs)

    def _factor(self, key: _Key) -> int:
        if key not in self._factors:
            function = self._functions[key]
            self._factors[key] = self._longest(function.node, dict.fromkeys(function.input, 1))
        return self._factors[key]
