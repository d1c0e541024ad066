"""The registered passes, and why a pass applies or not: the verbs ``passes list`` and ``passes explain``."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir

import passes
from onnx_bridge.core.errors import InputError, RuntimeNotFound, nearest
from onnx_bridge.core.schema import JsonRecord
from onnx_bridge.migraphx import runtime as runtimes
from onnx_bridge.model import io as models
from onnx_bridge.verdicts.probed_runtime import ProbedRuntime
from passes.cleanup.infer_shapes import InferShapes
from passes.legalize.legalize import Legalize
from passes.rewriting.base import Context, Exactness, Rewrite, Skip, Target
from passes.rewriting.pipeline import Pipeline


@dataclass(frozen=True)
class PassInfo:
    """A pass: its name, exactness, options with their defaults, and description."""

    name: str
    exactness: str
    options: dict[str, str]
    does: str


@dataclass(frozen=True)
class Catalogue(JsonRecord):
    """All passes and named pipelines."""

    passes: list[PassInfo]
    pipelines: dict[str, str]


@dataclass(frozen=True)
class Explanation(JsonRecord):
    """The rewrites and skips of a pass on a model."""

    name: str
    rewrites: list[Rewrite]
    skips: list[Skip]
    node: str | None = None

    def to_json(self) -> dict[str, Any]:
        values = super().to_json()
        return {"pass": values.pop("name")} | values


def catalogue() -> Catalogue:
    """Return all passes and named pipelines."""
    infos = []
    for name in passes.names():
        cls = passes.get(name)
        exactness = cls.exactness.value if isinstance(cls.exactness, Exactness) else "by its options"
        options = {field.name.replace("_", "-"): _default(field) for field in dataclasses.fields(cls)}
        infos.append(PassInfo(name, exactness, options, passes.describe(name)))
    return Catalogue(infos, dict(passes.PIPELINES))


def explain(name: str, model: str | os.PathLike[str] | ir.Model, *, node: str | None = None) -> Explanation:
    """Try a pass on a copy of a model.

    Args:
        name: the pass, optionally with options in braces.
        model: an ONNX file, or a model in memory, which is not modified.
        node: report only this node.

    Raises:
        InputError: there is no such pass or node, or the model cannot be read.
    """
    loaded = models.owned(model)
    if node is not None:
        graphs: list[ir.Graph | ir.Function] = [loaded.graph, *loaded.functions.values()]
        names = {str(known.name) for graph in graphs for known in graph.all_nodes()}
        if node not in names:
            raise InputError("the model has no such node", where=f"node {node!r}", hint=nearest(node, names))
    pipeline = Pipeline.parse(name)
    target: Target | None = None
    if any(isinstance(pass_, Legalize) for pass_ in pipeline.passes):
        with contextlib.suppress(RuntimeNotFound):
            target = ProbedRuntime(runtimes.find())
            InferShapes().run(loaded, Context())  # a node without known shapes cannot be probed
    steps = pipeline.run(loaded, Context(target))
    rewrites = [
        rewrite for step in steps for rewrite in step.result.rewrites if node in (None, *rewrite.before, *rewrite.after)
    ]
    skips = [skip for step in steps for skip in step.result.skips if node in (None, skip.node)]
    return Explanation(name, rewrites, skips, node)


def _default(field: dataclasses.Field[Any]) -> str:
    if field.default is not dataclasses.MISSING:
        return "" if field.default is None else str(field.default)
    return "" if field.default_factory is dataclasses.MISSING else "{}"
