"""com.microsoft's GroupQueryAttention: prompts, caches, windows and all of its attributes."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from passes.legalize.contrib.grouped_query_attention import decompose_group_query_attention
from passes.rewriting.base import Context
from tests.passes.device import Device
from tests.passes.harness import Array, run
from tests.passes.legalize.contrib_nodes import holds, node_model, random, skips

N, K, H = 4, 2, 16
OUTPUTS = ("y", "present_key", "present_value")
CACHES = {"cos": random(16, H // 2), "sin": random(16, H // 2, seed=1)}
OPERATOR = "GroupQueryAttention"


def step(
    length: int, total: int, ends: list[int], past: int | None = None, *, packed: bool = False, **more: Array | None
) -> dict[str, Array | None]:
    """Inputs of ``length`` tokens after a cache of ``past``; ``ends`` are the lengths of the samples with them."""
    batch = len(ends)
    inputs = {
        "q": random(batch, length, (N + 2 * K) * H if packed else N * H),
        "k": None if packed else random(batch, length, K * H, seed=1),
        "v": None if packed else random(batch, length, K * H, seed=2),
        "past_key": None if past is None else random(batch, K, past, H, seed=3),
        "past_value": None if past is None else random(batch, K, past, H, seed=4),
        "ends": np.array(ends, np.int32) - 1,
        "total": np.array(total, np.int32),
    }
    names = ("cos", "sin", "positions", "bias", "sink")
    last = max((index for index, name in enumerate(names) if name in more), default=-1)
    return inputs | {name: more.get(name) for name in names[: last + 1]}


def check(
    inputs: dict[str, Array | None], device: Device | None = None, tolerance: float = 1e-4, **attributes: Any
) -> list[str]:
    heads = {"num_heads": N, "kv_num_heads": K}
    return holds(
        decompose_group_query_attention,
        OPERATOR,
        inputs,
        OUTPUTS,
        heads | attributes,
        device=device,
        tolerance=tolerance,
        constants=("total",),
    )


STEPS = {
    "a prompt": (3, 3, [3, 3], None),
    "a padded prompt": (3, 3, [2, 3], None),
    "a prompt into a buffer": (3, 3, [3, 3], 8),
    "one token behind a past": (1, 5, [5, 5], 4),
    "one token behind pasts of two lengths": (1, 5, [3, 5], 4),
    "one token into a buffer": (1, 5, [3, 5], 10),
    "some tokens behind a past": (3, 7, [7], 4),
    "some tokens into a buffer": (3, 7, [7], 9),
}


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize("packed", [False, True])
def test_steps(name: str, packed: bool, device: Device) -> None:
    made = check(step(*STEPS[name], packed=packed), device)
    assert "Expand" not in made  # keys that several heads share are not copied
    assert made.count("Split") == 0


@pytest.mark.parametrize("name", STEPS)
def test_rotated(name: str, device: Device) -> None:
    check(step(*STEPS[name], **CACHES), device, do_rotary=1, rotary_interleaved=int("one" in name))


@pytest.mark.parametrize("name", ["a prompt", "a padded prompt", "one token into a buffer"])
@pytest.mark.parametrize(
    "attributes",
    [
        {"local_window_size": 2},
        {"softcap": 2.0, "scale": 0.7},
        {"smooth_softmax": 1},
        {"causal": 0},
    ],
    ids=lambda each: next(iter(each)),
)
def test_attributes(name: str, attributes: dict[str, Any], device: Device) -> None:
    check(step(*STEPS[name]), device, **attributes)


def test_a_sink_for_each_head(device: Device) -> None:
    check(step(3, 3, [3, 3], sink=random(N)), device)


@pytest.mark.parametrize("name", ["a prompt", "one token into a buffer"])
def test_a_bias(name: str, device: Device) -> None:
    length, total, ends, past = STEPS[name]
    check(step(length, total, ends, past, bias=random(1, N, length, total)), device)


@pytest.mark.parametrize(
    ("name", "positions"),
    [
        ("a prompt", [[3, 5, 2], [1, 4, 2]]),  # of which only the first counts
        ("one token into a buffer", [[3], [7]]),
        ("some tokens behind a past", [[3, 9, 7]]),
    ],
)
def test_positions(name: str, positions: list[list[int]]) -> None:
    check(step(*STEPS[name], **CACHES, positions=np.array(positions)), do_rotary=1)


def test_normalized_heads() -> None:
    """ONNX Runtime normalizes on GPUs only: its result for heads normalized beforehand is the reference."""
    inputs, attributes = step(3, 3, [3, 3]), {"num_heads": N, "kv_num_heads": K, "qk_norm_epsilon": 1e-2}
    weights = {"q_weight": random(H, seed=5), "k_weight": random(H, seed=6)}

    def normalized(x: Array, weight: Array) -> Array:
        heads = x.reshape(*x.shape[:2], -1, H)
        root = np.sqrt(np.square(heads).mean(-1, keepdims=True) + 1e-2)
        return np.asarray(heads / root * weight, np.float32).reshape(x.shape)

    q, k = inputs["q"], inputs["k"]
    assert q is not None
    assert k is not None
    ready = inputs | {"q": normalized(q, weights["q_weight"]), "k": normalized(k, weights["k_weight"])}
    proto = node_model(OPERATOR, ready, OUTPUTS, attributes, constants=("total",))
    feeds = {name: array for name, array in ready.items() if array is not None and name != "total"}
    expected = run(proto, feeds)
    proto.graph.node[0].input.extend([*[""] * 7, *weights])
    for name, array in weights.items():
        kind = onnx.TensorProto.FLOAT
        proto.graph.input.append(onnx.helper.make_tensor_value_info(name, kind, array.shape))
    model = ir.from_proto(proto)
    assert decompose_group_query_attention.run(model, Context()).rewrites
    found = run(ir.to_proto(model), feeds | {"q": q, "k": k} | weights)
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, 1e-4, 1e-4)


@pytest.mark.parametrize("name", ["a prompt", "one token into a buffer"])
def test_sharp_scores_in_half_precision(name: str, device: Device) -> None:
    """ONNX Runtime computes scores, softmax and the product with values in 32 bits, and rounds once."""
    given = step(*STEPS[name])
    common = random(K, 1, H, seed=7)  # large scores, close to each other
    for key, shape in (("k", (1, 1, K * H)), ("past_key", (1, K, 1, H))):
        if (keys := given[key]) is not None:
            given[key] = common.reshape(shape) + keys / 64
    queries = given["q"]
    assert queries is not None
    given["q"] = 32 * queries
    halves = {key: x if x is None or x.dtype.kind == "i" else x.astype(np.float16) for key, x in given.items()}
    check(halves, device, tolerance=1e-3)


@pytest.mark.parametrize("stage", [1, 2])
@pytest.mark.parametrize("past", [None, 8])
def test_scores_output(stage: int, past: int | None) -> None:
    inputs = step(1, 5, [5, 5], past) if past else step(3, 3, [3, 3])
    attributes = {"num_heads": N, "kv_num_heads": K, "qk_output": stage}
    outputs = (*OUTPUTS, "scores")
    holds(decompose_group_query_attention, OPERATOR, inputs, outputs, attributes, constants=("total",))


def test_a_total_known_at_run_time_decides_whether_the_cache_grows() -> None:
    heads = {"num_heads": N, "kv_num_heads": K}
    for inputs in (step(1, 5, [3, 5], 10), step(1, 5, [5], 4)):
        assert skips(decompose_group_query_attention, OPERATOR, inputs, heads, outputs=OUTPUTS)
    holds(decompose_group_query_attention, OPERATOR, step(3, 3, [2, 3]), OUTPUTS, heads)


@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_any_step(data: st.DataObject) -> None:
    batch, length, before = (data.draw(st.integers(1, high)) for high in (3, 4, 5))
    prompt = data.draw(st.booleans())
    length = length if prompt or batch == 1 else 1
    attributes: dict[str, Any] = {"do_rotary": data.draw(st.integers(0, 1))}
    if data.draw(st.booleans()):
        attributes["local_window_size"] = data.draw(st.integers(1, 4))
    if data.draw(st.booleans()):
        attributes["softcap"] = 3.0
    if prompt:
        # with a window and a softcap, ONNX Runtime gives other numbers for queries that are padding
        least = length if len(attributes) == 3 else 1
        ends = [length, *(data.draw(st.integers(least, length)) for _ in range(batch - 1))]
        past = data.draw(st.none() | st.integers(length, length + 3))
    else:
        ends = [length + data.draw(st.integers(1, before)) for _ in range(batch)]
        past = data.draw(st.just(max(ends) - length) | st.integers(max(ends), max(ends) + 3))
    total = max(ends)
    check(step(length, total, ends, past, packed=data.draw(st.booleans()), **CACHES), **attributes)
