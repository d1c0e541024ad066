"""A thread whose work nobody has to wait for."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from onnx_bridge.core.background import Background


def test_in_order_with_results_and_errors() -> None:
    done: list[int] = []
    with Background() as background:
        found = [background.submit(done.append, index) for index in range(5)]
        failed = background.submit(int, "x")
    assert [each.result(10) for each in found] == [None] * 5
    assert done == list(range(5))
    with pytest.raises(ValueError, match="invalid literal"):
        failed.result(10)


def test_the_end_does_not_wait() -> None:
    event = threading.Event()
    with Background() as background:
        future = background.submit(event.wait)
    assert not future.done()
    event.set()
    assert future.result(10)


def test_nor_does_the_interpreter() -> None:
    code = (
        "import threading\nfrom onnx_bridge.core.background import Background\n"
        "with Background() as background: background.submit(threading.Event().wait)"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0
