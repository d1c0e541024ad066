"""Decoders: caches of fixed size, prompts of any length, and the tokens that ONNX Runtime generates."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import onnx_bridge
from fixtures.models import decoder as counting
from fixtures.models import grouped_query
from onnx_bridge.bundle.bundle import Bundle
from onnx_bridge.bundle.decoding.caches import StaticCache, chunks
from onnx_bridge.bundle.decoding.sampling import tokens
from onnx_bridge.bundle.decoding.trial import Original
from onnx_bridge.bundle.manifest.layout import CacheTensor, Layout
from onnx_bridge.bundle.manifest.manifest import Manifest
from onnx_bridge.bundle.manifest.text import resealed
from onnx_bridge.cli import main
from onnx_bridge.conversion.decoders.layout import recognize
from onnx_bridge.conversion.decoders.positions import refuse_other_branch
from onnx_bridge.conversion.source import Source
from onnx_bridge.core.errors import InputError, ParityError
from onnx_bridge.migraphx.runtime import Runtime
from onnx_bridge.model import io as models
from onnx_bridge.requests.conversion import ConvertRequest, DecoderSizes
from passes.rewriting.base import Proof

LENGTH = 48
PROMPT = np.arange(3, 16)[None]
"""Neither the width of a program nor a multiple of one."""


def by_reference(path: Path, bundle: Bundle, prompt: Any, count: int) -> np.ndarray[Any, Any]:
    """The tokens that ONNX Runtime generates, with a cache that grows."""
    cache = Original(path, bundle.manifest.request.freeze).cache(bundle.decoder.layout)
    return np.stack(list(tokens(cache, prompt, count)), 1)


@pytest.fixture(scope="module")
def in_place(runtime: Runtime, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Bundle]:
    """A decoder of genai's layout."""
    folder = tmp_path_factory.mktemp("in_place")
    path = grouped_query.build(folder / "model.onnx")
    return path, onnx_bridge.convert(path, folder / "out", decoder=True, max_length=LENGTH, prefill=[8], target="ref")


@pytest.fixture(scope="module")
def appended(runtime: Runtime, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Bundle]:
    """A decoder of optimum's layout, with a window."""
    from fixtures.suites.decoders import networks

    folder = tmp_path_factory.mktemp("appended")
    path = networks.export("mistral", folder / "model.onnx")
    return path, onnx_bridge.convert(
        path, folder / "out", decoder=True, max_length=LENGTH, prefill=[4, 8], target="ref"
    )


