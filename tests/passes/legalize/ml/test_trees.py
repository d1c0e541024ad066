"""Rules for ensembles of decision trees: the results of ONNX Runtime, by paths and by traversal."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from passes.legalize.ml.trees import classify_by_trees, evaluate_trees
from passes.rewriting.base import Context
from tests.passes.device import Device
from tests.passes.harness import Array, apply, operators, run
from tests.passes.ml import numbers, one, why_not

F, D, L, S = TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.INT64, TensorProto.STRING
INT = TensorProto.INT32
TRANSFORMS = ["NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO", "PROBIT"]
MODES = ["BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ"]
FEATURES = 4


def grow(
    kind: str,
    random: np.random.Generator,
    *,
    trees: int = 3,
    depth: int = 3,
    modes: list[str] | None = None,
    targets: list[int] | None = None,
    missing: bool = False,
    positive: bool = False,
) -> dict[str, Any]:
    """Random trees, as the attributes of TreeEnsembleRegressor (``target``) or TreeEnsembleClassifier (``class``).

    Args:
        kind: what the names of the weights begin with.
        random: for all choices.
        trees: how many.
        depth: of the deepest leaves.
        modes: of the nodes.
        targets: that each leaf scores.
        missing: whether some nodes take what is not a number for true.
        positive: whether all weights are.
    """
    nodes: dict[str, list[Any]] = {
        name: [] for name in ("treeids", "nodeids", "featureids", "values", "modes", "truenodeids", "falsenodeids")
    }
    tracks: list[int] = []
    leaves: dict[str, list[Any]] = {name: [] for name in ("treeids", "nodeids", "ids", "weights")}

    def add(tree: int, left: int) -> int:
        place, number = len(nodes["nodeids"]), nodes["treeids"].count(tree)
        is_leaf = left == 0 or (left < depth and random.random() < 0.2)
        row = (tree, number, int(random.integers(FEATURES)), float(np.round(random.standard_normal(), 1)), "LEAF", 0, 0)
        for name, each in zip(nodes, row, strict=True):
            nodes[name].append(each)
        tracks.append(int(missing and random.random() < 0.5))
        if is_leaf:
            for target in targets or [0]:
                weight = float(random.standard_normal())
                row_of_leaf = (tree, number, target, abs(weight) / (2 * trees) if positive else weight)
                for name, each in zip(leaves, row_of_leaf, strict=True):
                    leaves[name].append(each)
            return number
        nodes["modes"][place] = str(random.choice(modes or ["BRANCH_LEQ"]))
        nodes["truenodeids"][place] = add(tree, left - 1)
        nodes["falsenodeids"][place] = add(tree, left - 1)
        return number

    for tree in range(trees):
        add(tree, depth)
    found = {f"nodes_{name}": each for name, each in nodes.items()} | {f"{kind}_{n}": e for n, e in leaves.items()}
    return found | ({"nodes_missing_value_tracks_true": tracks} if missing else {})


def regressor(seed: int = 0, dtype: int = F, shape: tuple[int, ...] = (20, FEATURES), **more: Any) -> ir.Model:
    """A TreeEnsembleRegressor; other arguments go to `grow`."""
    shaping = {name: more.pop(name) for name in ("trees", "depth", "modes", "targets", "missing") if name in more}
    trees = grow("target", np.random.default_rng(seed), **shaping)
    given = {"n_targets": 1 + max(shaping.get("targets") or [0])} | more
    return one("TreeEnsembleRegressor", (dtype, shape), **trees | given)


def classifier(seed: int = 0, classes: int = 3, dtype: int = F, **more: Any) -> ir.Model:
    """A TreeEnsembleClassifier; other arguments go to `grow`."""
    shaping = {name: more.pop(name) for name in ("trees", "depth", "modes", "targets", "positive") if name in more}
    trees = grow("class", np.random.default_rng(seed), **{"targets": list(range(classes))} | shaping)
    given = {"classlabels_int64s": [10 * (each + 1) for each in range(classes)]} | more
    return one("TreeEnsembleClassifier", (dtype, (20, FEATURES)), outputs=(L, F), **trees | given)


def features(dtype: int = F, shape: tuple[int, ...] = (20, FEATURES), seed: int = 1, nan: bool = False) -> Array:
    """Seeded numbers, many of them equal to a threshold."""
    found = numbers(shape, dtype, seed)
    if nan:
        found[np.random.default_rng(seed).random(shape) < 0.2] = np.nan
    return found


class TestRegressor:
    @pytest.mark.parametrize("dtype", [F, D])
    @pytest.mark.parametrize("mode", [*MODES, None])
    def test_modes(self, dtype: int, mode: str | None) -> None:
        m = regressor(2, dtype, modes=[mode] if mode else MODES, targets=[0, 1])
        apply(evaluate_trees, m, inputs={"a": features(dtype)}, atol=1e-5)
        assert "GatherElements" not in operators(m)

    @pytest.mark.parametrize("missing", [False, True])
    @pytest.mark.parametrize("mode", [*MODES, None])
    def test_nan(self, missing: bool, mode: str | None) -> None:
        m = regressor(3, modes=[mode] if mode else MODES, missing=missing)
        apply(evaluate_trees, m, inputs={"a": features(nan=True)})

    @pytest.mark.parametrize("aggregate", ["SUM", "AVERAGE", "MIN", "MAX"])
    @pytest.mark.parametrize("targets", [[0], [0, 1, 2], [0, 2]])
    @pytest.mark.parametrize("base", [False, True])
    def test_aggregates(self, aggregate: str, targets: list[int], base: bool) -> None:
        values = [0.5 + each for each in range(1 + max(targets))] if base else None
        m = regressor(4, targets=targets, aggregate_function=aggregate, base_values=values)
        apply(evaluate_trees, m, inputs={"a": features()})

    @pytest.mark.parametrize("kind", TRANSFORMS)
    @pytest.mark.parametrize("targets", [[0], [0, 1, 2]])
    def test_transforms(self, kind: str, targets: list[int]) -> None:
        m = regressor(5, targets=targets, post_transform=kind)
        if kind == "PROBIT":  # of probabilities
            weights = m.graph[0].attributes["target_weights"].as_floats()
            m.graph[0].attributes["target_weights"] = ir.AttrFloat32s(
                "target_weights", [0.01 + abs(each) / 12 for each in weights]
            )
        apply(evaluate_trees, m, inputs={"a": features()}, rtol=1e-4)

    @pytest.mark.parametrize("opset", [11, 18])
    @pytest.mark.parametrize("shaping", [{"depth": 0}, {"trees": 1}, {"depth": 11, "trees": 2}])
    def test_shapes_of_trees(self, opset: int, shaping: dict[str, int]) -> None:
        apply(evaluate_trees, m := regressor(6, opset=opset, **shaping), inputs={"a": features()})
        assert "TreeEnsembleRegressor" not in operators(m)

    @pytest.mark.parametrize("opset", [7, 8, 9])
    @pytest.mark.parametrize("mode", [*MODES, None])
    def test_old_opset(self, mode: str | None, opset: int) -> None:
        """LightGBM's models have opset 8 or 9, whose Equal takes no floats; 8 has no IsNaN."""
        m = regressor(3, modes=[mode] if mode else MODES, missing=True, opset=opset)
        assert apply(evaluate_trees, m, inputs={"a": features(nan=True)}).rewrites

    def test_old_opset_of_large_trees(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("passes.legalize.ml.trees._MAX_CELLS", 10)
        assert "traversing trees needs opset 11" in why_not(evaluate_trees, regressor(3, opset=9))
        assert "needs opset 9" in why_not(evaluate_trees, regressor(3, opset=8, post_transform="PROBIT"))

    def test_large_trees_are_traversed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("passes.legalize.ml.trees._MAX_CELLS", 10)
        for seed in range(4):
            m = regressor(seed, modes=MODES, missing=True, targets=[0, 1], depth=5)
            apply(evaluate_trees, m, inputs={"a": features(nan=True)})
            assert "GatherElements" in operators(m)

    def test_tensor_attributes(self) -> None:
        trees = grow("target", np.random.default_rng(7), targets=[0, 1])
        for name in ("nodes_values", "target_weights"):
            trees[f"{name}_as_tensor"] = numpy_helper.from_array(np.array(trees.pop(name)) + 1e-12)
        trees["base_values_as_tensor"] = numpy_helper.from_array(np.array([0.25, 0.5]))
        m = one("TreeEnsembleRegressor", (D, (20, FEATURES)), n_targets=2, **trees)
        apply(evaluate_trees, m, inputs={"a": features(D)})

    @pytest.mark.parametrize(
        ("change", "reason"),
        [
            ({"nodes_featureids": [9] * 3}, "feature beyond the 4 columns"),
            ({"nodes_truenodeids": [0, 0, 0]}, "cycle"),
            ({"nodes_truenodeids": [7, 0, 0]}, "does not exist"),
            ({"nodes_values": [1.0]}, "differ in length"),
            ({"target_ids": [0, 3]}, "targets that do not exist"),
            ({"nodes_modes": ["BRANCH_ABOUT", "LEAF", "LEAF"]}, "ABOUT is unknown"),
            (
                {"target_nodeids": [1], "target_treeids": [0], "target_ids": [0], "target_weights": [1.0]},
                "a leaf has no weight",
            ),
        ],
    )
    def test_skips(self, change: dict[str, Any], reason: str) -> None:
        stump = {
            "nodes_treeids": [0, 0, 0],
            "nodes_nodeids": [0, 1, 2],
            "nodes_featureids": [0, 0, 0],
            "nodes_values": [0.5, 0.0, 0.0],
            "nodes_modes": ["BRANCH_LEQ", "LEAF", "LEAF"],
            "nodes_truenodeids": [1, 0, 0],
            "nodes_falsenodeids": [2, 0, 0],
            "target_nodeids": [1, 2],
            "target_treeids": [0, 0],
            "target_ids": [0, 0],
            "target_weights": [1.0, 2.0],
            "n_targets": 1,
        }
        assert apply(evaluate_trees, one("TreeEnsembleRegressor", (F, (20, FEATURES)), **stump)).rewrites
        assert reason in why_not(evaluate_trees, one("TreeEnsembleRegressor", (F, (20, FEATURES)), **stump | change))


class TestClassifier:
    @pytest.mark.parametrize("kind", TRANSFORMS[:-1])
    @pytest.mark.parametrize("base", [False, True])
    @pytest.mark.parametrize("targets", [[0, 1, 2], [0, 2]])
    def test_many_classes(self, kind: str, base: bool, targets: list[int]) -> None:
        values = [0.5, -0.5, 0.0] if base else None
        m = classifier(8, targets=targets, post_transform=kind, base_values=values)
        apply(classify_by_trees, m, inputs={"a": features()})

    @pytest.mark.parametrize("kind", TRANSFORMS[:-1])
    @pytest.mark.parametrize("base", [None, [0.25], [0.25, 0.5]])
    @pytest.mark.parametrize("targets", [[0], [1], [0, 1]])
    @pytest.mark.parametrize("positive", [False, True])
    def test_two_classes(self, kind: str, base: list[float] | None, targets: list[int], positive: bool) -> None:
        m = classifier(9, 2, targets=targets, positive=positive, post_transform=kind, base_values=base)
        if targets == [0] and base is not None and len(base) == 2:
            assert "not defined" in why_not(classify_by_trees, m)
            return
        apply(classify_by_trees, m, inputs={"a": features()})
        assert "TreeEnsembleClassifier" not in operators(m)

    @pytest.mark.parametrize("dtype", [F, D, INT, L])
    def test_dtypes(self, dtype: int) -> None:
        apply(classify_by_trees, m := classifier(10, 3, dtype), inputs={"a": features(dtype)})
        assert "TreeEnsembleClassifier" not in operators(m)

    def test_string_labels(self) -> None:
        m = classifier(11, classlabels_int64s=None, classlabels_strings=["a", "b", "c"])
        assert why_not(classify_by_trees, m) == "the labels are strings, which run on the host"
        m.graph.outputs.pop(0).type = ir.TensorType(ir.DataType.STRING)
        apply(classify_by_trees, m, inputs={"a": features()})
        assert "TreeEnsembleClassifier" not in operators(m)

    def test_leaves_that_score_different_classes(self) -> None:
        for classes in (2, 3):
            m = classifier(12, classes, trees=1)
            node = m.graph[0]
            ids = list(node.attributes["class_ids"].as_ints())
            ids[-1] = 0
            node.attributes["class_ids"] = ir.AttrInt64s("class_ids", ids)
            assert "score different classes" in why_not(classify_by_trees, m)


def version_5(seed: int, *, modes: int = 7, dtype: int = F, targets: int = 2, **more: Any) -> ir.Model:
    """A TreeEnsemble of two random trees, whose nodes may compare with sets."""
    random = np.random.default_rng(seed)
    kind = helper.tensor_dtype_to_np_dtype(dtype)
    count, roots = 14, [0, 7]
    node_modes = random.integers(0, modes, count).astype(np.uint8)
    sets = [random.choice(np.arange(-4, 5), 3, replace=False) for mode in node_modes if mode == 6]
    after = [[first + each for each in (1, 3, 5, 0, 0, 0, 0)] for first in roots]
    other = [[first + each for each in (2, 4, 6, 0, 0, 0, 0)] for first in roots]
    leafs = [0, 0, 0, 1, 1, 1, 1] * 2
    yes, no = np.concatenate(after), np.concatenate(other)
    rows = np.flatnonzero(leafs)
    yes[rows], no[rows] = 2 * np.arange(len(rows)), 2 * np.arange(len(rows)) + 1
    given = {
        "n_targets": targets,
        "tree_roots": roots,
        "nodes_featureids": random.integers(0, FEATURES, count).tolist(),
        "nodes_modes": numpy_helper.from_array(node_modes),
        "nodes_splits": numpy_helper.from_array((random.integers(-4, 5, count) * 0.5).astype(kind)),
        "nodes_truenodeids": yes.tolist(),
        "nodes_falsenodeids": no.tolist(),
        "nodes_trueleafs": leafs,
        "nodes_falseleafs": leafs,
        "leaf_targetids": random.integers(0, targets, 2 * len(rows)).tolist(),
        "leaf_weights": numpy_helper.from_array(random.standard_normal(2 * len(rows)).astype(kind)),
        "membership_values": numpy_helper.from_array(
            np.concatenate([np.append(each, np.nan) for each in sets] or [np.zeros(0)]).astype(kind)
        ),
    }
    return one("TreeEnsemble", (dtype, (20, FEATURES)), outputs=(dtype,), version=5, **given | more)


@pytest.mark.parametrize("dtype", [F, D])
@pytest.mark.parametrize("aggregate", range(4))
@pytest.mark.parametrize("kind", range(4))
def test_version_5(dtype: int, aggregate: int, kind: int) -> None:
    m = version_5(aggregate + 4 * kind, dtype=dtype, aggregate_function=aggregate, post_transform=kind)
    x = np.random.default_rng(0).integers(-4, 5, (20, FEATURES)).astype(helper.tensor_dtype_to_np_dtype(dtype))
    apply(evaluate_trees, m, inputs={"a": x})
    assert "TreeEnsemble" not in operators(m)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_trees(data: st.DataObject) -> None:
    """For all matches, the results are those of ONNX Runtime."""
    draw = data.draw
    seed, kind = draw(st.integers(0, 999)), draw(st.sampled_from(TRANSFORMS[:-1]))
    shaping: dict[str, Any] = {
        "trees": draw(st.integers(1, 4)),
        "depth": draw(st.integers(0, 5)),
        "modes": draw(st.lists(st.sampled_from(MODES), min_size=1, max_size=3)),
    }
    targets = sorted(draw(st.sets(st.integers(0, 3), min_size=1)))
    if draw(st.booleans()):
        aggregate = draw(st.sampled_from(["SUM", "AVERAGE", "MIN", "MAX"]))
        shaping["missing"] = draw(st.booleans())
        m, rule = (
            regressor(seed, targets=targets, post_transform=kind, aggregate_function=aggregate, **shaping),
            evaluate_trees,
        )
    else:
        classes = max(2, 1 + max(targets))
        m, rule = classifier(seed, classes, targets=targets, post_transform=kind, **shaping), classify_by_trees
    x = features(seed=seed, nan=bool(shaping.get("missing")))
    assert apply(rule, m, inputs={"a": x}, rtol=1e-4).rewrites


def test_migraphx_computes_the_same(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    cases: list[tuple[Any, ir.Model]] = [
        (evaluate_trees, regressor(13, modes=MODES, missing=True, targets=[0, 1])),
        (evaluate_trees, regressor(14, D, aggregate_function="MIN", targets=[0, 2])),
        (classify_by_trees, classifier(15, 3, post_transform="SOFTMAX_ZERO")),
        (classify_by_trees, classifier(16, 2, targets=[0], post_transform="LOGISTIC")),
        (evaluate_trees, version_5(17)),
    ]
    for limit in (2**22, 10):
        monkeypatch.setattr("passes.legalize.ml.trees._MAX_CELLS", limit)
        for rule, source in cases:
            m = source.clone()
            rule.run(m, Context())
            proto = ir.to_proto(m)
            assert m.graph.inputs[0].dtype is not None
            x = features(m.graph.inputs[0].dtype.value, nan=source is cases[0][1])
            for found, expected in zip(device.run(proto, {"a": x}), run(proto, {"a": x}).values(), strict=True):
                assert found.dtype == expected.dtype
                np.testing.assert_allclose(found, expected, 1e-4, 1e-5)
