"""Decoders without position ids, which compute positions from the size of their cache.

With a cache of fixed size, these would be constants: each program looks them up by the number of tokens instead
(`onnx_bridge.conversion.decoders.encoder_decoder.static_step`). Other decoders are not changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from onnx_bridge.bundle.manifest.layout import Layout
from onnx_bridge.conversion.decoders.encoder_decoder.parts import specialized
from onnx_bridge.conversion.decoders.encoder_decoder.static_step import look_up_by_length, sized
from onnx_bridge.conversion.source import Source
from onnx_bridge.core.errors import InputError
from onnx_bridge.core.files.code_digest import code_digest
from onnx_bridge.core.files.digest import json_digest
from onnx_bridge.requests.conversion import ConvertRequest


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
