"""The sizes of all open dimensions in each bucket, of which a user chooses some.

    past = 7, 15    total = past + sequence    →    past=7: sequence=1, total=8    past=15: sequence=1, total=16

A dimension without sizes of its own follows from the model (`passes.shapes.open_sizes`) or from what the user says
of it, or is 1. Combinations that inference or ONNX Runtime finds impossible are left out.
"""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import onnx_ir as ir

from onnx_bridge.bundle.manifest.axes import Axis, fitted, inside, label, size_of
from onnx_bridge.core.errors import InputError, nearest
from onnx_bridge.requests.conversion import ConvertRequest
from onnx_bridge.samples.roles import dims_of, required_inputs
from passes.shapes.open_sizes import OpenDims
from passes.shapes.size_expressions import evaluate, symbols

_NAME = re.compile(r"[A-Za-z_]\w*")
_SIMPLIFIED = 60
"""The most characters of an expression that is simplified; sympy needs long for a maximum of many symbols."""
Sizes = Mapping[str, int]
Runs = Callable[[Mapping[str, tuple[int, ...]]], str | None]
"""Return why the model cannot be run with inputs of some shapes; None if it can, or if that is not known."""


def selected(model: ir.Model, names: Iterable[str]) -> set[str]:
    """Return the names of buckets that are not dimensions but inputs, whose values select a bucket."""
    inputs = {str(value.name) for value in required_inputs(model) if value.dtype == ir.DataType.BOOL}
    dims = {name for value in required_inputs(model) for dim in dims_of(value) or () for name in _names(dim)}
    return (inputs - dims) & {*names}


def output_axes(
    declared: Sequence[Axis] | None, observed: Sequence[tuple[Sizes, Sequence[int | None]]]
) -> tuple[Axis, ...]:
    """Return an output's dimensions: as declared, or, if that is wrong, fitted to observed shapes by sizes."""
    points = list({tuple(dims.items()): (dims, shape) for dims, shape in observed}.values())
    if not points or len({len(shape) for _, shape in points}) != 1:
        return tuple(declared or ())
    ranked = declared if declared is not None and len(declared) == len(points[0][1]) else [None] * len(points[0][1])
    axes: list[Axis] = []
    for index, axis in enumerate(ranked):
        sizes = [shape[index] for _, shape in points]
        if all(size_of(axis, dims) == size is not None for (dims, _), size in zip(points, sizes, strict=True)):
            axes.append(axis)
        else:
            known = [size for size in sizes if size is not None]
            axes.append(fitted([dims for dims, _ in points], known) if len(known) == len(sizes) else None)
    return tuple(axes)


