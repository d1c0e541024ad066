"""Loading and saving models: weights stay in their files, and nothing of a file is lost silently.

    model = load("model.onnx")        # weights are memory-mapped, not read
    save(model, "cleaned.onnx")       # atomic; takes as long as copying the file

`load` names unnamed nodes (``Conv_3``), sorts nodes that are out of order, makes sizes unknown that are negative or
named ``?``, replaces Constant nodes whose value is external data by initializers, raises models of an opset before 7
to opset 7, and defines operators that exporters have invented. `save` omits value infos that
only repeat the type of an initializer. The order of ``value_info`` and metadata is not kept, nor are fields unknown to
the installed onnx, except those of ModelProto.
"""

from __future__ import annotations

import errno
import math
import os
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from onnx_bridge.core.errors import InputError
from onnx_bridge.core.files.atomic_write import AtomicFiles
from onnx_bridge.model.file import ModelFile
from onnx_bridge.model.reader import build_model
from onnx_bridge.model.storage import Span, elements, packed_size
from onnx_bridge.model.wire_format import BIG, LIMIT, Payload, Rope, Viewed
from onnx_bridge.model.writer import serialize
from passes.graphs.byte_strings import from_proto
from passes.graphs.limits import check_limits
from passes.rewriting.invented import define_invented
from passes.rewriting.old_signatures import raise_opset

_PAGE = 4096
_EXTERNAL_BYTES = 1 << 16
"""Weights of at least this size are given to ONNX Runtime from outside; its shape inference reads smaller ones."""
_NOT_EXTERNAL = {ir.DataType.STRING, ir.DataType.COMPLEX64, ir.DataType.COMPLEX128}
_REASONS = {
    errno.ENOSPC: "there is no space left on the device",
    errno.EDQUOT: "your quota of disk space is used up",
    errno.EFBIG: "the file would be larger than is allowed here",
    errno.ENOENT: "the folder does not exist",
    errno.ENOTDIR: "a part of its path is not a folder",
    errno.ENAMETOOLONG: "the name is too long",
}


def load(path: str | os.PathLike[str] | ModelFile) -> ir.Model:
    """Load a model; its weights stay in their files, which must not be written to while the model is in use.

    Args:
        path: an ONNX file, or one that is parsed already. External data must be in its folder, or in that of the file
            that it links to.

    Raises:
        InputError: the file cannot be read, is not an ONNX model, or is invalid: elements missing, names undefined or
            defined twice, nodes in a cycle.
    """
    return build_model(_file(path))


def loaded(model: str | os.PathLike[str] | ir.Model) -> ir.Model:
    """Return the model of a file, or the one in memory itself; raises like `load`."""
    return model if isinstance(model, ir.Model) else load(model)


def as_file(model: str | os.PathLike[str] | ir.Model, path: Path) -> Path:
    """Return the file of a model; one in memory is saved to ``path``."""
    if not isinstance(model, ir.Model):
        return Path(model)
    save(model, path)
    return path


def owned(model: str | os.PathLike[str] | ir.Model) -> ir.Model:
    """Return a model to change: that of a file, or a copy of one in memory.

    Raises InputError like `load`, or if the model exceeds the limits of `passes.graphs.limits`.
    """
    if not isinstance(model, ir.Model):
        return load(model)
    check_limits(model)
    model = model.clone()
    raise_opset(model)
    define_invented(model)
    return model


def _file(path: str | os.PathLike[str] | ModelFile) -> ModelFile:
    return path if isinstance(path, ModelFile) else ModelFile(Path(path))


def save(model: ir.Model, path: str | os.PathLike[str], *, external_data: bool | None = None) -> None:
    """Save a model atomically, even over the file that it was loaded from.

    Args:
        model: not changed; its weights are copied from file to file.
        path: the ONNX file. A symbolic link is replaced, not followed.
        external_data: whether weights go to a separate file, ``path`` with ``.data`` added. None: only if the model is
            too large for one file (2 GiB).

    Raises:
        InputError: it cannot be written, does not fit into one file, or a file that weights are mapped from was
            changed.
    """
    path = Path(path)
    _check_target(path)
    message, data = _plan(model, path, external_data)
    payloads = [*message.payloads(), *(data.offsets if data else ())]
    sources = {payload.source for payload in payloads if isinstance(payload, Span)}
    try:
        with AtomicFiles() as files:
            if data:
                data.write(files.create(data.path))
            message.write(files.create(path))
            for source in sources:
                source.check()
    except OSError as error:
        what = f"the model cannot be written: {_REASONS.get(error.errno or 0, error.strerror)}"
        raise InputError(what, where=str(path)) from error


def _plan(model: ir.Model, path: Path, external_data: bool | None) -> tuple[Rope, _DataFile | None]:
    """Return the message to write to ``path``, and the file of external data, if one is needed."""
    if not external_data:
        message = serialize(model)
        if message.size < LIMIT:
            return message, None
        if external_data is False:
            what = f"the model has {message.size} bytes, and a single ONNX file must have less than 2 GiB"
            raise InputError(what, where=str(path), hint="save it with external data")
    data = _DataFile(path.with_name(f"{path.name}.data"))
    message = serialize(model, data.place)
    if message.size >= LIMIT:
        what = "the tensors inside its nodes take more than 2 GiB, and only initializers can be external data"
        raise InputError(what, where=str(path))
    return message, data if data.offsets else None


