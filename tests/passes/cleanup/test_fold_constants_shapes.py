"""fold-constants: what shapes imply, known wholly or in part."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from passes.cleanup.fold_constants import FoldConstants
from passes.rewriting.base import Context
from tests.passes.harness import apply, operators
from tests.passes.helpers import initializers, mentioned, sealed, tiny, weigh

W = np.arange(6, dtype=np.float32).reshape(2, 3)


class TestShapes:
    def folded(self, text: str, **constants: Any) -> dict[str, Any]:
        source = tiny(text, **constants)
        apply(FoldConstants(), source)
        return initializers(source)

    def test_static(self) -> None:
        text = (
            "(float[2,3,4] x) => (float[6,4] y) { s = Shape(x) p = ReduceProd(s) t = Shape <start = 1, end = -1> (x) "
        )
        found = self.folded(
            text + "k = Mul(t, two) r = Concat <axis = 0> (k, m) y = Reshape(x, r) }",
            two=np.array([2]),
            m=np.array([-1]),
        )
        np.testing.assert_array_equal(found["r"], [6, -1])

    @pytest.mark.parametrize(
        ("attributes", "expected"),
        [
            ("", [2, 3, 4]),
            ("<start = 1>", [3, 4]),
            ("<end = -1>", [2, 3]),
            ("<start = -2, end = 9>", [3, 4]),
            ("<start = 2, end = 1>", []),
        ],
    )
    def test_parts(self, attributes: str, expected: list[int]) -> None:
        found = self.folded(f"(float[2,3,4] x, int64 k) => (int64[n] y) {{ s = Shape {attributes} (x) y = Add(s, k) }}")
        np.testing.assert_array_equal(found["s"], expected)
        assert found["s"].dtype == np.int64

    @pytest.mark.parametrize(
        ("path", "expected"),
        [
            ("r = Gather(s, one)", 12),
            ("r = Gather(s, ones)", [12]),
            ("r = Slice(s, ones, twos)", [12]),
            ("r = Slice(s, ones, twos, zeros, ones)", [12]),
            ("g = Gather(s, one) r = Unsqueeze(g, zeros)", [12]),
            ("g = Slice(s, ones, twos) r = Squeeze(g)", 12),
            ("g = Gather(s, one) r = Reshape(g, ones)", [12]),
            ("g = Gather(s, one) r = Cast <to = 7> (g)", 12),
            ("g = Concat <axis = 0> (s, s) i = Identity(g) r = Gather(i, four)", 12),
            ("g = Gather(s, one) h = Mul(g, one) r = Div(h, four)", 3),
        ],
    )
    def test_one_known_dimension_among_unknown_ones(self, path: str, expected: Any) -> None:
        lists = {"one": 1, "ones": [1], "twos": [2], "zeros": [0], "four": 4}
        constants = {name: np.array(value) for name, value in lists.items()}
        source = tiny(
            f"(float[n,12,m] x, int64 k) => (int64[a] y) {{ s = Shape(x) {path} t = Add(r, k) y = Reshape(t, minus) }}",
            minus=np.array([-1]),
            **mentioned(path, constants),
        )
        apply(FoldConstants(), source)
        np.testing.assert_array_equal(initializers(source)["r"], expected)
        assert operators(source) == ["Add", "Reshape"]

    @pytest.mark.parametrize(
        "path", ["r = Gather(s, zero)", "r = Slice(s, zero1, two)", "r = ReduceProd <keepdims = 0> (s)"]
    )
    def test_unknown_dimensions(self, path: str) -> None:
        constants = {"zero": np.array(0), "zero1": np.array([0]), "two": np.array([2])}
        source = tiny(
            f"(float[n,12,m] x, int64 k) => (int64[a] y) {{ s = Shape(x) {path} t = Add(r, k) y = Reshape(t, minus) }}",
            minus=np.array([-1]),
            **mentioned(path, constants),
        )
        assert not apply(FoldConstants(), source).rewrites

    def test_size(self) -> None:
        assert self.folded("(float[2,3] x, int64 k) => (int64 y) { s = Size(x) y = Add(s, k) }") == {"s": 6}
        source = tiny("(float[n,3] x, int64 k) => (int64 y) { s = Size(x) y = Add(s, k) }")
        assert not apply(FoldConstants(), source).rewrites

    def test_what_one_fold_says_of_the_next_shape(self) -> None:
        """A shape is known only once the constants before it are: folding goes round by round."""
        source = tiny(
            """(float[4,6] x) => (float[24] y) {
                a = Shape(x) b = Gather(a, zero) c = Gather(a, one) d = Mul(b, c)
                e = Unsqueeze(d, z) f = Concat <axis = 0> (e, o) g = Reshape(x, f)
                h = Shape(g) i = Gather(h, zero) j = Unsqueeze(i, z) y = Reshape(g, j) }""",
            zero=np.array(0),
            one=np.array(1),
            z=np.array([0]),
            o=np.array([1]),
        )
        apply(FoldConstants(), source)
        assert operators(source) == ["Reshape", "Reshape"]

    def test_a_wrong_declaration_says_nothing(self) -> None:
        text = "(float[2,3] x, int64[2] k) => (int64[2] y) <float[5,3] h> { h = Neg(x) s = Shape(h) y = Add(s, k) }"
        source = tiny(text)
        FoldConstants().run(source, Context())
        np.testing.assert_array_equal(initializers(source)["s"], [2, 3])

    def test_the_shape_of_a_weight_without_reading_it(self) -> None:
        source = tiny("(int64[2] k) => (int64[2] y) { t = Transpose(w) s = Shape(w) y = Add(s, k) }", w=W)
        weigh(source, "w", sealed(4096, 4095))
        source.graph.remove(source.graph[0], safe=True)
        FoldConstants().run(source, Context())
        np.testing.assert_array_equal(initializers(source)["s"], [4096, 4095])
