"""unroll-dynamic-quantize-lstm: compared with ONNX Runtime to the step, and of both kinds of weights and scales."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from passes.legalize.contrib.dynamic_quantize_lstm import unroll_dynamic_quantize_lstm
from passes.rewriting.base import Context
from tests.passes.device import Device
from tests.passes.harness import run
from tests.passes.legalize.one_node import Case, case, normal, skipped

STEPS, WIDTH, HIDDEN = 5, 6, 8


def lstm(
    *,
    batch: int = 1,
    hidden: int = HIDDEN,
    dtype: type = np.int8,
    channels: bool = False,
    lengths: list[int] | None = None,
    fixed: bool = True,
    states: bool = False,
    peepholes: bool = False,
    bias: bool = True,
    steps: int = STEPS,
    outputs: int | list[str] = 3,
    **attributes: Any,
) -> Case:
    random = np.random.default_rng(0)
    directions = 2 if attributes.get("direction") == "bidirectional" else 1
    info = np.iinfo(dtype)
    weights = [
        random.integers(info.min, info.max + 1, (directions, rows, 4 * hidden)).astype(dtype)
        for rows in (WIDTH, hidden)
    ]
    shape = (directions, 4 * hidden) if channels else (directions,)
    zero = np.full(shape, 0 if dtype == np.int8 else 131, dtype)
    scales = [random.uniform(0.001, 0.004, shape).astype(np.float32) for _ in weights]
    inputs: list[Any] = [
        normal(steps, batch, WIDTH),
        *weights,
        normal(directions, 8 * hidden) if bias else None,
        None if lengths is None else np.array(lengths, np.int32),
        normal(directions, batch, hidden) if states else None,
        normal(directions, batch, hidden, seed=1) if states else None,
        normal(directions, 3 * hidden) if peepholes else None,
        scales[0],
        zero,
        scales[1],
        zero,
    ]
    constants = [index for index in (1, 2, 3, 7, 8, 9, 10, 11, *((4,) if fixed else ())) if inputs[index] is not None]
    return case(
        "DynamicQuantizeLSTM",
        inputs,
        {"hidden_size": hidden, **attributes},
        constants=constants,
        outputs=outputs,
        domain="com.microsoft",
    )


def unrolled(source: Case, device: Device) -> None:
    """Require that ONNX Runtime, before and after, and the device agree within a rounding of float32."""
    model = source.model
    assert unroll_dynamic_quantize_lstm.run(model, Context()).rewrites
    assert not any(node.domain for node in model.graph)
    after, expected = ir.to_proto(model), run(source.proto, source.feeds, threads=2).values()
    for found in (list(run(after, source.feeds).values()), device.run(after, source.feeds)):
        for actual, wanted in zip(found, expected, strict=True):
            np.testing.assert_allclose(np.reshape(actual, wanted.shape), wanted, 1e-4, 1e-5)
    assert not unroll_dynamic_quantize_lstm.run(model, Context()).rewrites


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.slow
def test_directions_and_weights(direction: str, dtype: type, device: Device) -> None:
    for channels in (False, True):
        unrolled(lstm(direction=direction, dtype=dtype, channels=channels), device)


@pytest.mark.parametrize(
    "form",
    [
        {"states": True},
        {"bias": False},
        {"peepholes": True, "states": True},
        {"clip": 0.3},
        {"input_forget": 1},
        {"activations": ["HardSigmoid", "Relu", "Softsign"], "activation_alpha": [0.3], "activation_beta": [0.4]},
        {"lengths": [3], "direction": "bidirectional", "states": True},
        {"lengths": [2], "fixed": False},
        {"lengths": [0], "states": True},
        {"outputs": ["y"]},
        {"outputs": ["", "h"]},
        {"outputs": ["", "", "c"]},
    ],
    ids=str,
)
@pytest.mark.slow
def test_forms(form: dict[str, Any], device: Device) -> None:
    unrolled(lstm(**form), device)


def test_a_batch_of_which_each_row_has_a_scale(device: Device) -> None:
    """Two rows, since ONNX Runtime computes as many apart as it has threads."""
    unrolled(lstm(batch=2), device)
    unrolled(lstm(batch=2, lengths=[5, 3]), device)
    unrolled(lstm(batch=2, lengths=[5, 5], direction="reverse"), device)


def test_a_batch_with_one_scale(device: Device) -> None:
    unrolled(lstm(batch=3, hidden=260, steps=2), device)


def test_a_state_of_zeros(device: Device) -> None:
    source = lstm(states=True)
    unrolled(
        Case(
            source.proto, {name: np.zeros_like(each) if name != "x0" else each for name, each in source.feeds.items()}
        ),
        device,
    )


def test_what_is_left_alone() -> None:
    one_scale = "the lengths of the sequences are not the same constant, and the states have one scale"
    assert skipped(unroll_dynamic_quantize_lstm, lstm(batch=2, lengths=[5, 3], direction="reverse")) == [one_scale]
    assert skipped(unroll_dynamic_quantize_lstm, lstm(batch=3, hidden=260, lengths=[5, 3, 1])) == [one_scale]
    assert skipped(unroll_dynamic_quantize_lstm, lstm(steps=257)) == ["there are 257 steps; the limit is 256"]
