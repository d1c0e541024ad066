"""The inputs of a model, samples generated for them, and their validation."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest

from fixtures.models import grouped_query
from onnx_bridge.core.errors import InputError
from onnx_bridge.core.values import Kind
from onnx_bridge.model import io
from onnx_bridge.reference.reference import Reference
from onnx_bridge.samples import files, inputs
from onnx_bridge.samples.inputs import TensorSpec
from onnx_bridge.samples.roles import Data, Mask

HEAD = '<ir_version: 10, opset_import: ["": 21, "com.microsoft": 1]>\n'


FLOATS = [-0.2647657096385956, 0.366781622171402, -1.5802161693572998]
LAST = [0.4449585974216461, 0.5215762853622437, -0.8916351199150085]
INTEGERS = [1, 6, 3]
BYTES = [169, 180, 140]


def model(text: str, **initializers: np.ndarray) -> ir.Model:
    return ir.from_onnx_text(HEAD + text, [ir.tensor(array, name=name) for name, array in initializers.items()])


def generated(text: str, dims: dict[str, int] | None = None, **initializers: np.ndarray) -> dict[str, np.ndarray]:
    """One generated sample, which ONNX Runtime must be able to run."""
    made = model(text, **initializers)
    (sample,) = inputs.generate(made, dims=dims)
    Reference(made).run(sample)
    return sample


def spec(dtype: object, *shape: int | str | None, name: str = "x") -> TensorSpec:
    return TensorSpec(name, np.dtype(dtype), shape)  # type: ignore[call-overload]


def test_specs_are_the_inputs_without_a_default() -> None:
    found = inputs.specs(
        model("g (float[N, 3, ?] x, float[3] w, int8 s) => (float[N, 3, K] y) { y = Identity(x) }", w=np.ones(3, "f4"))
    )
    assert [(each.name, each.dtype, each.shape) for each in found] == [
        ("x", np.float32, ("N", 3, None)),
        ("s", np.int8, ()),
    ]


@pytest.mark.parametrize("kind", ["seq(seq(float))", "sparse_tensor(float[2])"])
def test_inputs_that_are_neither_tensors_nor_sequences_are_rejected(kind: str) -> None:
    with pytest.raises(InputError, match="input 'x': is .*only tensors and sequences can be fed"):
        inputs.specs(model(f"g ({kind} x) => ({kind} y) {{ y = Identity(x) }}"))


SEQUENCES = {
    "seq(float[2, ?])": Kind.SEQUENCE,
    "optional(float[2, ?])": Kind.OPTIONAL,
    "optional(seq(float[2, ?]))": Kind.OPTIONAL_SEQUENCE,
}


class TestSequencesAndOptionals:
    @pytest.mark.parametrize(("text", "kind"), SEQUENCES.items())
    def test_are_made_and_fit(self, text: str, kind: Kind) -> None:
        made = model(f"g ({text} x) => ({text} y) {{ y = Identity(x) }}")
        (found,) = inputs.specs(made)
        assert (found.kind, found.dtype, found.shape) == (kind, np.float32, (2, None))
        (sample,) = inputs.generate(made)
        assert inputs.validate(sample, made).keys() == {"x"}
        arrays = sample["x"] if kind.sequence else [sample["x"]]
        assert [array.shape for array in arrays] == [(2, 1)] * len(arrays)
        assert len({array.tobytes() for array in arrays}) == (2 if kind.sequence else 1)
        Reference(made).run(sample)

    def test_arrays_of_a_sequence_may_differ_in_size(self) -> None:
        one = TensorSpec("x", np.dtype("f4"), (2, "N"), kind=Kind.SEQUENCE)
        arrays = [np.zeros((2, 1), "f4"), np.zeros((2, 5), "f4")]
        assert inputs.validate({"x": arrays}, [one])["x"] == arrays
        assert inputs.validate({"x": []}, [one])["x"] == []

    @pytest.mark.parametrize(
        ("value", "kind", "says"),
        [
            (None, Kind.SEQUENCE, r"is None, the model takes a sequence.*give a list of float32\[2\] arrays"),
            (np.zeros((3, 2), "f4"), Kind.SEQUENCE, "is a ndarray, the model takes a sequence"),
            ([np.zeros(2, "f8")], Kind.OPTIONAL_SEQUENCE, "is float64, the model takes float32"),
            ([np.zeros(3, "f4")], Kind.SEQUENCE, r"the shape is \[3\]"),
            (None, Kind.TENSOR, "the model takes float32"),
        ],
    )
    def test_invalid_values(self, value: object, kind: Kind, says: str) -> None:
        with pytest.raises(InputError, match=says):
            inputs.validate({"x": value}, [TensorSpec("x", np.dtype("f4"), (2,), kind=kind)])

    def test_missing_inputs(self) -> None:
        with pytest.raises(InputError, match=r"is missing.*give a list of float32\[2\] arrays, or None"):
            inputs.validate({}, [TensorSpec("x", np.dtype("f4"), (2,), kind=Kind.OPTIONAL_SEQUENCE)])

    def test_from_npz(self, tmp_path: Path) -> None:
        wanted = [
            TensorSpec("s", np.dtype("f4"), None, kind=Kind.SEQUENCE),
            TensorSpec("t", np.dtype("f4"), None, kind=Kind.OPTIONAL_SEQUENCE),
            TensorSpec("o", np.dtype("f4"), None, kind=Kind.OPTIONAL),
            TensorSpec("p", np.dtype(ml_dtypes.bfloat16), None, kind=Kind.OPTIONAL),
        ]
        items = {f"s[{index}]": np.full(index, index, "f4") for index in range(11)}
        np.savez(tmp_path / "x.npz", p=np.ones(2, ml_dtypes.bfloat16), **items)
        (sample,) = files.load(tmp_path / "x.npz", wanted)
        assert [len(array) for array in sample["s"]] == list(range(11))
        assert (sample["t"], sample["o"]) == (None, None)
        assert sample["p"].dtype == ml_dtypes.bfloat16

    def test_from_protos(self, tmp_path: Path) -> None:
        arrays = [np.ones(2, np.float32), np.zeros((1, 2), np.float32)]
        sequence = onnx.numpy_helper.from_list(arrays)
        whole = onnx.numpy_helper.from_optional(arrays)
        missing = onnx.OptionalProto(elem_type=onnx.OptionalProto.TENSOR)
        for index, proto in enumerate([sequence, whole, missing]):
            (tmp_path / f"input_{index}.pb").write_bytes(proto.SerializeToString())
        kinds = [Kind.SEQUENCE, Kind.OPTIONAL_SEQUENCE, Kind.OPTIONAL]
        wanted = [TensorSpec(name, np.dtype("f4"), None, kind=kind) for name, kind in zip("abc", kinds, strict=True)]
        (sample,) = files.load(tmp_path, wanted)
        for name in "ab":
            for array, right in zip(sample[name], arrays, strict=True):
                np.testing.assert_array_equal(array, right)
        assert sample["c"] is None


# ---- generated values


def test_the_same_seed_gives_the_same_bytes_everywhere() -> None:
    """Exact values: numpy's version and the machine must not matter."""
    (sample,) = inputs.generate([spec("f4", 3), spec("i8", 3, name="n"), spec("u1", 3, name="u")], seed=1)
    assert sample["x"].tolist() == FLOATS
    (large,) = inputs.generate([spec("f4", 50_000)], seed=1)
    assert large["x"][:3].tolist() == FLOATS
    assert large["x"][-3:].tolist() == LAST
    assert sample["n"].tolist() == INTEGERS
    assert sample["u"].tolist() == BYTES