class TestInPlace:
    def test_tokens(self, in_place: tuple[Path, Bundle]) -> None:
        path, bundle = in_place
        found = bundle.decoder.generate(PROMPT, 32)
        assert found.dtype == np.int64
        assert len(set(found[0].tolist())) > 4
        np.testing.assert_array_equal(found, by_reference(path, bundle, PROMPT, 32))

    def test_proof_and_padding(self, in_place: tuple[Path, Bundle]) -> None:
        _, bundle = in_place
        assert bundle.decoder.layout.in_place
        assert bundle.decoder.layout.pads
        assert bundle.proof.level is Proof.RUN
        assert [each.dims["width"] for each in bundle.manifest.programs] == [1, 8]

    def test_until_the_cache_is_full(self, in_place: tuple[Path, Bundle]) -> None:
        _, bundle = in_place
        assert bundle.decoder.generate(PROMPT).shape == (1, LENGTH - PROMPT.shape[1] + 1)

    def test_a_prompt_that_is_too_long(self, in_place: tuple[Path, Bundle]) -> None:
        _, bundle = in_place
        with pytest.raises(InputError):
            bundle.decoder.generate(np.ones((1, LENGTH + 1), np.int64))
        assert bundle.decoder.generate(np.ones((1, LENGTH), np.int64)).shape == (1, 1)

    def test_sampling_and_stop(self, in_place: tuple[Path, Bundle]) -> None:
        _, bundle = in_place
        seen: list[tuple[int, ...]] = []

        def least(logits: Any) -> Any:
            seen.append(logits.shape)
            return logits.argmin(-1)

        found = bundle.decoder.generate(PROMPT, 6, choose=least)
        assert seen == [(1, grouped_query.VOCABULARY)] * 6
        assert (found != bundle.decoder.generate(PROMPT, 6)).any()
        first = int(found[0, 2])
        until = found[0].tolist().index(first) + 1
        assert bundle.decoder.generate(PROMPT, 6, choose=least, stop=[first]).tolist() == [found[0, :until].tolist()]
        with pytest.raises(InputError):
            bundle.decoder.generate(PROMPT, 6, choose=lambda logits: logits)

    def test_a_conversation_goes_on(self, in_place: tuple[Path, Bundle]) -> None:
        _, bundle = in_place
        cache = bundle.decoder.cache()
        cache.feed(PROMPT[:, :9])
        at_once = bundle.decoder.cache().feed(PROMPT)
        np.testing.assert_allclose(cache.feed(PROMPT[:, 9:]), at_once, rtol=1e-4, atol=1e-5)
        assert cache.length == PROMPT.shape[1]

    def test_bad_arguments(self, in_place: tuple[Path, Bundle]) -> None:
        _, bundle = in_place
        for ids in (PROMPT[0], PROMPT.astype(np.float32), np.zeros((2, 3), np.int64), PROMPT[:, :0]):
            with pytest.raises(InputError):
                bundle.decoder.generate(ids, 2)
        mask = np.ones_like(PROMPT)
        mask[0, 0] = 0
        with pytest.raises(InputError):  # tokens of this layout are counted
            bundle.decoder.generate(PROMPT, 2, attention_mask=mask)

    def test_logits_of_the_last_token_alone(self, runtime: Runtime, tmp_path: Path) -> None:
        path = grouped_query.build(tmp_path / "model.onnx", last_logits=True)
        bundle = onnx_bridge.convert(path, tmp_path / "out", decoder=True, max_length=24, prefill=[4], target="ref")
        assert not bundle.decoder.layout.pads, "the last token of a padded prompt is padding"
        assert any("padded" in note for note in bundle.manifest.notes)
        np.testing.assert_array_equal(bundle.decoder.generate(PROMPT, 8), by_reference(path, bundle, PROMPT, 8))

    def test_several_texts(self, runtime: Runtime, tmp_path: Path, in_place: tuple[Path, Bundle]) -> None:
        """ONNX Runtime appends one token to each; several of one text alone."""
        path, single = in_place
        sizes: dict[str, Any] = {"decoder": True, "dims": {"batch_size": 2}, "target": "ref"}
        (tmp_path / "config.json").write_text(json.dumps({"max_position_embeddings": 24}))
        shutil.copy(path, tmp_path / "model.onnx")
        bundle = onnx_bridge.convert(tmp_path, tmp_path / "out", **sizes)
        assert [*bundle.decoder.widths] == [1]
        texts = np.stack([PROMPT[0, :5], PROMPT[0, 5:10]])
        for text, generated in zip(texts, bundle.decoder.generate(texts, 4), strict=True):
            np.testing.assert_array_equal(generated, single.decoder.generate(text[None], 4)[0])
        with pytest.raises(InputError):
            onnx_bridge.convert(path, tmp_path / "out", **sizes, max_length=24, prefill=[4])

    @pytest.mark.parametrize(
        "options",
        [
            {"dtype": np.float16},
            {"int4": True},
            {"window": 6},
            {"size": "kv_cache_dim"},
            {"window": 6, "evicting": [0], "size": "kv_cache_dim"},
            {"window": 6, "evicting": [0, 1], "int4": True},
            {"window": 3, "evicting": [1], "dtype": np.float16},
        ],
    )
    def test_other_dtypes_and_windows(self, runtime: Runtime, tmp_path: Path, options: dict[str, Any]) -> None:
        path = grouped_query.build(tmp_path / "model.onnx", **options)
        bundle = onnx_bridge.convert(path, tmp_path / "out", decoder=True, max_length=LENGTH, prefill=[8], target="ref")
        np.testing.assert_array_equal(bundle.decoder.generate(PROMPT, 32), by_reference(path, bundle, PROMPT, 32))

    @pytest.mark.parametrize("dims", [{}, {"kv_cache_dim": 16}, {"past_sliding_length": 9}])
    def test_sizes_of_caches(self, tmp_path: Path, dims: dict[str, int]) -> None:
        model = models.load(grouped_query.build(tmp_path / "m.onnx", window=6, evicting=[1], size="kv_cache_dim"))
        layout = recognize(model, ConvertRequest(decoder=True, max_length=4, dims=dims), DecoderSizes(4))
        rows = dims.get("past_sliding_length", 6)
        assert [(tensor.shape[2], tensor.axis) for tensor in layout.cache] == [(4, 2)] * 2 + [(rows, None)] * 2
        assert {tensor.shape[3] for tensor in layout.cache} == {16}
        with pytest.raises(InputError):
            recognize(model, ConvertRequest(decoder=True, max_length=4, dims={"cache_dim": 16}), DecoderSizes(4))

    @pytest.mark.parametrize("shape", [[], [1]])
    def test_the_number_of_logits(self, runtime: Runtime, tmp_path: Path, shape: list[int]) -> None:
        """transformers.js asks for it; a decoder needs those of all tokens."""
        model = onnx.load(grouped_query.build(tmp_path / "model.onnx"))
        graph, head = model.graph, model.graph.node[-1]
        graph.input.append(onnx.helper.make_tensor_value_info("num_logits_to_keep", onnx.TensorProto.INT64, shape))
        weights = {"one_size": [1], "far": [2**31], "tokens": [1]}
        graph.initializer.extend(onnx.numpy_helper.from_array(np.array(v), name) for name, v in weights.items())
        made = [
            onnx.helper.make_node("Reshape", ["num_logits_to_keep", "one_size"], ["count"]),
            onnx.helper.make_node("Neg", ["count"], ["first"]),
            onnx.helper.make_node("Slice", [head.input[0], "first", "far", "tokens"], ["kept"]),
        ]
        head.input[0] = "kept"
        graph.node.remove(head)
        graph.node.extend([*made, onnx.helper.make_node("MatMul", ["kept", head.input[1]], ["logits"], "head")])
        onnx.save(model, tmp_path / "asking.onnx")
        sizes: dict[str, Any] = {"decoder": True, "max_length": 24, "prefill": [4], "target": "ref"}
        bundle = onnx_bridge.convert(tmp_path / "asking.onnx", tmp_path / "out", **sizes)
        assert bundle.proof.level is Proof.RUN and bundle.decoder.layout.pads

    def test_states_take_no_padding(self, runtime: Runtime, tmp_path: Path) -> None:
        path = grouped_query.build(tmp_path / "model.onnx", window=6, evicting=[1])
        bundle = onnx_bridge.convert(path, tmp_path / "out", decoder=True, max_length=24, prefill=[8], target="ref")
        assert not bundle.decoder.layout.pads
        manifest = json.loads((tmp_path / "out/manifest.json").read_text())
        manifest["decoder"]["pads"] = True
        (tmp_path / "out/manifest.json").write_bytes(resealed(manifest))
        with pytest.raises(InputError):
            onnx_bridge.load(tmp_path / "out")


