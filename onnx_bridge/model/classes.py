"""Classifiers that end in ZipMap: their scores stay a tensor, and the classes are noted in the model's metadata.

    ZipMap(scores) → a sequence of maps from class to score    ⇒    Identity(scores) → float[rows, classes]

Exporters of scikit-learn, LightGBM, XGBoost and CatBoost put ZipMap behind the probabilities. Nothing but ONNX Runtime
has maps, and users of a deployed model take the array.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping

import msgspec
import onnx

_KEY = "onnx_bridge.classes."
"""The prefix of a key of the metadata; the name of the output follows."""
_OPSET = 13
"""The opset of ONNX's operators that a model without them gets."""
Class = str | int


def keep_scores(model: onnx.ModelProto) -> None:
    """Replace each ZipMap of the main graph that makes an output, in place."""
    outputs = {value.name: value for value in model.graph.output}
    zip_maps = [node for node in model.graph.node if _is_zip_map(node) and node.output[0] in outputs]
    for node in zip_maps:
        labels: list[Class] = []
        for attribute in node.attribute:
            labels += [string.decode(errors="replace") for string in attribute.strings] or list(attribute.ints)
        name = node.output[0]
        node.op_type, node.domain = "Identity", ""
        del node.attribute[:]
        outputs[name].type.CopyFrom(onnx.TypeProto(tensor_type=onnx.TypeProto.Tensor(elem_type=onnx.TensorProto.FLOAT)))
        model.metadata_props.add(key=f"{_KEY}{name}", value=json.dumps(labels))
    if zip_maps and not any(imported.domain in ("", "ai.onnx") for imported in model.opset_import):
        model.opset_import.add(domain="", version=_OPSET)


def classes_of(metadata: Mapping[str, str]) -> dict[str, list[Class]]:
    """Return the classes of each output that has scores, in the order of its columns, from the metadata of a model.

    Malformed lists of classes are ignored; `keep_scores` never writes them.
    """
    classes: dict[str, list[Class]] = {}
    for key, value in metadata.items():
        if key.startswith(_KEY):
            with contextlib.suppress(ValueError, RecursionError):
                classes[key.removeprefix(_KEY)] = msgspec.json.decode(value, type=list[Class])
    return classes


def _is_zip_map(node: onnx.NodeProto) -> bool:
    return bool(node.op_type == "ZipMap" and node.domain == "ai.onnx.ml" and len(node.input) == len(node.output) == 1)
