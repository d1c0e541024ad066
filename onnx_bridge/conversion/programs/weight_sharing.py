"""Sharing the large weights of several cleaned models in one file.

    NAME.onnx.data                     every large weight, once, aligned to pages
    NAME.onnx  batch=1.onnx  …         external data in it
    batch=1/NAME.mxr  manifest.json    which names the model ../batch=1.onnx

External data must be in the folder of its model, and must not be a link: ONNX requires both (its checker rejects hard
links as well as symbolic ones), so that all models are beside the weights, not in the folders of their buckets. Weights
are identified by their elements, not by their names. Other weights of a model stay in its own file. Programs
(``.mxr``) are not changed: MIGraphX writes weights into them, in layouts that differ between programs.
"""

from __future__ import annotations

import glob
import hashlib
import os
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import onnx_ir as ir

from onnx_bridge.bundle.manifest.entries import FileInfo
from onnx_bridge.bundle.manifest.manifest import SHARED, Manifest
from onnx_bridge.bundle.manifest.text import manifest_path
from onnx_bridge.conversion.staging import link, move_into_place, staging_folder
from onnx_bridge.core.files.atomic_write import AtomicFiles
from onnx_bridge.model import io as models
from onnx_bridge.model.storage import elements, packed_size
from onnx_bridge.model.wire_format import LIMIT, Payload
from onnx_bridge.model.writer import serialize

_PAGE = 4096
"""The alignment of weights, for mapping; smaller weights stay in their models."""
_WORTH = 1 << 16
"""The smallest size of a file of shared weights, in bytes."""


class SharedWeights:
    """A file of weights, written if there is enough to share, and the models that share them."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._places: dict[str, tuple[int, int]] = {}
        self._info: FileInfo | None = None

    def gather(self, sharing: Iterable[ir.Model]) -> None:
        """Write the large weights of some models, each once, unless the file has exactly these; raises OSError."""
        payloads: dict[str, Payload] = {}
        for tensor in (weight for model in sharing for weight in _weights(model)):
            mine: Payload = elements(tensor)
            payloads.setdefault(_digest(mine), mine)
        end = 0
        for digest, payload in payloads.items():
            self._places[digest] = end, payload.nbytes
            end = -(-(end + payload.nbytes) // _PAGE) * _PAGE
        if end < _WORTH:
            self._places = {}
            self._path.unlink(missing_ok=True)
            return
        if not self._is_there():
            with AtomicFiles() as files:
                file = files.create(self._path)
                for digest, payload in payloads.items():
                    os.lseek(file, self._places[digest][0], os.SEEK_SET)
                    payload.write(file)
        self._info = FileInfo.of(self._path)

    def _is_there(self) -> bool:
        """Return whether the file has all weights at their offsets."""
        try:
            with self._path.open("rb") as file:
                return all(
                    hashlib.sha256(os.pread(file.fileno(), count, at)).hexdigest() == digest
                    for digest, (at, count) in self._places.items()
                )
        except OSError:
            return False

    def save(self, model: ir.Model, path: Path) -> bool:
        """Write a model beside the weights; return False if it shares none, or is too large without them."""
        shared = False

        def place(_value: ir.Value, tensor: ir.TensorProtocol) -> dict[str, str] | None:
            nonlocal shared
            span = self._places.get(_digest(elements(tensor))) if _is_large(tensor) else None
            if span is None:
                return None
            shared = True
            return {"location": self._path.name, "offset": str(span[0]), "length": str(span[1])}

        message = serialize(model, place) if self._info else None
        if message is None or not shared or message.size >= LIMIT:
            return False
        with AtomicFiles() as files:
            message.write(files.create(path))
        return True

    def share(self, bundle: Path, model: ir.Model) -> None:
        """Move the cleaned model of a bundle, loaded before the weights changed, beside them; raises InputError."""
        manifest = Manifest.read(manifest_path(bundle))
        path = bundle.with_name(f"{bundle.name}.onnx")
        with staging_folder(bundle) as folder:
            if self._info is not None and self.save(model, path):
                if manifest.request.application is not None:
                    path = self._named_by_content(path)
                files = tuple(replace(file, file=f"{SHARED}{file.file}") for file in (FileInfo.of(path), self._info))
            elif manifest.program.model[0].file.startswith(SHARED):
                models.save(model, folder / f"{manifest.name}.onnx")
                files = tuple(map(FileInfo.of, sorted(folder.iterdir())))
            else:
                return
            for file in manifest.files:
                if file not in manifest.model:
                    link(bundle / file.file, folder / file.file)
            program = replace(manifest.program, model=files)
            move_into_place(bundle, folder, replace(manifest, model=files, programs=(program,)))

    def _named_by_content(self, path: Path) -> Path:
        """Rename a model by its content and the shared weights: the provider names programs by the name alone."""
        assert self._info is not None
        digest = hashlib.sha256(f"{FileInfo.of(path).sha256}{self._info.sha256}".encode()).hexdigest()[:12]
        for old in path.parent.glob(f"{glob.escape(path.stem)}-*.onnx"):
            old.unlink()
        return path.rename(path.with_stem(f"{path.stem}-{digest}"))


def _weights(model: ir.Model) -> Iterator[ir.TensorProtocol]:
    for graph in (model.graph, *model.graph.subgraphs()):
        for value in graph.initializers.values():
            if value.const_value is not None and _is_large(value.const_value):
                yield value.const_value


def _is_large(tensor: ir.TensorProtocol) -> bool:
    return tensor.dtype != ir.DataType.STRING and packed_size(tensor.dtype, tensor.size) >= _PAGE


def _digest(payload: Payload) -> str:
    return hashlib.sha256(payload.view().data).hexdigest()