class TestStates:
    """Models that keep no tokens: a recurrence (Mamba, RWKV), or the last inputs of a convolution (lfm2)."""

    RECURRENT = """<ir_version: 8, opset_import: ["": 17]>
        g (int64[batch, tokens] input_ids, float[1, batch, 8] PAST)
            => (float[batch, tokens, 16] logits, float[1, batch, 8] PRESENT)
        <int64[1] one = {1}> {
            x = Gather (table, input_ids) t = Transpose <perm = [1, 0, 2]> (x)
            s, PRESENT = GRU <hidden_size = 8> (t, w, r, , , PAST)
            h = Squeeze (s, one) b = Transpose <perm = [1, 0, 2]> (h) logits = MatMul (b, o) }"""

    def build(self, path: Path, names: tuple[str, str], tokens: str = "tokens") -> Path:
        text = self.RECURRENT.replace("PAST", "past_state").replace("PRESENT", "present_state")
        text = text.replace("[batch, tokens", f"[batch, {tokens}")
        model, random = onnx.parser.parse_model(text), np.random.default_rng(0)
        for name, shape in {"table": (16, 8), "w": (1, 24, 8), "r": (1, 24, 8), "o": (8, 16)}.items():
            weights = random.standard_normal(shape).astype(np.float32)
            model.graph.initializer.append(onnx.numpy_helper.from_array(weights, name))
        for value in (model.graph.input[1], model.graph.output[1]):
            value.name = names[value.name == "present_state"]
        gru = next(node for node in model.graph.node if node.op_type == "GRU")
        gru.input[5], gru.output[1] = names
        onnx.save(model, path)
        return path

    @pytest.mark.parametrize(
        "names", [("past.0.state", "present.0.state"), ("state", "new_state"), ("cache.rnn", "output.cache.rnn")]
    )
    def test_a_recurrence(self, runtime: Runtime, tmp_path: Path, names: tuple[str, str]) -> None:
        path = self.build(tmp_path / "model.onnx", names)
        bundle = onnx_bridge.convert(path, tmp_path / "out", target="ref", max_length=32, prefill=[4])
        assert not bundle.decoder.layout.pads
        assert [tensor.axis for tensor in bundle.decoder.layout.cache] == [None]
        expected = by_reference(path, bundle, PROMPT % 16, 12)
        np.testing.assert_array_equal(bundle.decoder.generate(PROMPT % 16, 12), expected)
        assert onnx_bridge.check(bundle).passed

    def test_one_token_at_a_time(self, runtime: Runtime, tmp_path: Path) -> None:
        """Exports of Mamba and RWKV with their states are for single tokens; a folder says that it is a model."""
        path = self.build(tmp_path / "model.onnx", ("state", "state_out"), "1")
        (tmp_path / "config.json").write_text(json.dumps({"max_position_embeddings": 24}))
        bundle = onnx_bridge.convert(tmp_path, tmp_path / "out", target="ref")
        assert [*bundle.decoder.widths] == [1]
        expected = by_reference(path, bundle, PROMPT % 16, 8)
        np.testing.assert_array_equal(bundle.decoder.generate(PROMPT % 16, 8), expected)
        assert onnx_bridge.check(bundle).passed
        for prefill, count in ((4, "1"), (1, "3")):
            self.build(path, ("state", "state_out"), count)
            with pytest.raises(InputError):
                onnx_bridge.convert(path, tmp_path / "out", target="ref", max_length=32, prefill=[prefill])


