"""The models that an encoder-decoder is converted to, recognized by their inputs and outputs.

    encoder                    source, mask                          →  hidden states
    memory                     hidden states                         →  keys and values of cross-attention
    step                       token, mask, these, and its cache     →  logits, and the cache with the token

Keys and values that the decoder without a cache computes from the hidden states alone belong to cross-attention; keys
and values that depend on its tokens are the cache.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from onnx_bridge.conversion.cleaning import rewrite
from onnx_bridge.conversion.decoders.encoder_decoder.files import Files
from onnx_bridge.conversion.decoders.layout import (
    is_integer,
    is_states,
    listed,
    only,
    refuse_unknown,
)
from onnx_bridge.core.errors import InputError
from onnx_bridge.model import io as models
from onnx_bridge.requests.conversion import CleanRequest
from onnx_bridge.samples.decoders import PAST, PRESENT, matching
from passes.graphs.traversal import is_used, operands_of

_WHERE = "decoder"


@dataclass(frozen=True)
class Parts:
    """The models behind the encoder.

    Attributes:
        memory: the keys and values of cross-attention.
        memory_input: its input of hidden states; it needs only the sizes of its other inputs.
        step: the decoder; its outputs are the logits and the cache.
        ids: the input of ``step`` that is the token.
        logits: its first output.
        cache: its caches, past and present.
        crossed: its inputs that are outputs of ``memory``, with the names of these.
        hidden: its input of hidden states, which some decoders still take.
        mask: its mask of the encoder's tokens.
    """

    memory: ir.Model
    memory_input: str
    step: ir.Model
    ids: str
    logits: str
    cache: dict[str, str]
    crossed: dict[str, str]
    hidden: str | None
    mask: str | None

    @classmethod
    def of(cls, files: Files, freeze: Mapping[str, str]) -> Parts:
        """Take a model with frozen inputs apart; raises InputError if it is not a decoder with a cache."""
        first = specialized(models.load(files.first), {**freeze, **files.branch(cached=False)})
        step = specialized(models.load(files.step), {**freeze, **files.branch(cached=True)})
        presents = matching(PRESENT, _named(first.graph.outputs))
        pasts = matching(PAST, _named(step.graph.inputs))
        if not pasts or pasts.keys() != presents.keys():
            what = f"one takes {listed(pasts.values())}, the other returns {listed(presents.values())}"
            hint = "export both files at once, with a cache"
            raise InputError(f"the decoders do not fit together: {what}", where=_WHERE, hint=hint)
        outputs = _named(first.graph.outputs)
        inputs = {name: value for name, value in _named(first.graph.inputs).items() if name not in pasts.values()}
        memory_input = only("hidden states", [name for name, value in inputs.items() if is_states(value)], inputs)
        crossing = [key for key, name in presents.items() if _inputs_of(outputs[name]) == {memory_input}]
        own = matching(PRESENT, _named(step.graph.outputs))
        cache = {pasts[key]: own.get(key, "") for key in pasts if key not in crossing}
        if not crossing or not cache or "" in cache.values():
            what = "the keys and values are not those of attention to the decoder itself and to an encoder"
            raise InputError(what, where=_WHERE, hint="export it with a cache, task text2text-generation-with-past")
        results = [name for name in _named(step.graph.outputs) if name not in own.values()]
        logits = only("logits", results, results)
        _keep(first, [presents[key] for key in crossing])
        _keep(step, [logits, *cache.values()])
        others = [value for value in step.graph.inputs if value.name not in pasts.values()]
        tokens = [name for value in others if is_integer(value) and (name := str(value.name)).endswith("input_ids")]
        ids = only("token ids", tokens, [str(value.name) for value in others])
        rest = [value for value in others if value.name != ids]
        masks = [str(value.name) for value in rest if "mask" in str(value.name)]
        states = [str(value.name) for value in rest if value.name not in masks and not is_integer(value)]
        refuse_unknown([str(value.name) for value in rest if value.name not in (*masks[:1], *states[:1])])
        hidden, mask = next(iter(states), None), next(iter(masks), None)
        crossed = {pasts[key]: presents[key] for key in crossing}
        return cls(first, memory_input, step, ids, logits, cache, crossed, hidden, mask)


def specialized(model: ir.Model, freeze: Mapping[str, str]) -> ir.Model:
    """Return a model with some inputs constant, and the branch of a merged decoder that they choose."""
    there = {name: text for name, text in freeze.items() if name in _named(model.graph.inputs)}
    return rewrite(model, CleanRequest("inline-functions,unshadow-names,inline-constant-if", freeze=there)).model


def _named(values: Sequence[ir.Value]) -> dict[str, ir.Value]:
    """Return values by name, without inputs that are initializers."""
    return {str(value.name): value for value in values if not value.is_initializer()}


def _inputs_of(value: ir.Value) -> set[str]:
    """Return the inputs of the model that a value is computed from, without inputs whose sizes alone matter."""
    inputs: set[str] = set()
    seen, pending = set(), [value]
    while pending:
        operand = pending.pop()
        if operand in seen:
            continue
        seen.add(operand)
        node = operand.producer()
        if node is not None and node.op_type not in ("Shape", "Size"):
            pending += operands_of(node)
        elif node is None and operand.is_graph_input() and not operand.is_initializer():
            inputs.add(str(operand.name))
    return inputs


def _keep(model: ir.Model, outputs: Sequence[str]) -> None:
    """Remove all other outputs, and what is needed for them alone."""
    by_name = _named(model.graph.outputs)
    model.graph.outputs[:] = [by_name[name] for name in outputs]
    rewrite(model, CleanRequest("remove-dead"))
    model.graph.inputs[:] = [value for value in model.graph.inputs if is_used(value)]
