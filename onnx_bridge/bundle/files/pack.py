"""A bundle packed into one file: the verbs ``pack`` and ``unpack``.

The file is an uncompressed tar archive, its manifest first: any tool unpacks it, and weights hardly compress. Packing
the same bundle gives the same bytes. MIGraphX reads programs from files of their own, so that a packed bundle is
unpacked into the cache folder when it is first loaded, once for all processes. Its folder there is named by the digest
of the whole file, and verified at each use: nothing that another file unpacks to takes its place.
"""

from __future__ import annotations

import os
import shutil
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from filelock import FileLock

from onnx_bridge.bundle.files.archive import FIRST, is_packed, members, opened
from onnx_bridge.bundle.files.sessions import session_files
from onnx_bridge.bundle.files.verify import bytes_on_disk, verify
from onnx_bridge.bundle.manifest.manifest import Manifest
from onnx_bridge.bundle.manifest.text import manifest_path
from onnx_bridge.core.countdown import ByteCountdown
from onnx_bridge.core.errors import BridgeError, InputError
from onnx_bridge.core.files.atomic_write import AtomicFiles
from onnx_bridge.core.files.digest import file_digest
from onnx_bridge.core.files.user_cache import cache_dir
from onnx_bridge.core.progress import Progress
from onnx_bridge.core.schema import JsonRecord

SUFFIX = ".onnxbridge"
"""The suffix of a packed bundle."""


@dataclass(frozen=True)
class Packed(JsonRecord):
    """The result of `pack` or `unpack`.

    Attributes:
        path: the file, or the folder.
        files: the number of files in it.
        bytes: their total size.
    """

    path: Path
    files: int
    bytes: int


def pack(bundle: str | os.PathLike[str], out: str | os.PathLike[str], *, progress: Progress | None = None) -> Packed:
    """Pack a bundle into one file, atomically.

    Args:
        bundle: its folder, or its program (``.mxr``).
        out: the file; its name ends in ``.onnxbridge``, or in ``.tar``.
        progress: is called with a line now and then.

    Raises:
        InputError: there is no bundle, it is damaged, or the file cannot be written.
    """
    bundle, out = Path(bundle), Path(out)
    is_named = out.suffix in (SUFFIX, ".tar")
    if not is_named or out.is_dir() or (out.exists() and not is_packed(out)):
        what = "this exists already" if is_named else "a packed bundle is an uncompressed tar archive"
        raise InputError(what, where=str(out), hint=f"give another name, for example {bundle.stem}{SUFFIX}")
    verification = verify(bundle, here=False, progress=progress)
    if verification.problems:
        name, what = next(iter(verification.problems.items()))
        raise InputError(f"the bundle is damaged: {name}: {what}", where=str(bundle), hint="convert again")
    if outside := [name for name in verification.files if ".." in PurePosixPath(name).parts]:
        what = f"{outside[0]} is not in this folder: buckets share their weights"
        raise InputError(what, where=str(bundle), hint=f"pack all buckets: {bundle.parent}")
    contents = {**verification.files, **session_files(bundle, Manifest.read(manifest_path(bundle)))}
    countdown = ByteCountdown(progress, "packing", sum(path.stat().st_size for path in contents.values()))
    try:
        with AtomicFiles() as files, os.fdopen(os.dup(files.create(out)), "wb") as file:
            with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as archive:
                for index, (name, path) in enumerate(contents.items()):
                    entry = tarfile.TarInfo(name if index else FIRST)
                    entry.size, entry.mode = path.stat().st_size, 0o644
                    with countdown.open(path) as content:
                        archive.addfile(entry, content)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise InputError(f"the file cannot be written: {error.strerror or error}", where=str(out)) from error
    return Packed(out, len(contents), sum(path.stat().st_size for path in contents.values()))


def unpack(packed: str | os.PathLike[str], out: str | os.PathLike[str], *, progress: Progress | None = None) -> Packed:
    """Unpack a bundle into a folder, atomically, and verify it.

    Args:
        packed: what `pack` wrote.
        out: the folder, which must not exist, or be empty.
        progress: is called with a line now and then.

    Raises:
        InputError: it is not a packed bundle, it is damaged, or the folder cannot be written.
    """
    packed, out = Path(packed), Path(out)
    if not is_packed(packed):
        what = "this is not a packed bundle" if packed.exists() else "the file does not exist"
        raise InputError(what, where=str(packed), hint="`onnx-bridge pack BUNDLE -o NAME.onnxbridge` makes one")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InputError("this exists already", where=str(out), hint="give a new folder")
    countdown = ByteCountdown(progress, "unpacking", bytes_on_disk(packed))
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".unpacking-", dir=out.parent) as name:
            folder = Path(name) / "bundle"
            with opened(packed) as archive:
                for entry in members(archive, packed):
                    target = folder / entry.name
                    target.parent.mkdir(parents=True, exist_ok=True)
                    content = archive.extractfile(entry)
                    assert content is not None
                    with target.open("xb") as file:
                        while chunk := content.read(1 << 20):
                            countdown.count(file.write(chunk))
            verification = verify(folder, here=False, progress=progress)
            if verification.problems:
                file_name, what = next(iter(verification.problems.items()))
                what = f"the bundle is damaged: {file_name}: {what}"
                raise InputError(what, where=str(packed), hint="copy or pack it again")
            folder.rename(out)
    except OSError as error:
        if isinstance(error, BridgeError):
            raise
        raise InputError(f"the bundle cannot be unpacked: {error.strerror or error}", where=str(out)) from error
    return Packed(out, len(verification.files), verification.bytes)


def unpacked(path: str | os.PathLike[str]) -> Path:
    """Return the path of a bundle's files; a packed bundle is unpacked into the cache folder unless it is there.

    Raises InputError if it is damaged, or cannot be unpacked.
    """
    path = Path(path)
    if not is_packed(path):
        return path
    try:
        folder = cache_dir() / "bundles" / file_digest(path)
        folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{folder}.lock"):
            if folder.exists() and not ((folder / FIRST).exists() and not verify(folder, here=False).problems):
                shutil.rmtree(folder)
            if not folder.exists():
                unpack(path, folder)
            os.utime(folder)  # the time of its last use
    except OSError as error:
        if isinstance(error, BridgeError):
            raise
        raise InputError(f"the bundle cannot be unpacked: {error.strerror or error}", where=str(path)) from error
    return folder
