"""What a model takes, and samples of it: generated to make sense, read from files, checked before they run.

A sample is a dict from input name to array. Dtypes that numpy lacks are those of ml_dtypes; strings are object arrays.
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from onnx_bridge.drawing import Array, draw
from onnx_bridge.errors import InputError, nearest
from onnx_bridge.roles import Data, Dim, Role, dims_of, roles

__all__ = ["Array", "Sample", "TensorSpec", "generate", "read", "specs", "validate"]

Sample = dict[str, Array]


@dataclass(frozen=True)
class TensorSpec:
    """One input of a model.

    Attributes:
        name: its name.
        dtype: numpy's, or one of ml_dtypes; object for strings.
        shape: each dimension is a size, a symbol (or an expression of symbols), or None where unknown; None where
            not even the number of dimensions is known.
        role: what the model does with it, which decides the values that `generate` makes.
    """

    name: str
    dtype: np.dtype[Any]
    shape: tuple[Dim, ...] | None
    role: Role = field(default_factory=Data)


def specs(model: ir.Model) -> list[TensorSpec]:
    """The inputs that a model must be given, in order; inputs with an initializer have a default and are left out.

    Raises:
        InputError: an input is not a tensor (sequence, optional, sparse), or has no type.
    """
    graph = model.graph
    required = [value for value in graph.inputs if value.name not in graph.initializers]
    for value in required:
        if not isinstance(value.type, ir.TensorType):
            kind = "has no type" if value.type is None else f"is no tensor but {value.type}"
            raise InputError(f"{kind}", where=f"input {value.name!r}", hint="only tensor inputs can be fed")
        if value.type.dtype == ir.DataType.UNDEFINED:
            raise InputError("has no element type", where=f"input {value.name!r}", hint="run ONNX shape inference")
    return [
        TensorSpec(value.name or "", value.type.dtype.numpy(), dims_of(value), role)
        for value, role in zip(required, roles(required), strict=True)
        if value.type is not None
    ]


def generate(
    model: ir.Model | Sequence[TensorSpec], *, seed: int = 0, samples: int = 1, dims: Mapping[str, int] | None = None
) -> list[Sample]:
    """Make samples whose values suit what the model does with them (see `onnx_bridge.roles`).

    Each array depends on the seed, the number of its sample and the input's name alone.

    Args:
        model: the model, or its `specs`.
        seed: zero or more.
        samples: how many.
        dims: sizes by symbol. Symbols that are not given, and unknown dimensions, have size 1; the same symbol has the
            same size everywhere.

    Raises:
        InputError: an input's number of dimensions is unknown, ``dims`` names a symbol that no input has, or an
            expression of symbols has no whole size.
    """
    if seed < 0:
        raise InputError(f"the seed is {seed}", hint="use zero or more")
    wanted = _specs(model)
    size = _sizes(wanted, dims or {})
    shapes = {spec.name: _shape(spec, size) for spec in wanted}
    return [
        {
            spec.name: draw(
                spec.role,
                [seed, sample, *spec.name.encode()],
                shapes[spec.name],
                spec.dtype,
                lambda dim: size(dim) or 1,
            )
            for spec in wanted
        }
        for sample in range(samples)
    ]


def fixed(
    wanted: Sequence[TensorSpec], shapes: Mapping[str, tuple[int, ...]]
) -> tuple[list[TensorSpec], dict[str, int]]:
    """The specs and the sizes of symbols with which `generate` makes samples of given shapes.

    Symbols stay where they were, since the values of other inputs may depend on them.
    """
    sizes: dict[str, int] = {}
    fixed_specs = []
    for spec in wanted:
        shape = shapes[spec.name]
        symbolic = spec.shape if spec.shape is not None else (None,) * len(shape)
        sizes |= {str(dim): size for dim, size in zip(symbolic, shape, strict=True) if _symbols(dim) == {dim}}
        dims = tuple(dim if dim in sizes else size for dim, size in zip(symbolic, shape, strict=True))
        fixed_specs.append(replace(spec, shape=dims))
    return fixed_specs, sizes


def read(path: Path, model: ir.Model | Sequence[TensorSpec]) -> list[Sample]:
    """Read samples from a file or folder, and `validate` them.

    - ``.npz``: arrays by input name. When every array has one dimension more than its input, the first axis of all of
      them counts samples. Dtypes that numpy does not know come back from files as raw bytes: they are taken for the
      input's dtype where the size of an element is the same.
    - a folder with ``input_0.pb``, ``input_1.pb``, … (serialized TensorProto): one sample, inputs by position.
    - a folder with ``test_data_set_0``, ``test_data_set_1``, … of such folders, as ONNX test suites have them.

    Raises:
        InputError: nothing of the above, a file is broken, or a sample does not fit the model.
    """
    wanted = _specs(model)
    if path.suffix == ".npz" and path.is_file():
        found = [(str(path), sample) for sample in _read_npz(path, wanted)]
    elif path.is_dir():
        folders = sorted(path.glob("test_data_set_*"), key=_number) or [path]
        found = [(str(folder), _read_folder(folder, wanted)) for folder in folders]
    else:
        what = "is neither a .npz file nor a folder" if path.exists() else "there is no such file or folder"
        raise InputError(what, where=str(path), hint="inputs come as .npz, or as a folder of input_*.pb")
    return [_validated(sample, wanted, origin) for origin, sample in found]


def validate(sample: Mapping[str, Any], model: ir.Model | Sequence[TensorSpec]) -> Sample:
    """The sample as arrays in the order of the model's inputs; nothing is cast, reshaped or left out silently.

    Strings of any numpy kind become object arrays of str; Python numbers and lists count as numpy reads them.

    Raises:
        InputError: an input is missing, unknown, of another dtype, or of a shape that does not fit, which includes two
            sizes for one symbol.
    """
    wanted = _specs(model)
    names = [spec.name for spec in wanted]
    for name in sample:
        if name not in names:
            raise InputError(
                "the model has no such input",
                where=f"input {name!r}",
                hint=nearest(name, names) or f"its inputs are {', '.join(names) or 'none'}",
            )
    symbols: dict[str, tuple[int, str]] = {}
    checked = {}
    for spec in wanted:
        if spec.name not in sample:
            raise InputError("is missing", where=f"input {spec.name!r}", hint=f"give a {_described(spec)} array")
        array = _typed(sample[spec.name], spec)
        _check_shape(array.shape, spec, symbols)
        checked[spec.name] = array
    return checked


def _specs(model: ir.Model | Sequence[TensorSpec]) -> list[TensorSpec]:
    return specs(model) if isinstance(model, ir.Model) else list(model)


def _described(spec: TensorSpec) -> str:
    shape = "" if spec.shape is None else f"[{', '.join('?' if dim is None else str(dim) for dim in spec.shape)}]"
    return f"{_dtype_name(spec.dtype)}{shape}"


def _dtype_name(dtype: np.dtype[Any]) -> str:
    return "string" if dtype.kind in "OUST" else dtype.name


def _shape(spec: TensorSpec, size: Callable[[Dim], int | None]) -> tuple[int, ...]:
    where = f"input {spec.name!r}"
    if spec.shape is None:
        what = "its number of dimensions is unknown, so no values can be made up"
        raise InputError(what, where=where, hint="give inputs from a file")
    sizes = []
    for dim in spec.shape:
        sizes.append(found := size(dim))
        if found is None:
            what = f"its dimension {dim!r} is no whole number for these sizes of its symbols"
            raise InputError(what, where=where, hint=f"choose other sizes for {', '.join(sorted(_symbols(dim)))}")
    return tuple(found for found in sizes if found is not None)


def _symbols(dim: Dim) -> frozenset[str]:
    """The symbols of a dimension; what is no expression (``batch size``) is one symbol."""
    if not isinstance(dim, str):
        return frozenset()
    try:
        return ir.SymbolicDim(dim).free_symbols()
    except ValueError:
        return frozenset({dim})


def _sizes(wanted: Iterable[TensorSpec], dims: Mapping[str, int]) -> Callable[[Dim], int | None]:
    """What gives the size of any dimension; None where an expression has no whole size, zero or more."""
    known = {symbol for spec in wanted for dim in spec.shape or () for symbol in _symbols(dim)}
    for symbol, size in dims.items():
        if symbol not in known:
            hint = nearest(symbol, known) or f"its inputs have {', '.join(sorted(known)) or 'fixed sizes only'}"
            raise InputError("no input has such a dimension", where=f"dimension {symbol!r}", hint=hint)
        if size < 0:
            raise InputError(f"its size is {size}", where=f"dimension {symbol!r}", hint="use zero or more")

    def size_of(dim: Dim) -> int | None:
        if not isinstance(dim, str):
            return 1 if dim is None else dim
        value = _evaluate(dim, {symbol: dims.get(symbol, 1) for symbol in _symbols(dim)})
        return None if value is None or value < 0 else value

    return size_of


def _evaluate(dim: str, sizes: Mapping[str, int]) -> int | None:
    """The size of a symbolic dimension; None where it is not a whole number."""
    if dim in sizes:
        return sizes[dim]
    value = ir.SymbolicDim(dim).evaluate(sizes)
    return value if isinstance(value, int) else None


def _typed(value: Any, spec: TensorSpec) -> Array:
    array = value if isinstance(value, np.ndarray) else np.asarray(value)
    if spec.dtype == np.dtype(object) and array.dtype.kind in "OUST":
        texts = [item.decode() if isinstance(item, bytes) else item for item in array.reshape(-1).tolist()]
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
        hint = f"cast it where that loses nothing: astype({package}{spec.dtype.name})"
    what = f"is {_dtype_name(array.dtype)}, the model takes {_dtype_name(spec.dtype)}"
    raise InputError(what, where=f"input {spec.name!r}", hint=hint)


def _check_shape(shape: tuple[int, ...], spec: TensorSpec, symbols: dict[str, tuple[int, str]]) -> None:
    """Check one shape; ``symbols`` collects the sizes of symbols, and the input that each was seen at."""
    if spec.shape is None:
        return
    where = f"input {spec.name!r}"
    has = f"its shape is {list(shape)}"
    if len(shape) != len(spec.shape) or any(
        isinstance(dim, int) and dim != size for dim, size in zip(spec.shape, shape, strict=False)
    ):
        raise InputError(has, where=where, hint=f"the model takes {_described(spec)}")
    for dim, size in zip(spec.shape, shape, strict=True):
        if not isinstance(dim, str):
            continue
        if _symbols(dim) == {dim}:
            before, other = symbols.setdefault(dim, (size, spec.name))
            if before != size:
                hint = f"{dim!r} is {before} in input {other!r}" if other != spec.name else f"one size for {dim!r}"
                raise InputError(f"{has}, where {dim!r} is {size}", where=where, hint=hint)
        elif _symbols(dim) <= symbols.keys():
            expected = _evaluate(dim, {symbol: symbols[symbol][0] for symbol in _symbols(dim)})
            if expected != size:
                raise InputError(f"{has}, where {dim!r} is {size}", where=where, hint=f"it should be {expected}")


def _validated(sample: Mapping[str, Any], wanted: Sequence[TensorSpec], origin: str) -> Sample:
    try:
        return validate(sample, wanted)
    except InputError as error:
        raise InputError(error.what, where=f"{origin}, {error.where}", hint=error.hint) from None


def _read_npz(path: Path, wanted: Sequence[TensorSpec]) -> list[Sample]:
    dtypes = {spec.name: spec.dtype for spec in wanted}
    ranks = {spec.name: len(spec.shape) for spec in wanted if spec.shape is not None}
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: _restored(file[name], dtypes.get(name)) for name in file.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        hint = "save strings as numpy.str_" if "pickle" in str(error) else "write it with numpy.savez"
        raise InputError(f"it cannot be read: {error}", where=str(path), hint=hint) from error
    if not arrays or any(array.ndim != ranks.get(name, -1) + 1 for name, array in arrays.items()):
        return [arrays]
    counts = {name: len(array) for name, array in arrays.items()}
    if len(set(counts.values())) > 1:
        listed = ", ".join(f"{name} {count}" for name, count in counts.items())
        raise InputError(f"the numbers of samples differ: {listed}", where=str(path), hint="stack as many of each")
    return [{name: array[sample] for name, array in arrays.items()} for sample in range(next(iter(counts.values())))]


def _restored(array: Array, dtype: np.dtype[Any] | None) -> Array:
    """Give raw bytes, which is how numpy saves dtypes that it does not know, the dtype that they had."""
    raw = array.dtype.type is np.void and array.dtype.names is None
    return array.view(dtype) if dtype is not None and raw and array.dtype.itemsize == dtype.itemsize else array


def _number(path: Path) -> int:
    digits = re.search(r"(\d+)$", path.stem)
    return int(digits[1]) if digits else 0


def _read_folder(folder: Path, wanted: Sequence[TensorSpec]) -> Sample:
    files = sorted(folder.glob("input_*.pb"), key=_number)
    if [_number(file) for file in files] != list(range(len(wanted))):
        raise InputError(
            f"has {len(files)} input files ({', '.join(file.name for file in files) or 'none'})",
            where=str(folder),
            hint=f"the model takes {len(wanted)} inputs: input_0.pb … in the order of the model",
        )
    return {spec.name: _read_tensor(file) for spec, file in zip(wanted, files, strict=True)}


def _read_tensor(file: Path) -> Array:
    try:
        return np.asarray(ir.from_proto(onnx.TensorProto.FromString(file.read_bytes())).numpy())
    except Exception as error:  # protobuf's DecodeError, and whatever reading a broken tensor raises
        raise InputError("is no serialized tensor", where=str(file), hint="write a TensorProto") from error
