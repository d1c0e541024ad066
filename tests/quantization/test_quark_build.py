"""A lock that a killed build of AMD Quark's operators has left is an error that names it, and nobody waits for it."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from pathlib import Path

import pytest
from torch.utils.file_baton import FileBaton

from onnx_bridge.core.errors import InputError
from onnx_bridge.reference import quark_build
from onnx_bridge.reference.quark_build import BUILD_SECONDS, bounded_waits

pytestmark = pytest.mark.torch


def test_a_lock_that_is_older_than_any_build(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    lock.touch()
    os.utime(lock, (time.time() - 2 * BUILD_SECONDS,) * 2)
    with pytest.raises(InputError) as error, bounded_waits():
        FileBaton(str(lock)).wait()
    assert error.value.where == str(lock)


def test_a_lock_that_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quark_build, "BUILD_SECONDS", 0.3)
    (tmp_path / "lock").touch()
    # Quark goes on without its operators where they cannot be compiled
    with pytest.raises(InputError), bounded_waits(), contextlib.suppress(TimeoutError):
        FileBaton(str(tmp_path / "lock")).wait()


def test_a_build_that_ends(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    lock.touch()
    threading.Timer(0.2, lock.unlink).start()
    wait = FileBaton.wait
    with bounded_waits():
        FileBaton(str(lock)).wait()
    assert FileBaton.wait is wait
