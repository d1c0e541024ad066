"""Loading and saving models: weights stay in their files, and what a file says is kept.

    model = load("model.onnx")        # its weights are mapped, not read
    save(model, "cleaned.onnx")       # takes as long as a copy, all or nothing

What a load adds: names for unnamed nodes (``Conv_3``), the right order of nodes where they are out of order, and an
initializer in place of each Constant node whose value is in another file. What a save leaves out: a type that merely
repeats that of an initializer. The order of ``value_info`` and of metadata is not kept, nor are fields unknown to
the installed onnx, other than those of the model itself.
"""

from __future__ import annotations

import errno
import hashlib
import math
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from onnx_bridge.core.atomic_write import AtomicFiles, write_all
from onnx_bridge.core.errors import InputError
from onnx_bridge.model.file import ModelFile
from onnx_bridge.model.reader import build
from onnx_bridge.model.storage import Span, elements, packed_size
from onnx_bridge.model.wire_format import BIG, LIMIT, Payload, Rope
from onnx_bridge.model.writer import serialize

_PAGE = 4096
_SHARED = 1 << 16
"""ONNX Runtime takes weights of at least this many bytes from outside: its inference of shapes reads smaller ones."""
_NOT_IN_ORT = {ir.DataType.STRING, ir.DataType.COMPLEX64, ir.DataType.COMPLEX128}
_SAYS = {
    errno.ENOSPC: "there is no room left on its device",
    errno.EDQUOT: "your quota of disk space is used up",
    errno.EFBIG: "the file would be larger than is allowed here",
    errno.ENOENT: "its folder does not exist",
    errno.ENOTDIR: "its folder is no folder",
    errno.ENAMETOOLONG: "its name is too long",
}


def load(path: str | os.PathLike[str] | ModelFile) -> ir.Model:
    """Read a model; its weights stay in their files, which must not be written to as long as it lives.

    Args:
        path: an ONNX file, or one that is parsed already. Its external data, if any, must be in its folder, or in that
            of the file that it links to.

    Raises:
        InputError: it cannot be read, is no ONNX model, or has a defect that would make it compute something else:
            elements missing, names undefined or defined twice, nodes waiting for each other, sparse initializers.
    """
    return build(_file(path))


def _file(path: str | os.PathLike[str] | ModelFile) -> ModelFile:
    return path if isinstance(path, ModelFile) else ModelFile(Path(path))


