"""Decoders that compute something from the size of their cache, which is fixed here.

Positions would be constants: without position ids, each program looks them up by the number of tokens instead
(`onnx_bridge.conversion.decoders.encoder_decoder.static_step`). A branch for longer texts would be taken for short ones
as well: parity fails, and says so. Other decoders are not changed.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import onnx_ir as ir

from onnx_bridge.bundle.manifest.layout import Layout
from onnx_bridge.conversion.decoders.encoder_decoder.parts import specialized
from onnx_bridge.conversion.decoders.encoder_decoder.static_step import look_up_by_length, sized
from onnx_bridge.conversion.source import Source
from onnx_bridge.core.errors import InputError
from onnx_bridge.core.files.code_digest import code_digest
from onnx_bridge.core.files.digest import json_digest
from onnx_bridge.requests.conversion import ConvertRequest
from passes.cleanup.close_branches import is_if
from passes.graphs.scopes import Scope


def positioned(
    source: Source, request: ConvertRequest, layout: Layout, widths: Sequence[int]
) -> tuple[Layout, dict[int, Source]]:
    """Return the layout with an input of the number of tokens, and the models by width, if positions need it."""
    if layout.in_place or layout.positions is not None:
        return layout, {}
    model = specialized(source.model(), request.freeze)
    programs: dict[int, Source] = {}
    for width in widths:
        most = layout.max_length - width
        shapes = partial(layout.shapes, width)
        program = sized(model, shapes(most))
        try:
            length = look_up_by_length(model, program, shapes, most)
        except InputError:  # the comparison shows whether it generates the same anyway
            length = None
        if length is None or {str(value.name) for value in program.graph.inputs} != {*layout.shapes(width), length}:
            return layout, {}
        digest = json_digest([source.digest, width, layout.max_length, dict(request.freeze), code_digest(__name__)])
        programs[width] = Source(program, name=source.name, digest=digest)
    return replace(layout, length=length), programs


def refuse_other_branch(source: Source, request: ConvertRequest, layout: Layout) -> None:
    """Refuse a cache of more tokens than those for which the model takes the same branches.

    LongRoPE (Phi 3) rotates otherwise from some number of tokens on, what is in the cache already included.

    Raises:
        InputError: an If depends on the number of tokens alone, and changes within ``max_length``.
    """
    model = specialized(source.model(), request.freeze).clone()
    conditions = [node.inputs[0] for node in model.graph if is_if(node)]
    model.graph.outputs[:] = dict.fromkeys(value for value in conditions if value is not None and value.producer())

    def branches(past: int) -> list[bool | None]:
        fixed = sized(model, layout.shapes(1, past))
        return [_known(value, Scope(fixed, fixed.graph)) for value in fixed.graph.outputs]

    first, most = branches(1) if model.graph.outputs else [], layout.max_length - 1
    last = branches(most) if first else []
    if all(None in pair or pair[0] == pair[1] for pair in zip(first, last, strict=True)):
        return
    same = bisect.bisect_left(range(1, most), True, key=lambda past: branches(past) != first) + 1
    what = f"for more than {same} tokens the model takes another branch, as LongRoPE does; a program has one of them"
    raise InputError(what, where=f"max_length {layout.max_length}", hint=f"give {same} or less")


def _known(condition: ir.Value, scope: Scope) -> bool | None:
    """Return a condition that sizes determine: an Identity of a constant; None for others."""
    node = condition.producer()
    tensor = scope.constant(node.inputs[0]) if node is not None and node.op_type == "Identity" else None
    return None if tensor is None else bool(tensor.numpy().all())
