"""bench: engines in turns, what is reported, and the gate against a baseline."""

from __future__ import annotations

import csv
import gc
import io
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import typer
from typer.testing import CliRunner

import onnx_bridge
from onnx_bridge.benchmark.bench import bench
from onnx_bridge.benchmark.engines import Call
from onnx_bridge.benchmark.measure import LEAST, MOST, SHORT, TURN, Rounds, measure
from onnx_bridge.benchmark.outcome import Baseline, BenchResult, Row
from onnx_bridge.benchmark.statistics import Change
from onnx_bridge.cli.speed import bench as cli_bench
from onnx_bridge.core.errors import InputError
from onnx_bridge.migraphx.kinds import VARIABLE
from onnx_bridge.migraphx.runtime import Runtime
from onnx_bridge.model import io as models
from passes.core.errors import BridgeError
from passes.isolation.failure import NativeFailure
from passes.isolation.process import Reason
from tests.passes.harness import model

RNG = np.random.default_rng(0)
TEXT = "(float[n,8] x) => (float[n,8] y) { a = MatMul(x, w)  y = Relu(a) }"
QUICK: Mapping[str, Any] = {"target": "ref", "iterations": 6, "warmup": 1}


def saved(folder: Path, seed: int = 0, text: str = TEXT) -> Path:
    path = folder / f"model{seed}.onnx"
    models.save(model(text, w=np.random.default_rng(seed).standard_normal((8, 8)).astype(np.float32)), path)
    return path


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    return saved(tmp_path)


def rows(digest: str = "d", scale: float = 1.0, calls: int = 100) -> BenchResult:
    """A benchmark of an engine with 2 % of noise."""
    latencies = scale * 0.01 * np.random.default_rng(int(scale * 100)).lognormal(0, 0.02, calls)
    row = Row("migraphx", "ref", "fp32", 1, tuple(latencies.tolist()), 0.1, 0.2, 1 << 20)
    return BenchResult("m", digest, (row,), {"MIGraphX": "2.14"})


def baseline(found: BenchResult, path: Path) -> Baseline:
    path.write_text(json.dumps(found.to_json()))
    return Baseline.read(path)


# Measuring


