"""unroll-recurrent: all forms of RNN, GRU and LSTM, compared with ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import numpy_helper

from passes.legalize.nn.recurrent import unroll_recurrent
from tests.passes.device import Device
from tests.passes.legalize.one_node import Case, case, legalized, normal, skipped

GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
FUNCTIONS = {"RNN": 1, "GRU": 2, "LSTM": 3}
STEPS, BATCH, WIDTH, HIDDEN = 4, 2, 3, 5


def recurrent(
    operator: str,
    *,
    bias: bool = True,
    lengths: list[int] | None = None,
    states: bool = False,
    peepholes: bool = False,
    steps: int = STEPS,
    dtype: type = np.float32,
    opset: int = 14,
    outputs: int | list[str] | None = None,
    constants: tuple[int, ...] = (1, 2, 3, 4, 7),
    **attributes: Any,
) -> Case:
    gates, directions = GATES[operator], 2 if attributes.get("direction") == "bidirectional" else 1
    half = dtype(0.5)
    lstm = operator == "LSTM"
    inputs: list[Any] = [
        normal(steps, BATCH, WIDTH, dtype=dtype),
        normal(directions, gates * HIDDEN, WIDTH, dtype=dtype) * half,
        normal(directions, gates * HIDDEN, HIDDEN, dtype=dtype) * half,
        normal(directions, 2 * gates * HIDDEN, dtype=dtype) * half if bias else None,
        None if lengths is None else np.array(lengths, np.int32),
        normal(directions, BATCH, HIDDEN, dtype=dtype) if states else None,
        normal(directions, BATCH, HIDDEN, dtype=dtype, seed=1) if states and lstm else None,
        normal(directions, 3 * HIDDEN, dtype=dtype) if peepholes else None,
    ]
    while inputs[-1] is None:
        inputs.pop()
    return case(
        operator,
        inputs,
        {"hidden_size": HIDDEN, **attributes},
        opset=opset,
        constants=[index for index in constants if index < len(inputs) and inputs[index] is not None],
        outputs=(3 if lstm else 2) if outputs is None else outputs,
    )


@pytest.mark.parametrize("operator", GATES)
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.slow
def test_all_forms(operator: str, direction: str, device: Device) -> None:
    forms: list[dict[str, Any]] = [
        {"bias": False},
        {"lengths": [3, 1], "states": True},
        {"lengths": [3, 0], "states": True, "constants": (1, 2, 3)},
        {"clip": 0.3},
    ]
    if operator == "GRU":
        forms += [{"linear_before_reset": 1, "states": True}, {"linear_before_reset": 1, "bias": False}]
    if operator == "LSTM":
        forms += [{"peepholes": True, "clip": 0.2}, {"input_forget": 1, "peepholes": True}]
    for form in forms:
        legalized(unroll_recurrent, recurrent(operator, direction=direction, **form), device=device)


@pytest.mark.parametrize("operator", GATES)
@pytest.mark.slow
def test_activations(operator: str, device: Device) -> None:
    count = FUNCTIONS[operator]
    for name in ("Relu", "Softsign", "Softplus", "HardSigmoid", "LeakyRelu", "Elu"):
        # with gates that are not bounded, states grow until ONNX Runtime's Softplus overflows
        names = ["Sigmoid", *[name] * (count - 1)] if operator == "LSTM" else [name] * count
        legalized(unroll_recurrent, recurrent(operator, activations=names))
    alphas = {
        "LeakyRelu": 0.1,
        "Elu": 0.5,
        "ThresholdedRelu": 0.4,
        "HardSigmoid": 0.3,
        "Affine": 0.7,
        "ScaledTanh": 0.8,
    }
    for name, alpha in alphas.items():
        betas = {"activation_beta": [0.4] * count} if name in ("HardSigmoid", "Affine", "ScaledTanh") else {}
        source = recurrent(operator, activations=[name] * count, activation_alpha=[alpha] * count, **betas)
        legalized(unroll_recurrent, source, device=device)


def test_each_direction_has_its_own(device: Device) -> None:
    names = ["Sigmoid", "Tanh", "LeakyRelu", "hardsigmoid", "ELU", "tanh"]
    attributes = {"activations": names, "activation_alpha": [0.1, 0.2, 0.3], "activation_beta": [0.4]}
    legalized(unroll_recurrent, recurrent("LSTM", direction="bidirectional", **attributes), device=device)


@pytest.mark.parametrize("operator", GATES)
@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
def test_batch_first(operator: str, direction: str, device: Device) -> None:
    plain = recurrent(operator, direction=direction, lengths=[4, 2], states=True)
    y, *states = plain.expected()
    expected = [y.transpose(2, 0, 1, 3), *(state.transpose(1, 0, 2) for state in states)]
    feeds = {name: array.swapaxes(0, 1) for name, array in plain.feeds.items()}
    arrays = {each.name: numpy_helper.to_array(each) for each in plain.proto.graph.initializer} | feeds
    inputs = [arrays.get(name) for name in plain.proto.graph.node[0].input]
    attributes = {"hidden_size": HIDDEN, "direction": direction, "layout": 1}
    source = case(operator, inputs, attributes, opset=14, constants=[1, 2, 3, 4], outputs=len(expected))
    legalized(unroll_recurrent, source, expected, device=device)


@pytest.mark.parametrize("outputs", [["y"], ["", "h"], ["", "", "c"]])
def test_omitted_outputs(outputs: list[str]) -> None:
    legalized(unroll_recurrent, recurrent("LSTM", outputs=outputs))


@pytest.mark.parametrize("opset", [7, 14, 22])
def test_opsets_and_dtypes(opset: int) -> None:
    legalized(unroll_recurrent, recurrent("GRU", opset=opset))
    legalized(unroll_recurrent, recurrent("LSTM", opset=opset, dtype=np.float16), atol=2e-3)


def test_skips() -> None:
    reason = "there are 300 steps; the limit is 256"
    assert skipped(unroll_recurrent, recurrent("RNN", steps=300)) == [reason]
    assert skipped(unroll_recurrent, recurrent("RNN", activations=["Gelu"])) == [
        "the activation gelu is not defined by ONNX"
    ]


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_any_form(data: st.DataObject) -> None:
    operator = data.draw(st.sampled_from(list(GATES)))
    flags = st.booleans()
    attributes: dict[str, Any] = {"direction": data.draw(st.sampled_from(["forward", "reverse", "bidirectional"]))}
    if data.draw(flags):
        attributes["clip"] = data.draw(st.sampled_from([0.1, 1.0]))
    if operator == "GRU":
        attributes["linear_before_reset"] = data.draw(st.integers(0, 1))
    if operator == "LSTM":
        attributes["input_forget"] = data.draw(st.integers(0, 1))
        attributes["peepholes"] = data.draw(flags)
    steps = data.draw(st.integers(1, 4))
    lengths = data.draw(st.one_of(st.none(), st.lists(st.integers(0, steps), min_size=BATCH, max_size=BATCH)))
    if lengths is not None and max(lengths) == 0:
        lengths[0] = 1
    source = recurrent(
        operator, steps=steps, lengths=lengths, bias=data.draw(flags), states=data.draw(flags), **attributes
    )
    legalized(unroll_recurrent, source)
