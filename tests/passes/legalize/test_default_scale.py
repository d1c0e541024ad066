"""The scale of attention whose heads have no size, as broken models declare."""

from __future__ import annotations

import pytest

from passes.builders.attention import default_scale


@pytest.mark.parametrize(("size", "scale"), [(0, 1.0), (1, 1.0), (64, 0.125)])
def test_of_a_size(size: int, scale: float) -> None:
    assert default_scale(size) == scale
