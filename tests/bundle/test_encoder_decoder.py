"""Models of an encoder and a decoder as one decoder: the tokens that ONNX Runtime generates from their own files."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import onnx_bridge
from fixtures.models import encoder_decoder as model
from fixtures.models import grouped_query
from onnx_bridge.bundle.bundle import Bundle
from onnx_bridge.bundle.decoding.sampling import tokens
from onnx_bridge.bundle.manifest.text import resealed
from onnx_bridge.cli import main
from onnx_bridge.conversion.decoders.encoder_decoder.files import Files
from onnx_bridge.conversion.decoders.encoder_decoder.original import EncoderDecoderOriginal
from onnx_bridge.core.errors import InputError, ParityError
from onnx_bridge.migraphx.runtime import Runtime
from passes.rewriting.base import Proof

LENGTH, SOURCE, NEW = 36, 6, 32
SIZES = {"encoder_sequence_length": SOURCE}


def by_reference(path: Path, bundle: Bundle, count: int, prompt: list[int], new: int = NEW) -> tuple[Any, Any]:
    """A source of some tokens, and what ONNX Runtime generates from it with a cache that grows."""
    encoder = bundle.decoder.layout.encoder
    assert encoder is not None
    original = EncoderDecoderOriginal(Files.beside(path), {})
    source = original.source(encoder, count, seed=1)
    cache = original.of(bundle.decoder.layout, source).cache(bundle.decoder.layout)
    batched = np.tile(np.array(prompt), (bundle.decoder.layout.batch, 1))
    return source[encoder.source], np.stack(list(tokens(cache, batched, new)), 1)


@pytest.fixture(scope="module")
def converted(runtime: Runtime, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Bundle]:
    """A model whose decoder is two files."""
    folder = tmp_path_factory.mktemp("two")
    path = model.write(folder / "model")
    return path, onnx_bridge.convert(path, folder / "out", decoder=True, max_length=LENGTH, dims=SIZES, target="ref")


class TestTokens:
    def test_two_files(self, converted: tuple[Path, Bundle]) -> None:
        path, bundle = converted
        source, expected = by_reference(path, bundle, SOURCE, [model.START])
        found = bundle.decoder.generate(source, NEW)
        assert found.dtype == np.int64
        assert len(set(found[0].tolist())) > 4
        np.testing.assert_array_equal(found, expected)

    def test_what_is_proven(self, converted: tuple[Path, Bundle]) -> None:
        _, bundle = converted
        assert bundle.proof.level is Proof.RUN
        assert bundle.manifest.notes == []
        assert [each.folder for each in bundle.manifest.programs] == ["width=1", "encoder", "cross-attention"]
        assert bundle.wholly_on_migraphx
        assert bundle.decoder.example == ("--ids", "1,2,3")
        assert bundle.decoder.layout.length is not None, "places are looked up by the number of tokens"

    def test_a_shorter_source_is_padded(self, converted: tuple[Path, Bundle]) -> None:
        path, bundle = converted
        source, expected = by_reference(path, bundle, 4, [model.START, 5], 12)
        prompt = np.array([[model.START, 5]])
        np.testing.assert_array_equal(bundle.decoder.generate(source, 12, prompt=prompt), expected)
        padded = np.pad(source, ((0, 0), (0, 1)), constant_values=9)
        mask = np.array([[1, 1, 1, 1, 0]])
        np.testing.assert_array_equal(bundle.decoder.generate(padded, 12, attention_mask=mask, prompt=prompt), expected)

    def test_merged_with_several_texts(self, runtime: Runtime, tmp_path: Path) -> None:
        path = model.write(tmp_path / "model", merged=True)
        sizes = {**SIZES, "batch_size": 2}
        bundle = onnx_bridge.convert(path, tmp_path / "out", decoder=True, max_length=LENGTH, dims=sizes, target="ref")
        source, expected = by_reference(path, bundle, SOURCE, [model.START])
        assert source.shape == (2, SOURCE)
        assert (expected[0] != expected[1]).any()
        np.testing.assert_array_equal(bundle.decoder.generate(source, NEW), expected)

    def test_features(self, runtime: Runtime, tmp_path: Path) -> None:
        path = model.write(tmp_path / "model", features=True, start=None)
        bundle = onnx_bridge.convert(path, tmp_path / "out", decoder=True, max_length=20, target="ref")
        source, expected = by_reference(path, bundle, SOURCE, [4, 5], 8)
        assert source.dtype == np.float32
        np.testing.assert_array_equal(bundle.decoder.generate(source, 8, prompt=np.array([[4, 5]])), expected)
        with pytest.raises(InputError):  # nothing says what a text begins with
            bundle.decoder.generate(source, 8)
        with pytest.raises(InputError):  # without a mask, nothing hides padding
            bundle.decoder.generate(source[:, :4], 8, prompt=np.array([[4]]))
        np.save(tmp_path / "x.npy", source)
        generated = onnx_bridge.generate(tmp_path / "out", inputs=tmp_path / "x.npy", max_new_tokens=8, prompt=[4, 5])
        assert generated.tokens == expected[0].tolist()
        assert bundle.decoder.example == ("--inputs", "input_features.npy", "--prompt", "1")


class TestBundle:
    def test_verbs(self, converted: tuple[Path, Bundle], tmp_path: Path) -> None:
        path, bundle = converted
        assert onnx_bridge.verify(bundle.path).passed
        assert json.dumps(onnx_bridge.inspect(bundle.path).to_json())
        report = onnx_bridge.check(bundle.path)
        assert report.passed
        lengths = (1, 2)
        assert [each.name for each in report.legs] == [
            f"source of {count}, prompt of {length}, then 8 more"
            for count in (SOURCE, SOURCE // 2)
            for length in lengths
        ]
        onnx_bridge.pack(bundle.path, tmp_path / "m.onnxbridge")
        loaded = onnx_bridge.load(tmp_path / "m.onnxbridge")
        assert loaded.manifest.decoder is not None
        source, expected = by_reference(path, bundle, SOURCE, [model.START], 4)
        np.testing.assert_array_equal(loaded.decoder.generate(source, 4), expected)

    def test_again_with_another_length(self, converted: tuple[Path, Bundle], tmp_path: Path) -> None:
        path, made = converted
        out = Path(shutil.copytree(made.path, tmp_path / "out"))
        again = onnx_bridge.convert(path, out, decoder=True, max_length=12, dims=SIZES, target="ref")
        source, expected = by_reference(path, again, SOURCE, [model.START], 10)
        np.testing.assert_array_equal(again.decoder.generate(source, 10), expected)
        assert sorted(each.name for each in out.iterdir() if each.is_dir()) == ["cross-attention", "encoder", "width=1"]
        assert onnx_bridge.verify(out).passed

    def test_check_finds_another_encoder(self, converted: tuple[Path, Bundle], tmp_path: Path) -> None:
        path, bundle = converted
        other = Path(shutil.copytree(path.parent, tmp_path / "model"))
        encoder = onnx.load(other / "encoder_model.onnx")
        encoder.graph.node[-1].op_type = "Sigmoid"
        onnx.save(encoder, other / "encoder_model.onnx")
        assert not onnx_bridge.check(bundle, reference=other / path.name).passed

    def test_bad_arguments(self, converted: tuple[Path, Bundle]) -> None:
        _, bundle = converted
        ids = np.arange(SOURCE)[None]
        for source in (
            ids[0],
            ids.astype(np.float32),
            ids[:, :0],
            np.ones((1, SOURCE + 1), np.int64),
            np.tile(ids, (2, 1)),
        ):
            with pytest.raises(InputError):
                bundle.decoder.generate(source, 2)
        for options in ({"attention_mask": ids[:, 1:]}, {"prompt": ids[0]}):
            with pytest.raises(InputError):
                bundle.decoder.generate(ids, 2, **options)
        with pytest.raises(InputError):
            bundle.decoder.cache()
        with pytest.raises(InputError):
            bundle.decoder.cache(ids).feed(ids[:, :2], np.array([[0, 1]]))

    @pytest.mark.parametrize(
        "change",
        [
            lambda layout: layout["encoder"].update(shape=[1]),
            lambda layout: layout["encoder"].update(shape=[1, 1 << 39]),
            lambda layout: layout["encoder"].update(shape=[1, SOURCE + 1]),
            lambda layout: layout["encoder"].update(mask=None),
            lambda layout: layout["encoder"].update(mask="input_ids"),
            lambda layout: layout["encoder"].update(hidden="nothing"),
            lambda layout: layout["encoder"].update(memory="nothing"),
            lambda layout: layout["encoder"].update(start=[-1]),
            lambda layout: layout["encoder"].update(given=[]),
            lambda layout: layout["encoder"]["given"][0].update(value="nothing"),
            lambda layout: layout["encoder"]["given"][0].update(shape=[1]),
            lambda layout: layout.update(encoder=None),
            lambda layout: layout.update(length=None),
            lambda layout: layout.update(length="input_ids"),
        ],
    )
    def test_hostile_layouts(
        self, converted: tuple[Path, Bundle], tmp_path: Path, change: Callable[[dict[str, Any]], Any]
    ) -> None:
        self.refused(converted[1], tmp_path, lambda values: change(values["decoder"]))

    @pytest.mark.parametrize(
        "change",
        [
            lambda values: values["programs"].pop(),
            lambda values: values["programs"].append(values["programs"][-1]),
            lambda values: values["programs"][1].update(folder="cross-attention"),
            lambda values: values["programs"].reverse(),
        ],
    )
    def test_hostile_programs(
        self, converted: tuple[Path, Bundle], tmp_path: Path, change: Callable[[dict[str, Any]], Any]
    ) -> None:
        self.refused(converted[1], tmp_path, change)

    def refused(self, bundle: Bundle, tmp_path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
        out = Path(shutil.copytree(bundle.path, tmp_path / "out"))
        values = json.loads((out / "manifest.json").read_text())
        change(values)
        (out / "manifest.json").write_bytes(resealed(values))
        with pytest.raises(InputError):
            onnx_bridge.load(out)


class TestRefused:
    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        return model.write(tmp_path / "model")

    @pytest.mark.parametrize("name", ["encoder_model.onnx", "decoder_model.onnx"])
    def test_a_file_is_missing(self, path: Path, name: str) -> None:
        path.with_name(name).unlink()
        with pytest.raises(InputError, match=name):
            onnx_bridge.convert(path, path.parent / "out", decoder=True, max_length=8, dims=SIZES)

    def test_another_name(self, path: Path) -> None:
        with pytest.raises(InputError):
            onnx_bridge.convert(
                path.rename(path.with_name("model.onnx")), path.parent / "out", decoder=True, max_length=8, dims=SIZES
            )

    def test_sizes(self, path: Path) -> None:
        with pytest.raises(InputError, match="encoder_sequence_length"):
            onnx_bridge.convert(path, path.parent / "out", decoder=True, max_length=8)
        with pytest.raises(InputError):
            onnx_bridge.convert(path, path.parent / "out", decoder=True, max_length=8, prefill=[4], dims=SIZES)

    @pytest.mark.parametrize(
        "text",
        [
            *("", "{", "[]", "[" * 100_000, "\x00"),
            *(f'{{"decoder_start_token_id": {each}}}' for each in ("-1", '"x"', "1e99", "[1, -2]", "[[1]]")),
        ],
    )
    def test_hostile_configurations(self, path: Path, text: str) -> None:
        (path.parent / "config.json").write_text(text)
        with pytest.raises(InputError, match=r"config\.json"):
            Files.beside(path)

    def test_a_configuration_that_is_no_file(self, path: Path) -> None:
        (path.parent / "config.json").unlink()
        (path.parent / "config.json").mkdir()
        with pytest.raises(InputError, match=r"config\.json"):
            Files.beside(path)

    def test_the_first_token(self, path: Path) -> None:
        assert Files.beside(path).start == (model.START,)
        (path.parent / "generation_config.json").write_text('{"decoder_start_token_id": [7, 8], "other": {}}')
        assert Files.beside(path).start == (7, 8)
        for each in path.parent.glob("*.json"):
            each.unlink()
        assert Files.beside(path).start == ()

    def test_no_softmax_over_the_cache(self, path: Path) -> None:
        step = onnx.load(path)
        for node in step.graph.node:
            if node.op_type == "Softmax":
                node.op_type = "Hardmax"
        onnx.save(step, path)
        with pytest.raises(InputError, match="softmax"):
            onnx_bridge.convert(path, path.parent / "out", decoder=True, max_length=8, dims=SIZES, target="ref")

    def test_a_step_that_computes_something_else(self, runtime: Runtime, path: Path) -> None:
        first = onnx.load(path.with_name("decoder_model.onnx"))
        next(node for node in first.graph.node if node.output[0] == "both").op_type = "Sub"
        onnx.save(first, path.with_name("decoder_model.onnx"))
        with pytest.raises(ParityError):
            onnx_bridge.convert(path, path.parent / "out", decoder=True, max_length=8, dims=SIZES, target="ref")

    def test_without_an_encoder(self, runtime: Runtime, tmp_path: Path) -> None:
        path = grouped_query.build(tmp_path / "model.onnx")
        bundle = onnx_bridge.convert(path, tmp_path / "out", decoder=True, max_length=16, target="ref")
        ids = np.array([[5, 6]])
        with pytest.raises(InputError):
            bundle.decoder.generate(ids, 2, prompt=ids)
        with pytest.raises(InputError):
            bundle.decoder.cache(ids)
        np.save(tmp_path / "x.npy", ids)
        for options in ({"inputs": tmp_path / "x.npy"}, {"ids": [5], "inputs": tmp_path / "x.npy"}, {}):
            with pytest.raises(InputError):
                onnx_bridge.generate(tmp_path / "out", **options)


def test_no_decoder_is_benched_as_a_call(converted: tuple[Path, Bundle]) -> None:
    with pytest.raises(InputError, match="decoder"):
        onnx_bridge.bench(converted[1].path)


def test_command_line(runtime: Runtime, converted: tuple[Path, Bundle], capsys: Any, monkeypatch: Any) -> None:
    path, bundle = converted
    source, expected = by_reference(path, bundle, 4, [model.START, 6], 5)
    ids = ",".join(map(str, source[0].tolist()))
    options = ["--ids", ids, "--prompt", f"{model.START},6", "--max-new-tokens", "5", "--json"]
    monkeypatch.setattr("sys.argv", ["onnx-bridge", "generate", str(bundle.path), *options])
    with pytest.raises(SystemExit) as ended:
        main.main()
    assert not ended.value.code
    assert json.loads(capsys.readouterr().out)["tokens"] == expected[0].tolist()
