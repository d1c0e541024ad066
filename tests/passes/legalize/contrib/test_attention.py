"""com.microsoft's attention operators: every form of inputs, masks and caches, against ONNX Runtime and MIGraphX."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from passes.legalize.contrib.attention import (
    decompose_decoder_masked_multi_head_attention,
    decompose_multi_head_attention,
    decompose_projected_attention,
    decompose_quantized_attention,
)
from passes.legalize.math.integer_products import exact_integer_product
from passes.legalize.nn.rotary import decompose_rotary_embedding
from passes.rewriting.base import Context
from tests.passes.device import Device
from tests.passes.harness import Array, run
from tests.passes.legalize.contrib_nodes import holds, node_model, random, skips

B, S, L, N, H = 2, 3, 5, 2, 4
D = N * H
HEADS = {"num_heads": N}
CROSS = {"q": random(B, S, D), "k": random(B, L, D), "v": random(B, L, D, seed=1)}
SELF = {"q": random(B, S, D), "k": random(B, S, D, seed=1), "v": random(B, S, D, seed=2)}
PAST = {"past_key": random(B, N, 4, H), "past_value": random(B, N, 4, H, seed=1)}
PROJECTED = {"x": random(B, S, 6), "w": random(6, 3 * D), "b": random(3 * D)}


def integers(*rows: Any) -> Array:
    return np.array(rows, np.int32)


MASKS = {
    "which keys": integers([1, 1, 1, 0, 0], [1, 0, 1, 1, 1]),
    "none of a sample": integers([0] * 5, [1, 0, 1, 1, 1]),
    "how many keys": integers(3, 5),
    "which keys of each query": integers(*np.random.default_rng(0).integers(0, 2, (B, S, L))),
}


class TestMultiHeadAttention:
    @pytest.mark.parametrize("mask", [None, *MASKS])
    @pytest.mark.parametrize("biased", [False, True])
    def test_masks(self, mask: str | None, biased: bool, device: Device) -> None:
        inputs = {
            **CROSS,
            "bias": random(3 * D) if biased else None,
            "mask": None if mask is None else MASKS[mask],
            "attention_bias": random(1, N, S, L) if biased else None,
        }
        made = holds(
            decompose_multi_head_attention,
            "MultiHeadAttention",
            inputs,
            attributes=HEADS,
            device=device,
            tolerance=2e-3 if mask == "none of a sample" else 1e-4,  # scores near -10000 are so coarse
        )
        assert made.count("MatMul") == 2
        assert made.count("Softmax") == 1
        assert made.count("Where") == (mask is not None)

    def test_a_past_and_causality(self, device: Device) -> None:
        inputs = {**SELF, "bias": None, "mask": None, "attention_bias": None, **PAST}
        outputs = ("y", "present_key", "present_value")
        made = holds(
            decompose_multi_head_attention,
            "MultiHeadAttention",
            inputs,
            outputs,
            HEADS | {"unidirectional": 1},
            device=device,
        )
        assert made.count("Concat") == 2
        assert "Where" not in made  # what lies ahead is a constant

    def test_present_without_past(self, device: Device) -> None:
        outputs = ("y", "present_key", "present_value")
        holds(decompose_multi_head_attention, "MultiHeadAttention", SELF, outputs, HEADS, device=device)

    def test_a_masked_sample_is_causal(self) -> None:
        inputs = {**SELF, "bias": None, "mask": integers([0, 0, 0], [0, 1, 1])}
        attributes = HEADS | {"unidirectional": 1, "mask_filter_value": -20.0, "scale": 0.3}
        holds(decompose_multi_head_attention, "MultiHeadAttention", inputs, attributes=attributes)

    @pytest.mark.parametrize("biased", [False, True])
    def test_keys_split_into_heads(self, biased: bool, device: Device) -> None:
        inputs = {"q": random(B, S, D), "k": random(B, N, L, H), "v": random(B, N, L, H, seed=1)}
        inputs |= {"bias": random(3 * D)} if biased else {}
        holds(decompose_multi_head_attention, "MultiHeadAttention", inputs, attributes=HEADS, device=device)

    @pytest.mark.parametrize("packed", ["keys and values", "all"])
    def test_packed(self, packed: str) -> None:
        """ONNX Runtime has packed forms on GPUs only: its result for the unpacked parts is the reference."""
        inputs = SELF if packed == "all" else CROSS
        expected = run(node_model("MultiHeadAttention", inputs, attributes=HEADS), inputs)["y"]
        heads = {name: array.reshape(B, -1, N, H) for name, array in inputs.items()}
        together = ("q", "k", "v") if packed == "all" else ("k", "v")
        given = {} if packed == "all" else {"q": inputs["q"]}
        given["all"] = np.stack([heads[name] for name in together], axis=3)
        text = ", ".join(f"float{list(array.shape)} {name}" for name, array in given.items())
        proto = onnx.parser.parse_model(
            '<ir_version: 10, opset_import: ["": 17, "com.microsoft": 1]>'
            f"g ({text}) => (float[{B},{S},{D}] y) {{"
            f" y = com.microsoft.MultiHeadAttention<num_heads={N}>({', '.join(given)}) }}"
        )
        model = ir.from_proto(proto)
        assert decompose_multi_head_attention.run(model, Context()).rewrites
        np.testing.assert_allclose(run(ir.to_proto(model), given)["y"], expected, 1e-5, 1e-5)

    def test_values_of_another_size(self) -> None:
        inputs = CROSS | {"v": random(B, L, 12)}
        holds(decompose_multi_head_attention, "MultiHeadAttention", inputs, attributes=HEADS)

    def test_scores_output(self) -> None:
        inputs = {**CROSS, "bias": None, "mask": MASKS["how many keys"]}
        outputs = ("y", "present_key", "present_value", "scores")
        holds(decompose_multi_head_attention, "MultiHeadAttention", inputs, outputs, HEADS)

    def test_causality_between_two_sequences(self) -> None:
        (reason,) = skips(decompose_multi_head_attention, "MultiHeadAttention", CROSS, HEADS | {"unidirectional": 1})
        assert "not those of the queries" in reason


class TestDecoderMaskedMultiHeadAttention:
    ONE = {"q": random(B, 1, D), "k": random(B, 1, D, seed=1), "v": random(B, 1, D, seed=2)}
    BUFFER = {"past_key": random(B, N, 6, H), "past_value": random(B, N, 6, H, seed=1)}

    @pytest.mark.parametrize("masked", [False, True])
    @pytest.mark.parametrize("biased", [False, True])
    def test_writes_into_the_buffer(self, masked: bool, biased: bool, device: Device) -> None:
        inputs = {
            **self.ONE,
            "mask": integers([1, 0, 1, 1], [1, 1, 1, 1]) if masked else None,
            "attention_bias": random(1, N, 1, 4) if masked else None,
            **self.BUFFER,
            "length": integers(3),
            "width": None,
            "indirection": None,
            "bias": random(3 * D) if biased else None,
        }
        made = holds(
            decompose_decoder_masked_multi_head_attention,
            "DecoderMaskedMultiHeadAttention",
            inputs,
            ("y", "present_key", "present_value"),
            HEADS | {"past_present_share_buffer": 1},
            device=device,
        )
        assert "Scan" not in made

    def test_attends_to_an_encoder(self, device: Device) -> None:
        inputs = {"q": random(B, 1, D), "k": random(B, N, L, H), "v": random(B, N, L, H, seed=1)}
        rule = decompose_decoder_masked_multi_head_attention
        holds(rule, "DecoderMaskedMultiHeadAttention", inputs, attributes=HEADS, device=device)


class TestProjectedAttention:
    @pytest.mark.parametrize("causal", [0, 1])
    @pytest.mark.parametrize(
        "mask",
        [
            None,
            integers([1, 1, 0], [1, 0, 1]),
            integers(2, 3),
            integers(2, 3, 1, 0),
            integers(*np.random.default_rng(0).integers(0, 2, (B, S, S))),
        ],
        ids=["none", "which keys", "how many keys", "end and start", "which keys of each query"],
    )
    def test_masks(self, causal: int, mask: Array | None, device: Device) -> None:
        inputs = {**PROJECTED, "mask": mask}
        attributes = HEADS | {"unidirectional": causal}
        holds(decompose_projected_attention, "Attention", inputs, attributes=attributes, device=device)

    def test_a_sample_that_is_masked_by_the_lowest_number(self, device: Device) -> None:
        """In float16 the lowest number of float32 is −∞, and it must swamp scores of any size."""
        halves = {name: None if x is None else (4 * x).astype(np.float16) for name, x in PROJECTED.items()}
        attributes = HEADS | {"mask_filter_value": float(np.finfo(np.float32).min)}
        inputs = {**halves, "mask": integers(0, 2)}
        holds(decompose_projected_attention, "Attention", inputs, attributes=attributes, device=device, tolerance=2e-2)

    def test_a_past(self, device: Device) -> None:
        inputs = {**PROJECTED, "mask": integers([1] * 7, [0, 1, 1, 1, 0, 1, 1]), "past": random(2, B, N, 4, H)}
        attributes = HEADS | {"unidirectional": 1}
        holds(decompose_projected_attention, "Attention", inputs, ("y", "present"), attributes, device=device)

    def test_a_bias_of_the_scores(self) -> None:
        inputs = {**PROJECTED, "mask": None, "past": None, "bias": random(B, N, S, S)}
        holds(decompose_projected_attention, "Attention", inputs, attributes=HEADS)

    def test_values_of_another_size(self) -> None:
        inputs = {"x": random(B, S, 6), "w": random(6, 28), "b": random(28)}
        attributes = HEADS | {"qkv_hidden_sizes": [8, 8, 12]}
        holds(decompose_projected_attention, "Attention", inputs, attributes=attributes)

    def test_a_mask_of_packed_samples(self) -> None:
        inputs = {**PROJECTED, "mask": np.zeros(8, np.int32)}
        (reason,) = skips(decompose_projected_attention, "Attention", inputs, HEADS)
        assert "mask" in reason

    @pytest.mark.parametrize("dtype", ["uint8", "int8"])
    @pytest.mark.parametrize("by_column", [False, True])
    def test_quantized(self, dtype: str, by_column: bool, device: Device) -> None:
        generator = np.random.default_rng(0)
        size = (3 * D,) if by_column else ()
        inputs = {
            "x": generator.integers(0, 255, (B, S, 6)).astype(np.uint8),
            "w": generator.integers(0, 100, (6, 3 * D)).astype(dtype),
            "b": random(3 * D),
            "x_scale": np.array(0.01, np.float32),
            "w_scale": np.asarray(np.abs(random(*size)) * 0.02, np.float32),
            "mask": integers(6, 7),
            "x_zero": np.array(128, np.uint8),
            "w_zero": np.asarray(generator.integers(0, 5, size)).astype(dtype),
            "past": random(2, B, N, 4, H),
        }
        made = holds(
            decompose_quantized_attention,
            "QAttention",
            inputs,
            ("y", "present"),
            HEADS | {"unidirectional": 1},
            device=device,
            also=[exact_integer_product],
        )
        assert made.count("MatMulInteger") == 1


class TestRotaryEmbedding:
    @pytest.mark.parametrize("interleaved", [0, 1])
    @pytest.mark.parametrize(
        "x", [random(B, S, 2 * H), random(B, N, S, H), random(B, S, 4 * H)], ids=["flat", "heads", "partial"]
    )
    def test_rotates(self, interleaved: int, x: Array, device: Device) -> None:
        caches = {"cos": random(10, H // 2), "sin": random(10, H // 2, seed=1)}
        attributes = {"interleaved": interleaved}
        if x.shape[-1] == 4 * H:
            attributes |= {"num_heads": 2, "rotary_embedding_dim": H}
        for positions in (np.array([[0, 1, 2], [4, 5, 6]]), np.array([4])):
            inputs = {"x": x, "positions": positions, **caches}
            holds(decompose_rotary_embedding, "RotaryEmbedding", inputs, attributes=attributes, device=device)

    @pytest.mark.parametrize("layout", [0, 1])
    @pytest.mark.parametrize("sections", [[2, 1, 1], [1, 1, 2], [4, 0, 0]])
    def test_three_positions(self, layout: int, sections: list[int], device: Device) -> None:
        half = sum(sections)
        caches = {"cos": random(10, half), "sin": random(10, half, seed=1)}
        positions = np.random.default_rng(0).integers(0, 10, (3, B, S))
        attributes = {"mrope_section": sections, "mrope_layout": layout, "num_heads": 2, "rotary_embedding_dim": 0}
        inputs = {"x": random(B, S, 4 * half), "positions": positions, **caches}
        holds(decompose_rotary_embedding, "MRotaryEmbedding", inputs, attributes=attributes, device=device)

    def test_a_scale(self) -> None:
        inputs = {"x": random(B, S, D), "p": np.array([0]), "cos": random(10, 2), "sin": random(10, 2)}
        (reason,) = skips(decompose_rotary_embedding, "RotaryEmbedding", inputs, {"scale": 2.0})
        assert "scale" in reason


@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_any_multi_head_attention(data: st.DataObject) -> None:
    batch, queries, keys, past, heads, size = (data.draw(st.integers(1, 3), label=name) for name in "BSLPNH")
    causal, with_past, masked, biased = (data.draw(st.booleans()) for _ in range(4))
    keys = queries if causal or with_past else keys
    total = keys + past * with_past
    mask = np.random.default_rng(0).integers(0, 2, (batch, total)).astype(np.int32)
    shape = (data.draw(st.sampled_from([1, batch])), data.draw(st.sampled_from([1, heads])), queries, total)
    mask[:, 0] = 1  # a sample without keys has coarse scores
    inputs = {
        "q": random(batch, queries, heads * size),
        "k": random(batch, keys, heads * size, seed=1),
        "v": random(batch, keys, heads * size, seed=2),
        "bias": random(3 * heads * size) if data.draw(st.booleans()) else None,
        "mask": mask if masked else None,
        "attention_bias": random(*shape) if biased else None,
        "past_key": random(batch, heads, past, size) if with_past else None,
        "past_value": random(batch, heads, past, size, seed=1) if with_past else None,
    }
    outputs = ("y", "present_key", "present_value") if with_past else ("y",)
    attributes = {"num_heads": heads, "unidirectional": int(causal)}
    holds(decompose_multi_head_attention, "MultiHeadAttention", inputs, outputs, attributes)
