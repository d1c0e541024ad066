"""Ensembles of decision trees as tensors.

All nodes of all trees decide at once, and a product with the paths tells which leaf is reached (the GEMM strategy of
Hummingbird, "A Tensor Compiler for Unified Machine Learning Prediction Serving", OSDI 2020):

    d = x[features] ≤ thresholds                    [trees, rows, nodes]
    e = (d·C = b)                                   [trees, rows, leaves]; C is 1, −1 or 0 where a leaf lies on the
                                                    yes side of a node, on its no side, or not behind it
    y = Σ over trees of e·W                         [rows, targets]

Trees that are too large for that are walked through, all rows and trees at once, level by level:

    i = roots;  i = Where(x[features[i]] ≤ thresholds[i], yes[i], no[i]), as often as the deepest leaf demands

Skips: labels that are strings, if they are wanted; leaves that score some of the targets, but not always the same,
where it matters which; transforms of a single score that are not defined.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import onnx_ir as ir

from passes.core.base import Exactness, Skip
from passes.core.edit import Edit
from passes.core.rewrite import NodeContext, NodeRewrite
from passes.legalize.ml import scores as ml
from passes.legalize.ml.scores import DOMAIN, FLOAT, Features
from passes.legalize.ml.tree_ensembles import LEAF, MEMBER, Ensemble, Path, read_v3, read_v5

_COMPARISONS = {"LT": "Less", "GT": "Greater", "LEQ": "Less", "GTE": "Greater"}

Column = Callable[[np.ndarray], ir.Value]
"""Gives, of an array with an entry for each node, those of the nodes that decide."""


@dataclass(frozen=True)
class _Trees(Features):
    """Features and the ensemble that takes them, in float32 or float64."""

    ensemble: Ensemble
    precision: ir.DataType


class _TreeRule(NodeRewrite[_Trees]):
    exactness = Exactness.ROUNDING
    max_cells: ClassVar[int] = 2**22
    """How large the matrix of paths may be; beyond it, trees are walked through."""

    def _read(self, node: ir.Node, context: NodeContext) -> _Trees | Skip | None:
        found = ml.read(node, context.scope)
        if not isinstance(found, Features):
            return found
        precision = ir.DataType.DOUBLE if found.dtype == ir.DataType.DOUBLE else FLOAT
        ensemble = read_v5(node) if node.op_type == "TreeEnsemble" else read_v3(node, precision.numpy())
        if isinstance(ensemble, Skip):
            return ensemble
        inner = ensemble.mode != LEAF
        if inner.any() and not 0 <= ensemble.feature[inner].min() <= ensemble.feature[inner].max() < found.columns:
            return Skip(f"it asks for features beyond the {found.columns} that there are")
        return _Trees(node, found.dtype, found.shape, ensemble, precision)

    def _sum(self, match: _Trees, edit: Edit) -> ir.Value:
        """The trees' weights, aggregated: [rows, targets]."""
        x = ml.matrix(match, edit, match.precision)
        trees = match.ensemble
        paths = trees.paths(1024) if trees.aggregate in ("SUM", "AVERAGE") else None
        if paths is not None:
            nodes = max((len({node for path in tree for node, _ in path.turns}) for tree in paths), default=0)
            if len(paths) * nodes * max(map(len, paths)) <= self.max_cells:
                return _average(_by_paths(match, paths, x, edit), trees, edit)
        return _average(_by_walking(match, x, edit), trees, edit)


class TreeEnsembleRegressor(_TreeRule):
    """Write a TreeEnsembleRegressor, or a TreeEnsemble, as tensors."""

    name = "tree-ensemble"
    operators = frozenset({(DOMAIN, "TreeEnsembleRegressor"), (DOMAIN, "TreeEnsemble")})

    def match(self, node: ir.Node, context: NodeContext) -> _Trees | Skip | None:
        """Read the trees."""
        found = self._read(node, context)
        if not isinstance(found, _Trees) or not len(found.ensemble.base) or found.ensemble.targets == 1:
            return found
        if None in map(found.ensemble.scores, range(found.ensemble.targets)):
            return Skip("which targets it scores, and adds base values to, differs from leaf to leaf")
        return found

    def rewrite(self, match: _Trees, edit: Edit) -> Sequence[ir.Value | None]:
        """The sum, the base values and the transform; of the transforms, one target knows only PROBIT."""
        ml.begin(edit)
        trees, scores = match.ensemble, self._sum(match, edit)
        if len(trees.base) == trees.targets:  # but nothing is added to what is never scored
            scored = [trees.targets == 1 or trees.scores(target) is not False for target in range(trees.targets)]
            scores = edit.op("Add", [scores, edit.constant(np.where(scored, trees.base, 0).astype(trees.base.dtype))])
        wanted = match.dtype if match.node.op_type == "TreeEnsemble" else FLOAT
        scores = ml.cast(scores, wanted, edit)
        if trees.targets > 1 or trees.transform == "PROBIT":
            scores = ml.transform(scores, trees.transform, edit)
        return [scores]


