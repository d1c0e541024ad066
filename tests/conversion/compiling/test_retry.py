"""The recovery ladder: which settings are tried after which failure, and that they help where they do."""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import numpy_helper, parser

import onnx_bridge
from onnx_bridge.conversion.compiling.compiler import Compiler
from onnx_bridge.conversion.compiling.partition import partition, with_inferred_types
from onnx_bridge.conversion.compiling.retry import Ladder, rungs
from onnx_bridge.conversion.stopwatch import Stopwatch
from onnx_bridge.core.errors import (
    InputError,
    MigraphxError,
    OutOfMemory,
    ProgramLost,
    RuntimeFailure,
    WorkerCrashed,
    WorkerTimeout,
)
from onnx_bridge.migraphx import worker as workers
from onnx_bridge.migraphx.program import Tensor
from onnx_bridge.migraphx.runtime import Runtime
from onnx_bridge.model import io as models
from onnx_bridge.reference.comparison.compare import compare
from onnx_bridge.reference.reference import Reference
from onnx_bridge.verdicts.probed_runtime import ProbedRuntime
from passes.isolation.limits import Limits
from passes.probing.probe import Probe
from passes.rewriting.base import Status, Verdict

CRASH = WorkerCrashed("compile", returncode=-signal.SIGSEGV)


class TooKind(ProbedRuntime):
    """ProbedRuntime that find nothing wrong with any node: what they would say is not what this is about."""

    def verdicts(self, probes: Sequence[Probe], *, run: bool = True) -> list[Verdict]:
        return [Verdict(Status.OK) for _ in probes]


class TestRungs:
    @pytest.mark.parametrize("target", ["ref", "gpu"])
    def test_rungs_accumulate_settings(self, target: str) -> None:
        found = rungs(target, CRASH, compiling=True)
        assert found[0].environment == {}
        for lower, upper in itertools.pairwise(found):
            assert lower.environment.items() < upper.environment.items()
        assert len({each.name for each in found}) == len(found)

    def test_documented_settings_for_the_gpu(self) -> None:
        last = rungs("gpu", CRASH, compiling=True)[-1].environment
        assert last["MIGRAPHX_DISABLE_MLIR"] == "1"
        assert last["MIGRAPHX_GPU_COMPILE_PARALLEL"] == "1"
        assert {"MIGRAPHX_DISABLE_POINTWISE_FUSION", "MIGRAPHX_DISABLE_REDUCE_FUSION"} <= last.keys()

    def test_failures_without_rungs(self) -> None:
        assert rungs("gpu", MigraphxError("no"), compiling=False) == []
        assert rungs("gpu", RuntimeFailure("else"), compiling=True) == []
        assert rungs("gpu", WorkerTimeout("parse_onnx"), compiling=False) == []

    def test_failures_without_a_fresh_process(self) -> None:
        """A hang and a refusal would only repeat themselves there."""
        for error in (WorkerTimeout("compile"), MigraphxError("no")):
            assert all(each.environment for each in rungs("ref", error, compiling=True))

    def test_parsing_failures_get_no_settings(self) -> None:
        for error in (CRASH, OutOfMemory("parse_onnx"), ProgramLost("gone")):
            assert [each.environment for each in rungs("gpu", error, compiling=False)] == [{}]

    def test_passes_disabled_by_the_user_stay_disabled(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("MIGRAPHX_DISABLE_PASSES", "rewrite_gelu")
        last = rungs("ref", CRASH, compiling=True)[-1].environment
        assert last["MIGRAPHX_DISABLE_PASSES"] == "rewrite_gelu,eliminate_pad"

    def test_the_first_error_decides(self, runtime: Runtime) -> None:
        with Ladder(runtime, "ref", Limits()) as ladder:
            assert ladder.climb(CRASH, compiling=True) is not None
            assert ladder.climb(MigraphxError("something else"), compiling=True) is not None
            assert ladder.error is CRASH
            assert ladder.climb(CRASH, compiling=True) is None
            assert (ladder.rung, ladder.note) == (None, None)
            assert ladder.climb(CRASH, compiling=True) is not None  # another failure starts from the ground


def channels() -> ir.Model:
    """A Pad that adds a channel, which MIGraphX merges into the convolution behind it, and then finds one missing."""
    model = parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (float[1, 2, 8, 8] x) => (float[1, 4, 6, 6] y)'
        "{ p = Pad(x, pads) y = Conv(p, w) }"
    )
    weights = np.random.default_rng(0).standard_normal((4, 3, 3, 3), np.float32)
    for name, array in {"pads": np.array([0, 0, 0, 0, 0, 1, 0, 0]), "w": weights}.items():
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    return ir.from_proto(onnx.shape_inference.infer_shapes(model))


