"""com.microsoft's GroupQueryAttention with a cache that evicts what is older than its window."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from passes.legalize.contrib.windowed_cache import decompose_windowed_cache
from passes.rewriting.base import Context
from tests.passes.device import Device
from tests.passes.harness import Array, operators, run
from tests.passes.legalize.contrib.test_grouped_query_attention import OPERATOR, OUTPUTS, H, K, N, step
from tests.passes.legalize.contrib_nodes import node_model, random, skips

WINDOW = {"local_window_size": 4, "sliding_window_cache": 1, "num_heads": N, "kv_num_heads": K}
STEPS = {
    "the first of a cache": (1, 3, [3], 8),
    "the last that fits": (1, 8, [8], 8),
    "the first that evicts": (1, 9, [9], 8),
    "long after": (1, 20, [20], 8),
    "two samples": (1, 9, [9, 6], 8),
    "a cache that is always full": (1, 9, [9], 4),
    "several": (3, 12, [12], 8),
    "more than fit": (10, 25, [25], 8),
}


def resident(total: int, capacity: int) -> int:
    """Return how many tokens are in the cache, as ONNX Runtime describes it; its other rows are unspecified."""
    step = capacity - 4 + 1
    return total if total <= capacity else total - step * -((capacity - total) // step)


def check(name: str, device: Device | None = None, **more: Any) -> None:
    attributes = {key: value for key, value in more.items() if not isinstance(value, np.ndarray)}
    arrays: dict[str, Array] = {key: value for key, value in more.items() if isinstance(value, np.ndarray)}
    inputs = step(*STEPS[name], **arrays)
    given = {key: array for key, array in inputs.items() if array is not None}
    proto = node_model(OPERATOR, inputs, OUTPUTS, WINDOW | attributes)
    expected, model = run(proto, given), ir.from_proto(proto)
    assert decompose_windowed_cache.run(model, Context()).rewrites
    after = ir.to_proto(model)
    onnx.checker.check_model(after, full_check=True)
    assert OPERATOR not in operators(model)
    assert not decompose_windowed_cache.run(model, Context()).rewrites
    _, _, totals, capacity = STEPS[name]
    results = [list(run(after, given).values()), *([] if device is None else [device.run(after, given)])]
    for y, *caches in results:
        np.testing.assert_allclose(y.reshape(expected["y"].shape), expected["y"], 1e-4, 1e-4)
        for found, wanted in zip(caches, (expected["present_key"], expected["present_value"]), strict=True):
            for sample, total in enumerate(totals):
                rows, shaped = resident(total, capacity), found.reshape(wanted.shape)
                np.testing.assert_allclose(shaped[sample, :, :rows], wanted[sample, :, :rows], 1e-5, 1e-5)
                assert not shaped[sample, :, rows:].any()


@pytest.mark.parametrize("name", STEPS)
def test_steps(name: str, device: Device) -> None:
    check(name, device)


@pytest.mark.parametrize("name", ["the first that evicts", "two samples", "several"])
def test_rotated(name: str) -> None:
    check(name, cos=random(32, H // 2), sin=random(32, H // 2, seed=1), do_rotary=1)


@pytest.mark.parametrize("attributes", [{"softcap": 2.0, "scale": 0.7}, {"smooth_softmax": 1}])
def test_attributes(attributes: dict[str, Any]) -> None:
    check("the first that evicts", **attributes)


def test_what_it_skips() -> None:
    inputs, rule = step(*STEPS["the first that evicts"]), decompose_windowed_cache
    biased = step(*STEPS["the first that evicts"], bias=random(1, N, 1, 9))
    assert "bias" in skips(rule, OPERATOR, biased, WINDOW, OUTPUTS)[0]
    assert skips(rule, OPERATOR, inputs, WINDOW | {"sliding_window_cache": 0}, OUTPUTS) == []
