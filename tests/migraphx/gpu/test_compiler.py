"""MIGraphX's gpu target on a machine without a GPU: what it compiles, and what it refuses."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import onnx
import pytest

from onnx_bridge.conversion.keys import cleaning_key
from onnx_bridge.core.errors import InputError, MigraphxError, RuntimeNotFound
from onnx_bridge.migraphx import worker as workers
from onnx_bridge.migraphx.architectures import ARCHITECTURES, named_architecture
from onnx_bridge.migraphx.c_api import CLibrary
from onnx_bridge.migraphx.gpu import compiler
from onnx_bridge.migraphx.gpu.compiler import GpuCompiler, gpu_compiler
from onnx_bridge.migraphx.install.debian_packages import GPU_LIBRARIES
from onnx_bridge.migraphx.install_record import InstallRecord
from onnx_bridge.migraphx.python_module import ModuleLibrary, ModuleProgram
from onnx_bridge.migraphx.runtime import Runtime, find
from onnx_bridge.requests.conversion import ConvertRequest


@pytest.fixture(scope="module")
def gfx942() -> GpuCompiler:
    return gpu_compiler(find("private"), ARCHITECTURES["gfx942"])


def model(nodes: str, inputs: str = "float[4, 3] x") -> bytes:
    header = f'<ir_version: 10, opset_import: ["": 21]> g ({inputs}) => (float y)'
    return onnx.parser.parse_model(f"{header} {{ {nodes} }}").SerializeToString()


def main_module(program: Path) -> list[dict[str, Any]]:
    """The instructions of a saved program, which MIGraphX writes as MessagePack."""
    return msgspec.msgpack.decode(program.read_bytes())["modules"]["main"]["nodes"]


def test_the_packages_have_the_compiler_and_no_libraries_of_a_gpu(gfx942: GpuCompiler) -> None:
    record = InstallRecord.read(gfx942.runtime.path)
    assert record is not None
    names = {package.name for package in record.packages}
    assert {name for name in names if GPU_LIBRARIES.fullmatch(name)} == {"libhiprtc6"}
    assert record.serves("ref")
    assert not record.serves("gpu")
    assert record.identity != record.ref_identity


@pytest.mark.parametrize("name", ["gfx942", "gfx1100"])
def test_kernels_are_compiled_for_the_architecture(gfx942: GpuCompiler, tmp_path: Path, name: str) -> None:
    chosen = replace(gfx942, architecture=ARCHITECTURES[name])
    program = chosen.worker().parse_onnx_buffer(model("e = Exp(x) y = Neg(e)"))
    program.compile("gpu")
    program.save(tmp_path / "program.mxr")
    operators = main_module(tmp_path / "program.mxr")
    (code_object,) = [op["operator"]["code_object"] for op in operators if op["name"] == "gpu::code_object"]
    elf = bytes(byte & 255 for byte in code_object)
    assert (elf[:4], elf[48]) == (b"\x7fELF", chosen.architecture.mach)
    assert f"amdgcn-amd-amdhsa--{name}".encode() in elf
    assert chosen.key != gfx942.key or name == "gfx942"


def test_convolutions_and_products_compile(gfx942: GpuCompiler) -> None:
    program = gfx942.worker().parse_onnx_buffer(
        model("c = Conv(x, x) f = Flatten(c) y = MatMul(f, f)", "float[1, 1, 2, 2] x")
    )
    program.compile("gpu")
    assert program.get_output_shapes()[0].lens == (1, 1)


def test_what_only_the_gpu_target_refuses(gfx942: GpuCompiler) -> None:
    conv = model("y = Conv(x, x)", "float[1, 1, 3, 3, 3, 3] x")
    worker = gfx942.worker()
    worker.parse_onnx_buffer(conv).compile("ref")
    with pytest.raises(MigraphxError, match="at most 5 dimensions"):
        worker.parse_onnx_buffer(conv).compile("gpu")


def test_architectures_are_validated() -> None:
    with pytest.raises(InputError, match="gfx942"):
        named_architecture("gpu:gfx924")


def test_kernels_are_kept_by_what_is_compiled(
    gfx942: GpuCompiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiler, "cache_dir", lambda: tmp_path)

    def kept(nodes: str) -> tuple[set[Path], bytes]:
        worker = gfx942.worker()
        program = worker.parse_onnx_buffer(model(nodes))
        program.compile("gpu")
        program.save(tmp_path / "program.mxr")
        worker.close()
        operators = [op["operator"] for op in main_module(tmp_path / "program.mxr") if op["name"] == "gpu::code_object"]
        code = bytes(byte & 255 for byte in operators[0]["code_object"])
        return set(tmp_path.glob("kernels/*/*")), code

    files, code = kept("y = Exp(x)")
    (file,) = (path for path in files if path.read_bytes() == code)
    changed = code[:-1] + bytes([code[-1] ^ 1])
    file.write_bytes(changed)
    os.utime(file, (0, 0))
    assert kept("y = Exp(x)") == (files, changed)  # it is read
    assert file.stat().st_mtime > 0
    others, other = kept("y = Sin(x)")
    assert other not in (code, changed)
    assert files < others
    monkeypatch.setattr(compiler, "_packages", lambda _: "another compiler")
    again, same = kept("y = Exp(x)")
    assert same == code
    assert {path.parent.name for path in again - others} == {"another_compiler"}


_MODULE = """
__version__ = "2.99.0"
class Program:
    def compile(self, target, **options): self.compiled = target
