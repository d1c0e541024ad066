"""Sizes for the dimensions that a model leaves open: those that follow from it, and a default for the others.

    past: [batch, heads, past, head]    Concat(past, k: [batch, 8, 1, 64])    →  heads = 8, head = 64

Inference is run with the open dimensions as symbols. Where a node needs sizes to be the same
(`passes.shapes.axes.relations`) and one of them is a number, the others follow. Nothing else follows: the remaining
dimensions get the default, except those that meet a size which is not known yet, such as a mask as long as a
concatenation of past and new keys. Inference is then repeated, until all are known. By a convention of exporters,
``total_X`` is ``past_X + X``; a caller may say the same of other names.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

import onnx_ir as ir

from passes.graphs.scopes import Scope
from passes.shapes import size_expressions
from passes.shapes.axes.relations import Operands, Relation, relations
from passes.shapes.axes.words import Dim, Dims
from passes.shapes.inference import FAILURES, run

_CONVOLUTIONS = ("Conv", "ConvInteger", "QLinearConv", "FusedConv")
WINDOWED = (*_CONVOLUTIONS, "AveragePool", "LpPool", "MaxPool")
"""Operators whose results are empty if their window does not fit."""
_BATCH = re.compile(r"batch|^bs?$", re.IGNORECASE)
_NO_BATCH = re.compile(r"seq|len|time|frame|token|sample|height|width|rows|cols|node|edge|atom|point", re.IGNORECASE)
"""The names of batches by exporters, and of other first dimensions."""
_ROUNDS = 12
"""The most times that inference is run; a chain of sizes, each of which follows from the one before, is short."""


def may_be_batch(name: str) -> bool:
    """Return whether the name of a first dimension, or its size, does not say that it is something else."""
    return bool(_BATCH.search(name)) or not _NO_BATCH.search(name)


@dataclass(frozen=True)
class OpenSizes:
    """A size for each open dimension of the inputs.

    Attributes:
        default: the dimensions that nothing determines, by name; one without a name is ``input[axis]``.
        derived: the sizes that follow from the model.
    """

    default: Mapping[str, int]
    derived: Mapping[str, int]

    @property
    def all(self) -> dict[str, int]:
        return {**self.default, **self.derived}


@dataclass(frozen=True)
class Impossible:
    """Sizes that a node cannot have: of a result, or those of operands that should be the same."""

    node: ir.Node
    sizes: Dims


class OpenDims:
    """The dimensions of the inputs of a model that are open.

    Attributes:
        names: in the order of inputs; one without a name is ``input[axis]``.
        symbols: the sizes whose names are the model's own.
        given: the sizes of those that are not open, by name.
        follows: expressions for those that follow from others by what the caller says, or by a convention of names.
    """

    def __init__(
        self,
        model: ir.Model,
        dims: Mapping[str, int],
        shapes: Mapping[str, tuple[int, ...]],
        frozen: Collection[str] = (),
        follows: Mapping[str, str] | None = None,
    ) -> None:
        """Find the open dimensions.

        Args:
            model: is not changed.
            dims: sizes that are given, by name.
            shapes: whole shapes that are given, by input.
            frozen: inputs that will be constants.
            follows: expressions that some of the dimensions are, as ``{"total": "past + 1"}``.
        """
        static = all(value.shape is not None and value.shape.is_static() for value in model.graph.inputs)
        self._model = model if static else model.clone()
        self.given = dict(dims)
        self._inputs: dict[ir.Value, Dims] = {}
        self._unnamed: list[ir.Value] = []
        self.names: list[str] = []
        self.symbols: set[str] = set()
        scope = Scope(self._model, self._model.graph)
        for value in self._model.graph.inputs:
            if value.shape is None or scope.is_parameter(value) or not isinstance(value.type, ir.TensorType):
                continue
            sizes = [dim if isinstance(dim, int) else dim.value for dim in value.shape]
            named = [
                size_expressions.by_place(value.name, axis) if size in (None, "") else size
                for axis, size in enumerate(sizes)
            ]
            given = shapes.get(str(value.name), ())
            self.given |= {dim: size for dim, size in zip(named, given, strict=False) if isinstance(dim, str)}
            self._inputs[value] = tuple(named)
            if str(value.name) in frozen:
                continue
            self.symbols |= {size for size in sizes if isinstance(size, str) and size}
            if not given:
                self._unnamed += [value] if sizes != named else []
                self.names += [dim for dim in named if isinstance(dim, str) and size_expressions.symbols(dim) == {dim}]
        names = {*self.names, *self.given}
        self.names = [name for name in dict.fromkeys(self.names) if name not in self.given]
        sums = {name: [name.replace("total_", part, 1) for part in ("past_", "")] for name in self.names}
        by_convention = {
            name: " + ".join(parts)
            for name, parts in sums.items()
            if name.startswith("total_") and names.issuperset(parts)
        }
        self.follows = {**by_convention, **(follows or {})}

    def shapes_of_unnamed(self, known: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the inputs with open dimensions that have no name; ``known`` has a size for each."""
        shapes = {}
        for value in self._unnamed:
            sizes = [_sized(dim, {**self.given, **known}) for dim in self._inputs[value]]
            shapes[str(value.name)] = tuple(size for size in sizes if isinstance(size, int))
        return shapes

    def batch_names(self) -> set[str]:
        """Return the names that say so, or say nothing else and are the first dimension of inputs alone."""
        later = {dim for dims in self._inputs.values() for dim in dims[1:]}
        return {name for name in self.names if _BATCH.search(name) or (name not in later and may_be_batch(name))}

    def unchosen(self, defaults: Iterable[str]) -> list[str]:
        """Return those of the dimensions with a default that are no batches: their default would be a guess."""
        batch = self.batch_names()
        return [name for name in defaults if name not in batch]

    def by_input(self, sizes: Mapping[str, int]) -> dict[str, dict[str, int]]:
        """Return sizes by input and name; inputs without such a dimension are left out."""
        known = {}
        for value, dims in self._inputs.items():
            if named := {dim: sizes[dim] for dim in dims if isinstance(dim, str) and dim in sizes}:
                known[str(value.name)] = named
        return known

    def sizes(self, default: int, given: Mapping[str, int] | None = None) -> OpenSizes:
        """Return a size for each open dimension: the given one, that which follows from the model, or the default."""
        known = {**self.given, **(given or {})}
        derived: dict[str, int] = {}
        for left in reversed(range(_ROUNDS)):
            free = sorted((name for name in self.names if name not in known), key=self.follows.__contains__)
            if not free:
                break
            following, waiting = self._following(known, free)
            derived |= following
            known |= following
            if not following:
                ready = free if left == 0 else [name for name in free if name not in waiting]
                known |= dict.fromkeys(ready or free[:1], default)
        return OpenSizes(
            {name: known[name] for name in self.names if name not in derived},
            {name: derived[name] for name in self.names if name in derived},
        )

    def determined(self) -> dict[str, int]:
        """Return the sizes that follow from the model, whatever the sizes of the other dimensions are."""
        known = dict(self.given)
        for _ in range(_ROUNDS):
            following, _ = self._following(known, [name for name in self.names if name not in known])
            if not following:
                break
            known |= following
        return {name: known[name] for name in self.names if name in known}

    def too_small(self, known: Mapping[str, int]) -> Impossible | None:
        """Return the first result whose size is impossible for given sizes."""
        shapes = self._shapes({**self.given, **known})
        for node in self._model.graph:
            for value in node.outputs:
                if any(isinstance(size, int) and size < 0 for size in shapes.get(value, ())):
                    return Impossible(node, shapes[value])
            if node.op_type in WINDOWED and is_too_short(node, shapes.get):
                return Impossible(node, shapes.get(node.outputs[0], ()))
        return None

    def conflict(self, known: Mapping[str, int]) -> Impossible | None:
        """Return the first node that inference finds unable to compute with given sizes of all open dimensions."""
        relations = self._relations({**self.given, **known})
        return next((Impossible(node, relation.sizes) for node, relation in relations if not relation.holds), None)

    def _following(self, known: Mapping[str, int], free: list[str]) -> tuple[dict[str, int], set[str]]:
        """Return the sizes that follow from those that are known, and the names that wait for a size which is not."""
        said = {name: _sized(text, known) for name, text in self.follows.items() if name in free}
        if sizes := {name: size for name, size in said.items() if isinstance(size, int)}:
            return sizes, set()
        free = [name for name in free if name not in said]
        relations = [relation for _, relation in self._relations(known)]
        for broadcast in (False, True):
            sizes = _determined((relation for relation in relations if relation.broadcast is broadcast), free)
            if sizes:
                return sizes, set()
        waiting = {
            size for relation in relations if None in relation.sizes for size in relation.sizes if isinstance(size, str)
        }
        return {}, waiting | said.keys()

    def _relations(self, known: Mapping[str, int]) -> Iterator[tuple[ir.Node, Relation]]:
        shapes = self._shapes(known)
        scope = Scope(self._model, self._model.graph)
        for node in self._model.graph:
            for relation in relations(Operands(node, shapes.get, scope)):
                yield node, relation

    def _shapes(self, known: Mapping[str, int]) -> dict[ir.Value, Dims]:
        """Return the shapes that inference finds, with the names of open dimensions that are not known."""
        shapes: dict[ir.Value, Dims] = {}
        for value, dims in self._inputs.items():
            shapes[value] = tuple(_sized(dim, known) for dim in dims)
            value.shape = ir.Shape(shapes[value])
        for value in self._model.graph.initializers.values():
            if value.const_value is not None:
                shapes[value] = tuple(value.const_value.shape.numpy())
        try:
            for value, (_, shape) in run(self._model, declared=False, propagate=True).items():
                if shape is not None:
                    shapes[value] = tuple(dim if isinstance(dim, int) else dim.value for dim in shape)
        except FAILURES:  # then only what inputs and weights say is known
            pass
        return shapes


