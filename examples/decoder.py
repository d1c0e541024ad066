"""A decoder with a cache of keys and values, as optimum exports it: converted once, it generates token by token."""

import numpy as np
import torch
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

import onnx_bridge

torch.manual_seed(0)
LAYERS, HEADS, HEAD_SIZE = 2, 2, 8
config = LlamaConfig(
    vocab_size=96, hidden_size=32, num_hidden_layers=LAYERS, num_attention_heads=4, num_key_value_heads=HEADS,
    intermediate_size=64, max_position_embeddings=128,
)  # fmt: skip
model = LlamaForCausalLM(config).eval()


class WithCache(torch.nn.Module):
    """The decoder with its cache as a list of tensors: a key and a value for each layer."""

    def __init__(self):
        super().__init__()
        self.model = model

    def forward(self, input_ids, attention_mask, position_ids, *past):
        """Logits, then the keys and values with those of the new tokens."""
        cache = DynamicCache(list(zip(past[::2], past[1::2], strict=True)))
        found = self.model(
            input_ids, attention_mask=attention_mask, position_ids=position_ids, past_key_values=cache, use_cache=True
        )
        return found.logits, *(each for layer in found.past_key_values.layers for each in (layer.keys, layer.values))


batch, past, new = 2, 5, 3
names = [f"{layer}.{part}" for layer in range(LAYERS) for part in ("key", "value")]
sizes = {name: torch.export.Dim(name) for name in ("batch", "new", "past", "total")}
torch.onnx.export(
    WithCache(),
    (
        torch.randint(0, 96, (batch, new)),
        torch.ones(batch, past + new, dtype=torch.int64),
        torch.arange(past, past + new).expand(batch, new).contiguous(),
        *(torch.randn(batch, HEADS, past, HEAD_SIZE) for _ in names),
    ),
    "decoder.onnx",
    input_names=["input_ids", "attention_mask", "position_ids", *(f"past_key_values.{each}" for each in names)],
    output_names=["logits", *(f"present.{each}" for each in names)],
    dynamic_shapes=(
        {0: sizes["batch"], 1: sizes["new"]},
        {0: sizes["batch"], 1: sizes["total"]},
        {0: sizes["batch"], 1: sizes["new"]},
        tuple({0: sizes["batch"], 2: sizes["past"]} for _ in names),
    ),
    dynamo=True,
    external_data=False,
    verbose=False,
)

# One program takes 8 tokens of a prompt at a time, another one single tokens; both share a cache of 64.
decoder = onnx_bridge.convert("decoder.onnx", "decoder", decoder=True, max_length=64, prefill=[8]).decoder

prompt = np.array([[5, 17, 42, 8, 61]])
tokens = decoder.generate(prompt, 16)
expected = model.generate(
    torch.from_numpy(prompt), max_new_tokens=16, do_sample=False, eos_token_id=None, pad_token_id=0
)
print("MIGraphX:    ", tokens[0].tolist())
print("transformers:", expected[0, prompt.shape[1] :].tolist())
assert tokens[0].tolist() == expected[0, prompt.shape[1] :].tolist()
