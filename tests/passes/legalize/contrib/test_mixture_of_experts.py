"""com.microsoft's MoE and QMoE: all experts, weighted by the routing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from passes.legalize.contrib.mixture_of_experts import decompose_mixture_of_experts
from tests.passes.device import Device
from tests.passes.harness import Array
from tests.passes.legalize.contrib_nodes import holds, random, skips

E, H, INNER, T = 4, 32, 16, 5


def floats(fused: bool = False, *, bias: bool = True, rank: int = 2) -> dict[str, Array | None]:
    columns = 2 * INNER if fused else INNER
    return {
        "x": random(*((T, H) if rank == 2 else (1, T, H))),
        "router": random(T, E, seed=1),
        "w1": random(E, columns, H, seed=2) / np.float32(6),
        "b1": random(E, columns, seed=3) if bias else None,
        "w2": random(E, H, INNER, seed=4) / np.float32(4),
        "b2": random(E, H, seed=5) if bias else None,
    }


def check(inputs: dict[str, Array | None], operator: str = "MoE", device: Device | None = None, **more: Any) -> None:
    constants = tuple(name for name in inputs if name not in ("x", "router"))
    tolerance = more.pop("tolerance", 1e-4)
    holds(
        decompose_mixture_of_experts,
        operator,
        inputs,
        ("y",),
        more,
        device=device,
        constants=constants,
        tolerance=tolerance,
    )


@pytest.mark.parametrize("activation", ["relu", "gelu", "silu", "identity"])
@pytest.mark.parametrize("normalize", [0, 1])
def test_floats(activation: str, normalize: int, device: Device) -> None:
    check(floats(), device=device, k=2, activation_type=activation, normalize_routing_weights=normalize)


@pytest.mark.parametrize("limit", [{}, {"swiglu_limit": 0.5}])
def test_gates(limit: dict[str, float], device: Device) -> None:
    fused = {"activation_type": "swiglu", "swiglu_fusion": 1, "activation_alpha": 1.7, "activation_beta": 1.0}
    check(floats(fused=True), device=device, k=3, **fused, **limit)


@pytest.mark.parametrize(("k", "rows"), [(1, T), (2, T), (2, 64)])
def test_equally_probable_experts(k: int, rows: int, device: Device) -> None:
    """ONNX Runtime takes the last ones; of many rows, MIGraphX's TopK is replaced."""
    inputs = floats()
    inputs["x"], inputs["router"] = random(rows, H), np.rint(random(rows, E, seed=1))
    check(inputs, device=device, k=k, normalize_routing_weights=1)


def test_one_expert_without_bias_in_three_dimensions(device: Device) -> None:
    check(floats(bias=False, rank=3), device=device, k=1)


def quantized(bits: int, block: int, *, zeros: bool, fused: bool = False) -> dict[str, Array | None]:
    generator = np.random.default_rng(bits)

    def weights(rows: int, columns: int) -> tuple[Array, Array, Array]:
        packed = generator.integers(0, 256, (E, columns, rows * bits // 8), np.uint8)
        shape = (E, columns, rows // block) if block else (E, columns)
        scales = generator.uniform(0.01, 0.05, shape).astype(np.float32)
        middle = (*shape[:-1], -(-shape[-1] * bits // 8))
        return packed, scales, generator.integers(0, 256, middle, np.uint8)

    plain = floats(fused)
    one, two = weights(H, 2 * INNER if fused else INNER), weights(INNER, H)
    found = {name: plain[name] for name in ("x", "router")}
    found |= {"w1": one[0], "s1": one[1], "b1": plain["b1"], "w2": two[0], "s2": two[1], "b2": plain["b2"]}
    if zeros:
        found |= {"w3": None, "s3": None, "b3": None, "z1": one[2], "z2": two[2]}
    return found


@pytest.mark.parametrize(("bits", "block"), [(4, 0), (4, 16), (8, 0)])
@pytest.mark.parametrize("zeros", [False, True])
def test_quantized(bits: int, block: int, zeros: bool, device: Device) -> None:
    size = {"block_size": block} if block else {}
    inputs = quantized(bits, block, zeros=zeros)
    check(inputs, "QMoE", device, k=2, expert_weight_bits=bits, normalize_routing_weights=1, **size, tolerance=1e-3)


def test_quantized_gates(device: Device) -> None:
    fused = {"activation_type": "swiglu", "swiglu_fusion": 1, "activation_alpha": 1.7, "activation_beta": 1.0}
    inputs = quantized(4, 16, zeros=False, fused=True)
    check(inputs, "QMoE", device, k=2, expert_weight_bits=4, block_size=16, **fused, swiglu_limit=7.0, tolerance=1e-3)


def test_half_precision(device: Device) -> None:
    inputs = quantized(4, 16, zeros=False)
    halves = {name: x.astype(np.float16) if x is not None and x.dtype.kind == "f" else x for name, x in inputs.items()}
    check(halves, "QMoE", device, k=2, expert_weight_bits=4, block_size=16, tolerance=1e-2)


def test_what_it_skips() -> None:
    inputs, rule = quantized(4, 0, zeros=False), decompose_mixture_of_experts
    assert skips(rule, "QMoE", inputs, {"k": 1, "expert_weight_bits": 4}) == ["the weights are not constant"]
    sparse = skips(
        decompose_mixture_of_experts,
        "MoE",
        floats(),
        {"k": 2, "use_sparse_mixer": 1},
        constants=("w1", "b1", "w2", "b2"),
    )
    assert sparse == ["the mixer is sparse"]
