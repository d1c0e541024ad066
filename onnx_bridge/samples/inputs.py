"""The inputs of a model, and samples for them: generated to suit their roles, validated before they run.

A sample is a dict from input name to value: an array, a list of arrays for a sequence, None for an empty optional.
Dtypes that numpy lacks are those of ml_dtypes; strings are object arrays.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import onnx_ir as ir

from onnx_bridge.core.errors import InputError, nearest
from onnx_bridge.core.values import Kind, Value, dtype_name
from onnx_bridge.samples.dimensions import Dim, dims_of
from onnx_bridge.samples.fitting import fitting
from onnx_bridge.samples.generated import Array, generate_array
from onnx_bridge.samples.inferred_roles import roles
from onnx_bridge.samples.roles import Choice, Data, Role
from passes.cleanup.inline_functions import inlined
from passes.isolation.limits import available_bytes
from passes.shapes import size_expressions

__all__ = ["Array", "Sample", "TensorSpec", "Value", "generate", "specs", "validate"]

Sample = dict[str, Value]
_BYTES_AN_ELEMENT = 16
"""The memory that generating takes: a random word of 64 bits, and the element."""


@dataclass(frozen=True)
class TensorSpec:
    """One input of a model.

    Attributes:
        dtype: numpy's, or one of ml_dtypes; object for strings. For a sequence, that of its arrays.
        shape: each dimension is a size, a symbol (or an expression of symbols), or None if unknown; None if the rank is
            unknown. For a sequence, that of its arrays, whose open sizes may differ from each other.
        role: what the model uses it for; determines the values that `generate` makes.
        kind: a tensor, a sequence, or an optional of either.
    """

    name: str
    dtype: np.dtype[Any]
    shape: tuple[Dim, ...] | None
    role: Role = field(default_factory=Data)
    kind: Kind = Kind.TENSOR

    @property
    def may_select(self) -> bool:
        """True if it may select a branch: another value may run if one does not."""
        return isinstance(self.role, Choice) or (self.dtype == np.bool_ and all(dim == 1 for dim in self.shape or ()))


def specs(model: ir.Model, named: Collection[str] = ()) -> list[TensorSpec]:
    """Return the required inputs of a model, in order.

    Args:
        named: inputs that are not left out even if they have a default, which is an initializer.

    Raises:
        InputError: an input is neither a tensor nor a sequence of tensors (sparse, a sequence of sequences), or has no
            type.
    """
    inputs = inlined(model).graph.inputs
    required = [value for value in inputs if not value.is_initializer() or value.name in named]
    for value in required:
        if Kind.of(value.type) is None:
            what = "has no type" if value.type is None else f"is {value.type}"
            raise InputError(what, where=f"input {value.name!r}", hint="only tensors and sequences can be fed")
        if value.dtype is None or value.dtype == ir.DataType.UNDEFINED:
            raise InputError("has no element type", where=f"input {value.name!r}", hint="run ONNX shape inference")
    return [
        TensorSpec(value.name or "", value.dtype.numpy(), dims_of(value), role, kind)
        for value, role in zip(required, roles(required), strict=True)
        if value.dtype is not None and (kind := Kind.of(value.type)) is not None
    ]


def generate(
    model: ir.Model | Sequence[TensorSpec], *, seed: int = 0, samples: int = 1, dims: Mapping[str, int] | None = None
) -> list[Sample]:
    """Generate samples whose values suit the roles of the inputs (`onnx_bridge.samples.roles`).

    Each array depends only on the seed, the index of its sample and the name of the input. Sequences have two arrays,
    optionals a value.

    Args:
        model: the model, or its `specs`.
        seed: a number of zero or more.
        samples: the number of samples.
        dims: sizes by symbol; other symbols, and unknown dimensions, have size 1.

    Raises:
        InputError: the rank of an input is unknown, ``dims`` names a symbol that no input has, an expression of
            symbols is not an integer for these sizes, or the memory is too small.
    """
    if seed < 0:
        raise InputError(f"the seed is {seed}", hint="use zero or more")
    wanted = _specs(model)
    size = _sizes(wanted, dims or {})
    shapes = {spec.name: _shape(spec, size) for spec in wanted}
    for name, shape in shapes.items():
        if (needed := math.prod(shape) * _BYTES_AN_ELEMENT) > (free := available_bytes()):
            memory = f"{needed / 2**30:.1f} GiB to generate, and {free / 2**30:.1f} GiB are free"
            what = f"the shape is {list(shape)}: {memory}"
            raise InputError(what, where=f"input {name!r}", hint="choose smaller sizes")

    def known_size(dim: Dim) -> int:
        number = size(dim)
        return 1 if number is None else number

    def value(spec: TensorSpec, sample: int) -> Value:
        def array(name: str) -> Array:
            key = [seed, sample, *name.encode()]
            return generate_array(spec.role, key, shapes[spec.name], spec.dtype, known_size)

        return [array(f"{spec.name}[{index}]") for index in range(2)] if spec.kind.sequence else array(spec.name)

    return [{spec.name: value(spec, sample) for spec in wanted} for sample in range(samples)]


def with_shapes(
    wanted: Sequence[TensorSpec], shapes: Mapping[str, Sequence[Dim]]
) -> tuple[list[TensorSpec], dict[str, int]]:
    """Return the specs and the sizes of symbols with which `generate` makes samples of given shapes.

    Symbols are kept, since the values of other inputs may depend on them; sequences are not changed.
    """
    sizes: dict[str, int] = {}
    fixed_specs = []
    for spec in wanted:
        if spec.kind is not Kind.TENSOR or spec.name not in shapes:
            fixed_specs.append(spec)
            continue
        shape = shapes[spec.name]
        symbolic = spec.shape if spec.shape is not None else (None,) * len(shape)
        pairs = zip(symbolic, shape, strict=True)
        sizes |= {str(dim): size for dim, size in pairs if _symbols(dim) == {dim} and isinstance(size, int)}
        dims = tuple(dim if dim in sizes else size for dim, size in zip(symbolic, shape, strict=True))
        fixed_specs.append(replace(spec, shape=dims))
    return fixed_specs, sizes


def validate(sample: Mapping[str, Any], model: ir.Model | Sequence[TensorSpec]) -> Sample:
    """Validate a sample; its values in the order of the model's inputs. Nothing is cast, reshaped or dropped.

    Strings of any numpy kind become object arrays of str; Python numbers and lists are converted by numpy.

    Raises:
        InputError: an input is missing or unknown, has another dtype, or its shape does not fit, for example because a
            symbol has two sizes.
    """
    wanted = _specs(model)
    names = [spec.name for spec in wanted]
    if not isinstance(sample, Mapping):
        example = f"{{{names[0]!r}: array}}" if names else "{}"
        what = f"a {type(sample).__name__} is given instead of arrays by name"
        raise InputError(what, where="inputs", hint=f"give a dict, as {example}")
    for name in sample:
        if name not in names:
            hint = nearest(name, names) or f"the inputs are {', '.join(names) or 'none'}"
            raise InputError("the model has no such input", where=f"input {name!r}", hint=hint)
    symbols: dict[str, tuple[int, str]] = {}
    checked: Sample = {}
    for spec in wanted:
        if spec.name not in sample:
            raise InputError("the input is missing", where=f"input {spec.name!r}", hint=f"give {_wanted(spec)}")
        try:
            checked[spec.name] = _checked(sample[spec.name], spec, symbols)
        except InputError as error:
            name = spec.name if spec.name.isidentifier() else "array"
            way = fitting(name, sample[spec.name], spec.shape, spec.dtype)
            if way is not None and way[0]:
                takes = [f"the model takes {_described(spec)}"] * (sample[spec.name].dtype == spec.dtype)
                error.hint = f"{'; '.join([*takes, *way[0]])}: give {way[1]}"
            raise
    for spec in wanted if symbols else ():  # again: now that all symbols are known, expressions of them are
        if isinstance(array := checked[spec.name], np.ndarray):
            _check_shape(array.shape, spec, symbols)
    return checked


def _specs(model: ir.Model | Sequence[TensorSpec]) -> list[TensorSpec]:
    return list(model) if isinstance(model, Sequence) else specs(model)


def _checked(value: Any, spec: TensorSpec, symbols: dict[str, tuple[int, str]]) -> Value:
    if value is None and spec.kind.optional:
        return None
    if not spec.kind.sequence:
        array = _typed(value, spec)
        _check_shape(array.shape, spec, symbols)
        return array
    if not isinstance(value, (list, tuple)):
        what = f"is {'None' if value is None else f'a {type(value).__name__}'}, the model takes a sequence"
        raise InputError(what, where=f"input {spec.name!r}", hint=f"give {_wanted(spec)}")
    arrays = [_typed(item, spec) for item in value]
    for item in arrays:
        _check_shape(item.shape, spec, {})
    return arrays


def _wanted(spec: TensorSpec) -> str:
    what = f"a list of {_described(spec)} arrays" if spec.kind.sequence else f"a {_described(spec)} array"
    return f"{what}, or None" if spec.kind.optional else what


def _described(spec: TensorSpec) -> str:
    shape = "" if spec.shape is None else f"[{', '.join('?' if dim is None else str(dim) for dim in spec.shape)}]"
    return f"{dtype_name(spec.dtype)}{shape}"


def _shape(spec: TensorSpec, size: Callable[[Dim], int | None]) -> tuple[int, ...]:
    where = f"input {spec.name!r}"
    if spec.shape is None:
        what = "the rank is unknown, so no values can be generated"
        raise InputError(what, where=where, hint="give inputs from a file")
    sizes = []
    for dim in spec.shape:
        sizes.append(known := size(dim))
        if known is None:
            what = f"the dimension {dim!r} is not an integer for these sizes of its symbols"
            raise InputError(what, where=where, hint=f"choose other sizes for {', '.join(sorted(_symbols(dim)))}")
    return tuple(known for known in sizes if known is not None)


def _symbols(dim: Dim) -> frozenset[str]:
    return size_expressions.symbols(dim) if isinstance(dim, str) else frozenset()


def _sizes(wanted: Iterable[TensorSpec], dims: Mapping[str, int]) -> Callable[[Dim], int | None]:
    """Return a function from dimension to size; None for an expression that is not an integer of zero or more."""
    known = {symbol for spec in wanted for dim in spec.shape or () for symbol in _symbols(dim)}
    for symbol, size in dims.items():
        if symbol not in known:
            hint = nearest(symbol, known) or f"the inputs have {', '.join(sorted(known)) or 'fixed sizes only'}"
            raise InputError("inputs have no such dimension", where=f"dimension {symbol!r}", hint=hint)
        if size < 0:
            raise InputError(f"the size is {size}", where=f"dimension {symbol!r}", hint="use zero or more")

    def size_of(dim: Dim) -> int | None:
        if not isinstance(dim, str):
            return 1 if dim is None else dim
        value = size_expressions.evaluate(dim, {symbol: dims.get(symbol, 1) for symbol in _symbols(dim)})
        return None if value is None or value < 0 else value

    return size_of


def _typed(value: Any, spec: TensorSpec) -> Array:
    try:
        array = value if isinstance(value, np.ndarray) else np.asarray(value)
    except (TypeError, ValueError, RuntimeError) as error:  # ragged lists; tensors of torch on other devices
        what = f"cannot be converted to an array: {error}"
        raise InputError(what, where=f"input {spec.name!r}", hint=f"give {_wanted(spec)}") from error
    if spec.dtype == np.dtype(object) and array.dtype.kind in "OUST":
        try:
            texts = [item.decode() if isinstance(item, bytes) else item for item in array.reshape(-1).tolist()]
        except UnicodeDecodeError as error:
            raise InputError(f"a string is not UTF-8: {error}", where=f"input {spec.name!r}") from None
        if all(isinstance(text, str) for text in texts):
            strings = np.empty(array.shape, dtype=object)
            strings.reshape(-1)[:] = texts
            return strings
    elif array.dtype == spec.dtype:
        return array
    if spec.dtype == np.dtype(object):
        hint = "give strings"
    else:
        package = "" if hasattr(np, spec.dtype.name) else "ml_dtypes."
        hint = f"cast it if no precision is lost: astype({package}{spec.dtype.name})"
    what = f"is {dtype_name(array.dtype)}, the model takes {dtype_name(spec.dtype)}"
    raise InputError(what, where=f"input {spec.name!r}", hint=hint)


def _check_shape(shape: tuple[int, ...], spec: TensorSpec, symbols: dict[str, tuple[int, str]]) -> None:
    """Check one shape; ``symbols`` collects the sizes of symbols, each with the input that it comes from."""
    if spec.shape is None:
        return
    if len(shape) != len(spec.shape) or any(
        dim != size for dim, size in zip(spec.shape, shape, strict=True) if isinstance(dim, int)
    ):
        pairs = zip(spec.shape, shape, strict=False)
        others = [sorted((dim, size)) for dim, size in pairs if isinstance(dim, int) and dim != size]
        hint = f"the model takes {_described(spec)}"
        if len(shape) == len(spec.shape) and len(others) == 1:
            hint += f"; if the size is open, a bundle with `buckets={{'NAME': {(*others[0],)}}}` takes both"
        raise _unfit(shape, spec, "", hint)
    for dim, size in zip(spec.shape, shape, strict=True):
        if not isinstance(dim, str):
            continue
        if _symbols(dim) == {dim}:
            before, other = symbols.setdefault(dim, (size, spec.name))
            if before != size:
                hint = f"{dim!r} is {before} in input {other!r}" if other != spec.name else f"one size for {dim!r}"
                raise _unfit(shape, spec, f", where {dim!r} is {size}", hint)
        elif _symbols(dim) <= symbols.keys():
            expected = size_expressions.evaluate(dim, {symbol: symbols[symbol][0] for symbol in _symbols(dim)})
            if expected != size:
                raise _unfit(shape, spec, f", where {dim!r} is {size}", f"{dim!r} should be {expected}")


def _unfit(shape: tuple[int, ...], spec: TensorSpec, which: str, hint: str) -> InputError:
    return InputError(f"the shape is {list(shape)}{which}", where=f"input {spec.name!r}", hint=hint)
