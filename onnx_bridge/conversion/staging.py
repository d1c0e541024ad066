"""Replacing a bundle as a whole: its files are written to a staging folder, and then moved into place."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path, PurePath

import onnx_ir as ir

from onnx_bridge.bundle.files.sessions import is_for_sessions, keep_programs
from onnx_bridge.bundle.manifest.manifest import Manifest
from onnx_bridge.bundle.manifest.text import MANIFEST, is_manifest, manifest_path, with_previous
from onnx_bridge.core.errors import BridgeError, InputError
from onnx_bridge.core.files.atomic_write import exchange

UNFINISHED = ".unfinished"
"""The folder in which buckets are converted (`onnx_bridge.conversion.programs.bucket_staging`)."""
_STAGING = ".converting-"
"""The prefix of the names of staging folders."""


@contextlib.contextmanager
def staging_folder(out: Path) -> Iterator[Path]:
    """Yield a temporary folder on the file system of ``out``; ``out`` is locked meanwhile.

    Raises:
        InputError: another conversion into ``out`` is running, ``out`` is of the wrong kind, or nothing can be written.
    """
    parent = out.parent if out.suffix == ".mxr" else out
    created: list[Path] = []
    try:
        if out.exists() and out.is_dir() == (out.suffix == ".mxr"):
            kind = "a folder" if out.is_dir() else "a file"
            raise InputError(f"this is {kind}", where=str(out), hint="give a folder, or a name ending in .mxr")
        created += [path for path in (parent, *parent.parents) if not path.exists()]
        parent.mkdir(parents=True, exist_ok=True)
        with contextlib.ExitStack() as stack:
            if parent == out:
                stack.enter_context(_lock(parent))
                sweep(out)
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=_STAGING, dir=parent)))
            stack.enter_context(_lock(folder))
            yield folder
    except BaseException as error:
        for path in created:
            with contextlib.suppress(OSError):
                path.rmdir()
        if isinstance(error, OSError) and not isinstance(error, BridgeError):
            reason = error.strerror or str(error)
            raise InputError(f"the bundle cannot be written: {reason}", where=str(out)) from error
        raise


def sweep(out: Path) -> None:
    """Remove what conversions into a folder left that were killed; of those that are running nothing."""
    place = out.resolve()
    prefix = _STAGING + place.name
    beside = (Path(entry) for entry in os.scandir(place.parent) if entry.name.startswith(prefix))
    for stale in (*out.glob(f"{_STAGING}*"), *beside):
        with contextlib.suppress(InputError, OSError), _lock(stale):
            shutil.rmtree(stale, ignore_errors=True)


@contextlib.contextmanager
def _lock(folder: Path) -> Iterator[None]:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(
                "another conversion into this folder is running", where=str(folder), hint="wait until it has finished"
            ) from None
        except OSError as error:
            if error.errno not in (errno.EBADF, errno.ENOLCK, errno.EOPNOTSUPP):
                raise  # a file system without locks (NFS) is accepted
        yield
    finally:
        os.close(descriptor)


def move_into_place(out: Path, folder: Path, manifest: Manifest) -> None:
    """Replace an earlier bundle by the files in a staging folder, which is gone then.

    At every instant there is the whole of the earlier bundle or of the new one, also if the process is killed: folders
    are exchanged by one rename (`move_folder`); the manifest of a single program describes both programs while it is
    replaced.
    """
    place = manifest_path(out)
    manifest.write(folder / place.name)
    if out.suffix == ".mxr":
        if is_manifest(place):
            (folder / "both").write_bytes(with_previous(folder / place.name, place))
            (folder / "both").replace(place)
        for name in (*(file.file for file in manifest.files), place.name):
            (folder / name).replace(place.parent / name)
    else:
        move_folder(out, folder)


def move_folder(out: Path, folder: Path) -> None:
    """Replace an earlier bundle by a folder inside of it that holds the new one, and is gone then.

    They are exchanged by one rename. If that is impossible, files and folders are moved one by one, the manifest first,
    so that a bundle moved in part proves to be damaged.
    """
    keep_programs(out, folder)
    if _exchange(out, folder):
        return
    for name in _own_entries(out) - {MANIFEST, folder.name}:
        if (out / name).is_dir():
            shutil.rmtree(out / name)
        else:
            (out / name).unlink(missing_ok=True)
    for path in sorted(folder.iterdir(), key=lambda path: path.name != MANIFEST):
        path.replace(out / path.name)


def _own_entries(out: Path) -> set[str]:
    """Return the files and folders of a bundle in its folder, with its manifest, and with leftovers of earlier ones."""
    own = {MANIFEST, UNFINISHED}
    with contextlib.suppress(BridgeError):
        manifest = Manifest.read(out / MANIFEST)
        own |= {PurePath(file.file).parts[0] for file in manifest.files} - {".."}
        if manifest.request.application is not None:
            names = [path.name for path in out.iterdir()]
            own |= {name for name in names if is_for_sessions(name) or is_for_sessions(f"{name}/")}
    return own


def _exchange(out: Path, folder: Path) -> bool:
    """Exchange a bundle with a folder inside of it, which takes the user's files in the bundle along as links.

    Returns:
        True if that was possible: the user has no folders in it, this process does not work there, the parent is
        writable, and the file system can exchange folders.
    """
    own, place = _own_entries(out), out.resolve()
    others = [path for path in place.iterdir() if path.name not in own and not path.name.startswith(_STAGING)]
    if Path.cwd().is_relative_to(place) or any(path.is_dir() and not path.is_symlink() for path in others):
        return False
    new = place.with_name(f"{_STAGING}{place.name}-{secrets.token_hex(4)}")
    try:
        folder.rename(new)
    except OSError:
        return False
    try:
        for other in others:
            if not (new / other.name).exists():
                os.link(other, new / other.name, follow_symlinks=False)
        new.chmod(place.stat().st_mode & 0o7777)
        exchanged = exchange(new, place)
    except OSError:
        exchanged = False
    if exchanged:
        shutil.rmtree(new, ignore_errors=True)
    else:
        new.rename(folder)
    return exchanged


def refuse_to_overwrite(paths: Sequence[Path], model: str | os.PathLike[str] | ir.Model, out: Path) -> None:
    """Refuse to overwrite the model itself, or a file that no conversion wrote; raises InputError."""
    is_bundle = is_manifest(manifest_path(out))
    for path in filter(Path.exists, paths):
        if not isinstance(model, ir.Model) and Path(model).exists() and path.samefile(model):
            what = "the bundle would overwrite the model that is converted"
        elif path != out and not is_bundle:
            what = "the bundle would overwrite a file that no conversion wrote"
        else:
            continue
        raise InputError(what, where=str(path), hint="give another folder, or a name ending in .mxr")


def adopt(bundle: Path, out: Path, source: Path) -> Manifest:
    """Copy a bundle, as the bundle of another model file with the same content.

    Files are hard links, except for external data, which onnx refuses to load from a file with several links.

    Args:
        bundle: the folder of a complete bundle.
        out: the folder of the copy.
        source: the other model file.

    Raises:
        InputError: the copy cannot be written, or would overwrite other files.
    """
    old = Manifest.read(manifest_path(bundle))
    files = [file.file for file in old.program.files]
    manifest = replace(old, name=source.stem, source={**old.source, "path": str(source.absolute())})
    with staging_folder(out) as folder:
        refuse_to_overwrite([out / file for file in files], source, out)
        data = {file.file for file in old.program.model[1:]}
        for name in files:
            (shutil.copyfile if name in data else link)(bundle / name, folder / name)
        move_into_place(out, folder, manifest)
    return manifest


def link(source: Path, target: Path) -> None:
    """Link a file to a second name; copy it if the file system has no hard links, or no more of them."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