def is_too_short(node: ir.Node, shape_of: Callable[[ir.Value], Dims | None]) -> bool:
    """Return whether a convolution or pooling has an empty result, or the kernel of a convolution exceeds its input.

    Inference may round the size below one up; ONNX Runtime refuses to compute it.
    """
    shapes = [() if value is None else shape_of(value) or () for value in (*node.inputs, *node.outputs[:1])]
    if any(isinstance(size, int) and size < 1 for size in shapes[-1]):
        return True
    weights = shapes[3] if node.op_type == "QLinearConv" else shapes[1]
    kernel = node.attributes.get_ints("kernel_shape", None) or weights[2:]
    rank = len(shapes[0]) - 2
    if node.op_type not in _CONVOLUTIONS or node.attributes.get_string("auto_pad", "NOTSET") not in ("NOTSET", "VALID"):
        return False
    pads = node.attributes.get_ints("pads", None) or [0] * (2 * rank)
    dilations = node.attributes.get_ints("dilations", None) or [1] * rank
    if not len(kernel) == len(dilations) == rank or len(pads) != 2 * rank:
        return False
    axes = zip(shapes[0][2:], kernel, dilations, pads, pads[rank:], strict=False)
    return any(
        isinstance(size, int) and isinstance(length, int) and size + begin + end < (length - 1) * dilation + 1
        for size, length, dilation, begin, end in axes
    )


def _sized(dim: Dim, known: Mapping[str, int]) -> Dim:
    """Return a size if it is known; the name of a symbol; None for an expression of symbols that are not known."""
    if not isinstance(dim, str) or dim in known:
        return known[dim] if isinstance(dim, str) else dim
    return dim if size_expressions.symbols(dim) == {dim} else size_expressions.evaluate(dim, known)


def _determined(relations: Iterable[Relation], free: list[str]) -> dict[str, int]:
    """Return the sizes that relations determine, without those that contradict each other."""
    sizes: dict[str, set[int]] = {}
    for relation in relations:
        numbers = {size for size in relation.sizes if isinstance(size, int) and size > (1 if relation.broadcast else 0)}
        for size in relation.sizes:
            if isinstance(size, str) and size in free:
                sizes.setdefault(size, set()).update(numbers)
    return {name: min(numbers) for name, numbers in sizes.items() if len(numbers) == 1}
