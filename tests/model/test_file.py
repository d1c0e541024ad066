"""Files that are not models, invalid models, and external data in all its arrangements."""

from __future__ import annotations

import os
import pickle
import random
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnx_bridge.core.errors import InputError
from onnx_bridge.model import io as models
from onnx_bridge.model import wire_format
from onnx_bridge.model.reader import CARRIED

COUNT = 1000
WEIGHTS = np.random.default_rng(0).standard_normal(COUNT).astype(np.float32)


def info(name: str, *shape: int) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)


def write(proto: onnx.ModelProto, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(proto.SerializeToString())
    return path


def adder(weight: TensorProto) -> onnx.ModelProto:
    nodes = [helper.make_node("Neg", ["x"], ["a"], "first"), helper.make_node("Add", ["a", "w"], ["y"], "second")]
    size = weight.dims[0]
    graph = helper.make_graph(nodes, "g", [info("x", size)], [info("y", size)], [weight])
    return helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 21)])


def external(*entries: tuple[str, str]) -> TensorProto:
    weight = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[COUNT], data_location=TensorProto.EXTERNAL)
    for key, value in entries:
        weight.external_data.add(key=key, value=value)
    return weight


def loaded(path: str | Path) -> np.ndarray[Any, Any]:
    tensor = models.load(path).graph.initializers["w"].const_value
    assert tensor is not None
    return tensor.numpy()


FILES: dict[str, tuple[Callable[[Path], object], str]] = {
    "missing": (
        lambda path: path.with_name("modle.onnx").touch(),
        r"the file does not exist \(did you mean modle.onnx\?\)",
    ),
    "no folder": (lambda path: path.parent.rmdir(), "the file does not exist"),
    "folder": (lambda path: path.mkdir(), "this is a folder"),
    "folder of a model": (
        lambda path: write(adder(external()), path / "m.onnx"),
        "name a file in it: .*/in/model.onnx/m.onnx",
    ),
    "pipe": (lambda path: os.mkfifo(path), "not a regular file"),
    "loop": (lambda path: path.symlink_to(path), "cannot be read: Too many levels"),
    "empty": (lambda path: path.touch(), "the file is empty"),
    "text": (
        lambda path: path.write_text("This is a text about models.\n" * 9),
        "not an ONNX model.*is it a complete",
    ),
    "zeros": (lambda path: path.write_bytes(bytes(5000)), "not an ONNX model: no field starts at byte 0"),
    "noise": (lambda path: path.write_bytes(random.Random(0).randbytes(5000)), "not an ONNX model"),
    "endless": (lambda path: path.write_bytes(b"\xff" * 5000), "not an ONNX model: the integer .* does not end"),
    "deep": (
        lambda path: path.write_bytes(nested(300)),
        "not an ONNX model: messages are nested deeper than 100 levels",
    ),
    "tensor": (
        lambda path: path.write_bytes(onnx.numpy_helper.from_array(WEIGHTS).SerializeToString()),
        "not an ONNX model",
    ),
    "graph": (lambda path: path.write_bytes(adder(external()).graph.SerializeToString()), "not an ONNX model"),
    "pointer": (
        lambda path: path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"),
        "run git lfs pull",
    ),
    "PyTorch": (lambda path: zipfile.ZipFile(path, "w").writestr("net/data.pkl", b"\x80\x02."), "onnx-bridge export"),
    "ONNX Runtime's format": (lambda path: path.write_bytes(b"\x18\0\0\0ORTM" + bytes(99)), "the .onnx file"),
    "TensorFlow Lite": (lambda path: path.write_bytes(b"\x1c\0\0\0TFL3" + bytes(99)), "tf2onnx.convert"),
    "pickle": (lambda path: path.write_bytes(pickle.dumps({"weight": [1.0]}, 2)), "onnx-bridge export"),
}


