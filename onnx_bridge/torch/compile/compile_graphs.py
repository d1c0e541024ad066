"""The graphs that `torch.compile` passes to a backend, as modules that can be lowered.

A graph takes parameters, buffers, sizes and constants along with its inputs. Parameters and buffers become the module's
own, sizes and constants are fixed; returned sizes and inputs are not computed. The graph is run on fake tensors to find
out what it returns, and whether it writes to its inputs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils import _pytree
from typing_extensions import TypeIs

from onnx_bridge.core.errors import InputError
from onnx_bridge.torch.lowering import padding


@dataclass(frozen=True)
class Signature:
    """The arguments of a graph.

    Attributes:
        names: the names of all arguments.
        owned: the positions of parameters and buffers.
        open: the symbols of open dimensions by axis, for each tensor that has such dimensions, by position.
        symbols: the symbols of integer arguments that are the size of an open dimension, by position.
        numbers: the positions of tensors of which only ``item()`` is used: Python floats.
    """

    names: tuple[str, ...]
    owned: frozenset[int]
    open: Mapping[int, Mapping[int, str]]
    symbols: Mapping[int, str]
    numbers: frozenset[int]

    @staticmethod
    def of(graph: fx.GraphModule) -> Signature:
        """Read the signature of a graph from dynamo's metadata."""
        nodes = [node for node in graph.graph.nodes if node.op == "placeholder"]
        owned, numbers = set(), set()
        open_: dict[int, dict[int, str]] = {}
        integers: dict[int, str] = {}
        for index, node in enumerate(nodes):
            value = node.meta.get("example_value")
            tensor_dict = node.meta.get("tensor_dict") or {}
            if isinstance(value, nn.Parameter) or tensor_dict.get("_dynamo_static_input_type") is not None:
                owned.add(index)
            elif isinstance(value, torch.Tensor) and not value.dim() and _only_read(node):
                numbers.add(index)
            elif isinstance(value, torch.SymInt):
                integers[index] = str(value.node.expr)
            elif isinstance(value, torch.Tensor):
                axes = {axis: _symbol(size) for axis, size in enumerate(value.shape) if _symbol(size)}
                if axes:
                    open_[index] = axes
        known = {symbol for axes in open_.values() for symbol in axes.values()}
        symbols = {index: symbol for index, symbol in integers.items() if symbol in known}
        return Signature(tuple(node.name for node in nodes), frozenset(owned), open_, symbols, frozenset(numbers))

    def with_numbers(self, args: Sequence[Any]) -> list[Any]:
        """Return the arguments with NumPy scalars, which also have ``item()``, for the tensors of `numbers`."""
        return [
            argument.numpy(force=True)[()] if index in self.numbers else argument for index, argument in enumerate(args)
        ]


def _only_read(node: fx.Node) -> bool:
    return bool(node.users) and all(user.op == "call_method" and user.target == "item" for user in node.users)


def _symbol(size: Any) -> str:
    """Return the symbol of an open size; empty for another size."""
    name = str(size.node.expr) if isinstance(size, torch.SymInt) else ""
    return name if name.isidentifier() else ""


@dataclass(frozen=True)
class Computed:
    """A tensor that a program computes."""

    shape: tuple[int, ...]
    is_complex: bool


@dataclass(frozen=True)
class Outcome:
    """The values that a graph returns, each by its position in one of the four tables.

    Attributes:
        spec: the nesting of the values.
        computed: tensors that are computed.
        arguments: the positions of arguments that are returned.
        repeated: the positions of computed tensors that are returned again.
        fixed: values that are not tensors.
    """

    spec: _pytree.TreeSpec
    computed: dict[int, Computed] = field(default_factory=dict)
    arguments: dict[int, int] = field(default_factory=dict)
    repeated: dict[int, int] = field(default_factory=dict)
    fixed: dict[int, Any] = field(default_factory=dict)

    def assemble(self, computed: Mapping[int, torch.Tensor], args: Sequence[Any]) -> Any:
        """Return the value of the graph from the computed tensors and the arguments."""
        leaves = {**self.fixed, **computed, **{index: args[position] for index, position in self.arguments.items()}}
        leaves |= {index: leaves[position] for index, position in self.repeated.items()}
        return _pytree.tree_unflatten([leaves[index] for index in sorted(leaves)], self.spec)


def predict_outcome(graph: fx.GraphModule, args: Sequence[Any]) -> Outcome:
    """Predict the values that a graph returns for arguments of these types and shapes.

    Raises InputError if the graph writes to its arguments, or returns a view of one, which no program can do.
    """
    try:
        mode = FakeTensorMode(allow_non_fake_inputs=True)
        with mode:
            fakes = [
                mode.from_tensor(argument.detach(), static_shapes=True) if is_tensor(argument) else argument
                for argument in args
            ]
            return _outcome(graph, fakes)
    except InputError:
        raise
    except Exception:  # the outcome depends on the elements of tensors: run it on copies
        return _outcome(graph, [argument.detach().clone() if is_tensor(argument) else argument for argument in args])


