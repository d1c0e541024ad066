"""The folder of a language model: its decoder, the sizes in its configuration, and its tokenizer."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from typer.testing import CliRunner

import onnx_bridge
from fixtures.models import grouped_query
from onnx_bridge.bundle import generate as generation
from onnx_bridge.cli.main import app
from onnx_bridge.core.errors import InputError
from onnx_bridge.migraphx.runtime import Runtime
from onnx_bridge.model.folder import stop_tokens

GENAI = {"model": {"type": "llama", "context_length": 24, "decoder": {"filename": "text.onnx", "head_size": 16}}}
LAYOUTS = {
    "genai": ("text.onnx", "genai_config.json", GENAI),
    "optimum": ("model.onnx", "config.json", {"model_type": "llama", "max_position_embeddings": 24}),
    "transformers.js": ("onnx/model.onnx", "config.json", {"n_positions": 24}),
    "quantized": ("onnx/model_q4.onnx", "config.json", {"text_config": {"n_ctx": 24}}),
}


def folder_of(layout: str, folder: Path, configuration: Any = None) -> Path:
    file, name, default = LAYOUTS[layout]
    (folder / file).parent.mkdir(parents=True, exist_ok=True)
    grouped_query.build(folder / file, size="kv_cache_dim")
    content = default if configuration is None else configuration
    (folder / name).write_text(content if isinstance(content, str) else json.dumps(content))
    words = {"?": 0, **{f"w{number}": number for number in range(1, grouped_query.VOCABULARY)}}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_folder_is_a_model(runtime: Runtime, tmp_path: Path, layout: str) -> None:
    """Nothing is said but the folder."""
    source, out = folder_of(layout, tmp_path / "source"), tmp_path / "out"
    bundle = onnx_bridge.convert(source, out, target="ref")
    assert bundle.decoder.layout.max_length == 24
    assert [*bundle.decoder.widths] == [1, 12]
    assert (out / "tokenizer.json").exists()
    tokens = bundle.decoder.generate(np.array([[5, 9, 3]]), 4)[0].tolist()
    (source / "tokenizer.json").unlink()  # the bundle has its own
    generated = generation.generate(out, prompt="w5 w9 w3", max_new_tokens=4)
    assert generated.tokens == tokens
    assert generated.text == " ".join(f"w{token}" for token in tokens)
    result = CliRunner().invoke(app, ["generate", str(out), "--prompt", "w5 w9 w3", "--max-new-tokens", "4"])
    assert generated.text in result.output
    (out / "tokenizer.json").write_text("{")
    assert not onnx_bridge.verify(out).passed
    for prompt in ("w5", "5"):
        with pytest.raises(InputError):
            generation.generate(out, prompt=prompt)


def test_the_perplexity_of_a_text(runtime: Runtime, tmp_path: Path) -> None:
    """It is that of the logits behind each token, of the decoder and of the original."""
    source, out, text = folder_of("genai", tmp_path / "source"), tmp_path / "out", tmp_path / "text.txt"
    bundle = onnx_bridge.convert(source, out, target="ref")
    ids = np.random.default_rng(0).integers(1, grouped_query.VOCABULARY, 2 * 24 + 5)
    text.write_text(" ".join(f"w{number}" for number in ids))
    report = onnx_bridge.check(out, data=text, metrics=["perplexity", "top1"], least={"perplexity": 1e6})
    assert report.passed
    assert report.samples == 2
    logarithms = []
    for piece in (ids[:25], ids[24:49]):
        cache = bundle.decoder.cache()
        for token, following in pairwise(piece):
            logits = cache.feed(np.array([[token]]))[0].astype(np.float64)
            logarithms.append(np.log(np.exp(logits).sum()) - logits[following])
    values = {score.side: score.value for score in report.scores if score.metric == "perplexity"}
    assert len(values) == 2
    assert all(value == pytest.approx(np.exp(np.mean(logarithms)), rel=1e-4) for value in values.values())
    low = onnx_bridge.check(out, data=text, least={"perplexity": 1.0})
    assert not low.passed
    assert "above 1" in low.summary
    text.write_text("w1")
    with pytest.raises(InputError, match="longer"):
        onnx_bridge.check(out, data=text, metrics=["perplexity"])


def test_sizes_that_are_given(runtime: Runtime, tmp_path: Path) -> None:
    source = folder_of("genai", tmp_path / "source")
    (source / "tokenizer.json").unlink()
    bundle = onnx_bridge.convert(source, tmp_path / "out", target="ref", max_length=8, prefill=[3])
    assert (bundle.decoder.layout.max_length, [*bundle.decoder.widths]) == (8, [1, 3])
    with pytest.raises(InputError):
        generation.generate(tmp_path / "out", prompt="w5")
    other = onnx_bridge.convert(source / "text.onnx", tmp_path / "file", target="ref", decoder=True, prefill=[2])
    assert (other.decoder.layout.max_length, [*other.decoder.widths]) == (24, [1, 2])


@pytest.mark.parametrize(
    "configuration",
    [
        "{",
        [],
        {"model": 3},
        {"model": {"context_length": -4}},
        {"model": {"context_length": 24, "decoder": {"filename": "../text.onnx"}}},
        {"model": {"context_length": 24, "decoder": {"filename": "missing.onnx"}}},
        {},
    ],
)
def test_configurations_that_are_refused(tmp_path: Path, configuration: Any) -> None:
    source = folder_of("genai", tmp_path / "source", configuration)
    (tmp_path / "text.onnx").write_bytes((source / "text.onnx").read_bytes())
    with pytest.raises(InputError):
        onnx_bridge.convert(source, tmp_path / "out", target="ref")


def test_a_model_without_a_cache(runtime: Runtime, tmp_path: Path) -> None:
    text = '<ir_version: 8, opset_import: ["": 17]> g (float[2] x) => (float[2] y) { y = Neg (x) }'
    onnx.save(onnx.parser.parse_model(text), tmp_path / "model.onnx")
    (tmp_path / "config.json").write_text(json.dumps({"max_position_embeddings": 24}))
    bundle = onnx_bridge.convert(tmp_path, tmp_path / "out", target="ref")
    assert bundle.manifest.decoder is None


def test_a_configuration_without_a_length(runtime: Runtime, tmp_path: Path) -> None:
    """The cache is as long as the table of positions."""
    source = folder_of("genai", tmp_path / "source", {"model": {"decoder": {"filename": "text.onnx"}}})
    bundle = onnx_bridge.convert(source, tmp_path / "out", target="ref", prove="never")
    assert bundle.decoder.layout.max_length == grouped_query.POSITIONS


def split(file: Path, embedding: Path, *, picture: bool = False) -> None:
    """Move the embedding of a decoder into a file of its own, as exporters of models of pictures do."""
    model = onnx.load(file)
    graph, (gather,) = model.graph, (node for node in model.graph.node if node.output[0] == "embedded")
    ids = next(value for value in graph.input if value.name == "input_ids")
    (table,) = (weights for weights in graph.initializer if weights.name == gather.input[0])
    sizes = ["batch_size", "sequence_length", grouped_query.WIDTH]
    taken, returned = (
        onnx.helper.make_tensor_value_info(name, table.data_type, sizes) for name in ("inputs_embeds", "embedded")
    )
    pixels = [onnx.helper.make_tensor_value_info("image_features", table.data_type, [None, 8])] if picture else []
    own = onnx.helper.make_graph([gather], "embedding", [ids, *pixels], [returned], [table])
    onnx.save(onnx.helper.make_model(own, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=9), embedding)
    graph.node.remove(gather)
    graph.initializer.remove(table)
    graph.input.remove(ids)
    graph.input.append(taken)
    for node in graph.node:
        node.input[:] = ["inputs_embeds" if name == "embedded" else name for name in node.input]
    onnx.save(model, file)


@pytest.mark.parametrize(
    ("layout", "embedding"),
    [
        ("genai", "text_embedding.onnx"),
        ("transformers.js", "onnx/embed_tokens.onnx"),
        ("quantized", "onnx/embed_tokens_q4.onnx"),
    ],
)
def test_an_embedding_of_its_own(runtime: Runtime, tmp_path: Path, layout: str, embedding: str) -> None:
    """It runs before the decoder, which takes its results."""
    whole = onnx_bridge.convert(folder_of(layout, tmp_path / "whole"), tmp_path / "same", target="ref", prove="never")
    configuration = json.loads(json.dumps(LAYOUTS[layout][2]))
    configuration.get("model", {})["embedding"] = {"filename": "text_embedding.onnx"}
    source = folder_of(layout, tmp_path / "source", configuration)
    split(source / LAYOUTS[layout][0], source / embedding)
    bundle = onnx_bridge.convert(source, tmp_path / "out", target="ref")
    tokens = np.array([[5, 9, 3]])
    np.testing.assert_array_equal(bundle.decoder.generate(tokens, 8), whole.decoder.generate(tokens, 8))
    assert onnx_bridge.check(tmp_path / "out").passed
    (source / embedding).write_bytes((source / embedding).read_bytes() + b"\x7a\x01x")  # another producer's name
    with pytest.raises(InputError):
        onnx_bridge.check(tmp_path / "out")


@pytest.mark.parametrize("picture", [None, True])
def test_embeddings_that_are_refused(tmp_path: Path, picture: bool | None) -> None:
    """There is no file that computes them, or it takes pictures."""
    source = folder_of("optimum", tmp_path / "source")
    split(source / "model.onnx", source / "embed_tokens.onnx", picture=bool(picture))
    if not picture:
        (source / "embed_tokens.onnx").unlink()
    with pytest.raises(InputError):
        onnx_bridge.convert(source, tmp_path / "out", target="ref")


@pytest.mark.parametrize(
    ("configurations", "tokens"),
    [
        ({"genai_config": {"model": {"eos_token_id": [3, 4]}}, "config": {"eos_token_id": 5}}, (3, 4)),
        ({"generation_config": {"eos_token_id": 0}, "config": {"eos_token_id": 5}}, (0,)),
        ({"generation_config": {"eos_token_id": None}, "config": {"text_config": {"eos_token_id": 6}}}, (6,)),
        ({"config": {}}, ()),
        ({"config": {"eos_token_id": -1}}, None),
        ({"config": {"eos_token_id": ["</s>"]}}, None),
        ({"genai_config": {"model": {"eos_token_id": 2**70}}}, None),
    ],
)
def test_tokens_that_end_a_text(tmp_path: Path, configurations: dict[str, Any], tokens: Any) -> None:
    for name, content in configurations.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
    if tokens is None:
        with pytest.raises(InputError):
            stop_tokens(tmp_path / "onnx" / "model.onnx")
    else:
        assert stop_tokens(tmp_path / "onnx" / "model.onnx") == tokens


def test_a_text_ends_and_streams(runtime: Runtime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bundle knows the tokens that end a text; standard output has the text alone, as long as it may be."""
    source, out = folder_of("optimum", tmp_path / "source"), tmp_path / "out"
    bundle = onnx_bridge.convert(source, out, target="ref", prove="never")
    whole = bundle.decoder.generate(np.array([[5, 9, 3]]))[0].tolist()
    last = next(token for token in whole if token != whole[0])
    end = whole.index(last) + 1
    (source / "generation_config.json").write_text(json.dumps({"eos_token_id": [95, last]}))
    bundle = onnx_bridge.convert(source, out, target="ref", prove="never")
    assert not bundle.is_kept
    assert bundle.decoder.generate(np.array([[5, 9, 3]]))[0].tolist() == whole[:end]
    onnx_bridge.pack(out, packed := tmp_path / "packed.onnxbridge")

    def run(*options: str) -> tuple[str, str, int]:
        result = CliRunner().invoke(app, ["generate", str(packed), "--prompt", "w5 w9 w3", *options])
        return result.stdout, result.stderr, result.exit_code

    for options, count in (((), end), (("--stop", "none"), len(whole)), (("--stop", f"95,w{whole[0]}"), 1)):
        text, statistics, code = run(*options)
        assert (text, code) == (" ".join(f"w{token}" for token in whole[:count]) + "\n", 0)
        assert ("full" in statistics) is (count == len(whole))
    assert json.loads(run("--json")[0])["ended"] == "stop"
    with pytest.raises(InputError):
        generation.generate(out, [5], 2, stop=["missing"])

    def interrupted(*_: Any, **__: Any) -> Iterator[Any]:
        yield from (np.array([token]) for token in (7, 8))
        raise KeyboardInterrupt

    monkeypatch.setattr(type(bundle.decoder), "stream", interrupted)
    assert run()[::2] == ("w7 w8\n", 130)


def test_pieces_have_whole_characters() -> None:
    text, pieces = "né 🙂\x1b.\n\ufffd", list[str]()
    shown = generation.Pieces(lambda tokens: bytes(tokens).decode(errors="replace"), pieces.append)
    content = list((text + "é").encode())[:-1]
    for count in range(1, len(content) + 1):
        shown.show(content[:count])
    assert "".join(pieces) == text[:-1]
    shown.show(content, last=True)
    assert "".join(pieces) == text + "\ufffd"