class Clock:
    """Time that passes with calls, and a little with each reading."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1e-9
        return self.now

    def taking(self, seconds: float, then: Callable[[], object] = lambda: None) -> Call:
        def call(_sample: object) -> None:
            self.now += seconds
            then()

        return call


def test_engines_take_turns_in_every_round() -> None:
    said: list[str] = []
    clock = Clock()
    calls: list[tuple[Call, dict[str, Any]]] = [
        (clock.taking(1.0, lambda name=name: said.append(name)), {})  # type: ignore[misc]
        for name in "abc"
    ]
    found = measure(calls, Rounds(iterations=20, warmup=2), clock)
    assert [(len(each.latencies), each.together) for each in found] == [(20, 1)] * 3
    assert said[:6] == list("aabbcc")
    orders = {tuple(said[start : start + 3]) for start in range(6, len(said), 3)}
    assert all(sorted(order) == list("abc") for order in orders)
    assert len(orders) > 1


def test_latencies_are_those_of_the_clock() -> None:
    clock = Clock()

    def resting() -> None:
        assert not gc.isenabled()

    (found,) = measure([(clock.taking(0.25, resting), {})], Rounds(iterations=4, warmup=0), clock)
    assert found.latencies == pytest.approx([0.25] * 4, rel=1e-6)
    assert gc.isenabled()


def test_short_calls_are_timed_together() -> None:
    clock, calls = Clock(), 0

    def counted() -> None:
        nonlocal calls
        calls += 1

    (found,) = measure([(clock.taking(TURN / 50, counted), {})], Rounds(iterations=4, warmup=3), clock)
    assert 45 <= found.together <= 50
    assert calls == 3 + 4 * found.together
    assert found.latencies == pytest.approx([TURN / 50] * 4, rel=1e-4)
    (long,) = measure([(clock.taking(SHORT * 1.1), {})], Rounds(iterations=1, warmup=1), clock)
    assert long.together == 1
    (unknown,) = measure([(clock.taking(1e-6), {})], Rounds(iterations=1, warmup=0), clock)
    assert unknown.together == 1
    (nothing,) = measure([(clock.taking(0.0), {})], Rounds(iterations=1, warmup=1), clock)
    assert nothing.together == MOST


def test_the_time_limit_ends_all_but_the_first_rounds() -> None:
    clock = Clock()
    (found,) = measure([(clock.taking(10.0), {})], Rounds(iterations=50, warmup=0, seconds=1.0), clock)
    assert len(found.latencies) == LEAST


# The verb


def test_batches_precisions_and_engines(tiny: Path) -> None:
    found = bench(tiny, batches=[1, 3], precisions=["fp32", "fp16"], **QUICK)
    assert [row.name for row in found.rows] == [
        *("migraphx ref, fp32, batch 1", "migraphx ref, fp16, batch 1", "ort, fp32, batch 1"),
        *("migraphx ref, fp32, batch 3", "migraphx ref, fp16, batch 3", "ort, fp32, batch 3"),
    ]
    assert all(len(row.latencies) == 6 and min(row.latencies) > 0 for row in found.rows)
    assert all(row.load > 0 and row.first > 0 and row.memory >= 0 for row in found.rows)
    assert found.rows[3].throughput == pytest.approx(3 / found.rows[3].summary.p50)
    assert set(found.knees()) == {("migraphx", "ref", "fp32"), ("migraphx", "ref", "fp16"), ("ort", "", "fp32")}
    ratios = found.ratios()
    assert set(ratios) == {row for row in found.rows if row not in (found.rows[0], found.rows[3])}
    assert all(each.low <= each.value <= each.high for each in ratios.values())


def test_json_round_trip_and_csv_lines(tiny: Path, tmp_path: Path) -> None:
    found = bench(tiny, engines=["ort", "migraphx"], dims={"n": 2}, **QUICK)
    again = baseline(found, tmp_path / "base.json")
    assert again.rows == found.rows
    assert again.digest == found.digest == models.digest(tiny)
    lines = list(csv.DictReader(io.StringIO(found.to_csv())))
    assert [line["engine"] for line in lines] == ["ort", "migraphx"]
    assert float(lines[0]["p50"]) == found.rows[0].summary.p50


def test_a_bundle_is_measured_as_it_is(tiny: Path, tmp_path: Path) -> None:
    bundle = onnx_bridge.convert(tiny, tmp_path / "out", target="ref", precision="fp16", dims={"n": 2})
    found = bench(bundle, **QUICK)
    assert [(row.engine, row.precision) for row in found.rows] == [("migraphx", "fp16"), ("ort", "fp32")]
    with pytest.raises(InputError, match="a bundle has the batch size"):
        bench(tmp_path / "out", batches=[1], **QUICK)


def factory(folder: Path, body: str, name: str) -> str:
    path = folder / f"{name}.py"
    path.write_text(f"import torch\ndef make():\n    {body}\n")
    return f"{path}:make"


def test_torch_engines(tiny: Path, tmp_path: Path) -> None:
    found = bench(
        tiny,
        engines=["migraphx", "torch"],
        module=factory(tmp_path, "return torch.nn.Linear(8, 8)", "plain_factory"),
        **QUICK,
    )
    assert [row.engine for row in found.rows] == ["migraphx", "torch"]
    assert "torch" in found.versions
    with pytest.raises(InputError, match="the factory fails: ValueError: no weights"):
        bench(tiny, engines=["torch"], module=factory(tmp_path, "raise ValueError('no weights')", "bad"), **QUICK)
    with pytest.raises(InputError, match="the module fails: RuntimeError.*must take the model's inputs.*: x"):
        bench(tiny, engines=["torch"], module=factory(tmp_path, "return torch.nn.Linear(3, 3)", "narrow"), **QUICK)


def test_a_factory_is_exported_and_compiled(tmp_path: Path) -> None:
    import torch._inductor.config as inductor  # what `monkeypatch` sets there does not exist afterwards

    name = factory(tmp_path, "return torch.nn.ReLU(), (torch.ones(2, 3),)", "relu_factory")
    # headers that are compiled before, and processes, take longer than this module
    with inductor.patch(cpp_cache_precompile_headers=False, compile_threads=1):
        found = bench(name, engines=["ort", "torch", "torch-compile"], **QUICK)
    assert [row.engine for row in found.rows] == ["ort", "torch", "torch-compile"]
    assert found.unavailable == {}
    assert found.model == "make"
    swept = bench(name, engines=["ort"], batches=[1, 3], **QUICK)
    assert [row.batch for row in swept.rows] == [1, 3]
    with pytest.raises(InputError, match="without arguments"):
        bench(factory(tmp_path, "return torch.nn.ReLU()", "bare"), **QUICK)


def test_unavailable_engines_are_omitted_with_the_reason(tmp_path: Path) -> None:
    import torch._inductor.config as inductor

    options = {"cpp.cxx": (str(tmp_path / "no-compiler"),), "force_disable_caches": True}
    name = factory(tmp_path, "return torch.nn.Tanh(), (torch.ones(2, 5),)", "tanh_factory")
    with inductor.patch(options):
        found = bench(name, engines=["ort-rocm", "ort", "torch-compile"], **QUICK)
    assert [row.engine for row in found.rows] == ["ort"]
    assert set(found.unavailable) == {"ort-rocm", "torch-compile"}
    assert "torch.compile fails" in found.unavailable["torch-compile"]
    assert "ort-rocm: not available, ONNX Runtime has no ROCMExecutionProvider here" in found.sentences()
    assert found.to_json()["unavailable"] == found.unavailable
    with inductor.patch(options), pytest.raises(InputError, match=r"torch\.compile fails"):
        bench(name, engines=["torch-compile"], **QUICK)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"engines": ["ort-rocm"]}, "no ROCMExecutionProvider here"),
        ({"engines": ["orz"]}, "the engine does not exist.*did you mean ort"),
        ({"engines": []}, "no engine is named"),
        ({"engines": ["torch"]}, "needs a factory"),
        ({"batches": [0]}, "invalid batch sizes"),
        ({"batches": [2, 2]}, "invalid batch sizes"),
        ({"iterations": 0}, "iterations: the value cannot be 0"),
        ({"precisions": ["fp12"]}, "the precision does not exist"),
        ({"precisions": []}, "no precision is named"),
        ({"max_slowdown": -0.1}, "cannot be -10%"),
    ],
)
def test_wrong_arguments(tiny: Path, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        bench(tiny, **{**QUICK, **arguments})


def test_a_fixed_batch_cannot_be_swept(tmp_path: Path) -> None:
    path = saved(tmp_path, text=TEXT.replace("float[n,8]", "float[2,8]"))
    with pytest.raises(InputError, match="no batch dimension: the first dimensions of its inputs are fixed"):
        bench(path, batches=[1, 2], **QUICK)


# The gate


@pytest.mark.parametrize(("scale", "passed", "said"), [(1.2, False, "slower than"), (0.9, True, "within 5.0% of")])
def test_the_gate_finds_slowdowns(tmp_path: Path, scale: float, passed: bool, said: str) -> None:
    found = rows(scale=scale).against(baseline(rows(), tmp_path / "base.json"), 0.05)
    assert found.passed is passed
    assert any(said in each for each in found.sentences())
    assert found.to_json()["passed"] is passed


def test_noise_is_undecided_and_not_a_failure(tmp_path: Path) -> None:
    few = rows(calls=5)
    latencies = tuple(each * factor for each, factor in zip(few.rows[0].latencies, (1, 2, 1, 1.4, 3), strict=True))
    found = replace(few, rows=(replace(few.rows[0], latencies=latencies),))
    against = found.against(baseline(rows(), tmp_path / "base.json"), 0.05)
    assert against.passed
    assert [gate.change for gate in against.gates] == [Change.UNDECIDED]


def test_a_baseline_of_another_model_is_an_error(tiny: Path, tmp_path: Path) -> None:
    other = bench(saved(tmp_path, seed=1), engines=["ort"], **QUICK)
    (tmp_path / "base.json").write_text(json.dumps(other.to_json()))
    with pytest.raises(InputError, match="the baseline is of another model \\(model1\\)"):
        bench(tiny, engines=["ort"], against=tmp_path / "base.json", **QUICK)


def test_a_baseline_of_other_settings_is_an_error(tmp_path: Path) -> None:
    base = baseline(rows(), tmp_path / "base.json")
    found = rows()
    other = replace(found, rows=(replace(found.rows[0], batch=8),))
    with pytest.raises(InputError, match="none of the rows that were measured.*batch 1"):
        other.against(base, 0.05)
    both = replace(found, rows=(*found.rows, *other.rows), versions={"MIGraphX": "2.16"}).against(base, 0.05)
    assert [gate.row for gate in both.gates] == ["migraphx ref, fp32, batch 1"]
    assert both.notes[-2:] == (
        "not in the baseline: migraphx ref, fp32, batch 8",
        "the baseline was measured with another MIGraphX",
    )


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"format": 99}', '{"format": 1, "rows": [{}]}'])
def test_invalid_baselines(tmp_path: Path, text: str) -> None:
    (tmp_path / "base.json").write_text(text)
    with pytest.raises(InputError, match="the file is not a baseline"):
        Baseline.read(tmp_path / "base.json")


# The command


def command(*arguments: object) -> tuple[int, str]:
    app = typer.Typer()
    app.command()(cli_bench.bench)
    result = CliRunner().invoke(app, [*map(str, arguments), "--target", "ref", "--iterations", "5", "--warmup", "0"])
    if isinstance(result.exception, BridgeError):
        return result.exception.exit_code, str(result.exception)
    return result.exit_code, result.stdout


def test_the_command_gates(tiny: Path, tmp_path: Path) -> None:
    base, table = tmp_path / "base.json", tmp_path / "table.csv"
    code, said = command(tiny, "--engines", "ort", "-o", base, "--csv", table)
    assert code == 0
    assert "ort" in said
    assert table.read_text().startswith("engine,target,precision,batch")
    values = json.loads(base.read_text())
    for row in values["rows"]:
        row["latencies"] = [each / 1000 for each in row["latencies"]]  # as if it had been far faster
    base.write_text(json.dumps(values))
    code, said = command(tiny, "--engines", "ort", "--against", base, "--max-slowdown", "5%", "--json")
    assert code == 1
    assert json.loads(said)["gates"][0]["change"] == "slower"


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--max-slowdown", "some", "not a share"),
        ("--batch", "1,x", "not a list of sizes"),
        ("--against", "no.json", "not a baseline"),
    ],
)
def test_the_command_refuses(tiny: Path, option: str, value: str, message: str) -> None:
    code, said = command(tiny, option, value)
    assert code == 2
    assert message in said


def test_a_session_that_never_ends(tmp_path: Path) -> None:
    """ONNX Runtime's process is ended, and the caller goes on."""
    text = """g (float[2] x) => (float[2] y) {
        n = Constant<value = int64 {9223372036854775807}>() c = Constant<value = bool {1}>()
        y = Loop(n, c, x)
            <body = b (int64 i, bool d, float[2] v) => (bool e, float[2] w) { e = Identity(d) w = Neg(v) }>
    }"""
    onnx.save(onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 18]> {text}'), tmp_path / "m.onnx")
    with pytest.raises(NativeFailure) as error:
        onnx_bridge.bench(tmp_path / "m.onnx", engines=["ort"], timeout=2.0)
    assert error.value.reason is Reason.TIMEOUT


@pytest.mark.runtime
@pytest.mark.parametrize("converted", [False, True])
def test_the_runtime_is_the_given_one(
    tiny: Path, tmp_path: Path, runtime: Runtime, monkeypatch: pytest.MonkeyPatch, converted: bool
) -> None:
    subject = onnx_bridge.convert(tiny, tmp_path / "out", dims={"n": 2}, target="ref").path if converted else tiny
    monkeypatch.setenv(VARIABLE, str(tmp_path / "nowhere"))
    how = QUICK | {"dims": {} if converted else {"n": 2}, "runtime": str(runtime.path)}
    result = bench(subject, engines=("migraphx",), per_operator=True, **how)
    assert result.versions["MIGraphX"] == runtime.version
    if converted:
        assert onnx_bridge.check(subject, runtime=str(runtime.path)).passed
    else:
        assert not onnx_bridge.mixed_precision(tiny, dims={"n": 2}, target="ref", runtime=str(runtime.path)).nodes