def test_samples_seeds_and_names_differ_and_nothing_else_matters() -> None:
    one, other = spec("f4", 50), spec("f4", 50, name="z")
    first, second = inputs.generate([one, other], seed=3, samples=2)
    assert not np.array_equal(first["x"], second["x"])
    assert not np.array_equal(first["x"], first["z"])
    assert not np.array_equal(first["x"], inputs.generate([one], seed=4)[0]["x"])
    np.testing.assert_array_equal(second["x"], inputs.generate([other, one], seed=3, samples=9)[1]["x"])


@pytest.mark.parametrize("shape", [(), (3, 0), (4, 5)], ids=str)
@pytest.mark.parametrize("element", [each for each in ir.DataType if each != ir.DataType.UNDEFINED], ids=str)
def test_every_dtype_and_shape(element: ir.DataType, shape: tuple[int, ...]) -> None:
    (sample,) = inputs.generate([spec(element.numpy(), *shape)])
    array = sample["x"]
    assert isinstance(array, np.ndarray)
    assert (array.dtype, array.shape) == (element.numpy(), shape)
    if element.is_floating_point():
        assert np.isfinite(array.astype(np.float32)).all()
    if element.is_string():
        assert all(isinstance(word, str) for word in array.reshape(-1).tolist())


def test_floats_are_normal_and_bytes_cover_their_range() -> None:
    (sample,) = inputs.generate([spec("f4", 100_000), spec("u1", 5000, name="u"), spec("i1", 5000, name="i")])
    x = sample["x"]
    assert abs(x.mean()) < 0.02
    assert x.std() == pytest.approx(1, abs=0.02)
    assert np.abs(x).max() < 3.47
    assert (sample["u"].min(), sample["u"].max()) == (0, 255)
    assert (sample["i"].min(), sample["i"].max()) == (-128, 127)


