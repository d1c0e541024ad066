"""Reading ensembles of decision trees from the attributes of ai.onnx.ml: lists with one entry per node or weight."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import onnx_ir as ir

from passes.legalize.ml import common as ml
from passes.rewriting.base import NotApplicable

LEAF, MEMBER = "LEAF", "MEMBER"
_MODES = ("LEQ", "LT", "GTE", "GT", "EQ", "NEQ", MEMBER)
"""The modes of TreeEnsemble, by number."""
_TRANSFORMS = ("NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO", "PROBIT")
"""The post transforms of TreeEnsemble, by number, as in ONNX Runtime; in the text of the standard, SOFTMAX is 1 and
LOGISTIC 2."""
_AGGREGATES = ("AVERAGE", "SUM", "MIN", "MAX")


@dataclass(frozen=True)
class Path:
    """The path to one leaf: its inner nodes, each with whether the comparison holds."""

    leaf: int
    turns: tuple[tuple[int, bool], ...]


@dataclass(frozen=True)
class Ensemble:
    """Trees whose nodes are numbered across the ensemble.

    Attributes:
        feature: the column that each node compares.
        threshold: the number it is compared with.
        mode: LEQ, LT, GTE, GT, EQ, NEQ, MEMBER, or LEAF.
        yes: the next node if the comparison holds; that of a leaf is itself.
        no: the next node if it does not.
        missing: whether the comparison holds for NaN.
        members: the sets of the MEMBER nodes.
        roots: the root of each tree.
        weights: the (target, weight) pairs of leaves, in order.
        aggregate: SUM, AVERAGE, MIN or MAX of the trees.
        transform: the post transform.
        base: the base values: none, one, or one per target.
    """

    feature: np.ndarray
    threshold: np.ndarray
    mode: np.ndarray
    yes: np.ndarray
    no: np.ndarray
    missing: np.ndarray
    roots: np.ndarray
    weights: dict[int, list[tuple[int, float]]]
    targets: int
    aggregate: str = "SUM"
    transform: str = "NONE"
    base: np.ndarray = field(default_factory=lambda: np.zeros(0))
    members: dict[int, np.ndarray] = field(default_factory=dict)

    def depth(self) -> int | None:
        """Return the depth of the deepest tree; None if the nodes have a cycle."""
        depths = np.where(self.mode == LEAF, 0, -1)
        state = np.zeros(len(depths), np.int8)
        for root in self.roots:
            pending = [int(root)]
            while pending:
                node = pending[-1]
                if depths[node] >= 0:
                    pending.pop()
                    continue
                after = [int(branch[node]) for branch in (self.yes, self.no)]
                open_ = [child for child in after if depths[child] < 0]
                if not open_:
                    depths[node] = 1 + max(depths[child] for child in after)
                    pending.pop()
                elif state[node]:
                    return None
                else:
                    state[node] = 1
                    pending.extend(dict.fromkeys(open_))
        return int(max((depths[root] for root in self.roots), default=0))

    def paths(self, limit: int) -> list[list[Path]] | None:
        """Return the paths to all leaves of each tree; None if a tree has more than ``limit``."""
        trees = []
        for root in self.roots:
            leaves: list[Path] = []
            pending: list[tuple[int, tuple[tuple[int, bool], ...]]] = [(int(root), ())]
            while pending:
                node, turns = pending.pop()
                if self.mode[node] == LEAF:
                    leaves.append(Path(node, turns))
                    if len(leaves) > limit:
                        return None
                    continue
                pending.append((int(self.no[node]), (*turns, (node, False))))
                pending.append((int(self.yes[node]), (*turns, (node, True))))
            trees.append(leaves)
        return trees

    def reachable(self, root: int) -> list[int]:
        seen, pending = {root}, [root]
        while pending:
            node = pending.pop()
            after = {int(self.yes[node]), int(self.no[node])} - seen
            seen |= after
            pending.extend(after)
        return [node for node in seen if self.mode[node] == LEAF]

    def scores(self, target: int) -> bool | None:
        """Return whether every row has a score for a target: True for all rows, False for none, None for some."""
        scoring = {leaf for leaf, weight in self.weights.items() if any(owner == target for owner, _ in weight)}
        reached = [self.reachable(int(root)) for root in self.roots]
        if any(scoring.issuperset(leaves) for leaves in reached):
            return True
        return None if any(not scoring.isdisjoint(leaves) for leaves in reached) else False


def read_v3(node: ir.Node, dtype: np.dtype) -> Ensemble:
    """Return the trees of a TreeEnsembleRegressor or TreeEnsembleClassifier."""
    classifier = node.op_type == "TreeEnsembleClassifier"
    kind = "class" if classifier else "target"
    labels = len(node.attributes.get_strings("classlabels_strings", []) or ml.integers(node, "classlabels_int64s"))
    targets = labels if classifier else node.attributes.get_int("n_targets", 1)
    trees, ids, yes, no = (ml.integers(node, f"nodes_{name}ids") for name in ("tree", "node", "truenode", "falsenode"))
    names = [name.removeprefix("BRANCH_") for name in node.attributes.get_strings("nodes_modes", [])]
    count = len(names)
    thresholds, weights = (_values(node, name, dtype) for name in ("nodes_values", f"{kind}_weights"))
    features = ml.integers(node, "nodes_featureids")
    if not count or any(len(numbers) != count for numbers in (trees, ids, yes, no, thresholds, features)):
        raise NotApplicable("the lists of nodes are empty, or differ in length")
    unknown = {name for name in names if name not in (*_MODES[:-1], LEAF)}
    if unknown:
        raise NotApplicable(f"the mode {unknown.pop()} is unknown")
    places = {pair: index for index, pair in enumerate(zip(trees.tolist(), ids.tolist(), strict=True))}
    mode = np.array(names)
    try:
        after, behind = (
            np.array([i if mode[i] == LEAF else places[int(trees[i]), int(branch[i])] for i in range(count)])
            for branch in (yes, no)
        )
        owning = (ml.integers(node, f"{kind}_{name}ids").tolist() for name in ("tree", "node"))
        owners = [places[tree, leaf] for tree, leaf in zip(*owning, strict=True)]
    except KeyError as error:
        raise NotApplicable(f"a node or a weight refers to tree and node {error}, which does not exist") from error
    held: dict[int, list[tuple[int, float]]] = {}
    ids_of = ml.integers(node, f"{kind}_ids")
    if len(ids_of) != len(owners) or len(weights) != len(owners) or any(not 0 <= target < targets for target in ids_of):
        raise NotApplicable("the lists of weights differ in length, or refer to targets that do not exist")
    for owner, target, weight in zip(owners, ids_of.tolist(), weights, strict=True):
        if mode[owner] == LEAF:  # old converters also write weights for inner nodes, which have no meaning
            held.setdefault(owner, []).append((target, weight))
    starts = np.flatnonzero(np.concatenate([[True], trees[1:] != trees[:-1]]))
    missing, aggregate = _missing(node, count, count), node.attributes.get_string("aggregate_function", "SUM") or "SUM"
    combine = (aggregate, ml.post_transform(node), _values(node, "base_values", dtype))
    return _check(Ensemble(features, thresholds, mode, after, behind, missing, starts, held, targets, *combine))


def thresholds(node: ir.Node) -> tuple[np.ndarray, np.ndarray]:
    """Return the columns that the nodes of an ensemble compare, leaves included, and the numbers they compare with."""
    columns = ml.integers(node, "nodes_featureids")
    if node.op_type == "TreeEnsemble":
        return columns, _tensor(node, "nodes_splits")
    return columns, _values(node, "nodes_values", np.dtype(np.float64))


def read_v5(node: ir.Node) -> Ensemble:
    """Return the trees of a TreeEnsemble, whose leaves have their own numbers; here they follow the inner nodes."""
    features, yes, no = (ml.integers(node, f"nodes_{name}") for name in ("featureids", "truenodeids", "falsenodeids"))
    tensors = {name: _tensor(node, name) for name in ("nodes_modes", "nodes_splits", "leaf_weights")}
    leaf_yes, leaf_no = (ml.integers(node, f"nodes_{name}leafs") for name in ("true", "false"))
    modes, splits, weights = tensors["nodes_modes"], tensors["nodes_splits"], tensors["leaf_weights"]
    targets_of, count, leaves = ml.integers(node, "leaf_targetids"), len(features), len(weights)
    if not count or any(len(numbers) != count for numbers in (modes, splits, yes, no, leaf_yes, leaf_no)):
        raise NotApplicable("the lists of nodes are empty, or differ in length")
    targets = node.attributes.get_int("n_targets", 1)
    if len(targets_of) != leaves or any(not 0 <= target < targets for target in targets_of):
        raise NotApplicable("the lists of leaves differ in length, or refer to targets that do not exist")
    if modes.max() >= len(_MODES):
        raise NotApplicable(f"the mode {modes.max()} is unknown")
    for ids, to_leaf in ((yes, leaf_yes), (no, leaf_no)):
        if np.any((ids < 0) | (ids >= np.where(to_leaf != 0, leaves, count))):
            raise NotApplicable("a node refers to a node or a leaf that does not exist")
    own = np.arange(count, count + leaves)
    pad = np.zeros(leaves, np.int64)
    aggregate, transform = (
        node.attributes.get_int(name, default) for name, default in (("aggregate_function", 1), ("post_transform", 0))
    )
    if not 0 <= aggregate < len(_AGGREGATES) or not 0 <= transform < len(_TRANSFORMS):
        raise NotApplicable(f"the aggregate function {aggregate} or post transform {transform} is unknown")
    ensemble = Ensemble(
        np.concatenate([features, pad]),
        np.concatenate([splits, pad.astype(splits.dtype)]),
        np.array([_MODES[mode] for mode in modes] + [LEAF] * leaves),
        np.concatenate([np.where(leaf_yes != 0, count + yes, yes), own]),
        np.concatenate([np.where(leaf_no != 0, count + no, no), own]),
        _missing(node, count, count + leaves),
        ml.integers(node, "tree_roots"),
        {count + index: [(int(targets_of[index]), weights[index])] for index in range(leaves)},
        targets,
        _AGGREGATES[aggregate],
        _TRANSFORMS[transform],
        members=_members(modes, _tensor(node, "membership_values")),
    )
    return _check(ensemble)


def _missing(node: ir.Node, inner: int, count: int) -> np.ndarray:
    """Return whether the comparison of each of ``count`` nodes holds for NaN, of which the first may be ``inner``."""
    missing = np.zeros(count, bool)
    given = ml.integers(node, "nodes_missing_value_tracks_true")[:inner] == 1
    missing[: len(given)] = given
    return missing


def _check(ensemble: Ensemble) -> Ensemble:
    if ensemble.depth() is None:
        raise NotApplicable("the nodes have a cycle")
    leaves = [leaf for root in ensemble.roots for leaf in ensemble.reachable(int(root))]
    if any(leaf not in ensemble.weights for leaf in leaves):
        raise NotApplicable("a leaf has no weight")
    if ensemble.targets == 1:  # ONNX Runtime uses only the first weight of a leaf
        return replace(ensemble, weights={leaf: weight[:1] for leaf, weight in ensemble.weights.items()})
    return ensemble


def _members(modes: np.ndarray, values: np.ndarray) -> dict[int, np.ndarray]:
    """Return the sets of MEMBER nodes, which are separated by NaN."""
    sets: dict[int, np.ndarray] = {}
    ends = np.append(np.flatnonzero(np.isnan(values)), len(values)) if len(values) else np.zeros(0, np.int64)
    start = 0
    for index, node in enumerate(np.flatnonzero(modes == _MODES.index(MEMBER))):
        if index >= len(ends) or start == ends[index]:
            raise NotApplicable("the membership_values lack a set for a MEMBER node")
        sets[int(node)] = values[start : ends[index]]
        start = int(ends[index]) + 1
    return sets


def _values(node: ir.Node, name: str, dtype: np.dtype) -> np.ndarray:
    """Return an attribute that is a list of floats or a tensor."""
    attribute = node.attributes.get(f"{name}_as_tensor")
    given: Sequence[float] | np.ndarray = ml.floats(node, name)
    if attribute is not None:
        given = attribute.as_tensor().numpy().ravel()
    return np.asarray(given).astype(dtype)


def _tensor(node: ir.Node, name: str) -> np.ndarray:
    attribute = node.attributes.get(name)
    return attribute.as_tensor().numpy().ravel() if attribute is not None else np.zeros(0, np.float32)