class TestWithoutPositionIds:
    def test_positions_follow_the_number_of_tokens(self, runtime: Runtime, tmp_path: Path) -> None:
        """Computed from the size of the cache, they would be the same for all tokens of a static one."""
        onnx.save(counting.decoder(counted=True), path := tmp_path / "model.onnx")
        bundle = onnx_bridge.convert(path, tmp_path / "out", decoder=True, max_length=LENGTH, prefill=[4], target="ref")
        assert bundle.decoder.layout.length is not None
        assert bundle.proof.level is Proof.RUN
        found = bundle.decoder.generate(PROMPT, 32)
        assert len(set(found[0].tolist())) > 4
        np.testing.assert_array_equal(found, by_reference(path, bundle, PROMPT, 32))
        assert onnx_bridge.check(tmp_path / "out").passed

    def test_positions_in_three_sections(self, runtime: Runtime, tmp_path: Path) -> None:
        """Models of pictures tell apart time, height and width (Qwen VL); in a text these are the same."""
        model = counting.decoder()
        graph, (positions,) = model.graph, (v for v in model.graph.input if v.name == "position_ids")
        positions.name = "sections_of_position_ids"
        positions.type.tensor_type.shape.dim.insert(0, onnx.TensorShapeProto.Dimension(dim_value=3))
        graph.initializer.append(onnx.numpy_helper.from_array(np.array(2), "third"))
        graph.node.insert(0, onnx.helper.make_node("Gather", [positions.name, "third"], ["position_ids"], axis=0))
        onnx.save(model, path := tmp_path / "model.onnx")
        bundle = onnx_bridge.convert(path, tmp_path / "out", decoder=True, max_length=24, prefill=[4], target="ref")
        assert bundle.decoder.layout.sections == 3
        np.testing.assert_array_equal(bundle.decoder.generate(PROMPT, 8), by_reference(path, bundle, PROMPT, 8))

    def test_with_position_ids_nothing_is_looked_up(self, runtime: Runtime, tmp_path: Path) -> None:
        onnx.save(counting.decoder(), path := tmp_path / "model.onnx")
        bundle = onnx_bridge.convert(path, tmp_path / "out", decoder=True, max_length=16, target="ref")
        assert bundle.decoder.layout.length is None
        np.testing.assert_array_equal(
            bundle.decoder.generate(PROMPT[:, :5], 8), by_reference(path, bundle, PROMPT[:, :5], 8)
        )


