"""The graph around a node: which nodes are drawn, and that they do not stand in each other's way."""

from __future__ import annotations

import itertools
import re

from hypothesis import given, settings
from hypothesis import strategies as st

from onnx_bridge.parity.checking.evidence import Network, NetworkNode
from onnx_bridge.views.html.neighbourhood import HEIGHT, WIDTH, Drawing, around, draw


def chain(length: int) -> Network:
    nodes = [NetworkNode(f"n{index}", "Relu", (f"v{index}",), (f"v{index + 1}",)) for index in range(length)]
    return Network(tuple(nodes), ("v0",), (f"v{length}",))


def names(drawing: Drawing | None) -> list[str]:
    assert drawing is not None
    return [box.name for box in drawing.boxes]


def test_the_nearest_nodes_are_drawn() -> None:
    assert [node.name for node in around(chain(9), {"n4"}, radius=2)] == ["n2", "n3", "n4", "n5", "n6"]
    assert [node.name for node in around(chain(9), {"n4"}, limit=3)] == ["n3", "n4", "n5"]
    assert [node.name for node in around(chain(9), {"n0", "n8"}, radius=1)] == ["n0", "n1", "n7", "n8"]
    assert around(chain(9), {"nowhere"}) == []


def test_of_a_crowd_only_some() -> None:
    users = [NetworkNode(f"u{index}", "Add", ("x",), (f"y{index}",)) for index in range(500)]
    network = Network((NetworkNode("root", "Relu", ("i",), ("x",)), *users))
    assert len(around(network, {"root"})) == 24
    drawing = draw(network, {"root"})
    assert drawing is not None
    assert drawing.hidden == 477


def test_inputs_and_outputs_of_the_model_are_boxes() -> None:
    drawing = draw(chain(2), {"n0"}, {"n0": "bad"})
    assert names(drawing) == ["n0", "n1", "v0", "v2"]
    assert drawing is not None
    assert [box.status for box in drawing.boxes] == ["bad", "plain", "end", "end"]
    tops = {box.name: box.y for box in drawing.boxes}
    assert tops["v0"] < tops["n0"] < tops["n1"] < tops["v2"]


def test_nothing_to_draw() -> None:
    assert draw(Network(()), {"a"}) is None
    assert draw(chain(3), set()) is None


def test_one_node_alone() -> None:
    drawing = draw(Network((NetworkNode("n", "Constant", (), ("c",)),)), {"n"})
    assert names(drawing) == ["n"]


def test_long_names_are_cut_at_their_beginning() -> None:
    node = NetworkNode(
        "model/encoder/layer.11/attention/MatMul_7", "com.microsoft::Something", (), ("y",), "a-pass", ("q",)
    )
    drawing = draw(Network((node,)), {node.name})
    assert drawing is not None
    (box,) = drawing.boxes
    assert box.subtitle == "…11/attention/MatMul_7"
    assert "made by a-pass from q" in box.hint


@st.composite
def networks(draw: st.DrawFn) -> Network:
    """Acyclic graphs: each node takes outputs of some before it, or an input of the model."""
    count = draw(st.integers(1, 18))
    nodes = []
    for index in range(count):
        taken = draw(st.lists(st.integers(-2, index - 1), max_size=3, unique=True))
        inputs = tuple(f"v{each}" if each >= 0 else f"x{-each}" for each in taken)
        nodes.append(NetworkNode(f"n{index}", "Op", inputs, (f"v{index}",)))
    return Network(tuple(nodes), ("x1", "x2"), (f"v{count - 1}",))


@settings(max_examples=60, deadline=None)
@given(networks(), st.integers(0, 17))
def test_boxes_are_apart_and_lines_go_down(network: Network, place: int) -> None:
    drawing = draw(network, {f"n{min(place, len(network.nodes) - 1)}"})
    assert drawing is not None
    for one, two in itertools.combinations(drawing.boxes, 2):
        assert abs(one.x - two.x) >= WIDTH or abs(one.y - two.y) >= HEIGHT, (one, two)
    for box in drawing.boxes:
        assert 0 <= box.x <= drawing.width - WIDTH
        assert 0 <= box.y <= drawing.height - HEIGHT
    ends = {(round(box.x + WIDTH / 2), round(box.y + HEIGHT)) for box in drawing.boxes}
    starts = {(round(box.x + WIDTH / 2), round(box.y)) for box in drawing.boxes}
    for path, _ in drawing.lines:
        numbers = list(map(int, re.findall(r"-?\d+", path)))
        points = list(zip(numbers[::2], numbers[1::2], strict=True))
        assert points[0] in ends
        assert points[-1] in starts
        assert points[0][1] < points[-1][1]