def nested(levels: int) -> bytes:
    """Graphs in attributes of nodes of graphs …"""
    message = bytes(2000)
    for level in range(levels):
        number = (6, 5, 1)[level % 3]
        size = len(message)
        message = bytes([number << 3 | 2, size & 127 | 128, size >> 7 & 127 | 128, size >> 14]) + message
    size = len(message)
    return b"\x08\x0a" + bytes([7 << 3 | 2, size & 127 | 128, size >> 7 & 127 | 128, size >> 14]) + message


@pytest.mark.parametrize("kind", FILES)
def test_files_that_are_not_models_are_rejected_in_one_line(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "in" / "model.onnx"
    path.parent.mkdir()
    make, message = FILES[kind]
    make(path)
    with pytest.raises(InputError, match=message) as caught:
        models.load(path)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)


def test_truncated_models_are_rejected(tmp_path: Path) -> None:
    whole = adder(onnx.numpy_helper.from_array(WEIGHTS, "w")).SerializeToString()
    path = tmp_path / "model.onnx"
    for size in {*range(150), *range(150, len(whole) - 150, 97), *range(len(whole) - 150, len(whole))}:
        path.write_bytes(whole[:size])
        with pytest.raises(InputError, match="not an ONNX model"):
            models.load(path)


@pytest.mark.slow
def test_damaged_models_are_rejected_or_loaded(tmp_path: Path) -> None:
    source = random.Random(0)
    (tmp_path / "data").write_bytes(WEIGHTS.tobytes())
    whole = adder(external(("location", "data"), ("offset", "0"))).SerializeToString()
    path = tmp_path / "model.onnx"
    for _ in range(500):
        spoiled = bytearray(whole)
        spoiled[source.randrange(len(spoiled))] = source.randrange(256)
        path.write_bytes(spoiled)
        try:
            model = models.load(path)
            models.save(model, tmp_path / "out.onnx")
        except InputError as error:
            assert "\n" not in str(error).replace("\\n", "")


@pytest.mark.parametrize("name", ["first", "data.bin", "hidden"])
def test_names_that_are_not_utf8_are_rejected(tmp_path: Path, name: str) -> None:
    proto = adder(external(("location", "data.bin")))
    proto.graph.node[0].output[0] = proto.graph.node[1].input[0] = "hidden"
    path = tmp_path / "model.onnx"
    path.with_name("data.bin").write_bytes(WEIGHTS.tobytes())
    path.write_bytes(proto.SerializeToString().replace(name.encode(), b"\xff" * len(name)))
    with pytest.raises(InputError, match="not UTF-8"):
        models.load(path)


def every_string(message: Any, found: list[tuple[str, str]], place: str = "", depth: int = 0) -> list[tuple[str, str]]:
    """Fill in each string of a message and of those within it; returns them with their places."""
    for field in message.DESCRIPTOR.fields:
        if field.containing_oneof and message.WhichOneof(field.containing_oneof.name):
            continue
        name = f"{place}{field.name}{'[0]' if field.is_repeated else ''}"
        if field.message_type is not None and depth < 6 and place.count(f"{field.name}[0].") < 2:
            inner = getattr(message, field.name)
            every_string(inner.add() if field.is_repeated else inner, found, f"{name}.", depth + 1)
        elif field.type == field.TYPE_STRING:
            found.append((name, f"text {len(found):05}"))
            if field.is_repeated:
                getattr(message, field.name).append(found[-1][1])
            else:
                setattr(message, field.name, found[-1][1])
    return found


def test_any_string_that_is_not_utf8_is_rejected(tmp_path: Path) -> None:
    proto = onnx.ModelProto(ir_version=10)
    strings = every_string(proto, [])
    whole = proto.SerializeToString()
    seen: set[tuple[str, ...]] = set()
    for place, text in strings:
        field = tuple(place.split(".")[-2:])
        if field in seen or text.encode() not in whole or place.startswith("training_info"):  # which is only copied
            continue
        seen.add(field)
        path = tmp_path / "model.onnx"
        path.write_bytes(whole.replace(text.encode(), b"w\xf6rd" + text[4:].encode()))
        with pytest.raises(InputError) as caught:
            models.load(path)
        assert caught.value.what == f"{place} is not UTF-8: {b'w' + bytes([0xF6]) + b'rd' + text[4:].encode()!r}"
        assert caught.value.where == str(path)
    assert len(seen) > 60
    assert {("dim[0]", "dim_param"), ("functions[0]", "overload"), ("type", "denotation")} <= seen


