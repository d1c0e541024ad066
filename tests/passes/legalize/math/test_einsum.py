"""decompose-einsum: diagonals, ellipses, broadcasting, scalars and several operands, compared with numpy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from passes.legalize.math.einsum import decompose_einsum
from tests.passes.device import Device
from tests.passes.legalize.one_node import Case, case, declare, legalized, normal, skipped

EQUATIONS: list[tuple[str, list[tuple[int, ...]]]] = [
    ("ij,jk->ik", [(2, 3), (3, 4)]),
    ("ij,jk", [(2, 3), (3, 4)]),
    ("ba", [(2, 3)]),
    (" i j , j k -> i k ", [(2, 3), (3, 4)]),
    ("...ij,...jk->...ik", [(2, 3, 4), (2, 4, 5)]),
    ("...ij,...jk", [(2, 1, 3, 4), (5, 4, 5)]),
    ("b...i,i...j->...bj", [(2, 3, 4), (4, 3, 5)]),
    ("...->...", [(2, 3)]),
    ("i...->...", [(2, 3, 4)]),
    ("ii->i", [(3, 3)]),
    ("...ii->...", [(2, 3, 3)]),
    ("iij->ij", [(3, 3, 2)]),
    ("iijj->ij", [(2, 2, 3, 3)]),
    ("iji->j", [(3, 2, 3)]),
    ("aab,bcc->ac", [(2, 2, 3), (3, 4, 4)]),
    ("->", [()]),
    (",i->i", [(), (3,)]),
    ("i,i->", [(3,), (3,)]),
    ("i,j", [(3,), (2,)]),
    ("ij->", [(2, 3)]),
    ("abc,d->", [(2, 3, 4), (5,)]),
    ("ij,ij->i", [(2, 1), (2, 3)]),
    ("ij,kj->ik", [(2, 1), (3, 4)]),
    ("ij,jk,kl->il", [(2, 3), (3, 4), (4, 2)]),
    ("ijk,ilm,njm,nlk,abc->", [(2, 3, 2), (2, 2, 3), (2, 3, 3), (2, 2, 2), (1, 2, 1)]),
    ("bqhd,bkhd->bhqk", [(2, 3, 2, 4), (2, 5, 2, 4)]),
]


def einsum(equation: str, shapes: list[tuple[int, ...]], dtype: type = np.float32) -> tuple[Case, list[np.ndarray]]:
    arrays = [normal(*shape, dtype=dtype, seed=index) for index, shape in enumerate(shapes)]
    expected = np.asarray(np.einsum(equation, *arrays), dtype)
    return declare(case("Einsum", arrays, {"equation": equation}, opset=17), [expected]), [expected]


def test_all_forms(device: Device) -> None:
    for equation, shapes in EQUATIONS:
        legalized(decompose_einsum, *einsum(equation, shapes), device=device)


def test_a_product_of_matrices_is_one() -> None:
    assert legalized(decompose_einsum, *einsum("ij,jk->ik", [(2, 3), (3, 4)])) == ["MatMul"]
    assert legalized(decompose_einsum, *einsum("i,j->ij", [(2,), (3,)])) == ["Reshape", "Reshape", "Mul"]
    assert legalized(decompose_einsum, *einsum("ij->ji", [(2, 3)])) == ["Transpose"]


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int32, np.int64, np.float64, np.float16])
def test_dtypes(dtype: type, device: Device) -> None:
    tolerance = 1e-2 if dtype == np.float16 else 1e-6
    source, expected = einsum("ij,jk->ik", [(2, 3), (3, 4)], dtype)
    if dtype == np.float16:
        device = None  # MIGraphX cuts off what ONNX Runtime rounds
    legalized(decompose_einsum, source, expected, device=device, atol=tolerance)


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("ij,jk->ik", [(2, 3), (2, 3)]),
        ("ij->ij", [(2, 3, 4)]),
        ("ii->i", [(2, 3)]),
        ("ij->k", [(2, 3)]),
        ("ij->ii", [(3, 3)]),
        ("ij,jk->ik", [(2, 3)]),
        ("i1->i", [(2, 3)]),
    ],
)
def test_equations_that_do_not_fit(equation: str, shapes: list[tuple[int, ...]]) -> None:
    source = case("Einsum", [normal(*shape) for shape in shapes])
    source.proto.graph.node[0].attribute.add(name="equation", type=3, s=equation.encode())
    assert skipped(decompose_einsum, source) == ["the equation does not fit the shapes of its operands"]


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_equation(data: st.DataObject) -> None:
    lengths = {label: data.draw(st.integers(1, 3)) for label in "abcd"}
    dots = data.draw(st.lists(st.integers(1, 3), max_size=2))
    terms, shapes = [], []
    for _ in range(data.draw(st.integers(1, 3))):
        labels = data.draw(st.lists(st.sampled_from("abcd"), max_size=3))
        place = data.draw(st.integers(-1, len(labels)))
        sizes = [lengths[label] for label in labels]
        text = "".join(labels)
        if place >= 0:
            own = dots[data.draw(st.integers(0, len(dots))) :]
            own = [data.draw(st.sampled_from([1, size])) for size in own]
            text, sizes = f"{text[:place]}...{text[place:]}", sizes[:place] + own + sizes[place:]
        terms.append(text)
        shapes.append(tuple(sizes))
    equation = ",".join(terms)
    used = sorted({*equation} - {*".,"})
    kept = data.draw(st.permutations(data.draw(st.lists(st.sampled_from(used), unique=True)) if used else []))
    implicit = data.draw(st.booleans())
    if not implicit:
        equation += "->" + ("..." if "..." in equation else "") + "".join(kept)
    source, expected = einsum(equation, shapes, np.float64)
    legalized(decompose_einsum, source, expected, atol=1e-9)
