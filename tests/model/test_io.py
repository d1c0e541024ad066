"""Loading and saving preserves a model, whatever it contains and however its tensors are stored."""

from __future__ import annotations

import logging
import math
import pickle
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import AttributeProto, TensorProto, helper

from onnx_bridge.core.errors import InputError
from onnx_bridge.model import io as models
from onnx_bridge.model.storage import MappedTensor, MessageTensor, packed_size
from tests.passes.helpers import nested_branches

OPSETS = [helper.make_opsetid("custom", 3), helper.make_opsetid("", 21)]
DTYPES = [each for each in ir.DataType if each != ir.DataType.UNDEFINED]
TYPED = {"FLOAT": "float", "COMPLEX64": "float", "DOUBLE": "double", "COMPLEX128": "double", "INT64": "int64"}
TYPED |= {"UINT32": "uint64", "UINT64": "uint64"}


def tensor(name: str, array: np.ndarray[Any, Any]) -> TensorProto:
    return onnx.numpy_helper.from_array(array, name)


def weight(name: str, *shape: int) -> TensorProto:
    """Big enough to be mapped."""
    return tensor(name, np.random.default_rng(len(name)).standard_normal(shape).astype(np.float32))


def info(name: str, *shape: int | str, dtype: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, shape)


def model_of(graph: onnx.GraphProto, **fields: Any) -> onnx.ModelProto:
    return helper.make_model(graph, **{"ir_version": 11, "opset_imports": OPSETS, **fields})


def write(proto: onnx.ModelProto, path: Path) -> Path:
    path.write_bytes(proto.SerializeToString())
    return path


def tensors(message: Any) -> Iterator[TensorProto]:
    """Every tensor in a message."""
    if isinstance(message, TensorProto):
        yield message
        return
    for descriptor, value in message.ListFields():
        if descriptor.message_type is not None:
            for each in value if hasattr(value, "append") else [value]:
                yield from tensors(each)


def values(each: TensorProto, folder: Path) -> Any:
    """The strings of a tensor, or its bytes as raw data has them."""
    if each.data_location == TensorProto.EXTERNAL:
        entries = {entry.key: entry.value for entry in each.external_data}
        begin = int(entries.get("offset", 0))
        size = (int(np.prod(each.dims, dtype=int)) * ir.DataType(each.data_type).bitwidth + 7) // 8
        return (folder / entries["location"]).read_bytes()[begin : begin + size]
    if each.data_type == TensorProto.STRING:
        return list(each.string_data)
    return ir.from_proto(each).tobytes()


def plain(path: Path) -> onnx.ModelProto:
    """A file, with the elements of all tensors in the same field."""
    proto = onnx.ModelProto.FromString(path.read_bytes())
    for each in tensors(proto):
        data = values(each, path.parent)
        for name in ("raw", "float", "double", "int32", "int64", "uint64", "external", "string"):
            each.ClearField(f"{name}_data")
        each.ClearField("data_location")
        if isinstance(data, list):
            each.string_data.extend(data)
        else:
            each.raw_data = data
    return proto


def again(path: Path, **options: Any) -> Path:
    """The file, loaded and saved."""
    out = path.with_name("again.onnx")
    models.save(models.load(path), out, **options)
    return out


