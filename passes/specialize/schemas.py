"""What changed between two opsets for one use of an operator, as far as ONNX's definitions tell.

Most new versions of operators only accept more types, or add an attribute whose default is the old behaviour. A node
that uses nothing that was added or removed has the same meaning in both. Changes of meaning that the schemas do not
show are listed here.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import onnx

from passes.core.schemas import Option, Parameter, parameter, schema_of

_CHANGED_MEANING = {
    ("GroupNormalization", 21),  # scale and bias were per group, now per channel
    ("Hardmax", 13),  # covered all axes from ``axis`` on, like LogSoftmax and Softmax
    ("LogSoftmax", 13),
    ("Mod", 28),  # of floats without fmod was not allowed
    ("Resize", 11),  # mapped coordinates differently
    ("RoiAlign", 16),  # mapped coordinates differently
    ("Softmax", 13),
}
"""Operators and the opsets that changed their meaning, but not their form."""
_VALUES = {
    ("Pad", "mode", b"wrap"): 19,
    ("Resize", "coordinate_transformation_mode", b"half_pixel_symmetric"): 19,
    ("ScatterElements", "reduction", b"add"): 16,
    ("ScatterElements", "reduction", b"mul"): 16,
    ("ScatterElements", "reduction", b"max"): 18,
    ("ScatterElements", "reduction", b"min"): 18,
    ("ScatterND", "reduction", b"add"): 16,
    ("ScatterND", "reduction", b"mul"): 16,
    ("ScatterND", "reduction", b"max"): 18,
    ("ScatterND", "reduction", b"min"): 18,
}
"""Values of attributes that were added later than the attributes, and the opsets."""
_BROADCASTS = {"Max": 8, "Mean": 8, "Min": 8, "Sum": 8}
"""Operators and the opsets since which they broadcast."""


def schema(op_type: str, version: int) -> onnx.defs.OpSchema | None:
    """Return the schema of a standard operator in an opset; None if it is not defined, or deprecated."""
    definition = schema_of(op_type, version)
    return None if definition is None or definition.deprecated else definition


@cache
def versions(op_type: str) -> tuple[int, ...]:
    """Return the opsets that redefine a standard operator; none if ONNX does not have it."""
    return tuple(sorted(_history().get(op_type, ())))


@cache
def _history() -> dict[str, set[int]]:
    history: dict[str, set[int]] = {}
    for definition in onnx.defs.get_all_schemas_with_history():
        if definition.domain == "":
            history.setdefault(definition.name, set()).add(definition.since_version)
    return history


def is_redefined(op_type: str, source: int, target: int) -> bool:
    """Return whether an operator is redefined between two opsets."""
    return any(min(source, target) < version <= max(source, target) for version in versions(op_type))


def removable_attributes(node: onnx.NodeProto, source: int, target: int) -> list[str] | None:
    """Return the attributes to remove from a node so that it has the same meaning in the next opset.

    Args:
        node: a standard operator.
        source: its opset.
        target: the opset before or after that.

    Returns:
        Their names: each has the value that is implied in the target. None if the node must change otherwise, or if the
        schemas do not tell.
    """
    old, new = schema(node.op_type, source), schema(node.op_type, target)
    boundary = max(source, target)
    if old is None or new is None or (node.op_type, boundary) in _CHANGED_MEANING:
        return None
    if target < source == _BROADCASTS.get(node.op_type):
        return None
    if not _fits(node.input, old.inputs, new.inputs, new.min_input):
        return None
    if not _fits(node.output, old.outputs, new.outputs, new.min_output):
        return None
    used = len(node.output)
    if [output.name for output in old.outputs[:used]] != [output.name for output in new.outputs[:used]]:
        return None
    given = {attribute.name for attribute in node.attribute}
    dropped = default_attributes(node, source, target)
    if unsupported_value(node, source, target) or any(
        name not in new.attributes and name not in dropped for name in given
    ):
        return None
    for name, formal in old.attributes.items():
        if name in new.attributes:
            if formal.default_value != new.attributes[name].default_value:
                return None
        elif target > source and name not in given and formal.default_value.type:
            return None  # a removed attribute had a default
    if any(formal.required and name not in given for name, formal in new.attributes.items()):
        return None
    return dropped


def unsupported_value(node: onnx.NodeProto, source: int, target: int) -> str | None:
    """Return the attribute of a node whose value the next opset does not support."""
    for attribute in node.attribute:
        if target < _VALUES.get((node.op_type, attribute.name, attribute.s), 0) <= source:
            return str(attribute.name)
    return None


def default_attributes(node: onnx.NodeProto, source: int, target: int) -> list[str]:
    """Return the attributes of a node that the next opset removed, and that have their default values."""
    old, new = schema(node.op_type, source), schema(node.op_type, target)
    if old is None or new is None:
        return []
    return [
        attribute.name
        for attribute in node.attribute
        if attribute.name not in new.attributes
        and attribute.name in old.attributes
        and attribute == old.attributes[attribute.name].default_value
    ]


def is_same_definition(op_type: str, source: int, target: int) -> bool:
    """Return whether two versions of an operator have the same attributes and defaults, and accept the same shapes."""
    if target < _BROADCASTS.get(op_type, 0) <= source:
        return False
    old, new = schema(op_type, source), schema(op_type, target)
    if old is None or new is None or old.attributes.keys() != new.attributes.keys():
        return False
    return all(old.attributes[name].default_value == new.attributes[name].default_value for name in old.attributes)


def _fits(names: Sequence[str], old: Sequence[Parameter], new: Sequence[Parameter], least: int) -> bool:
    """Return whether the inputs or outputs of a node are of the same kinds in both: required, optional, or variadic."""
    if len(names) < least:
        return False
    for index, name in enumerate(names):
        before, after = parameter(old, index), parameter(new, index)
        if before is None or after is None:
            return False
        if (before.option == Option.Variadic) != (after.option == Option.Variadic):
            return False
        if not name and after.option != Option.Optional:
            return False
    return True