def test_text_that_is_not_utf8_is_shown_in_part(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    proto = spoiled(lambda m: setattr(m.graph, "doc_string", "words " * 1000))
    path.write_bytes(proto.SerializeToString().replace(b"words ", b"w\xf6rds ", 1))
    with pytest.raises(InputError, match="is not UTF-8") as caught:
        models.load(path)
    assert len(caught.value.what) < 150


def test_a_doc_string_that_is_not_utf8_is_rejected_when_saving(tmp_path: Path) -> None:
    model = models.load(write(adder(onnx.numpy_helper.from_array(WEIGHTS, "w")), tmp_path / "model.onnx"))
    model.doc_string = "w\udcf6rds"
    with pytest.raises(InputError, match="not UTF-8, and cannot be written"):
        models.save(model, tmp_path / "out.onnx")


ENTRIES: dict[str, tuple[list[tuple[str, str]], str]] = {
    "no entries": ([], "must be in a file within the folder"),
    "missing": (
        [("location", "dta.bin")],
        r"'dta.bin', which is missing: looked for .*dta.bin \(did you mean data.bin\? ",
    ),
    "folder": ([("location", ".")], "this is a folder"),
    "absolute": ([("location", "/etc/passwd")], "within the folder of the model, not in '/etc/passwd'"),
    "above": ([("location", "../secret.bin")], "not in '../secret.bin'"),
    "above by detour": ([("location", "sub/../../secret.bin")], "not in 'sub/../../secret.bin'"),
    "null": ([("location", "data.bin\0")], "within the folder"),
    "long": ([("location", "a/" * 1_000_000)], "a path of 2000000 characters"),
    "linked": ([("location", "link.bin")], "'link.bin' leads to /etc/passwd"),
    "linked folder": ([("location", "sub/secret.bin")], "'sub/secret.bin' leads to .*secret.bin"),
    "negative": ([("location", "data.bin"), ("offset", "-4")], "the offset '-4', which is not a number of bytes"),
    "words": ([("length", "many"), ("location", "data.bin")], "the length 'many', which is not a number"),
    "huge": ([("location", "data.bin"), ("offset", "9" * 5000)], "not a number of bytes"),
    "length": ([("location", "data.bin"), ("length", "8")], "has 8 bytes in 'data.bin' where .* need 4000"),
    "end": ([("location", "data.bin"), ("offset", "200")], "ends at byte 4200 of 'data.bin', which has only 4100"),
    "empty": ([("location", "empty.bin")], "which has only 0 bytes"),
}


@pytest.mark.parametrize("kind", ENTRIES)
@pytest.mark.parametrize("relative", [False, True])
def test_invalid_external_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, relative: bool) -> None:
    entries, message = ENTRIES[kind]
    path = write(adder(external(*entries)), tmp_path / "in" / "model.onnx")
    path.with_name("data.bin").write_bytes(bytes(4100))
    path.with_name("empty.bin").touch()
    (tmp_path / "secret.bin").write_bytes(bytes(5000))
    path.with_name("link.bin").symlink_to("/etc/passwd")
    path.with_name("sub").symlink_to(tmp_path)
    monkeypatch.chdir(path.parent)
    with pytest.raises(InputError, match=message) as caught:
        models.load("model.onnx" if relative else path)
    assert "the initializer 'w'" in str(caught.value)
    assert "model.onnx" in str(caught.value)