@dataclass(frozen=True)
class BucketSizes:
    """The sizes of open dimensions in all buckets; a dimension without a name is ``input[axis]``.

    Attributes:
        buckets: the sizes of dimensions that have several, the smallest bucket first.
        fixed: the sizes of dimensions that have one.
        follows: the other dimensions, as expressions of those that have several sizes.
        left_out: sentences on the combinations that are impossible.
    """

    buckets: tuple[dict[str, int], ...]
    fixed: Mapping[str, int]
    follows: Mapping[str, str]
    left_out: tuple[str, ...] = ()

    @classmethod
    def of(cls, model: ir.Model, request: ConvertRequest, runs: Runs) -> BucketSizes:
        """Return the sizes of the buckets of a request; raises InputError if no combination is possible."""
        _check_ties(model, request)
        combinations = _Combinations(model, request)
        chosen = (sorted(set(bucket)) for bucket in request.buckets.values())
        combined = [dict(zip(request.buckets, sizes, strict=True)) for sizes in itertools.product(*chosen)]
        values = selected(model, request.buckets)
        combined.sort(key=lambda sizes: (math.prod(sizes[name] for name in sizes.keys() - values), [*sizes.values()]))
        judged = {label(sizes): combinations.impossible(sizes, runs) for sizes in combined}
        reasons = {names: reason for names, reason in judged.items() if reason is not None}
        possible = [sizes for sizes in combined if label(sizes) not in reasons]
        if not possible:
            names, reason = next(iter(reasons.items()))
            raise InputError(f"no combination of sizes is possible: {names}: {reason}", where="bucket")
        left_out = tuple(f"{names} is left out: {reason}" for names, reason in reasons.items())
        following = combinations.following(possible, [sizes for sizes in combined if label(sizes) in reasons])
        buckets = [{name: size for name, size in sizes.items() if name not in following} for sizes in possible]
        fixed, follows = combinations.others(buckets, following)
        return cls(tuple(buckets), fixed, follows, left_out)

    def axes(self, value: ir.Value) -> tuple[Axis, ...] | None:
        """Return the dimensions of an input or output, by the dimensions that have several sizes; None if unknown."""
        declared = dims_of(value)
        if declared is None:
            return None
        return tuple(self._axis(dim, f"{value.name}[{index}]") for index, dim in enumerate(declared))

    def request_of(self, model: ir.Model, bucket: Sizes, request: ConvertRequest) -> ConvertRequest:
        """Return the request that converts one bucket."""
        dims: dict[str, int] = {}
        shapes = dict(request.shapes)
        plain = {dim for value in required_inputs(model) for dim in dims_of(value) or () if _names(dim) == {dim}}
        for value in required_inputs(model):
            declared, sizes = dims_of(value) or (), self.axes(value) or ()
            shape = tuple(size_of(axis, bucket) for axis in sizes)
            for dim, size in zip(declared, shape, strict=True):
                if isinstance(dim, str) and symbols(dim) == {dim} and size is not None:
                    dims[dim] = size
            unnamed = any(dim is None or (isinstance(dim, str) and not symbols(dim) <= plain) for dim in declared)
            if unnamed and None not in shape and str(value.name) not in request.freeze:
                shapes.setdefault(str(value.name), tuple(size for size in shape if size is not None))
        budget = request.prove_budget / len(self.buckets)
        freeze = {name: json.dumps(bool(bucket[name])) for name in bucket.keys() & selected(model, bucket)}
        alone = replace(request, buckets={}, ties={}, pad={}, pad_before=(), prove_budget=budget)
        return replace(alone, dims={**request.dims, **dims}, shapes=shapes, freeze={**request.freeze, **freeze})

    def _axis(self, dim: Axis, otherwise: str) -> Axis:
        name = otherwise if dim is None else dim
        if not isinstance(name, str) or name in self.buckets[0]:
            return name
        if name in self.fixed:
            return self.fixed[name]
        if name in self.follows:
            return self.follows[name]
        known = self.fixed.keys() | self.follows.keys() | self.buckets[0].keys()
        return None if dim is None or not _names(dim) <= known else _substituted(name, self.fixed, self.follows)