def _outcome(graph: fx.GraphModule, args: Sequence[Any]) -> Outcome:
    tensors = {index: argument for index, argument in enumerate(args) if is_tensor(argument)}
    versions = {index: tensor._version for index, tensor in tensors.items()}
    with torch.no_grad():
        leaves, spec = _pytree.tree_flatten(graph(*args))
    for index, tensor in tensors.items():
        if tensor._version != versions[index]:
            raise InputError("the graph writes to its inputs", where=_name(graph, index))
    places = {id(tensor): index for index, tensor in tensors.items()}
    memory = {tensor.untyped_storage()._cdata: index for index, tensor in tensors.items()}
    outcome = Outcome(spec)
    before: dict[int, int] = {}
    for index, leaf in enumerate(leaves):
        if not is_tensor(leaf):
            outcome.fixed[index] = leaf
        elif id(leaf) in places:
            outcome.arguments[index] = places[id(leaf)]
        elif (owner := memory.get(leaf.untyped_storage()._cdata)) is not None:
            raise InputError("the graph returns a view of an input", where=_name(graph, owner))
        elif id(leaf) in before:
            outcome.repeated[index] = before[id(leaf)]
        else:
            before[id(leaf)] = index
            outcome.computed[index] = Computed(tuple(leaf.shape), leaf.is_complex())
    return outcome


def is_tensor(value: Any) -> TypeIs[torch.Tensor]:
    """Return whether a value is a tensor."""
    return isinstance(value, torch.Tensor)


def is_fake(args: Sequence[Any]) -> bool:
    """Return whether a tensor has no elements, as in tracing."""
    return any(isinstance(argument, FakeTensor) or (is_tensor(argument) and argument.is_meta) for argument in args)


def _name(graph: fx.GraphModule, position: int) -> str:
    nodes = [node for node in graph.graph.nodes if node.op == "placeholder"]
    return f"input {nodes[position].name!r}"


class GraphCall:
    """A call of a graph, which can be made with other sizes of open dimensions.

    Attributes:
        inputs: the tensors among the arguments that are neither weights nor numbers, by name.
        outcome: the values that it returns.
        sizes: the sizes of open dimensions, by symbol.
    """

    def __init__(self, graph: fx.GraphModule, signature: Signature, args: Sequence[Any]) -> None:
        self._graph, self._signature, self._args = graph, signature, args
        self.outcome = predict_outcome(graph, args)
        self.inputs: dict[str, torch.Tensor] = {}
        self.sizes: dict[str, int] = {}
        self._dims: dict[str, tuple[int | str, ...]] = {}
        for index, tensor in enumerate(args):
            if index in signature.owned or not is_tensor(tensor):
                continue
            name, axes = signature.names[index], signature.open.get(index, {})
            self.inputs[name] = tensor
            self.sizes |= {symbol: int(tensor.shape[axis]) for axis, symbol in axes.items()}
            self._dims[name] = tuple(axes.get(axis, size) for axis, size in enumerate(tensor.shape))

    def shapes(self, sizes: padding.Sizes) -> dict[str, tuple[int, ...]]:
        """Return the shape of each input for sizes of open dimensions."""
        return {
            name: tuple(sizes[dim] if isinstance(dim, str) else dim for dim in dims)
            for name, dims in self._dims.items()
        }

    def constants(self, sizes: padding.Sizes) -> dict[int, Any]:
        """Return the arguments that are not tensors for sizes of open dimensions, by position."""
        symbols = self._signature.symbols
        values = {index: value for index, value in enumerate(self._args) if not is_tensor(value)}
        return {index: sizes[symbols[index]] if index in symbols else value for index, value in values.items()}

    def module(self, sizes: padding.Sizes) -> Bound:
        """Return the graph as a module for sizes of open dimensions."""
        owned = {index: self._args[index] for index in sorted(self._signature.owned)}
        return Bound(self._graph, self._signature.names, owned, self.constants(sizes), tuple(self.outcome.computed))

    def is_changed_by(self, sizes: padding.Sizes) -> bool:
        """Return whether padding to larger sizes changes an output."""
        outputs: dict[str, padding.Dims] = {str(index): value.shape for index, value in self.outcome.computed.items()}

        def run(tensors: padding.Tensors, sizes: padding.Sizes) -> dict[str, torch.Tensor]:
            computed = self.module(sizes)(**{name: tensor.clone() for name, tensor in tensors.items()})
            return dict(zip(outputs, computed, strict=True))

        tensors = {name: tensor.detach().clone() for name, tensor in self.inputs.items()}
        try:
            return padding.changed_output(run, tensors, {**self._dims, **outputs}, self.sizes, sizes) is not None
        except Exception:  # the graph does not run with such sizes
            return True


class Bound(nn.Module):
    """A graph as a function of its input tensors, with its weights and constants, by position, bound.

    ``names`` are those of all arguments, ``wanted`` the positions of the outputs to compute.
    """

    def __init__(
        self,
        graph: fx.GraphModule,
        names: tuple[str, ...],
        owned: Mapping[int, torch.Tensor],
        constants: dict[int, Any],
        wanted: tuple[int, ...],
    ) -> None:
        super().__init__()
        self.graph = graph
        self._names, self._owned, self._constants, self._wanted = names, tuple(owned), constants, wanted
        for index, tensor in owned.items():
            # parameters, since the graph does not write to them, and buffers would be restored
            self.register_parameter(f"owned_{index}", nn.Parameter(tensor.detach(), requires_grad=False))
        self.eval()

    def forward(self, **inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        bound = self._constants | {index: getattr(self, f"owned_{index}") for index in self._owned}
        args = [bound[index] if index in bound else inputs[name] for index, name in enumerate(self._names)]
        leaves, _ = _pytree.tree_flatten(self.graph(*args))
        return tuple(leaves[index] for index in self._wanted)
