"""Write ensembles of decision trees as tensor operations.

All nodes of all trees are evaluated at once, and a product with the paths selects the leaves (the GEMM strategy of
Hummingbird, "A Tensor Compiler for Unified Machine Learning Prediction Serving", OSDI 2020):

    d = x[features] ≤ thresholds                    [trees, rows, nodes]
    e = (d·C ≥ b)                                   [trees, rows, leaves]; C is 1, −1 or 0 where a leaf is on the
                                                    yes side of a node, on its no side, or not below it;
                                                    b counts the yes sides, so that no sum exceeds it
    y = Σ over trees of e·W                         [rows, targets]

Trees that are too large for that are traversed level by level, all rows and trees at once:

    i = roots;  i = Where(x[features[i]] ≤ thresholds[i], yes[i], no[i])        once per level of the deepest tree

Skips: string labels that are used; leaves that score different subsets of the targets, where that matters; undefined
transforms of a single score.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import onnx_ir as ir

from passes.legalize.ml import common as ml
from passes.legalize.ml.common import DOMAIN, FLOAT, Features
from passes.legalize.ml.tree_ensembles import LEAF, MEMBER, Ensemble, Path, read_v3, read_v5
from passes.rewriting.base import Exactness, Skip
from passes.rewriting.edit import Edit
from passes.rewriting.rewrite import NodeContext, NodeRewrite

_OLDEST, _WITH_WHERE = 7, 9
"""The oldest opset of the standard operators, and the first that has Where and IsNaN. onnxmltools writes both."""
_TRAVERSABLE = 11
"""The first opset that has GatherElements."""
_COMPARISONS = {"LT": "Less", "GT": "Greater", "LEQ": "Less", "GTE": "Greater"}

Column = Callable[[np.ndarray], ir.Value]
"""Selects, from an array with one entry per node, the entries of the evaluated nodes."""


@dataclass(frozen=True)
class _Trees(Features):
    ensemble: Ensemble
    precision: ir.DataType
    """float32 or float64."""


class _TreeRule(NodeRewrite[_Trees]):
    exactness = Exactness.ROUNDING
    max_cells: ClassVar[int] = 2**22
    """The maximum size of the matrix of paths; larger trees are traversed."""

    def _read(self, node: ir.Node, context: NodeContext) -> _Trees | Skip | None:
        simple = node.op_type == "TreeEnsembleRegressor" and (
            node.attributes.get_string("post_transform", "NONE") in ("NONE", "LOGISTIC", "SOFTMAX")
        )
        found = ml.read(node, context.scope, oldest=_OLDEST if simple else _WITH_WHERE)
        if not isinstance(found, Features):
            return found
        precision = ir.DataType.DOUBLE if found.dtype == ir.DataType.DOUBLE else FLOAT
        ensemble = read_v5(node) if node.op_type == "TreeEnsemble" else read_v3(node, precision.numpy())
        if isinstance(ensemble, Skip):
            return ensemble
        inner = ensemble.mode != LEAF
        if inner.any() and not 0 <= ensemble.feature[inner].min() <= ensemble.feature[inner].max() < found.columns:
            return Skip(f"a node refers to a feature beyond the {found.columns} columns")
        trees = _Trees(node, found.dtype, found.shape, ensemble, precision)
        if ml.opset(context.scope) < _TRAVERSABLE and self._paths(ensemble) is None:
            return Skip(f"opset {ml.opset(context.scope)} is too old to traverse its trees: use convert-opset")
        return trees

    def _paths(self, trees: Ensemble) -> Sequence[Sequence[Path]] | None:
        """The paths of each tree; None if the trees are to be traversed."""
        paths = trees.paths(1024) if trees.aggregate in ("SUM", "AVERAGE") else None
        if paths is None:
            return None
        nodes = max((len({node for path in tree for node, _ in path.turns}) for tree in paths), default=0)
        return paths if len(paths) * nodes * max(map(len, paths)) <= self.max_cells else None

    def _sum(self, match: _Trees, edit: Edit) -> ir.Value:
        """The aggregated weights of the leaves, [rows, targets]."""
        x = ml.matrix(match, edit, match.precision)
        trees, paths = match.ensemble, self._paths(match.ensemble)
        scores = _by_walking(match, x, edit) if paths is None else _by_paths(match, paths, x, edit)
        return _average(scores, trees, edit)


class TreeEnsembleRegressor(_TreeRule):
    """Write a TreeEnsembleRegressor or a TreeEnsemble as tensor operations."""

    name = "tree-ensemble"
    operators = frozenset({(DOMAIN, "TreeEnsembleRegressor"), (DOMAIN, "TreeEnsemble")})

    def match(self, node: ir.Node, context: NodeContext) -> _Trees | Skip | None:
        """Match valid ensembles whose base values have a defined meaning."""
        found = self._read(node, context)
        if not isinstance(found, _Trees) or not len(found.ensemble.base) or found.ensemble.targets == 1:
            return found
        if None in map(found.ensemble.scores, range(found.ensemble.targets)):
            return Skip("its leaves score different targets, so base values are ambiguous")
        return found

    def rewrite(self, match: _Trees, edit: Edit) -> Sequence[ir.Value | None]:
        """The sum, the base values and the transform; for one target, only PROBIT has an effect."""
        ml.begin(edit)
        trees, scores = match.ensemble, self._sum(match, edit)
        if len(trees.base) == trees.targets:  # base values are not added to targets without scores
            scored = [trees.targets == 1 or trees.scores(target) is not False for target in range(trees.targets)]
            scores = edit.op("Add", [scores, edit.constant(np.where(scored, trees.base, 0).astype(trees.base.dtype))])
        wanted = match.dtype if match.node.op_type == "TreeEnsemble" else FLOAT
        scores = ml.cast(scores, wanted, edit)
        if trees.targets > 1 or trees.transform == "PROBIT":
            scores = ml.transform(scores, trees.transform, edit)
        return [scores]


class TreeEnsembleClassifier(_TreeRule):
    """Write a TreeEnsembleClassifier as tensor operations."""

    name = "tree-ensemble-classifier"
    operators = frozenset({(DOMAIN, "TreeEnsembleClassifier")})

    def match(self, node: ir.Node, context: NodeContext) -> _Trees | Skip | None:
        """Match valid ensembles whose scores are defined."""
        found = self._read(node, context)
        if not isinstance(found, _Trees):
            return found
        strings, trees = ml.string_labels(node), found.ensemble
        if strings is not None:
            return strings
        scored = [trees.scores(target) for target in range(trees.targets)]
        single = trees.targets == 1 or (trees.targets == 2 and scored[1] is False)
        if None in scored and trees.targets > 1 and (trees.targets == 2 or not len(trees.base)):
            return Skip("its leaves score different classes")
        if single and trees.targets == 2 and (trees.transform == "PROBIT" or len(trees.base) == 2):
            return Skip("PROBIT and two base values are not defined for one score and two labels")
        if trees.targets == 1 and len(trees.base) > 1:
            return Skip("it has more base values than classes")
        return found

    def rewrite(self, match: _Trees, edit: Edit) -> Sequence[ir.Value | None]:
        """The labels and the scores."""
        ml.begin(edit)
        node = match.node
        strings = len(node.attributes.get_strings("classlabels_strings", []))
        labels = list(range(strings)) if strings else ml.integers(node, "classlabels_int64s").tolist()
        chosen, scores = self._decide(match, labels, self._sum(match, edit), edit)
        return [None if strings else chosen, scores]

    def _decide(self, match: _Trees, labels: Sequence[int], scores: ir.Value, edit: Edit) -> tuple[ir.Value, ir.Value]:
        decide = self._decide_multiclass if match.ensemble.targets > 2 else self._decide_binary
        return decide(match, labels, scores, edit)

    @staticmethod
    def _decide_multiclass(
        match: _Trees, labels: Sequence[int], scores: ir.Value, edit: Edit
    ) -> tuple[ir.Value, ir.Value]:
        """The label of the largest score, and the transformed scores; classes without scores are never chosen."""
        trees, base = match.ensemble, match.ensemble.base
        scores = rated = edit.op("Add", [scores, edit.constant(base)]) if len(base) else scores
        never = [not len(base) and trees.scores(each) is False for each in range(trees.targets)]
        if any(never):
            low = np.where(never, -np.inf, 0).astype(match.precision.numpy())
            rated = edit.op("Add", [scores, edit.constant(low)])
        best = edit.op("ArgMax", [rated], {"axis": 1, "keepdims": 0})
        return ml.pick(labels, best, edit), ml.transform(ml.cast(scores, FLOAT, edit), trees.transform, edit)

    @staticmethod
    def _decide_binary(match: _Trees, labels: Sequence[int], scores: ir.Value, edit: Edit) -> tuple[ir.Value, ir.Value]:
        """The label by a threshold on the second (or only) score, and two transformed scores."""
        trees = match.ensemble
        base, kind = trees.base, trees.transform
        weights = [weight for each in trees.weights.values() for _, weight in each]
        targets = {target for each in trees.weights.values() for target, _ in each}
        positive, is_pair = all(weight >= 0 for weight in weights), trees.targets == 2 and len(targets) == 1
        single = trees.targets == 1 or trees.scores(1) is False
        if single:
            columns = [np.array([0])] if trees.targets == 2 else []
            rated = edit.op("Gather", [scores, edit.constant(columns[0])], {"axis": 1}) if columns else scores
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
            return chosen, ml.transform(ml.cast(scores, FLOAT, edit), kind, edit)
        rated = ml.cast(rated, FLOAT, edit)
        if trees.targets == 1:
            return chosen, ml.transform(rated, kind if kind == "PROBIT" else "NONE", edit)
        return chosen, ml.pair(rated, edit, positive=positive, kind=kind)


def _average(scores: ir.Value, trees: Ensemble, edit: Edit) -> ir.Value:
    if trees.aggregate != "AVERAGE":
        return scores
    return edit.op("Div", [scores, ml.number(len(trees.roots), scores, edit)])


def _by_paths(match: _Trees, paths: Sequence[Sequence[Path]], x: ir.Value, edit: Edit) -> ir.Value:
    """Evaluate all nodes, and select the leaves by a product with the paths."""
    trees, dtype = match.ensemble, match.precision.numpy()
    inner = [sorted({node for path in tree for node, _ in path.turns}) for tree in paths]
    nodes, leaves = max(1, *map(len, inner)), max(map(len, paths))
    place = np.zeros((len(paths), nodes), np.int64)
    turns = np.zeros((len(paths), nodes, leaves), dtype)
    needed = np.full((len(paths), 1, leaves), 1, dtype)  # entries without a leaf, of sum 0, are never selected
    weights = np.zeros((len(paths), leaves, trees.targets), dtype)
    for tree, (found, own) in enumerate(zip(paths, inner, strict=True)):
        place[tree, : len(own)] = own
        where = {node: index for index, node in enumerate(own)}
        for leaf, path in enumerate(found):
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
    sides = edit.op("Cast", [decided], {"to": match.precision.value})
    sums = edit.op("MatMul", [sides, edit.constant(turns)])
    reached = edit.op("Greater", [sums, edit.constant(needed - 0.5)])
    reached = edit.op("Cast", [reached], {"to": match.precision.value})
    by_tree = edit.op("MatMul", [reached, edit.constant(weights)])
    return edit.op("ReduceSum", [by_tree, edit.constant(np.array([0]))], {"keepdims": 0})


def _by_walking(match: _Trees, x: ir.Value, edit: Edit) -> ir.Value:
    """Traverse all trees, level by level."""
    trees, dtype = match.ensemble, match.precision.numpy()
    inner = set(np.flatnonzero(trees.mode != LEAF).tolist())
    now = edit.constant(np.tile(trees.roots, (match.rows, 1)))

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
    reduce = {"MIN": "ReduceMin", "MAX": "ReduceMax"}.get(trees.aggregate, "ReduceSum")
    result = edit.op(reduce, [column(weights), edit.constant(np.array([1]))], {"keepdims": 0})
    if combine is None or (weights[[*trees.weights]] != none).all():
        return result
    is_none = edit.op("Equal", [result, ml.number(none, result, edit)])
    return edit.op("Where", [is_none, ml.number(0, result, edit), result])


def _decide(seen: ir.Value, trees: Ensemble, column: Column, nodes: set[int], edit: Edit) -> ir.Value:
    """Whether the comparisons of nodes hold.

    Args:
        seen: the features that the nodes compare.
        trees: the ensemble.
        column: selects the entries of the nodes, in a shape that broadcasts with ``seen``.
        nodes: the nodes that may be evaluated, without padding.
        edit: receives the new nodes.
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
    """One comparison; for NaN only NEQ holds.

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
    """Whether floats are equal, of which one is a constant number; Equal takes floats since opset 11."""
    if edit.scope.opset() >= 11:
        return edit.op("Equal", [a, b])
    differs = edit.op("Or", [edit.op("Less", [a, b]), edit.op("Greater", [a, b])])
    return edit.op("Not", [edit.op("Or", [differs, _is_nan(a, edit)])])


def _is_nan(x: ir.Value, edit: Edit) -> ir.Value:
    """Whether it is not a number: every number is less than 1 or greater than 0."""
    if edit.scope.opset() >= _WITH_WHERE:
        return edit.op("IsNaN", [x])
    below, above = edit.op("Less", [x, ml.number(1, x, edit)]), edit.op("Greater", [x, ml.number(0, x, edit)])
    return edit.op("Not", [edit.op("Or", [below, above])])


def _is_member(seen: ir.Value, trees: Ensemble, column: Column, edit: Edit) -> ir.Value:
    """Whether each feature is in the set of its node."""
    size = max(map(len, trees.members.values()))
    sets = np.zeros((len(trees.mode), size), trees.threshold.dtype)
    for node, members in trees.members.items():
        sets[node] = np.resize(members, size)  # repeats elements to fill up, which does not change the set
    shape = edit.scope.shape(seen)
    assert shape is not None
    axis = edit.constant(np.array([len(shape)]))
    equal = _equal(edit.op("Unsqueeze", [seen, axis]), column(sets), edit)
    count = edit.op("ReduceMax", [edit.op("Cast", [equal], {"to": FLOAT.value}), axis], {"keepdims": 0})
    return edit.op("Greater", [count, ml.number(0.5, count, edit)])


RULES: tuple[NodeRewrite[Any], ...] = (TreeEnsembleRegressor(), TreeEnsembleClassifier())
