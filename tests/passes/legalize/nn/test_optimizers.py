"""The steps of optimizers, compared with ONNX's reference implementation."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx.reference import ReferenceEvaluator

from passes.legalize.nn.optimizers import decompose_optimizer
from tests.passes.device import Device
from tests.passes.legalize.one_node import Case, case, declare, legalized, normal, skipped

DOMAIN = "ai.onnx.preview.training"
STATES = {"Adagrad": 1, "Adam": 2, "Momentum": 1}
MOMENTUM = {"alpha": 0.9, "beta": 0.5, "mode": "standard", "norm_coefficient": 0.01}


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
    """The results of the reference, which loses the dtype if a factor is a Python number."""
    found = ReferenceEvaluator(source.proto).run(None, dict(source.feeds))
    return [np.asarray(array, source.feeds["x2"].dtype) for array in found]


class TestOptimizers:
    @pytest.mark.parametrize("tensors", [1, 2])
    @pytest.mark.parametrize("count", [0, 3])
    def test_forms(self, tensors: int, count: int, device: Device) -> None:
        every = {"norm_coefficient": 0.01, "epsilon": 1e-5}
        for operator, attributes in (
            ("Adagrad", {**every, "decay_factor": 0.1}),
            ("Adam", {**every, "alpha": 0.95, "beta": 0.85, "norm_coefficient_post": 0.02}),
            ("Momentum", MOMENTUM),
            ("Momentum", {**MOMENTUM, "mode": "nesterov"}),
        ):
            source = step(operator, attributes, tensors=tensors, count=count)
            legalized(decompose_optimizer, source, expected(source), device=device)

    @pytest.mark.parametrize("operator", ["Adagrad", "Adam"])
    def test_defaults(self, operator: str) -> None:
        source = step(operator, {})
        legalized(decompose_optimizer, source, expected(source))

    def test_models_without_standard_operators(self) -> None:
        source = step("Adam", {})
        del source.proto.opset_import[0]
        (reason,) = skipped(decompose_optimizer, source)
        assert "needs opset 9" in reason


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
    legalized(decompose_optimizer, source, expected(source), rtol=1e-4)
