"""tune and the search for what must stay in float32, on ``ref`` for real."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

import onnx_bridge
from onnx_bridge.batch.jobs import gather
from onnx_bridge.benchmark.statistics import Ratio
from onnx_bridge.cli.speed import mixed_precision as cli_mixed_precision
from onnx_bridge.cli.speed import tune as cli_tune
from onnx_bridge.conversion.steps.run import run
from onnx_bridge.core.delta_debug import minimal_subset
from onnx_bridge.core.errors import BridgeError, InputError, ParityError
from onnx_bridge.model import io as models
from onnx_bridge.search.mixed_precision import mixed_precision
from onnx_bridge.search.pareto import Candidate, Trial, explain, pareto_front, winner
from onnx_bridge.search.tune import tune
from onnx_bridge.views.html.placement import page_of
from tests.passes.harness import model

RNG = np.random.default_rng(0)
WEIGHTS = {f"w{index}": RNG.standard_normal((8, 8)).astype(np.float32) / 3 for index in range(3)}
PLAIN = "(float[4,8] x) => (float[4,8] y) { a = MatMul(x, w0)  b = Relu(a)  y = MatMul(b, w1) }"
OVERFLOWS = """(float[4,8] x) => (float[4,8] y) {
    a = MatMul(x, w0)  b = Relu(a)  c = MatMul(b, w1)  big = Mul(c, k)  square = Mul(big, big)  root = Sqrt(square)
    d = Div(root, k)  e = MatMul(d, w2)  y = Tanh(e)
}"""
BIG = {**WEIGHTS, "k": np.array(3000, np.float32)}
QUICK: Mapping[str, Any] = {"target": "ref", "iterations": 4, "budget": 300.0, "options": [{}]}


def saved(folder: Path, text: str = PLAIN, **constants: Any) -> Path:
    used: dict[str, Any] = {name: array for name, array in (constants or WEIGHTS).items() if name in text}
    path = folder / "model.onnx"
    models.save(model(text, **used), path)
    return path


# The smallest subset


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 60), st.data())
def test_the_smallest_subset_is_found_with_few_tests(count: int, data: st.DataObject) -> None:
    needed = data.draw(st.sets(st.integers(0, count - 1), max_size=4))
    asked = 0

    def holds(subset: Sequence[int]) -> bool:
        nonlocal asked
        asked += 1
        return needed.issubset(subset)

    assert minimal_subset(range(count), holds) == sorted(needed)
    assert asked <= 1 + len(needed) * (2 * math.ceil(math.log2(count)) + 2)


def test_earlier_elements_are_preferred() -> None:
    assert minimal_subset("abcd", lambda subset: "b" in subset or "d" in subset) == ["b"]


def test_no_element_can_be_removed() -> None:
    def holds(subset: Sequence[int]) -> bool:
        return sum(subset) >= 10

    found = minimal_subset([1, 5, 2, 7, 3], holds)
    assert holds(found)
    assert not any(holds([each for each in found if each != gone]) for gone in found)


# What must stay in float32


def test_only_nodes_that_overflow_stay_in_float32(tmp_path: Path) -> None:
    path = saved(tmp_path, OVERFLOWS, **BIG)
    found = mixed_precision(path, precision="fp16", target="ref")
    assert set(found.out_of_range) == set(found.nodes)
    assert len(found.nodes) == 2
    assert found.trials == 2  # what overflows does so by itself: one trial without it
    assert [point.passed for point in found.points] == [False, True]
    assert found.command.endswith(found.option.removeprefix("--precision fp16 "))
    assert f"{found.chosen.share:.1%} of the work in fp16" in page_of(found, path.name, {}).html()
    bundle = onnx_bridge.convert(path, tmp_path / "a", target="ref", precision="fp16", keep_fp32=found.nodes)
    assert onnx_bridge.check(bundle).passed
    for gone in found.nodes:
        rest = [name for name in found.nodes if name != gone]
        with pytest.raises(ParityError):
            onnx_bridge.convert(path, tmp_path / "a", target="ref", precision="fp16", keep_fp32=rest)
    assert found.option == f"--precision fp16 --keep-fp32 {found.nodes[0]} --keep-fp32 {found.nodes[1]}"


def test_bfloat16_does_not_overflow(tmp_path: Path) -> None:
    found = mixed_precision(saved(tmp_path, OVERFLOWS, **BIG), precision="bf16", target="ref")
    assert (found.nodes, found.out_of_range, found.trials) == ((), {}, 1)


def test_nodes_that_int8_breaks_stay_in_float32(tmp_path: Path) -> None:
    """One huge element in a weight leaves no resolution for the others."""
    spoilt = WEIGHTS["w0"].copy()
    spoilt[0, 0] = 500.0
    path = saved(tmp_path, PLAIN.replace("Relu(a)", "Tanh(a)"), w0=spoilt, w1=WEIGHTS["w1"])
    bundle = onnx_bridge.convert(path, tmp_path / "a", target="ref", precision="int8")
    assert not onnx_bridge.check(bundle).passed
    found = mixed_precision(path, precision="int8", target="ref")
    assert (len(found.nodes), found.candidates, found.out_of_range) == (1, 2, {})
    kept = onnx_bridge.convert(path, tmp_path / "a", target="ref", precision="int8", keep_fp32=found.nodes)
    assert onnx_bridge.check(kept).passed


def test_invalid_searches_are_errors(tmp_path: Path) -> None:
    path = saved(tmp_path)
    with pytest.raises(InputError, match="all is in float32"):
        mixed_precision(path, precision="fp32", target="ref")
    with pytest.raises(InputError, match="needs no calibration data"):
        mixed_precision(path, precision="fp16", target="ref", calibration=[{}])
    with pytest.raises(InputError, match="no conversion in 1 run agrees with the reference"):
        mixed_precision(saved(tmp_path, OVERFLOWS, **BIG), precision="fp16", target="ref", runs=1)
    path = saved(tmp_path)
    with pytest.raises(InputError, match="even with all of its nodes in float32"):
        mixed_precision(path, precision="fp16", target="ref", rtol=0.0, atol=0.0)


CANCELS = """(float[1,64] x) => (float[1,64] y) {
    p = MatMul(x, w0)  q = Tanh(p)  a = Add(q, k)  b = Sub(a, k)  r = MatMul(b, w1)  s = Tanh(r)  y = MatMul(s, w2)
}"""


def test_the_noise_of_each_node_says_where_to_begin(tmp_path: Path) -> None:
    """Adding a thousand costs ten bits, which nothing brings back; no value is out of range."""
    weights = {f"w{index}": RNG.standard_normal((64, 64)).astype(np.float32) / 8 for index in range(3)}
    path = saved(tmp_path, CANCELS, **weights, k=np.array(1000, np.float32))
    found = mixed_precision(path, precision="fp16", target="ref", pipeline="none,legalize")
    model_ = models.load(path)
    kinds = {str(node.name): node.op_type for node in model_.graph}
    assert {kinds[name] for name in found.nodes} == {"Add", "Sub"}
    assert found.trials <= 6
    noise = sorted(found.noise, key=found.noise.__getitem__)
    assert {kinds[name] for name in noise[-2:]} == {"Add", "Sub"}
    assert found.out_of_range == {}
    assert found.chosen.passed
    assert found.chosen.share > 0.6


# The choice


def trial(
    name: str, ratio: float, memory: int, error: float, spread: float = 0.001, failure: str | None = None
) -> Trial:
    return Trial(Candidate(name), 1.0, failure, ratio, Ratio(ratio, ratio - spread, ratio + spread), memory, error)


def test_the_pareto_front() -> None:
    exact, fast, small = trial("fp32", 1, 100, 0), trial("fp16", 0.5, 50, 0.01), trial("int8", 0.7, 25, 0.05)
    beaten = trial("bf16", 0.6, 50, 0.08)
    broken = trial("fp8", 0.1, 10, 0, failure="the model differs from the reference: y")
    trials = [exact, fast, small, beaten, broken]
    assert pareto_front(trials) == [exact, fast, small]
    assert winner(trials) is fast
    said = [explain(each, trials) for each in trials]
    assert said[0].startswith("fp32: on the Pareto front, more accurate")
    assert said[1].startswith("fp16: chosen, the fastest that agrees")
    assert said[2].startswith("int8: on the Pareto front, smaller")
    assert said[3].startswith("bf16: dominated by fp16")
    assert said[4] == "fp8: failed, the model differs from the reference: y"


def test_of_equally_fast_trials_the_most_accurate_is_chosen() -> None:
    exact, noisy = trial("fp32", 1.0, 100, 0.0, spread=0.1), trial("fp16", 0.95, 50, 0.01, spread=0.1)
    assert winner([exact, noisy]) is exact
    assert "as fast as fp16 within the measured noise, with the smaller error" in explain(exact, [exact, noisy])


def test_no_winner_if_no_trial_passed() -> None:
    assert winner([trial("fp32", 1, 1, 0, failure="the model differs from the reference: y")]) is None


# The search


def test_tune_chooses_a_trial_and_writes_the_job(tmp_path: Path) -> None:
    path, job = saved(tmp_path), tmp_path / "tuned.toml"
    found = tune(path, job, precisions=["fp32", "fp16", "int8"], **QUICK)
    assert [each.candidate.precision for each in found.trials] == ["fp32", "fp16", "int8"]
    assert all(each.passed and each.latency > 0 and each.memory > 0 for each in found.trials)
    assert found.trials[0].error < 1e-6 < found.trials[1].error < found.trials[2].error
    assert found.winner is not None
    (made,) = gather([job], tmp_path / "out")
    conversion = made.request.conversion
    assert made.source == path
    assert conversion.precision == found.winner.candidate.precision
    assert onnx_bridge.check(run(path, tmp_path / "out", conversion)).passed
    assert json.dumps(found.to_json(), allow_nan=False)
    assert not list((tmp_path / "tuned.tuning").glob("*/"))


def test_tune_continues_from_the_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, job = saved(tmp_path), tmp_path / "tuned.toml"
    first = tune(path, job, precisions=["fp32", "fp16"], **QUICK)
    journal = tmp_path / "tuned.tuning/journal.jsonl"
    journal.write_text(journal.read_text() + '{"key": "torn')
    second = tune(path, job, precisions=["fp32", "fp16", "bf16"], **QUICK)
    assert (second.resumed, second.trials[:2], len(second.trials)) == (2, first.trials, 3)
    third = tune(path, job, precisions=["fp32", "fp16", "bf16"], **QUICK)
    assert (third.resumed, third.trials) == (3, second.trials)
    assert tune(path, job, precisions=["fp32"], resume=False, **QUICK).resumed == 0
    models.save(model(PLAIN, w0=WEIGHTS["w2"], w1=WEIGHTS["w1"]), path)
    assert tune(path, job, precisions=["fp32"], **QUICK).resumed == 0


def test_a_precision_that_differs_gets_another_trial(tmp_path: Path) -> None:
    path, job = saved(tmp_path, OVERFLOWS, **BIG), tmp_path / "tuned.toml"
    found = tune(path, job, precisions=["fp32", "fp16"], **QUICK)
    _, differs, kept = found.trials
    assert differs.differs
    assert kept.passed
    assert len(kept.candidate.keep_fp32) == 2
    again = tune(path, job, precisions=["fp32", "fp16"], **QUICK)
    assert (again.resumed, again.trials) == (3, found.trials)


def test_a_candidate_that_does_not_convert_fails(tmp_path: Path) -> None:
    text = """(float[4,8] x) => (float[4,8] y) {
        q = QuantizeLinear(x, s, z)  d = DequantizeLinear(q, s, z)  y = MatMul(d, w0) }"""
    path = saved(tmp_path, text, w0=WEIGHTS["w0"], s=np.float32(0.05), z=np.int8(0))
    found = tune(path, tmp_path / "tuned.toml", precisions=["fp32", "int8"], **QUICK)
    assert [each.passed for each in found.trials] == [True, False]
    assert "quantized already" in str(found.trials[1].failure)


SIZED = "(float[n,8] x) => (float[n,8] y) { a = MatMul(x, w0)  y = Relu(a) }"


def test_buckets_are_searched(tmp_path: Path) -> None:
    path, job = saved(tmp_path, SIZED), tmp_path / "tuned.toml"
    how: dict[str, Any] = {**QUICK, "precisions": ["fp32"], "buckets": {"n": [4, 1, 2]}, "pad": {"x": "1"}}
    found = tune(path, job, **how)
    assert [each.candidate.buckets for each in found.trials] == [{"n": (1, 2, 4)}, {"n": (4,)}, {"n": (1, 4)}]
    assert all(each.passed for each in found.trials), [each.failure for each in found.trials]
    all_, largest, ends = (each.memory for each in found.trials)
    assert largest < ends < all_
    assert found.winner is not None
    (made,) = gather([job], tmp_path / "out")
    assert made.request.conversion.buckets == {
        name: tuple(sizes) for name, sizes in found.winner.candidate.buckets.items()
    }
    assert made.request.conversion.pad == {"x": "1"}
    assert tune(path, job, **how).resumed == 3
    assert tune(path, job, **{**how, "pad": {}}).resumed == 0
    assert "buckets n 1 2 4" in found.trials[0].candidate.name
    assert found.to_json()["sizes"] == {"n": [1, 2, 4]}
    with pytest.raises(InputError, match="inputs are generated for each size"):
        tune(path, job, inputs=[{}], **how)


def test_two_sizes_give_two_choices_of_buckets(tmp_path: Path) -> None:
    found = tune(saved(tmp_path, SIZED), tmp_path / "t.toml", precisions=["fp32"], buckets={"n": [1, 2]}, **QUICK)
    assert [each.candidate.buckets for each in found.trials] == [{"n": (1, 2)}, {"n": (2,)}]


class Clock:
    """Time that passes with each reading."""

    def __init__(self, step: float) -> None:
        self.now, self.step = 0.0, step

    def __call__(self) -> float:
        self.now += self.step
        return self.now


def test_a_budget_too_short_for_one_trial_is_an_error(tmp_path: Path) -> None:
    path, job = saved(tmp_path), tmp_path / "tuned.toml"
    with pytest.raises(InputError, match="budget of 10 s is too short for one trial"):
        tune(path, job, precisions=["fp32"], clock=Clock(100.0), **{**QUICK, "budget": 10.0})
    assert not job.exists()


def test_the_budget_ends_the_search(tmp_path: Path) -> None:
    path, job = saved(tmp_path), tmp_path / "tuned.toml"
    found = tune(path, job, precisions=["fp32", "fp16", "bf16"], clock=Clock(100.0), **{**QUICK, "budget": 250.0})
    assert 1 <= len(found.trials) < 3
    assert len(found.trials) + len(found.left) == 3
    assert job.exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"budget": 0}, "give more than 0"),
        ({"precisions": []}, "no candidate is left to try"),
        ({"precisions": ["fp31"]}, "the precision does not exist"),
        ({"out": "tuned.json"}, "the job file must be a .toml"),
    ],
)
def test_wrong_arguments(tmp_path: Path, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        tune(saved(tmp_path), **{"out": tmp_path / "tuned.toml", **QUICK, **arguments})


def command(verb: Any, *arguments: object) -> tuple[int, str]:
    app = typer.Typer()
    app.command()(verb)
    result = CliRunner().invoke(app, list(map(str, arguments)))
    if isinstance(result.exception, BridgeError):
        return result.exception.exit_code, str(result.exception)
    return result.exit_code, result.stdout


def test_the_commands(tmp_path: Path) -> None:
    path, job = saved(tmp_path, OVERFLOWS, **BIG), tmp_path / "tuned.toml"
    code, said = command(cli_mixed_precision.mixed_precision, path, "--target", "ref", "--json")
    assert (code, len(json.loads(said)["keep_fp32"])) == (0, 2)
    options = ("--precision", "fp32", "--option", "fast_math=false", "--target", "ref", "--iterations", 3)
    code, said = command(cli_tune.tune, path, "-o", job, "--budget", "5m", *options)
    assert (code, job.exists()) == (0, True)
    assert "Pareto front" in said
    assert command(cli_tune.tune, path, "-o", job, "--budget", "soon")[0] == 2
