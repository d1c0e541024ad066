"""Language models with 4-bit weights: Quark's algorithms, a text as data, and generating with a cache."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
import torch
import transformers as tf
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import nn

import onnx_bridge
from fixtures.models.seeded import make
from onnx_bridge.core.errors import InputError
from onnx_bridge.migraphx.runtime import Runtime
from onnx_bridge.reference.reference import Reference

WORDS, LAYERS, HEADS, SIZE = 96, 2, 2, 16
CONFIG: dict[str, Any] = {
    "vocab_size": WORDS,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": HEADS,
    "max_position_embeddings": 64,
    "use_cache": False,
}
IDS = torch.arange(3, 27).reshape(1, 24)
OPEN = {"input_ids": {0: "batch", 1: "tokens"}}


class WithCache(nn.Module):
    """A decoder whose cache is a list of keys and values."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Any, attention_mask: Any, position_ids: Any, past_key_values: Any) -> dict[str, Any]:
        cache = tf.DynamicCache([(layer["key"], layer["value"]) for layer in past_key_values])
        made = self.model(input_ids, attention_mask, position_ids, past_key_values=cache, use_cache=True)
        layers = [{"key": layer.keys, "value": layer.values} for layer in made.past_key_values.layers]
        return {"logits": made.logits, "past_key_values": layers}


