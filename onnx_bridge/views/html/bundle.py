"""The page of a bundle, as a model card: what it is, its source, what was rewritten, how far it is proven."""

from __future__ import annotations

from onnx_bridge.bundle.manifest.entries import PartitionInfo, TensorInfo
from onnx_bridge.bundle.manifest.manifest import Manifest
from onnx_bridge.views.html.colours import BAD, GOOD, PLAIN, WARN
from onnx_bridge.views.html.html import Column, Page, Row, Share, Table, cell, facts_of
from passes.core.text import counted
from passes.rewriting.base import Proof

_HEADLINES = {
    Proof.RUN: "Proven at real size",
    Proof.WITNESS: "Proven by a smaller instance",
    Proof.NONE: "Not proven as a whole",
}


def page_of(manifest: Manifest) -> Page:
    """Return the page of a bundle."""
    proof = manifest.proof
    sentences = [f"{proof.line[:1].upper()}{proof.line[1:]}.", f"Nodes on MIGraphX: {proof.nodes}."]
    sentences += [f"{manifest.partition_line}."] if manifest.partition_line else ["All of it runs on MIGraphX."]
    return Page(
        kind="bundle",
        model=manifest.name,
        passed=proof.level is not Proof.NONE,
        headline=_HEADLINES[proof.level],
        sentences=sentences,
        facts=facts_of(_facts(manifest)),
        notes=manifest.notes,
        tables=[_tensors(manifest), _passes(manifest), *_products(manifest), _files(manifest)],
        shares_title="Where it runs",
        shares=[] if manifest.wholly_on_migraphx else [_share(partition) for partition in manifest.partitions],
    )


def _facts(manifest: Manifest) -> dict[str, str]:
    architecture = f" ({manifest.architecture})" if manifest.architecture else ""
    return {
        "model": manifest.name,
        "source": manifest.source["path"] or "in memory",
        "SHA-256 of the source": manifest.source["sha256"] or "unknown",
        "target": f"{manifest.target}{architecture}",
        "precision": manifest.request.precision,
        "made": manifest.created,
        **{f"version of {name}": version for name, version in manifest.versions.items()},
    }


def _share(partition: PartitionInfo) -> Share:
    name = f"{counted(partition.nodes, 'node').split()[1]} on {partition.runs_on}"
    return Share(name, partition.nodes, GOOD if partition.program else WARN)


def _tensors(manifest: Manifest) -> Table:
    def row(side: str, tensor: TensorInfo) -> Row:
        sizes = " × ".join("?" if size is None else str(size) for size in tensor.shape or ()) or "scalar"
        return Row.of(side, tensor.name, tensor.dtype, sizes if tensor.shape is not None else "?")

    columns = (Column("kind"), Column("name", "name"), Column("dtype", "code"), Column("shape"))
    rows = [row("input", value) for value in manifest.inputs] + [row("output", output) for output in manifest.outputs]
    return Table("tensors", "Inputs and outputs", columns, rows)


def _passes(manifest: Manifest) -> Table:
    passes = [result for program in manifest.programs for result in program.passes]
    columns = (
        Column("pass", "name"),
        Column("rewrites", "number"),
        Column("exactness", "text", "how far it may change numbers"),
        Column("rules", "text", "of legalization, with how often each was applied"),
    )
    rows = [
        Row.of(
            result["name"],
            result["rewrites"],
            result.get("exactness"),
            ", ".join(f"{name} {count}" for name, count in result.get("rules", {}).items()),
        )
        for result in passes
        if result["rewrites"]
    ]
    return Table("passes", "What was rewritten", columns, rows, f"{len(passes)} passes ran.")


def _products(manifest: Manifest) -> list[Table]:
    forecasts = [program.forecast for program in manifest.programs if program.forecast]
    if not forecasts:
        return []
    columns = (Column("node", "name"), Column("kernel on a GPU", "verdict"), Column("first condition that fails"))
    rows = [
        Row.of(product["node"], cell(product["kernel"], _colour(product)), product["condition"])
        for forecast in forecasts
        for product in forecast["products"]
    ]
    return [Table("products", "Convolutions and matrix products", columns, rows, forecasts[0]["summary"])]


def _colour(product: dict[str, object]) -> str:
    if product["wrong"]:
        return BAD
    return PLAIN if product["kernel"] == "float" else GOOD


def _files(manifest: Manifest) -> Table:
    columns = (Column("file", "name"), Column("bytes", "number"), Column("SHA-256", "code"))
    rows = [Row.of(file.file, file.bytes, file.sha256) for file in manifest.files]
    return Table("files", "Files", columns, rows, place="last")
