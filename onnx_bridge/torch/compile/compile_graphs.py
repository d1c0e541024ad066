"""The graphs that `torch.compile` passes to a backend, as modules that can be lowered.

A graph takes parameters, buffers, sizes and constants along with its inputs. Parameters and buffers become the module's
own, sizes and constants are fixed; returned sizes and inputs are not computed. The graph is run on fake tensors to find
out what it returns, and whether it writes to its inputs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils import _pytree
from typing_extensions import TypeIs

from onnx_bridge.core.errors import InputError


@dataclass(frozen=True)
class Signature:
    """The arguments of a graph.

    Attributes:
        names: of all arguments.
        owned: the positions of parameters and buffers.
        open: the symbols of open dimensions by axis, for each tensor that has some, by position.
        symbols: the symbols of integer arguments that are such a size, by position.
        numbers: the positions of tensors of which only ``item()`` is used: Python floats.
    """

    names: tuple[str, ...]
    owned: frozenset[int]
    open: Mapping[int, Mapping[int, str]]
    symbols: Mapping[int, str]
    numbers: frozenset[int]

    @staticmethod
    def of(graph: fx.GraphModule) -> Signature:
        """The signature of a graph, from dynamo's metadata."""
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
        """The arguments with NumPy scalars, which also have ``item()``, for the tensors of ``numbers``."""
        return [each.numpy(force=True)[()] if index in self.numbers else each for index, each in enumerate(args)]


def _only_read(node: fx.Node) -> bool:
    return bool(node.users) and all(user.op == "call_method" and user.target == "item" for user in node.users)


def _symbol(size: Any) -> str:
    """The symbol of an open size; empty for any other."""
    name = str(size.node.expr) if isinstance(size, torch.SymInt) else ""
    return name if name.isidentifier() else ""


@dataclass(frozen=True)
class Outcome:
    """What a graph returns.

    Attributes:
        spec: how the values are nested.
        outputs: the values.
    """

    spec: _pytree.TreeSpec
    outputs: tuple[Output, ...]


@dataclass(frozen=True)
class Computed:
    """A tensor that is computed."""

    shape: tuple[int, ...]
    complex: bool = False


@dataclass(frozen=True)
class Argument:
    """The argument at this position."""

    position: int


@dataclass(frozen=True)
class Repeated:
    """The same object as the output at this position."""

    position: int


@dataclass(frozen=True)
class Fixed:
    """A value that is not a tensor."""

    value: Any


Output = Computed | Argument | Repeated | Fixed


def predict_outcome(graph: fx.GraphModule, args: Sequence[Any]) -> Outcome:
    """What the graph returns for such arguments.

    Raises:
        InputError: it writes to its arguments, or returns a view of one, which no program can do.
    """
    try:
        mode = FakeTensorMode(allow_non_fake_inputs=True)
        with mode:
            fakes = [mode.from_tensor(each.detach(), static_shapes=True) if is_tensor(each) else each for each in args]
            return _outcome(graph, fakes)
    except InputError:
        raise
    except Exception:  # the outcome depends on the elements of tensors: run it on copies
        return _outcome(graph, [each.detach().clone() if is_tensor(each) else each for each in args])


def _outcome(graph: fx.GraphModule, args: Sequence[Any]) -> Outcome:
    tensors = {index: each for index, each in enumerate(args) if is_tensor(each)}
    versions = {index: each._version for index, each in tensors.items()}
    with torch.no_grad():
        leaves, spec = _pytree.tree_flatten(graph(*args))
    for index, each in tensors.items():
        if each._version != versions[index]:
            raise InputError("it writes to its inputs", where=_name(graph, index))
    places = {id(each): index for index, each in tensors.items()}
    memory = {each.untyped_storage()._cdata: index for index, each in tensors.items()}
    outputs: list[Output] = []
    before: dict[int, int] = {}
    for index, leaf in enumerate(leaves):
        if not is_tensor(leaf):
            outputs.append(Fixed(leaf))
        elif id(leaf) in places:
            outputs.append(Argument(places[id(leaf)]))
        elif (owner := memory.get(leaf.untyped_storage()._cdata)) is not None:
            raise InputError("it returns a view of an input", where=_name(graph, owner))
        elif id(leaf) in before:
            outputs.append(Repeated(before[id(leaf)]))
        else:
            before[id(leaf)] = index
            outputs.append(Computed(tuple(leaf.shape), leaf.is_complex()))
    return Outcome(spec, tuple(outputs))


def is_tensor(value: Any) -> TypeIs[torch.Tensor]:
    """Whether a value is a tensor."""
    return isinstance(value, torch.Tensor)


def is_fake(args: Sequence[Any]) -> bool:
    """Whether a tensor has no elements, as in tracing."""
    return any(isinstance(each, FakeTensor) or (is_tensor(each) and each.is_meta) for each in args)


def _name(graph: fx.GraphModule, position: int) -> str:
    nodes = [node for node in graph.graph.nodes if node.op == "placeholder"]
    return f"input {nodes[position].name!r}"


class Bound(nn.Module):
    """A graph as a function of its input tensors.

    Args:
        graph: the graph.
        names: of its arguments.
        owned: its parameters and buffers, by position.
        constants: the arguments that are not tensors, by position.
        wanted: the positions of the outputs to compute.
    """

    def __init__(
        self,
        graph: fx.GraphModule,
        names: Sequence[str],
        owned: Mapping[int, torch.Tensor],
        constants: Mapping[int, Any],
        wanted: Sequence[int],
    ) -> None:
        super().__init__()
        self.graph = graph
        self._names, self._owned, self._constants = tuple(names), tuple(owned), dict(constants)
        self._wanted = tuple(wanted)
        for index, tensor in owned.items():
            # parameters, since the graph does not write to them, and buffers would be restored
            self.register_parameter(f"owned_{index}", nn.Parameter(tensor.detach(), requires_grad=False))
        self.eval()

    def forward(self, **inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The wanted outputs, from inputs by name."""
        given: dict[int, Any] = dict(self._constants)
        given |= {index: getattr(self, f"owned_{index}") for index in self._owned}
        args = [given[index] if index in given else inputs[name] for index, name in enumerate(self._names)]
        leaves, _ = _pytree.tree_flatten(self.graph(*args))
        return tuple(leaves[index] for index in self._wanted)