def get_target(name, {options}): return {{"name": name, **options}}
"""


@pytest.mark.parametrize(("options", "expected"), [("**options", True), ("options={}", False)])
def test_a_module_that_compiles_for_another_gpu_is_told_which(options: str, expected: bool, tmp_path: Path) -> None:
    """It is known by asking: a module without the options has no such target."""
    (tmp_path / "migraphx.py").write_text(_MODULE.format(options=options))
    library = ModuleLibrary(tmp_path / "migraphx.py")
    assert (library.has_target("gpu"), library.has_target("gpu:gfx942")) == (True, expected)
    if expected:
        program = ModuleProgram(library, library.module.Program())
        program.compile("gpu:gfx1100")
        assert program._program.compiled == {"name": "gpu", "gpu_arch": "gfx1100", "gpu_num_cu": 48}


def test_the_options_of_the_c_library(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[bytes] = []

    def create(_: Any, name: bytes, options: bytes) -> int:
        given.append(name + options)
        return 0

    library = CLibrary.__new__(CLibrary)
    library.version = "2.99.0"
    functions = {"migraphx_target_create": lambda *_: 0, "migraphx_target_destroy": lambda *_: 0}
    library._dll = SimpleNamespace(**functions)
    assert not library.has_target("gpu:gfx942")
    library._dll = SimpleNamespace(migraphx_target_create_with_options=create, **functions)
    assert library.has_target("gpu:gfx942")
    assert given == [b'gpu{"gpu_arch": "gfx942", "gpu_num_cu": 304}']


def test_options_for_an_architecture_are_preferred_to_the_stub(
    monkeypatch: pytest.MonkeyPatch, runtime: Runtime
) -> None:
    architecture = ARCHITECTURES["gfx942"]
    plain = gpu_compiler(find("private"), architecture)
    monkeypatch.setattr(workers.Worker, "has_target", lambda _, name: name == "gpu:gfx942")
    chosen = gpu_compiler(find("private"), architecture)
    assert (plain.target, chosen.target) == ("gpu", "gpu:gfx942")
    assert plain.key != chosen.key


def test_what_compiles_is_part_of_the_key_of_a_conversion(monkeypatch: pytest.MonkeyPatch) -> None:
    """The packages that compile kernels, and the stub, but only of a conversion for a GPU elsewhere."""
    found = find("private")

    def keys() -> list[str | None]:
        requests = (ConvertRequest(target="gpu:gfx942"), ConvertRequest(target="ref"))
        return [cleaning_key("source", request, found) for request in requests]

    before, record = keys(), InstallRecord.read(found.path)
    assert record is not None
    for name, changed in (("stub_version", lambda: "other"), ("InstallRecord", None)):
        value = changed or SimpleNamespace(read=lambda _: replace(record, identity="other packages"))
        with monkeypatch.context() as patch:
            patch.setattr(compiler, name, value)
            (elsewhere, here) = keys()
        assert elsewhere != before[0]
        assert here == before[1]
    assert keys() == before


def test_a_machine_without_the_compiler(monkeypatch: pytest.MonkeyPatch, runtime: Runtime) -> None:
    monkeypatch.setattr(compiler, "installed", list[Runtime])
    with pytest.raises(RuntimeNotFound, match="--gpu-compiler"):
        gpu_compiler(replace(runtime, library_path=()), ARCHITECTURES["gfx942"])