@pytest.mark.torch
class TestAppended:
    def test_tokens(self, appended: tuple[Path, Bundle]) -> None:
        path, bundle = appended
        assert not bundle.decoder.layout.in_place
        assert bundle.decoder.layout.pads
        np.testing.assert_array_equal(bundle.decoder.generate(PROMPT, 32), by_reference(path, bundle, PROMPT, 32))

    def test_prompts_of_different_lengths(
        self, runtime: Runtime, appended: tuple[Path, Bundle], tmp_path: Path
    ) -> None:
        path, single = appended
        bundle = onnx_bridge.convert(
            path, tmp_path / "out", decoder=True, max_length=32, prefill=[8], dims={"batch_size": 2}, target="ref"
        )
        short = np.arange(20, 27)[None]
        ids = np.concatenate([PROMPT, np.pad(short, ((0, 0), (PROMPT.shape[1] - short.shape[1], 0)))])
        mask = np.ones_like(ids)
        mask[1, : PROMPT.shape[1] - short.shape[1]] = 0
        found = bundle.decoder.generate(ids, 8, attention_mask=mask)
        np.testing.assert_array_equal(found[:1], single.decoder.generate(PROMPT, 8))
        np.testing.assert_array_equal(found[1:], single.decoder.generate(short, 8))


class TestBundle:
    def test_verbs(self, in_place: tuple[Path, Bundle], tmp_path: Path) -> None:
        path, bundle = in_place
        assert onnx_bridge.verify(bundle.path).passed
        view = onnx_bridge.inspect(bundle.path)
        assert view.to_json()["decoder"]["max_length"] == LENGTH
        assert json.dumps(onnx_bridge.inspect(bundle.path).to_json())
        report = onnx_bridge.check(bundle.path)
        assert report.passed
        assert {each.name for each in report.legs} == {f"prompt of {n}, then 8 more" for n in (1, 8, 9, 2, 10)}
        onnx_bridge.pack(bundle.path, tmp_path / "m.onnxbridge")
        loaded = onnx_bridge.load(tmp_path / "m.onnxbridge")
        assert loaded.manifest.decoder is not None
        np.testing.assert_array_equal(loaded.decoder.generate(PROMPT, 4), bundle.decoder.generate(PROMPT, 4))
        with pytest.raises(InputError):
            onnx_bridge.check(bundle, layers=True)
        assert path.exists()

    def test_check_finds_another_model(self, in_place: tuple[Path, Bundle], tmp_path: Path) -> None:
        _, bundle = in_place
        other = grouped_query.build(tmp_path / "model.onnx", window=4)
        assert not onnx_bridge.check(bundle, reference=other).passed

    def test_a_program_is_a_bundle(self, in_place: tuple[Path, Bundle]) -> None:
        _, bundle = in_place
        arrays = {
            name: np.ones(shape, np.int64)
            for name, shape in bundle.decoder.layout.shapes(8).items()
            if "past" not in name
        }
        arrays |= {each.past: np.zeros(each.shape, np.float32) for each in bundle.decoder.layout.cache}
        assert bundle(arrays)["logits"].shape == (1, 8, grouped_query.VOCABULARY)
        with pytest.raises(InputError):
            bundle({**arrays, "input_ids": np.ones((1, 3), np.int64)})

    def test_again(self, in_place: tuple[Path, Bundle], tmp_path: Path) -> None:
        path, made = in_place
        out = tmp_path / "out"
        shutil.copytree(made.path, out)
        kept = (out / "width=1" / "model.mxr").stat().st_mtime_ns
        (out / ".unfinished" / "width=7").mkdir(parents=True)  # of a conversion to other widths that was killed
        (out / ".unfinished" / "width=7.onnx").touch()
        bundle = onnx_bridge.convert(path, out, decoder=True, max_length=LENGTH, prefill=[4], target="ref")
        assert (out / "width=1" / "model.mxr").stat().st_mtime_ns == kept
        assert sorted(each.name for each in out.iterdir() if each.is_dir()) == ["width=1", "width=4"]
        assert not (out / "width=7.onnx").exists()
        np.testing.assert_array_equal(bundle.decoder.generate(PROMPT, 4), made.decoder.generate(PROMPT, 4))

    @pytest.mark.parametrize(
        "change",
        [
            lambda layout: layout.update(max_length=LENGTH - 1),
            lambda layout: layout.update(max_length=1 << 39),
            lambda layout: layout.update(ids="attention_mask"),
            lambda layout: layout.update(logits="present"),
            lambda layout: layout.update(in_place=False),
            lambda layout: layout.update(batch=0),
            lambda layout: layout.update(cache=[]),
            lambda layout: layout["cache"][0].update(axis=7),
            lambda layout: layout["cache"][0].update(shape=[1, 2, LENGTH, -8]),
            lambda layout: layout["cache"][0].update(present="nothing"),
            lambda layout: layout["cache"].pop(),
            lambda layout: layout.update(mask=3),
            lambda layout: layout.update(stop=[-1]),
            lambda layout: layout.update(stop=["</s>"]),
            lambda layout: layout.pop("ids"),
        ],
    )
    def test_hostile_layouts(
        self, in_place: tuple[Path, Bundle], tmp_path: Path, change: Callable[[dict[str, Any]], Any]
    ) -> None:
        _, made = in_place
        out = tmp_path / "out"
        shutil.copytree(made.path, out)
        values = json.loads((out / "manifest.json").read_text())
        change(values["decoder"])
        (out / "manifest.json").write_bytes(resealed(values))
        with pytest.raises(InputError):
            onnx_bridge.load(out)

    def test_without_a_program_for_one_token(self, in_place: tuple[Path, Bundle], tmp_path: Path) -> None:
        _, made = in_place
        out = tmp_path / "out"
        shutil.copytree(made.path, out)
        values = json.loads((out / "manifest.json").read_text())
        for programs in (values["programs"][1:], []):
            (out / "manifest.json").write_bytes(resealed({**values, "programs": programs}))
            with pytest.raises(InputError):
                onnx_bridge.load(out)


