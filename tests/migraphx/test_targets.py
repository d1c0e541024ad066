"""Targets: the GPUs of a machine as its kernel lists them, and which target is taken."""

from __future__ import annotations

from pathlib import Path

import pytest

from onnx_bridge.core.errors import InputError, RuntimeNotFound
from onnx_bridge.migraphx.runtime import Runtime
from onnx_bridge.migraphx.targets import gpu_architecture, gpu_architectures, resolve_target


def add_gpu(root: Path, version: int, *, usable: bool = True) -> None:
    """Files as the kernel's driver has them: a processor, and a GPU."""
    for node, number in enumerate((0, version)):
        properties = root / f"sys/class/kfd/kfd/topology/nodes/{node}/properties"
        properties.parent.mkdir(parents=True)
        properties.write_text(f"cpu_cores_count 8\ngfx_target_version {number}\n")
    if usable:
        (root / "dev").mkdir()
        (root / "dev/kfd").touch()


def with_targets(*targets: str) -> Runtime:
    return Runtime("module", Path("/somewhere"), "test", "2.14.0", targets, "test")


@pytest.mark.parametrize(("number", "name"), [(90402, "gfx942"), (90010, "gfx90a"), (110003, "gfx1103")])
def test_gpu_architecture(tmp_path: Path, number: int, name: str) -> None:
    add_gpu(tmp_path, number)
    assert gpu_architecture(tmp_path) == name


def test_no_gpu(tmp_path: Path) -> None:
    assert gpu_architecture(tmp_path) is None
    add_gpu(tmp_path, 0)
    assert gpu_architecture(tmp_path) is None


def test_a_gpu_that_may_not_be_opened(tmp_path: Path, runtime: Runtime) -> None:
    add_gpu(tmp_path, 90402, usable=False)
    assert gpu_architecture(tmp_path) is None
    assert gpu_architectures(tmp_path) == ["gfx942"]
    with pytest.raises(RuntimeNotFound, match=r"may not open it.*render"):
        resolve_target("gpu", runtime, tmp_path)


def test_resolve(tmp_path: Path) -> None:
    able, unable = with_targets("ref", "gpu"), with_targets("ref")
    assert [resolve_target(target, able, tmp_path) for target in ("auto", "ref")] == ["ref", "ref"]
    with pytest.raises(RuntimeNotFound, match="no AMD GPU"):
        resolve_target("gpu", able, tmp_path)
    add_gpu(tmp_path, 90402)
    assert [resolve_target(target, able, tmp_path) for target in ("auto", "ref", "gpu")] == ["gpu", "ref", "gpu"]
    assert resolve_target("auto", unable, tmp_path) == "ref"
    with pytest.raises(RuntimeNotFound, match=r"lacks libmigraphx_gpu.*install --gpu"):
        resolve_target("gpu", unable, tmp_path)


def test_unknown() -> None:
    with pytest.raises(InputError, match="did you mean gpu"):
        resolve_target("gpus", with_targets("ref"))
