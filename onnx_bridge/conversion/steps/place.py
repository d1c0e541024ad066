"""Step 3 of a conversion for ONNX Runtime: place the nodes, and let the provider name, compile and find its programs.

The provider names a program by the name of the model's file, by names of values and by shapes; not by weights, nor by
operators. So the name of the file has a digest of its content: another model never finds the programs of this one.
"""

from __future__ import annotations

import glob
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import onnx_ir as ir

from onnx_bridge.bundle.manifest.entries import FileInfo, SessionInfo, TensorInfo
from onnx_bridge.conversion.compiling.partition import Partitioned, listed_reasons
from onnx_bridge.conversion.serving.placing import Placed, place
from onnx_bridge.conversion.serving.trial import Trial
from onnx_bridge.conversion.steps.clean import CleanedModel
from onnx_bridge.conversion.steps.compile import Compiled, partition_and_compile
from onnx_bridge.core.errors import InputError
from onnx_bridge.core.progress import Stage
from onnx_bridge.provider.hidden import HIDDEN
from onnx_bridge.provider.provider import Provider
from onnx_bridge.samples.inputs import Sample
from onnx_bridge.samples.suitable import suitable
from passes.core.text import counted
from passes.graphs.cost import estimate
from passes.graphs.scopes import required_inputs
from passes.graphs.traversal import with_nested
from passes.probing.partition import Partition, Partitioning, Side, is_constant

_LEFT = "beside nodes that the provider does not claim, it leaves those without a product of matrices alone, too"
_SCALARS = "it shapes scalars, which the provider returns as (1,)"
_CROSSING = "it hands values to nodes, or takes values from them, that are hidden from the provider"


def compile_or_place(cleaned: CleanedModel, *, widened: bool = False) -> Compiled:
    """Compile a cleaned model, or place its nodes if it is for ONNX Runtime; errors are those of either."""
    provider = cleaned.plan.provider
    return partition_and_compile(cleaned, widened=widened) if provider is None else place_for(provider, cleaned)


def place_for(provider: Provider, cleaned: CleanedModel) -> Compiled:
    """Place the nodes of a cleaned model, write it under its final name, and count the programs of its sessions.

    Raises:
        InputError: ONNX Runtime does not run the model even on the CPU.
        ProviderError, NativeFailure: the sessions fail, though they were right before.
    """
    conversion = cleaned.plan
    with (
        conversion.stopwatch(Stage.COMPILE),
        tempfile.TemporaryDirectory(prefix="placed-", dir=conversion.folder) as folder,
    ):
        trial = Trial.of(cleaned.model, provider, _samples(cleaned), Path(folder), conversion.source.name)
        content = [file.result() for file in cleaned.files]
        placed = place(cleaned.model, cleaned.verdicts, trial, [info.sha256 for info in content])
        served, model = placed.served, placed.model
        cleaned = replace(cleaned, model=model)
        for info in content:
            (conversion.folder / info.file).unlink()
        files = [
            file.rename(conversion.folder / file.name)
            for file in sorted(served.path.parent.glob(f"{glob.escape(served.path.name)}*"))
        ]
        path = files[0]
        provider.keep(served.session, path)
    on_cpu = _on_cpu(placed)
    hidden = {node: _why(node, placed) for node in on_cpu}
    session = SessionInfo(
        nodes=len(served.session.on_provider),
        rest=_count(on_cpu, placed),
        programs=served.programs,
        calls={name: served.calls[name] for name in ("load", "parse", "compile")},
        by=provider.note,
    )
    nodes = tuple(node for node in model.graph if not is_constant(node))
    whole = Partition(Side.HOST, nodes, tuple(required_inputs(model)), tuple(model.graph.outputs))
    work = {node: estimate(node) for node in nodes}
    partitioned = Partitioned(Partitioning((whole,), hidden, work), [None], verdicts=placed.verdicts)
    infos = tuple(conversion.background.submit(FileInfo.of, file) for file in files)
    notes = [f"{session.by}: {counted(session.nodes, 'node')} by the provider, {session.rest} by ONNX Runtime's CPU"]
    if told := {node: why for node, why in hidden.items() if why != _CROSSING}:
        causes = [node for node, why in told.items() if why != _LEFT]
        notes.append(f"on ONNX Runtime's CPU: {listed_reasons(told, causes)}")
    cleaned = replace(cleaned, path=path, files=infos)
    return Compiled(cleaned, partitioned, (), None, None, None, tuple(notes), session, served.session)


def _on_cpu(placed: Placed) -> list[ir.Node]:
    """Return the nodes that the session leaves to the CPU."""
    claimed = {node.name for node in placed.served.session.on_provider}
    return [node for node in placed.model.graph if node.name not in claimed and not is_constant(node)]


def _count(on_cpu: Sequence[ir.Node], placed: Placed) -> int:
    """Count the nodes on the CPU, and those hidden within them, without those that only hide them."""
    hidden = sum(str(inner.name) in placed.reasons for inner in with_nested(on_cpu))
    return hidden + sum(HIDDEN not in node.metadata_props and str(node.name) not in placed.reasons for node in on_cpu)


def _why(node: ir.Node, placed: Placed) -> str:
    """Return why a node, or those hidden within it, run on the CPU."""
    named = [inner for inner in with_nested([node]) if str(inner.name) in placed.reasons]
    if named == [node]:
        return placed.reasons[str(node.name)]
    if named:
        return listed_reasons({inner: placed.reasons[str(inner.name)] for inner in named}, ())
    if HIDDEN not in node.metadata_props:
        return _LEFT
    return _SCALARS if node.op_type == "Scan" else _CROSSING


def _samples(cleaned: CleanedModel) -> list[Sample]:
    """Return samples to run sessions on; none for a model whose run takes longer than a proof may."""
    request = cleaned.plan.request
    if cleaned.run_seconds > request.prove_budget and request.prove != "always":
        return []
    infos = [TensorInfo.of(value) for value in required_inputs(cleaned.model)]
    try:
        return list(suitable(cleaned.plan.source.view(), {info.name: info.shape for info in infos}))
    except InputError:  # the proof says that nothing can be generated
        return []
