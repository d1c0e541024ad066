"""Write ensembles of decision trees as tensor operations.

All nodes of all trees are evaluated at once, and a product with the paths selects the leaves (the GEMM strategy of
Hummingbird, "A Tensor Compiler for Unified Machine Learning Prediction Serving", OSDI 2020):

    d = x[features] ≤ thresholds                    [trees, rows, nodes]
    e = (d·C ≥ b)                                   [trees, rows, leaves]; C is 1, −1 or 0 if a leaf is on the
                                                    yes side of a node, on its no side, or not below it;
                                                    b counts the yes sides, so that no sum exceeds it
    y = Σ over trees of e·W                         [rows, targets]

Trees that are too large for that are traversed level by level, all rows and trees at once:

    i = roots;  i = Where(x[features[i]] ≤ thresholds[i], yes[i], no[i])        once per level of the deepest tree

Skips: string labels that are used; leaves that score different subsets of the targets, if that matters; undefined
transforms of a single score.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from passes.legalize.ml import common as ml
from passes.legalize.ml.common import FLOAT, Features
from passes.legalize.ml.tree_ensembles import LEAF, MEMBER, Ensemble, Path, read_v3, read_v5
from passes.rewriting.base import Exactness, NotApplicable, OpsetTooOld, Skip
from passes.rewriting.edit import Edit
from passes.rewriting.rewrite import Replacement, rewrite

_MAX_CELLS = 2**22
"""The maximum size of the matrix of paths; larger trees are traversed."""
_WITH_WHERE = 9
"""The first opset that has Where and IsNaN; onnxmltools also writes opset 7."""
_TRAVERSABLE = 11
"""The first opset that has GatherElements."""
_COMPARISONS = {"LT": "Less", "GT": "Greater", "LEQ": "Less", "GTE": "Greater"}

Column = Callable[[np.ndarray], ir.Value]
"""Selects, from an array with one entry per node, the entries of the evaluated nodes."""


@dataclass(frozen=True)
class _Trees:
    """An ensemble, the features that it compares, and its paths; None if the trees are to be traversed."""

    features: Features
    ensemble: Ensemble
    paths: Sequence[Sequence[Path]] | None
    precision: ir.DataType

    @classmethod
    def of(cls, node: ir.Node, edit: Edit) -> _Trees:
        """Return the trees of a node."""
        features, opset = ml.read(node, edit), edit.scope.opset()
        is_simple = node.op_type == "TreeEnsembleRegressor" and (
            node.attributes.get_string("post_transform", "NONE") in ("NONE", "LOGISTIC", "SOFTMAX")
        )
        if opset < _WITH_WHERE and not is_simple:
            raise OpsetTooOld("the arithmetic of the scores", _WITH_WHERE, opset)
        precision = ir.DataType.DOUBLE if features.dtype == ir.DataType.DOUBLE else FLOAT
        ensemble = read_v5(node) if node.op_type == "TreeEnsemble" else read_v3(node, precision.numpy())
        inner = ensemble.mode != LEAF
        if inner.any() and not 0 <= ensemble.feature[inner].min() <= ensemble.feature[inner].max() < features.columns:
            raise NotApplicable(f"a node refers to a feature beyond the {features.columns} columns")
        paths = _small_paths(ensemble)
        if paths is None and opset < _TRAVERSABLE:
            raise OpsetTooOld("traversing trees", _TRAVERSABLE, opset)
        return cls(features, ensemble, paths, precision)

    def total(self, edit: Edit) -> ir.Value:
        """Return the aggregated weights of the leaves, [rows, targets]."""
        x = ml.matrix(self.features, edit, self.precision)
        scores = _by_walking(self, x, edit) if self.paths is None else _by_paths(self, self.paths, x, edit)
        if self.ensemble.aggregate != "AVERAGE":
            return scores
        return edit.op("Div", [scores, ml.number(len(self.ensemble.roots), scores, edit)])


def _small_paths(trees: Ensemble) -> Sequence[Sequence[Path]] | None:
    """Return the paths of each tree; None if they are too many."""
    paths = trees.paths(1024) if trees.aggregate in ("SUM", "AVERAGE") else None
    if paths is None:
        return None
    nodes = max((len({node for path in tree for node, _ in path.turns}) for tree in paths), default=0)
    return paths if len(paths) * nodes * max(map(len, paths)) <= _MAX_CELLS else None


@rewrite(
    "ai.onnx.ml.TreeEnsembleRegressor",
    "ai.onnx.ml.TreeEnsemble",
    exactness=Exactness.ROUNDING,
    needs_shape=(0,),
    needs_dtype=(0,),
)
def evaluate_trees(node: ir.Node, edit: Edit) -> Replacement:
    """Write a TreeEnsembleRegressor or a TreeEnsemble as tensor operations."""
    read = _Trees.of(node, edit)
    trees = read.ensemble
    if len(trees.base) and trees.targets > 1 and None in map(trees.scores, range(trees.targets)):
        return Skip("the leaves score different targets, so base values are ambiguous")
    scores = read.total(edit)
    if len(trees.base) == trees.targets:  # base values are not added to targets without scores
        scored = [trees.targets == 1 or trees.scores(target) is not False for target in range(trees.targets)]
        scores = edit.op("Add", [scores, edit.constant(np.where(scored, trees.base, 0).astype(trees.base.dtype))])
    scores = edit.cast(scores, read.features.dtype if node.op_type == "TreeEnsemble" else FLOAT)
    if trees.targets > 1 or trees.transform == "PROBIT":  # for one target, no other transform has an effect
        scores = ml.transform(scores, trees.transform, edit)
    return scores


@rewrite("ai.onnx.ml.TreeEnsembleClassifier", exactness=Exactness.ROUNDING, needs_shape=(0,), needs_dtype=(0,))
def classify_by_trees(node: ir.Node, edit: Edit) -> Replacement:
    """Write a TreeEnsembleClassifier as tensor operations."""
    read, has_strings = _Trees.of(node, edit), ml.has_string_labels(node)
    trees = read.ensemble
    scored = [trees.scores(target) for target in range(trees.targets)]
    is_single = trees.targets == 1 or (trees.targets == 2 and scored[1] is False)
    if None in scored and trees.targets > 1 and (trees.targets == 2 or not len(trees.base)):
        return Skip("the leaves score different classes")
    if is_single and trees.targets == 2 and (trees.transform == "PROBIT" or len(trees.base) == 2):
        return Skip("PROBIT and two base values are not defined for one score and two labels")
    if trees.targets == 1 and len(trees.base) > 1:
        return Skip("there are more base values than classes")
    decide = _decide_multiclass if trees.targets > 2 else _decide_binary
    chosen, scores = decide(read, ml.labels(node, "classlabels_int64s"), read.total(edit), edit)
    return [None if has_strings else chosen, scores]


def _decide_multiclass(read: _Trees, labels: Sequence[int], scores: ir.Value, edit: Edit) -> tuple[ir.Value, ir.Value]:
    """Return the label of the largest score, and the transformed scores; classes without scores are never chosen."""
    trees, base = read.ensemble, read.ensemble.base
    scores = rated = edit.op("Add", [scores, edit.constant(base)]) if len(base) else scores
    never = [not len(base) and trees.scores(target) is False for target in range(trees.targets)]
    if any(never):
        low = np.where(never, -np.inf, 0).astype(read.precision.numpy())
        rated = edit.op("Add", [scores, edit.constant(low)])
    best = edit.op("ArgMax", [rated], {"axis": 1, "keepdims": 0})
    return ml.pick(labels, best, edit), ml.transform(edit.cast(scores, FLOAT), trees.transform, edit)


def _decide_binary(read: _Trees, labels: Sequence[int], scores: ir.Value, edit: Edit) -> tuple[ir.Value, ir.Value]:
    """Return the label by a threshold on the second (or only) score, and two transformed scores."""
    trees = read.ensemble
    base, kind = trees.base, trees.transform
    weights = [weight for owned in trees.weights.values() for _, weight in owned]
    targets = {target for owned in trees.weights.values() for target, _ in owned}
    positive, is_pair = all(weight >= 0 for weight in weights), trees.targets == 2 and len(targets) == 1
    single = trees.targets == 1 or trees.scores(1) is False
    if single:
        rated = edit.op("Gather", [scores, edit.index([0])], {"axis": 1}) if trees.targets == 2 else scores
        rated = edit.op("Add", [rated, edit.constant(base[:1])]) if len(base) else rated
    else:
        first, second = (edit.op("Gather", [scores, edit.constant(np.array([i]))], {"axis": 1}) for i in (0, 1))
        if len(base) == 2:  # ONNX Runtime derives the second score from the first
            second = edit.op("Add", [first, edit.constant(base[1:])])
        if trees.scores(0) is False:
            first = edit.op("Mul", [second, ml.number(0, second, edit)])
        elif len(base) == 2:
            first = edit.op("Neg", [second])
        elif len(base) == 1:
            first = edit.op("Add", [first, edit.constant(base)])
        scores, rated = edit.op("Concat", [first, second], {"axis": 1}), second
    limit = 0.5 if is_pair and positive else 0
    yes = edit.op("Greater", [rated, ml.number(limit, rated, edit)])
    names = (labels[1], labels[0]) if is_pair else (1, 0)
    chosen = ml.choose(yes, *names, edit)
    if not single:
        return chosen, ml.transform(edit.cast(scores, FLOAT), kind, edit)
    rated = edit.cast(rated, FLOAT)
    if trees.targets == 1:
        return chosen, ml.transform(rated, kind if kind == "PROBIT" else "NONE", edit)
    return chosen, ml.pair(rated, edit, positive=positive, kind=kind)


def _by_paths(read: _Trees, paths: Sequence[Sequence[Path]], x: ir.Value, edit: Edit) -> ir.Value:
    """Evaluate all nodes, and select the leaves by a product with the paths."""
    trees, dtype = read.ensemble, read.precision.numpy()
    inner = [sorted({node for path in tree for node, _ in path.turns}) for tree in paths]
    nodes, leaves = max(1, *map(len, inner)), max(map(len, paths))
    place = np.zeros((len(paths), nodes), np.int64)
    turns = np.zeros((len(paths), nodes, leaves), dtype)
    needed = np.full((len(paths), 1, leaves), 1, dtype)  # entries without a leaf, of sum 0, are never selected
    weights = np.zeros((len(paths), leaves, trees.targets), dtype)
    for tree, (leaf_paths, own) in enumerate(zip(paths, inner, strict=True)):
        place[tree, : len(own)] = own
        where = {node: index for index, node in enumerate(own)}
        for leaf, path in enumerate(leaf_paths):
            for node, side in path.turns:
                turns[tree, where[node], leaf] = 1 if side else -1
            needed[tree, 0, leaf] = sum(side for _, side in path.turns)
            for target, weight in trees.weights[path.leaf]:
                weights[tree, leaf, target] += weight
    seen = edit.op("Gather", [x, edit.constant(trees.feature[place])], {"axis": 1})
    seen = edit.op("Transpose", [seen], {"perm": [1, 0, 2]})
    decided = _decide(
        seen, trees, lambda array: edit.constant(array[place][:, None]), set(place.ravel().tolist()), edit
    )
    sides = edit.cast(decided, read.precision)
    sums = edit.op("MatMul", [sides, edit.constant(turns)])
    reached = edit.cast(edit.op("Greater", [sums, edit.constant(needed - 0.5)]), read.precision)
    by_tree = edit.op("MatMul", [reached, edit.constant(weights)])
    return edit.reduce("Sum", by_tree, [0], keepdims=False)


def _by_walking(read: _Trees, x: ir.Value, edit: Edit) -> ir.Value:
    """Traverse all trees, level by level."""
    trees, dtype = read.ensemble, read.precision.numpy()
    inner = set(np.flatnonzero(trees.mode != LEAF).tolist())
    now = edit.constant(np.tile(trees.roots, (read.features.rows, 1)))

    def column(array: np.ndarray) -> ir.Value:
        return edit.op("Gather", [edit.constant(array), now], {"axis": 0})

    for _ in range(trees.depth() or 0):
        seen = edit.op("GatherElements", [x, column(trees.feature)], {"axis": 1})
        decided = _decide(seen, trees, column, inner, edit)
        now = edit.op("Where", [decided, column(trees.yes), column(trees.no)])
    combine = {"MIN": min, "MAX": max}.get(trees.aggregate)
    # for targets that a leaf does not score; not infinity: MIGraphX starts ReduceMin from the largest finite number
    none = {"MIN": np.finfo(dtype).max, "MAX": np.finfo(dtype).min}.get(trees.aggregate, 0.0)
    weights = np.full((len(trees.mode), trees.targets), none, dtype)
    for leaf, given in trees.weights.items():
        for target, weight in given:
            held = weights[leaf, target]
            weights[leaf, target] = combine(held, weight) if combine else held + weight
    kind = {"MIN": "Min", "MAX": "Max"}.get(trees.aggregate, "Sum")
    result = edit.reduce(kind, column(weights), [1], keepdims=False)
    if combine is None or (weights[[*trees.weights]] != none).all():
        return result
    is_none = edit.op("Equal", [result, ml.number(none, result, edit)])
    return edit.op("Where", [is_none, ml.number(0, result, edit), result])


def _decide(seen: ir.Value, trees: Ensemble, column: Column, nodes: set[int], edit: Edit) -> ir.Value:
    """Return whether the comparisons of nodes hold.

    The features that they compare are ``seen``, which the result of ``column`` broadcasts with; ``nodes`` are those
    that may be evaluated, without padding.
    """
    threshold = column(trees.threshold)
    chosen = sorted(nodes)
    modes = sorted(set(trees.mode[chosen]) - {LEAF}) or ["LEQ"]
    result: ir.Value | None = None
    for mode in modes:
        member = mode == MEMBER
        holds = _is_member(seen, trees, column, edit) if member else _compare(seen, mode, threshold, edit)
        if result is not None:
            # not Where, which ONNX Runtime does not support for booleans
            rest = edit.op("And", [result, column(trees.mode != mode)])
            holds = edit.op("Or", [edit.op("And", [holds, column(trees.mode == mode)]), rest])
        result = holds
    assert result is not None
    if trees.missing[chosen].any():
        unknown = edit.op("And", [_is_nan(seen, edit), column(trees.missing)])
        result = edit.op("Or", [result, unknown])
    return result


def _compare(seen: ir.Value, mode: str, threshold: ir.Value, edit: Edit) -> ir.Value:
    """Return one comparison; for NaN only NEQ holds.

    Not LessOrEqual, which MIGraphX implements as the negation of Greater: that is wrong for NaN.
    """
    equal = _equal(seen, threshold, edit) if mode not in ("LT", "GT") else None
    if mode == "NEQ":
        return edit.op("Not", [equal])
    if mode == "EQ":
        assert equal is not None
        return equal
    strict = edit.op(_COMPARISONS[mode], [seen, threshold])
    return strict if equal is None else edit.op("Or", [strict, equal])


def _equal(a: ir.Value, b: ir.Value, edit: Edit) -> ir.Value:
    """Return whether floats are equal, of which one is a constant number; Equal takes floats since opset 11."""
    if edit.scope.opset() >= 11:
        return edit.op("Equal", [a, b])
    differs = edit.op("Or", [edit.op("Less", [a, b]), edit.op("Greater", [a, b])])
    return edit.op("Not", [edit.op("Or", [differs, _is_nan(a, edit)])])


def _is_nan(x: ir.Value, edit: Edit) -> ir.Value:
    """Return whether it is not a number: every number is less than 1 or greater than 0."""
    if edit.scope.opset() >= _WITH_WHERE:
        return edit.op("IsNaN", [x])
    below, above = edit.op("Less", [x, ml.number(1, x, edit)]), edit.op("Greater", [x, ml.number(0, x, edit)])
    return edit.op("Not", [edit.op("Or", [below, above])])


def _is_member(seen: ir.Value, trees: Ensemble, column: Column, edit: Edit) -> ir.Value:
    """Return whether each feature is in the set of its node."""
    size = max(map(len, trees.members.values()))
    sets = np.zeros((len(trees.mode), size), trees.threshold.dtype)
    for node, members in trees.members.items():
        sets[node] = np.resize(members, size)  # repeats elements to fill up, which does not change the set
    shape = edit.scope.shape(seen)
    assert shape is not None
    is_equal = _equal(edit.unsqueeze(seen, [len(shape)]), column(sets), edit)
    count = edit.reduce("Max", edit.cast(is_equal, FLOAT), [len(shape)], keepdims=False)
    return edit.op("Greater", [count, ml.number(0.5, count, edit)])
