"""Decoders that take embeddings of tokens, which another file computes (models of pictures and texts).

    onnx/embed_tokens.onnx  onnx/decoder_model_merged.onnx                  transformers.js
    embedding.onnx  model.onnx  genai_config.json, which names them         onnxruntime-genai

Joined they are a decoder as any other: the embedding's results become the inputs of the decoder with their names; its
only result, of another name, becomes the decoder's ``inputs_embeds``.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import onnx
import onnx_ir as ir

from onnx_bridge.core.errors import InputError
from onnx_bridge.model import io as models
from onnx_bridge.model.folder import embedding_file
from passes.graphs.scopes import Scope, name_nodes, required_inputs

EMBEDS = "inputs_embeds"
"""The input of a decoder with embeddings of tokens."""


def _takes_embeddings(model: ir.Model) -> bool:
    """Return whether a model takes the embeddings of tokens instead of their ids."""
    names = [str(value.name) for value in required_inputs(model)]
    return EMBEDS in names and not any(name.endswith("input_ids") for name in names)


def embedding_of(decoder: Path, model: ir.Model) -> Path | None:
    """Return the file beside a decoder that computes what it takes; None if it takes ids; raises InputError."""
    if not _takes_embeddings(model):
        return None
    file = embedding_file(decoder)
    if file is None:
        what = f"the decoder takes embeddings of tokens, {EMBEDS}, and no file beside it computes them"
        raise InputError(what, where=str(decoder), hint="put embed_tokens.onnx beside it, or export it with input_ids")
    return file


def with_embedding(model: ir.Model, file: Path) -> ir.Model:
    """Return a decoder that takes ids, joined with the embedding in a file; raises InputError."""
    embedding = models.load(file)
    _require_same_operators(embedding, model.opset_imports, file)
    others = [str(value.name) for value in required_inputs(embedding) if not str(value.name).endswith("input_ids")]
    if others or not required_inputs(embedding):
        what = f"the embedding takes {', '.join(others) or 'no token ids'}, and not token ids alone"
        raise InputError(what, where=str(file), hint="convert it and the decoder as two models")
    inputs = {str(value.name): value for value in model.graph.inputs}
    results = {str(value.name): value for value in embedding.graph.outputs}
    if not results.keys() & inputs.keys() and len(results) == 1:
        results = {EMBEDS: next(iter(results.values()))}
    joined = {inputs[name]: result for name, result in results.items() if name in inputs}
    if inputs[EMBEDS] not in joined:
        raise InputError(f"the embedding returns {', '.join(results)}, and not {EMBEDS}", where=str(file))
    _move(embedding, model)
    for taken, result in joined.items():
        result.shape = taken.shape
        taken.replace_all_uses_with(result, replace_graph_outputs=True)
        model.graph.inputs.remove(taken)
    return model


def _move(embedding: ir.Model, model: ir.Model) -> None:
    """Move all of the embedding's graph before the nodes of a decoder, under names of its own."""
    graph, names = embedding.graph, Scope(model, model.graph).names
    ids = required_inputs(embedding)
    nodes, weights = list(graph), list(graph.initializers.values())
    graph.inputs.clear()
    graph.outputs.clear()
    graph.remove(nodes)
    graph.initializers.clear()
    for value in (*weights, *(output for node in nodes for output in node.outputs)):
        value.name = names.value(f"embedding/{value.name}")
    for node in nodes:
        node.name = names.node(f"embedding/{node.name}")
    model.graph.inputs[:0] = ids
    for value in weights:
        model.graph.register_initializer(value)
    model.functions.update(embedding.functions)
    model.graph.insert_before(model.graph[0], nodes)
    model.opset_imports.update({**embedding.opset_imports, **model.opset_imports})
    name_nodes(Scope(model, model.graph))


def _require_same_operators(embedding: ir.Model, opsets: Mapping[str, int], file: Path) -> None:
    """Require that the embedding means the same with the opsets of a decoder."""
    own = embedding.opset_imports.get("", 1)
    wanted = opsets.get("", own)
    for node in embedding.graph.all_nodes():
        if node.domain == "" and _version(node.op_type, own) != _version(node.op_type, wanted):
            what = f"{node.op_type} of opset {own} differs from that of opset {wanted}, which the decoder has"
            raise InputError(what, where=str(file), hint="export both for one opset")


def _version(operator: str, opset: int) -> int:
    return int(onnx.defs.get_schema(operator, opset).since_version)