class _Combinations:
    """The combinations of the sizes that a user chose."""

    def __init__(self, model: ir.Model, request: ConvertRequest) -> None:
        self.model, self.request = model, request
        self.dims = OpenDims(model, request.dims, request.shapes, request.freeze, request.ties)
        self._selected = selected(model, request.buckets)
        self._known: dict[tuple[tuple[str, int], ...], dict[str, int]] = {}
        dims = (dim for value in required_inputs(model) for dim in dims_of(value) or ())
        self._others = dict.fromkeys((name for dim in dims for name in _names(dim)), 1)
        """Symbols that are in expressions alone."""

    def sizes(self, chosen: Sizes) -> dict[str, int]:
        """Return the sizes of all dimensions, for some of them."""
        key = tuple(sorted(chosen.items()))
        if key not in self._known:
            sizes = {name: size for name, size in chosen.items() if name not in self._selected}
            self._known[key] = {**self._others, **self.dims.given, **chosen, **self.dims.sizes(1, sizes).all}
        return self._known[key]

    def impossible(self, chosen: Sizes, runs: Runs) -> str | None:
        """Return why the model cannot compute with some sizes; None if it can, or if that is not known."""
        sizes = self.sizes(chosen)
        for name, text in self.request.ties.items():
            size = size_of(text, sizes)
            if size is None or size < 0 or sizes[name] != size:
                return f"{name}={text} is {'no size' if size is None else size}"
        conflict = self.dims.conflict(sizes)
        if conflict is not None:
            numbers = " and ".join(dict.fromkeys(str(size) for size in conflict.sizes if isinstance(size, int)))
            return f"{conflict.node.op_type} {conflict.node.name} cannot take sizes of {numbers} together"
        return runs(self.shapes(sizes))

    def shapes(self, sizes: Sizes) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the inputs; inputs of unknown rank, or with unknown sizes, are left out."""
        shapes = {}
        for value in required_inputs(self.model):
            axes = dims_of(value)
            named = [f"{value.name}[{index}]" if axis is None else axis for index, axis in enumerate(axes or ())]
            given: Sequence[int | None] | None = self.request.shapes.get(str(value.name))
            shape = given or [size_of(axis, sizes) for axis in named]
            if axes is not None and None not in shape:
                shapes[str(value.name)] = tuple(size for size in shape if size is not None)
        return shapes

    def following(self, possible: Sequence[Sizes], impossible: Sequence[Sizes]) -> dict[str, str]:
        """Return the dimensions that follow from others: exactly the combinations in which they do are possible."""
        expressions: dict[str, str] = {}
        for name in reversed(list(possible[0])) if impossible else ():
            known = {name, *expressions}
            points = [{other: size for other, size in sizes.items() if other not in known} for sizes in possible]
            candidates = (self.dims.follows.get(name), fitted(points, [sizes[name] for sizes in possible]))
            for text in candidates if points[0] else ():
                if isinstance(text, str) and self._holds(name, text, possible, impossible):
                    expressions[name] = text
                    break
        return expressions

    def _holds(self, name: str, text: str, possible: Sequence[Sizes], impossible: Sequence[Sizes]) -> bool:
        def holds(sizes: Sizes) -> bool:
            return size_of(text, self.sizes(sizes)) == sizes[name]

        return all(map(holds, possible)) and not any(map(holds, impossible))

    def others(self, buckets: Sequence[Sizes], following: Mapping[str, str]) -> tuple[dict[str, int], dict[str, str]]:
        """Return the dimensions of one size, and expressions for those that follow from dimensions of several sizes."""
        unique = {tuple(at.items()): at for bucket in buckets for at in (bucket, inside(bucket, buckets))}
        points = list(unique.values())
        known = [self.sizes({**point, **self._evaluated(following, point)}) for point in points]
        fixed: dict[str, int] = {}
        follows: dict[str, str] = {}
        said = {**self.dims.follows, **following, **self.request.ties}
        for name in (name for name in known[0] if name not in buckets[0]):
            sizes = [point[name] for point in known]
            if len(set(sizes)) == 1:
                fixed[name] = sizes[0]
                continue
            if name in said and all(size_of(said[name], point) == point[name] for point in known):
                follows[name] = said[name]
                continue
            text = fitted(points, sizes)
            if not isinstance(text, str):
                what = f"the size does not follow from {', '.join(buckets[0])} in a simple way"
                hint = f"tie it to them, as --bucket '{name}={next(iter(buckets[0]))} + 1'"
                raise InputError(what, where=f"dimension {name}", hint=hint)
            follows[name] = text
        for _ in follows:  # a dimension may follow from another one that follows
            follows = {name: str(_substituted(text, fixed, follows)) for name, text in follows.items()}
        return fixed, follows

    def _evaluated(self, following: Mapping[str, str], point: Sizes) -> dict[str, int]:
        sizes = self.sizes(point)
        return {name: size for name, text in following.items() if (size := size_of(text, sizes)) is not None}


def _check_ties(model: ir.Model, request: ConvertRequest) -> None:
    known = {name for value in model.graph.inputs for dim in dims_of(value) or () for name in _names(dim)}
    for name, text in request.ties.items():
        where = f"bucket {name}"
        for symbol in (name, *sorted(symbols(text))):
            if symbol not in known:
                hint = nearest(symbol, known) or f"there are {', '.join(sorted(known)) or 'none'}"
                raise InputError(f"no input has a dimension {symbol}", where=where, hint=hint)
        if name in request.dims or name in request.buckets:
            raise InputError("the dimension has sizes as well", where=where)
        if name in _reached(name, request.ties):
            raise InputError(f"{text} depends on {name} itself", where=where)


def _reached(name: str, ties: Mapping[str, str]) -> set[str]:
    """Return the dimensions that a dimension is tied to, directly or through others."""
    reached: set[str] = set()
    queue = [name]
    while queue:
        more = symbols(ties[queue.pop()]) - reached
        reached |= more
        queue += more & ties.keys()
    return reached


def _names(dim: Axis) -> frozenset[str]:
    return symbols(dim) if isinstance(dim, str) else frozenset()


def _substituted(text: str, fixed: Sizes, follows: Mapping[str, str]) -> Axis:
    """Return an expression with some of its symbols replaced; a number if no symbol is left."""
    whole = _NAME.sub(lambda match: f"({follows[match[0]]})" if match[0] in follows else match[0], text)
    size = evaluate(whole, fixed)
    if size is not None or symbols(whole) == {whole} or len(whole) > _SIMPLIFIED:
        return whole if size is None else size
    result = ir.SymbolicDim(whole).evaluate(dict(fixed))
    return result if isinstance(result, int) else result.value
