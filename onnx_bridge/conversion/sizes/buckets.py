"""The sizes of all open dimensions in each bucket, of which a user chooses some.

    past = 7, 15    total = past + sequence    →    past=7: sequence=1, total=8    past=15: sequence=1, total=16

A dimension without sizes of its own follows from the model (`passes.shapes.open_sizes`) or from what the user says
of it. A batch that nobody chose is 1; another dimension has to be chosen (`--dim-default`). Combinations that inference
or ONNX Runtime finds impossible are left out.
"""

from __future__ import annotations

import graphlib
import itertools
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import onnx_ir as ir

from onnx_bridge.bundle.manifest.axes import Axis, fitted, inside, label, size_of
from onnx_bridge.conversion.sizes.open_sizes import ChosenSizes
from onnx_bridge.core.errors import InputError, nearest
from onnx_bridge.requests.conversion import ConvertRequest
from onnx_bridge.samples.dimensions import dims_of, named_dims
from passes.graphs.scopes import required_inputs
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
    inputs = required_inputs(model)
    single = {str(value.name) for value in inputs if _may_select(value)}
    return single.intersection(names).difference(_symbols(inputs))


def _may_select(value: ir.Value) -> bool:
    single = all(dim == 1 for dim in dims_of(value) or ())
    return value.dtype == ir.DataType.BOOL or (single and value.dtype is not None and value.dtype.is_integer())


def value_text(value: ir.Value, number: int) -> str:
    """Return the value of a selecting input as JSON."""
    return json.dumps(bool(number) if value.dtype == ir.DataType.BOOL else number)


@dataclass(frozen=True)
class BucketSizes:
    """The sizes of open dimensions in all buckets; a dimension without a name is ``input[axis]``.

    Attributes:
        buckets: the sizes of dimensions that have several, the smallest bucket first.
        fixed: the sizes of dimensions that have one.
        follows: the other dimensions, as expressions of those that have several sizes.
        left_out: sentences on the combinations that are impossible.
        chosen: the sizes that nobody chose, by input and dimension.
    """

    buckets: tuple[dict[str, int], ...]
    fixed: Mapping[str, int]
    follows: Mapping[str, str]
    left_out: tuple[str, ...] = ()
    chosen: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    @classmethod
    def of(cls, model: ir.Model, request: ConvertRequest, runs: Runs) -> BucketSizes:
        """Return the sizes of the buckets of a request; raises InputError if no combination is possible."""
        _check_ties(model, request)
        combinations = _Combinations(model, request)
        chosen = combinations.chosen()
        problems = [(sizes, combinations.problem(sizes, runs)) for sizes in combinations]
        possible = [sizes for sizes, problem in problems if problem is None]
        impossible = [(sizes, problem) for sizes, problem in problems if problem is not None]
        if not possible:
            sizes, problem = impossible[0]
            raise InputError(f"no combination of sizes is possible: {label(sizes)}: {problem}", where="bucket")
        left_out = tuple(f"{label(sizes)} is left out: {problem}" for sizes, problem in impossible)
        following = combinations.following(possible, [sizes for sizes, _ in impossible])
        buckets = tuple({name: size for name, size in sizes.items() if name not in following} for sizes in possible)
        return cls(buckets, *combinations.others(buckets, following), left_out, chosen)

    def axes(self, value: ir.Value) -> tuple[Axis, ...] | None:
        """Return the dimensions of an input or output, by the dimensions that have several sizes; None if unknown."""
        named = named_dims(value)
        return None if named is None else tuple(map(self._axis, named))

    def request_of(self, model: ir.Model, bucket: Sizes, request: ConvertRequest) -> ConvertRequest:
        """Return the request that converts one bucket."""
        inputs = required_inputs(model)
        plain = {dim for value in inputs for dim in dims_of(value) or () if _names(dim) == {dim}}
        dims, shapes = dict(request.dims), {}
        for value in inputs:
            declared = dims_of(value) or ()
            sizes = [size_of(axis, bucket) for axis in self.axes(value) or ()]
            known = {index: size for index, size in enumerate(sizes) if size is not None}
            dims |= {str(declared[index]): size for index, size in known.items() if declared[index] in plain}
            is_plain = all(dim is not None and _names(dim) <= plain for dim in declared)
            if not is_plain and len(known) == len(sizes) and value.name not in request.freeze:
                shapes[str(value.name)] = tuple(known.values())
        shapes |= request.shapes
        selecting = [value for value in inputs if value.name in selected(model, bucket)]
        values = {str(value.name): value_text(value, bucket[str(value.name)]) for value in selecting}
        freeze = {**request.freeze, **values}
        alone = replace(request, buckets={}, ties={}, pad={}, pad_before=())
        budget = request.prove_budget / len(self.buckets)
        return replace(alone, dims=dims, shapes=shapes, freeze=freeze, prove_budget=budget)

    def _axis(self, dim: Axis) -> Axis:
        known: dict[str, Axis] = {**self.fixed, **self.follows}
        if not isinstance(dim, str) or dim in self.buckets[0]:
            return dim
        if dim in known:
            return known[dim]
        return _substituted(dim, self.fixed, self.follows) if symbols(dim) <= known.keys() | self.buckets[0] else None


