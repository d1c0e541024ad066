"""The results of ``inspect``, ``diff``, ``run``, ``pack``, ``unpack`` and ``verify``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
from rich.console import Group, RenderableType
from rich.text import Text

from onnx_bridge.bundle.difference import ModelDiff
from onnx_bridge.bundle.files.pack import Packed
from onnx_bridge.bundle.files.verify import Verification
from onnx_bridge.bundle.inspect import BundleView, ModelView
from onnx_bridge.bundle.manifest.entries import TensorInfo
from onnx_bridge.bundle.manifest.layout import Layout
from onnx_bridge.bundle.run import RunResult
from onnx_bridge.core.third_party import shorten
from onnx_bridge.core.values import Kind, dtype_name
from onnx_bridge.views.terminal.tables import (
    facts_table,
    judged,
    notes_of,
    pass_table,
    plain_table,
    sizes_text,
    unbroken,
)
from onnx_bridge.views.terminal.view import view
from passes.core.text import counted
from passes.rewriting.base import Proof


@view.register
def _model(model: ModelView, verbose: bool) -> RenderableType:
    opsets = ", ".join(f"{domain or 'ai.onnx'} {version}" for domain, version in model.opsets.items())
    size = _size(sum(model.parameter_bytes.values()))
    widths = ", ".join(f"{_size(count)} {dtype}" for dtype, count in model.parameter_bytes.items())
    facts: dict[str, str | Text | Sequence[str]] = {
        "file": model.path or "(in memory)",
        "opsets": f"{opsets} (IR version {model.ir_version})",
        "producer": model.producer or "unknown",
        "parameters": f"{model.parameters:,} in {size}" + (f" ({widths})" if widths else ""),
        "nodes": f"{model.nodes:,}",
        "operators": ", ".join(f"{name} {count}" for name, count in model.operators.items()),
        "quantization": ", ".join(f"{name} {count}" for name, count in model.quantization.items()) or "none",
    }
    facts |= {"on a GPU, as it is": list(_forecast(model.forecast))} if model.forecast else {}
    facts |= {"functions": ", ".join(model.functions)} if model.functions else {}
    return Group(facts_table(facts), _tensors(model.inputs, model.outputs))


@view.register
def _bundle(summary: BundleView, verbose: bool) -> RenderableType:
    """Return lists; with the passes that rewrote something if ``verbose``."""
    bundle, manifest = summary.bundle, summary.bundle.manifest
    architecture = f" ({manifest.architecture})" if manifest.architecture else ""
    kept = ", and nothing has changed since (--fresh makes it anew)" if bundle.is_kept else ""
    passes = [step for program in manifest.programs for step in program.passes]
    rewrites = sum(step["rewrites"] for step in passes)
    forecasts = [line for program in manifest.programs if program.forecast for line in _forecast(program.forecast)]
    programs = [
        f"{path} ({_size(info.bytes)})"
        for program in bundle.programs
        for path, info in zip(program.files, program.info.programs, strict=True)
    ]
    gpus = (gpu for program in manifest.programs for gpu in program.gpu_programs)
    also = "".join(f", and {name} elsewhere" for name in dict.fromkeys(gpu.architecture for gpu in gpus))
    proven = None if manifest.proof.level is Proof.NONE else True
    facts: dict[str, str | Text | Sequence[str]] = {
        "program": programs or "none",
        "model": str(bundle.model_path or "not kept"),
        "source": manifest.source["path"] or "(in memory)",
        "target": f"{manifest.target}{architecture}{also}, MIGraphX {manifest.versions['migraphx']}",
        "passes": f"{len(passes)}, with {counted(rewrites, 'rewrite')}",
        "seconds": ", ".join(f"{stage} {seconds:.3g}" for stage, seconds in manifest.timings.items()),
        manifest.proof.label: judged(manifest.proof.line, proven),
        "made": f"{manifest.created} by onnx-bridge {manifest.versions['onnx_bridge']}{kept}",
    }
    facts |= {"partitions": manifest.partition_line} if manifest.partition_line else {}
    facts |= {"decoder": _decoder(manifest.decoder)} if manifest.decoder else {}
    calibrations = [info for program in manifest.programs if (info := program.calibration)]
    calibrated = dict.fromkeys(f"on {counted(info.samples, 'sample')} ({info.data})" for info in calibrations)
    facts |= {"calibrated": list(calibrated)} if calibrated else {}
    facts |= {"on a GPU": forecasts} if forecasts else {}
    facts |= {"note": manifest.notes} if manifest.notes else {}
    table = ["", pass_table(passes)] if verbose else []
    tensors = _tensors(_described(manifest.inputs), _described(manifest.outputs), manifest.chosen)
    return Group(facts_table(facts), tensors, *table)


def _decoder(layout: Layout) -> list[str]:
    """Return the caches of a decoder, and the source of its encoder."""
    kind = "written in place" if layout.in_place else "appended to"
    caches = f"{counted(len(layout.cache), 'cache')} for {layout.max_length} tokens, {kind}; batch {layout.batch}"
    encoder = layout.encoder
    return [caches] if encoder is None else [caches, f"encoder: {encoder.source} {list(encoder.shape)}"]


def _described(tensors: Sequence[TensorInfo]) -> list[dict[str, Any]]:
    return [
        {
            "name": info.name,
            "dtype": info.dtype if info.kind == Kind.TENSOR.value else f"{info.kind} of {info.dtype}",
            "shape": info.shape,
        }
        for info in tensors
    ]


def _tensors(
    inputs: Sequence[Mapping[str, Any]],
    outputs: Sequence[Mapping[str, Any]],
    chosen: Mapping[str, Mapping[str, int]] = MappingProxyType({}),
) -> RenderableType:
    table = plain_table("", "name", "dtype", "shape", *(["sizes chosen for you"] if chosen else []))
    for kind, tensors in (("input", inputs), ("output", outputs)):
        for tensor in tensors:
            shape = "unknown"
            if tensor["shape"] is not None:
                shape = " × ".join("?" if dim is None else str(dim) for dim in tensor["shape"]) or "scalar"
            sizes = sizes_text(chosen.get(tensor["name"], {}) if kind == "input" else {})
            table.add_row(kind, tensor["name"], tensor["dtype"] or "unknown", shape, *([sizes] if chosen else []))
    return table


def _forecast(forecast: Mapping[str, Any]) -> Iterator[str]:
    """Yield the kernels, and why quantized products run in float: each reason with the number of products."""
    products = forecast["products"]
    in_float: dict[str, list[str]] = {}
    for product in products:
        if product["quantized"] and product["kernel"] == "float":
            in_float.setdefault(product["condition"], []).append(product["node"])
    yield forecast["summary"]
    for condition, nodes in sorted(in_float.items(), key=lambda item: -len(item[1])):
        yield f"in float: {len(nodes)} for {condition} ({shorten(', '.join(nodes))})"
    yield from (f"wrong: {product['node']}: {product['wrong']}" for product in products if product["wrong"])


def _size(count: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.3g} {unit}" if unit != "B" else f"{count:.0f} B"
        count /= 1024
    return f"{count:.3g} GiB"


@view.register
def _run(result: RunResult, verbose: bool) -> RenderableType:
    lines = []
    for name, array in result.outputs.items():
        lines.append(f"{name}: {dtype_name(array.dtype)} {list(array.shape)}")
        if result.path is None:
            lines += np.array2string(array, threshold=64, edgeitems=3, precision=6).splitlines()
    lines += [f"partitions: {result.partitions}"] if result.partitions else []
    to = f"written to {result.path}" if result.path is not None else "written to no file: -o Y.npz keeps them"
    return Group(*map(unbroken, lines), *notes_of(result.notes), f"{to} ({result.seconds:.3g} s)")


@view.register
def _packed(packed: Packed, verbose: bool) -> RenderableType:
    return f"{packed.path}: {counted(packed.files, 'file')}, {packed.bytes / 2**20:.3g} MiB"


@view.register
def _verification(verification: Verification, verbose: bool) -> RenderableType:
    lines = [f"bundle: {verification.path}", *([f"made: {verification.made}"] if verification.made else [])]
    lines += [f"damaged: {name}: {what}" for name, what in verification.problems.items()]
    return Group(*lines, *notes_of(verification.notes), judged(verification.summary, verification.passed))


@view.register
def _difference(difference: ModelDiff, verbose: bool) -> RenderableType:
    """Return a line for each node, and a summary."""
    gone = (*difference.removed, *difference.replaced)
    lines = [Text(f"- {node.name} ({node.operator})", style="red") for node in gone]
    for node in difference.added:
        by = f" by {node.made_by}" if node.made_by else ""
        origin = f" from {', '.join(node.origin)}" if node.origin else ""
        lines.append(Text(f"+ {node.name} ({node.operator}){by}{origin}", style="green"))
    for node in difference.changed:
        lines.append(Text(f"~ {node.name} ({node.operator}): {'; '.join(node.changes)}", style="yellow"))
    removed, added = (Counter(node.operator for node in nodes) for nodes in (gone, difference.added))
    kinds = [kind for kind in sorted(removed | added) if added[kind] != removed[kind]]
    totals = ", ".join(f"{kind} {added[kind] - removed[kind]:+d}" for kind in kinds)
    counts = f"{len(gone)} removed ({len(difference.replaced)} replaced), {len(difference.added)} added, "
    counts += f"{len(difference.changed)} changed, {difference.unchanged} unchanged"
    return Group(*lines, counts, *([totals] if kinds else []))
