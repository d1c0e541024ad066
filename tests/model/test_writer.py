"""Saving is atomic, weights are copied from file to file, and ONNX Runtime uses mapped weights."""

from __future__ import annotations

import ctypes
import errno
import hashlib
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from onnx import TensorProto, helper

from onnx_bridge.core.errors import InputError
from onnx_bridge.model import io as models
from onnx_bridge.model import storage

COUNT = 50_000
MIB = 1 << 20


def weights(seed: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.random.default_rng(seed).standard_normal(COUNT).astype(np.float32)


def adder(*seeds: int) -> onnx.ModelProto:
    """y = x + w0 + w1 + …"""
    tensors = [onnx.numpy_helper.from_array(weights(seed), f"w{index}") for index, seed in enumerate(seeds)]
    names = ["x", *(f"s{index}" for index in range(len(seeds)))]
    nodes = [helper.make_node("Add", [names[i], f"w{i}"], [names[i + 1]], f"add{i}") for i in range(len(seeds))]
    ends = [[helper.make_tensor_value_info(name, TensorProto.FLOAT, [COUNT])] for name in (names[0], names[-1])]
    graph = helper.make_graph(nodes, "g", *ends, tensors)
    return helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 21)])


def written(folder: Path, *seeds: int, external: bool = False, name: str = "model.onnx") -> Path:
    path = folder / name
    path.write_bytes(adder(*seeds).SerializeToString())
    if external:
        models.save(models.load(path), path, external_data=True)
    return path


def seeds(path: Path) -> list[int]:
    """Return which weights a saved model has."""
    proto = onnx.load(path)
    onnx.checker.check_model(proto)
    known = {weights(seed).tobytes(): seed for seed in range(5)}
    return [known[tensor.raw_data] for tensor in proto.graph.initializer]


