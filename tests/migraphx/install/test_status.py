"""The status of runtimes: checks that pass, and checks that find a problem."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from onnx_bridge.migraphx.install.status import Check, RuntimeStatus, runtime_status
from onnx_bridge.migraphx.install_record import NAME
from onnx_bridge.migraphx.kinds import VARIABLE
from onnx_bridge.migraphx.runtime import Runtime, SearchPlaces


def places(folder: Path, **environment: str) -> SearchPlaces:
    return SearchPlaces(
        {"ONNX_BRIDGE_CACHE": str(folder / "cache"), **environment}, (str(folder / "site"),), folder / "root"
    )


def about(status: RuntimeStatus, text: str) -> list[Check]:
    return [check for check in status.checks if text in check.what]


def test_a_machine_with_a_runtime(tmp_path: Path, runtime: Runtime) -> None:
    status = runtime_status(places(tmp_path, **{VARIABLE: str(runtime.path)}))
    assert {check.level for check in status.checks} == {"ok"}
    loads, intact = about(status, str(runtime.path))
    assert f"MIGraphX {runtime.version} for ref" in loads.what
    assert "libraries intact" in intact.what
    assert intact.details
    assert "libmigraphx-c3" in intact.details
    assert about(status, "no AMD GPU")


def test_a_machine_without_any(tmp_path: Path) -> None:
    status = runtime_status(places(tmp_path))
    (missing,) = about(status, "there is no MIGraphX")
    assert (missing.level, missing.hint) == ("error", "install one with: onnx-bridge runtime install")


def test_missing_tools_are_an_error_only_without_a_working_runtime(
    tmp_path: Path, runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    for named, level in ((str(runtime.path), "warn"), ("private", "error")):
        missing = about(runtime_status(places(tmp_path, **{VARIABLE: named})), "this machine has no ")
        assert [check.level for check in missing] == [level] * 3
        assert all(check.hint for check in missing)


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
    (damage,) = about(runtime_status(places(tmp_path, **{VARIABLE: str(tmp_path)})), "missing or changed")
    assert damage.level == "error"
    assert onnx.name in damage.what
    assert ref.name in damage.what
    assert damage.hint == f"onnx-bridge runtime remove {tmp_path.name}, and install it again"


def test_a_library_that_does_not_load(tmp_path: Path) -> None:
    (tmp_path / "libmigraphx_c.so.3").write_text("not a library")
    status = runtime_status(places(tmp_path, **{VARIABLE: str(tmp_path)}))
    (check,) = about(status, "does not load")
    assert check.level == "error"
    assert "invalid ELF header" in check.what or "file too short" in check.what


def test_a_module_for_another_python(tmp_path: Path, runtime: Runtime) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site/migraphx.cpython-27-x86_64-linux-gnu.so").touch()
    (check,) = about(runtime_status(places(tmp_path, **{VARIABLE: str(runtime.path)})), "another Python")
    assert check.level == "warn"


def test_a_gpu_without_a_runtime_for_it(tmp_path: Path, runtime: Runtime) -> None:
    node = tmp_path / "root/sys/class/kfd/kfd/topology/nodes/1"
    node.mkdir(parents=True)
    (node / "properties").write_text("gfx_target_version 90402\n")
    here = places(tmp_path, **{VARIABLE: str(runtime.path)})
    (check,) = about(runtime_status(here), "gfx942")
    assert (check.level, "/dev/kfd" in check.what) == ("warn", True)
    (tmp_path / "root/dev").mkdir()
    (tmp_path / "root/dev/kfd").touch()
    (check,) = about(runtime_status(here), "gfx942")
    assert (check.level, "no target gpu" in check.what) == ("warn", "gpu" not in runtime.targets)