@st.composite
def stored(draw: st.DrawFn) -> tuple[TensorProto, bytes]:
    """A tensor of any type, and its elements where they are to be external data."""
    dtype = draw(st.sampled_from(DTYPES))
    shape = draw(st.sampled_from([(), (0,), (1,), (3,), (2, 0, 3), (2, 5), (3, 7, 13), (41, 67)]))
    count = int(np.prod(shape, dtype=int))
    result = TensorProto(data_type=int(dtype), dims=shape, doc_string=draw(st.sampled_from(["", "words"])))
    if draw(st.booleans()):
        result.metadata_props.add(key="b", value="1")
        result.metadata_props.add(key="a", value="2")
    if dtype == ir.DataType.STRING:
        result.string_data.extend(f"é{index}".encode() if index % 3 else b"\xff\0" for index in range(count))
        return result, b""
    source = random.Random(draw(st.integers(0, 1000)))
    if dtype == ir.DataType.BOOL:
        data = bytes(source.choices((0, 1), k=count))
    elif dtype.name in TYPED:
        array = np.array([source.randrange(1000) for _ in range(count)])
        data = array.astype(dtype.numpy()).tobytes()
    else:
        data = source.randbytes((count * dtype.bitwidth + 7) // 8)
    if (unused := -count * dtype.bitwidth % 8) and data:
        data = data[:-1] + bytes([data[-1] & (0xFF >> unused)])  # the bits behind the last element are zero
    form = draw(st.sampled_from(["raw", "typed", "external"]))
    if form == "external":
        return result, data
    if form == "raw":
        result.raw_data = data
    elif prefix := TYPED.get(dtype.name):
        part = {"float": "<f4", "double": "<f8", "int64": "<i8"}.get(prefix, "<u4" if dtype.name == "UINT32" else "<u8")
        getattr(result, f"{prefix}_data").extend(np.frombuffer(data, part).tolist())
    elif dtype.bitwidth == 6:
        result.int32_data.extend(
            ir.PackedTensor(np.frombuffer(data, np.uint8), dtype, shape=shape).numpy().view(np.uint8).ravel().tolist()
        )
    else:
        kind = {ir.DataType.INT32: "<i4", ir.DataType.INT16: "<i2", ir.DataType.INT8: "i1"}.get(dtype)
        result.int32_data.extend(np.frombuffer(data, kind or f"<u{max(dtype.bitwidth, 8) // 8}").tolist())
    return result, b""


@pytest.mark.slow
@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], derandomize=True
)
@given(st.lists(st.tuples(stored(), st.integers(0, 4)), min_size=1, max_size=5), st.booleans(), st.randoms())
def test_every_type_in_every_form_and_place(
    tmp_path: Path, drawn: list[tuple[tuple[TensorProto, bytes], int]], external: bool, shuffle: random.Random
) -> None:
    data = bytearray(b"#")
    main, inner = onnx.GraphProto(name="main"), onnx.GraphProto(name="inner")
    function = helper.make_function("custom", "F", [], ["last"], [], OPSETS)
    inner.node.append(helper.make_node("Zero", [], ["i"], "zero", domain="custom"))
    inner.output.append(info("i"))
    for number, ((each, payload), place) in enumerate(drawn):
        each.name = f"t{number}"
        if payload:
            entries = [("location", "data.bin"), ("offset", str(len(data))), ("length", str(len(payload)))]
            shuffle.shuffle(entries)
            for key, value in entries:
                each.external_data.add(key=key, value=value)
            each.data_location = TensorProto.EXTERNAL
            data += payload
        if place == 0:
            main.initializer.append(each)
            main.input.append(info(each.name, *each.dims, dtype=each.data_type))
        elif place == 1:
            main.initializer.append(each)
        elif place == 2:
            inner.initializer.append(each)
        elif place == 3:
            function.node.append(helper.make_node("Constant", [], [f"f{number}"], f"c{number}", value=each))
        else:
            node = helper.make_node(
                "Hold", [], [f"h{number}"], f"c{number}", domain="custom", many=[each, each], one=each
            )
            main.node.append(node)
    function.node.append(helper.make_node("Zero", [], ["last"], "zero", domain="custom"))
    branches = {"then_branch": inner, "else_branch": inner}
    main.node.append(helper.make_node("If", ["c"], ["y"], "if", **branches))
    main.input.append(info("c", dtype=TensorProto.BOOL))
    main.output.append(info("y"))
    (tmp_path / "data.bin").write_bytes(data)
    path = write(model_of(main, functions=[function]), tmp_path / "model.onnx")

    out = again(path, external_data=external)
    assert plain(out) == plain(path)
    loaded = models.load(out)
    for value in loaded.graph.initializers.values():
        proto = next(each for each in plain(path).graph.initializer if each.name == value.name)
        expected = ir.from_proto(proto).numpy()
        array = value.const_value.numpy()
        assert (array.dtype, array.shape, array.tolist()) == (expected.dtype, expected.shape, expected.tolist()) or (
            array.tobytes() == expected.tobytes()  # where there are NaNs
        )


