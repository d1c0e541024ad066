"""Buckets: the smallest that fits, inputs padded up to it, outputs cut down, and the numbers as without all that."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

import onnx_bridge
from onnx_bridge.bundle.bundle import Bundle
from onnx_bridge.cli import main
from onnx_bridge.core.errors import InputError, ParityError
from onnx_bridge.migraphx.runtime import Runtime
from onnx_bridge.parity.checking.bucket_check import check_buckets
from onnx_bridge.reference.comparison.compare import compare
from onnx_bridge.reference.reference import Reference
from onnx_bridge.requests.parity import CheckRequest
from tests.batch.requests import convert_all, job

RNG = np.random.default_rng(0)
ATTENTION = """
    (int64[batch, seq] ids, int64[batch, seq] mask) => (float[batch, seq, 8] y, float[batch, 8] pooled) {
        e = Gather(table, ids)
        t = Transpose <perm = [0, 2, 1]> (e) s = MatMul(e, t)
        f = Cast <to = 1> (mask) u = Unsqueeze(f, one) i = Sub(unit, u) b = Mul(i, low)
        masked = Add(s, b) p = Softmax <axis = -1> (masked) a = MatMul(p, e) y = MatMul(a, w)
        pooled = Gather <axis = 1> (y, first)
    }
"""


def write(path: Path, text: str, **weights: Any) -> Path:
    model = parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> g {text}')
    model.graph.initializer.extend(numpy_helper.from_array(np.asarray(each), name) for name, each in weights.items())
    onnx.save(model, path)
    return path


@pytest.fixture(scope="module")
def made(runtime: Runtime, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Bundle]:
    folder = tmp_path_factory.mktemp("buckets")
    weights = {
        "table": RNG.standard_normal((9, 8)).astype(np.float32),
        "w": RNG.standard_normal((8, 8)).astype(np.float32),
        "one": np.array([1]),
        "unit": np.array(1, np.float32),
        "low": np.array(-1e9, np.float32),
        "first": np.array(0),
    }
    path = write(folder / "m.onnx", ATTENTION, **weights)
    sizes = {"batch": [1, 3], "seq": [4, 8]}
    return path, onnx_bridge.convert(path, folder / "out", buckets=sizes, target="ref")


def sample(batch: int, seq: int) -> dict[str, Any]:
    return {"ids": RNG.integers(0, 9, (batch, seq)), "mask": np.ones((batch, seq), np.int64)}


class TestCall:
    @pytest.mark.parametrize(
        ("batch", "seq", "bucket"),
        [
            (1, 4, "batch=1,seq=4"),
            (1, 3, "batch=1,seq=4"),
            (1, 5, "batch=1,seq=8"),
            (2, 1, "batch=3,seq=4"),
            (3, 8, "batch=3,seq=8"),
        ],
    )
    def test_every_size(self, made: tuple[Path, Bundle], batch: int, seq: int, bucket: str) -> None:
        path, bundle = made
        given = sample(batch, seq)
        outputs = bundle(given)
        expected = Reference(path).run(given)
        assert {name: each.shape for name, each in outputs.items()} == {n: e.shape for n, e in expected.items()}
        assert compare(outputs, expected).passed
        assert bundle.notes[0].startswith(f"run in the bucket {bucket}")
        padded = (batch, seq) != tuple(int(part.split("=")[1]) for part in bucket.split(","))
        assert ("padded: ids" in bundle.notes[0]) == padded

    def test_sizes_beyond_all_buckets(self, made: tuple[Path, Bundle]) -> None:
        expected = r"no bucket holds batch=4,seq=2.*batch=1,seq=4; .*batch=3,seq=8.*`buckets={'batch': \(3, 4\)}`"
        with pytest.raises(InputError, match=expected):
            made[1](sample(4, 2))

    def test_sizes_that_contradict_each_other(self, made: tuple[Path, Bundle]) -> None:
        with pytest.raises(InputError, match="seq"):
            made[1]({**sample(1, 4), "mask": np.ones((1, 3), np.int64)})


class TestBundle:
    def test_loading(self, made: tuple[Path, Bundle]) -> None:
        bundle = onnx_bridge.load(made[1].path)
        assert bundle.manifest.dims
        assert compare(bundle(given := sample(2, 2)), Reference(made[0]).run(given)).passed
        onnx.checker.check_model(onnx.load(bundle.model_path), full_check=True)
        dims = onnx.load(bundle.model_path).graph.input[0].type.tensor_type.shape.dim
        assert [each.dim_param for each in dims] == ["batch", "seq"]

    def test_each_bucket_is_a_bundle(self, made: tuple[Path, Bundle]) -> None:
        inner = onnx_bridge.load(made[1].path / "batch=3,seq=4")
        assert inner(sample(3, 4))["y"].shape == (3, 4, 8)

    def test_a_mixture_of_two_conversions(self, made: tuple[Path, Bundle], tmp_path: Path) -> None:
        shutil.copytree(made[1].path, tmp_path / "out")
        manifest = tmp_path / "out/batch=1,seq=8/manifest.json"
        manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "created": "another day"}))
        with pytest.raises(InputError, match="not the one that the manifest describes"):
            onnx_bridge.load(tmp_path / "out")
        manifest.unlink()
        with pytest.raises(InputError, match="no bundle|missing|manifest"):
            onnx_bridge.load(tmp_path / "out")

    def test_readers_of_one_program_are_told(self, made: tuple[Path, Bundle]) -> None:
        with pytest.raises(InputError, match="a program for each size.*name the folder of one: batch=1,seq=4"):
            _ = Bundle(made[1].path).program

    def test_samples_have_the_roles_of_the_inputs(self, made: tuple[Path, Bundle]) -> None:
        """Ids that are drawn without the model are no rows of its table."""
        _, bundle = made
        for sizes in (None, {"batch": 2, "seq": 3}):
            sample = bundle.sample(sizes, seed=1)
            assert sample["ids"].min() >= 0 and sample["ids"].max() < 9
            assert sample["ids"].shape == (tuple(sizes.values()) if sizes else (1, 4))

    def test_check(self, made: tuple[Path, Bundle]) -> None:
        report = check_buckets(made[1], CheckRequest())
        assert report.passed, report.to_json()
        assert [len(leg.comparisons) for leg in report.legs] == [2, 2, 2, 2]

    def test_check_on_given_inputs(self, made: tuple[Path, Bundle], tmp_path: Path) -> None:
        """They are compared in the buckets that hold them; more rows than any has are several samples."""
        given = [sample(2, 3), sample(1, 4), sample(3, 4), sample(4, 8)]
        report = onnx_bridge.check(made[1], inputs=given)
        assert report.passed, report.to_json()
        rows = {leg.name: [each.outputs[0].shape[0] for each in leg.comparisons] for leg in report.legs}
        expected = {"batch=3,seq=4": [2, 3], "batch=1,seq=4": [1], "batch=3,seq=8": [3], "batch=1,seq=8": [1]}
        assert rows == {f"bucket {name}": sizes for name, sizes in expected.items()}
        with pytest.raises(InputError, match="no bucket holds batch=1,seq=9"):
            onnx_bridge.check(made[1], inputs=sample(1, 9))

    def test_the_advice_of_a_refusal(self, made: tuple[Path, Bundle]) -> None:
        with pytest.raises(InputError) as raised:
            onnx_bridge.check(made[1], layers=True)
        one = Path(str(raised.value.hint).rpartition(": ")[2])
        assert onnx_bridge.check(one, layers=True, inputs=sample(3, 8)).passed


def test_a_model_that_padding_changes(runtime: Runtime, tmp_path: Path) -> None:
    """A mean over what is padded is refused; if it is not to be proven, the check says so."""
    path = write(tmp_path / "m.onnx", "(float[n, 4] x) => (float[1, 4] y) { y = ReduceMean <axes = [0]> (x) }")
    with pytest.raises(ParityError, match="padding changes the output y in the bucket n=4: at n=2"):
        onnx_bridge.convert(path, tmp_path / "out", buckets={"n": [4]}, target="ref")
    assert not (tmp_path / "out").exists()
    bundle = onnx_bridge.convert(path, tmp_path / "out", buckets={"n": [4]}, target="ref", prove="never")
    report = check_buckets(bundle, CheckRequest())
    assert not report.passed
    assert [each.passed for each in report.legs[0].comparisons] == [True, False]


def test_an_output_that_no_sum_of_sizes_describes_is_compared_too(runtime: Runtime, tmp_path: Path) -> None:
    """The last two rows are real only without padding; of one row there is only one."""
    text = "(float[n, 4] x) => (float[m, 4] y) { y = Slice(x, start, end) }"
    model = write(tmp_path / "m.onnx", text, start=np.array([-2]), end=np.array([100]))
    with pytest.raises(ParityError, match="padding changes the output y in the bucket n=8: at n=3"):
        onnx_bridge.convert(model, tmp_path / "out", buckets={"n": [2, 8]}, target="ref")


POOL = "AveragePool <kernel_shape = [2], strides = [2]>"
DIVIDED = {
    "pools": f"(float[1, 1, n] x) => (y) {{ a = {POOL} (x) y = {POOL} (a) }}",
    "windows that begin in padding": """(float[1, 1, n] x) => (y) {
        y = Conv <kernel_shape = [1], strides = [3], pads = [1, 0]> (x, w) }""",
    "rows": "(float[n, 2, 6] x) => (y) { y = Reshape(x, rows) }",
    "every second": "(float[n, 2] x) => (y) { y = Slice(x, zero, far, zero, two) }",
}


@pytest.mark.parametrize("name", DIVIDED)
def test_outputs_whose_sizes_are_no_sums(name: str, runtime: Runtime, tmp_path: Path) -> None:
    """The sizes in a few buckets do not tell what those between are; inference at all of them does.

    Of one element, a pool takes the mean; of one and padding, another one.
    """
    rows, indices = np.array([-1, 4]), {"zero": np.array([0]), "far": np.array([99]), "two": np.array([2])}
    path = write(tmp_path / "m.onnx", DIVIDED[name], w=np.ones((1, 1, 1), np.float32), rows=rows, **indices)
    bundle = onnx_bridge.convert(path, tmp_path / "out", buckets={"n": [8, 13]}, target="ref")
    assert None not in (bundle.outputs[0].shape or ())
    assert any("at n=1" in note for note in bundle.manifest.notes) == (name == "pools")
    for size in (5, 6, 8, 10, 12, 13):
        given = bundle.sample({"n": size})
        assert compare(bundle(given), Reference(path).run(given)).passed, size


def test_an_output_that_is_not_cropped_is_refused(runtime: Runtime, tmp_path: Path) -> None:
    """The last window is real in part, and its size alone would not show that."""
    pool = "MaxPool <kernel_shape = [2], strides = [2], ceil_mode = 1>"
    square = "(float[n] x) => (y) { s = Shape(x) t = Mul(s, s) y = ConstantOfShape(t) }"
    for text in (f"(float[1, 1, n] x) => (y) {{ y = {pool} (x) }}", square):
        path = write(tmp_path / "m.onnx", text)
        with pytest.raises(ParityError, match="padding changes the output y"):
            onnx_bridge.convert(path, tmp_path / "out", buckets={"n": [9]}, target="ref")


def test_outputs_that_no_input_changes_are_unproven(runtime: Runtime, tmp_path: Path) -> None:
    text = "(float[n, 2] x) => (float[n, 2] y) { a = Sigmoid(x) b = Add(a, far) y = Softmax(b) }"
    path = write(tmp_path / "m.onnx", text, far=np.array([1e3, 0], np.float32))
    bundle = onnx_bridge.convert(path, tmp_path / "out", buckets={"n": [2, 4]}, target="ref")
    assert bundle.proof.label == "unproven"
    assert onnx_bridge.check(bundle).unproven == ("y",)


EXTREMES = {
    "ReduceMax": "(float[n, 4] x) => (float[1, 4] y) { y = ReduceMax <axes = [0]> (x) }",
    "ReduceMin": "(float[n, 4] x) => (float[1, 4] y) { y = ReduceMin <axes = [0]> (x) }",
    "ArgMax": "(float[n, 4] x) => (int64[1, 4] y) { y = ArgMax <axis = 0> (x) }",
    "TopK": "(float[n, 4] x) => (float[1, 4] z, int64[1, 4] y) { z, y = TopK <axis = 0> (x, k) }",
    "GlobalMaxPool": "(float[1, 2, n] x) => (float[1, 2, 1] y) { y = GlobalMaxPool(x) }",
    "integers": "(int32[n, 4] x) => (int32[1, 4] y) { y = ReduceMax <axes = [0]> (x) }",
    "as many as true": "(float[n] x, bool[n] c) => (y) { d = Not(c) y = Compress(x, d) }",
}


@pytest.mark.parametrize("name", EXTREMES)
def test_data_of_one_sign(name: str, tmp_path: Path) -> None:
    """Padding is seldom the largest of random numbers; and sizes that the data decide may be equal by chance."""
    path = write(tmp_path / "m.onnx", EXTREMES[name], k=np.array([1]))
    with pytest.raises(ParityError, match="padding changes the output y"):
        onnx_bridge.convert(path, tmp_path / "out", buckets={"n": [16]}, target="ref")


def test_rules_of_padding(runtime: Runtime, tmp_path: Path) -> None:
    path = write(
        tmp_path / "m.onnx",
        "(float[n] x, float[n] z) => (float[1] top, float[1] sum, float[n] both) {"
        "top = ReduceMax <axes = [0]> (x) sum = ReduceSum(z) both = Add(x, z) }",
    )
    bundle = onnx_bridge.convert(path, tmp_path / "out", buckets={"n": [5]}, pad={"x": "edge"}, target="ref")
    given = {"x": np.array([-3, -2], np.float32), "z": np.array([1, 2], np.float32)}
    assert compare(bundle(given), Reference(path).run(given)).passed
    assert check_buckets(bundle, CheckRequest()).passed


@pytest.mark.parametrize(
    ("buckets", "rest", "words"),
    [
        ({"bach": [1]}, {}, "did you mean batch"),
        ({"batch": [-1]}, {}, "0 or more"),
        ({"batch": [2]}, {"dims": {"batch": 1}}, "fixed size"),
        ({"batch": []}, {}, "0 or more"),
        ({"batch": [1]}, {"pad_before": ["bach"]}, "did you mean batch"),
        ({"batch": [1]}, {"pad": {"mas": "0"}}, "did you mean mask"),
        ({"batch": [1]}, {"pad": {"mask": "much"}}, "neither a number nor edge"),
    ],
)
def test_what_cannot_be(
    made: tuple[Path, Bundle], tmp_path: Path, buckets: dict[str, list[int]], rest: Any, words: str
) -> None:
    with pytest.raises(InputError, match=words):
        onnx_bridge.convert(made[0], tmp_path / "out", buckets=buckets, target="ref", **rest)
    assert not (tmp_path / "out").exists()


def test_the_model_itself_is_not_overwritten(made: tuple[Path, Bundle]) -> None:
    before = made[0].read_bytes()
    with pytest.raises(InputError, match="overwrite the model"):
        onnx_bridge.convert(made[0], made[0].parent, buckets={"batch": [1]}, dims={"seq": 4}, target="ref")
    assert made[0].read_bytes() == before


class TestEverywhere:
    """Buckets on the command line and in batches."""

    def test_a_batch(self, made: tuple[Path, Bundle], tmp_path: Path) -> None:
        (tmp_path / "models").mkdir()
        shutil.copy(made[0], tmp_path / "models/m.onnx")
        request = job(target="ref", buckets={"batch": (1, 2), "odd": (3,)}, dims={"seq": 4}, check=True)
        outcome = convert_all([tmp_path / "models"], tmp_path / "out", request, jobs=1)
        assert [each.status for each in outcome.jobs] == ["converted"], outcome.to_json()
        assert "parity holds" in str(outcome.jobs[0].check)
        assert onnx_bridge.load(tmp_path / "out/m").manifest.dims
        assert convert_all([tmp_path / "models"], tmp_path / "out", request).jobs[0].status == "kept"
        (tmp_path / "out/m/batch=2/m.mxr").unlink()
        outcome = convert_all([tmp_path / "models"], tmp_path / "out", request, jobs=1)
        assert outcome.jobs[0].status == "converted"

    def test_verbs(self, made: tuple[Path, Bundle], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        def bridge(*arguments: object) -> str:
            sys_argv = ["onnx-bridge", *map(str, arguments)]
            with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit) as caught:
                patch.setattr("sys.argv", sys_argv)
                main.main()
            printed = capsys.readouterr()
            assert caught.value.code == 0, printed
            return printed.out

        out = tmp_path / "out"
        sizes = ("--bucket", "batch=1,2", "--bucket", "seq=4", "--pad", "mask=0", "--target", "ref")
        assert "buckets: batch=1,seq=4; batch=2,seq=4" in bridge("convert", made[0], "-o", out, *sizes)
        assert "parity holds" in bridge("check", out)
        assert json.loads(bridge("inspect", out, "--json"))["kind"] == "bundle"
        np.savez(tmp_path / "x.npz", **sample(2, 3))
        bridge("run", out, "--inputs", tmp_path / "x.npz", "-o", tmp_path / "y.npz")
        with np.load(tmp_path / "y.npz") as results:
            assert results["y"].shape == (2, 3, 8)