def save(model: ir.Model, path: str | os.PathLike[str], *, external_data: bool | None = None) -> None:
    """Write a model so that it appears whole or not at all, even over the file that it was loaded from.

    Args:
        model: stays as it is; its weights go from file to file.
        path: the ONNX file. A symbolic link is replaced, not followed.
        external_data: whether the weights go to a file of their own, named like ``path`` with ``.data`` added. None:
            only where the model is too large for one file (2 GiB).

    Raises:
        InputError: it cannot be written there, does not fit into one file, or a file that weights are mapped from was
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
            file = files.create(path)
            for piece in message.pieces:
                if isinstance(piece, bytearray):
                    write_all(file, piece)
                else:
                    piece.write(file)
            for source in sources:
                source.check()
    except OSError as error:
        what = f"it cannot be written: {_SAYS.get(error.errno or 0, error.strerror)}"
        raise InputError(what, where=str(path)) from error


def _plan(model: ir.Model, path: Path, external_data: bool | None) -> tuple[Rope, _DataFile | None]:
    """What to write to ``path``, and the file beside it that is needed."""
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
    """The external data of a model that is about to be saved.

    Attributes:
        path: where it will be.
        offsets: where each payload begins: at a page, so that it can be mapped. Tensors that share their elements
            share a place.
    """

    def __init__(self, path: Path) -> None:
        _check_target(path)
        if not path.name.isprintable():
            raise InputError("a model with external data needs a name that is plain text", where=str(path))
        self.path = path
        self.offsets: dict[Payload, int] = {}
        self._end = 0

    def place(self, value: ir.Value, tensor: ir.TensorProtocol) -> dict[str, str] | None:
        """Where the elements of an initializer go; None where they stay in the message."""
        if tensor.dtype == ir.DataType.STRING or packed_size(tensor.dtype, tensor.size) < BIG:
            return None
        payload = elements(tensor)
        if payload not in self.offsets:
            self.offsets[payload] = -(-self._end // _PAGE) * _PAGE
            self._end = self.offsets[payload] + payload.nbytes
        return {"location": self.path.name, "offset": str(self.offsets[payload]), "length": str(payload.nbytes)}

    def write(self, file: int) -> None:
        """Write all of it to a descriptor."""
        for payload, offset in self.offsets.items():
            os.lseek(file, offset, os.SEEK_SET)
            payload.write(file)


def _check_target(path: Path) -> None:
    """Refuse to replace what is no file: a folder, a device."""
    try:
        mode = path.lstat().st_mode
    except OSError:  # nothing there, or writing will say what is wrong
        return
    if stat.S_ISDIR(mode):
        raise InputError("it cannot be written: this is a folder", where=str(path))
    if not stat.S_ISREG(mode) and not stat.S_ISLNK(mode):
        raise InputError("it cannot be written: this is no ordinary file", where=str(path))


@dataclass(frozen=True)
class SessionSource:
    """A model as ONNX Runtime takes it without a copy of its weights.

    It must live as long as the session: the session computes with the memory that is mapped here.

    Attributes:
        model: the serialized model, the first argument of the session.
        weights: the OrtValue of each big initializer.
    """

    model: bytes
    weights: dict[str, Any]

    def add_to(self, options: Any) -> None:
        """Give the weights to the SessionOptions, and switch graph optimizations off, which would copy them."""
        import onnxruntime

        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", "/")
        for name, value in self.weights.items():
            options.add_initializer(name, value)


def session_source(model: ir.Model) -> SessionSource:
    """A model in memory for ``onnxruntime.InferenceSession``, its big weights where they are.

    ONNX Runtime wants big initializers to be external data in a file that exists, and takes those that it was given by
    ``add_initializer`` instead. (``add_external_initializers`` would copy all of them while it loads.) Weights in a
    single file lie at odd addresses, so that ONNX Runtime adds up the elements of a weight, where a node does that, in
    another order than those of an aligned copy: the last bit may differ.

    Raises:
        InputError: tensors inside nodes and subgraphs take more than 2 GiB; or a file that weights are mapped from
            was changed.
    """
    import onnxruntime

    weights: dict[str, Any] = {}
    subgraphs = [*model.graph.subgraphs(), *(each for f in model.functions.values() for each in f.subgraphs())]
    inner = {name for graph in subgraphs for name in graph.initializers}

    def place(value: ir.Value, tensor: ir.TensorProtocol) -> dict[str, str] | None:
        if value.graph is not model.graph or tensor.dtype in _NOT_IN_ORT:
            return None
        if value.name in inner:  # ONNX Runtime would give the weights to the inner initializer as well
            return None
        size = packed_size(tensor.dtype, tensor.size)
        if size < _SHARED:
            return None
        data, shape = elements(tensor).view(), tensor.shape.numpy()
        if tensor.dtype.bitwidth < 8:
            # ONNX Runtime reads packed elements, but takes the number of them from the array: one that claims a byte
            # for each element, of which only the packed ones are ever read.
            whole = np.lib.stride_tricks.as_strided(data, (math.prod(shape),), (1,))
        else:
            whole = data.view(tensor.dtype.numpy())
        array = whole.reshape(shape)
        weights[str(value.name)] = onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(array, int(tensor.dtype))
        return {"location": "dev/null", "offset": "0", "length": str(size)}

    message = serialize(model, place)
    if message.size >= LIMIT:
        raise InputError("the tensors inside its nodes and subgraphs take more than 2 GiB", where="the model")
    return SessionSource(message.join(), weights)


def digest(path: str | os.PathLike[str] | ModelFile) -> str:
    """The SHA-256 of a model, in hexadecimal: that of its file, or of its file's and its external data's digests.

    Raises:
        InputError: as `load`.
    """
    hashes = []
    for source in _file(path).sources.values():
        hashed, at = hashlib.sha256(), 0
        while chunk := source.read(at, 1 << 22):
            hashed.update(chunk)
            at += len(chunk)
        hashes.append(hashed)
    if len(hashes) == 1:
        return hashes[0].hexdigest()
    return hashlib.sha256(b"".join(hashed.digest() for hashed in hashes)).hexdigest()