def everything() -> onnx.ModelProto:
    """A model with every field, in the order in which it is saved."""
    typed = onnx.TypeProto(denotation="IMAGE")
    typed.sequence_type.elem_type.optional_type.elem_type.tensor_type.elem_type = TensorProto.BFLOAT16
    dim = typed.sequence_type.elem_type.optional_type.elem_type.tensor_type.shape.dim
    dim.add(dim_param="N", denotation="DATA_BATCH")
    dim.add()
    dim.add(dim_value=0)
    hold = helper.make_node(
        "Hold", ["", "x", ""], ["h", "", ""], "hold", domain="custom", overload="two", doc_string="d"
    )
    hold.attribute.extend(
        [
            AttributeProto(name="type", type=AttributeProto.TYPE_PROTO, tp=typed, doc_string="doc"),
            AttributeProto(name="types", type=AttributeProto.TYPE_PROTOS, type_protos=[typed, typed]),
            *(AttributeProto(name=f"none{kind}", type=kind) for kind in ("INTS", "FLOATS", "STRINGS", "TENSORS")),
            AttributeProto(name="string", type="STRING", s=b"\xff\xfe"),
            AttributeProto(name="strings", type="STRINGS", strings=[b"ok", b"\x80", "é".encode()]),
            AttributeProto(name="empty", type="STRING", s=b""),
            AttributeProto(name="big", type="TENSOR", t=weight("in a node", 20, 30)),
            AttributeProto(name="float", type="FLOAT", f=0.1),
        ]
    )
    hold.metadata_props.add(key="z", value="1")
    hold.metadata_props.add(key="a", value="2")
    device = hold.device_configurations.add(configuration_id="two", pipeline_stage=1)
    spec = device.sharding_spec.add(tensor_name="x", device=[0, 1])
    spec.sharded_dim.add(axis=0).simple_sharding.add(dim_value=4, num_shards=2)
    inner = onnx.GraphProto(name="inner", doc_string="inside")
    inner.initializer.append(weight("w inside", 20, 30))
    inner.node.append(helper.make_node("Add", ["x", "w"], ["sum"], "add"))
    inner.value_info.append(info("w inside", "a", "b"))
    inner.output.append(onnx.ValueInfoProto(name="sum"))
    call = helper.make_node("F", ["x"], ["y"], "call", domain="custom", overload="two", alpha=2.0)
    branch = helper.make_node("If", ["c"], ["i"], "if", then_branch=inner, else_branch=inner)

    graph = onnx.GraphProto(name="main", doc_string="about")
    graph.node.extend([hold, branch, call])
    graph.initializer.extend([weight("w", 40, 30), tensor("c", np.array(True)), weight("unused", 3)])
    graph.input.extend([info("x", "N", 30), info("c", dtype=TensorProto.BOOL)])
    graph.input[0].metadata_props.add(key="k", value="v")
    graph.input[0].doc_string = "an input"
    graph.output.extend([info("y", "N", 30), info("x", "N", 30), info("i"), info("w", 40, 30)])
    graph.output[1].CopyFrom(graph.input[0])
    graph.value_info.extend(
        [onnx.ValueInfoProto(name="unused", doc_string="why"), onnx.ValueInfoProto(name="h", type=typed)]
    )
    graph.value_info[0].type.CopyFrom(info("unused", 3).type)
    for name in ("x", "w", "h"):
        graph.quantization_annotation.add(tensor_name=name).quant_parameter_tensor_names.add(
            key="SCALE_TENSOR", value="w"
        )
    graph.metadata_props.add(key="g", value="1")

    function = helper.make_function(
        "custom",
        "F",
        ["a"],
        ["b"],
        [helper.make_node("Scale", ["a"], ["b"], "scale", domain="custom")],
        OPSETS,
        ["alpha", "beta"],
    )
    function.overload, function.doc_string = "two", "a function"
    function.node[0].attribute.append(AttributeProto(name="by", type="FLOAT", ref_attr_name="alpha", doc_string="r"))
    function.attribute_proto.append(helper.make_attribute("table", weight("table", 20, 20)))
    function.value_info.extend([info("a", "N"), info("b", 3)])
    function.metadata_props.add(key="f", value="1")

    result = model_of(
        graph, functions=[function], producer_name="me", producer_version="1", domain="org", doc_string="all"
    )
    result.model_version = 7
    result.metadata_props.add(key="second", value="x")
    result.metadata_props.add(key="first", value="y")
    result.configuration.add(name="two", num_devices=2, device=["CPU", "GPU"])
    result.training_info.add().update_binding.add(key="w", value="y")
    return result


