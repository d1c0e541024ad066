"""tile-old-broadcast: broadcasting along an axis in opset 6, and the slopes of PRelu by channel."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from passes.legalize.math.old_broadcast import tile_old_broadcast
from passes.rewriting.base import Context
from tests.passes.device import Device
from tests.passes.harness import run
from tests.passes.legalize.one_node import Case, agree, case, normal, skipped

NUMPY = {"Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Div": np.divide}


def tiled(source: Case, expected: np.ndarray, device: Device | None = None) -> None:
    """Neither ONNX Runtime nor ONNX's reference supports opset 6; without broadcasting it is equivalent to 13."""
    model = source.model
    assert tile_old_broadcast.run(model, Context()).rewrites
    assert not tile_old_broadcast.run(model, Context()).rewrites
    after = ir.to_proto(model)
    onnx.checker.check_model(after, full_check=True)
    assert not any(node.attribute for node in after.graph.node)
    newer = onnx.ModelProto()
    newer.CopyFrom(after)
    newer.opset_import[0].version = 13
    agree(next(iter(run(newer, source.feeds).values())), expected, 1e-6, 1e-6)
    if device is not None:
        agree(device.run(after, source.feeds)[0], expected, 1e-6, 1e-6)


@pytest.mark.parametrize(
    ("shape", "axis", "reshaped"),
    [
        ((3,), 1, (3, 1, 1)),
        ((3, 4), 1, (3, 4, 1)),
        ((4, 5), None, (4, 5)),
        ((1,), None, (1,)),
        ((2, 1), 0, (2, 1, 1, 1)),
        ((3,), -3, (3, 1, 1)),
        ((), None, ()),
    ],
)
@pytest.mark.parametrize("operator", NUMPY)
def test_operators(operator: str, shape: tuple[int, ...], axis: int | None, reshaped: tuple[int, ...]) -> None:
    x, y = normal(2, 3, 4, 5), normal(*shape, seed=1)
    attributes = {"broadcast": 1} | ({} if axis is None else {"axis": axis})
    tiled(case(operator, [x, y], attributes, opset=6), NUMPY[operator](x, y.reshape(reshaped)))


@pytest.mark.runtime
def test_on_migraphx(device: Device) -> None:
    x, y = normal(2, 3, dtype=np.float64), normal(2, 1, dtype=np.float64)
    tiled(case("Add", [x, y], {"broadcast": 1, "axis": 0}, opset=6), x + y, device)
    for shape in ((2, 3), (2, 3, 4), (2, 3, 4, 5)):
        x, slope = normal(*shape), normal(3, seed=1)
        expected = np.where(x < 0, x * slope.reshape(3, *(1 for _ in shape[2:])), x)
        tiled(case("PRelu", [x, slope], opset=6), expected, device)


def test_unchanged() -> None:
    x, y = normal(2, 3), normal(3, seed=1)
    assert skipped(tile_old_broadcast, case("Add", [x, x], opset=6)) == []
    assert skipped(tile_old_broadcast, case("Add", [x, y], opset=7)) == []
    assert skipped(tile_old_broadcast, case("PRelu", [x, y], opset=16)) == []
    reason = "[3] cannot be broadcast to [2, 3]"
    assert skipped(tile_old_broadcast, case("Add", [x, y], {"broadcast": 1, "axis": 0}, opset=6)) == [reason]


@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_any_axis(data: st.DataObject) -> None:
    shape = data.draw(st.lists(st.integers(2, 4), min_size=1, max_size=4))
    start = data.draw(st.integers(0, len(shape)))
    stop = data.draw(st.integers(start, len(shape)))
    part = [data.draw(st.sampled_from([1, size])) for size in shape[start:stop]]
    if part == shape:
        return
    x, y = normal(*shape), normal(*part, seed=1)
    source = case("Add", [x, y], {"broadcast": 1, "axis": start}, opset=6)
    tiled(source, x + y.reshape([*part, *(1 for _ in shape[stop:])]))
