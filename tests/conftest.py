"""What every test may use: the installed runtime, a worker for it, and small exported models."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import filelock
import pytest
from hypothesis import settings

import passes
from fixtures import models
from onnx_bridge.migraphx import runtime as runtimes
from onnx_bridge.migraphx.install.install import install
from onnx_bridge.migraphx.runtime import Runtime
from onnx_bridge.migraphx.worker import Worker

# The same examples on every machine, and no verdict that hangs on how busy it is.
settings.register_profile("project", derandomize=True, deadline=None)
settings.load_profile("project")
# A shell lets its background jobs, and all that they start, ignore Ctrl-C; how it is taken is tested.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def passes_of_its_own() -> Iterator[None]:
    """What a test registers, only that test has; not by `monkeypatch`, which is undone after what comes before it."""
    before = dict(passes._registered)
    yield
    passes._registered.clear()
    passes._registered.update(before)


@pytest.fixture(scope="session")
def runtime() -> Runtime:
    """The private runtime, installed where it is not yet: a machine that cannot have one fails the suite."""
    private = [each for each in runtimes.installed() if each.kind == "private"]
    return private[0] if private else install()


@pytest.fixture
def worker(runtime: Runtime) -> Iterator[Worker]:
    """A worker process of the test's own."""
    worker = Worker(runtime)
    yield worker
    worker.close()


@pytest.fixture(scope="session")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """``exported(name, exporter="dynamo", dynamic_batch=False)``: a model of `fixtures.models`, made once a run."""
    folder = tmp_path_factory.getbasetemp().parent / "exported"  # shared by the processes of pytest-xdist

    def make(name: str, exporter: models.Exporter = "dynamo", dynamic_batch: bool = False) -> Path:
        path = folder / f"{name}-{exporter}-{'dynamic' if dynamic_batch else 'static'}.onnx"
        folder.mkdir(exist_ok=True)
        with filelock.FileLock(path.with_suffix(".lock")):
            if not path.exists():
                models.export(name, path, exporter=exporter, dynamic_batch=dynamic_batch)
        return path

    return make
