"""A change repeats only the stages behind it; and what is reused equals what a fresh conversion would make."""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

import onnx_bridge
from onnx_bridge.batch import journal as journals
from onnx_bridge.bundle.manifest.manifest import Manifest
from onnx_bridge.core.files.known_digests import file_state
from onnx_bridge.migraphx.runtime import Runtime
from passes.rewriting.base import Proof
from tests.batch.requests import convert_all, job


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of which legalization has something to rewrite."""
    path = tmp_path_factory.mktemp("recleaning") / "m.onnx"
    proto = parser.parse_model(
        '<ir_version: 8, opset_import: ["": 18]> g (float[n, 8] x) => (float[n, 8] y) { a = Mish(x) y = MatMul(a, w) }'
    )
    weights = np.random.default_rng(0).standard_normal((8, 8)).astype(np.float32)
    proto.graph.initializer.append(numpy_helper.from_array(weights, "w"))
    onnx.save(proto, path)
    return path


@pytest.fixture(scope="module")
def made(runtime: Runtime, model: Path) -> Path:
    onnx_bridge.convert(model, model.parent / "first", target="ref")
    return model.parent / "first"


@pytest.fixture
def out(made: Path, tmp_path: Path) -> Path:
    """A bundle to convert into again."""
    shutil.copytree(made, tmp_path / "out")
    return tmp_path / "out"


def stages(model: Path, out: Path, **changed: Any) -> list[str]:
    """The stages that a conversion goes through."""
    return list(onnx_bridge.convert(model, out, target="ref", **changed).manifest.timings)


AGAIN = ["reuse", "write", "start", "parse", "compile", "save", "prove"]


class TestConvert:
    @pytest.mark.parametrize(
        ("changed", "expected"),
        [
            ({"options": {"fast_math": False}}, AGAIN),
            ({"host": False}, AGAIN),
            ({"precision": "int8"}, [*AGAIN[:4], "quantize", *AGAIN[4:]]),
            ({"precision": "fp16"}, ["clean", *AGAIN[1:]]),
            ({"dims": {"n": 3}}, ["clean", *AGAIN[1:]]),
            ({"shapes": {"x": [1, 8]}}, ["clean", *AGAIN[1:]]),
            ({"pipeline": "minimal", "host": True}, ["clean", *AGAIN[1:]]),
            ({"freeze": {"x": "[[1, 1, 1, 1, 1, 1, 1, 1]]"}}, ["clean", *AGAIN[1:]]),
            ({"reuse": False}, ["clean", *AGAIN[1:]]),
            ({"cache": False}, ["clean", *AGAIN[1:]]),
        ],
        ids=str,
    )
    def test_only_stages_behind_a_change_are_repeated(
        self, model: Path, out: Path, changed: dict[str, Any], expected: list[str]
    ) -> None:
        found = stages(model, out, **changed)
        assert [each for each in found if each != "quantize" or "quantize" in expected] == expected

    @pytest.mark.parametrize("changed", [{}, {"timeout": 100.0}, {"prove": "never"}, {"prove_budget": 1e6}], ids=str)
    def test_an_unchanged_bundle_is_kept(self, model: Path, out: Path, changed: dict[str, Any]) -> None:
        before = {path.name: file_state(str(path)) for path in out.iterdir()}
        assert onnx_bridge.convert(model, out, target="ref", **changed).is_kept
        assert {path.name: file_state(str(path)) for path in out.iterdir()} == before

    @pytest.mark.usefixtures("runtime")
    @pytest.mark.parametrize("changed", [{"prove": "always"}, {"prove_budget": 2.0}], ids=str)
    def test_a_stronger_proof_is_made(
        self, runtime: Runtime, model: Path, tmp_path: Path, changed: dict[str, Any]
    ) -> None:
        onnx_bridge.convert(model, tmp_path, target="ref", prove_budget=1e-12)
        assert onnx_bridge.convert(model, tmp_path, target="ref", prove_budget=1e-12).is_kept
        bundle = onnx_bridge.convert(model, tmp_path, target="ref", **{"prove_budget": 1e-12, **changed})
        assert (bundle.is_kept, bundle.proof.level) == (False, Proof.RUN)

    def test_a_moved_model_is_recorded(self, model: Path, out: Path, tmp_path: Path) -> None:
        moved = Path(shutil.copy(model, tmp_path))
        bundle = onnx_bridge.convert(moved, out, target="ref")
        assert (bundle.is_kept, bundle.manifest.source["path"]) == (False, str(moved))

    def test_the_result_equals_a_fresh_conversion(self, model: Path, out: Path, tmp_path: Path) -> None:
        """Each file, and all that the manifest records of cleaning."""
        onnx_bridge.convert(model, out, target="ref", options={"fast_math": False})
        onnx_bridge.convert(model, tmp_path / "anew", target="ref", options={"fast_math": False})
        first, second = (Manifest.read(each / "manifest.json").to_json() for each in (out, tmp_path / "anew"))
        differing = {name for name in first if first[name] != second[name]}
        passes = [values["programs"][0]["passes"] for values in (first, second)]
        for each in itertools.chain(*passes):
            each.pop("seconds")
        assert {**first["proof"], "seconds": 0} == {**second["proof"], "seconds": 0}
        assert differing <= {"created", "timings", "programs", "proof"}
        assert passes[0] == passes[1]
        assert first["programs"] == second["programs"]
        assert onnx_bridge.verify(out).passed
        assert sorted(each.name for each in out.iterdir()) == ["m.mxr", "m.onnx", "manifest.json"]

    def test_precisions_by_passes_clean_again(self, model: Path, out: Path) -> None:
        assert "clean" in stages(model, out, precision="fp16")
        assert stages(model, out, precision="fp16", options={"fast_math": False}) == AGAIN
        bundle = onnx_bridge.convert(model, out, target="ref", precision="fp16")
        assert any("are computed in fp16" in note for note in bundle.manifest.notes)
        assert "clean" in stages(model, out, precision="fp16", keep_fp32=["MatMul"])
        assert "clean" in stages(model, out)

    @pytest.mark.parametrize("damage", ["model", "manifest", "gone"])
    def test_a_damaged_bundle_is_not_reused(self, model: Path, out: Path, damage: str) -> None:
        if damage == "model":
            data = bytearray((out / "m.onnx").read_bytes())
            data[len(data) // 2] ^= 1
            (out / "m.onnx").write_bytes(data)
        elif damage == "manifest":
            said = json.loads((out / "manifest.json").read_text())
            del said["programs"][0]["cleaning"]
            (out / "manifest.json").write_text(json.dumps(said))
        else:
            (out / "m.onnx").unlink()
        assert "clean" in stages(model, out)
        assert onnx_bridge.verify(out).passed

    def test_another_model(self, model: Path, out: Path, tmp_path: Path) -> None:
        changed = onnx.load(model)
        changed.graph.initializer[0].raw_data = np.ones((8, 8), np.float32).tobytes()
        onnx.save(changed, tmp_path / "m.onnx")
        assert "clean" in stages(tmp_path / "m.onnx", out)
        assert (onnx_bridge.load(out)({"x": np.zeros((1, 8), np.float32)})["y"] == 0).all()


def test_stages_in_the_journal(runtime: Runtime, model: Path, tmp_path: Path) -> None:
    """Changing an option of a batch: what each run did, as its journal counts it."""
    out = tmp_path / "out"

    def done(resume: bool = True, **changed: Any) -> tuple[list[str], int]:
        """The stages of the conversion, and how many comparisons there were."""
        before = len(journals.read(out / journals.STATE_FOLDER)[0])
        request = job(target="ref", check=True, **changed)
        outcome = convert_all([model, model], out, request, jobs=1, resume=resume)
        assert outcome.passed, outcome.to_json()
        records = journals.read(out / journals.STATE_FOLDER)[0][before:]
        timings: Iterator[dict[str, float]] = (each["timings"] for each in records if each["event"] == "done")
        return list(next(timings, {})), [each["event"] for each in records].count("checked")

    assert done() == (["clean", *AGAIN[1:]], 1)
    assert done() == ([], 0)
    assert done(atol=0.5) == ([], 1)
    assert done(seed=3) == ([], 1)
    assert done(options={"fast_math": "false"}) == (AGAIN, 1)
    assert done(options={"fast_math": "false"}, timeout=100.0) == ([], 0)
    assert done(dims={"n": 2}) == (["clean", *AGAIN[1:]], 1)
    assert done(dims={"n": 2}, resume=False) == (["clean", *AGAIN[1:]], 1)


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose weights are large enough to be shared."""
    path = tmp_path_factory.mktemp("large") / "m.onnx"
    text = "(float[n, 64] x) => (float[n, 64] y) { a = MatMul(x, w) b = Relu(a) y = MatMul(b, w2) }"
    proto = parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> g {text}')
    draw = np.random.default_rng(0)
    for name, shape in (("w", (64, 2000)), ("w2", (2000, 64))):
        weights = (draw.standard_normal(shape) / 40).astype(np.float32)
        proto.graph.initializer.append(numpy_helper.from_array(weights, name))
    onnx.save(proto, path)
    return path


