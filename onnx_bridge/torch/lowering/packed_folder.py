"""A folder as a tensor of bytes, for ``state_dict`` and ``torch.save``."""

from __future__ import annotations

import hashlib
import io
import tempfile
import weakref
import zipfile
from pathlib import Path

import torch

from onnx_bridge.core.errors import InputError

_EPOCH = (1980, 1, 1, 0, 0, 0)
_DIGEST = hashlib.sha256().digest_size


class Folder:
    """A folder; a temporary one is removed when the object is garbage-collected."""

    def __init__(self, path: Path | None = None) -> None:
        """Hold an existing folder, or a new temporary one."""
        if path is None:
            temporary = tempfile.TemporaryDirectory(prefix="onnx-bridge-")
            weakref.finalize(self, temporary.cleanup)
            path = Path(temporary.name)
        self.path = path


def pack(folder: Path) -> torch.Tensor:
    """Return the files below a folder as uint8[n], a SHA-256 and a zip archive; raises InputError if it is gone."""
    if not folder.is_dir():
        raise InputError("the programs no longer exist on disk", where=str(folder), hint="lower the module again")
    buffer = io.BytesIO()
    buffer.write(bytes(_DIGEST))
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            info = zipfile.ZipInfo(path.relative_to(folder).as_posix(), _EPOCH)
            with path.open("rb") as source, archive.open(info, "w", force_zip64=True) as sink:
                while chunk := source.read(1 << 22):
                    sink.write(chunk)
    buffer.getbuffer()[:_DIGEST] = hashlib.sha256(buffer.getbuffer()[_DIGEST:]).digest()
    return torch.frombuffer(buffer.getbuffer(), dtype=torch.uint8)


def unpack(packed: torch.Tensor) -> Folder:
    """Return a temporary folder with the packed files; raises InputError if the tensor is damaged or nothing packed."""
    if not isinstance(packed, torch.Tensor) or packed.dtype != torch.uint8:
        raise InputError("the tensor is not a packed bundle", where="the state", hint="take it from `state_dict()`")
    data = packed.cpu().contiguous().numpy().data
    if hashlib.sha256(data[_DIGEST:]).digest() != bytes(data[:_DIGEST]):
        raise InputError("the packed bundle is damaged", where="the state", hint="lower the module again")
    folder = Folder()
    with zipfile.ZipFile(io.BytesIO(data[_DIGEST:])) as archive:
        archive.extractall(folder.path)  # extractall does not leave the folder
    return folder