class TestRefused:
    @pytest.fixture(scope="class")
    def model(self, tmp_path_factory: pytest.TempPathFactory) -> Path:
        return grouped_query.build(tmp_path_factory.mktemp("model") / "model.onnx")

    def layout(self, model: onnx.ModelProto, folder: Path, length: int = 32) -> Layout:
        onnx.save(model, folder / "changed.onnx")
        return recognize(models.load(folder / "changed.onnx"), ConvertRequest(), DecoderSizes(length))

    def test_without_a_cache(self, model: Path, tmp_path: Path) -> None:
        changed = onnx.load(model)
        del changed.graph.output[1:]
        with pytest.raises(InputError):
            self.layout(changed, tmp_path)

    def test_unknown_inputs_are_frozen(self, model: Path, tmp_path: Path) -> None:
        changed = onnx.load(model)
        changed.graph.input.append(onnx.helper.make_tensor_value_info("experts", onnx.TensorProto.INT64, [1]))
        with pytest.raises(InputError):
            self.layout(changed, tmp_path)
        request = ConvertRequest(freeze={"experts": "[1]"})
        found = recognize(models.load(tmp_path / "changed.onnx"), request, DecoderSizes(32))
        assert "experts" not in found.shapes(1)

    def test_fewer_positions_than_tokens(self, model: Path, tmp_path: Path) -> None:
        assert self.layout(onnx.load(model), tmp_path, grouped_query.POSITIONS).max_length == grouped_query.POSITIONS
        with pytest.raises(InputError):
            self.layout(onnx.load(model), tmp_path, grouped_query.POSITIONS + 1)

    def test_tokens_from_which_another_branch_is_taken(self, model: Path, tmp_path: Path) -> None:
        """As in Phi 3, whose tables of rotations change behind its first context; an If on values remains."""
        changed = onnx.load(model)
        nodes = onnx.parser.parse_graph("""g (int64 total_length, int64[1,t] attention_mask) => (float[128,8] far) {
            twenty = Constant<value_int = 20>()  longer = Greater(total_length, twenty)
            far = If(longer) <then_branch = a () => (u) { u = Neg(cos_cache) },
                             else_branch = b () => (v) { v = Identity(cos_cache) }>
            first = ReduceMax<keepdims = 0>(attention_mask)  hidden = Less(first, twenty)
            near = If(hidden) <then_branch = c () => (w) { w = Identity(far) },
                               else_branch = d () => (z) { z = Neg(far) }> }""").node
        at = next(place for place, node in enumerate(changed.graph.node) if node.name == "attention0")
        for node in changed.graph.node:
            if node.op_type == "GroupQueryAttention":
                node.input[7] = "near"
        rest = list(changed.graph.node)
        del changed.graph.node[:]
        changed.graph.node.extend([*rest[:at], *nodes, *rest[at:]])
        short, long = (self.layout(changed, tmp_path, length) for length in (20, 48))
        source = Source.of(tmp_path / "changed.onnx")
        refuse_other_branch(source, ConvertRequest(), short)
        with pytest.raises(InputError) as error:
            refuse_other_branch(source, ConvertRequest(), long)
        assert "20" in str(error.value.hint)

    def test_sizes(self, model: Path, tmp_path: Path) -> None:
        for length, prefill in ((1, []), (8, [8]), (8, [0])):
            with pytest.raises(InputError):
                onnx_bridge.convert(model, tmp_path / "out", decoder=True, max_length=length, prefill=prefill)
        with pytest.raises(InputError):
            onnx_bridge.convert(model, tmp_path / "out.mxr", decoder=True, max_length=8)
        assert not (tmp_path / "out").exists()

    def test_a_cache_of_another_meaning(self, runtime: Runtime, tmp_path: Path) -> None:
        """Its mask hides nothing, so that the empty part of a static cache is seen."""
        path = grouped_query.build(tmp_path / "model.onnx")
        model = onnx.load(path)
        shape = next(each for each in model.graph.node if each.name == "mask_sum")
        model.graph.node.insert(0, onnx.helper.make_node("Equal", ["attention_mask", "attention_mask"], ["all"]))
        model.graph.node.insert(1, onnx.helper.make_node("Cast", ["all"], ["all_ones"], to=onnx.TensorProto.INT64))
        shape.input[0] = "all_ones"
        onnx.save(model, path)
        with pytest.raises(ParityError):
            onnx_bridge.convert(path, tmp_path / "out", decoder=True, max_length=16, target="ref")
        assert not (tmp_path / "out" / "manifest.json").exists()


