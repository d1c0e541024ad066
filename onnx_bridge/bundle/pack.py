"""A bundle in one file, which is loaded as it is.

The file is an uncompressed tar archive, its manifest first: any tool unpacks it, and weights hardly shrink. The same
bundle always gives the same bytes. MIGraphX reads programs from files of their own, so a packed bundle is unpacked into
the cache folder when it is first loaded, whole and checked, once for all processes; it is found there by its manifest,
which names the content of every file.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from filelock import FileLock

from onnx_bridge.core.atomic_write import AtomicFiles
from onnx_bridge.core.errors import BridgeError, InputError
from onnx_bridge.core.user_cache import cache_dir

if TYPE_CHECKING:
    from rich.text import Text

_FIRST = "manifest.json"
_BLOCK = 512


@dataclass(frozen=True)
class Packed:
    """What `pack` or `unpack` wrote.

    Attributes:
        path: the file, or the folder.
        files: how many are in it.
        bytes: of all of them.
    """

    path: Path
    files: int
    bytes: int

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return {"path": str(self.path), "files": self.files, "bytes": self.bytes}

    def render(self) -> Text:
        """In a line."""
        from rich.text import Text

        return Text(f"{self.path}: {self.files} files, {self.bytes / 2**20:.3g} MiB")


def is_packed(path: str | os.PathLike[str]) -> bool:
    """Whether a file is a packed bundle."""
    try:
        if not Path(path).is_file():
            return False
        with Path(path).open("rb") as file:
            head = file.read(_BLOCK)
    except OSError:
        return False
    return head.startswith(_FIRST.encode() + b"\0") and head[257:262] == b"ustar"


def pack(bundle: str | os.PathLike[str], out: str | os.PathLike[str]) -> Packed:
    """Pack a bundle into one file, which appears whole or not at all.

    Args:
        bundle: its folder, or its program (``.mxr``).
        out: the file; by custom its name ends in ``.onnxbridge``.

    Raises:
        InputError: there is no bundle, it is damaged, or the file cannot be written.
    """
    from onnx_bridge.bundle.verify import verify

    bundle, out = Path(bundle), Path(out)
    if out.suffix == ".mxr" or out.is_dir() or (out.exists() and not is_packed(out)):
        what = "this would be taken for a program" if out.suffix == ".mxr" else "this is there already"
        raise InputError(what, where=str(out), hint="give another name, for example NAME.onnxbridge")
    found = verify(bundle, here=False)
    if found.problems:
        name, what = next(iter(found.problems.items()))
        raise InputError(f"the bundle is damaged: {name}: {what}", where=str(bundle), hint="convert again")
    if outside := [name for name in found.files if ".." in PurePosixPath(name).parts]:
        what = f"{outside[0]} is not in this folder: buckets share their weights"
        raise InputError(what, where=str(bundle), hint=f"pack all buckets: {bundle.parent}")
    try:
        with AtomicFiles() as files, os.fdopen(os.dup(files.create(out)), "wb") as file:
            with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as archive:
                for index, (name, path) in enumerate(found.files.items()):
                    entry = tarfile.TarInfo(name if index else _FIRST)
                    entry.size, entry.mode = path.stat().st_size, 0o644
                    with path.open("rb") as content:
                        archive.addfile(entry, content)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise InputError(f"it cannot be written: {error.strerror or error}", where=str(out)) from error
    return Packed(out, len(found.files), found.bytes)


def unpack(packed: str | os.PathLike[str], out: str | os.PathLike[str]) -> Packed:
    """Unpack a bundle into a folder, which appears whole, and checked, or not at all.

    Args:
        packed: what `pack` wrote.
        out: the folder, which must not be there, or be empty.

    Raises:
        InputError: it is no packed bundle, it is damaged, or the folder cannot be written.
    """
    from onnx_bridge.bundle.verify import verify

    packed, out = Path(packed), Path(out)
    if not is_packed(packed):
        what = "this is no packed bundle" if packed.exists() else "there is no such file"
        raise InputError(what, where=str(packed), hint="`onnx-bridge pack BUNDLE -o NAME.onnxbridge` makes one")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InputError("this is there already", where=str(out), hint="give a new folder")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".unpacking-", dir=out.parent) as name:
            made = Path(name) / "bundle"
            with opened(packed) as archive:
                for entry in members(archive, packed):
                    target = made / entry.name
                    target.parent.mkdir(parents=True, exist_ok=True)
                    content = archive.extractfile(entry)
                    assert content is not None
                    with target.open("xb") as file:
                        shutil.copyfileobj(content, file, 1 << 20)
            found = verify(made, here=False)
            if found.problems:
                file_name, what = next(iter(found.problems.items()))
                raise InputError(f"it is damaged: {file_name}: {what}", where=str(packed), hint="copy or pack it again")
            made.rename(out)
    except OSError as error:
        if isinstance(error, BridgeError):
            raise
        raise InputError(f"it cannot be unpacked: {error.strerror or error}", where=str(out)) from error
    return Packed(out, len(found.files), found.bytes)


def home(path: str | os.PathLike[str]) -> Path:
    """Where the files of a bundle are: a packed one is unpacked into the cache folder, unless it is there already.

    Raises:
        InputError: it is damaged, or cannot be unpacked.
    """
    path = Path(path)
    if not is_packed(path):
        return path
    with opened(path) as archive:
        first = archive.extractfile(next(members(archive, path)))
        assert first is not None
        key = hashlib.sha256(first.read()).hexdigest()
    folder = cache_dir() / "bundles" / key
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{folder}.lock"):
            if not (folder / _FIRST).exists():
                unpack(path, folder)
            os.utime(folder)  # when it was last used
    except OSError as error:
        if isinstance(error, BridgeError):
            raise
        raise InputError(f"it cannot be unpacked: {error.strerror or error}", where=str(folder)) from error
    return folder


@contextmanager
def opened(packed: Path) -> Iterator[tarfile.TarFile]:
    """A packed bundle, to be read; raises InputError where it is cut short."""
    try:
        with tarfile.open(packed, "r:") as archive:
            yield archive
    except (tarfile.TarError, EOFError) as error:
        raise InputError(f"it is damaged: {error}", where=str(packed), hint="copy or pack it again") from error


def members(archive: tarfile.TarFile, packed: Path) -> Iterator[tarfile.TarInfo]:
    """The files in it; raises InputError for what `pack` does not write, as links and paths that lead out of it."""
    for entry in archive:
        name = PurePosixPath(entry.name)
        if not entry.isreg() or name.is_absolute() or ".." in name.parts:
            what = f"{entry.name!r} in it is no file of a bundle"
            raise InputError(what, where=str(packed), hint="it was not made by `onnx-bridge pack`")
        yield entry
