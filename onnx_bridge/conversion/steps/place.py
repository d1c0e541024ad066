"""Step 3 of a conversion for ONNX Runtime: place the nodes, and let the provider name, compile and find its programs.

The provider names a program by the name of the model's file, by names of values and by shapes; not by weights, nor by
operators. So the name of the file has a digest of its content: another model never finds the programs of this one.
"""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

import onnx_ir as ir

from onnx_bridge.bundle.manifest.entries import FileInfo, SessionInfo, TensorInfo
from onnx_bridge.conversion.compiling.partition import Partitioned
from onnx_bridge.conversion.serving.placing import Placed, place
from onnx_bridge.conversion.steps.clean import CleanedModel
from onnx_bridge.conversion.steps.compile import Compiled
from onnx_bridge.core.errors import InputError
from onnx_bridge.core.files.digest import file_digest
from onnx_bridge.core.progress import Stage
from onnx_bridge.model import io as models
from onnx_bridge.provider.provider import CACHE_OPTION, Provider, SessionOptions
from onnx_bridge.samples.inputs import Sample
from onnx_bridge.samples.suitable import suitable
from passes.graphs.cost import estimate
from passes.graphs.scopes import required_inputs
from passes.graphs.traversal import with_nested
from passes.probing.partition import Partition, Partitioning, Side, is_constant

_DIGITS = 12


def place_for(provider: Provider, cleaned: CleanedModel) -> Compiled:
    """Place the nodes of a cleaned model, write it under its final name, and count the programs of its sessions.

    Raises:
        InputError: ONNX Runtime does not run the model even on the CPU.
        ProviderError, NativeFailure: the sessions fail, though they were right before.
    """
    conversion = cleaned.plan
    with conversion.stopwatch(Stage.COMPILE):
        placed = place(cleaned.model, cleaned.verdicts, provider, _samples(cleaned))
        model = placed.model
        cleaned = replace(cleaned, model=model)
        for file in cleaned.files:
            (conversion.folder / file.result().file).unlink()
        path = _written(conversion.folder, conversion.source.name, cleaned)
        files = [path, *sorted(file for file in conversion.folder.glob("*.onnx.data"))]
        session = _session_info(provider, path)
    nodes = tuple(node for node in model.graph if not is_constant(node))
    whole = Partition(Side.HOST, nodes, tuple(required_inputs(model)), tuple(model.graph.outputs))
    hidden = {node: why for node in nodes if (why := _why(node, placed))}
    work = {node: estimate(node) for node in nodes}
    partitioned = Partitioned(Partitioning((whole,), hidden, work), [None], verdicts=placed.verdicts)
    infos = tuple(conversion.background.submit(FileInfo.of, file) for file in files)
    notes = [f"{session.by}: {session.nodes} nodes by the provider, {session.rest} by ONNX Runtime's CPU"]
    if provider.stubbed:
        notes.append("without a GPU there are no programs for it here: `python run.py` beside the card fills the cache")
    return Compiled(replace(cleaned, path=path, files=infos), partitioned, (), None, None, None, tuple(notes), session)


def _why(node: ir.Node, placed: Placed) -> str:
    """Return why a node, or those hidden within it, run on the CPU; empty for others."""
    inner = (inner for inner in with_nested([node]) if str(inner.name) in placed.reasons)
    return "; ".join(f"{inner.op_type} {inner.name}: {placed.reasons[str(inner.name)]}" for inner in inner)


def _samples(cleaned: CleanedModel) -> list[Sample]:
    infos = [TensorInfo.of(value) for value in required_inputs(cleaned.model)]
    try:
        return list(suitable(cleaned.plan.source.view(), {info.name: info.shape for info in infos}))
    except InputError:  # the proof says that nothing can be generated
        return []


def _written(folder: Path, name: str, cleaned: CleanedModel) -> Path:
    """Write the model into a folder, and return its file, which is named after its content."""
    with tempfile.TemporaryDirectory(dir=folder, prefix="placed-") as temporary:
        first = Path(temporary) / f"{name}.onnx"
        models.save(cleaned.model, first)
        digests = [file_digest(file) for file in sorted(Path(temporary).iterdir())]
    path = folder / f"{name}-{''.join(digest[: _DIGITS // len(digests)] for digest in digests)}.onnx"
    models.save(cleaned.model, path)
    return path


def _session_info(provider: Provider, path: Path) -> SessionInfo:
    """Open two sessions with the same cache: the first fills it, the second must find all programs there."""
    with tempfile.TemporaryDirectory(prefix="onnx-bridge-") as cache:
        options = SessionOptions(provider={CACHE_OPTION: cache})
        first = provider.session(path, options)
        second = provider.session(path, options)
        calls = {name: second.calls[name] for name in ("load", "parse", "compile")}
        programs = len(list(Path(cache).iterdir()))
    nodes = len(first.on_provider)
    return SessionInfo(nodes, len(first.nodes) - nodes, programs, calls, provider.note)
