"""A text encoder for several lengths in one bundle: the smallest that fits is taken, inputs are padded, outputs cut."""

import numpy as np
import torch
from transformers import BertConfig, BertModel

import onnx_bridge

torch.manual_seed(0)
config = BertConfig(vocab_size=1000, hidden_size=64, num_hidden_layers=1, num_attention_heads=4, intermediate_size=128)
encoder = BertModel(config).eval()
ids = torch.randint(0, 1000, (1, 12))
arguments = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}

onnx_bridge.export(encoder, kwargs=arguments, dynamic={name: {1: "length"} for name in arguments}, out="bert.onnx")
bundle = onnx_bridge.convert("bert.onnx", "bert", buckets={"length": [8, 16]})

for length in (5, 8, 13):
    ids = torch.randint(0, 1000, (1, length))
    outputs = bundle({"input_ids": ids.numpy(), "attention_mask": np.ones((1, length), np.int64)})
    expected = encoder(input_ids=ids, attention_mask=torch.ones_like(ids)).last_hidden_state
    actual = outputs["last_hidden_state"]
    print(f"length {length}: largest error {np.abs(actual - expected.detach().numpy()).max():.1e}")
    assert np.allclose(actual, expected.detach().numpy(), atol=1e-4)
