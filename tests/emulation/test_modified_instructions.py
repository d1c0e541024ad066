"""What surrounds an instruction: modifiers of operands and results, halves, moves between lanes, pairs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.emulation.bench import Bench
from tests.emulation.test_vector_instructions import POISON, D, F, H, L, N, U, W, draw, fma, least, most, words

Array = np.ndarray[Any, np.dtype[Any]]
EVERY_THIRD = 0x9249249249249249


def lanes(wave: int, active: int) -> Array:
    return np.array([active >> lane & 1 for lane in range(wave)], bool)


def equal(found: Array, expected: Array) -> bool:
    if found.dtype.kind == "f":
        same = (found == expected) & (np.signbit(found) == np.signbit(expected))
        return bool((same | np.isnan(found) & np.isnan(expected)).all())
    return bool((found == expected).all())


def halves(x: Array) -> tuple[Array, Array]:
    return (x & 0xFFFF).astype(W).view(H), (x >> 16).astype(W).view(H)


def joined(low: Array, high: Array) -> Array:
    return low.astype(H).view(W).astype(U) | high.astype(H).view(W).astype(U) << 16


def pairs(wave: int, seed: int) -> Array:
    return joined(draw(H, wave, seed), draw(H, wave, seed + 50))


@pytest.mark.parametrize(
    ("text", "compute"),
    [
        ("v_add_f32_e64 v10, -v1, |v2|", lambda a, b: -a + np.abs(b)),
        ("v_mul_f32_e64 v10, -|v1|, v2", lambda a, b: -np.abs(a) * b),
        ("v_add_f32_e64 v10, v1, v2 clamp", lambda a, b: np.clip(np.nan_to_num(a + b, nan=0), 0, 1) + 0.0),
        ("v_mul_f32_e64 v10, v1, v2 mul:4", lambda a, b: (a * b) * F.type(4)),
        ("v_mul_f32_e64 v10, v1, v2 div:2", lambda a, b: (a * b) / F.type(2)),
        ("v_add_f32 v10, 0.5, v2", lambda a, b: F.type(0.5) + b),
        ("v_add_f32 v10, 0x40490fdb, v2", lambda a, b: np.uint32(0x40490FDB).view(F) + b),
        ("v_mul_f32 v10, s16, v2", lambda a, b: F.type(3) * b),
        ("v_sub_f32 v10, -4.0, v2", lambda a, b: F.type(-4) - b),
        ("v_fmac_f32 v10, v1, v2", lambda a, b: np.full_like(a, np.nan)),  # v10 is poison, a NaN
        ("v_fmaak_f32 v10, v1, v2, 0x40490fdb", lambda a, b: fma(a, b, np.uint32(0x40490FDB).view(F)).astype(F)),
        ("v_fmamk_f32 v10, v1, 0x40490fdb, v2", lambda a, b: fma(a, np.uint32(0x40490FDB).view(F), b).astype(F)),
    ],
)
def test_operands_and_results_are_modified(bench: Bench, text: str, compute: Callable[..., Array]) -> None:
    if bench.isa == "gfx90a" and "fma" in text and "0x" in text:
        return  # it came later
    a, b = draw(F, bench.wave, 3), draw(F, bench.wave, 4)
    (found,) = bench(text, {1: a.view(U), 2: b.view(U)}, scalars=[0x40400000], out=[10])
    with np.errstate(all="ignore"):
        assert equal(found.view(F), compute(a, b).astype(F))


@pytest.mark.parametrize(("low", "high"), [((0, 0), (1, 1)), ((1, 0), (0, 1)), ((1, 1), (0, 0))])
@pytest.mark.parametrize(("low_sign", "high_sign"), [((1, 1), (1, 1)), ((-1, 1), (1, 1)), ((1, -1), (1, -1))])
def test_packed_halves(bench: Bench, low: Any, high: Any, low_sign: Any, high_sign: Any) -> None:
    a, b = pairs(bench.wave, 1), pairs(bench.wave, 2)
    functions = {"add": np.add, "mul": np.multiply, "fma": fma, "max": most, "min": least}
    lines = []
    for k, name in enumerate(functions):
        third = name == "fma"
        bits = (low, high, [int(sign < 0) for sign in low_sign], [int(sign < 0) for sign in high_sign])
        written = [",".join(map(str, [*each, 0][: 2 + third])) for each in bits]
        modifiers = "op_sel:[{}] op_sel_hi:[{}] neg_lo:[{}] neg_hi:[{}]".format(*written)
        lines.append(f"v_pk_{name}_f16 v{10 + k}, v1, v2{', v2' if third else ''} {modifiers}")
    found = bench("\n".join(lines), {1: a, 2: b}, out=range(10, 15))
    for half, (chosen, sign) in enumerate(((low, low_sign), (high, high_sign))):
        x, y = (halves(each)[chosen[n]] * H.type(sign[n]) for n, each in enumerate((a, b)))
        for k, (name, function) in enumerate(functions.items()):
            with np.errstate(all="ignore"):
                expected = function(x, y, halves(b)[0]) if name == "fma" else function(x, y)
            assert equal(halves(found[k])[half], expected.astype(H)), (name, half)


def test_packed_floats(bench_for: Callable[[str], Bench]) -> None:
    bench = bench_for("gfx942")
    a, b, c = (draw(L, 64, seed) for seed in (1, 2, 3))
    vectors = {2 * n + k: word for n, x in enumerate((a, b, c), 1) for k, word in enumerate(words(x))}
    text = """
    v_pk_add_f32 v[10:11], v[2:3], v[4:5] op_sel_hi:[1,0] neg_lo:[0,1] neg_hi:[0,1]
    v_pk_mul_f32 v[12:13], v[2:3], v[4:5] op_sel:[1,0]
    v_pk_fma_f32 v[14:15], v[2:3], v[4:5], v[6:7] op_sel_hi:[1,1,0]
    v_pk_mov_b32 v[16:17], v[2:3], v[4:5] op_sel:[1,0]
    v_lshl_add_u64 v[18:19], v[2:3], 3, v[4:5]
    v_mov_b64 v[20:21], v[2:3]
    """
    found = bench(text, vectors, out=range(10, 22))
    (a0, a1), (b0, b1), (c0, _) = ([word.view(F) for word in words(x)] for x in (a, b, c))
    with np.errstate(all="ignore"):
        expected = [a0 - b0, a1 - b0, a1 * b0, a1 * b1, fma(a0, b0, c0).astype(F), fma(a1, b1, c0).astype(F), a1, b0]
    for k, each in enumerate(expected):
        assert equal(found[k].view(F), each), k
    for k, each in ((8, (a << L.type(3)) + b), (10, a)):
        assert equal(found[k].astype(L) | found[k + 1].astype(L) << L.type(32), each)


def test_products_of_mixed_operands(bench: Bench) -> None:
    a, b, c = pairs(bench.wave, 5), pairs(bench.wave, 6), draw(F, bench.wave, 7)
    text = """
    v_fma_mix_f32 v10, -v1, v2, v3 op_sel:[1,0,0] op_sel_hi:[1,1,0]
    v_fma_mixlo_f16 v11, v1, v2, |v3| op_sel:[0,1,0] op_sel_hi:[1,1,0]
    v_fma_mixhi_f16 v12, v1, v2, 1.0 op_sel_hi:[1,1,0]
    """
    found = bench(text, {1: a, 2: b, 3: c.view(U)}, out=[10, 11, 12])
    (a0, a1), (b0, b1) = halves(a), halves(b)
    with np.errstate(all="ignore"):
        assert equal(found[0].view(F), fma(-a1, b0, c).astype(F))
        assert equal(halves(found[1])[0], fma(a0, b1, np.abs(c)).astype(H))
        assert equal(halves(found[2])[1], fma(a0, b0, np.ones_like(c)).astype(H))
    assert ((found[1] >> 16 == POISON >> 16) & (found[2] & 0xFFFF == POISON & 0xFFFF)).all()


def test_the_rest_of_a_register_with_a_half(bench_for: Callable[[str], Bench]) -> None:
    a = pairs(64, 8)
    text = "v_add_f16 v10, v1, v1\n v_fma_f16 v11, v1, v1, v1\n v_fma_f16 v12, v1, v1, v1 op_sel:[1,0,0,1]"
    old = bench_for("gfx942")(text, {1: a}, out=[10, 11, 12])
    assert [int(x[0] >> 16) for x in old[:2]] == [0, int(POISON) >> 16]  # cleared, but for a few instructions
    text = "v_add_f16 v10.l, v1.h, v1.l\n v_add_f16 v11.h, v1.h, v1.l\n v_cvt_f32_f16 v12, v1.h"
    new = bench_for("gfx1100")(text, {1: a[:32]}, out=[10, 11, 12])
    low, high = halves(a[:32])
    with np.errstate(all="ignore"):
        assert equal(halves(old[2])[1], fma(halves(a)[1], halves(a)[0], halves(a)[0]).astype(H))
        assert equal(halves(new[0])[0], high + low)
        assert equal(halves(new[1])[1], high + low)
        assert equal(new[2].view(F), high.astype(F))
    assert ((new[0] >> 16 == POISON >> 16) & (new[1] & 0xFFFF == POISON & 0xFFFF)).all()


@pytest.mark.parametrize("isa", ["gfx942", "gfx1201"])
def test_floats_of_8_bits(bench_for: Callable[[str], Bench], isa: str) -> None:
    """One zero and one NaN on gfx942, those of the OCP on gfx1201; a half of the result keeps the other."""
    bench = bench_for(isa)
    packed = np.arange(256, dtype=np.uint8).view(U)[: bench.wave]
    near = np.float32([0, -0.0, 1, 448, 449, 464.1, 240, 248.1, -57344, 61441, 1e9, 2**-10, 3 * 2**-11, 2**-17, np.inf])
    a = np.concatenate((near, -near, np.random.default_rng(0).normal(size=34) * 50)).astype(F)[: bench.wave]
    b = np.concatenate((np.float32([np.nan]), a[:-1] * F.type(1.125)))
    for kind, dtype in (("fp8", ml_dtypes.float8_e4m3fnuz), ("bf8", ml_dtypes.float8_e5m2fnuz)):
        number = np.dtype(dtype if bench.old else {"fp8": ml_dtypes.float8_e4m3fn, "bf8": ml_dtypes.float8_e5m2}[kind])
        byte, half = "v1 byte_sel:2", "v1 op_sel:[1,0]"
        if bench.old:
            byte, half = "v1 src0_sel:BYTE_2", "v1 src0_sel:WORD_1"
        text = f"v_cvt_f32_{kind} v10, v1\n v_cvt_f32_{kind} v11, {byte}\n v_cvt_pk_f32_{kind} v[12:13], {half}"
        text += f"\n v_cvt_pk_{kind}_f32 v14, v2, v3\n v_cvt_pk_{kind}_f32 v15, v2, -v3 op_sel:[0,0,1]"
        found = bench(text, {1: packed, 2: a.view(U), 3: b.view(U)}, out=range(10, 16))
        values = packed.view(np.uint8).view(number).astype(F).reshape(-1, 4)
        for array, place in zip(found, (0, 2, 2, 3), strict=False):
            assert equal(array.view(F), values[:, place])
        with np.errstate(all="ignore"):
            first, *second = (x.astype(number) for x in (a, b, -b))
        for array, other, at, poison in ((found[4], second[0], 0, 16), (found[5], second[1], 16, 0)):
            written = (array >> at).astype(W).view(np.uint8).reshape(-1, 2)
            assert (array >> poison & 0xFFFF == POISON >> poison & 0xFFFF).all()
            for k, right in enumerate((first, other)):
                narrow = written[:, k].copy().view(number)
                assert ((written[:, k] == right.view(np.uint8)) | np.isnan(narrow) & np.isnan(right)).all(), (kind, k)


def _row(function: Callable[[int], int]) -> Callable[[int], int]:
    """Return the lane that a move within rows of 16 reads; −1 if it is outside."""

    def source(lane: int) -> int:
        at = function(lane & 15)
        return (lane & ~15) + at if 0 <= at < 16 else -1

    return source


_MOVES: list[tuple[str, str, Callable[[int], int]]] = [
    ("quad_perm:[3,1,0,2]", "both", lambda lane: (lane & ~3) + (3, 1, 0, 2)[lane & 3]),
    ("row_shl:3", "both", _row(lambda lane: lane + 3)),
    ("row_shr:1", "both", _row(lambda lane: lane - 1)),
    ("row_ror:5", "both", _row(lambda lane: (lane - 5) % 16)),
    ("row_mirror", "both", _row(lambda lane: 15 - lane)),
    ("row_half_mirror", "both", _row(lambda lane: lane ^ 7)),
    ("row_bcast:15", "gfx942", lambda lane: (lane & ~15) - 1),
    ("row_bcast:31", "gfx942", lambda lane: 31 if lane > 31 else -1),
    ("wave_shr:1", "gfx942", lambda lane: lane - 1),
    ("wave_rol:1", "gfx942", lambda lane: (lane + 1) % 64),
    ("row_share:6", "gfx1100", lambda lane: (lane & ~15) + 6),
    ("row_xmask:9", "gfx1100", lambda lane: lane ^ 9),
]


@pytest.mark.parametrize("bound", ["", " bound_ctrl:1"])
@pytest.mark.parametrize(("move", "where", "source"), _MOVES)
def test_moves_within_a_wave(
    bench_for: Callable[[str], Bench], move: str, where: str, source: Callable[[int], int], bound: str
) -> None:
    for isa in ("gfx942", "gfx1100") if where == "both" else (where,):
        bench = bench_for(isa)
        wave, active = bench.wave, EVERY_THIRD | 0xF0F0F0F0F0F0F0F0
        on = lanes(wave, active)
        a, b = draw(U, wave, 1), draw(U, wave, 2)
        text = f"v_mov_b32_dpp v10, v1 {move} row_mask:0xb bank_mask:0x7{bound}\n"
        text += f"v_add_u32_dpp v11, v1, v2 {move} row_mask:0xf bank_mask:0xf{bound}"
        text = text if bench.old else text.replace("v_add_u32", "v_add_nc_u32")
        found = bench(text, {1: a, 2: b}, active=active, out=[10, 11])
        for lane in range(wave):
            at = source(lane)
            valid = at >= 0 and on[at]
            moved = a[at] if valid else U.type(0)
            writes = on[lane] and (valid or bool(bound))
            enabled = (0xB >> (lane // 16 & 3) & 1) and (0x7 >> (lane // 4 & 3) & 1)
            assert found[0][lane] == (moved if writes and enabled else POISON), (isa, lane)
            assert found[1][lane] == ((int(moved) + int(b[lane])) & 0xFFFFFFFF if writes else POISON), (isa, lane)


def test_moves_of_eight_lanes(bench_for: Callable[[str], Bench]) -> None:
    a = draw(U, 32, 1)
    (found,) = bench_for("gfx1100")("v_mov_b32_dpp v10, v1 dpp8:[7,0,1,2,3,4,5,6]", {1: a}, out=[10])
    assert equal(found, a[[(lane & ~7) + (lane - 1 & 7) for lane in range(32)]])


def test_parts_of_registers(bench_for: Callable[[str], Bench]) -> None:
    a, b = draw(U, 64, 1), draw(U, 64, 2)
    merge = "v_or_b32_sdwa v10, v1, v2"
    cases: list[tuple[str, Array]] = [
        ("v_add_u32_sdwa v10, v1, v2 dst_sel:DWORD src0_sel:BYTE_1 src1_sel:WORD_1", (a >> 8 & 255) + (b >> 16)),
        (
            "v_max_i32_sdwa v10, sext(v1), sext(v2) dst_sel:DWORD src0_sel:BYTE_2 src1_sel:WORD_0",
            np.maximum((a >> 16).astype(np.int8).astype(N), b.astype(np.int16).astype(N)).view(U),
        ),
        (f"{merge} dst_sel:WORD_1 dst_unused:UNUSED_PAD src0_sel:DWORD src1_sel:DWORD", (a | b) << 16),
        (
            f"{merge} dst_sel:BYTE_1 dst_unused:UNUSED_PRESERVE src0_sel:DWORD src1_sel:DWORD",
            ((a | b) & 255) << 8 | POISON & 0xFFFF00FF,
        ),
        (
            f"{merge} dst_sel:BYTE_1 dst_unused:UNUSED_SEXT src0_sel:DWORD src1_sel:DWORD",
            ((a | b).astype(np.int8).astype(N) << 8).view(U),
        ),
        (
            "v_add_f32_sdwa v10, -v1, |v2| dst_sel:DWORD src0_sel:DWORD src1_sel:DWORD",
            (-a.view(F) + np.abs(b.view(F))).view(U),
        ),
        (
            "v_mul_f16_sdwa v10, -|v1|, v2 dst_sel:DWORD src0_sel:WORD_1 src1_sel:WORD_0",
            joined(-np.abs(halves(a)[1]) * halves(b)[0], np.zeros(64, H)),
        ),
    ]
    bench = bench_for("gfx942")
    for text, expected in cases:
        (found,) = bench(text.replace("DWORD src0", "DWORD dst_unused:UNUSED_PAD src0"), {1: a, 2: b}, out=[10])
        view = F if "f32" in text else U
        if "f16" in text:
            assert equal(halves(found)[0], halves(expected)[0]) and not (found >> 16).any()
        else:
            assert equal(found.view(view), expected.view(view)), text
    text = "v_cmp_eq_u16_sdwa s[20:21], v1, v2 src0_sel:BYTE_0 src1_sel:BYTE_3"
    found = bench(text, {1: a, 2: b & U.type(0xFFFFFF) | (a & U.type(254)) << 24}, out_scalars=["s20", "s21"])
    expected = np.packbits((a & 1) == 0, bitorder="little").view(U)
    assert [int(found[0][0]), int(found[1][0])] == expected.tolist()


def test_carries(bench: Bench) -> None:
    a, b, wave = draw(U, bench.wave, 1), draw(U, bench.wave, 2), bench.wave
    mask, add = ("vcc", "v_addc_co_u32") if bench.old else ("vcc_lo", "v_add_co_ci_u32")
    sub, other = ("v_subb_co_u32", "s[20:21]") if bench.old else ("v_sub_co_ci_u32", "s20")
    reverse = "v_subbrev_co_u32" if bench.old else "v_subrev_co_ci_u32"
    text = f"""
    v_add_co_u32 v10, {mask}, v1, v2
    {add}_e64 v11, {other}, v1, v2, {mask}
    {sub}_e64 v12, {mask}, v1, v2, {other}
    {reverse}_e64 v13, {other}, v1, v2, {mask}
    v_cndmask_b32_e64 v14, v1, v2, {other}
    """
    found = bench(text, {1: a, 2: b}, out=range(10, 15))
    x, y = a.astype(np.int64), b.astype(np.int64)
    one = x + y >> 32
    two = x + y + one >> 32
    three = (x - y - two < 0).astype(np.int64)
    four = y - x - three < 0
    for k, expected in enumerate((x + y, x + y + one, x - y - two, y - x - three, np.where(four, b, a))):
        assert equal(found[k], expected.astype(U)), (wave, k)


def test_lanes_are_counted_read_and_written(bench: Bench) -> None:
    wave, active = bench.wave, EVERY_THIRD << 1 & (1 << bench.wave) - 1
    a = draw(U, wave, 1)
    text = """
    v_mbcnt_lo_u32_b32 v10, s16, 0
    v_mbcnt_hi_u32_b32 v10, s17, v10
    v_readfirstlane_b32 s20, v1
    v_readlane_b32 s21, v1, 5
    v_readlane_b32 s22, v1, s18
    v_mov_b32 v11, 7
    v_writelane_b32 v11, s16, 3
    """
    found = bench(
        text if bench.old else text.replace("    v_mbcnt_hi_u32_b32 v10, s17, v10\n", ""),
        {1: a},
        scalars=[0x5A5A5A5A, 0x0FF00FF0, 30],
        active=active,
        out=[10, 11],
        out_scalars=["s20", "s21", "s22"],
    )
    mask = 0x0FF00FF05A5A5A5A
    on = lanes(wave, active)
    counts = np.array([(mask & (1 << lane) - 1).bit_count() for lane in range(wave)])
    assert equal(found[0][on], counts[on])
    first = int(np.flatnonzero(on)[0])
    assert [int(x[0]) for x in found[2:]] == [a[first], a[5], a[30]]
    assert equal(found[1], np.where(np.arange(wave) == 3, 0x5A5A5A5A, np.where(on, 7, POISON)).astype(U))


def test_permutations_within_rows(bench_for: Callable[[str], Bench]) -> None:
    a, (low, high), active = draw(U, 32, 1), (0x32107654, 0xFEDCBA98), 0xFFFF0FFF
    text = "v_permlane16_b32 v10, v1, s16, s17\n v_permlanex16_b32 v11, v1, s16, s17 op_sel:[1,0]\n"
    text += "v_permlanex16_b32 v12, v1, s16, s17 op_sel:[0,1]"
    found = bench_for("gfx1100")(text, {1: a}, scalars=[low, high], active=active, out=[10, 11, 12])
    select, on = low | high << 32, lanes(32, active)
    for lane in range(32):
        at = select >> 4 * (lane & 15) & 15
        same, other = (lane & ~15) + at, (lane & ~15 ^ 16) + at
        expected = (a[same] if on[same] else POISON, a[other], a[other] if on[other] else 0)
        assert [int(x[lane]) for x in found] == [int(x) if on[lane] else int(POISON) for x in expected], lane


@pytest.mark.parametrize(
    "text",
    [
        "v_dual_mov_b32 v2, v1 :: v_dual_mov_b32 v1, v2",  # an exchange
        "v_dual_mov_b32 v2, v1 :: v_dual_add_f32 v3, v2, v4",
        "v_dual_add_f32 v2, v3, v4 :: v_dual_mul_f32 v3, v2, v1",
    ],
)
def test_two_instructions_at_once(bench_for: Callable[[str], Bench], text: str) -> None:
    given = {k: draw(F, 32, k) for k in range(1, 5)}
    found = bench_for("gfx1100")(text, {k: x.view(U) for k, x in given.items()}, out=range(1, 5))
    expected = dict(given)
    for part in text.split(" :: "):
        name, operands = part.split(" ", 1)
        to, *sources = (int(x[1:]) for x in operands.split(", "))
        x = [given[k] for k in sources]
        with np.errstate(all="ignore"):
            expected[to] = x[0] if "mov" in name else x[0] + x[1] if "add" in name else x[0] * x[1]
    for k, result in zip(expected, found, strict=True):
        assert equal(result.view(F), expected[k]), k


def test_dot_products(bench: Bench) -> None:
    a, b, c = draw(U, bench.wave, 1), draw(U, bench.wave, 2), draw(U, bench.wave, 3)
    name = "v_dot4_i32_i8 v10, v1, v2, v3" if bench.old else "v_dot4_u32_u8 v10, v1, v2, v3"
    found = bench(
        name + "\n v_dot2_f32_f16 v11, v4, v5, v6",
        {
            1: a,
            2: b,
            3: c,
            4: pairs(bench.wave, 9) & 0x3BFF3BFF,
            5: pairs(bench.wave, 8) & 0x3BFF3BFF,
            6: np.ones(bench.wave, F).view(U),
        },
        out=[10, 11],
    )
    kind = np.int8 if bench.old else np.uint8
    products = a.view(kind).astype(np.int64) * b.view(kind).astype(np.int64)
    assert equal(found[0], (products.reshape(-1, 4).sum(1) + c).astype(U))
    x, y = (p & U.type(0x3BFF3BFF) for p in (pairs(bench.wave, 9), pairs(bench.wave, 8)))
    exact = sum(h.astype(D) * g.astype(D) for h, g in zip(halves(x), halves(y), strict=True)) + 1
    assert np.allclose(found[1].view(F), exact, rtol=1e-6)


def two_over_pi(digits: int) -> int:
    """Return 2/π·2ᵈⁱᵍⁱᵗˢ, by Machin's formula in whole numbers."""
    one = 1 << digits + 64

    def arctan(inverse: int) -> int:
        total = term = one // inverse
        n, sign = 3, -1
        while term:
            term //= inverse * inverse
            total += sign * (term // n)
            n, sign = n + 2, -sign
        return total

    pi = 4 * (4 * arctan(5) - arctan(239))
    return (2 * one << digits) // pi


def test_the_digits_of_two_over_pi(bench: Bench) -> None:
    vectors = dict(zip((2, 3), words(np.full(bench.wave, 1.0)), strict=True))
    lines = [f"v_trig_preop_f64 v[{10 + 2 * k}:{11 + 2 * k}], v[2:3], {k}" for k in range(23)]
    found = bench("\n".join(lines), vectors, out=range(10, 56))
    digits = two_over_pi(1201)
    for k in range(22):
        part = digits >> 1201 - 53 * (k + 1) & (1 << 53) - 1
        value = (found[2 * k].astype(L) | found[2 * k + 1].astype(L) << L.type(32)).view(D)[0]
        assert value == np.ldexp(float(part), -53 * (k + 1)), k