class _Combinations:
    """The combinations of the sizes that a user chose, the smallest first."""

    def __init__(self, model: ir.Model, request: ConvertRequest) -> None:
        self._model, self._inputs, self._request = model, required_inputs(model), request
        self._dims = OpenDims(model, request.dims, request.shapes, request.freeze, request.ties)
        self._selected = selected(model, request.buckets)
        self._known: dict[str, dict[str, int]] = {}

    def __iter__(self) -> Iterator[dict[str, int]]:
        chosen = (sorted(set(sizes)) for sizes in self._request.buckets.values())
        combined = [dict(zip(self._request.buckets, sizes, strict=True)) for sizes in itertools.product(*chosen)]
        dims = self._request.buckets.keys() - self._selected
        yield from sorted(combined, key=lambda sizes: (math.prod(sizes[name] for name in dims), [*sizes.values()]))

    def chosen(self) -> dict[str, dict[str, int]]:
        """Return the sizes that nobody chose; raises InputError if one has to be chosen."""
        dims, default = {**self._dims.given, **next(iter(self))}, self._request.dim_default
        sizes = self._dims.sizes(default or 1, dims)
        guessed = {name: size for name, size in sizes.default.items() if name not in dims}
        if default is None and self._dims.unchosen(guessed):
            known = {name: size for name, size in {**dims, **sizes.derived}.items() if name not in self._selected}
            settled = ChosenSizes.of(self._model, replace(self._request.cleaning, dims=known))
            settled.ask()
            self._dims.given |= settled.sizes.derived
            guessed = {name: size for name, size in guessed.items() if name not in self._dims.given}
        return self._dims.by_input(guessed)

    def sizes(self, chosen: Sizes) -> dict[str, int]:
        """Return the sizes of all dimensions, for some of them; symbols that are in expressions alone are 1."""
        key = label(chosen)
        if key not in self._known:
            dims = {name: size for name, size in chosen.items() if name not in self._selected}
            others = dict.fromkeys(_symbols(self._inputs), 1)
            self._known[key] = {
                **others,
                **self._dims.given,
                **chosen,
                **self._dims.sizes(self._request.dim_default or 1, dims).all,
            }
        return self._known[key]

    def problem(self, chosen: Sizes, runs: Runs) -> str | None:
        """Return why the model cannot compute with some sizes; None if it can, or if that is not known."""
        sizes = self.sizes(chosen)
        for name, text in self._request.ties.items():
            size = size_of(text, sizes)
            if size is None or size < 0 or sizes[name] != size:
                return f"{name}={text} is {'no size' if size is None else size}"
        conflict = self._dims.conflict(sizes)
        if conflict is not None:
            numbers = " and ".join(dict.fromkeys(str(size) for size in conflict.sizes if isinstance(size, int)))
            return f"{conflict.node.op_type} {conflict.node.name} cannot take sizes of {numbers} together"
        return runs(self._shapes(sizes))

    def _shapes(self, sizes: Sizes) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the inputs; inputs of unknown rank, or with unknown sizes, are left out."""
        shapes: dict[str, tuple[int, ...]] = {}
        for value in self._inputs:
            name, axes = str(value.name), named_dims(value)
            if axes is not None:
                given = self._request.shapes.get(name) or [size_of(axis, sizes) for axis in axes]
                known = tuple(size for size in given if size is not None)
                shapes |= {name: known} if len(known) == len(given) else {}
        return shapes

    def following(self, possible: Sequence[Sizes], impossible: Sequence[Sizes]) -> dict[str, str]:
        """Return the dimensions that follow from others: exactly the combinations in which they do are possible."""
        expressions: dict[str, str] = {}
        for name in reversed(list(possible[0])) if impossible else ():
            known = {name, *expressions}
            points = [{other: size for other, size in sizes.items() if other not in known} for sizes in possible]
            candidates = (self._dims.follows.get(name), fitted(points, [sizes[name] for sizes in possible]))
            for text in candidates if points[0] else ():
                if isinstance(text, str) and self._tells_apart(name, text, possible, impossible):
                    expressions[name] = text
                    break
        return expressions

    def _tells_apart(self, name: str, text: str, possible: Sequence[Sizes], impossible: Sequence[Sizes]) -> bool:
        """Return whether a dimension is an expression in all possible combinations, and in no other."""

        def holds(sizes: Sizes) -> bool:
            return size_of(text, self.sizes(sizes)) == sizes[name]

        return all(map(holds, possible)) and not any(map(holds, impossible))

    def others(self, buckets: Sequence[Sizes], following: Mapping[str, str]) -> tuple[dict[str, int], dict[str, str]]:
        """Return the dimensions of one size, and expressions for those that follow from dimensions of several sizes."""
        unique = {label(at): at for bucket in buckets for at in (bucket, inside(bucket, buckets, self._selected))}
        points, known = list(unique.values()), []
        for point in points:
            sizes = self.sizes(point)
            followed = {name: size_of(text, sizes) for name, text in following.items()}
            known.append(self.sizes({**point, **{name: size for name, size in followed.items() if size is not None}}))
        fixed: dict[str, int] = {}
        follows: dict[str, str] = {}
        said = {**self._dims.follows, **following}
        for name in (name for name in known[0] if name not in buckets[0]):
            values = [point[name] for point in known]
            text: Axis = said.get(name)
            if len(set(values)) == 1:
                fixed[name] = values[0]
                continue
            if text is None or any(size_of(text, point) != point[name] for point in known):
                text = fitted(points, values)
            if not isinstance(text, str):
                what = f"the size does not follow from {', '.join(buckets[0])} in a simple way"
                hint = f"tie it to them, as `buckets={{{name!r}: '{next(iter(buckets[0]))} + 1'}}`"
                raise InputError(what, where=f"dimension {name}", hint=hint)
            follows[name] = text
        for _ in follows:  # a dimension may follow from another one that follows
            follows = {name: str(_substituted(text, fixed, follows)) for name, text in follows.items()}
        return fixed, follows


def _check_ties(model: ir.Model, request: ConvertRequest) -> None:
    known = _symbols(model.graph.inputs)
    for name, text in request.ties.items():
        where = f"bucket {name}"
        for symbol in (name, *sorted(symbols(text))):
            if symbol not in known:
                hint = nearest(symbol, known) or f"there are {', '.join(sorted(known)) or 'none'}"
                raise InputError(f"no input has a dimension {symbol}", where=where, hint=hint)
        if name in request.dims or name in request.buckets:
            raise InputError("the dimension has sizes as well", where=where)
    try:
        graphlib.TopologicalSorter({name: symbols(text) for name, text in request.ties.items()}).prepare()
    except graphlib.CycleError as error:
        name = error.args[1][0]
        raise InputError(f"{request.ties[name]} depends on {name} itself", where=f"bucket {name}") from None


def _symbols(values: Iterable[ir.Value]) -> list[str]:
    return [name for value in values for dim in dims_of(value) or () for name in sorted(_names(dim))]


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
