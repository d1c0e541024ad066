"""Models and bundles that are elsewhere: brought to a scratch folder for as long as they are needed, and laid down.

A model is its file and the files of its external data. To know its content key, only the former is brought: the data
are hashed as they stream by, and files without content, as long as they, stand in for them (`stand_in`). A bundle whose
place is not this machine's to write to is laid down aside of it, file by file, for the program that leads the batch to
publish as a whole.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import posixpath
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import onnx
from google.protobuf.message import DecodeError, Message  # type: ignore[import-untyped]

from onnx_bridge.bundle.buckets import BucketsManifest, has_buckets
from onnx_bridge.bundle.bundle import manifest_path
from onnx_bridge.bundle.manifest import Manifest
from onnx_bridge.core.atomic_write import synchronize
from onnx_bridge.core.errors import InputError, Unreachable
from onnx_bridge.core.locations import Location, RemotePath, parse_location
from onnx_bridge.model.storage import Source
from onnx_bridge.model.wire_format import Malformed, strip

MANIFEST = "manifest.json"
_CHUNK = 1 << 22
_SHARED = "with --engine ray, {} must be where every node sees it: in a shared folder, or at a URL"


def bring(task: Mapping[str, Any], scratch: contextlib.ExitStack) -> tuple[Path, Path]:
    """Have what a task needs on this machine.

    Args:
        task: as for `onnx_bridge.batch.job_process.perform`.
        scratch: what is closed when it is done.

    Returns:
        The model, and the folder for its bundle, or of it where it is only to be compared.

    Raises:
        InputError: there is no such file, or it may not be read.
        Unreachable: it cannot be had now, or not on this machine.
    """
    source, bundle = parse_location(task["source"]), parse_location(task["bundle"])
    folder = Path(scratch.enter_context(tempfile.TemporaryDirectory(prefix="onnx-bridge-")))
    named = [source, *(task["settings"][name] for name in ("data", "calibration")), *task["passes"]]
    for each in named if task["aside"] is not None else ():  # the program that leads the batch has seen them
        if each is not None and not isinstance(each, RemotePath) and not Path(each).exists():
            raise Unreachable("this machine sees no such file", where=str(each), hint=_SHARED.format("it"))
    if isinstance(source, RemotePath):
        source = fetch(source, folder / "model")
    if task["convert"]:
        return source, folder / "bundle" if task["aside"] is not None else Path(str(bundle))
    if isinstance(bundle, RemotePath):
        fetch_bundle(bundle, folder / "bundle")
        return source, folder / "bundle"
    return source, bundle


def fetch(source: RemotePath, folder: Path) -> Path:
    """Bring a model, with its external data; a file of these that is missing stays so."""
    path = folder / source.name
    source.download(path)
    for name in _external(path):
        with contextlib.suppress(InputError):  # reading the model says so
            (source.parent / name).download(folder / name)
    return path


@contextlib.contextmanager
def stand_in(source: RemotePath) -> Iterator[tuple[Path, str, list[list[str | int]]]]:
    """A model as far as it takes to read all but its external data.

    Yields:
        Its file; the digest of all its content (`onnx_bridge.model.io.digest`); the states of its files.

    Raises:
        InputError: there is no such file, or it may not be read.
        Unreachable: it cannot be had now.
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
                digests.append(_streamed(data))
                (path.parent / name).parent.mkdir(parents=True, exist_ok=True)
                with (path.parent / name).open("wb") as hole:
                    hole.truncate(int(state[1]))
        whole = digests[0].hex() if len(digests) == 1 else hashlib.sha256(b"".join(digests)).hexdigest()
        yield path, whole, [each for each in states if each is not None]


def _streamed(data: RemotePath) -> bytes:
    hashed = hashlib.sha256()
    with data.translated_errors(), data.open() as file:
        while chunk := file.read(_CHUNK):
            hashed.update(chunk)
    return hashed.digest()


def _external(path: Path) -> list[str]:
    """The files of a model's external data, from its folder, in the order of their first mention; none outside it."""
    source = Source(path)
    try:
        model = onnx.ModelProto.FromString(strip(source.memory, source.size).message) if source.size else None
    except (Malformed, DecodeError):  # reading the model says so
        return []
    found = (posixpath.normpath(each) for each in _locations(model)) if model is not None else ()
    return [each for each in dict.fromkeys(found) if each.split("/")[0] not in ("", ".", "..")]


def _locations(message: Message) -> Iterator[str]:
    if isinstance(message, onnx.TensorProto):
        if message.data_location == onnx.TensorProto.EXTERNAL:
            yield from (each.value for each in message.external_data if each.key == "location")
        return
    for field, value in message.ListFields():
        if field.message_type is not None:
            for each in value if field.is_repeated else (value,):
                yield from _locations(each)


def listed(bundle: Path) -> set[str]:
    """The files of a bundle, from its folder; raises InputError where it has no good manifest."""
    if has_buckets(bundle):
        found = BucketsManifest.read(manifest_path(bundle))
        inner = {f"{each.folder}/{name}" for each in found.buckets for name in listed(bundle / each.folder)}
        return {MANIFEST, *(each.file for each in found.files), *map(posixpath.normpath, inner)}
    return {MANIFEST, *(posixpath.normpath(each.file) for each in Manifest.read(manifest_path(bundle)).files)}


def fetch_bundle(bundle: RemotePath, folder: Path) -> None:
    """Bring a bundle; raises InputError where there is none."""
    for name in bundle.files():
        if posixpath.basename(name) == MANIFEST:
            (bundle / name).download(folder / name)
    for name in listed(folder):
        if posixpath.basename(name) != MANIFEST:
            (bundle / name).download(folder / name)


def lay_down(bundle: Path, aside: Location, origin: Location) -> None:
    """Copy a bundle to where the program that leads the batch takes it from.

    Args:
        bundle: its folder.
        aside: a folder that is not there yet.
        origin: the model that it was made from; the manifests say so.

    Raises:
        InputError: it may not be written there.
        Unreachable: it cannot be written now, or not by this machine.
    """
    if isinstance(aside, Path) and not aside.parent.parent.is_dir():
        raise Unreachable("this machine sees no such folder", where=str(aside), hint=_SHARED.format("OUT"))
    stamped = _stamped(bundle, str(origin))
    for path in sorted(each for each in bundle.rglob("*") if each.is_file()):
        name = path.relative_to(bundle).as_posix()
        target = aside / name
        if isinstance(target, RemotePath):
            target.write_bytes(stamped[name]) if name in stamped else target.upload(path)
        else:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(stamped[name]) if name in stamped else shutil.copyfile(path, target)
            synchronize(target)
            synchronize(target.parent)


def _stamped(bundle: Path, origin: str) -> dict[str, bytes]:
    """The manifests of a bundle as those of one that was made from another file; by their paths in it."""
    values = json.loads((bundle / MANIFEST).read_text())
    values["source"]["path"] = origin
    found: dict[str, bytes] = {}
    for each in values.get("buckets", ()):
        inner = _stamped(bundle / each["folder"], origin)
        each["manifest"] = hashlib.sha256(inner[MANIFEST]).hexdigest()
        found |= {f"{each['folder']}/{name}": data for name, data in inner.items()}
    return {**found, MANIFEST: f"{json.dumps(values, indent=2)}\n".encode()}