@pytest.fixture(scope="module")
def llama() -> nn.Module:
    return make(lambda: (tf.LlamaForCausalLM(tf.LlamaConfig(**CONFIG)), {}))[0]


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A text with a tokenizer beside it."""
    folder = tmp_path_factory.mktemp("text")
    tokenizer = Tokenizer(models.WordLevel({f"w{number}": number for number in range(WORDS)}, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    ids = np.random.default_rng(0).integers(0, WORDS, 4 * 24 + 1)
    (folder / "text.txt").write_text(" ".join(f"w{number}" for number in ids))
    return folder / "text.txt"


def stored(model: ir.Model) -> list[ir.DataType | None]:
    return [node.inputs[0].dtype for node in model.graph if node.op_type == "DequantizeLinear" and node.inputs[0]]


@pytest.mark.parametrize("algorithm", ["awq", "gptq"])
def test_a_decoder_with_a_cache_in_four_bits(
    llama: nn.Module, text: Path, runtime: Runtime, tmp_path: Path, algorithm: str
) -> None:
    """The module that was quantized on a text is exported with a cache; the bundle generates what it does."""
    made = onnx_bridge.quantize(
        llama, kwargs={"input_ids": IDS}, scheme="int4-weights", algorithm=algorithm, calibration=text
    )
    assert made.samples == 4
    assert [gain.algorithm for gain in made.gains] == ["none", algorithm]
    assert made.gains[-1].outputs == made.deviations
    assert made.gains[-1].worst > made.gains[0].worst + 0.5
    assert len(made.gains[0].layers) == len(made.gains[1].layers) == 15
    assert made.kernels == {"int4-weight": 15, "float": 4}
    assert stored(made.model) == [ir.DataType.INT4] * 15
    past = [{"key": torch.zeros(1, HEADS, 5, SIZE), "value": torch.zeros(1, HEADS, 5, SIZE)} for _ in range(LAYERS)]
    keys = [f"past_key_values.{layer}.{part}" for layer in range(LAYERS) for part in ("key", "value")]
    folder = tmp_path / "llama"
    folder.mkdir()
    (folder / "tokenizer.json").write_bytes((text.parent / "tokenizer.json").read_bytes())
    exported = onnx_bridge.export(
        WithCache(made.module),
        (IDS[:, :3], torch.ones(1, 8, dtype=torch.int64), torch.arange(5, 8).reshape(1, 3), past),
        out=folder / "model.onnx",
        dynamic={
            "input_ids": {1: "tokens"},
            "attention_mask": {1: "past+tokens"},
            "position_ids": {1: "tokens"},
            **{key: {2: "past"} for key in keys},
        },
    )
    assert stored(exported.model) == [ir.DataType.INT4] * 15
    bundle = onnx_bridge.convert(folder / "model.onnx", tmp_path / "out", decoder=True, max_length=24, target="ref")
    tokens = bundle.decoder.generate(IDS[:, :5].numpy(), 8)
    module: Any = made.module
    expected = module.generate(IDS[:, :5], max_new_tokens=8, do_sample=False, eos_token_id=None, pad_token_id=0)
    assert tokens[0].tolist() == expected[0, 5:].tolist()
    report = onnx_bridge.check(tmp_path / "out", data=text, metrics=["perplexity"])
    assert report.passed
    values = [score.value for score in report.scores if score.metric == "perplexity"]
    with torch.no_grad():
        ids = torch.tensor([int(word[1:]) for word in text.read_text().split()])
        logits = torch.cat([module(piece[None]).logits[0] for piece in ids[:-1].split(24)])
    assert values == pytest.approx([float(nn.functional.cross_entropy(logits, ids[1:]).exp())] * 2, rel=1e-3)


@pytest.mark.parametrize(("scheme", "algorithm"), [("int8", "smoothquant{alpha=0.4}"), ("uint8", "autosmoothquant")])
def test_channels_that_are_larger_than_others_are_smoothed(scheme: str, algorithm: str) -> None:
    llama: Any = make(lambda: (tf.LlamaForCausalLM(tf.LlamaConfig(**CONFIG)), {}))[0]
    with torch.no_grad():
        for layer in llama.model.layers:
            layer.input_layernorm.weight[3] = 30
    call = {"input_ids": IDS, "attention_mask": torch.ones_like(IDS)}
    made = onnx_bridge.quantize(llama, kwargs=call, scheme=scheme, algorithm=algorithm)
    assert [gain.algorithm for gain in made.gains] == ["none", algorithm.partition("{")[0]]
    assert made.gains[1].worst > made.gains[0].worst + 3
    assert len(made.gains[0].layers) == len(made.gains[1].layers) == 15
    assert made.kernels == {"int8": 15, "float": 4}


def test_the_most_perplexity_that_quantization_may_cost(text: Path) -> None:
    """A row of the last product that only zeros are multiplied by has a scale in which the others are lost."""
    random = np.random.default_rng(0)
    ids = [int(word[1:]) for word in text.read_text().split()]
    table, last = random.standard_normal((WORDS, 64)), np.zeros((64, WORDS))
    table[:, 5] = 0
    for word, follower in pairwise(ids):
        last[:, follower] += 0.2 * table[word]
    last[5] = 3000
    model = ir.from_onnx_text("""<ir_version: 8, opset_import: ["": 17]>
        g (int64[1,24] input_ids) => (float[1,24,96] logits) {
            e = Gather (table, input_ids) [first] h = MatMul (e, w) [last] logits = MatMul (h, v)
        }""")
    for name, array in {"table": table, "w": np.eye(64), "v": last}.items():
        value = next(given for node in model.graph for given in node.inputs if given and given.name == name)
        value.const_value = ir.Tensor(array.astype(np.float32), name=name)
        model.graph.register_initializer(value)
    options: dict[str, Any] = {"with_": "ort", "calibration": text, "data": text}
    with pytest.raises(InputError, match="float model itself has a perplexity of .*, above 1.5"):
        onnx_bridge.quantize(model, least={"perplexity": 1.5}, **options)
    made = onnx_bridge.quantize(model, least={"perplexity": 10}, **options)
    assert made.assignment is not None
    assert made.assignment.exclude == ("last",)
    assert made.assignment.points[0].scores[0].value > 90
    assert made.assignment.chosen.scores[0].value < 10


def test_four_bits_of_a_shared_embedding_and_of_open_sizes(text: Path) -> None:
    """An embedding that shares its weight with the last product stays in float."""
    tied = make(lambda: (tf.LlamaForCausalLM(tf.LlamaConfig(**CONFIG, tie_word_embeddings=True)), {}))[0]
    made = onnx_bridge.quantize(tied, kwargs={"input_ids": IDS}, scheme="int4-weights", dynamic=OPEN)
    assert stored(made.model) == [ir.DataType.INT4] * 15
    module: Any = made.module
    with torch.no_grad():
        expected = module(IDS[:, :7]).logits.numpy()
    logits = Reference(made.model).run({"input_ids": IDS[:, :7].numpy()})["logits"]
    assert isinstance(logits, np.ndarray)
    assert np.abs(logits - expected).max() <= 1e-5 * np.abs(expected).max()


def test_algorithms_that_a_module_does_not_have(llama: nn.Module, text: Path) -> None:
    layer, ones = nn.Linear(32, 4), torch.ones(1, 32)
    with pytest.raises(InputError, match="Quark knows the layers of decoders .* those of Linear .it knows .*llama"):
        onnx_bridge.quantize(layer, args=ones, scheme="int4-weights", algorithm="awq")
    with pytest.raises(InputError, match="graph mode has no awq for int8 .Quark's eager mode, .* for int4-weights"):
        onnx_bridge.quantize(layer, args=ones, algorithm="awq")
    with pytest.raises(InputError, match="only one of"):
        onnx_bridge.quantize(llama, kwargs={"input_ids": IDS}, scheme="int4-weights", algorithm="gptq,qronos")
    with pytest.raises(InputError, match="text.txt: a text gives tokens, and the model takes input"):
        onnx_bridge.quantize(layer, args=ones, calibration=text, mode="eager")