def layout(*, in_place: bool, pads: bool, length: int = 64) -> Layout:
    return Layout(
        1, length, "ids", "logits", (CacheTensor("p", "q", (1, 2, length, 4), 2),), "mask", None, in_place, pads
    )


@pytest.mark.parametrize(
    ("count", "length", "in_place", "pads", "expected"),
    [
        (1, 0, True, True, [(1, 1)]),
        (16, 0, True, True, [(16, 16)]),
        (21, 0, True, True, [(16, 16), (5, 8)]),
        (21, 0, False, True, [(5, 8), (16, 16)]),
        (21, 3, False, True, [(4, 4), (1, 1), (16, 16)]),
        (21, 3, True, True, [(16, 16), (5, 8)]),
        (21, 0, True, False, [(16, 16), (4, 4), (1, 1)]),
        (7, 57, True, True, [(4, 4), (1, 1), (1, 1), (1, 1)]),
        (7, 56, True, True, [(7, 8)]),
    ],
)
def test_chunks(count: int, length: int, in_place: bool, pads: bool, expected: list[tuple[int, int]]) -> None:
    widths = dict.fromkeys((1, 4, 8, 16))
    assert list(chunks(count, widths, length, layout(in_place=in_place, pads=pads))) == expected


def test_an_axis_that_is_not_the_third() -> None:
    """Some models keep keys transposed."""
    fed: list[dict[str, Any]] = []
    kind = Layout(
        1, 6, "ids", "logits", (CacheTensor("past", "present", (1, 3, 6), 2),), "mask", "positions", False, True
    )

    def program(arrays: Any) -> dict[str, Any]:
        fed.append(arrays)
        new = np.tile(arrays["ids"].astype(np.float32)[:, None], (1, 3, 1))
        return {"logits": np.zeros((1, arrays["ids"].shape[1], 2)), "present": np.concatenate([arrays["past"], new], 2)}

    dtypes = {"ids": np.dtype(np.int64), "mask": np.dtype(np.int32), "positions": np.dtype(np.int64)}
    cache = StaticCache(kind, {**dtypes, "past": np.dtype(np.float32)}, {1: program, 4: program})
    cache.feed(np.array([[5, 6, 7]]))
    cache.feed(np.array([[8]]))
    assert [each["past"].shape for each in fed] == [(1, 3, 2), (1, 3, 5)]
    assert fed[0]["mask"].tolist() == [[0, 0, 0, 1, 1, 1]]
    assert fed[0]["positions"].tolist() == [[0, 0, 1, 2]]
    assert fed[1]["past"][0, 0].tolist() == [0, 0, 5, 6, 7]
    assert fed[1]["mask"].tolist() == [[0, 0, 1, 1, 1, 1]]
    assert fed[1]["positions"].tolist() == [[3]]
    assert fed[1]["mask"].dtype == np.int32


