"""The sizes of all dimensions in each bucket: what follows, what is tied, what is impossible."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import onnx_ir as ir
import pytest

from fixtures.models.decoder import decoder
from onnx_bridge.bundle.manifest.axes import Axis, fitted, inside
from onnx_bridge.conversion.sizes.buckets import BucketSizes
from onnx_bridge.conversion.sizes.output_sizes import output_axes
from onnx_bridge.core.errors import InputError
from onnx_bridge.requests.conversion import ConvertRequest
from tests.passes.helpers import tiny

PAST, NEW, TOTAL = "past_sequence_length", "sequence_length", "total_sequence_length"


def sizes(model: ir.Model, buckets: dict[str, tuple[int, ...]], **rest: Any) -> BucketSizes:
    return BucketSizes.of(model, ConvertRequest(buckets=buckets, **{"dim_default": 1, **rest}), runs)


def runs(shapes: Mapping[str, tuple[int, ...]]) -> str | None:
    """Return what ONNX Runtime says of a decoder: the mask has an element for each key."""
    keys = shapes["past_key_values_0_key"][2] + shapes["input_ids"][1]
    return None if shapes["attention_mask"][1] == keys else f"And: {shapes['attention_mask'][1]} by {keys}"


def axes(found: BucketSizes, model: ir.Model, name: str) -> tuple[Axis, ...] | None:
    return found.axes(next(value for value in model.graph.inputs if value.name == name))


@pytest.mark.parametrize("total", [f"{PAST} + {NEW}", TOTAL])
def test_a_mask_follows_from_lengths_of_which_one_is_fixed(total: str) -> None:
    model = ir.from_proto(decoder(total=total))
    found = sizes(model, {PAST: (7, 15, 31)})
    assert found.buckets == ({PAST: 7}, {PAST: 15}, {PAST: 31})
    assert axes(found, model, "attention_mask") == (1, f"{PAST} + 1")
    request = found.request_of(model, {PAST: 15}, ConvertRequest(buckets={PAST: (7, 15, 31)}))
    assert request.dims[PAST] == 15
    assert request.dims.get(total, 16) == 16
    assert not request.buckets


def test_a_mask_follows_from_two_lengths_with_buckets() -> None:
    model = ir.from_proto(decoder(total=TOTAL))
    found = sizes(model, {PAST: (4, 8), NEW: (1, 4)})
    assert len(found.buckets) == 4
    assert axes(found, model, "attention_mask") == (1, f"{PAST} + {NEW}")


@pytest.mark.parametrize("text", [f"{PAST}+1", f"{PAST} + {NEW}", f"{NEW}+{PAST}"])
def test_a_dimension_that_is_tied(text: str) -> None:
    model = ir.from_proto(decoder(total="mask_length"))
    found = sizes(model, {PAST: (7, 15)}, ties={"mask_length": text})
    assert found.buckets == ({PAST: 7}, {PAST: 15})
    assert axes(found, model, "attention_mask") == (1, f"{PAST} + 1")


@pytest.mark.parametrize("total", [TOTAL, "mask_length"])
def test_impossible_combinations_are_left_out(total: str) -> None:
    """Of nine three are possible, in which one length follows from the other."""
    model = ir.from_proto(decoder(total=total))
    found = sizes(model, {PAST: (7, 15, 31), total: (8, 16, 32)})
    assert found.buckets == ({PAST: 7}, {PAST: 15}, {PAST: 31})
    assert len(found.left_out) == 6
    assert f"{PAST}=7,{total}=16 is left out" in " ".join(found.left_out)
    assert axes(found, model, "attention_mask") == (1, f"{PAST} + 1")


def test_a_mask_whose_length_nothing_says_is_to_be_tied() -> None:
    with pytest.raises(InputError, match=f"{PAST}=7: And: 1 by 8"):
        sizes(ir.from_proto(decoder(total="mask_length")), {PAST: (7, 15)})


def test_sizes_that_inference_refutes_are_left_out() -> None:
    model = tiny("(float[a, 3] x, float[b, 3] y) => (float[c, d] z) { z = Add(x, y) }")
    found = BucketSizes.of(model, ConvertRequest(buckets={"a": (2, 4), "b": (2, 4)}), lambda shapes: None)
    assert found.buckets == ({"a": 2}, {"a": 4})
    assert "Add" in found.left_out[0]


def test_combinations_that_the_reference_refuses_are_left_out() -> None:
    model = tiny("(float[a, 3] x, float[b, 3] y) => (float[a, 3] z, float[b, 3] w) { z = Neg(x) w = Neg(y) }")

    def alike(shapes: Any) -> str | None:
        return "it cannot" if shapes["x"][0] != shapes["y"][0] else None

    found = BucketSizes.of(model, ConvertRequest(buckets={"a": (2, 4), "b": (2, 4)}), alike)
    assert found.buckets == ({"a": 2}, {"a": 4})
    assert found.follows == {"b": "a"}


def test_a_sequence_is_asked_for_and_a_batch_is_one() -> None:
    model = ir.from_proto(decoder())
    with pytest.raises(InputError, match="`dims={'sequence_length': 128}`"):
        sizes(model, {PAST: (4, 8)}, dim_default=None)
    found = sizes(model, {PAST: (4, 8)}, dims={NEW: 2}, dim_default=None)
    assert {name for dims in found.chosen.values() for name in dims} == {"batch_size"}


def test_nothing_is_left_out_of_what_does_not_depend_on_each_other() -> None:
    model = ir.from_proto(decoder())
    found = sizes(model, {"batch_size": (1, 2), PAST: (4, 8)}, dims={NEW: 1})
    assert [tuple(each.values()) for each in found.buckets] == [(1, 4), (1, 8), (2, 4), (2, 8)]
    assert (found.fixed[NEW], found.left_out) == (1, ())


@pytest.mark.parametrize(
    ("rest", "words"),
    [
        ({"ties": {"mask_length": "pst + 1"}}, "no input has a dimension pst"),
        ({"ties": {"mask": f"{PAST} + 1"}}, "no input has a dimension mask"),
        ({"ties": {"mask_length": "mask_length + 1"}}, "depends on mask_length itself"),
        ({"ties": {"mask_length": f"{PAST} + 1"}, "dims": {"mask_length": 3}}, "has sizes as well"),
        ({"ties": {"mask_length": f"{PAST} + 2"}}, "no combination of sizes is possible"),
        ({"ties": {"mask_length": f"{PAST} / 4"}}, "no combination of sizes is possible"),
        ({"dims": {"mask_length": 3}}, "no combination of sizes is possible"),
    ],
)
def test_what_cannot_be(rest: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        sizes(ir.from_proto(decoder(total="mask_length")), {PAST: (7, 15)}, **rest)


def test_the_smallest_sizes_inside_of_a_bucket() -> None:
    buckets = [{"n": 1, "m": 4}, {"n": 1, "m": 8}, {"n": 4, "m": 8}]
    assert [inside(each, buckets) for each in buckets] == [{"n": 1, "m": 2}, {"n": 1, "m": 5}, {"n": 2, "m": 5}]


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([3, 3, 3], 3),
        ([1, 1, 2], "n"),
        ([5, 9, 5], "m + 1"),
        ([0, 0, 1], "n - 1"),
        ([5, 9, 6], "n + m"),
        ([7, 11, 8], "n + m + 2"),
        ([4, 9, 1], None),
    ],
)
def test_what_a_size_follows(sizes: list[int], expected: Axis) -> None:
    assert fitted([{"n": 1, "m": 4}, {"n": 1, "m": 8}, {"n": 2, "m": 4}], sizes) == expected


def test_two_that_are_always_alike_are_none() -> None:
    assert fitted([{"n": 1, "m": 1}, {"n": 2, "m": 2}], [1, 2]) is None


def test_outputs_follow_what_they_agree_with() -> None:
    points = [{"n": n, "m": m} for n, m in ((1, 4), (1, 8), (2, 4))]
    shapes = [(1, 4, 7, 3, 5), (1, 8, 7, 3, 9), (2, 4, 7, 3, 7)]
    observed = list(zip(points, shapes, strict=True))
    assert output_axes([(None, None, None, "odd", None)], observed) == ("n", "m", 7, 3, None)
    assert output_axes([("m", "n", 7, 3, None)], observed) == ("n", "m", 7, 3, None)
    assert output_axes([None], [*observed[:2], ({"n": 2, "m": 4}, (2, 4, 7, 3, None))])[-1] is None
