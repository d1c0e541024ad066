"""Files that tensors are mapped from."""

from __future__ import annotations

import errno
import math
import mmap
import os
import stat
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from onnx_bridge.core.errors import InputError
from onnx_bridge.core.files.atomic_write import write_all
from onnx_bridge.model.foreign import hint_of_folder, hint_of_missing

Bytes = np.ndarray[Any, np.dtype[np.uint8]]

_CHUNK = 1 << 22
_LONGEST_PATH = 4096
_NO_KERNEL_COPY = {errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM}
"""Errors of a copy within the kernel that do not concern the files."""


class Source:
    """A file that tensors are mapped from, held open, so that its bytes stay when its name is removed or replaced."""

    def __init__(self, path: Path) -> None:
        """Open a file; raises InputError if it does not exist, access is denied, or it is not a regular file."""
        self.path = path
        try:
            self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a named pipe must not block
        except FileNotFoundError:
            raise InputError("the file does not exist", where=str(path), hint=hint_of_missing(path)) from None
        except OSError as error:
            raise InputError(f"the file cannot be read: {error.strerror}", where=str(path)) from error
        weakref.finalize(self, os.close, self._file)
        state = os.fstat(self._file)
        if stat.S_ISDIR(state.st_mode):
            raise InputError("this is a folder, not a file", where=str(path), hint=hint_of_folder(path))
        if not stat.S_ISREG(state.st_mode):
            raise InputError("this is not a regular file", where=str(path))
        self.size = state.st_size
        self._modified = state.st_mtime_ns

    def __deepcopy__(self, memo: dict[int, Any]) -> Source:
        return self

    def __reduce__(self) -> str:
        raise TypeError("a mapped file cannot be copied or sent to another process")

    def fileno(self) -> int:
        """Return the descriptor, to be sent to another process."""
        return self._file

    @cached_property
    def memory(self) -> mmap.mmap:
        """The file, memory-mapped; it must not be empty."""
        return mmap.mmap(self._file, self.size, access=mmap.ACCESS_READ)

    def check(self) -> None:
        """Check that the file has not been written to since it was opened; replacing it under its name is harmless.

        Raises InputError if the file was changed in place.
        """
        state = os.fstat(self._file)
        if (state.st_size, state.st_mtime_ns) != (self.size, self._modified):
            raise self.changed()

    def changed(self) -> InputError:
        """Return the error for a file that was changed in place."""
        what = "the file was changed in place after the model was loaded, so its weights are lost"
        return InputError(what, where=str(self.path), hint="load the model again")

    def read(self, at: int, count: int) -> bytes:
        """Read up to ``count`` bytes from offset ``at``."""
        return os.pread(self._file, count, at)

    def send(self, file: int, at: int, count: int) -> int:
        """Copy up to ``count`` bytes from offset ``at`` to the position of a descriptor; returns their number."""
        try:
            if sent := os.copy_file_range(self._file, file, count, offset_src=at):
                return sent
        except OSError as error:
            if error.errno not in _NO_KERNEL_COPY:
                raise
        data = self.read(at, min(count, _CHUNK))
        write_all(file, data)
        return len(data)


@dataclass(frozen=True)
class Span:
    """A range of bytes of a source."""

    source: Source
    offset: int
    nbytes: int

    def view(self) -> Bytes:
        """Return the bytes, mapped; raises InputError if the source was changed."""
        self.source.check()
        return np.frombuffer(self.source.memory, np.uint8, self.nbytes, self.offset)

    def write(self, file: int) -> None:
        """Copy the bytes to the position of a descriptor, within the kernel if possible."""
        at, end = self.offset, self.offset + self.nbytes
        while at < end:
            sent = self.source.send(file, at, end - at)
            if not sent:
                raise self.source.changed()
            at += sent


