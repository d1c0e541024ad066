"""Bisection finds what it should, and with few calls."""

from __future__ import annotations

import pytest

from onnx_bridge.core.delta_debug import bisect_first, minimal_interval


class TestBisectFirst:
    @pytest.mark.parametrize("at", [1, 2, 17, 999, 1000])
    def test_finds_the_first_index(self, at: int) -> None:
        asked: list[int] = []
        assert bisect_first(range(1, 1001), lambda count: bool(asked.append(count)) or count >= at) == at
        assert len(asked) <= 10


class TestMinimalInterval:
    @pytest.mark.parametrize("at", [0, 1, 499, 500, 998, 999])
    def test_one_item_of_a_thousand_takes_eleven_calls(self, at: int) -> None:
        asked: list[tuple[int, int]] = []

        def fails(start: int, stop: int) -> bool:
            asked.append((start, stop))
            return start <= at < stop

        assert minimal_interval(1000, fails) == (at, at + 1)
        assert len(asked) <= 11

    @pytest.mark.parametrize("group", [{3, 4}, {496, 503}, {0, 7}, {998, 999}, {511, 512, 513}])
    def test_neighbours_that_fail_together(self, group: set[int]) -> None:
        found = minimal_interval(1000, lambda start, stop: group <= set(range(start, stop)))
        assert found == (min(group), max(group) + 1)

    def test_distant_items_that_fail_together(self) -> None:
        assert minimal_interval(1000, lambda start, stop: start <= 20 and stop > 900) == (20, 901)

    def test_where_an_interval_is_undecided_one_that_begins_at_0_is_tried(self) -> None:
        def fails(start: int, stop: int) -> bool | None:
            return None if 0 < start <= 50 else start <= 30 < stop

        start, stop = minimal_interval(100, fails)
        assert start <= 30 < stop

    def test_a_failure_of_the_whole_only(self) -> None:
        assert minimal_interval(100, lambda start, stop: (start, stop) == (0, 100)) == (0, 100)
