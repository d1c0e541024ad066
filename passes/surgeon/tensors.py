"""Convert tensors to graphsurgeon and back: read lazily, and the model's own tensors if a script changed nothing.

graphsurgeon's exporter confuses float8 types and fails for types smaller than a byte. So it writes no constants: what a
script leaves in a `Constant` is converted to a tensor here.
"""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np
import onnx
import onnx_graphsurgeon as gs
import onnx_ir as ir
from onnx_graphsurgeon.importers.onnx_importer import get_numpy_type
from onnx_graphsurgeon.ir.tensor import LazyValues, SparseValues

from passes.core.errors import InputError
from passes.graphs.tensors import tensor_proto

Array = np.ndarray[Any, np.dtype[Any]]


class ArraySources:
    """Records which tensor each array was read from, as long as the script holds the array."""

    def __init__(self) -> None:
        self._sources: dict[int, tuple[weakref.ref[Array], ir.TensorProtocol]] = {}

    def read(self, tensor: ir.TensorProtocol) -> Array:
        """Return the elements as a new array, which the script may change; strings are str if they are UTF-8."""
        array = np.array(tensor.numpy())
        if tensor.dtype == ir.DataType.STRING:
            array = np.array([_decode(element) for element in array.ravel()], object).reshape(array.shape)
        self._sources[id(array)] = (weakref.ref(array), tensor)
        return array

    def find(self, array: Array) -> ir.TensorProtocol | None:
        """Return the tensor that an array was read from, if the elements are unchanged."""
        reference, tensor = self._sources.get(id(array), (None, None))
        if reference is None or tensor is None or reference() is not array:
            return None
        kept = (array.dtype, array.shape) == (tensor.dtype.numpy(), tensor.shape.numpy())
        return tensor if kept and _same_cells(array, tensor.numpy()) else None


class TensorValues(LazyValues):  # type: ignore[misc]
    """The elements of a tensor of the model, read when a script accesses ``.values``."""

    def __init__(self, source: ir.TensorProtocol, sources: ArraySources) -> None:
        self.source = source
        self.shape = list(source.shape.numpy())
        self.dtype = surgeon_dtype(source.dtype)
        self.nbytes = source.nbytes
        self._sources = sources

    @property
    def tensor(self) -> onnx.TensorProto:
        """The tensor in the form that graphsurgeon's own exporter takes, for scripts that call it."""
        return tensor_proto(self.source, self.source.name or "")

    def load(self) -> Array:
        return self._sources.read(self.source)

    def __deepcopy__(self, memo: dict[int, object]) -> TensorValues:
        return self


def tensor_of(constant: gs.Constant, sources: ArraySources) -> ir.TensorProtocol:
    """Return the tensor that a script left in a constant: the model's own tensor if it is unchanged.

    Raises InputError if ONNX does not have its dtype.
    """
    values = constant._values
    wanted = data_type(constant._export_dtype) if constant._export_dtype is not None else None
    if isinstance(values, TensorValues):
        if wanted in (None, values.source.dtype):
            return values.source
        values = values.source.numpy()
    elif isinstance(values, SparseValues):
        values = values.load().astype(values.dtype)
    elif isinstance(values, LazyValues):  # of a model that the script has loaded itself
        values = np.asarray(onnx.numpy_helper.to_array(values.tensor))
    array = np.asarray(values)
    source = sources.find(array)
    if source is not None and wanted in (None, source.dtype):
        return source
    if array.dtype.kind in "OUS":
        return ir.StringTensor(_encode(array), shape=ir.Shape(array.shape))
    try:
        return ir.Tensor(array.astype(wanted.numpy()) if wanted is not None else array)
    except TypeError:
        raise InputError(f"constant {constant.name} has the dtype {array.dtype}, which ONNX does not have") from None


def data_type(dtype: object) -> ir.DataType:
    """Return the ONNX dtype of a graphsurgeon dtype, which is a numpy dtype or an ONNX number.

    Raises TypeError if ONNX does not have it.
    """
    if isinstance(dtype, int):
        return ir.DataType(dtype)
    numpy_dtype: np.dtype[Any] = np.dtype(dtype)  # type: ignore[call-overload]
    return ir.DataType.STRING if numpy_dtype.kind in "OUS" else ir.DataType.from_numpy(numpy_dtype)


def type_of(tensor: gs.Variable) -> ir.TypeProtocol:
    """Return the type that a script gave a tensor; raises InputError if ONNX does not have its dtype."""
    dtype = _dtype_of(tensor)
    match _kind(tensor):
        case "sequence_type":
            return ir.SequenceType(ir.TensorType(dtype))
        case "optional_type":
            return ir.OptionalType(ir.TensorType(dtype))
        case "sparse_tensor_type":
            return ir.SparseTensorType(dtype)
    return ir.TensorType(dtype)


def same_type(tensor: gs.Variable, dtype: object, kind: str) -> bool:
    """Return whether a tensor still has the dtype and the kind of type that were shown.

    Raises InputError if ONNX does not have its dtype.
    """
    if tensor.dtype is None or dtype is None:
        return tensor.dtype is dtype
    return _kind(tensor) == kind and _dtype_of(tensor) == data_type(dtype)


def dimension(dim: object) -> int | str | None:
    """Return a dimension that a script wrote; a negative number means unknown.

    Raises InputError if it is neither an integer, a name nor None.
    """
    if dim is None or isinstance(dim, str):
        return dim
    if isinstance(dim, int | np.integer):
        return int(dim) if dim >= 0 else None
    raise InputError(f"{dim!r} is not a dimension", hint="use an integer, a name or None")


def _kind(tensor: gs.Variable) -> str:
    kind: object = vars(tensor).get("type", "tensor_type")  # missing in a variable that was a constant
    return str(kind)


def _dtype_of(tensor: gs.Variable) -> ir.DataType:
    try:
        return data_type(tensor.dtype)
    except (TypeError, ValueError):
        raise InputError(f"tensor {tensor.name} has the dtype {tensor.dtype!r}, which ONNX does not have") from None


def surgeon_dtype(dtype: ir.DataType) -> object:
    """Return the dtype in graphsurgeon's form: a numpy dtype, or an ONNX number if numpy has no such dtype."""
    numpy_dtype = get_numpy_type(dtype.value)
    return dtype.value if numpy_dtype is None else numpy_dtype


def same_elements(tensor: ir.TensorProtocol, other: ir.TensorProtocol) -> bool:
    """Return whether two tensors are bitwise equal."""
    if tensor is other:
        return True
    if (tensor.dtype, tensor.shape.numpy()) != (other.dtype, other.shape.numpy()):
        return False
    return _same_cells(tensor.numpy(), other.numpy())


def _same_cells(array: Array, other: Array) -> bool:
    if array.dtype.kind in "OUS":
        return _encode(array) == _encode(other)
    return np.array_equal(_bytes(array), _bytes(other))


def _bytes(array: Array) -> Array:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _encode(array: Array) -> list[bytes]:
    return [element if isinstance(element, bytes) else str(element).encode() for element in array.ravel()]


def _decode(text: bytes) -> str | bytes:
    try:
        return text.decode()
    except UnicodeDecodeError:
        return text
