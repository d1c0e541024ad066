"""Generated models through every pass: a part of ``make suite NAME=differential``, and what that counts."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from fixtures.suites.differential import run, worker
from fixtures.suites.differential.builder import SingleThreaded
from fixtures.suites.differential.generate import Case
from fixtures.suites.differential.judge import Outcome, judge
from passes.isolation.process import ChildFailure, Reason
from passes.rewriting.base import Result, Rewrite
from passes.specialize.convert_precision import ConvertPrecision

SEED = 1
"""Other models than those of ``make suite NAME=differential``."""
PART = 40


@pytest.fixture(scope="module")
def judges() -> Iterator[run.Judges]:
    found = run.Judges(SEED, legalize=False)
    yield found
    found.close()


@pytest.fixture(scope="module")
def generator() -> Iterator[run.Judges]:
    """Judges that judge nothing, and only generate."""
    found = run.Judges(SEED, legalize=False, every=0)
    yield found
    found.close()


@pytest.mark.slow
@pytest.mark.parametrize("part", range(8))
def test_generated_models(judges: run.Judges, part: int) -> None:
    rows = [judges.judge(index) for index in range(part * PART, (part + 1) * PART)]
    assert [text for row in rows if (text := run.SUITE.line(row))] == []


@pytest.mark.slow
@pytest.mark.runtime
def test_legalized_models(runtime: object) -> None:
    legalizing = run.Judges(SEED, every=1)
    rows = [legalizing.judge(index) for index in range(1000, 1020)]
    legalizing.close()
    assert [text for row in rows if (text := run.SUITE.line(row))] == []


def test_the_same_model_for_the_same_index(generator: run.Judges) -> None:
    other = run.Judges(SEED, legalize=False, every=0)
    assert [generator.judge(index).model for index in range(5)] == [other.judge(index).model for index in range(5)]
    other.close()


@pytest.mark.slow
def test_what_models_are_made_of(generator: run.Judges) -> None:
    protos = [onnx.ModelProto.FromString(generator.judge(index).model) for index in range(100)]
    opsets = {each.version for proto in protos for each in proto.opset_import if each.domain == ""}
    assert {7, 8, 9, 10} & opsets
    assert max(opsets) >= 23
    operators = {node.op_type for proto in protos for node in proto.graph.node}
    assert operators >= {"If", "Loop", "Scan", "Conv", "MatMul", "Reshape", "Gather", "QuantizeLinear"}
    assert any(proto.functions for proto in protos)
    assert len(operators) > 80


def tangent(angle: float) -> bytes:
    text = f"""<ir_version: 10, opset_import: ["": 17]> g (float[2] x) => (float[2] y) {{
        k = Constant<value = float[2] {{{angle}, 0.5}}> () t = Tan(k) y = Add(t, x) }}"""
    return onnx.parser.parse_model(text).SerializeToString()


def differing(model: bytes) -> list[str]:
    """Return which passes are said to change the results of a model."""
    sample = {"x": np.float32([0.25, 1])}
    case = Case(model, (sample,), (SingleThreaded(model).run(sample),), 1, False, model)
    return [each.where for each in judge(case, 1, None, lambda name: None)]


def test_next_to_a_pole_no_tolerance_of_half_precision_holds() -> None:
    assert not differing(tangent(1.5728402))


def test_other_numbers_differ_in_half_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    other = ir.from_proto(onnx.ModelProto.FromString(tangent(0.4)))
    monkeypatch.setattr(ConvertPrecision, "run", lambda *_: Result(other, [Rewrite(())]))
    assert differing(tangent(0.3)) == ["infer-shapes,convert-precision"]


@pytest.mark.parametrize(
    ("reason", "why"), [(Reason.TIMEOUT, "it does not return"), (Reason.DIED, "the process ends: -11")]
)
def test_a_pass_that_ends_the_process_is_counted(monkeypatch: pytest.MonkeyPatch, reason: Reason, why: str) -> None:
    class Failing:
        ended = False

        def exchange(self, *arguments: object, **options: object) -> None:
            raise ChildFailure(reason, "\ngenerating 0\n\njudging fold-pad\nfree(): invalid pointer\n", -11)

    judges = run.Judges()
    monkeypatch.setattr(judges, "_child", Failing)
    row = judges.judge(3)
    assert row.outcomes == (Outcome("crashed", "fold-pad", why),)
    assert run.SUITE.counts([row, run.Row(4, ())]) == "differential: equal 1, differs 0, refused 0, crashed 1, of 2"


def test_a_model_that_ends_onnx_runtime_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    class Failing:
        ended = False

        def exchange(self, request: dict[str, int], *arguments: object, **options: object) -> object:
            asked.append(request["first"])
            if len(asked) == 1:
                raise ChildFailure(Reason.DIED, "\ngenerating 2\n", -11)
            return {"outcomes": [], "attempts": 4}, {"model": np.frombuffer(b"model", np.uint8)}

    judges = run.Judges()
    monkeypatch.setattr(judges, "_child", Failing)
    assert judges.judge(0) == run.Row(0, (), 4, b"model")
    assert asked == [0, 3]


def test_what_happens_is_printed_where_the_parent_finds_it(capfd: pytest.CaptureFixture[str]) -> None:
    worker.say("judging load")
    assert capfd.readouterr().err == "\njudging load\n"
