"""The share of the work on MIGraphX, where sizes are not known."""

from __future__ import annotations

import pytest

from onnx_bridge.bundle.manifest.work_share import WorkShare


@pytest.mark.parametrize(
    ("parts", "value", "bound", "text"),
    [
        ([(True, 2, 71, 0), (False, 1, 29, 0)], 0.71, "exactly", "71.0%"),
        ([(True, 2, 71, 0), (False, 1, 29, 1)], 0.71, "at most", "at most 71.0%"),
        ([(True, 2, 71, 1), (False, 1, 29, 0)], 0.71, "at least", "at least 71.0%"),
        ([(True, 2, 71, 1), (False, 1, 29, 1)], None, "unknown", "an unknown share"),
        ([(True, 2, 0, 0), (False, 2, 0, 0)], 0.5, "exactly", "50.0%"),
        ([(True, 2, 71, 3)], 1.0, "exactly", "100.0%"),
        ([(False, 2, 71, 3)], 0.0, "exactly", "0.0%"),
        ([], 1.0, "exactly", "100.0%"),
    ],
)
def test_bounds(parts: list[tuple[bool, int, int, int]], value: float | None, bound: str, text: str) -> None:
    found = WorkShare.of(parts)
    assert (found.value, found.bound, str(found)) == (value, bound, text)
    rest = WorkShare.of([(not device, *numbers) for device, *numbers in parts])
    if parts:
        assert rest.value == (None if value is None else pytest.approx(1 - value))
        assert found.rest.bound == rest.bound


def test_the_rest_is_never_negative() -> None:
    for host in range(200):
        assert "-" not in f"{WorkShare.of([(True, 1, 3**40, 0), (False, 1, host, 0)]).rest:.1%}"
