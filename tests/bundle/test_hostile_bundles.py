"""Bundles and inputs of other people: nothing runs in the caller, nothing is read from elsewhere, nothing blocks."""

from __future__ import annotations

import io
import json
import os
import shutil
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import parser

import onnx_bridge
from onnx_bridge.bundle.bundle import Bundle
from onnx_bridge.bundle.manifest.entries import TensorInfo, is_file_name
from onnx_bridge.bundle.manifest.manifest import Manifest
from onnx_bridge.bundle.manifest.text import is_manifest, read_text, sealed
from onnx_bridge.core.errors import BridgeError, InputError
from onnx_bridge.migraphx.runtime import Runtime

X = {"x": np.linspace(-2, 2, 8, dtype=np.float32).reshape(2, 4)}


@pytest.fixture(scope="module")
def original(runtime: Runtime, tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("hostile")
    text = "g (float[2, 4] x) => (float[2, 4] y) { y = Relu(x) }"
    onnx.save(parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> {text}'), home / "m.onnx")
    return onnx_bridge.convert(home / "m.onnx", home / "bundle", target="ref").path


@pytest.fixture
def bundle(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "bundle"))


def rewrite(bundle: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change the manifest, with a right checksum."""
    values = json.loads((bundle / "manifest.json").read_text())
    del values["checksum"]
    change(values)
    (bundle / "manifest.json").write_text(sealed(values))


def archive(path: Path, *entries: tuple[tarfile.TarInfo, bytes]) -> Path:
    """A packed bundle of given files."""
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as file:
        for entry, content in entries:
            entry.size = len(content)
            file.addfile(entry, io.BytesIO(content))
    return path


class TestEnvironment:
    """A manifest sets only variables that MIGraphX reads, to values that they take."""

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("PYTHONWARNINGS", "all:0:antigravity.x:0:0"),
            ("PYTHONPATH", "/elsewhere"),
            ("LD_PRELOAD", "library.so"),
            ("MIGRAPHX_PROBLEM_CACHE", "/etc/passwd"),
            ("MIGRAPHX_UNKNOWN", "1"),
            ("MIGRAPHX_DISABLE_MLIR", "1\n"),
            ("MIGRAPHX_DISABLE_PASSES", "../x"),
            ("MIGRAPHX_DISABLE_MLIR", 1),
        ],
    )
    @pytest.mark.parametrize("packed", [False, True])
    def test_others_are_refused(self, bundle: Path, name: str, value: object, packed: bool) -> None:
        rewrite(bundle, lambda values: values["programs"][0].update(environment={name: value}))
        path = bundle
        if packed:
            files = {each: (bundle / each).read_bytes() for each in ("manifest.json", "m.mxr", "m.onnx")}
            path = archive(bundle.parent / "m.onnxbridge", *((tarfile.TarInfo(each), files[each]) for each in files))
        for use in (onnx_bridge.load, onnx_bridge.bench):
            with pytest.raises(InputError, match=r"not a setting|damaged"):
                use(path)
        assert not onnx_bridge.verify(path).passed

    def test_settings_are_used(self, bundle: Path) -> None:
        settings = {"MIGRAPHX_DISABLE_PASSES": "eliminate_pad,simplify"}
        rewrite(bundle, lambda values: values["programs"][0].update(environment=settings))
        loaded = onnx_bridge.load(bundle)
        np.testing.assert_array_equal(loaded(X)["y"], np.maximum(X["x"], 0))


class TestPacked:
    """One packed bundle cannot take the place of another in the cache of unpacked ones."""

    @pytest.fixture(autouse=True)
    def cache(self, runtime: Runtime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("ONNX_BRIDGE_RUNTIME", str(runtime.path))
        monkeypatch.setenv("ONNX_BRIDGE_CACHE", str(tmp_path / "cache"))

    def test_the_same_manifest_with_another_program(self, bundle: Path, tmp_path: Path) -> None:
        good = tmp_path / "good.onnxbridge"
        onnx_bridge.pack(bundle, good)
        files = {name: (bundle / name).read_bytes() for name in ("manifest.json", "m.onnx", "m.mxr")}
        files["m.mxr"] = bytes(len(files["m.mxr"]))
        bad = archive(tmp_path / "bad.onnxbridge", *((tarfile.TarInfo(name), each) for name, each in files.items()))
        with pytest.raises(InputError, match="damaged"):
            onnx_bridge.load(bad)
        np.testing.assert_array_equal(onnx_bridge.load(good)(X)["y"], np.maximum(X["x"], 0))

    def test_what_is_in_the_cache_is_verified(self, bundle: Path, tmp_path: Path) -> None:
        good = tmp_path / "good.onnxbridge"
        onnx_bridge.pack(bundle, good)
        onnx_bridge.load(good)
        (program,) = (tmp_path / "cache/bundles").glob("*/m.mxr")
        program.write_bytes(bytes(program.stat().st_size))
        np.testing.assert_array_equal(onnx_bridge.load(good)(X)["y"], np.maximum(X["x"], 0))

    def test_headers_that_rename_files(self, bundle: Path, tmp_path: Path) -> None:
        first = tarfile.TarInfo("manifest.json")
        second = tarfile.TarInfo("m.mxr")
        second.pax_headers = {"path": "manifest.json"}
        content = (bundle / "manifest.json").read_bytes()
        renamed = archive(tmp_path / "m.onnxbridge", (first, content), (second, b"{}"))
        with pytest.raises(InputError, match="not a file of a bundle"):
            onnx_bridge.unpack(renamed, tmp_path / "out")

    def test_sparse_files_and_other_headers(self, bundle: Path, tmp_path: Path) -> None:
        first, content = tarfile.TarInfo("manifest.json"), (bundle / "manifest.json").read_bytes()
        second = tarfile.TarInfo("m.mxr")
        headers = {"major": "1", "minor": "0", "name": "m.mxr", "realsize": "9" * 12}
        second.pax_headers = {f"GNU.sparse.{name}": value for name, value in headers.items()}
        packed = archive(tmp_path / "m.onnxbridge", (first, content), (second, b"1\n0\n0\n".ljust(512, b"\0")))
        with pytest.raises(InputError):
            onnx_bridge.unpack(packed, tmp_path / "out")
        assert not (tmp_path / "out").exists()

    @pytest.mark.parametrize("kind", ["sparse of GNU", "a map without end", "a file as a folder", "a huge size"])
    def test_verify_refuses_what_unpack_refuses(self, bundle: Path, tmp_path: Path, kind: str) -> None:
        first, content = tarfile.TarInfo("manifest.json"), (bundle / "manifest.json").read_bytes()
        second, data = tarfile.TarInfo("m.mxr"), (bundle / "m.mxr").read_bytes()
        more = (tarfile.TarInfo("m.mxr/x"), b"")
        headers = {"major": "1", "minor": "0", "name": "m.mxr", "realsize": "1"}
        if kind == "sparse of GNU":
            second.type = tarfile.GNUTYPE_SPARSE
        elif kind == "a map without end":
            second.pax_headers = {f"GNU.sparse.{name}": value for name, value in headers.items()}
            data = b"9" * 512
        packed = archive(tmp_path / "m.onnxbridge", (first, content), (second, data), *[more] * kind.count("folder"))
        if kind == "a huge size":
            whole = bytearray(packed.read_bytes())
            at = whole.index(b"m.mxr\0") + 124
            whole[at : at + 12] = b"\x80" + (2**62).to_bytes(11, "big")
            packed.write_bytes(whole)
        assert not onnx_bridge.verify(packed).passed
        with pytest.raises(InputError):
            onnx_bridge.unpack(packed, tmp_path / "out")
        assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("passes", [{"name": "x", "rewrites": {}}]),
        ("passes", [{}]),
        ("passes", [{"name": "x", "rewrites": 1, "nodes_before": 2, "nodes_after": 1, "seconds": 0.1, "skips": [1]}]),
        ("forecast", {"summary": 1}),
        ("source", {}),
        ("versions", {"migraphx": "2"}),
    ],
)
def test_records_of_the_wrong_type(bundle: Path, field: str, value: object) -> None:
    def change(values: dict[str, Any]) -> None:
        (values if field in values else values["programs"][0])[field] = value

    rewrite(bundle, change)
    with pytest.raises(InputError, match="damaged"):
        onnx_bridge.inspect(bundle)


@pytest.mark.parametrize("name", ["../other.mxr", "/other.mxr", "a/m.mxr", "m.onnx/../../m.mxr", "..", ""])
def test_programs_outside_of_the_bundle(bundle: Path, name: str) -> None:
    def change(values: dict[str, Any]) -> None:
        values["programs"][0]["partitions"][0]["program"]["file"] = name

    rewrite(bundle, change)
    with pytest.raises(InputError, match="damaged.*is not a file in the bundle"):
        onnx_bridge.load(bundle)


def test_scripts_are_named_by_the_caller(bundle: Path, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\ndef f(graph): pass\n")

    def change(values: dict[str, Any]) -> None:
        (program,) = values["programs"]
        program["pipeline"] = f"surgeon{{script={script}:f}},{program['pipeline']}"

    rewrite(bundle, change)
    with pytest.raises(InputError, match="script"):
        onnx_bridge.bisect(bundle)
    assert not (tmp_path / "ran").exists()
    onnx_bridge.bisect(bundle, pipeline=f"surgeon{{script={script}:f}}")
    assert (tmp_path / "ran").exists()


def test_inputs_that_name_other_files(bundle: Path, tmp_path: Path) -> None:
    proto = onnx.TensorProto(data_type=onnx.TensorProto.FLOAT, dims=[2, 4], data_location=onnx.TensorProto.EXTERNAL)
    proto.external_data.add(key="location", value="/etc/passwd")
    (tmp_path / "inputs").mkdir()
    (tmp_path / "inputs/input_0.pb").write_bytes(proto.SerializeToString())
    with pytest.raises(InputError, match="input_0"):
        onnx_bridge.check(bundle, inputs=tmp_path / "inputs")


@pytest.mark.parametrize("name", ["manifest.json", "m.mxr", "m.onnx"])
def test_pipes_and_devices(bundle: Path, name: str) -> None:
    (bundle / name).unlink()
    os.mkfifo(bundle / name)
    if name != "manifest.json":  # without one there is nothing to verify
        assert not onnx_bridge.verify(bundle).passed
    with pytest.raises(InputError):
        onnx_bridge.load(bundle) if name != "m.onnx" else onnx_bridge.pack(bundle, bundle.parent / "m.onnxbridge")
    (bundle / name).unlink()
    (bundle / name).symlink_to("/dev/zero")
    with pytest.raises(InputError):
        onnx_bridge.load(bundle) if name != "m.onnx" else onnx_bridge.pack(bundle, bundle.parent / "m.onnxbridge")


def test_inputs_that_are_no_files(bundle: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "x.npz")
    (tmp_path / "x.json").symlink_to("/dev/zero")
    for name in ("x.npz", "x.json"):
        with pytest.raises(InputError):
            onnx_bridge.check(bundle, inputs=tmp_path / name)


def places(values: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """The path of every value in a JSON document; of lists, of the first two elements."""
    items = values.items() if isinstance(values, dict) else enumerate(values[:2]) if isinstance(values, list) else ()
    for key, value in items:
        yield (*path, key)
        yield from places(value, (*path, key))


ODD = (None, True, -1, 1 << 62, 1.5, "", "../../x", "a\0b\n", [], [[]], {}, {"x": 1}, ["x"], float("1e300"))
"""Values that few fields of a manifest take."""


def test_any_value_in_any_place_of_a_manifest(bundle: Path) -> None:
    """It is either read and shown, or one error says why not; the first that is read in each place, from files."""
    document = json.loads((bundle / "manifest.json").read_text())
    del document["checksum"]
    loaded, refused = Bundle(bundle), 0
    for path in places(document):
        inner, by_files = document, True
        for key in path[:-1]:
            inner = inner[key]
        right = inner[path[-1]]
        for inner[path[-1]] in ODD:
            text = sealed(document)
            try:
                loaded.manifest = Manifest.parse(text, "m")
                loaded.manifest.to_json()
                _ = loaded.specs, loaded.manifest.partition_line, loaded.proof.line
                if by_files:
                    (bundle / "manifest.json").write_text(text)
                    by_files = False
                    onnx_bridge.inspect(bundle).to_json()
            except BridgeError:
                refused += 1
        inner[path[-1]] = right
    assert refused > 300


@pytest.mark.parametrize("start", ["", '{"format": 4, "programs": ', '{"format": 3, "buckets": '])
def test_a_manifest_that_is_nested_too_deeply(tmp_path: Path, start: str) -> None:
    (tmp_path / "manifest.json").write_text(start + "[" * 100_000)
    assert not is_manifest(tmp_path / "manifest.json")
    assert onnx_bridge.verify(tmp_path, here=False).problems
    with pytest.raises(InputError):
        onnx_bridge.load(tmp_path)


@pytest.mark.parametrize("depth", [100, 900])
def test_options_of_a_pass_that_are_nested_too_deeply(bundle: Path, depth: int) -> None:
    path = bundle / "manifest.json"
    values = json.loads(path.read_text())
    values["programs"][0]["passes"][0]["options"] = {"a": "DEEP"}
    path.write_text(json.dumps(values).replace('"DEEP"', "[" * depth + "]" * depth))
    with pytest.raises(InputError, match="nested too deeply"):
        onnx_bridge.inspect(bundle)
    assert onnx_bridge.verify(bundle, here=False).problems


def test_a_value_that_no_machine_holds() -> None:
    value = ir.Value(name="y", shape=ir.Shape([2**31, 2**31]), type=ir.TensorType(ir.DataType.FLOAT))
    with pytest.raises(InputError, match="memory of any machine"):
        TensorInfo.of(value)


@pytest.mark.parametrize(
    "text", ['{"target": {"previous": {}}}', '[{"previous": {}}]', '{"previous": {', '{"previous": {}}']
)
def test_a_manifest_with_an_earlier_one_in_the_wrong_place(text: str, tmp_path: Path) -> None:
    path = tmp_path / "manifest.json"
    path.write_text(text)
    assert read_text(path) == text.encode()


@pytest.mark.parametrize("name", ["", "..", ".", "a/b", "/a", "a\0", "\ud800", "x" * 256])
def test_names_that_are_no_files(name: str) -> None:
    assert not is_file_name(name)


@pytest.mark.parametrize("name", ["a", "batch=1,width=7", "é.bin", "...", "x" * 255, "not \udcff text"])
def test_names_of_files(name: str) -> None:
    assert is_file_name(name)
