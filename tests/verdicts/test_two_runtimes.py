"""Two MIGraphX on one machine: the verdicts of one are never those of the other."""

from __future__ import annotations

from pathlib import Path

import pytest

from onnx_bridge.migraphx import runtime as runtimes
from onnx_bridge.migraphx.runtime import Runtime
from onnx_bridge.verdicts.probed_runtime import ProbedRuntime
from onnx_bridge.verdicts.run_time import work_seconds
from passes.graphs.cost import Work
from passes.rewriting.base import Status
from tests.verdicts.test_probed_runtime import probes_of


def test_alternating(
    runtime: Runtime, second_runtime: Runtime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each has a cache of its own: by version, and by the way in, since the module and the C library differ."""
    monkeypatch.setenv("ONNX_BRIDGE_CACHE", str(tmp_path))
    library = runtimes.find(str(second_runtime.path.parent / "libmigraphx_c.so.3"))
    everyone = {each.identity: each for each in (runtime, second_runtime, library)}
    texts = (
        "(int64[4] x) => (int32[4] y) { y = Cast<to=6>(x) }",
        "(uint8[4] x) => (uint8[4] y) { y = BitwiseNot(x) }",
        "(float[2,3] x) => (y) { y = Softmax(x) }",
    )
    probes = [probe for text in texts for probe in probes_of(text)]
    cold = {name: ProbedRuntime(each).verdicts(probes) for name, each in everyone.items()}
    files = list((tmp_path / "verdicts").iterdir())
    assert len(files) == len(everyone)
    for _ in range(2):
        for name, each in everyone.items():
            assert ProbedRuntime(each).verdicts(probes) == cold[name]
            assert ProbedRuntime(each, cache=False).verdicts(probes) == cold[name]
    assert sorted((tmp_path / "verdicts").iterdir()) == sorted(files)
    assert all(verdicts[-1].status is Status.OK for verdicts in cold.values())
    if runtime.release != second_runtime.release:
        assert cold[runtime.identity] != cold[second_runtime.identity]


def test_products_are_estimated_by_the_build(runtime: Runtime, second_runtime: Runtime) -> None:
    """A build with Eigen multiplies faster, whatever its version."""
    product = Work(convolved=0, multiplied=10**9, moved=0)
    core = second_runtime.core
    assert core is not None
    has_eigen = b"Eigen" in core.read_bytes()
    assert (work_seconds(product, second_runtime) < 1) == has_eigen
    assert work_seconds(product, runtime) > 1 or runtime.release == second_runtime.release  # the same by another way
