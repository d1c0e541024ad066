"""Replacing a bundle as a whole: its files are written to a staging folder, and then moved into place."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import onnx_ir as ir

from onnx_bridge.bundle.manifest import SHARED, Manifest, is_manifest, manifest_path
from onnx_bridge.core.errors import BridgeError, InputError


@contextlib.contextmanager
def staging_folder(out: Path) -> Iterator[Path]:
    """A temporary folder on the file system of ``out``; ``out`` is locked meanwhile.

    Raises:
        InputError: another conversion into ``out`` is running, ``out`` is of the wrong kind, or nothing can be written.
    """
    parent = out.parent if out.suffix == ".mxr" else out
    created: list[Path] = []
    try:
        if out.exists() and out.is_dir() == (out.suffix == ".mxr"):
            kind = "a folder" if out.is_dir() else "a file"
            raise InputError(f"this is {kind}", where=str(out), hint="give a folder, or a name ending in .mxr")
        created += [each for each in (parent, *parent.parents) if not each.exists()]
        parent.mkdir(parents=True, exist_ok=True)
        with contextlib.ExitStack() as stack:
            if parent == out:
                stack.enter_context(_lock(parent))
                for stale in parent.glob(".converting-*"):  # left by a conversion that was killed
                    with contextlib.suppress(InputError), _lock(stale):  # or in use, for a single program
                        shutil.rmtree(stale, ignore_errors=True)
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=".converting-", dir=parent)))
            stack.enter_context(_lock(folder))
            yield folder
    except BaseException as error:
        for each in created:
            with contextlib.suppress(OSError):
                each.rmdir()
        if isinstance(error, OSError) and not isinstance(error, BridgeError):
            reason = error.strerror or str(error)
            raise InputError(f"the bundle cannot be written: {reason}", where=str(out)) from error
        raise


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
    """Replace an earlier bundle by the files in a staging folder: the manifest is moved first, programs last.

    A process that is killed in between leaves a manifest that marks the files as a bundle's, and that describes files
    that are missing, so that the bundle is not mistaken for a complete one.
    """
    place = manifest_path(out)
    manifest.write(folder / place.name)
    with contextlib.suppress(BridgeError):
        if place.exists():
            for each in Manifest.read(place).files:
                if not each.file.startswith(SHARED):  # other buckets may need those
                    (place.parent / each.file).unlink(missing_ok=True)
    for name in (place.name, *(each.file for each in manifest.files if not each.file.startswith(SHARED))):
        (folder / name).replace(place.parent / name)


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
        InputError: it cannot be written, or would overwrite other files.
    """
    old = Manifest.read(manifest_path(bundle))
    files = [each.file for each in old.files]
    manifest = replace(old, name=source.stem, source={**old.source, "path": str(source.absolute())})
    with staging_folder(out) as folder:
        refuse_to_overwrite([out / each for each in files], source, out)
        data = {each.file for each in old.model[1:]}
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
