"""One worker for all tests of a module: starting one takes longer than most tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from onnx_bridge.migraphx.runtime import Runtime
from onnx_bridge.migraphx.worker import Worker


@pytest.fixture(scope="module")
def worker(runtime: Runtime) -> Iterator[Worker]:
    """A worker process, which restarts by itself if a test crashes it."""
    worker = Worker(runtime)
    yield worker
    worker.close()
