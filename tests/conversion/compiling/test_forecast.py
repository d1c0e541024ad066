"""The time to compile is said beforehand: by `doctor`, while compiling, and if a limit is met."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

import onnx_bridge
from onnx_bridge.conversion.compiling.forecast import CompileForecast
from onnx_bridge.core.errors import WorkerTimeout
from onnx_bridge.core.progress import TimedProgress
from onnx_bridge.migraphx.remote_program import RemoteProgram
from onnx_bridge.migraphx.runtime import Runtime
from onnx_bridge.verdicts import run_time
from passes.graphs import lineage
from tests.passes.harness import model


@pytest.fixture
def long(tmp_path: Path) -> Path:
    """Three nodes, of which one is unrolled to 13,000 instructions."""
    weights = {"w": np.ones((1, 16, 3), np.float32), "r": np.ones((1, 16, 4), np.float32)}
    text = "(float[500,1,3] x) => (float[500,1,1,4] y) { a = Neg(x) b = LSTM<hidden_size=4>(a, w, r) y = Exp(b) }"
    source = model(text, **weights)
    source.graph[1].name = "the_lstm"
    ir.save(source, tmp_path / "long.onnx")
    return tmp_path / "long.onnx"


def test_doctor_names_what_costs(long: Path, runtime: Runtime) -> None:
    forecast = onnx_bridge.doctor(long, target="ref").compiling
    assert forecast.seconds == pytest.approx(run_time.growth(runtime) * forecast.instructions**2)
    assert (forecast.programs, [*forecast.costs]) == (1, ["the_lstm"])
    assert 0.9 * forecast.instructions < forecast.costs["the_lstm"] <= forecast.instructions


def test_constants_that_nodes_share_cost_once(runtime: Runtime) -> None:
    adds = "".join(f" a{n + 1} = Add(a{n}, w)" for n in range(150))
    source = model(f"(float[1,4] a0) => (float[1,4] y) {{{adds} y = Neg(a150) }}", w=np.ones((1, 4), np.float32))
    for node in source.graph:
        node.metadata_props[lineage.ORIGIN] = '["loop"]'
    forecast = CompileForecast.of([[*source.graph]], runtime)
    assert forecast.costs == {"loop": forecast.instructions - 1}


def test_a_node_that_a_limit_forbids_is_on_the_host(long: Path) -> None:
    diagnosis = onnx_bridge.doctor(long, target="ref", timeout=0.5)
    assert [node.action.value for node in diagnosis.nodes if node.name == "the_lstm"] == ["host partition"]


def test_a_limit_is_met_with_the_forecast(long: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def late(*_: object, **_options: object) -> None:
        raise WorkerTimeout("compile exceeded its time limit", hint="give it more time with `timeout`")

    monkeypatch.setattr(RemoteProgram, "compile", late)
    said: list[str] = []
    with pytest.raises(WorkerTimeout) as failed:
        onnx_bridge.convert(long, tmp_path / "out", target="ref", progress=said.append)
    assert "the_lstm" in str(failed.value.hint) and "`timeout`" in str(failed.value.hint)
    assert any(isinstance(line, TimedProgress) and "instructions" in line.what for line in said)