def test_a_rejection_that_a_setting_avoids(runtime: Runtime) -> None:
    model = channels()
    compiler = Compiler(model, workers.shared(runtime), "ref")
    without = partition(model, TooKind(runtime), compiler=compiler)
    assert any(program is None for program in without.programs)  # to the host, where there is no ladder
    with Ladder(runtime, "ref", Limits()) as ladder:
        partitioned = partition(model, TooKind(runtime), compiler=compiler, ladder=ladder)
        assert partitioned.error is None
        assert partitioned.environment == {"MIGRAPHX_DISABLE_PASSES": "eliminate_pad"}
        assert any("MIGRAPHX_DISABLE_PASSES=eliminate_pad" in note for note in partitioned.notes)
        (program,) = partitioned.programs
        assert program is not None
        x = np.random.default_rng(1).standard_normal((1, 2, 8, 8), np.float32)
        (y,) = program.run({"x": Tensor.of(x)})
        assert compare({"y": y.numpy()}, Reference(model).run({"x": x})).passed


def test_a_reproduction_is_offered(runtime: Runtime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The manifest records the settings that worked, and a command that reproduces the failure, which it does."""
    monkeypatch.setattr("onnx_bridge.conversion.steps.clean.ProbedRuntime", lambda runtime, **_: TooKind(runtime))
    models.save(channels(), tmp_path / "m.onnx")
    bundle = onnx_bridge.convert(tmp_path / "m.onnx", tmp_path / "out", target="ref", pipeline="none")
    assert bundle.manifest.program.environment == {"MIGRAPHX_DISABLE_PASSES": "eliminate_pad"}
    (offer,) = (note for note in bundle.manifest.notes if "onnx-bridge reduce" in note)
    model = Path(offer.split()[2])
    assert model == tmp_path / "out/m.onnx"
    found = onnx_bridge.reduce(model, tmp_path / "reduced", pipeline="none", target="ref")
    assert (tmp_path / "reduced/model.onnx").exists(), found


@pytest.mark.parametrize("doing", ["parse", "compile"])
def test_a_process_that_was_killed(runtime: Runtime, doing: str) -> None:
    """The conversion continues in another process, and the model is not blamed."""
    text = "(float[4, 4] x) => (float[4, 4] y) { a = MatMul(x, x) y = Relu(a) }"
    model = with_inferred_types(ir.from_proto(parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> g {text}')))
    killed: list[int] = []

    def progress(stage: str) -> None:
        worker = workers.shared(runtime)
        if stage == doing and not killed:
            with worker._child.lock:  # a request begins with a living process, and loses it
                pid = worker.start() and worker.pid
                assert pid
                killed.append(pid)
                os.kill(pid, signal.SIGSTOP)
                original = worker._exchange

                def exchange(*arguments: object) -> object:
                    worker._exchange = original  # type: ignore[method-assign]
                    os.kill(pid, signal.SIGKILL)
                    return original(*arguments)  # type: ignore[arg-type]

                worker._exchange = exchange  # type: ignore[assignment, method-assign]

    with Ladder(runtime, "ref", Limits()) as ladder:
        compiler = Compiler(model, workers.shared(runtime), "ref", stopwatch=Stopwatch(progress))
        partitioned = partition(model, TooKind(runtime), compiler=compiler, ladder=ladder)
        assert killed
        assert partitioned.error is None
        assert partitioned.plan.wholly_on_device
        assert partitioned.environment == {}
        assert any(
            "in a process of its own, since MIGraphX's process was killed by SIGKILL" in n for n in partitioned.notes
        )


def test_settings_that_worked_are_recorded(runtime: Runtime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The manifest has the settings, and a bundle that must compile again does it with them."""
    monkeypatch.setattr("onnx_bridge.conversion.steps.clean.ProbedRuntime", TooKind)
    path = tmp_path / "m.onnx"
    onnx.save(ir.to_proto(channels()), path)
    bundle = onnx_bridge.convert(path, tmp_path / "out", target="ref", pipeline="none")
    assert bundle.wholly_on_migraphx
    assert bundle.manifest.program.environment == {"MIGRAPHX_DISABLE_PASSES": "eliminate_pad"}
    loaded = onnx_bridge.load(tmp_path / "out")
    assert loaded.program.worker is not None
    assert loaded.program.worker.environment == bundle.manifest.program.environment
    assert onnx_bridge.check(loaded).passed


def test_bad_input_is_not_tried_again(runtime: Runtime, tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_text("no model")
    with pytest.raises(InputError):
        onnx_bridge.convert(tmp_path / "m.onnx", tmp_path / "out", target="ref")
