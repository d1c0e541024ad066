"""Bundles as files: what `verify` finds, and one file that `pack` makes and that everything takes as it is."""

from __future__ import annotations

import dataclasses
import io
import json
import multiprocessing
import os
import shutil
import tarfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

import onnx_bridge
from onnx_bridge.bundle.files import pack, verify
from onnx_bridge.bundle.manifest.text import sealed
from onnx_bridge.cli import main
from onnx_bridge.core.errors import InputError
from onnx_bridge.migraphx.runtime import Runtime
from onnx_bridge.reference.comparison.compare import compare
from onnx_bridge.reference.reference import Reference
from onnx_bridge.views.terminal.view import render

X = {"x": np.linspace(-1, 1, 64, dtype=np.float32).reshape(2, 32)}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose weights are large enough to be shared."""
    path = tmp_path_factory.mktemp("packing") / "m.onnx"
    text = "(float[n, 32] x) => (float[n, 32] y) { a = MatMul(x, w) b = Tanh(a) y = MatMul(b, v) }"
    proto = parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> g {text}')
    draw = np.random.default_rng(0)
    for name, shape in (("w", (32, 700)), ("v", (700, 32))):
        weights = (draw.standard_normal(shape) / 30).astype(np.float32)
        proto.graph.initializer.append(numpy_helper.from_array(weights, name))
    onnx.save(proto, path)
    return path


@pytest.fixture(scope="module")
def bundles(runtime: Runtime, model: Path) -> dict[str, Path]:
    """One of each kind, by the name of the kind."""
    home = model.parent
    onnx_bridge.convert(model, home / "folder", dims={"n": 2}, target="ref")
    onnx_bridge.convert(model, home / "alone.mxr", dims={"n": 2}, target="ref")
    onnx_bridge.convert(model, home / "buckets", buckets={"n": [2, 3]}, target="ref")
    return {"folder": home / "folder", "alone": home / "alone.mxr", "buckets": home / "buckets"}


KINDS = pytest.mark.parametrize("kind", ["folder", "alone", "buckets"])


@pytest.fixture
def cache(runtime: Runtime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder of the test's own; the runtime is where it was."""
    monkeypatch.setenv("ONNX_BRIDGE_RUNTIME", str(runtime.path))
    monkeypatch.setenv("ONNX_BRIDGE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@KINDS
def test_packed_and_loaded_as_it_is(kind: str, model: Path, bundles: dict[str, Path], cache: Path) -> None:
    packed = cache.parent / "m.onnxbridge"
    written = onnx_bridge.pack(bundles[kind], packed)
    assert written.bytes <= packed.stat().st_size
    first = packed.read_bytes()
    onnx_bridge.pack(bundles[kind], packed)  # the same bundle, the same bytes
    assert packed.read_bytes() == first
    assert onnx_bridge.verify(packed).passed
    assert not cache.exists()  # which needs no unpacking
    expected = Reference(model).run(X)
    for _ in range(2):
        assert compare(onnx_bridge.load(packed)(X), expected).passed
    (unpacked,) = (each for each in (cache / "bundles").iterdir() if each.is_dir())
    assert onnx_bridge.verify(unpacked).passed
    assert onnx_bridge.check(packed, reference=model).passed
    onnx_bridge.unpack(packed, cache.parent / "out")
    assert onnx_bridge.verify(cache.parent / "out").passed
    assert compare(onnx_bridge.load(cache.parent / "out")(X), expected).passed


@KINDS
def test_any_tool_unpacks_it(kind: str, bundles: dict[str, Path], cache: Path) -> None:
    packed, out = cache.parent / "m.onnxbridge", cache.parent / "out"
    onnx_bridge.pack(bundles[kind], packed)
    with tarfile.open(packed) as archive:
        assert archive.getnames()[0] == "manifest.json"
        archive.extractall(out, filter="data")
    assert onnx_bridge.verify(out).passed


@KINDS
def test_every_byte_counts(kind: str, bundles: dict[str, Path], tmp_path: Path) -> None:
    """A bit that is flipped anywhere in any file is found, in the bundle and in the packed one."""
    for name, source in verify.verify(bundles[kind]).files.items():
        shutil.rmtree(tmp_path / "copy", ignore_errors=True)
        if kind == "alone":
            (tmp_path / "copy").mkdir()
            for each in (source.parent / "alone.mxr", source.parent / "alone.manifest.json"):
                shutil.copy(each, tmp_path / "copy" / each.name)
        else:
            shutil.copytree(bundles[kind], tmp_path / "copy")
        bundle = tmp_path / "copy" / ("alone.mxr" if kind == "alone" else "")
        damaged = tmp_path / "copy" / name
        data = bytearray(damaged.read_bytes())
        data[len(data) // 2] ^= 1
        damaged.write_bytes(data)
        found = onnx_bridge.verify(bundle)
        assert not found.passed
        assert name in found.problems
        with pytest.raises(InputError, match="damaged"):
            onnx_bridge.pack(bundle, tmp_path / "x.onnxbridge")
        damaged.unlink()
        if "manifest" not in name:
            assert onnx_bridge.verify(bundle).problems == {name: "it is missing"}
    assert not list(tmp_path.glob("*.onnxbridge"))


def test_a_damaged_file(bundles: dict[str, Path], cache: Path) -> None:
    packed, out = cache.parent / "m.onnxbridge", cache.parent / "out"
    onnx_bridge.pack(bundles["folder"], packed)
    whole = packed.read_bytes()
    middle = whole.index((bundles["folder"] / "m.mxr").read_bytes()[:64]) + 32
    flipped = whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :]
    for data in (flipped, whole[: len(whole) // 2]):
        packed.write_bytes(data)
        assert not onnx_bridge.verify(packed).passed
        for use in (lambda: onnx_bridge.unpack(packed, out), lambda: onnx_bridge.load(packed)):
            with pytest.raises(InputError, match="damaged"):
                use()
        assert not out.exists()
    assert not [each for each in (cache / "bundles").iterdir() if each.is_dir()]


@pytest.mark.parametrize("name", ["../outside", "/outside", "link", "a\0b"])
def test_what_pack_does_not_write(name: str, tmp_path: Path) -> None:
    """Nothing is written outside of the folder, and no link is followed."""
    packed = tmp_path / "m.onnxbridge"
    with tarfile.open(packed, "w", format=tarfile.PAX_FORMAT) as archive:
        first = tarfile.TarInfo("manifest.json")
        first.size = 2
        archive.addfile(first, io.BytesIO(b"{}"))
        entry = tarfile.TarInfo(name)
        if name == "link":
            entry.type, entry.linkname = tarfile.SYMTYPE, "/etc/passwd"
        if "\0" in name:
            entry.name, entry.pax_headers = "a", {"path": name}
        archive.addfile(entry)
    with pytest.raises(InputError, match="not a file of a bundle"):
        onnx_bridge.unpack(packed, tmp_path / "a/out")
    assert not (tmp_path / "a/outside").exists()
    assert not (tmp_path / "a/out").exists()


def test_places_that_are_taken(bundles: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "mine.tar").write_text("mine")
    (tmp_path / "a.onnxbridge").mkdir()
    for out in ("mine.tar", "a.onnxbridge"):
        with pytest.raises(InputError, match="exists already"):
            onnx_bridge.pack(bundles["folder"], tmp_path / out)
    for out in ("m.mxr", "m.zip", "m.tar.gz", "m"):
        with pytest.raises(InputError, match=r"tar archive.*\.onnxbridge"):
            onnx_bridge.pack(bundles["folder"], tmp_path / out)
        assert not (tmp_path / out).exists()
    onnx_bridge.pack(bundles["folder"], tmp_path / "m.onnxbridge")
    with pytest.raises(InputError, match="exists already"):
        onnx_bridge.unpack(tmp_path / "m.onnxbridge", tmp_path)
    assert (tmp_path / "mine.tar").read_text() == "mine"


def test_one_bucket_is_no_whole(bundles: dict[str, Path], tmp_path: Path) -> None:
    assert onnx_bridge.verify(bundles["buckets"] / "n=2").passed
    with pytest.raises(InputError, match=r"share their weights \(pack all buckets"):
        onnx_bridge.pack(bundles["buckets"] / "n=2", tmp_path / "m.onnxbridge")


class TestHere:
    """Whether it runs here."""

    def changed(self, bundle: Path, tmp_path: Path, **values: object) -> Path:
        """A copy whose manifest says something else, and is whole."""
        shutil.copytree(bundle, tmp_path / "copy")
        manifest = tmp_path / "copy/manifest.json"
        said = json.loads(manifest.read_text())
        del said["checksum"]
        manifest.write_text(sealed({**said, **values}))
        return tmp_path / "copy"

    def test_another_release(self, bundles: dict[str, Path], tmp_path: Path) -> None:
        versions = json.loads((bundles["folder"] / "manifest.json").read_text())["versions"]
        bundle = self.changed(bundles["folder"], tmp_path, versions={**versions, "migraphx": "1.0.0"})
        found = onnx_bridge.verify(bundle)
        assert not found.problems
        assert found.unfit is not None
        assert "compiled by MIGraphX 1.0.0" in found.unfit
        assert onnx_bridge.verify(bundle, here=False).passed

    def test_another_build(self, bundles: dict[str, Path], tmp_path: Path) -> None:
        versions = json.loads((bundles["folder"] / "manifest.json").read_text())["versions"]
        bundle = self.changed(bundles["folder"], tmp_path, versions={**versions, "runtime": "2.14.0-other"})
        found = onnx_bridge.verify(bundle)
        assert found.passed
        assert any("another build" in note for note in found.notes)

    def test_another_machine(
        self, bundles: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runtime: Runtime
    ) -> None:
        from onnx_bridge.bundle.manifest import compatibility as module

        bundle = self.changed(bundles["folder"], tmp_path, target="gpu", architecture="gfx906")
        monkeypatch.setattr(module, "gpu_architecture", lambda: "gfx942")
        monkeypatch.setattr(module, "resolve_target", lambda *_: "gpu")
        found = onnx_bridge.verify(bundle)
        assert found.unfit is not None
        assert "compiled for gfx906, and the GPU here is gfx942" in found.unfit
        assert "for gpu (gfx906)" in found.made

    def test_an_earlier_manifest(self, bundles: dict[str, Path], tmp_path: Path) -> None:
        bundle = self.changed(bundles["folder"], tmp_path)
        manifest = bundle / "manifest.json"
        said = json.loads(manifest.read_text())
        del said["checksum"]
        manifest.write_text(json.dumps(said))
        assert "no checksum" in onnx_bridge.verify(bundle).problems["manifest.json"]
        onnx_bridge.load(bundle)  # which goes by the files

    def test_what_does_not_belong(self, bundles: dict[str, Path], tmp_path: Path) -> None:
        bundle = self.changed(bundles["folder"], tmp_path)
        (bundle / "notes.txt").write_text("mine")
        found = onnx_bridge.verify(bundle)
        assert found.passed
        assert found.notes == ["files that do not belong to the bundle: notes.txt"]


def test_command_line(
    bundles: dict[str, Path], cache: Path, capsys: pytest.CaptureFixture[str], bridge: Callable[..., int]
) -> None:
    packed, folder = cache.parent / "m.onnxbridge", cache.parent / "again"
    assert bridge("pack", bundles["folder"], "-o", packed) == 0
    assert bridge("unpack", packed, "-o", folder) == 0
    capsys.readouterr()
    assert bridge("verify", packed) == 0
    assert "intact: 3 files" in capsys.readouterr().out
    (folder / "m.onnx").write_bytes(b"")
    assert bridge("verify", folder, "--json") == 1
    said = json.loads(capsys.readouterr().out)
    assert (said["intact"], list(said["problems"])) == (False, ["m.onnx"])
    assert bridge("verify", cache.parent / "absent") == 2
    assert "the bundle does not exist" in capsys.readouterr().err
    np.savez(cache.parent / "x.npz", **X)
    assert bridge("run", packed, "--inputs", cache.parent / "x.npz", "-o", cache.parent / "y.npz") == 0
    assert bridge("inspect", packed, "--json") == 0


@pytest.fixture
def bridge(monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """Runs the command line in this process; returns its exit code."""

    def run(*arguments: object) -> int:
        monkeypatch.setattr("sys.argv", ["onnx-bridge", *map(str, arguments)])
        with pytest.raises(SystemExit) as left:
            main.main()
        return int(left.value.code or 0)

    return run


def test_values_are_plain(tmp_path: Path) -> None:
    found = pack.Packed(tmp_path, 3, 1 << 20)
    assert found.to_json() == {"path": os.fspath(tmp_path), "files": 3, "bytes": 1 << 20}
    assert str(render(dataclasses.replace(found, files=4))).endswith("4 files, 1 MiB")


def _used(path: Path, queue: Any) -> None:
    """Loads a bundle in another process and tells what it computes."""
    queue.put(onnx_bridge.load(path)(X)["y"])


@KINDS
def test_from_several_threads_and_processes(kind: str, model: Path, bundles: dict[str, Path], cache: Path) -> None:
    """One packed bundle, unpacked once, loaded by all of them at the same time."""
    packed = cache.parent / "m.onnxbridge"
    onnx_bridge.pack(bundles[kind], packed)
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    processes = [context.Process(target=_used, args=(packed, queue)) for _ in range(2)]
    for each in processes:
        each.start()
    with ThreadPoolExecutor(4) as threads:
        bundle = onnx_bridge.load(packed)
        own = list(threads.map(lambda _: onnx_bridge.load(packed)(X)["y"], range(4)))
        shared = list(threads.map(lambda _: bundle(X)["y"], range(16)))
    found = [*own, *shared, *(queue.get() for _ in processes)]
    for each in processes:
        each.join()
    expected = Reference(model).run(X)
    assert all(compare({"y": each}, expected).passed for each in found)
    assert len([each for each in (cache / "bundles").iterdir() if each.is_dir()]) == 1


def test_progress(bundles: dict[str, Path], tmp_path: Path) -> None:
    lines: list[str] = []
    packed = tmp_path / "m.onnxbridge"
    onnx_bridge.pack(bundles["buckets"], packed, progress=lines.append)
    onnx_bridge.unpack(packed, tmp_path / "out", progress=lines.append)
    assert len(lines) == 4, "each copies and verifies"
