"""Fixtures and markers for every test: the runtime, a worker for it, a device for passes, and exported models.

Fixtures import what they need when they are used: tests of `passes` run without `onnx_bridge` and without PyTorch.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import filelock
import pytest
from hypothesis import is_hypothesis_test, settings

import passes
from passes.isolation.deferred import quick_start
from tests.passes.device import Device, MIGraphX, OnnxRuntime

if TYPE_CHECKING:
    from onnx_bridge.migraphx.runtime import Runtime
    from onnx_bridge.migraphx.worker import Worker

quick_start()
# The same examples on every machine, and no deadline that depends on its load.
settings.register_profile("project", derandomize=True, deadline=None)
settings.load_profile("project")
# A shell lets its background jobs, and their children, ignore Ctrl-C; tests send it.
signal.signal(signal.SIGINT, signal.default_int_handler)
# Test processes share the processors: PyTorch, and what they start, computes in one thread.
os.environ.setdefault("OMP_NUM_THREADS", "1")

_MARKERS = {
    "runtime": "runtime",
    "second_runtime": "runtime",
    "worker": "runtime",
    "exported": "torch",
    "window": "browser",
}
"""The marker of tests that use a fixture."""
_SECOND = "ONNX_BRIDGE_SECOND_RUNTIME"
_FAST = ["passes", "core", "model", "samples"]
"""The folders of the fast tier."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--fast",
        action="store_true",
        help="only examples that need no MIGraphX, PyTorch or browser; rules of legalization run on ONNX Runtime alone",
    )


def _crash_file(process: int) -> Path:
    """Return the file to which a process of pytest-xdist writes where its threads were when it crashed."""
    return Path(tempfile.gettempdir()) / f"onnx-bridge-crash-{process}"


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config, "workerinput"):
        path = _crash_file(os.getpid())
        faulthandler.enable(path.open("w"))
        config.add_cleanup(path.unlink)


@pytest.hookimpl(optionalhook=True)
def pytest_handlecrashitem(report: Any) -> None:
    """Report how a process ended, and where it was: its own output is far above, or lost."""
    process = report.node.gateway._io.popen
    path = _crash_file(process.pid)
    report.longrepr += f"\nexit status {process.wait(10)}\n{path.read_text()}"
    path.unlink()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        for name, marker in _MARKERS.items():
            if name in getattr(item, "fixturenames", ()):
                item.add_marker(marker)
    if config.getoption("--fast"):
        excluded = {"runtime", "torch", "browser", "slow"}
        folders = [config.rootpath / "tests" / name for name in _FAST]
        kept: list[pytest.Item] = []
        deselected: list[pytest.Item] = []
        for item in items:
            is_fast = excluded.isdisjoint(mark.name for mark in item.iter_markers())
            is_fast = is_fast and any(item.path.is_relative_to(folder) for folder in folders)
            is_fast = is_fast and not is_hypothesis_test(getattr(item, "obj", None))
            (kept if is_fast else deselected).append(item)
        config.hook.pytest_deselected(items=deselected)
        items[:] = kept


@pytest.fixture(autouse=True)
def registered_passes() -> Iterator[None]:
    """Undo what a test registers; not by `monkeypatch`, which is undone after the fixtures before it."""
    before = dict(passes._registered)
    yield
    passes._registered.clear()
    passes._registered.update(before)


@pytest.fixture(scope="session")
def runtime() -> Runtime:
    """The private runtime, installed if it is missing: a machine that cannot have one fails the suite.

    Where ONNX_BRIDGE_RUNTIME is set, that one, as in everything that the tests start (`make test-second-runtime`).
    """
    from onnx_bridge.migraphx import runtime as runtimes
    from onnx_bridge.migraphx.install.install import install
    from onnx_bridge.migraphx.kinds import VARIABLE

    if os.environ.get(VARIABLE):
        return runtimes.find()
    private = [each for each in runtimes.installed() if each.kind == "private"]
    return private[0] if private else install()


@pytest.fixture(scope="session")
def second_runtime() -> Runtime:
    """Another MIGraphX, which SECOND_RUNTIME of `make test` names."""
    from onnx_bridge.migraphx import runtime as runtimes

    if not (named := os.environ.get(_SECOND)):
        pytest.skip(f"only one MIGraphX is here: {_SECOND} names another")
    return runtimes.find(named)


@pytest.fixture
def with_wheel(runtime: Runtime) -> Callable[[str, Path], subprocess.CompletedProcess[str]]:
    """Return what runs Python in a folder and the environment with ONNX Runtime's provider, or behind its stub."""
    from onnx_bridge.provider.provider import shared

    provider = shared(runtime=runtime)

    def run(code: str, folder: Path) -> subprocess.CompletedProcess[str]:
        file = folder / "with_wheel.py"
        file.write_text(f"import onnx_bridge.provider.server\n{code}")  # loads the stub before onnxruntime
        variables = {**provider._variables(), "PYTHONPATH": str(Path(__file__).parents[1])}
        command = provider._command(Path(), [file.name])
        return subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, check=False)

    return run


@pytest.fixture
def defective_runtime(runtime: Runtime) -> Runtime:
    """A MIGraphX with the defects of 2.14 that 2.16 has not: tests show that they are found."""
    if runtime.release >= (2, 16):
        pytest.skip(f"MIGraphX {runtime.version} computes it right")
    return runtime


@pytest.fixture
def worker(runtime: Runtime) -> Iterator[Worker]:
    """A worker process for one test."""
    from onnx_bridge.migraphx.worker import Worker

    worker = Worker(runtime)
    yield worker
    worker.close()


@pytest.fixture(scope="module")
def device(request: pytest.FixtureRequest) -> Iterator[Device]:
    """Runs rewritten models: MIGraphX in a worker that a module shares, or ONNX Runtime in the fast tier."""
    if request.config.getoption("--fast"):
        yield OnnxRuntime()
        return
    from onnx_bridge.migraphx.worker import Worker

    worker = Worker(request.getfixturevalue("runtime"))
    yield MIGraphX(worker)
    worker.close()


@pytest.fixture(scope="session")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """``exported(name, exporter="dynamo", dynamic_batch=False)``: a network, exported once."""
    from fixtures.models import networks

    folder = tmp_path_factory.getbasetemp().parent / "exported"  # shared by the processes of pytest-xdist

    def make(name: str, exporter: networks.Exporter = "dynamo", dynamic_batch: bool = False) -> Path:
        path = folder / f"{name}-{exporter}-{'dynamic' if dynamic_batch else 'static'}.onnx"
        folder.mkdir(exist_ok=True)
        with filelock.FileLock(path.with_suffix(".lock")):
            if not path.exists():
                networks.export(name, path, exporter=exporter, dynamic_batch=dynamic_batch)
        return path

    return make