def test_token_ids_stay_below_the_rows_of_their_embedding() -> None:
    ids = generated(
        """g (int32[2, S] tokens, int32[2, S] kinds) => (float[2, K, 4] y) {
            wide = Cast <to = 7> (tokens)
            flat = Flatten <axis = 0> (wide)
            line = Reshape (flat, shape)
            sum = Concat <axis = 0> (line, line)
            a = Gather <axis = 0> (table, sum)
            b = Gather <axis = 0> (small, kinds)
            half = Reshape (a, halves)
            y = Identity (half)
        }""",
        dims={"S": 300},
        shape=np.array([-1]),
        halves=np.array([2, -1, 4]),
        table=np.zeros((50, 4), "f4"),
        small=np.zeros((2, 4), "f4"),
    )
    assert set(ids["tokens"].reshape(-1).tolist()) == set(range(50))
    assert set(ids["kinds"].reshape(-1).tolist()) == {0, 1}


def test_an_offset_before_the_embedding_shortens_the_range() -> None:
    """As OPT adds 2 to its positions, and as exporters wrap negative indices."""
    text = "g (int64[400] i) => (float[400, 1] y) {{ {} y = Gather(table, j) }}"
    table = np.zeros((10, 1), "f4")
    shifted = generated(text.format("j = Add(i, c)"), table=table, c=np.array(2))["i"]
    assert (shifted.min(), shifted.max()) == (0, 7)
    wrap = "zero = Sub(c, c) n = Less(i, zero) k = Add(i, c) j = Where(n, k, i)"
    wrapped = generated(text.format(wrap), table=table, c=np.array(10))["i"]
    assert (wrapped.min(), wrapped.max()) == (0, 9)


@pytest.mark.parametrize(
    ("text", "high"),
    [
        ("g (float[4, 6] x, int64[4, 40] i) => (float[4, 40] y) { y = GatherElements <axis = 1> (x, i) }", 6),
        ("g (float[N, 6] x, int64[40] i) => (float[40, 6] y) { y = Gather(x, i) }", 5),
        ("g (float[5, 3, 2] x, int64[40, 2] i) => (float[40, 2] y) { y = GatherND(x, i) }", 3),
        ("g (float[5, 9] x, int64[40, 1] i, float[40, 9] u) => (float[5, 9] y) { y = ScatterND(x, i, u) }", 5),
        ("g (int64[40] i, float[2] v) => (float[40, 7] y) { y = OneHot <axis = -1> (i, d, v) }", 7),
    ],
    ids=["elements", "symbolic", "tuples", "scatter", "one-hot"],
)
def test_indices_stay_within_what_they_index(text: str, high: int) -> None:
    dims = {"N": 5} if "[N" in text else None
    index = generated(text, dims=dims, **({"d": np.array(7)} if "OneHot" in text else {}))["i"]
    assert (index.min(), index.max()) == (0, high - 1)


def test_a_detector_that_selects_its_best_boxes() -> None:
    """Boxes and labels picked through TopK and Gather: all indices are the graph's own, floats are floats."""
    sample = generated(
        """g (float[1, 100, 4] boxes, float[1, 100] scores, int64[1] k, int64[1, 5] order) => (float[1, 5, 4] y) {
            best, places = TopK (scores, k)
            rows = Unsqueeze (order, last)
            wide = Expand (rows, shape)
            y = GatherElements <axis = 1> (boxes, wide)
        }""",
        last=np.array([-1]),
        shape=np.array([1, 5, 4]),
    )
    assert 1 <= sample["k"][0] <= 100
    assert 0 <= sample["order"].min() <= sample["order"].max() < 100


