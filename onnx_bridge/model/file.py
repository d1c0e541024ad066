"""An ONNX file as a protobuf message: read without its large tensors, and validated.

What onnx_ir would misread or drop silently is normalized here, or rejected with an error that names the place.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir

from onnx_bridge.core.errors import InputError, nearest
from onnx_bridge.core.third_party import shorten
from onnx_bridge.model.classes import keep_scores
from onnx_bridge.model.folder import decoder_file, is_model_folder
from onnx_bridge.model.foreign import hint_of_file
from onnx_bridge.model.message import NotUtf8, parse
from onnx_bridge.model.sparse import dense
from onnx_bridge.model.storage import Source, Span, locate, packed_size
from onnx_bridge.model.validity import interface_problem, node_problem, versions_problem
from onnx_bridge.model.wire_format import Malformed, strip
from passes.graphs.byte_strings import escaped
from passes.graphs.limits import MAX_ELEMENTS, MAX_RANK

_Attr = onnx.AttributeProto
_VALUE_FIELDS = {
    "f": _Attr.FLOAT,
    "i": _Attr.INT,
    "s": _Attr.STRING,
    "t": _Attr.TENSOR,
    "g": _Attr.GRAPH,
    "floats": _Attr.FLOATS,
    "ints": _Attr.INTS,
    "strings": _Attr.STRINGS,
    "tensors": _Attr.TENSORS,
    "graphs": _Attr.GRAPHS,
}
"""The type of an attribute by its field; files of IR version 1 do not state it."""
_SIX_BITS = (ir.DataType.FLOAT6E2M3, ir.DataType.FLOAT6E3M2)
_TYPED_DATA = {
    ir.DataType.FLOAT: "float_data",
    ir.DataType.COMPLEX64: "float_data",
    ir.DataType.DOUBLE: "double_data",
    ir.DataType.COMPLEX128: "double_data",
    ir.DataType.INT64: "int64_data",
    ir.DataType.UINT32: "uint64_data",
    ir.DataType.UINT64: "uint64_data",
    ir.DataType.STRING: "string_data",
}
"""The field of the elements of a tensor; for other types it is ``int32_data``."""
_DATA = ("raw_data", "int32_data", *dict.fromkeys(_TYPED_DATA.values()))
"""All of these fields, of which a tensor has one."""


@dataclass
class _Scope:
    """The names of the values of a graph: all, and those that the nodes so far have defined."""

    names: set[str] = field(default_factory=set)
    ready: set[str] = field(default_factory=set)


class ModelFile:
    """A model file, read and validated, without its large tensors.

    Attributes:
        proto: the model. Tensors that were left out have ``data_location`` EXTERNAL and one ``external_data`` entry
            ``location``, an index into `spans`.
        spans: the elements of those tensors.
        sources: the files that they are in, by real path; the model file itself comes first.
        carried: the fields of ModelProto that onnx_ir cannot represent, which `save` copies.
        token: the prefix of a string attribute that is not UTF-8 (`passes.graphs.byte_strings`).
        unsorted: whether a node comes before one that it depends on.
    """

    def __init__(self, path: Path) -> None:
        """Read and validate a file, or that of a model's folder.

        Raises InputError if it cannot be read, is not an ONNX model, or is invalid.
        """
        self.path = path = decoder_file(path) if is_model_folder(path) else path
        self.spans: list[Span] = []
        self.unsorted = False
        source = Source(path)
        self.sources = {Path(os.path.realpath(path)): source}
        self._located: dict[str, Source] = {}
        try:
            if source.size == 0:
                raise Malformed("the file is empty")
            stripped = strip(source.memory, source.size)
            self.proto = parse(stripped.message)
        except NotUtf8 as error:
            raise self._error(str(error), "write this text as UTF-8, or remove it") from error
        except Malformed as error:
            raise self._not_a_model(str(error)) from error
        self.token = stripped.token
        self._extents = [Span(source, begin, end - begin) for begin, end in stripped.extents]
        self.carried = tuple(Span(source, begin, end - begin) for begin, end in stripped.carried)
        self._model()

    def digest(self) -> str:
        """Return the SHA-256 in hexadecimal: of the file, or of the digests of the file and of its external data."""
        hashes = []
        for source in self.sources.values():
            hashed, at = hashlib.sha256(), 0
            while chunk := source.read(at, 1 << 22):
                hashed.update(chunk)
                at += len(chunk)
            hashes.append(hashed)
        if len(hashes) == 1:
            return hashes[0].hexdigest()
        return hashlib.sha256(b"".join(hashed.digest() for hashed in hashes)).hexdigest()

    def _error(self, what: str, hint: str | None = None) -> InputError:
        return InputError(what, where=str(self.path), hint=hint)

    def _not_a_model(self, why: str) -> InputError:
        hint = hint_of_file(self.path, next(iter(self.sources.values())).read(0, 24))
        what = "this is not an ONNX model" + (f": {why}" if hint is None else "")
        return self._error(what, hint or "is it a complete ONNX file?")

    def _model(self) -> None:
        proto = self.proto
        if not proto.HasField("graph") or not proto.ir_version or not proto.opset_import:
            missing = "graph" if not proto.HasField("graph") else "opset import" if proto.ir_version else "IR version"
            raise self._not_a_model(f"it has no {missing}")
        if problem := versions_problem(proto) or interface_problem(proto.graph):
            raise self._error(problem)
        keep_scores(proto)
        self._functions = {(function.domain, function.name) for function in proto.functions}
        self._opsets = _normalize(proto.opset_import)
        self._graph(proto.graph, [])
        seen = set()
        for function in proto.functions:
            key = (function.domain, function.name, function.overload)
            if key in seen:
                raise self._error(f"the function {function.domain}.{function.name} is defined twice")
            seen.add(key)
            self._function(function)

    def _function(self, function: onnx.FunctionProto) -> None:
        what = f"the function {function.name}"
        self._opsets = _normalize(function.opset_import)
        scope = _Scope()
        for name in function.input:
            self._define(name, scope, what)
        self._infos(function.value_info)
        for attribute in function.attribute_proto:
            self._attribute(attribute, [], what)
        self._nodes(function.node, function.output, [scope], what)

    def _graph(self, graph: onnx.GraphProto, outer: list[_Scope]) -> None:
        what = f"the graph {graph.name!r}"
        for sparse in graph.sparse_initializer:
            graph.initializer.append(self._dense(sparse, f"the initializer {sparse.values.name!r}"))
        del graph.sparse_initializer[:]
        self._lift_constants(graph)
        scope = _Scope()
        for info in graph.input:
            self._define(info.name, scope, what)
        inputs = set(scope.names)
        initialized = set()
        for tensor in graph.initializer:
            if not tensor.name:
                raise self._error(f"{what} has an initializer without a name")
            if tensor.name in initialized:
                raise self._error(f"{what} has two initializers named {tensor.name!r}")
            initialized.add(tensor.name)
            if tensor.name not in inputs:
                self._define(tensor.name, scope, what)
            self._tensor(tensor, f"the initializer {tensor.name!r}")
        for infos in (graph.input, graph.output, graph.value_info):
            self._infos(infos)
        self._nodes(graph.node, [info.name for info in graph.output], [*outer, scope], what)

    def _lift_constants(self, graph: onnx.GraphProto) -> None:
        """Replace Constant nodes whose value is external data, which no runtime reads there, by initializers."""
        kept = []
        for node in graph.node:
            constant = node.op_type == "Constant" and node.domain in ("", "ai.onnx")
            if constant and len(node.attribute) == len(node.output) == 1:
                tensor = node.attribute[0].t
                if tensor.data_location == onnx.TensorProto.EXTERNAL and not self._is_stub(tensor):
                    lifted = graph.initializer.add()
                    lifted.CopyFrom(tensor)
                    lifted.name = node.output[0]
                    continue
            kept.append(node)
        if len(kept) < len(graph.node):
            nodes = [onnx.NodeProto.FromString(node.SerializeToString()) for node in kept]
            del graph.node[:]
            graph.node.extend(nodes)

    def _nodes(self, nodes: Iterable[onnx.NodeProto], outputs: Iterable[str], scopes: list[_Scope], what: str) -> None:
        """Validate the nodes of a graph or function, whose inputs and initializers are in the last scope."""
        scope = scopes[-1]
        scope.ready |= scope.names
        for node in nodes:
            for name in node.output:
                if name:
                    self._define(name, scope, what)
        for node in nodes:
            for name in node.input:
                if name and not self._is_defined(name, scopes):
                    raise self._error(f"{_label(node)} needs {name!r}, which nothing defines")
            for attribute in node.attribute:
                self._attribute(attribute, scopes, _label(node))
            if problem := node_problem(node, self._opsets, self._functions):
                raise self._error(f"{_label(node)} {problem}")
            scope.ready.update(node.output)
        for name in outputs:
            if name in scope.names:
                continue
            if any(name in outer.names for outer in scopes):
                hint = "put an Identity node in between"
                raise self._error(f"the output {name!r} of {what} comes from the graph around it", hint)
            raise self._error(f"nothing defines the output {name!r} of {what}")

    def _define(self, name: str, scope: _Scope, what: str) -> None:
        if name in scope.names:
            raise self._error(f"{what} defines the value {name!r} more than once")
        scope.names.add(name)

    def _is_defined(self, name: str, scopes: list[_Scope]) -> bool:
        """Return whether a value exists; sets `unsorted` if its node comes later."""
        for scope in reversed(scopes):
            if name in scope.ready:
                return True
            if name in scope.names:
                self.unsorted = True
                return True
        return False

    def _attribute(self, attribute: onnx.AttributeProto, scopes: list[_Scope], what: str) -> None:
        if attribute.ref_attr_name:
            return
        what = f"the attribute {attribute.name!r} of {what}"
        if attribute.type == _Attr.UNDEFINED:
            types = [_VALUE_FIELDS[name.name] for name, _ in attribute.ListFields() if name.name in _VALUE_FIELDS]
            if len(types) != 1:
                raise self._error(f"{what} has no type")
            attribute.type = types[0]
        kind = attribute.type
        if kind in (_Attr.TENSOR, _Attr.TENSORS):
            for tensor in [attribute.t] if kind == _Attr.TENSOR else attribute.tensors:
                self._tensor(tensor, what)
        elif kind in (_Attr.GRAPH, _Attr.GRAPHS):
            for graph in [attribute.g] if kind == _Attr.GRAPH else attribute.graphs:
                self._graph(graph, scopes)
        elif kind == _Attr.STRING:
            attribute.s = escaped(attribute.s, self.token)
        elif kind == _Attr.STRINGS:
            attribute.strings[:] = [escaped(item, self.token) for item in attribute.strings]
        elif kind in (_Attr.TYPE_PROTO, _Attr.TYPE_PROTOS):
            for proto in [attribute.tp] if kind == _Attr.TYPE_PROTO else attribute.type_protos:
                self._type(proto, what)
        elif kind == _Attr.SPARSE_TENSOR and attribute.name == "sparse_value":
            attribute.t.CopyFrom(self._dense(attribute.sparse_tensor, what))
            attribute.ClearField("sparse_tensor")
            attribute.name, attribute.type = "value", _Attr.TENSOR
        elif kind in (_Attr.SPARSE_TENSOR, _Attr.SPARSE_TENSORS):
            raise self._error(f"{what} is a sparse tensor, which is not supported", "replace it with a dense one")

    def _dense(self, sparse: onnx.SparseTensorProto, what: str) -> onnx.TensorProto:
        for tensor, part in ((sparse.values, "values"), (sparse.indices, "indices")):
            self._tensor(tensor, f"{what}, of whose {part} it consists,")
        try:
            return dense(sparse)
        except ValueError as error:
            raise self._error(f"{what} is sparse, and {error}") from None

    def _infos(self, infos: Iterable[onnx.ValueInfoProto]) -> None:
        for info in infos:
            if info.HasField("type"):
                self._type(info.type, f"the value {info.name!r}")

    def _type(self, kind: onnx.TypeProto, what: str) -> None:
        while True:
            which = kind.WhichOneof("value")
            if which in ("map_type", "opaque_type"):
                raise self._error(f"{what} is of {which.replace('_', ' ')}, which is not supported")
            if which in ("sequence_type", "optional_type"):
                kind = getattr(kind, which).elem_type
                continue
            if which is not None and not getattr(kind, which).HasField("elem_type"):
                getattr(kind, which).elem_type = 0  # unknown; onnx_ir would lose the shape with it
            return

    def _is_stub(self, tensor: onnx.TensorProto) -> bool:
        return len(tensor.external_data) == 1 and tensor.external_data[0].key == self.token

    def _tensor(self, tensor: onnx.TensorProto, what: str) -> None:
        """Validate the number of elements of a tensor, and record the span of those that were left out."""
        try:
            dtype = ir.DataType(tensor.data_type)
            if len(tensor.dims) > MAX_RANK or math.prod(dim for dim in tensor.dims if dim > 0) > MAX_ELEMENTS:
                raise self._error(f"{what} has more dimensions or elements than any tensor")
            count = math.prod(tensor.dims)
            needed = count if dtype == ir.DataType.STRING else packed_size(dtype, count)
        except (TypeError, ValueError):
            raise self._error(f"{what} is of an unknown type (number {tensor.data_type})") from None
        if any(dim < 0 for dim in tensor.dims):
            raise self._error(f"{what} has a negative dimension: {list(tensor.dims)}")
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            span = self._span(tensor, what, dtype, needed)
            del tensor.external_data[:]
            tensor.external_data.add(key="location", value=str(len(self.spans)))
            self.spans.append(span)
            return
        filled = [name for name in _DATA if len(getattr(tensor, name))]
        expected = "raw_data" if tensor.HasField("raw_data") else _TYPED_DATA.get(dtype, "int32_data")
        if others := [name for name in filled if name != expected]:
            raise self._error(f"{what} has elements as {others[0]}, where its type and other fields need {expected}")
        if expected == "raw_data":
            if dtype == ir.DataType.STRING:
                raise self._error(f"{what} has strings as raw data")
            length, unit = len(tensor.raw_data), "bytes"
        else:
            length, unit = len(getattr(tensor, expected)), "entries"
            if dtype in (ir.DataType.COMPLEX64, ir.DataType.COMPLEX128):
                needed = 2 * count
            elif dtype == ir.DataType.STRING or dtype.bitwidth > 4:  # narrower elements are packed, a byte an entry
                needed = count
        if length != needed:
            raise self._error(f"{what} has {length} {unit} of data where its shape and type need {needed}")
        if dtype in _SIX_BITS:  # with bits that must be 0
            try:
                ir.serde.deserialize_tensor(tensor).tobytes()
            except ValueError as error:
                raise self._error(f"{what} has elements that are not {dtype.name}: {error}") from None

    def _span(self, tensor: onnx.TensorProto, what: str, dtype: ir.DataType, needed: int) -> Span:
        """Return the span of the elements of a tensor that were left out, or are external data."""
        if self._is_stub(tensor):
            span = self._extents[int(tensor.external_data[0].value)]
            if span.nbytes != needed:
                raise self._error(f"{what} has {span.nbytes} bytes of data where its shape and type need {needed}")
            return span
        if dtype == ir.DataType.STRING:
            raise self._error(f"{what} has strings as external data")
        entries = {entry.key: entry.value for entry in tensor.external_data}
        numbers = {}
        for key, default in (("offset", 0), ("length", needed)):
            text = entries.get(key, str(default))
            if not (text.isascii() and text.isdigit() and len(text) < 20):
                raise self._error(f"{what}: its external data has the {key} {text!r}, which is not a number of bytes")
            numbers[key] = int(text)
        offset, length = numbers["offset"], numbers["length"]
        location = entries.get("location", "")
        if length != needed:
            raise self._error(f"{what} has {length} bytes in {location!r} where its shape and type need {needed}")
        source = self._data_file(location, what)
        if offset + length > source.size:
            what = f"{what} ends at byte {offset + length} of {location!r}, which has only {source.size} bytes"
            raise self._error(what, "was the file cut off?")
        return Span(source, offset, length)

    def _data_file(self, location: str, what: str) -> Source:
        if location not in self._located:
            try:
                path = locate(location, self.path)
                self._located[location] = self.sources.setdefault(path, Source(path))
            except InputError as error:
                if isinstance(error.__context__, FileNotFoundError):
                    raise self._missing(location, what, path) from error
                where = f"{error.where}: " if error.where else ""
                raise self._error(f"{what}: {where}{error.what}", error.hint) from error
        return self._located[location]

    def _missing(self, location: str, what: str, path: Path) -> InputError:
        """Return the error for a file of external data that does not exist, with the other ones that are missing."""
        entries = (entry for tensor in self.proto.graph.initializer for entry in tensor.external_data)
        # of tensors that are located already, it is a number
        names = {entry.value for entry in entries if entry.key == "location" and not entry.value.isdigit()}
        missing = (name for name in names - {location} if not os.path.exists(self.path.parent / name))  # noqa: PTH110
        others = [shorten(repr(name), 60) for name in sorted(missing)]
        more = f", and so are {', '.join(others[:3])}{', …' * (len(others) > 3)}" if others else ""
        with suppress(OSError):
            names = {entry.name for entry in path.parent.iterdir() if entry.suffix != ".onnx"}
        hint = nearest(path.name, names - {location})
        return self._error(
            f"{what} is in the data file {location!r}, which is missing{more}: looked for {path}",
            f"{hint} then rename it" if hint else "copy the data files there: a model needs them beside it",
        )


def _normalize(imports: Any) -> dict[str, int]:
    """Keep the highest opset import of each domain, as ONNX specifies, and return the versions; ONNX's domain is ""."""
    highest: dict[str, int] = {}
    for entry in imports:
        domain = "" if entry.domain == "ai.onnx" else entry.domain
        highest[domain] = max(entry.version, highest.get(domain, 0))
    del imports[:]
    for domain, version in highest.items():
        imports.add(domain=domain, version=version)
    return highest


def _label(node: onnx.NodeProto) -> str:
    if node.name:
        return f"the {node.op_type} node {node.name!r}"
    return f"the {node.op_type} node that makes {next(iter(node.output), '')!r}"