class _DataFile:
    """The external data of a model to be saved: the offset of each payload, at a page boundary, to be mapped.

    Tensors that share their elements share an offset.
    """

    def __init__(self, path: Path) -> None:
        _check_target(path)
        if not path.name.isprintable():
            raise InputError("a model with external data needs a name that is plain text", where=str(path))
        self.path = path
        self.offsets: dict[Payload, int] = {}
        self._end = 0

    def place(self, value: ir.Value, tensor: ir.TensorProtocol) -> dict[str, str] | None:
        """Return the ``external_data`` of an initializer; None if its elements stay in the message."""
        if tensor.dtype == ir.DataType.STRING or packed_size(tensor.dtype, tensor.size) < BIG:
            return None
        payload = elements(tensor)
        if payload not in self.offsets:
            self.offsets[payload] = -(-self._end // _PAGE) * _PAGE
            self._end = self.offsets[payload] + payload.nbytes
        return {"location": self.path.name, "offset": str(self.offsets[payload]), "length": str(payload.nbytes)}

    def write(self, file: int) -> None:
        for payload, offset in self.offsets.items():
            os.lseek(file, offset, os.SEEK_SET)
            payload.write(file)


def _check_target(path: Path) -> None:
    """Raise InputError if the path is a folder or a device."""
    try:
        mode = path.lstat().st_mode
    except OSError:  # absent, or writing reports the error
        return
    if stat.S_ISDIR(mode):
        raise InputError("the model cannot be written: this is a folder", where=str(path))
    if not stat.S_ISREG(mode) and not stat.S_ISLNK(mode):
        raise InputError("the model cannot be written: this is not a regular file", where=str(path))


@dataclass(frozen=True)
class Weight:
    """A large initializer; its elements are packed as ONNX specifies."""

    elements: Viewed
    dtype: ir.DataType
    shape: tuple[int, ...]

    def value(self) -> Any:
        """Return an OrtValue that uses the memory of the elements."""
        import onnxruntime

        data = self.elements.view()
        if self.dtype.bitwidth < 8:
            # ONNX Runtime reads packed elements, but takes their number from the array: so the array pretends to have
            # a byte for each element, and only the packed ones are read
            flat = np.lib.stride_tricks.as_strided(data, (math.prod(self.shape),), (1,))
        else:
            flat = data.view(self.dtype.numpy())
        return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(flat.reshape(self.shape), int(self.dtype))

    def tensor(self, name: str) -> ir.TensorProtocol:
        """Return a tensor that uses the memory of the elements."""
        data, shape = self.elements.view(), ir.Shape(self.shape)
        if self.dtype.bitwidth < 8:
            return ir.PackedTensor(data, self.dtype, shape=shape, name=name)
        return ir.Tensor(data.view(self.dtype.numpy()).reshape(self.shape), self.dtype, shape=shape, name=name)


@dataclass(frozen=True)
class SessionSource:
    """A model as ONNX Runtime loads it without copying its weights.

    It must outlive the session, which uses the memory that is mapped here.

    Attributes:
        model: the serialized model, the first argument of the session.
        weights: each large initializer by name.
    """

    model: bytes
    weights: dict[str, Weight]
    _values: list[Any] = field(default_factory=list, init=False)

    def add_to(self, options: Any) -> None:
        """Add the weights to SessionOptions, and disable graph optimizations, which would copy them."""
        import onnxruntime

        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", "/")
        for name, weight in self.weights.items():
            self._values.append(weight.value())
            options.add_initializer(name, self._values[-1])

    def to_model(self) -> ir.Model:
        """Return the model in memory; it shares the weights."""
        model = from_proto(onnx.ModelProto.FromString(self.model))
        for name, weight in self.weights.items():
            model.graph.initializers[name].const_value = weight.tensor(name)
        return model


def session_source(model: ir.Model) -> SessionSource:
    """Prepare a model in memory for ``onnxruntime.InferenceSession`` without copying its large weights.

    Large initializers are declared as external data in a file that exists, and ONNX Runtime uses those given by
    ``add_initializer`` instead. (``add_external_initializers`` would copy all of them while loading.) Weights within an
    ONNX file are not aligned, so that ONNX Runtime may sum their elements in another order than those of an aligned
    copy: the last bit may differ.

    Raises:
        InputError: tensors inside nodes and subgraphs take more than 2 GiB, or a file that weights are mapped from was
            changed.
    """
    weights: dict[str, Weight] = {}
    subgraphs = [*model.graph.subgraphs(), *(graph for f in model.functions.values() for graph in f.subgraphs())]
    inner = {name for graph in subgraphs for name in graph.initializers}

    def place(value: ir.Value, tensor: ir.TensorProtocol) -> dict[str, str] | None:
        if value.graph is not model.graph or tensor.dtype in _NOT_EXTERNAL:
            return None
        if value.name in inner:  # ONNX Runtime would also use the weights for the inner initializer
            return None
        size = packed_size(tensor.dtype, tensor.size)
        if size < _EXTERNAL_BYTES:
            return None
        loaded = elements(tensor)
        if isinstance(loaded, Span):
            loaded.source.check()
        weights[str(value.name)] = Weight(loaded, tensor.dtype, tuple(tensor.shape.numpy()))
        return {"location": "dev/null", "offset": "0", "length": str(size)}

    message = serialize(model, place)
    if message.size >= LIMIT:
        raise InputError("the tensors inside its nodes and subgraphs take more than 2 GiB", where="the model")
    return SessionSource(message.join(), weights)


def digest(path: str | os.PathLike[str] | ModelFile) -> str:
    """Return the digest of a model file (`ModelFile.digest`); raises InputError like `load`."""
    return _file(path).digest()
