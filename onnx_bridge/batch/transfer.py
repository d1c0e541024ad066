"""Transfer of models and bundles between remote locations and this machine.

A model is its file and the files of its external data. To compute its content key, only the former is downloaded: the
data are hashed while they are streamed, and sparse files of the same size take their place (`sparse_copy`). A job that
runs on another machine, or writes to a remote OUT, writes its bundle to a staging folder, file by file; the scheduler
publishes it as a whole.
"""

from __future__ import annotations

import contextlib
import hashlib
import posixpath
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import onnx
from google.protobuf.message import Message  # type: ignore[import-untyped]

from onnx_bridge.batch.events import Task
from onnx_bridge.bundle.manifest.manifest import Manifest
from onnx_bridge.bundle.manifest.text import MANIFEST, manifest_path, resealed
from onnx_bridge.core.errors import InputError, Unreachable
from onnx_bridge.core.files.atomic_write import synchronize
from onnx_bridge.core.files.locations import Location, RemotePath, parse_location
from onnx_bridge.core.files.regular_file import read_regular
from onnx_bridge.core.schema import parse_json
from onnx_bridge.model.message import parse
from onnx_bridge.model.storage import Source
from onnx_bridge.model.wire_format import Malformed, strip

_SHARED_HINT = "with Ray, {} must be where every node sees it: in a shared folder, or at a URL"


def fetch_inputs(task: Task, scratch: contextlib.ExitStack) -> tuple[Path, Path]:
    """Download what a task needs, and return the paths of the model and of the folder of its bundle.

    The folder exists if the bundle is only to be compared. Closing ``scratch`` removes the downloads.

    Raises:
        InputError: a file does not exist, or access is denied.
        Unreachable: a file cannot be read now, or not on this machine.
    """
    source, bundle = parse_location(task.source), parse_location(task.bundle)
    folder = Path(scratch.enter_context(tempfile.TemporaryDirectory(prefix="onnx-bridge-")))
    named = [source, task.request["parity"]["inputs"], task.request["conversion"]["calibration"], *task.passes]
    for file in named if task.staging is not None else ():  # the scheduler's machine has them
        if file is not None and not isinstance(file, RemotePath) and not Path(file).exists():
            raise Unreachable("this machine has no such file", where=str(file), hint=_SHARED_HINT.format("it"))
    if isinstance(source, RemotePath):
        source = fetch(source, folder / "model")
    if task.convert:
        return source, Path(str(bundle)) if task.staging is None else folder / "bundle"
    if isinstance(bundle, RemotePath):
        fetch_bundle(bundle, folder / "bundle")
        return source, folder / "bundle"
    return source, bundle


def fetch(source: RemotePath, folder: Path) -> Path:
    """Download a model with its external data, except missing files of these."""
    path = folder / source.name
    source.download(path)
    for name in _external(path):
        with contextlib.suppress(InputError):  # reading the model reports it
            (source.parent / name).download(folder / name)
    return path


@contextlib.contextmanager
def sparse_copy(source: RemotePath) -> Iterator[tuple[Path, str, list[list[str | int]]]]:
    """Download a model with sparse files, of the right sizes, as its external data.

    Yields:
        Its path; the digest of its whole content (`onnx_bridge.model.io.digest`); the fingerprints of its files.

    Raises:
        InputError: there is no such file, or access is denied.
        Unreachable: it cannot be read now.
    """
    with tempfile.TemporaryDirectory(prefix="onnx-bridge-") as folder:
        path = Path(folder) / source.name
        states = [source.fingerprint()]
        source.download(path)
        with path.open("rb") as file:
            digests = [hashlib.file_digest(file, "sha256").digest()]
        for name in _external(path):
            data = source.parent / name
            states.append(state := data.fingerprint())
            if state is not None:
                digests.append(bytes.fromhex(data.digest()))
                (path.parent / name).parent.mkdir(parents=True, exist_ok=True)
                with (path.parent / name).open("wb") as file:
                    file.truncate(int(state[1]))
        whole = digests[0].hex() if len(digests) == 1 else hashlib.sha256(b"".join(digests)).hexdigest()
        yield path, whole, [state for state in states if state is not None]


def _external(path: Path) -> list[str]:
    """Return a model's files of external data, relative to its folder, in order of use; none outside the folder."""
    source = Source(path)
    try:
        model = parse(strip(source.memory, source.size).message) if source.size else None
    except Malformed:  # reading the model reports it
        return []
    names = (posixpath.normpath(location) for location in _locations(model)) if model is not None else ()
    return [name for name in dict.fromkeys(names) if name.split("/")[0] not in ("", ".", "..")]


def _locations(message: Message) -> Iterator[str]:
    if isinstance(message, onnx.TensorProto):
        if message.data_location == onnx.TensorProto.EXTERNAL:
            yield from (entry.value for entry in message.external_data if entry.key == "location")
        return
    for field, value in message.ListFields():
        if field.message_type is not None:
            for part in value if field.is_repeated else (value,):
                yield from _locations(part)


def bundle_files(bundle: Path) -> set[str]:
    """Return the files of a bundle, relative to its folder; raises InputError if it has no valid manifest."""
    return {MANIFEST, *(posixpath.normpath(file.file) for file in Manifest.read(manifest_path(bundle)).files)}


def fetch_bundle(bundle: RemotePath, folder: Path) -> None:
    """Download a bundle; raises InputError if there is none."""
    for name in bundle.files():
        if posixpath.basename(name) == MANIFEST:
            (bundle / name).download(folder / name)
    for name in bundle_files(folder):
        if posixpath.basename(name) != MANIFEST:
            (bundle / name).download(folder / name)


def stage_bundle(bundle: Path, staging: Location, source: Location) -> None:
    """Copy a bundle to a staging folder that does not exist yet; its manifests name ``source`` instead of a local copy.

    Raises:
        InputError: access is denied.
        Unreachable: it cannot be written now, or not by this machine.
    """
    if isinstance(staging, Path) and not staging.parent.parent.is_dir():
        raise Unreachable("this machine has no such folder", where=str(staging), hint=_SHARED_HINT.format("OUT"))
    manifests = _manifests(bundle, str(source))
    for path in sorted(path for path in bundle.rglob("*") if path.is_file()):
        name = path.relative_to(bundle).as_posix()
        target = staging / name
        if isinstance(target, RemotePath):
            target.write_bytes(manifests[name]) if name in manifests else target.upload(path)
        else:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(manifests[name]) if name in manifests else shutil.copyfile(path, target)
            synchronize(target, target.parent)


def _manifests(bundle: Path, source: str) -> dict[str, bytes]:
    """Return the manifests of a bundle by relative path, with another path of the source."""
    values = parse_json(read_regular(bundle / MANIFEST))
    values["source"]["path"] = source
    manifests: dict[str, bytes] = {}
    for program in values["programs"]:
        if folder := program["folder"]:
            text = _manifests(bundle / folder, source)[MANIFEST]
            program["manifest"] |= {"bytes": len(text), "sha256": hashlib.sha256(text).hexdigest()}
            manifests[f"{folder}/{MANIFEST}"] = text
    return {**manifests, MANIFEST: resealed(values)}