class TreeEnsembleClassifier(_TreeRule):
    """Write a TreeEnsembleClassifier as tensors."""

    name = "tree-ensemble-classifier"
    operators = frozenset({(DOMAIN, "TreeEnsembleClassifier")})

    def match(self, node: ir.Node, context: NodeContext) -> _Trees | Skip | None:
        """Read the trees, and whether what they score is defined."""
        found = self._read(node, context)
        if not isinstance(found, _Trees):
            return found
        strings, trees = ml.string_labels(node), found.ensemble
        if strings is not None:
            return strings
        scored = [trees.scores(target) for target in range(trees.targets)]
        single = trees.targets == 1 or (trees.targets == 2 and scored[1] is False)
        if None in scored and trees.targets > 1 and (trees.targets == 2 or not len(trees.base)):
            return Skip("which classes it scores differs from leaf to leaf")
        if single and trees.targets == 2 and (trees.transform == "PROBIT" or len(trees.base) == 2):
            return Skip("PROBIT, or two base values, of one score for two labels is not defined")
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
        trees = match.ensemble
        base, kind = trees.base, trees.transform
        if trees.targets > 2:
            scores = edit.op("Add", [scores, edit.constant(base)]) if len(base) else scores
            rated = scores
            never = [not len(base) and trees.scores(each) is False for each in range(trees.targets)]
            if any(never):
                low = np.where(never, -np.inf, 0).astype(match.precision.numpy())
                rated = edit.op("Add", [scores, edit.constant(low)])
            best = edit.op("ArgMax", [rated], {"axis": 1, "keepdims": 0})
            return ml.pick(labels, best, edit), ml.transform(ml.cast(scores, FLOAT, edit), kind, edit)
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
            if len(base) == 2:  # the second score is told by the first
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
    """Decide everywhere, and find the leaves by a product with the paths."""
    trees, dtype = match.ensemble, match.precision.numpy()
    inner = [sorted({node for path in tree for node, _ in path.turns}) for tree in paths]
    nodes, leaves = max(1, *map(len, inner)), max(map(len, paths))
    place = np.zeros((len(paths), nodes), np.int64)
    turns = np.zeros((len(paths), nodes, leaves), dtype)
    needed = np.full((len(paths), 1, leaves), -1, dtype)  # what is no leaf is never reached
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
    reached = edit.op("Equal", [edit.op("MatMul", [sides, edit.constant(turns)]), edit.constant(needed)])
    reached = edit.op("Cast", [reached], {"to": match.precision.value})
    by_tree = edit.op("MatMul", [reached, edit.constant(weights)])
    return edit.op("ReduceSum", [by_tree, edit.constant(np.array([0]))], {"keepdims": 0})


def _by_walking(match: _Trees, x: ir.Value, edit: Edit) -> ir.Value:
    """Go down all trees, level by level."""
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
    # where a leaf does not score a target; infinity would do, were it not that MIGraphX begins with the largest number
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
        seen: the features that they look at.
        trees: whose nodes they are.
        column: gives an array's entries for them, in a shape that ``seen`` has or is broadcast from.
        nodes: those among them that matter.
        edit: where.
    """
    threshold = column(trees.threshold)
    chosen = sorted(nodes)
    modes = sorted(set(trees.mode[chosen]) - {LEAF}) or ["LEQ"]
    result: ir.Value | None = None
    for mode in modes:
        member = mode == MEMBER
        holds = _is_member(seen, trees, column, edit) if member else _compare(seen, mode, threshold, edit)
        if result is not None:
            # not Where, which ONNX Runtime does not have for booleans
            rest = edit.op("And", [result, column(trees.mode != mode)])
            holds = edit.op("Or", [edit.op("And", [holds, column(trees.mode == mode)]), rest])
        result = holds
    assert result is not None
    if trees.missing[chosen].any():
        unknown = edit.op("And", [edit.op("IsNaN", [seen]), column(trees.missing)])
        result = edit.op("Or", [result, unknown])
    return result


def _compare(seen: ir.Value, mode: str, threshold: ir.Value, edit: Edit) -> ir.Value:
    """One comparison, which nothing but NEQ holds for what is not a number.

    MIGraphX reads LessOrEqual as the contrary of Greater, which it is not for what is not a number.
    """
    equal = edit.op("Equal", [seen, threshold]) if mode not in ("LT", "GT") else None
    if mode == "NEQ":
        return edit.op("Not", [equal])
    if mode == "EQ":
        assert equal is not None
        return equal
    strict = edit.op(_COMPARISONS[mode], [seen, threshold])
    return strict if equal is None else edit.op("Or", [strict, equal])


def _is_member(seen: ir.Value, trees: Ensemble, column: Column, edit: Edit) -> ir.Value:
    """Whether each feature is in the set of its node."""
    size = max(map(len, trees.members.values()))
    sets = np.zeros((len(trees.mode), size), trees.threshold.dtype)
    for node, members in trees.members.items():
        sets[node] = np.resize(members, size)  # again from the beginning, which changes nothing
    shape = edit.scope.shape(seen)
    assert shape is not None
    axis = edit.constant(np.array([len(shape)]))
    equal = edit.op("Equal", [edit.op("Unsqueeze", [seen, axis]), column(sets)])
    count = edit.op("ReduceMax", [edit.op("Cast", [equal], {"to": FLOAT.value}), axis], {"keepdims": 0})
    return edit.op("Greater", [count, ml.number(0.5, count, edit)])


RULES: tuple[NodeRewrite[Any], ...] = (TreeEnsembleRegressor(), TreeEnsembleClassifier())
