"""Models that run in a loop: what goes around stays equal to PyTorch, step by step."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.testing import assert_close
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

from onnx_bridge.core.errors import InputError
from onnx_bridge.migraphx.runtime import Runtime
from onnx_bridge.torch.lowering.lower import lower

_WIDTH, _HEADS, _LENGTH, _WORDS = 16, 2, 24, 40


@pytest.fixture
def options(runtime: Runtime, tmp_path: Path) -> dict[str, Any]:
    torch.manual_seed(0)
    return {"target": "ref", "runtime": str(runtime.path), "cache": tmp_path}


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(_WIDTH, _WIDTH) for _ in range(4))

    def split(self, x: torch.Tensor) -> torch.Tensor:
        return x.unflatten(-1, (_HEADS, -1)).transpose(1, 2)

    def forward(self, x: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        found = F.scaled_dot_product_attention(self.split(self.query(x)), keys, values, attn_mask=mask)
        return self.out(found.transpose(1, 2).flatten(2))


class Decoder(nn.Module):
    """Two layers, and a cache of fixed length as input and output.

    token int64[1, 1], position int64[1], cache: for each layer float32[1, heads, length, width] twice.
    """

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(_WORDS, _WIDTH), nn.Embedding(_LENGTH, _WIDTH)
        self.layers = nn.ModuleList(Attention() for _ in range(2))
        self.head = nn.Linear(_WIDTH, _WORDS)

    def empty(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        shape = (1, _HEADS, _LENGTH, _WIDTH // _HEADS)
        return [(torch.zeros(shape), torch.zeros(shape)) for _ in self.layers]

    def forward(
        self, token: torch.Tensor, position: torch.Tensor, cache: list[tuple[torch.Tensor, torch.Tensor]]
    ) -> tuple[torch.Tensor, list[tuple[torch.Tensor, torch.Tensor]]]:
        x = self.words(token) + self.places(position)
        every = torch.arange(_LENGTH)
        here = (every == position)[:, None]
        after = []
        for layer, (keys, values) in zip(self.layers, cache, strict=True):
            assert isinstance(layer, Attention)
            keys = torch.where(here, layer.split(layer.key(x)), keys)
            values = torch.where(here, layer.split(layer.value(x)), values)
            x = x + layer(x, keys, values, (every <= position)[None])
            after.append((keys, values))
        return self.head(x), after


@torch.no_grad()
def test_sixteen_tokens_with_a_cache_are_those_of_pytorch(options: dict[str, Any]) -> None:
    decoder = Decoder().eval()
    lowered = lower(decoder, (torch.tensor([[1]]), torch.tensor([0]), decoder.empty()), **options)

    def generate(step: nn.Module) -> tuple[list[int], torch.Tensor]:
        token, cache, tokens, logits = torch.tensor([[1]]), decoder.empty(), [], []
        for position in range(16):
            scores, cache = step(token, torch.tensor([position]), cache)
            assert isinstance(cache, list)
            token = scores[:, -1:].argmax(-1)
            tokens.append(int(token))
            logits.append(scores)
        return tokens, torch.cat(logits)

    (mine, found), (theirs, expected) = generate(lowered), generate(decoder)
    assert mine == theirs
    assert len(set(mine)) > 1
    assert_close(found, expected)


@torch.no_grad()
def test_sixteen_tokens_with_a_cache_that_grows_are_those_of_pytorch(options: dict[str, Any]) -> None:
    config = LlamaConfig(
        vocab_size=_WORDS,
        hidden_size=_WIDTH,
        num_hidden_layers=1,
        num_attention_heads=_HEADS,
        num_key_value_heads=1,
        intermediate_size=32,
        max_position_embeddings=64,
    )
    llama = LlamaForCausalLM(config).eval()

    def arguments(token: torch.Tensor, past: int, cache: DynamicCache) -> dict[str, Any]:
        mask, position = torch.ones(1, past + 1, dtype=torch.int64), torch.tensor([[past]])
        return {"input_ids": token, "attention_mask": mask, "position_ids": position, "past_key_values": cache}

    def cache(past: int) -> DynamicCache:
        return DynamicCache([(torch.randn(1, 1, past, 8), torch.randn(1, 1, past, 8))])

    def generate(step: nn.Module) -> tuple[list[int], torch.Tensor, DynamicCache]:
        token, kept, tokens, logits = torch.tensor([[1]]), cache(0), [], []
        for past in range(16):
            found = step(**arguments(token, past, kept))
            kept, token = found.past_key_values, found.logits[:, -1:].argmax(-1)
            tokens.append(int(token))
            logits.append(found.logits)
        return tokens, torch.cat(logits), kept

    past = {f"past_key_values.0.{part}": {2: "past"} for part in ("key", "value")}
    dynamic = {**past, "attention_mask": {1: "past+1"}}
    sample = arguments(torch.tensor([[1]]), 3, cache(3))
    with pytest.raises(InputError, match="something else when it is padded .past from 3 to 15"):
        lower(llama, sample, dynamic=dynamic, buckets={"past": [15]}, **options)
    lowered = lower(llama, sample, dynamic=dynamic, buckets={"past": [4, 15]}, pad_before=["past"], **options)
    (mine, found, kept), (theirs, expected, _) = generate(lowered), generate(llama)
    assert mine == theirs
    assert len(set(mine)) > 1
    assert_close(found, expected)
    assert kept.get_seq_length() == 16


class Encoder(nn.Module):
    """Whisper's: two convolutions over a spectrogram, positions, self-attention."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv1d(8, _WIDTH, 3, padding=1), nn.Conv1d(_WIDTH, _WIDTH, 3, stride=2, padding=1)
        angles = torch.arange(10)[:, None] * torch.exp(-math.log(10000) * torch.arange(_WIDTH // 2) / 7)
        self.register_buffer("places", torch.cat([angles.sin(), angles.cos()], 1))
        self.layer = nn.TransformerEncoderLayer(
            _WIDTH, _HEADS, 32, activation="gelu", batch_first=True, norm_first=True
        )

    def forward(self, spectrogram: torch.Tensor) -> torch.Tensor:
        x = F.gelu(self.second(F.gelu(self.first(spectrogram)))).transpose(1, 2)
        return torch.as_tensor(self.layer(x + self.places))


class Writer(nn.Module):
    """Whisper's decoder, without a cache: a causal mask lets the tokens be padded at their end."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(_WORDS, _WIDTH)
        self.places = nn.Parameter(torch.randn(_LENGTH, _WIDTH))
        self.layer = nn.TransformerDecoderLayer(
            _WIDTH, _HEADS, 32, activation="gelu", batch_first=True, norm_first=True
        )

    def forward(self, tokens: torch.Tensor, heard: torch.Tensor) -> torch.Tensor:
        length = tokens.shape[1]
        x = self.words(tokens) + self.places[:length]
        mask = torch.full((length, length), -math.inf).triu(1)
        return torch.as_tensor(self.layer(x, heard, tgt_mask=mask)) @ self.words.weight.T


@torch.no_grad()
def test_an_encoder_and_a_decoder_generate_the_same_tokens(options: dict[str, Any]) -> None:
    encoder, writer = Encoder().eval(), Writer().eval()
    sound = torch.randn(1, 8, 20)
    ears = lower(encoder, sound, **options)
    heard = encoder(sound)
    assert_close(ears(sound), heard)
    tokens = torch.tensor([[1, 2, 3]])
    hand = lower(writer, (tokens, heard), dynamic={"tokens": {1: "seq"}}, buckets={"seq": [4, 8]}, **options)
    mine = theirs = tokens[:, :1]
    for _ in range(7):
        found, expected = hand(mine, ears(sound)), writer(theirs, heard)
        assert_close(found, expected)
        mine = torch.cat([mine, found[:, -1:].argmax(-1)], 1)
        theirs = torch.cat([theirs, expected[:, -1:].argmax(-1)], 1)
    assert torch.equal(mine, theirs)


class Denoiser(nn.Module):
    """A small UNet with a time embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.time = nn.Linear(8, 8)
        self.enter, self.down = nn.Conv2d(2, 8, 3, padding=1), nn.Conv2d(8, 8, 3, stride=2, padding=1)
        self.norm = nn.GroupNorm(2, 8)
        self.leave = nn.Conv2d(16, 2, 3, padding=1)

    def forward(self, noisy: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        angles = time[:, None] * torch.exp(-torch.arange(4.0))
        when = self.time(torch.cat([angles.sin(), angles.cos()], 1))
        wide = self.enter(noisy)
        deep = F.silu(self.norm(self.down(wide)) + when[:, :, None, None])
        return torch.as_tensor(self.leave(torch.cat([wide, F.interpolate(deep, scale_factor=2.0)], 1)))


@torch.no_grad()
def test_a_loop_of_diffusion_steps_stays_with_pytorch(options: dict[str, Any]) -> None:
    denoiser = Denoiser().eval()
    start = torch.randn(1, 2, 8, 8)
    lowered = lower(denoiser, (start, torch.tensor([1.0])), **options)
    kept = torch.linspace(0.05, 0.99, 6)  # the share of the image in the noise, from step to step

    def images(step: nn.Module) -> list[torch.Tensor]:
        image, found = start, []
        for index, (now, then) in enumerate(itertools.pairwise(kept)):
            noise = step(image, torch.tensor([float(len(kept) - index)]))
            clean = (image - (1 - now).sqrt() * noise) / now.sqrt()
            image = then.sqrt() * clean + (1 - then).sqrt() * noise
            found.append(image)
        return found

    assert_close(images(lowered), images(denoiser), rtol=1e-4, atol=1e-4)  # errors of five steps add up
