"""Settings of a model that make ONNX Runtime compute something else than the model says, undone for the reference.

    MatMulNBits{accuracy_level=4}(x, w)    ONNX Runtime quantizes x to int8 first; the weights alone are quantized

``accuracy_level`` (0: unset, 1: float32, 2: float16, 3: bfloat16, 4: int8) is a licence for kernels to round the inputs
of a product. Builders of language models write 4 for CPUs; MIGraphX has no such kernels. Source: ONNX Runtime's
ContribOperators.md, MatMulNBits and QMoE.
"""

from __future__ import annotations

import mmap
from pathlib import Path

import onnx
import onnx_ir as ir

from onnx_bridge.model import io as models
from passes.core import graphs

_NAME = "accuracy_level"
_DOMAIN = "com.microsoft"
_FLOAT32 = 1


def faithful(model: ir.Model | Path | bytes) -> tuple[ir.Model | Path | bytes, tuple[str, ...]]:
    """A model that ONNX Runtime computes as it is written, and notes on what was changed; the given one if nothing was.

    Args:
        model: it is not changed. The weights of a file stay there.
    """
    if isinstance(model, ir.Model):
        return (model, ()) if not _licensed(model) else _lowered(model.clone())
    if not _mentions(model):
        return model, ()
    loaded = models.load(model) if isinstance(model, Path) else ir.from_proto(onnx.ModelProto.FromString(model))
    return _lowered(loaded) if _licensed(loaded) else (model, ())


def _lowered(model: ir.Model) -> tuple[ir.Model, tuple[str, ...]]:
    nodes = _licensed(model)
    for node in nodes:
        node.attributes[_NAME] = ir.AttrInt64(_NAME, 0)
    kinds = ", ".join(sorted({node.op_type for node in nodes}))
    many = "s" if len(nodes) > 1 else ""
    what = f"{_NAME} of {len(nodes)} node{many} ({kinds}) is 0 in the reference: else ONNX Runtime rounds their inputs"
    return model, (what,)


def _licensed(model: ir.Model) -> list[ir.Node]:
    """The nodes whose inputs ONNX Runtime may round before it computes."""
    return [
        node
        for scope in graphs.scopes(model)
        for node in scope.nodes()
        if node.domain == _DOMAIN and _NAME in node.attributes and node.attributes.get_int(_NAME, 0) > _FLOAT32
    ]


def _mentions(model: Path | bytes) -> bool:
    """Whether a serialized model has the attribute's name anywhere."""
    if isinstance(model, bytes):
        return _NAME.encode() in model
    try:
        with model.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            return content.find(_NAME.encode()) >= 0
    except (OSError, ValueError):  # not there, or empty: ONNX Runtime says so
        return False
