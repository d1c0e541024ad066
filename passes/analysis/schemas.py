"""What changed between two opsets for one use of an operator, as far as ONNX's definitions tell.

Most new versions of operators only take in more types, or get an attribute whose default says what was always so. A
node that uses nothing of what is new, or of what went, means the same in both; where a definition does not tell that
the meaning changed, it is listed here.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import onnx

_MEANS_OTHER = {
    ("GroupNormalization", 21),  # scale and bias were of groups, and are of channels
    ("Hardmax", 13),  # went over all axes from its own on, as did the other two
    ("LogSoftmax", 13),
    ("Mod", 28),  # of floats without fmod was not allowed
    ("Resize", 11),  # mapped coordinates otherwise
    ("RoiAlign", 16),  # mapped coordinates otherwise
    ("Softmax", 13),
}
"""Operators, and the opsets from which on they mean something else although they look the same."""
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
"""Values of attributes that came later than the attributes, and when."""
_BROADCASTS = {"Max": 8, "Mean": 8, "Min": 8, "Sum": 8}
"""Operators whose inputs had to have the same shape before an opset."""


@cache
def schema(op_type: str, version: int) -> onnx.defs.OpSchema | None:
    """The definition of a standard operator in an opset; None where it is not defined, or was taken out."""
    try:
        found = onnx.defs.get_schema(op_type, version, "")
    except onnx.defs.SchemaError:
        return None
    return None if found.deprecated else found


@cache
def versions(op_type: str) -> tuple[int, ...]:
    """The opsets that define a standard operator anew; none for an operator that ONNX does not have."""
    return tuple(sorted(_history().get(op_type, ())))


@cache
def _history() -> dict[str, set[int]]:
    found: dict[str, set[int]] = {}
    for each in onnx.defs.get_all_schemas_with_history():
        if each.domain == "":
            found.setdefault(each.name, set()).add(each.since_version)
    return found


def changes(op_type: str, source: int, target: int) -> bool:
    """Whether an operator is defined anew on the way from one opset to another."""
    return any(min(source, target) < version <= max(source, target) for version in versions(op_type))


def superfluous(node: onnx.NodeProto, source: int, target: int) -> list[str] | None:
    """The attributes that a node must lose to mean the same in the next opset.

    Args:
        node: a standard operator.
        source: its opset.
        target: the opset before or after that.

    Returns:
        Their names, of which each says what is always so in the target; None where the node cannot stay as it is, or
        the definitions do not tell.
    """
    old, new = schema(node.op_type, source), schema(node.op_type, target)
    boundary = max(source, target)
    if old is None or new is None or (node.op_type, boundary) in _MEANS_OTHER:
        return None
    if not _fits(node.input, old.inputs, new.inputs, new.min_input):
        return None
    if not _fits(node.output, old.outputs, new.outputs, new.min_output):
        return None
    used = len(node.output)
    if [each.name for each in old.outputs[:used]] != [each.name for each in new.outputs[:used]]:
        return None
    given = {attribute.name for attribute in node.attribute}
    dropped = defaults(node, source, target)
    if too_new(node, source, target) or any(name not in new.attributes and name not in dropped for name in given):
        return None
    for name, formal in old.attributes.items():
        if name in new.attributes:
            if formal.default_value != new.attributes[name].default_value:
                return None
        elif target > source and name not in given and formal.default_value.type:
            return None  # an attribute went that said something even where it was not given
    if any(formal.required and name not in given for name, formal in new.attributes.items()):
        return None
    return dropped


def too_new(node: onnx.NodeProto, source: int, target: int) -> str | None:
    """The attribute of a node whose value the next opset does not know."""
    for attribute in node.attribute:
        if target < _VALUES.get((node.op_type, attribute.name, attribute.s), 0) <= source:
            return str(attribute.name)
    return None


def defaults(node: onnx.NodeProto, source: int, target: int) -> list[str]:
    """The attributes of a node that the next opset does not have, and that say what is said without them."""
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


def alike(op_type: str, source: int, target: int) -> bool:
    """Whether two definitions of an operator have the same attributes and defaults, and take the same shapes."""
    if target < _BROADCASTS.get(op_type, 0) <= source:
        return False
    old, new = schema(op_type, source), schema(op_type, target)
    if old is None or new is None or old.attributes.keys() != new.attributes.keys():
        return False
    return all(old.attributes[name].default_value == new.attributes[name].default_value for name in old.attributes)


def _fits(
    names: Sequence[str],
    old: Sequence[onnx.defs.OpSchema.FormalParameter],
    new: Sequence[onnx.defs.OpSchema.FormalParameter],
    least: int,
) -> bool:
    """Whether the inputs or outputs of a node are what they were: optional, or any number of them, or neither."""
    if len(names) < least:
        return False
    for index, name in enumerate(names):
        before, after = _formal(old, index), _formal(new, index)
        if before is None or after is None:
            return False
        variadic = onnx.defs.OpSchema.FormalParameterOption.Variadic
        if (before.option == variadic) != (after.option == variadic):
            return False
        if not name and after.option != onnx.defs.OpSchema.FormalParameterOption.Optional:
            return False
    return True


def _formal(
    formals: Sequence[onnx.defs.OpSchema.FormalParameter], index: int
) -> onnx.defs.OpSchema.FormalParameter | None:
    if index < len(formals):
        return formals[index]
    last = formals[-1] if formals else None
    return last if last is not None and last.option == onnx.defs.OpSchema.FormalParameterOption.Variadic else None