def test_all_data_files_that_are_missing_are_named_and_the_model_is_not_taken_for_one(tmp_path: Path) -> None:
    proto = adder(external(("location", "unet.onnx.data")))
    for location in ("more.data", "there.data", "null\0", "long" * 2000):
        tensor = proto.graph.initializer.add()
        tensor.CopyFrom(external(("location", location)))
        tensor.name = location[:9]
    path = write(proto, tmp_path / "unet.onnx")
    path.with_name("there.data").write_bytes(bytes(4000))
    with pytest.raises(InputError) as caught:
        models.load(path)
    said = str(caught.value)
    assert "'unet.onnx.data', which is missing, and so are 'long" in said
    assert str(path.with_name("unet.onnx.data")) in said
    assert "unet.onnx?" not in said
    assert "'there.data'" not in said
    assert "\n" not in said


@pytest.mark.parametrize(
    "entries",
    [
        [("location", "sub/data.bin"), ("offset", "4"), ("length", "4000")],
        [("offset", "4"), ("checksum", "?"), ("length", "4000"), ("location", "sub/../sub/data.bin")],
        [("length", "4000"), ("offset", "4"), ("location", "link.bin")],
        [("location", "hard.bin"), ("offset", "4")],
        [("length", "4000"), ("location", "whole.bin")],
        [("location", "./whole.bin")],
    ],
)
def test_valid_external_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, entries: list[tuple[str, str]]) -> None:
    path = write(adder(external(*entries)), tmp_path / "model.onnx")
    data = tmp_path / "sub" / "data.bin"
    data.parent.mkdir()
    data.write_bytes(b"1234" + WEIGHTS.tobytes() + b"5678")
    path.with_name("whole.bin").write_bytes(WEIGHTS.tobytes())
    path.with_name("link.bin").symlink_to("sub/data.bin")
    path.with_name("hard.bin").hardlink_to(data)
    np.testing.assert_array_equal(loaded(path), WEIGHTS)
    monkeypatch.chdir(tmp_path)
    np.testing.assert_array_equal(loaded("model.onnx"), WEIGHTS)


def test_the_cache_of_a_model_hub(tmp_path: Path) -> None:
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "main" / "onnx"
    snapshot.mkdir(parents=True)
    write(adder(external(("location", "model.onnx_data"))), blobs / "aaaa")
    (blobs / "bbbb").write_bytes(WEIGHTS.tobytes())
    (snapshot / "model.onnx").symlink_to("../../../blobs/aaaa")
    (snapshot / "model.onnx_data").symlink_to("../../../blobs/bbbb")
    np.testing.assert_array_equal(loaded(snapshot / "model.onnx"), WEIGHTS)
    models.save(models.load(snapshot / "model.onnx"), snapshot / "model.onnx")
    assert not (snapshot / "model.onnx").is_symlink()
    assert (blobs / "aaaa").read_bytes() == adder(external(("location", "model.onnx_data"))).SerializeToString()


def test_constants_in_external_data_become_initializers(tmp_path: Path) -> None:
    (tmp_path / "data.bin").write_bytes(WEIGHTS.tobytes())
    weight = external(("location", "data.bin"))
    constant = helper.make_node("Constant", [], ["k"], "constant", value=weight)
    inner = helper.make_graph([constant], "inner", [], [info("k", COUNT)])
    function = helper.make_function("custom", "F", [], ["k"], [constant], [helper.make_opsetid("", 21)])
    choose = helper.make_node("If", ["c"], ["i"], "if", then_branch=inner, else_branch=inner)
    nodes = [constant, choose, helper.make_node("F", [], ["f"], "call", domain="custom")]
    condition = helper.make_tensor_value_info("c", TensorProto.BOOL, [])
    graph = helper.make_graph(nodes, "g", [condition], [info("k", COUNT), info("i", COUNT), info("f", COUNT)])
    imports = [helper.make_opsetid("", 21), helper.make_opsetid("custom", 1)]
    proto = helper.make_model(graph, functions=[function], ir_version=10, opset_imports=imports)

    model = models.load(write(proto, tmp_path / "model.onnx"))
    assert [node.op_type for node in model.graph] == ["If", "F"]
    for scope in model.graphs():
        tensor = scope.initializers["k"].const_value
        assert tensor is not None
        np.testing.assert_array_equal(tensor.numpy(), WEIGHTS)
    for external_data in (False, True):
        models.save(model, tmp_path / "out.onnx", external_data=external_data)
        onnx.checker.check_model(str(tmp_path / "out.onnx"))
        (body,) = models.load(tmp_path / "out.onnx").functions.values()
        np.testing.assert_array_equal(body[0].attributes["value"].as_tensor().numpy(), WEIGHTS)
        inside = onnx.load(tmp_path / "out.onnx", load_external_data=False).functions[0].node[0].attribute[0].t
        assert inside.data_location == TensorProto.DEFAULT


