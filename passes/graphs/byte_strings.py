"""String attributes that are not UTF-8, which ONNX allows and onnx_ir cannot read.

While a model is read they are replaced by a token and their bytes in hexadecimal. In the model they are decoded with
surrogate escapes, and encoded to the same bytes when it is written.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable

import onnx
import onnx_ir as ir

from passes.graphs.scopes import scopes


class _NonUtf8(str):
    """A string whose bytes are not UTF-8."""

    __slots__ = ()

    def encode(self, encoding: str = "utf-8", errors: str = "surrogateescape") -> bytes:
        return super().encode(encoding, errors)


def escaped(raw: bytes, token: str) -> bytes:
    """Return a string as onnx_ir can read it; ``token`` is a prefix that no other string has."""
    try:
        raw.decode()
    except UnicodeDecodeError:
        return f"{token}{raw.hex()}".encode()
    return raw


def restored(text: str, token: str) -> str:
    """Return the string that was escaped, or the same if it was not."""
    if not text.startswith(token):
        return text
    return _NonUtf8(bytes.fromhex(text[len(token) :]).decode("utf-8", "surrogateescape"))


def from_proto(proto: onnx.ModelProto) -> ir.Model:
    """Return the model of a ``proto`` whose string attributes may have any bytes; they are escaped in ``proto``."""
    token = secrets.token_hex(16)
    if not any([_escape(proto.graph.node, token), *(_escape(function.node, token) for function in proto.functions)]):
        return ir.from_proto(proto)
    model: ir.Model = ir.from_proto(proto)
    for scope in scopes(model):
        for node in scope.nodes():
            for name, attribute in list(node.attributes.items()):
                if attribute.is_ref():
                    continue
                if attribute.type == ir.AttributeType.STRING:
                    node.attributes[name] = ir.AttrString(name, restored(attribute.as_string(), token))
                elif attribute.type == ir.AttributeType.STRINGS:
                    strings = [restored(string, token) for string in attribute.as_strings()]
                    node.attributes[name] = ir.AttrStrings(name, strings)
    return model


def _escape(nodes: Iterable[onnx.NodeProto], token: str) -> bool:
    """Escape the strings of nodes and their subgraphs; return whether there were any to escape."""
    any_escaped = False
    for node in nodes:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                any_escaped |= _escape(attribute.g.node, token)
            elif attribute.type == onnx.AttributeProto.STRING and (new := escaped(attribute.s, token)) != attribute.s:
                attribute.s, any_escaped = new, True
            elif attribute.type == onnx.AttributeProto.STRINGS:
                strings = [escaped(string, token) for string in attribute.strings]
                if strings != list(attribute.strings):
                    attribute.strings[:], any_escaped = strings, True
    return any_escaped