@pytest.mark.parametrize(
    "declared",
    [
        "int64[4, 9] attention_mask",
        "bool[4, 9] mask",
        "float[4, 9] key_padding_mask",
        "int64[4, 9] keep",
        "int32[4, 9] valid",
    ],
)
def test_masks_are_ones_then_zeros(declared: str) -> None:
    name = declared.split()[-1]
    body = f"f = Cast <to = 1> ({name}) y = Sub(one, f)" if name == "keep" else f"y = Cast <to = 9> ({name})"
    kind = "float" if name == "keep" else "bool"
    mask = generated(f"g ({declared}) => ({kind}[4, 9] y) <float one = {{1}}> {{ {body} }}")[name].astype(int)
    assert set(np.unique(mask)) <= {0, 1}
    assert (mask[:, 0] == 1).all()
    assert (np.diff(mask, axis=1) <= 0).all()
    assert mask.sum() < mask.size


def test_positions_count_and_wrap() -> None:
    text = "g (int64[2, S] position_ids) => (float[2, S, 1] y) { y = Gather(table, position_ids) }"
    assert generated(text, {"S": 6}, table=np.zeros((4, 1), "f4"))["position_ids"].tolist() == [[0, 1, 2, 3, 0, 1]] * 2


def test_lengths_stay_within_the_sequence() -> None:
    sample = generated(
        """g (float[T, 3, 2] x, int32[3] n) => (float[T, 1, 3, 4] y) {
            y = GRU <hidden_size = 4> (x, w, r, , n)
        }""",
        {"T": 5},
        w=np.zeros((1, 12, 2), "f4"),
        r=np.zeros((1, 12, 4), "f4"),
    )
    assert 1 <= sample["n"].min() <= sample["n"].max() <= 5
    by_name = inputs.generate(
        model("g (float[B, T] audio, int64[B] audio_lengths) => (float[B, T] y) { y = Neg(audio) }"),
        dims={"B": 200, "T": 3},
    )[0]
    assert set(by_name["audio_lengths"].tolist()) == {1, 2, 3}


@pytest.mark.parametrize(
    "text",
    [
        "g (float[3, 4] x, int64[2] s) => (float[A, B] y) { y = Reshape(x, s) }",
        "g (float[3, 4] x, int64[1] a, int64[1] b, int64[1] i, int64[1] k) => (float[] y) { y = Slice(x, a, b, i, k) }",
        "g (float[3, 4] x, int64[2] s) => (float[3, 4] y) { y = Expand(x, s) }",
        "g (float[3, 4] x, int64[2] s) => (float[A, B] y) { y = Tile(x, s) }",
        "g (float[3, 4] x, int64[4] s) => (float[A, B] y) { y = Pad(x, s) }",
        "g (float[3, 4] x, int64[2] s) => (float[A, B, C, D] y) { y = Unsqueeze(x, s) }",
        "g (float[3, 4] x, int64[1] s) => (float[A, B] y) { y = ReduceLogSumExp(x, s) }",
        "g (float[3, 4] x, float[2] s) => (float[A, B] y) { y = Resize(x, , s) }",
        "g (float[9, 4] x, int64[9] s) => (float y) { y = SoftmaxCrossEntropyLoss(x, s) }",
        "g (int64 a, int64 b, int64 c) => (int64[N] y) { y = Range(a, b, c) }",
        "g (int64[5] x, int64[5] by) => (int64[5] y) { y = Div(x, by) }",
        "g (int64[5] x, int64[5] by) => (int64[5] y) { y = Mod(x, by) }",
        "g (int64[1] batch, float[2] x) => (float[A, 2] y) { s = Concat <axis = 0> (batch, c) y = Reshape(x, s) }",
        "g (string[2] x) => (string[2] y) { y = Identity(x) }",
    ],
)
def test_shapes_axes_and_divisors_can_be_run(text: str) -> None:
    assert generated(text, **({"c": np.array([2])} if "batch" in text else {}))


def test_floats_stay_where_their_function_is_defined() -> None:
    made = model("g (float[99] x, float[99] z) => (float[99] y, float[99] w) { y = Log(x) w = Atanh(z) }")
    outputs = Reference(made).run(inputs.generate(made)[0])
    assert all(np.isfinite(array).all() for array in outputs.values())