def spoiled(change: Callable[[onnx.ModelProto], object]) -> onnx.ModelProto:
    proto = adder(onnx.numpy_helper.from_array(np.ones(2, np.float32), "w"))
    change(proto)
    return proto


def swap(items: Any, index: int, new: str) -> None:
    items[index] = new


DEFECTS: dict[str, tuple[Callable[[onnx.ModelProto], object], str]] = {
    "no graph": (lambda m: m.ClearField("graph"), "has no graph"),
    "no version": (lambda m: m.ClearField("ir_version"), "has no IR version"),
    "no opset": (lambda m: m.ClearField("opset_import"), "has no opset import"),
    "cycle": (lambda m: swap(m.graph.node[0].input, 0, "y"), "Neg 'first' → Add 'second'|Add 'second' → Neg 'first'"),
    "undefined": (lambda m: swap(m.graph.node[1].input, 0, "gone"), "Add node 'second' needs 'gone'"),
    "output": (lambda m: m.graph.output.append(info("gone")), "nothing defines the output 'gone'"),
    "twice": (lambda m: swap(m.graph.node[1].output, 0, "a"), "'a' more than once"),
    "over": (lambda m: swap(m.graph.node[0].output, 0, "w"), "'w' more than once"),
    "inputs": (lambda m: m.graph.input.append(info("x")), "'x' more than once"),
    "initializers": (lambda m: m.graph.initializer.append(m.graph.initializer[0]), "two initializers named 'w'"),
    "nameless": (lambda m: m.graph.initializer[0].ClearField("name"), "without a name"),
    "short": (lambda m: m.graph.initializer[0].dims.append(3), "'w' has 8 bytes of data where .* need 24"),
    "entries": (
        lambda m: m.graph.initializer.add(name="v", data_type=1, dims=[2], float_data=[1]),
        "'v' has 1 entries",
    ),
    "vast": (lambda m: m.graph.initializer[0].dims.extend([2**62] * 10), "'w' has more dimensions or elements"),
    "deep": (lambda m: m.graph.initializer[0].dims.extend([1] * 300_000), "'w' has more dimensions or elements"),
    "vast and empty": (lambda m: m.graph.initializer[0].dims.extend([0, 2**62, 2**62]), "more dimensions or elements"),
    "an element too many": (
        lambda m: m.graph.initializer.add(name="v", data_type=7, dims=[0, 2**40, 2]),
        "'v' has more dimensions or elements",
    ),
    "deep input": (
        lambda m: m.graph.input.append(info("z", *[2**62] * 300_000)),
        "'z' has more than 64 dimensions",
    ),
    "parts": (
        lambda m: m.graph.node.append(helper.make_node("Split", ["x"], ["z"], num_outputs=2**28)),
        "has 1 output, and its num_outputs is 268435456",
    ),
    "two attributes": (
        lambda m: m.graph.node[0].attribute.extend(
            helper.make_attribute(name, 1) for name in (*map(str, range(100_000)), "twice", "twice")
        ),
        "two attributes 'twice'",
    ),
    "negative": (lambda m: swap(m.graph.initializer[0].dims, 0, -2), "negative dimension"),
    "type": (lambda m: setattr(m.graph.initializer[0], "data_type", 99), "unknown type .number 99"),
    "strings": (lambda m: setattr(m.graph.initializer[0], "data_type", 8), "strings as raw data"),
    "sparse": (
        lambda m: m.graph.sparse_initializer.add().values.CopyFrom(onnx.numpy_helper.from_array(np.ones(1), "s")),
        "'s', of whose indices it consists, is of an unknown type",
    ),
    "sparse attribute": (
        lambda m: m.graph.node[0].attribute.add(name="v", type="SPARSE_TENSOR"),
        "attribute 'v' of the Neg node 'first' is a sparse tensor",
    ),
    "untyped": (lambda m: m.graph.node[0].attribute.add(name="v"), "attribute 'v' of .* has no type"),
    "map": (lambda m: m.graph.output[0].type.map_type.SetInParent(), "'y' is of map type"),
    "opaque": (lambda m: m.graph.output[0].type.opaque_type.SetInParent(), "'y' is of opaque type"),
    "functions": (
        lambda m: m.functions.extend([onnx.FunctionProto(name="F", domain="d")] * 2),
        "function d.F is defined twice",
    ),
    "function": (lambda m: m.functions.add(name="F", output=["gone"]), "nothing defines the output 'gone'"),
    "outer": (
        lambda m: m.graph.node[0].attribute.append(
            helper.make_attribute("g", helper.make_graph([], "inner", [], [info("x")]))
        ),
        "'x' of the graph 'inner' comes from the graph around it",
    ),
}


