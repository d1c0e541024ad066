"""AMD Quark's operators are compiled in an environment that is not activated, and after a build that was killed."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from torch.utils.cpp_extension import is_ninja_available
from torch.utils.file_baton import FileBaton

from onnx_bridge.core.errors import InputError
from onnx_bridge.reference.quark import build
from onnx_bridge.reference.quark.build import LEFT_SECONDS, compilation

pytestmark = pytest.mark.torch


@pytest.fixture
def lock(tmp_path: Path) -> Path:
    return tmp_path / "lock"


def _build(lock: Path) -> None:
    baton = FileBaton(str(lock))
    assert baton.try_acquire()
    baton.release()


def _age(lock: Path, seconds: float = 2 * LEFT_SECONDS) -> None:
    os.utime(lock, (time.time() - seconds,) * 2)


def test_ninja_of_an_environment_that_is_not_activated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert not is_ninja_available()
    with compilation():
        assert is_ninja_available()
    assert os.environ["PATH"] == str(tmp_path)


def test_without_a_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PATH")
    with compilation():
        assert is_ninja_available()
    assert "PATH" not in os.environ


def test_a_killed_build(lock: Path) -> None:
    imports = "import os, sys; from torch.utils.file_baton import FileBaton"
    code = f"{imports}; FileBaton(sys.argv[1]).try_acquire(); os._exit(9)"
    assert subprocess.run([sys.executable, "-c", code, str(lock)]).returncode == 9
    _age(lock)
    assert not FileBaton(str(lock)).try_acquire()
    with compilation():
        _build(lock)
    assert not lock.exists()


def test_a_lock_that_is_held(lock: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "BUILD_SECONDS", 0.3)
    held = FileBaton(str(lock))
    held.try_acquire()
    _age(lock)
    # Quark goes on without its operators where they cannot be compiled
    with pytest.raises(InputError) as error, compilation(), pytest.raises(TimeoutError):
        _build(lock)
    assert error.value.where == str(lock) and lock.exists()
    held.release()


def test_a_lock_that_another_machine_may_hold(lock: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "BUILD_SECONDS", 0.3)
    lock.touch()
    with pytest.raises(InputError), compilation(), pytest.raises(TimeoutError):
        _build(lock)
    assert lock.exists()


def test_a_build_that_ends(lock: Path) -> None:
    held = FileBaton(str(lock))
    held.try_acquire()
    threading.Timer(0.2, held.release).start()
    acquire = FileBaton.try_acquire
    with compilation():
        _build(lock)
    assert FileBaton.try_acquire is acquire