def listing(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


GROWTH = """
import sys
from pathlib import Path
from onnx_bridge.model import io as models

def anonymous():
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("RssAnon"))
    return int(line.split()[1]) * 1024

def use(path):
    model = models.load(path)
    models.save(model, path.with_name("again.onnx"))
    models.save(model, path.with_name("again.onnx"), external_data=True)
    models.digest(path.with_name("again.onnx"))
    return models.session_source(model)

small, large = map(Path, sys.argv[1:])
use(small)  # what is imported and allocated once
before = anonymous()
source = use(large)
assert source.weights
print(anonymous() - before)
"""


def growth(folder: Path, path: Path) -> int:
    """By how many bytes anonymous memory grows while a model is loaded, saved, hashed and made ready for a session.

    Measured in a process of its own: in one that other tests share, the allocator gives and takes at its own times.
    """
    (folder / "small").mkdir()
    small = written(folder / "small", 0)
    command = [sys.executable, "-c", GROWTH, str(small), str(path)]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


@contextmanager
def small_files(limit: int) -> Iterator[None]:
    """No file may grow beyond ``limit`` bytes: what a full disk does, without one."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_external_data_is_in_the_order_that_migraphx_reads(tmp_path: Path) -> None:
    path = written(tmp_path, 0, 1, external=True)
    assert listing(tmp_path) == {"model.onnx", "model.onnx.data"}
    tensors = onnx.load(path, load_external_data=False).graph.initializer
    for tensor in tensors:
        entries = [(entry.key, entry.value) for entry in tensor.external_data]
        assert [key for key, _ in entries] == ["location", "offset", "length"]
        assert entries[0][1] == "model.onnx.data"
        assert int(entries[1][1]) % 4096 == 0
    assert seeds(path) == [0, 1]
    models.save(models.load(path), tmp_path / "single.onnx")
    assert not any(each.external_data for each in onnx.load(tmp_path / "single.onnx").graph.initializer)
    assert seeds(tmp_path / "single.onnx") == [0, 1]


def test_shared_weights_are_written_once(tmp_path: Path) -> None:
    model = models.load(written(tmp_path, 0, 1, external=True))
    model.graph.initializers["w1"].const_value = model.graph.initializers["w0"].const_value
    models.save(model, tmp_path / "out.onnx", external_data=True)
    assert (tmp_path / "out.onnx.data").stat().st_size == 4 * COUNT
    assert seeds(tmp_path / "out.onnx") == [0, 0]


@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize("after", [False, True])
def test_saving_over_the_source(tmp_path: Path, before: bool, after: bool) -> None:
    path = written(tmp_path, 0, 1, external=before)
    model = models.load(path)
    first, second = (model.graph.initializers[name] for name in ("w0", "w1"))
    first.const_value, second.const_value = second.const_value, first.const_value
    for expected in ([1, 0], [1, 0]):  # the model itself can be saved again
        models.save(model, path, external_data=after)
        assert seeds(path) == expected


@pytest.mark.parametrize("external", [False, True])
def test_a_replaced_source_is_still_readable(tmp_path: Path, external: bool) -> None:
    path = written(tmp_path, 0, external=external)
    model = models.load(path)
    written(tmp_path, 1, external=external, name="other.onnx")
    for name in ("other.onnx", "other.onnx.data") if external else ("other.onnx",):
        (tmp_path / name).replace(tmp_path / name.replace("other", "model"))
    models.save(model, tmp_path / "out.onnx")
    assert seeds(tmp_path / "out.onnx") == [0]


@pytest.mark.parametrize("external", [False, True])
@pytest.mark.parametrize("change", ["written", "truncated", "emptied", "grown"])
def test_a_source_changed_in_place_is_an_error(tmp_path: Path, external: bool, change: str) -> None:
    path = written(tmp_path, 0, external=external)
    model = models.load(path)
    data = tmp_path / "model.onnx.data" if external else path
    os.utime(data, ns=(0, 0))
    model = models.load(path)
    with data.open("r+b") as file:
        if change == "written":
            file.seek(5000)
            file.write(b"#")
        else:
            file.truncate({"truncated": 9000, "emptied": 0, "grown": 300_000}[change])
    before = listing(tmp_path)
    tensor = model.graph.initializers["w0"].const_value
    assert tensor is not None
    for use in (
        lambda: models.save(model, tmp_path / "out.onnx"),
        lambda: models.save(model, tmp_path / "out.onnx", external_data=True),
        lambda: models.session_source(model),
        tensor.numpy,
        tensor.tobytes,
    ):
        with pytest.raises(InputError, match=r"changed in place.*load the model again") as caught:
            use()
        assert str(data) in str(caught.value)
    assert listing(tmp_path) == before


@pytest.mark.parametrize("external", [False, True])
@pytest.mark.parametrize("limit", [0, 100, 4096, 150_000, 300_000])
def test_a_full_disk_harms_nothing(tmp_path: Path, external: bool, limit: int) -> None:
    path = written(tmp_path, 0, 1, external=external)
    model = models.load(written(tmp_path, 2, 3, name="new.onnx"))
    before = {name: (tmp_path / name).read_bytes() for name in listing(tmp_path)}
    with small_files(limit), pytest.raises(InputError, match="would be larger than is allowed here") as caught:
        models.save(model, path, external_data=external)
    assert str(path) in str(caught.value)
    assert {name: (tmp_path / name).read_bytes() for name in listing(tmp_path)} == before
    assert seeds(path) == [0, 1]


def test_a_failing_rename_harms_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path, 0, 1, external=True)
    model = models.load(written(tmp_path, 2, 3, name="new.onnx"))
    before = {name: (tmp_path / name).read_bytes() for name in listing(tmp_path)}
    rename = Path.replace

    def replace(self: Path, target: Path) -> Path:
        if target == path:
            raise OSError(errno.ENOSPC, "No space left on device")
        return rename(self, target)

    monkeypatch.setattr(Path, "replace", replace)
    for name in ("model.onnx", "model.onnx"):
        with pytest.raises(InputError, match="the model cannot be written: there is no space left on the device"):
            models.save(model, tmp_path / name, external_data=True)
        assert {name: (tmp_path / name).read_bytes() for name in listing(tmp_path)} == before
    (tmp_path / "model.onnx.data").unlink()
    with pytest.raises(InputError, match="no space"):
        models.save(model, path, external_data=True)
    assert listing(tmp_path) == set(before) - {"model.onnx.data"}


def test_copies_without_the_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> int:
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    model = models.load(written(tmp_path, 0, 1))
    monkeypatch.setattr(os, "copy_file_range", refuse)
    monkeypatch.setattr(storage, "_CHUNK", 1000)
    models.save(model, tmp_path / "out.onnx")
    assert seeds(tmp_path / "out.onnx") == [0, 1]


TARGETS = {
    "missing/out.onnx": "the folder does not exist",
    "model.onnx/out.onnx": "a part of its path is not a folder",
    "folder": "this is a folder",
    "folder/..": "this is a folder",
    "data.onnx": "this is a folder",
    "/dev/null": "this is not a regular file",
    "/sys/out.onnx": "Permission denied|Operation not permitted|Read-only file system",
    "n" * 260: "the name is too long",
    "\udcff.onnx": "plain text",
}


@pytest.mark.parametrize("target", TARGETS)
def test_paths_that_cannot_be_written(tmp_path: Path, target: str) -> None:
    model = models.load(written(tmp_path, 0))
    (tmp_path / "folder").mkdir()
    (tmp_path / "data.onnx.data").mkdir()
    before = listing(tmp_path)
    with pytest.raises(InputError, match=TARGETS[target]) as caught:
        models.save(model, tmp_path / target, external_data=True)
    assert "\n" not in str(caught.value)
    assert listing(tmp_path) == before


def test_new_files_have_the_usual_permissions(tmp_path: Path) -> None:
    path = written(tmp_path, 0)
    (tmp_path / "plain").touch()
    models.save(models.load(path), tmp_path / "out.onnx", external_data=True)
    modes = {(tmp_path / name).stat().st_mode for name in ("plain", "out.onnx", "out.onnx.data")}
    assert len(modes) == 1


@pytest.mark.slow
def test_weights_stay_out_of_memory(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    proto = adder(0)
    proto.graph.initializer[0].dims[0] = 24 * MIB
    proto.graph.initializer[0].raw_data = bytes(96 * MIB)
    path.write_bytes(proto.SerializeToString())
    assert growth(tmp_path, path) < 2 * MIB


@pytest.mark.slow
def test_more_than_two_gigabytes(tmp_path: Path) -> None:
    """The data file is mostly a hole, and all tensors but the last share one place, so that nothing takes long."""
    size, shared, last = 5 << 29, 64 * MIB, weights(0)
    with (tmp_path / "data.bin").open("wb") as file:
        file.seek(size)
        file.write(last.tobytes())
    proto = adder()
    for index in range(40):
        proto.graph.initializer.add(name=f"w{index}", data_type=TensorProto.UINT8, dims=[shared])
    proto.graph.initializer.add(name="all", data_type=TensorProto.UINT8, dims=[size])
    proto.graph.initializer.add(name="last", data_type=TensorProto.FLOAT, dims=[COUNT])
    for tensor in proto.graph.initializer:
        tensor.data_location = TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value="data.bin")
        tensor.external_data.add(key="offset", value=str(size if tensor.name == "last" else 0))
    path = tmp_path / "model.onnx"
    path.write_bytes(proto.SerializeToString())

    model = models.load(path)
    whole, end = (model.graph.initializers[name].const_value for name in ("all", "last"))
    assert whole is not None and end is not None
    assert whole.numpy().shape == (size,)
    assert whole.numpy()[-1] == 0
    np.testing.assert_array_equal(end.numpy(), last)
    with pytest.raises(InputError, match=r"has \d{10} bytes, and a single .* less than 2 GiB.*external data"):
        models.save(model, tmp_path / "single.onnx", external_data=False)
    del model.graph.initializers["all"], whole
    models.save(model, tmp_path / "out.onnx")
    assert listing(tmp_path) == {"model.onnx", "data.bin", "out.onnx", "out.onnx.data"}
    assert (tmp_path / "out.onnx.data").stat().st_size == shared + last.nbytes
    saved = models.load(tmp_path / "out.onnx").graph.initializers
    assert sum(value.const_value.nbytes for value in saved.values() if value.const_value) > 2**31
    assert saved["last"].const_value is not None
    np.testing.assert_array_equal(saved["last"].const_value.numpy(), last)
    assert growth(tmp_path, tmp_path / "out.onnx") < 2 * MIB


def test_digest(tmp_path: Path) -> None:
    path = written(tmp_path, 0)
    assert models.digest(path) == hashlib.sha256(path.read_bytes()).hexdigest()
    models.save(models.load(path), path, external_data=True)
    before = models.digest(path)
    assert before == models.digest(str(path))
    data = tmp_path / "model.onnx.data"
    spoiled = bytearray(data.read_bytes())
    spoiled[77] ^= 1
    data.write_bytes(spoiled)
    assert models.digest(path) != before
    data.unlink()
    with pytest.raises(InputError, match="model.onnx.data.*missing"):
        models.digest(path)


def run(source: models.SessionSource, **feeds: Any) -> Any:
    options = onnxruntime.SessionOptions()
    source.add_to(options)
    session = onnxruntime.InferenceSession(source.model, options, providers=["CPUExecutionProvider"])
    return session.run(None, feeds)[0]


@pytest.mark.parametrize("external", [False, True])
def test_onnx_runtime_computes_with_mapped_weights(tmp_path: Path, external: bool) -> None:
    model = models.load(written(tmp_path, 0, 1, external=external))
    model.graph.initializers["w1"].const_value = ir.tensor(weights(2))
    source = models.session_source(model)
    assert len(source.model) < 2000
    assert set(source.weights) == {"w0", "w1"}
    tensor = model.graph.initializers["w0"].const_value
    assert tensor is not None
    assert source.weights["w0"].value().data_ptr() == tensor.numpy().ctypes.data
    x = weights(3)
    np.testing.assert_array_equal(run(source, x=x), x + weights(0) + weights(2))


IN_ORT = "FLOAT DOUBLE FLOAT16 BFLOAT16 BOOL INT8 INT16 INT32 INT64 UINT8 UINT16 UINT32 UINT64 INT4 UINT4 INT2 UINT2 "
IN_ORT += "FLOAT8E4M3FN FLOAT8E4M3FNUZ FLOAT8E5M2 FLOAT8E5M2FNUZ FLOAT8E8M0"


@pytest.mark.parametrize("name", IN_ORT.split())
def test_onnx_runtime_accepts_every_type_that_it_supports(tmp_path: Path, name: str) -> None:
    dtype = ir.DataType[name]
    shape = (3, 100_003)
    data = np.random.default_rng(0).integers(0, 2, (shape[0] * shape[1] * dtype.bitwidth + 7) // 8, np.uint8)
    data[-1] &= 1  # the bits behind the last element are zero
    weight = TensorProto(name="w", data_type=int(dtype), dims=shape, raw_data=data.tobytes())
    to = TensorProto.DOUBLE if name == "FLOAT" else TensorProto.FLOAT
    node = helper.make_node("Cast", ["w"], ["y"], "cast", to=to)
    graph = helper.make_graph([node], "g", [], [helper.make_tensor_value_info("y", to, shape)], [weight])
    proto = helper.make_model(graph, ir_version=13, opset_imports=[helper.make_opsetid("", 25)])
    path = tmp_path / "model.onnx"
    path.write_bytes(proto.SerializeToString())
    source = models.session_source(models.load(path))
    assert ctypes.string_at(source.weights["w"].value().data_ptr(), data.nbytes) == data.tobytes()
    expected = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"]).run(None, {})[0]
    np.testing.assert_array_equal(run(source), expected)


@pytest.mark.parametrize("name", ["w0", "inner"])
@pytest.mark.parametrize("function", [False, True])
def test_weights_of_subgraphs_are_not_mixed_up(tmp_path: Path, name: str, function: bool) -> None:
    """ONNX Runtime gives a weight to whatever initializer has its name, in whichever graph."""
    inner, proto = adder(1).graph, adder(0)
    inner.node[0].input[:] = ["outer", name]
    inner.node[0].output[0] = inner.output[0].name = "i"
    inner.initializer[0].name = name
    del inner.input[:]
    branch = helper.make_node("If", ["c"], ["s0"], "if", then_branch=inner, else_branch=inner)
    proto.graph.input.add().CopyFrom(helper.make_tensor_value_info("c", TensorProto.BOOL, []))
    proto.graph.node[0].output[0] = "outer"
    if function:
        imports = [helper.make_opsetid("", 21)]
        proto.functions.add().CopyFrom(helper.make_function("own", "F", ["c", "outer"], ["s0"], [branch], imports))
        proto.opset_import.add(domain="own", version=1)
        branch = helper.make_node("F", ["c", "outer"], ["s0"], "call", domain="own")
    proto.graph.node.add().CopyFrom(branch)
    path = tmp_path / "model.onnx"
    path.write_bytes(proto.SerializeToString())
    source = models.session_source(models.load(path))
    assert set(source.weights) == ({"w0"} if name == "inner" else set())
    x = weights(3)
    np.testing.assert_array_equal(run(source, x=x, c=np.array(True)), x + weights(0) + weights(1))


def test_constants_of_functions_are_not_mixed_up(tmp_path: Path) -> None:
    proto = adder(0)
    constant = helper.make_node("Constant", [], ["w0"], "k", value=onnx.numpy_helper.from_array(weights(1)))
    body = [constant, helper.make_node("Add", ["a", "w0"], ["b"], "add")]
    proto.functions.add().CopyFrom(helper.make_function("own", "F", ["a"], ["b"], body, [helper.make_opsetid("", 21)]))
    proto.opset_import.add(domain="own", version=1)
    proto.graph.node[0].output[0] = "outer"
    proto.graph.node.add().CopyFrom(helper.make_node("F", ["outer"], ["s0"], "call", domain="own"))
    path = tmp_path / "model.onnx"
    path.write_bytes(proto.SerializeToString())
    x = weights(3)
    source = models.session_source(models.load(path))
    np.testing.assert_array_equal(run(source, x=x), x + weights(0) + weights(1))
