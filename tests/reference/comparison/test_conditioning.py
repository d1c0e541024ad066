"""How far the reference moves when its inputs do, and which differences that explains."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from onnx_bridge.reference.comparison.compare import compare
from onnx_bridge.reference.comparison.conditioning import SEEDS, coordinate_error, explains_all, nudged
from onnx_bridge.reference.comparison.tolerances import Tolerances

Arrays = dict[str, Any]


def differing(actual: Arrays, expected: Arrays) -> list[Any]:
    return [each for each in compare(actual, expected).outputs if not each.passed]


def undetermined(found: list[Any], sample: Arrays, expected: Arrays, function: Any) -> bool:
    """Whether a function moves as far, when its inputs do, as outputs differ."""
    moved = [compare(function(nudged(sample, seed)), expected, Tolerances()) for seed in SEEDS]
    return explains_all(found, moved)


class TestNudged:
    @pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, ml_dtypes.bfloat16])
    def test_floats_move_by_one_step_up_or_down(self, dtype: Any) -> None:
        array = np.ones((64,), dtype)
        moved = nudged({"x": array}, 1)["x"]
        assert isinstance(moved, np.ndarray)
        assert moved.dtype == array.dtype
        limits: Any = ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]
        distance = np.abs(moved.astype(np.float64) - 1) / float(limits.eps)
        assert set(distance.tolist()) <= {0.5, 1.0}
        assert {-1.0, 1.0} == set(np.sign(moved.astype(np.float64) - 1).tolist())

    def test_what_is_no_float_stays(self) -> None:
        sample: Arrays = {
            "i": np.arange(3),
            "b": np.array([True]),
            "s": np.array(["a"], dtype=object),
            "none": None,
            "list": [np.arange(2), np.ones(2, np.float32)],
        }
        moved = nudged(sample, 1)
        for name in ("i", "b", "s"):
            assert moved[name] is sample[name]
        assert moved["none"] is None
        assert isinstance(moved["list"], list)
        assert (moved["list"][1] != 1).all()

    def test_seeds_decide(self) -> None:
        sample: Arrays = {"x": np.ones(64, np.float32)}
        first, again, other = (nudged(sample, seed)["x"] for seed in (1, 1, 2))
        assert np.array_equal(first, again)  # type: ignore[arg-type]
        assert not np.array_equal(first, other)  # type: ignore[arg-type]

    def test_a_coarser_unit(self) -> None:
        moved = nudged({"x": np.ones(8, np.float32)}, 1, 2.0**-7)["x"]
        assert isinstance(moved, np.ndarray)
        assert np.allclose(np.abs(moved - 1), 2.0**-7)


class TestCoordinateError:
    def test_it_is_the_slope_times_a_unit_of_the_coordinate(self) -> None:
        ramp = np.tile(np.arange(8, dtype=np.float32) * 3, (2, 1))
        error = coordinate_error(ramp, (2, 4), 1)
        assert error.dtype == np.float32
        assert np.allclose(np.abs(error), 3 * 2.0**-23 * np.arange(8), rtol=1e-6)
        assert {-1.0, 0.0, 1.0} == set(np.sign(error).ravel().tolist())

    def test_axes_that_keep_their_size_have_exact_coordinates(self) -> None:
        assert not coordinate_error(np.arange(8, dtype=np.float32).reshape(2, 4), (2, 4), 1).any()
        assert not coordinate_error(np.ones((3, 1), np.float16), (3, 5), 1).any()  # one element is no slope

    def test_what_is_not_finite_moves_by_nothing(self) -> None:
        with np.errstate(invalid="ignore"):
            error = coordinate_error(np.array([0, 1, np.inf, np.nan], np.float32), (2,), 1)
        assert np.isfinite(error).all()


class TestUndetermined:
    def judge(self, function: Any, x: Any, actual: Any) -> bool:
        expected: Arrays = {"y": function(x)}
        found = differing({"y": actual}, expected)
        assert found
        return undetermined(found, {"x": x}, expected, lambda sample: {"y": function(sample["x"])})

    def test_a_tie_of_rounding(self) -> None:
        """Half of the numbers lie on a tie, and a device may round them to either side."""
        x = np.arange(0.5, 8, dtype=np.float32)
        assert self.judge(lambda x: np.floor(x + np.float32(0.5)), x, np.floor(x))

    def test_a_choice_between_equal_values(self) -> None:
        x = np.ones((4, 8), np.float32)
        assert self.judge(lambda x: np.argmax(x, axis=1), x, np.array([3, 1, 2, 5]))

    def test_a_size_that_depends_on_a_tie(self) -> None:
        x = np.ones(8, np.float32)
        assert self.judge(lambda x: x[x >= 1], x, x[:3])

    def test_a_wrong_number_where_the_reference_stands_still(self) -> None:
        x = np.linspace(-1, 1, 64, dtype=np.float32)
        assert not self.judge(np.exp, x, np.exp(x) * np.float32(1.01))

    def test_a_wrong_number_in_every_element_beside_one_tie(self) -> None:
        """One tie among many numbers moves the largest error, and not all of them."""
        x = np.linspace(0.1, 0.4, 4096, dtype=np.float32)
        x[7] = 0.5
        assert not self.judge(lambda x: np.floor(x + np.float32(0.5)), x, np.ones_like(x))

    def test_another_shape_where_the_reference_stands_still(self) -> None:
        x = np.ones(8, np.float32)
        assert not self.judge(np.exp, x, np.exp(x)[:3])

    def test_nan_where_the_reference_has_none(self) -> None:
        x = np.arange(0.5, 8, dtype=np.float32)
        actual = np.floor(x)
        actual[0] = np.nan
        assert not self.judge(lambda x: np.floor(x + np.float32(0.5)), x, actual)

    def test_all_outputs_that_differ_are_to_be_explained(self) -> None:
        x = np.arange(0.5, 8, dtype=np.float32)

        def model(x: Any) -> Arrays:
            return {"tie": np.floor(x + np.float32(0.5)), "plain": x * 2}

        expected = model(x)
        found = differing({"tie": np.floor(x), "plain": x * 3}, expected)
        assert not undetermined(found, {"x": x}, expected, lambda sample: model(sample["x"]))
        assert undetermined(found[:1], {"x": x}, expected, lambda sample: model(sample["x"]))