class MappedTensor(ir.LazyTensor):
    """A tensor whose elements stay in their file; numpy arrays of them are read-only.

    Elements narrower than a byte are unpacked at each access; all others are views of the mapped file.

    Attributes:
        span: the elements, packed as ONNX specifies.
    """

    __slots__ = ("span",)

    def __init__(
        self,
        span: Span,
        dtype: ir.DataType,
        shape: ir.Shape,
        *,
        name: str | None = None,
        doc_string: str | None = None,
        metadata_props: Mapping[str, str] | None = None,
    ) -> None:
        self.span = span
        props = dict(metadata_props or {})
        mapped = partial(_mapped, span, dtype, shape)
        super().__init__(mapped, dtype, shape, name=name, doc_string=doc_string, metadata_props=props)


class MessageTensor(ir.TensorProtoTensor):
    """A tensor whose elements are in the message of its file.

    What describes it is computed once; onnx_ir does so each time it is asked.
    """

    __slots__ = ("dtype", "nbytes", "shape", "size")
    dtype: ir.DataType
    shape: ir.Shape
    size: int
    nbytes: int

    def __init__(self, tensor: ir.TensorProtoTensor) -> None:
        raw = onnx.TensorProto()
        raw.CopyFrom(tensor.raw)  # a part of a message would keep all of it
        super().__init__(raw)
        self.dtype, self.shape = tensor.dtype, tensor.shape
        self.size = math.prod(tensor.raw.dims)
        self.nbytes = packed_size(self.dtype, self.size)


@dataclass(frozen=True)
class Elements:
    """The elements of a tensor in memory, packed as ONNX specifies."""

    tensor: ir.TensorProtocol
    nbytes: int

    def view(self) -> Bytes:
        """Return the bytes; copied if they have to be packed."""
        if self.tensor.dtype.bitwidth < 8:
            data: Bytes = np.frombuffer(self.tensor.tobytes(), np.uint8)
        else:
            data = np.ascontiguousarray(self.tensor.numpy()).reshape(-1).view(np.uint8)
        if data.nbytes != self.nbytes:
            what = f"the tensor has {data.nbytes} bytes, and its shape and type need {self.nbytes}"
            raise InputError(what, where=f"tensor {self.tensor.name!r}")
        return data

    def write(self, file: int) -> None:
        """Write them at the position of a descriptor."""
        write_all(file, self.view().data)


def _mapped(span: Span, dtype: ir.DataType, shape: ir.Shape) -> ir.TensorProtocol:
    data = span.view() if span.nbytes else np.empty(0, np.uint8)
    if dtype.bitwidth < 8:
        return ir.PackedTensor(data, dtype, shape=shape)
    return ir.Tensor(data.view(dtype.numpy()).reshape(shape.numpy()), dtype, shape=shape)


def elements(tensor: ir.TensorProtocol) -> Span | Elements:
    """Return the elements of a tensor, mapped or in memory; not of a string tensor."""
    if isinstance(tensor, MappedTensor):
        return tensor.span
    return Elements(tensor, packed_size(tensor.dtype, tensor.size))


def packed_size(dtype: ir.DataType, count: int) -> int:
    """Return the size in bytes of ``count`` packed elements."""
    return (count * dtype.bitwidth + 7) // 8


def locate(location: str, model: Path) -> Path:
    """Return the real path of a file of external data.

    Args:
        location: the location that the model states, relative to its folder.

    Raises:
        InputError: it is outside the folder of the model. If the model is a symbolic link (as in the caches of model
            hubs), the folder of the real file is allowed as well.
    """
    if len(location) > _LONGEST_PATH:
        raise InputError(
            f"external data is at a path of {len(location)} characters, more than the {_LONGEST_PATH} of any"
        )
    given = Path(os.path.normpath(location))  # "a/../../b" is outside, like "../b"
    if not location or "\0" in location or given.is_absolute() or given.parts[:1] == ("..",):
        what = f"external data must be in a file within the folder of the model, not in {location!r}"
        raise InputError(what, hint="save the model again, with its data beside it")
    real = Path(os.path.realpath(model.parent / location))
    folders = (os.path.realpath(model.parent), Path(os.path.realpath(model)).parent)
    if not any(real.is_relative_to(folder) for folder in folders):
        raise InputError(f"external data must stay in the folder of the model, and {location!r} leads to {real}")
    return real
