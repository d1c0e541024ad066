"""The processes of a conversion that start before its modules are imported."""

from __future__ import annotations

from pathlib import Path

import pytest

from onnx_bridge.conversion.launch import launch
from onnx_bridge.migraphx import worker as workers
from onnx_bridge.migraphx.runtime import Runtime
from onnx_bridge.requests.conversion import ConvertRequest


@pytest.fixture(autouse=True)
def own_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """None that an earlier test started."""
    monkeypatch.setattr(workers, "_shared", {})


def started(runtime: Runtime) -> tuple[bool, bool]:
    """Return whether MIGraphX was started, and the one that judges."""
    found = workers.shared(runtime), workers.shared_with_heap_checks(runtime)
    return found[0].pid is not None, found[1].pid is not None


def test_what_a_conversion_asks_for_is_under_way(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("ONNX_BRIDGE_CACHE", str(tmp_path))
    (tmp_path / "verdicts").mkdir()
    request = ConvertRequest(runtime=str(runtime.path))
    launch(request)
    assert started(runtime) == (True, False), "there are verdicts"
    (tmp_path / "verdicts").rmdir()
    launch(request)
    assert started(runtime) == (True, True)


def test_options_may_choose_its_environment(runtime: Runtime) -> None:
    launch(ConvertRequest(runtime=str(runtime.path), options={"tune": True}))
    assert not started(runtime)[0]


def test_what_is_missing_is_left_to_the_conversion(tmp_path: Path) -> None:
    launch(ConvertRequest(runtime=str(tmp_path)))
    assert not workers._shared
