"""What training leaves: Dropout that drops nothing, and optimizers against ONNX's own reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx.reference import ReferenceEvaluator

from onnx_bridge.migraphx.worker import Worker
from passes.legalize.nn.training import RULES
from tests.passes.legalize.one_node import Case, case, declare, legalized, normal, skipped

DROPOUT, FUSED_DROPOUT, OPTIMIZER = RULES
DOMAIN = "ai.onnx.preview.training"
STATES = {"Adagrad": 1, "Adam": 2, "Momentum": 1}
MOMENTUM = {"alpha": 0.9, "beta": 0.5, "mode": "standard", "norm_coefficient": 0.01}


class TestDropout:
    @pytest.mark.parametrize("opset", [12, 13, 22])
    def test_inference(self, opset: int, worker: Worker) -> None:
        found = legalized(DROPOUT, case("Dropout", [normal(3, 4)], opset=opset, outputs=2), worker=worker)
        assert set(found) == {"Identity"}
        inputs = [normal(3, 4), np.array(0.5, np.float32), np.array(False)]
        legalized(DROPOUT, case("Dropout", inputs, opset=opset, constants=[1, 2], outputs=2))
        legalized(DROPOUT, case("Dropout", inputs, opset=opset, constants=[2]))

    @pytest.mark.parametrize("opset", [7, 10])
    def test_old_masks(self, opset: int, worker: Worker) -> None:
        source = case("Dropout", [normal(3, 4)], {"ratio": 0.5}, opset=opset, outputs=2)
        legalized(DROPOUT, declare(source, source.expected()), worker=worker)

    def test_training_without_a_loss(self) -> None:
        inputs = [normal(3, 4), np.array(0, np.float32), np.array(True)]
        legalized(DROPOUT, case("Dropout", inputs, opset=13, constants=[1, 2], outputs=2))

    def test_skips(self) -> None:
        x, ratio, training = normal(3), np.array(0.5, np.float32), np.array(True)
        random = "it is in training mode, and drops at random"
        assert skipped(DROPOUT, case("Dropout", [x, ratio, training], constants=[1, 2])) == [random]
        assert skipped(DROPOUT, case("Dropout", [x, None, training], constants=[2])) == [random]
        assert skipped(DROPOUT, case("Dropout", [x], opset=6)) == [random]
        reason = "{} is not constant: freeze it with --freeze {}=VALUE"
        assert skipped(DROPOUT, case("Dropout", [x, ratio, training])) == [reason.format("training_mode", "x2")]
        source = case("Dropout", [x, ratio, training], constants=[2])
        assert skipped(DROPOUT, source) == [reason.format("ratio", "x1")]


class TestFusedDropout:
    """com.microsoft's, which ONNX Runtime has for GPUs alone."""

    X, BIAS, RESIDUAL = normal(3, 4), normal(4), normal(3, 4, seed=1)

    def fused(self, operator: str, *inputs: Any, outputs: int = 1, constants: Any = ()) -> Case:
        return case(operator, inputs, domain="com.microsoft", opset=17, outputs=outputs, constants=constants)

    def test_a_bias_and_a_residual(self, worker: Worker) -> None:
        expected = [self.X + self.BIAS + self.RESIDUAL, np.ones((3, 4), bool)]
        source = declare(self.fused("BiasDropout", self.X, self.BIAS, self.RESIDUAL, outputs=2), expected)
        assert legalized(FUSED_DROPOUT, source, expected, worker=worker) == ["Add", "Add", "Identity"]

    def test_without_a_residual(self) -> None:
        ratio, training = np.array(0.5, np.float32), np.array(False)
        source = self.fused("BitmaskBiasDropout", self.X, self.BIAS, None, ratio, training, constants=[3, 4])
        legalized(FUSED_DROPOUT, declare(source, [self.X + self.BIAS]), [self.X + self.BIAS])

    def test_nothing_but_the_input(self) -> None:
        source = declare(self.fused("BitmaskDropout", self.X), [self.X])
        assert legalized(FUSED_DROPOUT, source, [self.X]) == ["Identity"]

    def test_skips(self) -> None:
        ratio, training = np.array(0.5, np.float32), np.array(True)
        random = "it is in training mode, or may be, and drops at random"
        source = self.fused("BiasDropout", self.X, self.BIAS, None, ratio, training, constants=[3, 4])
        assert skipped(FUSED_DROPOUT, source) == [random]
        source = self.fused("BitmaskDropout", self.X, ratio, training)
        assert skipped(FUSED_DROPOUT, source) == [random]
        (reason,) = skipped(FUSED_DROPOUT, self.fused("BitmaskDropout", self.X, outputs=2))
        assert reason == "what the bits of its mask beyond the last element are, nobody says"


def step(
    operator: str, attributes: dict[str, Any], *, count: int = 3, tensors: int = 1, dtype: type = np.float32
) -> Case:
    """A step of an optimizer, with the outputs that ONNX's reference declares."""
    shapes = [(2,), (3, 2)][:tensors]
    inputs = [np.array(0.1, dtype), np.array(count, np.int64)]
    for state in range(2 + STATES[operator]):
        inputs += [abs(normal(*shape, dtype=dtype, seed=state)) for shape in shapes]
    source = case(operator, inputs, attributes, domain=DOMAIN, opset=17, outputs=tensors * (1 + STATES[operator]))
    return declare(source, expected(source))


def expected(source: Case) -> list[np.ndarray]:
    """By the reference, which forgets the dtype where a factor is a number of Python's."""
    found = ReferenceEvaluator(source.proto).run(None, dict(source.feeds))
    return [np.asarray(array, source.feeds["x2"].dtype) for array in found]


class TestOptimizers:
    @pytest.mark.parametrize("tensors", [1, 2])
    @pytest.mark.parametrize("count", [0, 3])
    def test_forms(self, tensors: int, count: int, worker: Worker) -> None:
        every = {"norm_coefficient": 0.01, "epsilon": 1e-5}
        for operator, attributes in (
            ("Adagrad", {**every, "decay_factor": 0.1}),
            ("Adam", {**every, "alpha": 0.95, "beta": 0.85, "norm_coefficient_post": 0.02}),
            ("Momentum", MOMENTUM),
            ("Momentum", {**MOMENTUM, "mode": "nesterov"}),
        ):
            source = step(operator, attributes, tensors=tensors, count=count)
            legalized(OPTIMIZER, source, expected(source), worker=worker)

    @pytest.mark.parametrize("operator", ["Adagrad", "Adam"])
    def test_defaults(self, operator: str) -> None:
        source = step(operator, {})
        legalized(OPTIMIZER, source, expected(source))

    def test_models_without_standard_operators(self) -> None:
        source = step("Adam", {})
        del source.proto.opset_import[0]
        assert skipped(OPTIMIZER, source) == ["the model imports no standard operators to write it in"]


@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_any_factors(data: st.DataObject) -> None:
    factor = st.floats(0.0625, 0.9375, width=16)
    operator = data.draw(st.sampled_from(list(STATES)))
    attributes = {"norm_coefficient": data.draw(factor)}
    if operator == "Adagrad":
        attributes |= {"decay_factor": data.draw(factor), "epsilon": data.draw(factor)}
    else:
        attributes |= {"alpha": data.draw(factor), "beta": data.draw(factor)}
    if operator == "Momentum":
        attributes["mode"] = data.draw(st.sampled_from(["standard", "nesterov"]))
    source = step(operator, attributes, count=data.draw(st.integers(0, 5)), tensors=data.draw(st.integers(1, 2)))
    legalized(OPTIMIZER, source, expected(source), rtol=1e-4)
