"""Putting a bundle in its place: all of it is written aside, and then moved."""

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

from onnx_bridge.bundle.bundle import manifest_path
from onnx_bridge.bundle.manifest import SHARED, Manifest, is_manifest
from onnx_bridge.core.errors import BridgeError, InputError


@contextlib.contextmanager
def aside(out: Path) -> Iterator[Path]:
    """A folder beside the files to come, on the same disk; gone afterwards. One conversion at a time into a folder."""
    home = out.parent if out.suffix == ".mxr" else out
    made: list[Path] = []
    try:
        if out.exists() and out.is_dir() == (out.suffix == ".mxr"):
            kind = "a folder" if out.is_dir() else "a file"
            raise InputError(f"this is {kind} already", where=str(out), hint="give a folder, or a name ending in .mxr")
        made += [each for each in (home, *home.parents) if not each.exists()]
        home.mkdir(parents=True, exist_ok=True)
        with contextlib.ExitStack() as stack:
            if home == out:
                stack.enter_context(_lock(home))
                for stale in home.glob(".converting-*"):  # left by a conversion that was killed
                    with contextlib.suppress(InputError), _lock(stale):  # or in use, for a program alone
                        shutil.rmtree(stale, ignore_errors=True)
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=".converting-", dir=home)))
            stack.enter_context(_lock(folder))
            yield folder
    except BaseException as error:
        for each in made:  # leave nothing where there was nothing
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
                "another conversion into this folder is under way", where=str(folder), hint="wait for it to end"
            ) from None
        except OSError as error:
            if error.errno not in (errno.EBADF, errno.ENOLCK, errno.EOPNOTSUPP):
                raise  # those say that the file system (NFS) has no such locks: better none than no conversion
        yield
    finally:
        os.close(descriptor)


def publish(out: Path, folder: Path, manifest: Manifest) -> None:
    """Move the files to their place: those of an earlier bundle go, then the manifest comes, and the programs last.

    In between, or after a kill in between, a manifest is there, which says that all this is a bundle's, and describes a
    file that is not, so that nobody takes it for a whole one.
    """
    place = manifest_path(out)
    manifest.write(folder / place.name)
    with contextlib.suppress(BridgeError):
        if place.exists():
            for each in Manifest.read(place).files:
                if not each.file.startswith(SHARED):  # which other buckets may take their weights from
                    (place.parent / each.file).unlink(missing_ok=True)
    for name in (place.name, *(each.file for each in manifest.files if not each.file.startswith(SHARED))):
        (folder / name).replace(place.parent / name)


def keep_off(wanted: Sequence[Path], model: str | os.PathLike[str] | ir.Model, out: Path) -> None:
    """Refuse to put a file in the place of the model itself, or of one that no earlier conversion made."""
    a_bundle = is_manifest(manifest_path(out))
    for path in filter(Path.exists, wanted):
        if not isinstance(model, ir.Model) and Path(model).exists() and path.samefile(model):
            what = "the bundle would overwrite the model that it is made from"
        elif path != out and not a_bundle:
            what = "there is a file already that no conversion made, and that the bundle would overwrite"
        else:
            continue
        raise InputError(what, where=str(path), hint="give another folder, or a name ending in .mxr")


def adopt(bundle: Path, out: Path, source: Path) -> Manifest:
    """Put a bundle into another folder too, as that of another file with the same content.

    Files are linked, but for external data: onnx refuses to load it from a file of several names.

    Args:
        bundle: the folder of a whole bundle.
        out: the other folder.
        source: the model that it is to be the bundle of.

    Raises:
        InputError: it cannot be written, or there is something else.
    """
    old = Manifest.read(manifest_path(bundle))
    files = [each.file for each in old.files]
    manifest = replace(old, name=source.stem, source={**old.source, "path": str(source.absolute())})
    with aside(out) as folder:
        keep_off([out / each for each in files], source, out)
        data = {each.file for each in old.model[1:]}
        for name in files:
            (shutil.copyfile if name in data else link)(bundle / name, folder / name)
        publish(out, folder, manifest)
    return manifest


def link(source: Path, target: Path) -> None:
    """Have a file under a second name; copied where the file system has no links, or no more of them."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