@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize(("element", "dtype"), [(ir.DataType.FLOAT, "float32"), (ir.DataType.INT64, "int64")])
@pytest.mark.parametrize("thresholds", [[np.nan, np.inf, -np.inf], [3e38, -3e38, 0.0]], ids=["not finite", "large"])
def test_features_of_trees_are_finite_whatever_their_thresholds(
    thresholds: list[float], element: ir.DataType, dtype: str
) -> None:
    x = ir.Value(name="x", type=ir.TensorType(element), shape=ir.Shape([64, 2]))
    attributes = {"nodes_featureids": [1, 1, 1], "nodes_values": thresholds}
    node = ir.node("TreeEnsembleRegressor", [x], attributes, domain="ai.onnx.ml")
    graph = ir.Graph([x], node.outputs, nodes=[node], opset_imports={"": 17, "ai.onnx.ml": 3}, name="g")
    (sample,) = inputs.generate(ir.Model(graph, ir_version=10))
    assert sample["x"].dtype == dtype
    assert np.isfinite(sample["x"]).all()


def test_dropout_stays_off() -> None:
    text = "g (float[5] x, bool t) => (float[5] y) { y = Dropout(x, r, t) }"
    assert not generated(text, r=np.array(0.5, "f4"))["t"]


def test_captures_of_subgraphs_are_followed() -> None:
    sample = generated(
        """g (bool c, int64[50] i) => (float[50] y) <float[3] table = {0, 0, 0}> {
            y = If (c) <then_branch = a () => (float[50] p) { p = Gather(table, i) },
                        else_branch = b () => (float[50] q) { q = Gather(table, i) }>
        }"""
    )
    assert set(sample["i"].tolist()) == {0, 1, 2}


@pytest.mark.parametrize("exporter", ["dynamo", "torchscript"])
def test_exported_bert(exported: Callable[..., Path], exporter: str) -> None:
    path = exported("bert", exporter=exporter, dynamic_batch=True)
    samples = inputs.generate(ir.load(path), samples=3, dims={"batch": 4})
    ids = np.stack([sample["input_ids"] for sample in samples])
    assert ids.shape == (3, 4, 16)
    assert 0 <= ids.min() < 100
    assert 900 < ids.max() < 1000
    mask = np.stack([sample["attention_mask"] for sample in samples])
    assert (mask[..., 0] == 1).all()
    assert (np.diff(mask, axis=-1) <= 0).all()
    for sample in samples:
        (output,) = Reference(path).run(sample).values()
        assert output.shape == (4, 16, 64)
        assert np.isfinite(output).all()


def test_exported_vit(exported: Callable[..., Path]) -> None:
    path = exported("vit")
    (sample,) = inputs.generate(ir.load(path))
    assert sample["pixel_values"].shape == (2, 3, 32, 32)
    assert np.isfinite(Reference(path).run(sample)["output"]).all()


# ---- dimensions


def test_symbols_are_one_unless_given_and_the_same_everywhere() -> None:
    wanted = [spec("f4", "batch", "past + seq", None), spec("f4", "batch", "seq", name="z")]
    shapes = [{name: array.shape for name, array in inputs.generate(wanted, dims=dims)[0].items()} for dims in SIZES]
    assert shapes == [{"x": (1, 2, 1), "z": (1, 1)}, {"x": (2, 7, 1), "z": (2, 4)}]


SIZES: list[dict[str, int]] = [{}, {"batch": 2, "past": 3, "seq": 4}]


def test_a_symbol_may_be_any_text() -> None:
    (sample,) = inputs.generate([spec("f4", "batch size", "?")], dims={"batch size": 3})
    assert sample["x"].shape == (3, 1)


@pytest.mark.parametrize(
    ("dims", "says"),
    [
        ({"bach": 2}, "dimension 'bach': inputs have no such dimension .*did you mean batch?"),
        ({"batch": -1}, "dimension 'batch': the size is -1"),
        ({"batch": 3}, "'batch/2' is not an integer.*choose other sizes for batch"),
    ],
)
def test_invalid_dimensions(dims: dict[str, int], says: str) -> None:
    with pytest.raises(InputError, match=says):
        inputs.generate([spec("f4", "batch", "batch/2")], dims=dims)


def test_an_unknown_rank_is_an_error() -> None:
    with pytest.raises(InputError, match="input 'x': the rank is unknown.*give inputs from a file"):
        inputs.generate([TensorSpec("x", np.dtype("f4"), None)])
    with pytest.raises(InputError, match="seed is -1"):
        inputs.generate([], seed=-1)


# ---- validation


def test_an_array_without_its_name_is_an_error() -> None:
    with pytest.raises(InputError) as raised:
        inputs.validate(np.zeros(4, "f4"), [spec("f4", 4)])  # type: ignore[arg-type]
    assert "'x'" in str(raised.value.hint)