class TestSharedWeights:
    """Buckets: the large weights of all cleaned models in one file."""

    def sizes(self, out: Path) -> dict[str, int]:
        return {each.name: each.stat().st_size for each in out.rglob("*") if each.is_file() and each.suffix != ".json"}

    def test_weights_are_written_once(self, runtime: Runtime, large: Path, tmp_path: Path) -> None:
        out = tmp_path / "out"
        bundle = onnx_bridge.convert(large, out, buckets={"n": [1, 2, 4]}, target="ref")
        weights = 2 * 64 * 2000 * 4
        sizes = self.sizes(out)
        assert weights <= sizes["m.onnx.data"] < weights * 1.1
        models = ["m.onnx", "n=1.onnx", "n=2.onnx", "n=4.onnx"]
        assert sum(sizes[each] for each in models) < weights / 20
        assert sorted(sizes) == ["m.mxr", "m.onnx", "m.onnx.data", *models[1:]]
        for each in models:  # they are in order for everybody, not for this project alone
            onnx.checker.check_model(str(out / each), full_check=True)
            onnx.load(out / each)
        assert all((out / name).stat().st_nlink == 1 for name in ("m.onnx.data", *models))
        assert onnx_bridge.check(bundle).passed
        assert all(onnx_bridge.check(each.path, reference=large).passed for each in bundle.programs)

    def test_other_sizes(self, runtime: Runtime, large: Path, tmp_path: Path) -> None:
        """Buckets that are up to date are kept; those that are no longer requested are removed."""
        out, compiled = tmp_path / "out", []

        def convert(sizes: list[int], **changed: Any) -> list[str]:
            compiled.clear()
            tell: Callable[[str], None] = compiled.append
            onnx_bridge.convert(large, out, buckets={"n": sizes}, target="ref", progress=tell, **changed)
            assert onnx_bridge.verify(out).passed
            assert not onnx_bridge.verify(out).notes
            assert onnx_bridge.check(out, reference=large).passed
            return [each for each in compiled if each in ("compile", "reuse")]

        assert convert([1, 2]) == ["compile"] * 2
        assert convert([1, 2]) == []
        assert not any(stage in compiled for stage in ("load", "clean"))
        assert convert([2, 4]) == ["compile"]
        assert sorted(each.name for each in out.iterdir() if each.is_dir()) == ["n=2", "n=4"]
        assert convert([2, 4], options={"fast_math": False}) == ["reuse", "compile"] * 2
        assert convert([2, 4], precision="fp16").count("compile") == 2
        assert convert([4], precision="fp16") == []
        assert convert([4], precision="fp16", reuse=False) == ["compile"]

    def test_small_weights_are_not_shared(self, runtime: Runtime, model: Path, tmp_path: Path) -> None:
        onnx_bridge.convert(model, tmp_path / "out", buckets={"n": [1, 2]}, target="ref")
        assert sorted(self.sizes(tmp_path / "out")) == ["m.mxr", "m.onnx"]
        assert (tmp_path / "out/n=1/m.onnx").exists()

    def test_damaged_weights_are_written_again(self, runtime: Runtime, large: Path, tmp_path: Path) -> None:
        """If the file of weights was changed, all is converted again, instead of reading wrong offsets."""
        out = tmp_path / "out"
        onnx_bridge.convert(large, out, buckets={"n": [1, 2]}, target="ref")
        data = out / "m.onnx.data"
        data.write_bytes(data.read_bytes()[::-1])
        assert "m.onnx.data" in onnx_bridge.verify(out).problems
        onnx_bridge.convert(large, out, buckets={"n": [1, 2]}, target="ref")
        assert onnx_bridge.verify(out).passed
        assert onnx_bridge.check(out, reference=large).passed
