"""The doctor of runtimes: what it finds right, and what it finds wrong."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from onnx_bridge.migraphx.install.status import Finding, doctor
from onnx_bridge.migraphx.runtime import VARIABLE, Machine, Runtime
from onnx_bridge.migraphx.runtime_record import NAME


def machine(folder: Path, **environment: str) -> Machine:
    return Machine(
        {"ONNX_BRIDGE_CACHE": str(folder / "cache"), **environment}, (str(folder / "site"),), folder / "root"
    )


def about(findings: list[Finding], text: str) -> list[Finding]:
    return [finding for finding in findings if text in finding.what]


def test_a_machine_with_a_runtime(tmp_path: Path, runtime: Runtime) -> None:
    findings = doctor(machine(tmp_path, **{VARIABLE: str(runtime.path)}))
    assert {finding.level for finding in findings} == {"ok"}
    loads, intact = about(findings, str(runtime.path))
    assert f"MIGraphX {runtime.version} for ref" in loads.what
    assert "libraries intact" in intact.what
    assert "libmigraphx-c3" in intact.what
    assert about(findings, "no AMD GPU")


def test_a_machine_without_any(tmp_path: Path) -> None:
    findings = doctor(machine(tmp_path))
    (missing,) = about(findings, "there is no MIGraphX")
    assert (missing.level, missing.hint) == ("error", "install one with: onnx-bridge runtime install")


def test_without_tools_installing_is_an_error_only_where_nothing_works(
    tmp_path: Path, runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    for named, level in ((str(runtime.path), "warn"), ("private", "error")):
        missing = about(doctor(machine(tmp_path, **{VARIABLE: named})), "this machine has no ")
        assert [finding.level for finding in missing] == [level] * 3
        assert all(finding.hint for finding in missing)


def test_a_changed_and_a_missing_library(tmp_path: Path, runtime: Runtime) -> None:
    for folder, _, files in os.walk(runtime.path):
        copy = tmp_path / Path(folder).relative_to(runtime.path)
        copy.mkdir(exist_ok=True)
        for file in files:
            (copy / file).symlink_to(Path(folder) / file)
    onnx, ref = (next(tmp_path.rglob(f"libmigraphx_{name}.so.*.0")) for name in ("onnx", "ref"))
    content = onnx.read_bytes()
    onnx.unlink()
    onnx.write_bytes(content[:-1] + b"!")
    ref.unlink()
    assert (tmp_path / NAME).exists()
    (damage,) = about(doctor(machine(tmp_path, **{VARIABLE: str(tmp_path)})), "missing or changed")
    assert damage.level == "error"
    assert onnx.name in damage.what
    assert ref.name in damage.what
    assert damage.hint == f"onnx-bridge runtime remove {tmp_path.name}, and install it again"


def test_a_library_that_does_not_load(tmp_path: Path) -> None:
    (tmp_path / "libmigraphx_c.so.3").write_text("not a library")
    findings = doctor(machine(tmp_path, **{VARIABLE: str(tmp_path)}))
    (finding,) = about(findings, "does not load")
    assert finding.level == "error"
    assert "invalid ELF header" in finding.what or "file too short" in finding.what


def test_a_module_for_another_python(tmp_path: Path, runtime: Runtime) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site/migraphx.cpython-27-x86_64-linux-gnu.so").touch()
    (finding,) = about(doctor(machine(tmp_path, **{VARIABLE: str(runtime.path)})), "another Python")
    assert finding.level == "warn"


def test_a_gpu_without_a_runtime_for_it(tmp_path: Path, runtime: Runtime) -> None:
    node = tmp_path / "root/sys/class/kfd/kfd/topology/nodes/1"
    node.mkdir(parents=True)
    (node / "properties").write_text("gfx_target_version 90402\n")
    here = machine(tmp_path, **{VARIABLE: str(runtime.path)})
    (finding,) = about(doctor(here), "gfx942")
    assert (finding.level, "/dev/kfd" in finding.what) == ("warn", True)
    (tmp_path / "root/dev").mkdir()
    (tmp_path / "root/dev/kfd").touch()
    (finding,) = about(doctor(here), "gfx942")
    assert (finding.level, "no target gpu" in finding.what) == ("warn", "gpu" not in runtime.targets)