@pytest.mark.parametrize("external", [False, True])
def test_every_field_is_preserved(tmp_path: Path, external: bool, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    path = write(everything(), tmp_path / "model.onnx")
    assert plain(again(path, external_data=external)) == plain(path)
    assert not caplog.records


def test_mapped_tensors_survive_cloning(tmp_path: Path) -> None:
    path = write(everything(), tmp_path / "model.onnx")
    for clone in (models.load(path).clone(), models.load(path).clone(deep_copy=True)):
        models.save(clone, tmp_path / "clone.onnx")
        assert plain(tmp_path / "clone.onnx") == plain(path)
    with pytest.raises(TypeError, match="cannot be copied or sent to another process"):
        pickle.dumps(models.load(path).graph.initializers["w"].const_value)


def test_unknown_fields_are_preserved(tmp_path: Path) -> None:
    future = b"\xa2\x06\x05hello"  # field 100
    path = tmp_path / "model.onnx"
    path.write_bytes(future + everything().SerializeToString())
    assert future in again(path).read_bytes()


def test_big_tensors_are_mapped_and_saving_changes_nothing(tmp_path: Path) -> None:
    model = models.load(write(everything(), tmp_path / "model.onnx"))
    assert isinstance(model.graph.initializers["w"].const_value, MappedTensor)
    before = model.graph.initializers["w"].const_value
    models.save(model, tmp_path / "external.onnx", external_data=True)
    assert model.graph.initializers["w"].const_value is before
    with pytest.raises(ValueError, match="read-only"):
        before.numpy()[0] = 1
    np.testing.assert_array_equal(before, onnx.numpy_helper.to_array(weight("w", 40, 30)))
    assert before.tobytes() == weight("w", 40, 30).raw_data
    assert onnx.ModelProto.FromString(ir.to_proto(model).SerializeToString()).graph.initializer[0].raw_data


@pytest.mark.parametrize("dims", [[], [0, 3], [3], [2, 1]])
@pytest.mark.parametrize("dtype", [ir.DataType.FLOAT, ir.DataType.BOOL, ir.DataType.BFLOAT16, ir.DataType.INT4])
def test_small_tensors_say_of_themselves_what_onnx_ir_says(tmp_path: Path, dtype: ir.DataType, dims: list[int]) -> None:
    size = packed_size(dtype, math.prod(dims))
    tensor = onnx.TensorProto(name="w", data_type=dtype.value, dims=dims, raw_data=bytes(size))
    graph = onnx.GraphProto(name="g", initializer=[tensor])
    graph.output.add(name="w", type=onnx.helper.make_tensor_type_proto(dtype.value, dims))
    imports = [onnx.helper.make_opsetid("", 21)]
    read = models.load(write(onnx.ModelProto(ir_version=10, graph=graph, opset_import=imports), tmp_path / "m.onnx"))
    found, expected = read.graph.initializers["w"].const_value, ir.serde.deserialize_tensor(tensor)
    assert isinstance(found, MessageTensor)
    for each in ("name", "dtype", "shape", "size", "nbytes"):
        assert getattr(found, each) == getattr(expected, each)
    assert found.tobytes() == expected.tobytes()


def test_a_shape_without_a_type_is_left_out_silently(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """ONNX Runtime refuses it."""
    nodes = [helper.make_node("Abs", ["x"], ["t"]), helper.make_node("Neg", ["t"], ["y"])]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [3]) for name in "xy"]
    info = onnx.ValueInfoProto(name="t", doc_string="what it is")
    info.type.tensor_type.shape.dim.add(dim_value=3)
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], value_info=[info])
    source = helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])
    model = models.load(write(source, tmp_path / "model.onnx"))
    assert model.graph.node(0).outputs[0].shape == (3,)
    models.save(model, tmp_path / "again.onnx")
    (saved,) = onnx.load(tmp_path / "again.onnx").graph.value_info
    assert (saved.name, saved.doc_string, saved.HasField("type")) == ("t", "what it is", False)
    assert not caplog.records


def test_values_of_passes_are_saved(tmp_path: Path) -> None:
    model = models.load(write(everything(), tmp_path / "model.onnx"))
    arrays = {"w": np.arange(1200, dtype=np.float32).reshape(40, 30).T, "new": np.arange(-8, 8).astype("int8")}
    for name, dtype in (("w", ir.DataType.FLOAT), ("new", ir.DataType.INT4)):
        value = model.graph.initializers.get(name) or ir.Value(name=name)
        value.const_value = ir.tensor(
            np.tile(arrays[name], (1, 1)) if name == "w" else np.tile(arrays[name], 500), dtype=dtype
        )
        model.graph.register_initializer(value)
    for external in (False, True):
        models.save(model, tmp_path / "out.onnx", external_data=external)
        loaded = models.load(tmp_path / "out.onnx").graph.initializers
        np.testing.assert_array_equal(loaded["w"].const_value.numpy(), arrays["w"])
        np.testing.assert_array_equal(loaded["new"].const_value.numpy().astype(np.int8), np.tile(arrays["new"], 500))
    model.graph.initializers["new"].const_value = None
    with pytest.raises(InputError, match="'new': the initializer has no value"):
        models.save(model, tmp_path / "out.onnx")


