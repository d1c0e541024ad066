"""Models of transformers through `torch.compile`, by their own ``forward``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.testing import assert_close
from transformers import BertConfig, BertModel, LlamaConfig, LlamaForCausalLM, ViTConfig, ViTModel

from onnx_bridge.migraphx.runtime import Runtime

_SMALL: dict[str, Any] = {
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "vocab_size": 50,
}


@pytest.fixture(scope="module")
def options(runtime: Runtime, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    cache: Path = tmp_path_factory.mktemp("models")
    return {"target": "ref", "runtime": str(runtime.path), "cache": cache, "strict": True}


@pytest.fixture(autouse=True)
def inference() -> Iterator[None]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    with torch.no_grad():
        yield
    torch._dynamo.reset()


def test_bert_pads_by_its_mask(options: dict[str, Any]) -> None:
    bert = BertModel(BertConfig(**_SMALL)).eval()
    compiled = torch.compile(bert, backend="onnx_bridge", dynamic=True, options={**options, "programs": 1})
    for length in (6, 8, 5):
        ids, mask = torch.randint(0, 50, (2, length)), torch.ones(2, length, dtype=torch.int64)
        mask[0, -1] = 0
        found, expected = compiled(input_ids=ids, attention_mask=mask), bert(input_ids=ids, attention_mask=mask)
        assert type(found) is type(expected)
        assert_close(found.last_hidden_state, expected.last_hidden_state)
        assert_close(found.pooler_output, expected.pooler_output)


def test_vit(options: dict[str, Any]) -> None:
    small = {key: each for key, each in _SMALL.items() if key != "vocab_size"}
    vit = ViTModel(ViTConfig(**small, image_size=16, patch_size=8)).eval()
    compiled = torch.compile(vit, backend="onnx_bridge", options=options)
    pixels = torch.randn(2, 3, 16, 16)
    assert_close(compiled(pixels).last_hidden_state, vit(pixels).last_hidden_state)


def test_llama_with_its_cache(options: dict[str, Any]) -> None:
    llama = LlamaForCausalLM(LlamaConfig(**_SMALL, num_key_value_heads=1, max_position_embeddings=32)).eval()
    compiled = torch.compile(llama, backend="onnx_bridge", options=options)
    tokens = torch.randint(0, 50, (1, 4))
    mine, theirs = compiled(tokens), llama(tokens)
    for _ in range(2):
        assert_close(mine.logits, theirs.logits)
        token = theirs.logits[:, -1:].argmax(-1)
        mine = compiled(token, past_key_values=mine.past_key_values)
        theirs = llama(token, past_key_values=theirs.past_key_values)
    assert_close(mine.logits, theirs.logits)