@pytest.mark.parametrize("defect", DEFECTS)
def test_invalid_models_are_rejected(tmp_path: Path, defect: str) -> None:
    change, message = DEFECTS[defect]
    path = write(spoiled(change), tmp_path / "model.onnx")
    with pytest.raises(InputError, match=message) as caught:
        models.load(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_fields_of_other_versions_are_one_piece(tmp_path: Path) -> None:
    """A hundred thousand, which are copied as they are."""
    fields = b"\x98\x06\x01" * 100_000
    path = write(spoiled(lambda m: None), tmp_path / "model.onnx")
    path.write_bytes(path.read_bytes() + fields)
    model = models.load(path)
    assert len(model.graph.meta[CARRIED]) == 1
    models.save(model, tmp_path / "out.onnx")
    assert fields in (tmp_path / "out.onnx").read_bytes()


def test_nothing_of_a_file_is_printed_as_it_is(tmp_path: Path) -> None:
    """onnx_ir warns of a tensor that is not there, by its name."""
    proto = spoiled(lambda m: m.configuration.add(name="c", num_devices=1))
    spec = proto.graph.node[0].device_configurations.add(configuration_id="c").sharding_spec.add()
    spec.tensor_name = "gone\x1b[2J\nforged"
    path = write(proto, tmp_path / "model.onnx")
    code = "import sys; from onnx_bridge.model import io; io.load(sys.argv[1])"
    printed = subprocess.run([sys.executable, "-c", code, path], capture_output=True, check=True)
    assert printed.stderr == b""


def test_lists_of_millions_of_numbers_are_not_walked(monkeypatch: pytest.MonkeyPatch) -> None:
    """A trained ensemble of 194 MB took a minute to load: its lists are not packed, and each number is a field."""
    numbers = helper.make_node("Trees", ["x"], ["y"], name="n", ints=list(range(9000)), floats=[0.5] * 9000)
    weight = numpy_helper.from_array(np.ones(9000, np.float32), "w")
    graph = helper.make_graph([numbers, helper.make_node("Constant", [], ["w"], value=weight)], "g", [], [])
    data = helper.make_model(graph).SerializeToString()
    read: list[int] = []
    varint = wire_format._varint
    monkeypatch.setattr(wire_format, "_varint", lambda data, at, end: (read.append(at), varint(data, at, end))[1])
    stripped = wire_format.strip(data, len(data))
    assert len(stripped.extents) == 1
    assert len(read) < 200
    assert onnx.load_from_string(stripped.message).graph.node[0] == numbers