class TestCommandLine:
    def run(self, *arguments: str | Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> tuple[int, str]:
        monkeypatch.setattr("sys.argv", ["onnx-bridge", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main.main()
        return int(ended.value.code or 0), capsys.readouterr().out

    def test_convert(self, runtime: Runtime, tmp_path: Path, capsys: Any, monkeypatch: Any) -> None:
        path = grouped_query.build(tmp_path / "model.onnx")
        options = ("--as", "decoder", "--max-length", "16", "--prefill", "4", "--target", "ref", "--check", "--json")
        code, printed = self.run(
            "convert", path, "-o", tmp_path / "out", *options, capsys=capsys, monkeypatch=monkeypatch
        )
        assert code == 0
        assert json.loads(printed)["passed"]
        assert Manifest.read(tmp_path / "out" / "manifest.json").decoder is not None
        generated = ("generate", tmp_path / "out", "--ids", "5,6,7", "--max-new-tokens", "4", "--json")
        code, printed = self.run(*generated, capsys=capsys, monkeypatch=monkeypatch)
        assert code == 0
        bundle = onnx_bridge.load(tmp_path / "out")
        assert bundle.manifest.decoder is not None
        assert json.loads(printed)["tokens"] == bundle.decoder.generate(np.array([[5, 6, 7]]), 4)[0].tolist()

    @pytest.mark.parametrize(
        "options",
        [
            ["--as", "decoder"],
            ["--as", "encoder"],
            ["--prefill", "4"],
            ["--as", "decoder", "--max-length", "8", "--prefill", "x"],
            ["--as", "decoder", "--max-length", "8", "--bucket", "batch_size=1,2"],
        ],
    )
    def test_refused(self, options: list[str], tmp_path: Path, capsys: Any, monkeypatch: Any) -> None:
        path = grouped_query.build(tmp_path / "model.onnx")
        code, _ = self.run("convert", path, "-o", tmp_path / "out", *options, capsys=capsys, monkeypatch=monkeypatch)
        assert code == 2
        assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_the_advice_for_a_decoder_that_float16_is_too_narrow_for(runtime: Runtime, tmp_path: Path) -> None:
    """A product overflows; with the operators that the error names in float32, it does not."""
    model = models.load(grouped_query.build(tmp_path / "m.onnx"))
    for name, factor in (("up1.weight", 1e5), ("down1.weight", 1e-5)):
        weight = model.graph.initializers[name]
        assert weight.const_value is not None
        weight.const_value = ir.tensor(weight.const_value.numpy() * np.float32(factor), name=name)
    models.save(model, path := tmp_path / "wide.onnx")
    with pytest.raises(ParityError) as raised:
        onnx_bridge.convert(path, tmp_path / "out", decoder=True, max_length=16, precision="fp16", target="ref")
    advice = str(raised.value.hint)
    assert "bisect" not in advice
    kept = re.findall(r"--keep-fp32 (\w+)", advice)
    how: Any = {"decoder": True, "max_length": 16, "target": "ref"}
    assert onnx_bridge.convert(path, tmp_path / "kept", precision="fp16", keep_fp32=kept, **how).proof.error < 0.1