def test_unnamed_nodes_get_names_once(tmp_path: Path) -> None:
    nodes = [helper.make_node("Neg", ["x"], ["a"]), helper.make_node("Neg", ["a"], ["b"], "Neg_1")]
    nodes += [helper.make_node("Neg", ["b"], ["y"])]
    path = write(model_of(helper.make_graph(nodes, "g", [info("x")], [info("y")])), tmp_path / "model.onnx")
    assert [node.name for node in models.load(path).graph] == ["Neg_0", "Neg_1", "Neg_2"]
    once = again(path)
    assert once.read_bytes() == again(once).read_bytes()


def test_an_input_that_is_an_output_keeps_what_it_says(tmp_path: Path) -> None:
    node = helper.make_node("Neg", ["x"], ["y"])
    said = helper.make_tensor_value_info("x", TensorProto.FLOAT, [5, 4])
    unknown = helper.make_tensor_value_info("x", TensorProto.FLOAT, None)
    path = write(model_of(helper.make_graph([node], "g", [said], [unknown, info("y")])), tmp_path / "model.onnx")
    assert models.load(path).graph.inputs[0].shape == [5, 4]


def test_nodes_are_put_in_order(tmp_path: Path) -> None:
    inner = helper.make_graph([helper.make_node("Neg", ["late"], ["i"], "inner")], "inner", [], [info("i")])
    nodes = [
        helper.make_node("If", ["c"], ["y"], "if", then_branch=inner, else_branch=inner),
        helper.make_node("Neg", ["a"], ["late"], "second"),
        helper.make_node("Neg", ["x"], ["a"], "first"),
    ]
    inputs = [info("x"), info("c", dtype=TensorProto.BOOL)]
    path = write(model_of(helper.make_graph(nodes, "g", inputs, [info("y")])), tmp_path / "model.onnx")
    assert [node.name for node in models.load(path).graph] == ["first", "second", "if"]


def test_the_highest_opset_of_both_names_is_used(tmp_path: Path) -> None:
    graph = helper.make_graph(
        [helper.make_node("Neg", ["x"], ["y"], "n", domain="ai.onnx")], "g", [info("x")], [info("y")]
    )
    imports = [helper.make_opsetid("ai.onnx", 21), helper.make_opsetid("", 13)]
    model = models.load(write(model_of(graph, opset_imports=imports), tmp_path / "model.onnx"))
    assert model.opset_imports == {"": 21}


def test_attributes_of_the_first_version_have_types(tmp_path: Path) -> None:
    node = helper.make_node("Transpose", ["x"], ["y"], "t")
    node.attribute.append(AttributeProto(name="perm", ints=[1, 0]))
    path = write(
        model_of(helper.make_graph([node], "g", [info("x", 2, 3)], [info("y", 3, 2)])), tmp_path / "model.onnx"
    )
    (loaded,) = models.load(path).graph
    assert loaded.attributes["perm"].as_ints() == (1, 0)


def test_types_in_old_functions_move_to_the_graph_and_back(tmp_path: Path) -> None:
    function = helper.make_function("custom", "F", ["a"], ["b"], [helper.make_node("Neg", ["a"], ["b"], "n")], OPSETS)
    graph = helper.make_graph(
        [helper.make_node("F", ["x"], ["y"], "f", domain="custom")], "g", [info("x")], [info("y")]
    )
    graph.value_info.extend([info("custom::F/a", 2), info("custom::F/b", 2)])
    path = write(model_of(graph, functions=[function], ir_version=9), tmp_path / "model.onnx")
    assert plain(again(path)) == plain(path)


def test_functions_that_stand_for_too_many_nodes(tmp_path: Path) -> None:
    """Counted when the file is read: neither ONNX's inference nor ONNX Runtime would return from it."""
    bodies = "".join(
        f"""<domain: "local", opset_import: ["": 17, "local": 1]>
            f{index} (a) => (c) {{ b = local.f{index + 1}(a) c = local.f{index + 1}(b) }}"""
        for index in range(25)
    )
    text = f"""<ir_version: 10, opset_import: ["": 17, "local": 1]> g (float[2] x) => (float[2] y) {{ y = local.f0(x) }}
        {bodies} <domain: "local", opset_import: ["": 17]> f25 (a) => (b) {{ b = Relu(a) }}"""
    path = tmp_path / "m.onnx"
    onnx.save(onnx.parser.parse_model(text), path)
    with pytest.raises(InputError, match="33,554,432 nodes") as error:
        models.load(path)
    assert error.value.where == str(path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("depth", [32, 1500])
def test_a_copy_of_what_is_nested_too_deeply(depth: int) -> None:
    with pytest.raises(InputError, match=f"nested {depth} deep") as error:
        models.owned(nested_branches(depth))
    assert "\n" not in str(error.value)