def test_a_sample_that_fits_comes_back_in_the_order_of_the_model() -> None:
    wanted = [spec("f4", "N"), spec("O", 2, name="t"), spec("i8", name="n")]
    checked = inputs.validate({"n": 3, "t": ["a", b"b"], "x": np.zeros(4, "f4")}, wanted)
    assert list(checked) == ["x", "t", "n"]
    assert checked["t"].tolist() == ["a", "b"]
    assert (checked["n"].dtype, checked["n"].shape) == (np.int64, ())


@pytest.mark.parametrize(
    ("sample", "says"),
    [
        ({}, r"input 'x': the input is missing \(give a float32\[N, 3\] array\)"),
        ({"x": np.zeros((1, 3), "f4")}, "input 'mask': the input is missing"),
        ({"X": 1}, r"input 'X': the model has no such input \(did you mean x\?|the inputs are x, mask"),
        ({"musk": 1}, r"input 'musk': the model has no such input \(did you mean mask\?\)"),
        ({"x": np.zeros((1, 3))}, r"input 'x': is float64, the model takes float32 .*astype\(float32\)"),
        ({"x": np.zeros((1, 3), "i4")}, "input 'x': is int32, the model takes float32"),
        (
            {"x": np.zeros((1, 4), "f4")},
            r"'x': the shape is \[1, 4\] \(the model takes float32\[N, 3\].*`buckets=",
        ),
        ({"x": np.zeros(3, "f4")}, r"input 'x': the shape is \[3\] \(the model takes"),
        (
            {"x": np.zeros((1, 3), "f4"), "mask": np.ones((2, 2), "i4")},
            r"input 'mask': the shape is \[2, 2\], where 'N' is 2 \('N' is 1 in input 'x'\)",
        ),
        (
            {"x": np.zeros((2, 3), "f4"), "mask": np.ones((2, 3), "i4")},
            r"input 'mask': the shape is \[2, 3\], where 'N \+ 2' is 3 \('N \+ 2' should be 4\)",
        ),
        (
            {"x": np.zeros((1, 3), "f4"), "mask": [[1, 1]]},
            r"input 'mask': is int64, the model takes int32 .*astype\(int32\)",
        ),
    ],
)
def test_a_sample_that_does_not_fit(sample: dict[str, object], says: str) -> None:
    with pytest.raises(InputError, match=says):
        inputs.validate(sample, [spec("f4", "N", 3), spec("i4", "N", "N + 2", name="mask")])


def test_dtypes_beyond_numpy_are_named_with_their_package() -> None:
    with pytest.raises(InputError, match=r"takes bfloat16 .*astype\(ml_dtypes\.bfloat16\)"):
        inputs.validate({"x": np.zeros(1, "f4")}, [spec(ml_dtypes.bfloat16, 1)])
    with pytest.raises(InputError, match=r"is int64, the model takes string \(give strings\)"):
        inputs.validate({"x": [1]}, [spec("O", 1)])


def test_roles_are_plain_data() -> None:
    found = inputs.specs(model("g (int64[2] mask, float[2] x) => (float[2] y) { y = Neg(x) }"))
    assert [each.role for each in found] == [Mask(), Data()]


def test_a_mask_that_attention_counts(tmp_path: Path) -> None:
    """It has a one for each new token, at least."""
    made = io.load(grouped_query.build(tmp_path / "model.onnx"))
    dims = {"sequence_length": 40, "total_sequence_length": 48}
    masks = [sample["attention_mask"] for sample in inputs.generate(made, samples=20, dims=dims)]
    assert {int(mask.sum()) >= 40 for mask in masks} == {True}


@pytest.mark.parametrize(("opset", "lengths", "batch"), [(8, '"", ', "1, "), (9, "", "")])
def test_indices_in_the_body_of_a_scan(opset: int, lengths: str, batch: str) -> None:
    """Before opset 9 a Scan's first input, the lengths, is none of its body's."""
    body = "g (int64[2] i) => (float[2] r) { r = Gather(w, i) }"
    made = ir.from_onnx_text(
        HEAD.replace("21", str(opset)) + f"g (int64[{batch}3, 2] x) => (float[{batch}3, 2] y) <float[2] w = {{1, 2}}>"
        f" {{ y = Scan <num_scan_inputs = 1, body = {body}> ({lengths}x) }}"
    )
    (sample,) = inputs.generate(made, seed=3)
    assert set(sample["x"].flat) <= {0, 1}
    Reference(made).run(sample)
