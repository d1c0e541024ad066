"""Instructions of the scalar unit, each against a statement of it in Python's integers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tests.emulation.bench import Bench

_VALUES = (0, 1, 2, 31, 33, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 0x12345678, 0x00100004, 0xFFFF8000)
_M = 0xFFFFFFFF
Statement = Callable[[int, int], tuple[int, int | None]]
"""The result and, if it is set, the condition code, of two operands."""


def signed(x: int, bits: int = 32) -> int:
    x &= (1 << bits) - 1
    return x - (1 << bits) if x >> bits - 1 else x


def nonzero(function: Callable[[int, int], int], bits: int = 32) -> Statement:
    def statement(a: int, b: int) -> tuple[int, int]:
        result = function(a, b) & (1 << bits) - 1
        return result, int(result != 0)

    return statement


def plain(function: Callable[[int, int], int]) -> Statement:
    return lambda a, b: (function(a, b) & _M, None)


def overflow(function: Callable[[int, int], int]) -> Statement:
    def statement(a: int, b: int) -> tuple[int, int]:
        exact = function(signed(a), signed(b))
        return exact & _M, int(signed(exact) != exact)

    return statement


def field(a: int, b: int) -> int:
    return a >> (b & 31) & (1 << (b >> 16 & 127)) - 1


def signed_field(a: int, b: int) -> int:
    width = min(b >> 16 & 127, 32)
    return signed(field(a, b), width) if width else 0


_TWO: dict[str, Statement] = {
    "s_add_u32": lambda a, b: ((a + b) & _M, a + b >> 32),
    "s_sub_u32": lambda a, b: ((a - b) & _M, int(b > a)),
    "s_addc_u32": lambda a, b: ((a + b + 1) & _M, a + b + 1 >> 32),
    "s_subb_u32": lambda a, b: ((a - b - 1) & _M, int(b + 1 > a)),
    "s_add_i32": overflow(lambda a, b: a + b),
    "s_sub_i32": overflow(lambda a, b: a - b),
    "s_mul_i32": plain(lambda a, b: a * b),
    "s_mul_hi_u32": plain(lambda a, b: a * b >> 32),
    "s_mul_hi_i32": plain(lambda a, b: signed(a) * signed(b) >> 32),
    "s_min_u32": lambda a, b: (min(a, b), int(a < b)),
    "s_max_u32": lambda a, b: (max(a, b), int(a > b)),
    "s_min_i32": lambda a, b: (min(signed(a), signed(b)) & _M, int(signed(a) < signed(b))),
    "s_max_i32": lambda a, b: (max(signed(a), signed(b)) & _M, int(signed(a) > signed(b))),
    "s_and_b32": nonzero(lambda a, b: a & b),
    "s_or_b32": nonzero(lambda a, b: a | b),
    "s_xor_b32": nonzero(lambda a, b: a ^ b),
    "s_nand_b32": nonzero(lambda a, b: ~(a & b)),
    "s_nor_b32": nonzero(lambda a, b: ~(a | b)),
    "s_xnor_b32": nonzero(lambda a, b: ~(a ^ b)),
    "s_and_not1_b32 s_andn2_b32": nonzero(lambda a, b: a & ~b),
    "s_or_not1_b32 s_orn2_b32": nonzero(lambda a, b: a | ~b),
    "s_lshl_b32": nonzero(lambda a, b: a << (b & 31)),
    "s_lshr_b32": nonzero(lambda a, b: a >> (b & 31)),
    "s_ashr_i32": nonzero(lambda a, b: signed(a) >> (b & 31)),
    "s_bfe_u32": nonzero(field),
    "s_bfe_i32": nonzero(signed_field),
    "s_bfm_b32": plain(lambda a, b: ((1 << (a & 31)) - 1) << (b & 31)),
    "s_pack_ll_b32_b16": plain(lambda a, b: a & 0xFFFF | b << 16),
    "s_pack_lh_b32_b16": plain(lambda a, b: a & 0xFFFF | b & 0xFFFF0000),
    "s_pack_hh_b32_b16": plain(lambda a, b: a >> 16 | b & 0xFFFF0000),
    "s_absdiff_i32": nonzero(lambda a, b: abs(signed(a - b))),
    "s_lshl1_add_u32": lambda a, b: ((2 * a + b) & _M, int(2 * a + b > _M)),
    "s_lshl4_add_u32": lambda a, b: ((16 * a + b) & _M, int(16 * a + b > _M)),
    "s_cselect_b32": plain(lambda a, b: a),
}
_ONE: dict[str, Callable[[int], tuple[int, int | None]]] = {
    "s_mov_b32": lambda a: (a, None),
    "s_not_b32": lambda a: (a ^ _M, int(a != _M)),
    "s_brev_b32": lambda a: (int(f"{a:032b}"[::-1], 2), None),
    "s_bcnt1_i32_b32": lambda a: (a.bit_count(), int(a != 0)),
    "s_bcnt0_i32_b32": lambda a: (32 - a.bit_count(), int(a != _M)),
    "s_ctz_i32_b32 s_ff1_i32_b32": lambda a: ((a & -a).bit_length() - 1 & _M, None),
    "s_clz_i32_u32 s_flbit_i32_b32": lambda a: (32 - a.bit_length() if a else _M, None),
    "s_abs_i32": lambda a: (abs(signed(a)) & _M, int(a != 0)),
    "s_sext_i32_i8": lambda a: (signed(a, 8) & _M, None),
    "s_sext_i32_i16": lambda a: (signed(a, 16) & _M, None),
}
_CONDITIONS: dict[str, Callable[[int, int], bool]] = {
    "s_cmp_eq_u32": lambda a, b: a == b,
    "s_cmp_lg_i32": lambda a, b: a != b,
    "s_cmp_gt_u32": lambda a, b: a > b,
    "s_cmp_ge_i32": lambda a, b: signed(a) >= signed(b),
    "s_cmp_lt_u32": lambda a, b: a < b,
    "s_cmp_le_i32": lambda a, b: signed(a) <= signed(b),
    "s_bitcmp0_b32": lambda a, b: not a >> (b & 31) & 1,
    "s_bitcmp1_b32": lambda a, b: bool(a >> (b & 31) & 1),
}


def computed(bench: Bench, names: list[str], operands: str, values: list[int]) -> list[tuple[int, int]]:
    """Return the result and the condition code of each instruction, which is 1 before."""
    lines = []
    for k, name in enumerate(names):
        new, _, old = name.partition(" ")
        lines.append(f"s_cmp_eq_u32 0, 0\n {(old or new) if bench.old else new} {operands.format(d=f's{20 + 2 * k}')}")
        lines.append(f"s_cselect_b32 s{21 + 2 * k}, 1, 0")
    found = []
    for start in range(0, len(names), 3):  # results are handed back in six registers
        text = "\n".join(lines[: 2 * (start + 3)])
        chosen = names[start : start + 3]
        out = [f"s{20 + 2 * (start + k) + n}" for k in range(len(chosen)) for n in (0, 1)]
        words = [int(x[0]) for x in bench(text, {}, scalars=values, out_scalars=out)]
        found += list(zip(words[::2], words[1::2], strict=True))
    return found


@pytest.mark.parametrize("seed", range(3))
def test_two_operands(bench: Bench, seed: int) -> None:
    a, b = map(int, np.random.default_rng(seed).choice(_VALUES, 2))
    names = list(_TWO)
    for start in range(0, len(names), 9):
        chosen = names[start : start + 9]
        for name, (result, code) in zip(chosen, computed(bench, chosen, "{d}, s16, s17", [a, b]), strict=True):
            expected, condition = _TWO[name](a, b)
            assert (result, code) == (expected, 1 if condition is None else condition), (name, hex(a), hex(b))


@pytest.mark.parametrize("value", _VALUES)
def test_one_operand(bench: Bench, value: int) -> None:
    names = list(_ONE)
    for name, (result, code) in zip(names, computed(bench, names, "{d}, s16", [value]), strict=True):
        expected, condition = _ONE[name](value)
        assert (result, code) == (expected, 1 if condition is None else condition), name


@pytest.mark.parametrize(("a", "b"), [(0, 0), (1, 0xFFFFFFFF), (0x80000000, 0x7FFFFFFF), (5, 3)])
def test_conditions(bench: Bench, a: int, b: int) -> None:
    lines = [f"{name} s16, s17\n s_cselect_b32 s{20 + k}, 1, 0" for k, name in enumerate(_CONDITIONS)]
    for start in (0, 4):
        out = [f"s{20 + start + k}" for k in range(4)]
        found = bench("\n".join(lines), {}, scalars=[a, b], out_scalars=out)
        expected = [int(each(a, b)) for each in _CONDITIONS.values()][start : start + 4]
        assert [int(x[0]) for x in found] == expected


def test_double_words(bench: Bench) -> None:
    text = """
    s_lshl_b64 s[20:21], s[16:17], 5
    s_lshr_b64 s[22:23], s[16:17], s18
    s_ashr_i64 s[24:25], s[16:17], 40
    """
    names = ["s20", "s21", "s22", "s23", "s24", "s25"]
    words = [int(x[0]) for x in bench(text, {}, scalars=[0x89ABCDEF, 0x81234567, 36], out_scalars=names)]
    value = 0x8123456789ABCDEF
    expected = [value << 5, value >> 36, signed(value, 64) >> 40]
    assert [words[k] | words[k + 1] << 32 for k in (0, 2, 4)] == [each & (1 << 64) - 1 for each in expected]


def test_immediates_of_sixteen_bits(bench: Bench) -> None:
    text = """
    s_movk_i32 s20, 0x8001
    s_mov_b32 s21, 100
    s_{add} s21, 0xfff0
    s_mov_b32 s22, 7
    s_mulk_i32 s22, 0xfffe
    s_cmpk_gt_u32 s16, 0x8000
    s_cselect_b32 s23, 1, 0
    s_cmpk_gt_i32 s16, 0x8000
    s_cselect_b32 s24, 1, 0
    """
    if bench.isa == "gfx1201":  # which has none of them
        text = text.replace("s_cmpk_gt_u32", "s_cmp_gt_u32").replace(
            "s_cmpk_gt_i32 s16, 0x8000", "s_cmp_gt_i32 s16, -32768"
        )
    found = bench(text.replace("{add}", "addk_i32"), {}, scalars=[0x7FFF], out_scalars=[f"s{k}" for k in range(20, 25)])
    assert [int(x[0]) for x in found] == [0xFFFF8001, 84, (1 << 32) - 14, 0, 1]


def test_masks_of_active_lanes(bench: Bench) -> None:
    size, mask = ("b64", "exec") if bench.old else ("b32", "exec_lo")
    source, kept = ("s[16:17]", "s[20:21]") if bench.old else ("s16", "s20")
    andn2 = "s_andn2_saveexec" if bench.old else "s_and_not1_saveexec"
    text = f"""
    s_and_saveexec_{size} {kept}, {source}
    v_mov_b32 v10, 1
    s_mov_{size} {mask}, {kept}
    {andn2}_{size} {kept}, {source}
    v_mov_b32 v11, 1
    s_mov_{size} {mask}, {kept}
    s_xor_{size} {mask}, {mask}, {source}
    v_mov_b32 v12, 1
    """
    given, before = 0xF0F0F0F00F0F0F0F, 0x00FFFF00FF00FF00
    vectors = {k: np.zeros(bench.wave, np.uint32) for k in (10, 11, 12)}
    found = bench(text, vectors, scalars=[given & _M, given >> 32], active=before, out=[10, 11, 12])
    for result, expected in zip(found, (before & given, given & ~before, before ^ given), strict=True):
        assert [expected >> lane & 1 for lane in range(bench.wave)] == result.tolist()


def test_loops_and_branches(bench: Bench) -> None:
    text = """
    s_mov_b32 s20, 0
    s_mov_b32 s21, 0
  again:
    s_add_u32 s20, s20, s21
    s_add_u32 s21, s21, 1
    s_cmp_lt_u32 s21, 10
    s_cbranch_scc1 again
    s_branch over
    s_mov_b32 s20, 0
  over:
    s_getpc_b64 s[22:23]
    s_add_u32 s22, s22, 16
    s_addc_u32 s23, s23, 0
    s_setpc_b64 s[22:23]
    s_mov_b32 s20, 0
    s_mov_b32 s24, 5
    """
    found = bench(text, {}, out_scalars=["s20", "s24"])
    assert [int(x[0]) for x in found] == [45, 5]
