"""Instructions on lanes, each against a statement of it in numpy.

The operands are drawn from values at which instructions go wrong: subnormals, both zeros, infinities, NaN, halves
between whole numbers, limits of types. Every fourth lane is inactive, and must keep its register.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from tests.emulation.bench import Bench

Array = np.ndarray[Any, np.dtype[Any]]
POISON = np.uint32(0xFFA5A5A5)
U, N, F, D, H, L, W, S = (np.dtype(kind) for kind in ("u4", "i4", "f4", "f8", "f2", "u8", "u2", "i2"))

_F32 = [0.0, -0.0, 1, -1, 0.5, -0.5, 0.49999997, -0.49999997, 1.5, 2.5, -2.5, 3e38, -3e38, 1e-45, -1e-45, 1.1754942e-38]
_F32 += [
    1.1754944e-38,
    np.inf,
    -np.inf,
    np.nan,
    2**31,
    -(2.0**31),
    2**32,
    65504,
    65520,
    1e-7,
    3.1415927,
    -7.25,
    255.5,
    1e30,
]
_F64 = [*_F32, 5e-324, -2.2250738585072014e-308, 1e300, -1e-300, 2.0**53 + 1]
_F16 = [
    0.0,
    -0.0,
    1,
    -1,
    0.5,
    1.5,
    2.5,
    -2.5,
    65504,
    -65504,
    6e-8,
    -6e-8,
    6.1e-5,
    np.inf,
    -np.inf,
    np.nan,
    3.14,
    1e-3,
    100.5,
]
_INT = [0, 1, -1, 2, 3, 7, 31, 32, 33, 63, 64, 255, 256, -256, 0x7FFF, 0x8000, 0xFFFF, 0x10000, 0x7FFFFFFF, -0x80000000]
_INT += [0x12345678, -0x12345678, 0x0F0F0F0F, 0x00FF00FF, 0x7F800001]


def draw(dtype: np.dtype[Any], wave: int, seed: int) -> Array:
    """Return an operand for each lane."""
    random = np.random.default_rng(seed)
    if dtype == L:
        return draw(U, wave, seed).astype(L) | draw(U, wave, seed + 1).astype(L) << np.uint64(32)
    values = {F: _F32, D: _F64, H: _F16}.get(dtype, _INT)
    if dtype.kind in "iu":
        chosen = random.choice(np.array(values, np.int64), wave)
        return np.where(random.random(wave) < 0.4, random.integers(-(2**31), 2**31, wave), chosen).astype(dtype)
    chosen = random.choice(np.array(values, dtype), wave)
    return np.where(random.random(wave) < 0.4, random.normal(size=wave) * 10, chosen).astype(dtype)


@dataclass(frozen=True)
class Case:
    """An instruction.

    Attributes:
        name: its name on gfx11, and on gfx9 if it is another; "" if the architecture has none.
        sources: the types of its operands.
        result: the type of its result; None of a comparison.
        compute: the statement, over all lanes.
        ulps: by how many units in the last place the result may differ.
        text: the operands in the instruction's text, by name.
    """

    name: str
    sources: tuple[np.dtype[Any], ...]
    result: np.dtype[Any] | None
    compute: Callable[..., Any]
    ulps: int = 0
    text: str = ""

    def named(self, old: bool) -> str:
        new, _, earlier = self.name.partition(" ")
        return (earlier or new) if old else new


def case(name: str, sources: Any, result: Any, compute: Callable[..., Any], ulps: int = 0, text: str = "") -> Case:
    return Case(name, tuple(sources) if isinstance(sources, (tuple, list)) else (sources,), result, compute, ulps, text)


def wide(x: Array) -> Array:
    return x.astype(np.int64)


def flush(x: Array) -> Array:
    return np.where(np.abs(x) < np.float32(1.17549435e-38), np.copysign(np.float32(0), x), x).astype(F)


def fma(a: Array, b: Array, c: Array) -> Array:
    """Return a·b + c in long double, whose product of two f32 or f16 is exact."""
    return np.longdouble(a) * np.longdouble(b) + np.longdouble(c)


def least(a: Array, b: Array) -> Array:
    smaller = np.where((a == b) & (a == 0), np.where(np.signbit(a), a, b), np.fmin(a, b))
    return np.where(np.isnan(a), b, np.where(np.isnan(b), a, smaller))


def most(a: Array, b: Array) -> Array:
    return -least(-a, -b)


def whole(x: Array, low: int, high: int) -> Array:
    return np.clip(np.trunc(np.nan_to_num(x.astype(D), nan=0.0, posinf=1e300, neginf=-1e300)), low, high).astype(
        np.int64
    )


def sign24(x: Array) -> Array:
    return (x.astype(U) << 8).astype(N) >> 8


def bits(function: Callable[[int], int]) -> Callable[[Array], Array]:
    return lambda x: np.array([function(int(value)) for value in x])


def scaled(x: Array, n: Array) -> Array:
    return np.ldexp(x.astype(np.longdouble), np.clip(n, -5000, 5000).astype(N))


def field(x: Array, first: Array, width: Array) -> Array:
    return (x >> (first & 31)) & ((np.uint64(1) << (width & 31).astype(L)) - np.uint64(1)).astype(U)


def signed_field(x: Array, first: Array, width: Array) -> Array:
    n = (width & 31).astype(N)
    part = field(x, first, width).astype(np.int64)
    return np.where((n > 0) & (part >> np.maximum(n - 1, 0) & 1 == 1), part - (1 << n.astype(np.int64)), part)


def permuted(a: Array, b: Array, select: Array) -> Array:
    out = []
    for x, y, s in zip(a, b, select, strict=True):
        data = [*int(y).to_bytes(4, "little"), *int(x).to_bytes(4, "little")]
        table = data + [255 * (data[k] >> 7) for k in (1, 3, 5, 7)] + [0] + [255] * 243
        out.append(int.from_bytes(bytes(table[byte] for byte in int(s).to_bytes(4, "little")), "little"))
    return np.array(out)


def classes(x: Array, mask: Array) -> Array:
    """Return whether a mask holds the class of a value."""
    size, view = (11, np.uint64) if x.dtype == D else (8, np.uint32) if x.dtype == F else (5, np.uint16)
    mantissa = x.dtype.itemsize * 8 - 1 - size
    pattern = x.view(view)
    quiet = pattern >> view(mantissa - 1) & view(1) == 1
    tiny = np.finfo(x.dtype).tiny
    negative = np.signbit(x)
    kind = np.where(np.abs(x) < tiny, np.where(negative, 4, 7), np.where(negative, 3, 8))
    kind = np.where(x == 0, np.where(negative, 5, 6), kind)
    kind = np.where(np.isinf(x), np.where(negative, 2, 9), kind)
    kind = np.where(np.isnan(x), np.where(quiet, 1, 0), kind)
    return mask >> kind.astype(U) & 1 == 1


def bitreversed(x: int) -> int:
    return int(f"{x:032b}"[::-1], 2)


def fraction(x: Array) -> Array:
    return np.where(np.isinf(x), np.nan, np.minimum(x - np.floor(x), np.nextafter(x.dtype.type(1), x.dtype.type(0))))


def toward_zero(x: Array) -> Array:
    half = x.astype(H)
    back = np.where(np.abs(half.astype(F)) > np.abs(x), np.nextafter(half, H.type(0)), half)
    return np.where(np.isinf(x) | np.isnan(x), half, back).astype(H).view(W).astype(U)


FAMILIES = {
    "bits": [
        case("v_mov_b32", U, U, lambda a: a),
        case("v_not_b32", U, U, lambda a: ~a),
        case("v_and_b32", (U, U), U, lambda a, b: a & b),
        case("v_or_b32", (U, U), U, lambda a, b: a | b),
        case("v_xor_b32", (U, U), U, lambda a, b: a ^ b),
        case("v_xnor_b32", (U, U), U, lambda a, b: ~(a ^ b)),
        case("v_or3_b32", (U, U, U), U, lambda a, b, c: a | b | c),
        case("v_and_or_b32", (U, U, U), U, lambda a, b, c: a & b | c),
        case("v_xad_u32", (U, U, U), U, lambda a, b, c: (a ^ b) + c),
        case("v_lshlrev_b32", (U, U), U, lambda a, b: b << (a & 31)),
        case("v_lshrrev_b32", (U, U), U, lambda a, b: b >> (a & 31)),
        case("v_ashrrev_i32", (U, N), N, lambda a, b: b >> (a & 31).astype(N)),
        case("v_lshl_add_u32", (U, U, U), U, lambda a, b, c: (a << (b & 31)) + c),
        case("v_add_lshl_u32", (U, U, U), U, lambda a, b, c: (a + b) << (c & 31)),
        case("v_lshl_or_b32", (U, U, U), U, lambda a, b, c: a << (b & 31) | c),
        case("v_bfe_u32", (U, U, U), U, field),
        case("v_bfe_i32", (U, U, U), N, signed_field),
        case("v_bfi_b32", (U, U, U), U, lambda a, b, c: a & b | ~a & c),
        case("v_bfm_b32", (U, U), U, lambda a, b: ((np.uint32(1) << (a & 31)) - np.uint32(1)) << (b & 31)),
        case("v_bfrev_b32", U, U, bits(bitreversed)),
        case("v_alignbit_b32", (U, U, U), U, lambda a, b, c: (a.astype(L) << L.type(32) | b) >> (c & 31).astype(L)),
        case(
            "v_alignbyte_b32",
            (U, U, U),
            U,
            lambda a, b, c: (a.astype(L) << L.type(32) | b) >> (c & 3).astype(L) * L.type(8),
        ),
        case("v_perm_b32", (U, U, U), U, permuted),
        case("v_clz_i32_u32 v_ffbh_u32", U, N, bits(lambda x: 32 - x.bit_length() if x else -1)),
        case("v_ctz_i32_b32 v_ffbl_b32", U, N, bits(lambda x: (x & -x).bit_length() - 1)),
        case("v_cls_i32 v_ffbh_i32", N, N, bits(lambda x: 32 - (x ^ x >> 31).bit_length() if x ^ x >> 31 else -1)),
        case("v_bcnt_u32_b32", (U, U), U, lambda a, b: bits(int.bit_count)(a) + b),
        case("v_lshlrev_b64", (U, L), L, lambda a, b: b << (a & 63).astype(L)),
        case("v_lshrrev_b64", (U, L), L, lambda a, b: b >> (a & 63).astype(L)),
        case("v_ashrrev_i64", (U, L), L, lambda a, b: (b.astype(np.int64) >> (a & 63).astype(np.int64)).astype(L)),
    ],
    "integers": [
        case("v_add_nc_u32 v_add_u32", (U, U), U, lambda a, b: a + b),
        case("v_sub_nc_u32 v_sub_u32", (U, U), U, lambda a, b: a - b),
        case("v_subrev_nc_u32 v_subrev_u32", (U, U), U, lambda a, b: b - a),
        case("v_add3_u32", (U, U, U), U, lambda a, b, c: a + b + c),
        case("v_mul_lo_u32", (U, U), U, lambda a, b: a * b),
        case("v_mul_hi_u32", (U, U), U, lambda a, b: a.astype(L) * b >> L.type(32)),
        case("v_mul_hi_i32", (N, N), N, lambda a, b: wide(a) * b >> 32),
        case("v_mul_u32_u24", (U, U), U, lambda a, b: (a & 0xFFFFFF).astype(L) * (b & 0xFFFFFF)),
        case("v_mul_i32_i24", (U, U), U, lambda a, b: wide(sign24(a)) * sign24(b)),
        case("v_mul_hi_u32_u24", (U, U), U, lambda a, b: (a & 0xFFFFFF).astype(L) * (b & 0xFFFFFF) >> L.type(32)),
        case("v_mul_hi_i32_i24", (U, U), U, lambda a, b: wide(sign24(a)) * sign24(b) >> 32),
        case("v_mad_u32_u24", (U, U, U), U, lambda a, b, c: (a & 0xFFFFFF).astype(L) * (b & 0xFFFFFF) + c),
        case("v_mad_i32_i24", (U, U, U), U, lambda a, b, c: wide(sign24(a)) * sign24(b) + c),
        case("v_min_u32", (U, U), U, np.minimum),
        case("v_max_u32", (U, U), U, np.maximum),
        case("v_min_i32", (N, N), N, np.minimum),
        case("v_max_i32", (N, N), N, np.maximum),
        case("v_min3_u32", (U, U, U), U, lambda a, b, c: np.minimum(np.minimum(a, b), c)),
        case("v_max3_i32", (N, N, N), N, lambda a, b, c: np.maximum(np.maximum(a, b), c)),
        case("v_med3_u32", (U, U, U), U, lambda *x: np.median(x, axis=0)),
        case("v_med3_i32", (N, N, N), N, lambda *x: np.median(x, axis=0)),
        case(
            "v_sad_u8",
            (U, U, U),
            U,
            lambda a, b, c: c + sum(np.abs(wide(a >> k & 255) - wide(b >> k & 255)) for k in (0, 8, 16, 24)),
        ),
        case("v_mad_u64_u32", (U, U, L), L, lambda a, b, c: a.astype(L) * b + c, text="{d}, {m}, {0}, {1}, {2}"),
        case(
            "v_mad_i64_i32", (N, N, L), L, lambda a, b, c: (wide(a) * b).astype(L) + c, text="{d}, {m}, {0}, {1}, {2}"
        ),
        case("v_add_co_u32", (U, U), U, lambda a, b: a + b, text="{d}, {m}, {0}, {1}"),
        case("v_sub_co_u32", (U, U), U, lambda a, b: a - b, text="{d}, {m}, {0}, {1}"),
    ],
    "floats": [
        case("v_add_f32", (F, F), F, lambda a, b: a + b),
        case("v_sub_f32", (F, F), F, lambda a, b: a - b),
        case("v_subrev_f32", (F, F), F, lambda a, b: b - a),
        case("v_mul_f32", (F, F), F, lambda a, b: a * b),
        case("v_fma_f32", (F, F, F), F, fma, 1),  # a rare double rounding of the statement
        case("v_min_f32", (F, F), F, least),
        case("v_max_f32", (F, F), F, most),
        case("v_min3_f32", (F, F, F), F, lambda a, b, c: least(least(a, b), c)),
        case("v_max3_f32", (F, F, F), F, lambda a, b, c: most(most(a, b), c)),
        case("v_floor_f32", F, F, np.floor),
        case("v_ceil_f32", F, F, np.ceil),
        case("v_trunc_f32", F, F, np.trunc),
        case("v_rndne_f32", F, F, np.rint),
        case("v_fract_f32", F, F, fraction),
        case("v_rcp_f32", F, F, lambda a: flush(np.float32(1) / flush(a)), 1),
        case("v_rsq_f32", F, F, lambda a: flush(1 / np.sqrt(flush(a).astype(D))), 1),
        case("v_sqrt_f32", F, F, lambda a: np.sqrt(flush(a)), 1),
        case("v_exp_f32", F, F, lambda a: flush(np.exp2(flush(a).astype(D)).astype(F)), 1),
        case("v_log_f32", F, F, lambda a: np.log2(flush(a).astype(D)), 1),
        case("v_ldexp_f32", (F, N), F, scaled),
        case("v_frexp_mant_f32", F, F, lambda a: np.where(np.isfinite(a), np.frexp(a)[0], a)),
        case("v_frexp_exp_i32_f32", F, N, lambda a: np.where(np.isfinite(a), np.frexp(a)[1], 0)),
        case("v_cvt_i32_f32", F, N, lambda a: whole(a, -(2**31), 2**31 - 1)),
        case("v_cvt_u32_f32", F, U, lambda a: whole(a, 0, 2**32 - 1)),
        case("v_cvt_f32_i32", N, F, lambda a: a),
        case("v_cvt_f32_u32", U, F, lambda a: a),
        case(
            "v_cvt_nearest_i32_f32 v_cvt_rpi_i32_f32",
            F,
            N,
            lambda a: whole(np.floor(a.astype(D) + 0.5), -(2**31), 2**31 - 1),
        ),
        case("v_cvt_floor_i32_f32 v_cvt_flr_i32_f32", F, N, lambda a: whole(np.floor(a), -(2**31), 2**31 - 1)),
        case("v_cvt_f64_f32", F, D, lambda a: a),
        case("v_cvt_f32_f64", D, F, lambda a: a),
        case("v_cvt_f16_f32", F, H, lambda a: a),
        case("v_cvt_f32_f16", H, F, lambda a: a),
        case("v_cvt_pk_rtz_f16_f32 v_cvt_pkrtz_f16_f32", (F, F), U, lambda a, b: toward_zero(a) | toward_zero(b) << 16),
        *(case(f"v_cvt_f32_ubyte{k}", U, F, lambda a, k=k: a >> 8 * k & 255) for k in range(4)),
    ],
    "doubles": [
        case("v_add_f64", (D, D), D, lambda a, b: a + b),
        case("v_mul_f64", (D, D), D, lambda a, b: a * b),
        case("v_fma_f64", (D, D, D), D, fma, 1 << 12),  # 64 bits hold the product of two f64 only nearly
        case("v_min_f64", (D, D), D, least),
        case("v_max_f64", (D, D), D, most),
        case("v_floor_f64", D, D, np.floor),
        case("v_ceil_f64", D, D, np.ceil),
        case("v_trunc_f64", D, D, np.trunc),
        case("v_rndne_f64", D, D, np.rint),
        case("v_fract_f64", D, D, fraction),
        case("v_ldexp_f64", (D, N), D, scaled),
        case("v_frexp_mant_f64", D, D, lambda a: np.where(np.isfinite(a), np.frexp(a)[0], a)),
        case("v_frexp_exp_i32_f64", D, N, lambda a: np.where(np.isfinite(a), np.frexp(a)[1], 0)),
        case("v_cvt_i32_f64", D, N, lambda a: whole(a, -(2**31), 2**31 - 1)),
        case("v_cvt_u32_f64", D, U, lambda a: whole(a, 0, 2**32 - 1)),
        case("v_cvt_f64_i32", N, D, lambda a: a),
        case("v_cvt_f64_u32", U, D, lambda a: a),
        case("v_rcp_f64", D, D, lambda a: 1 / a, 1 << 28),
        case("v_rsq_f64", D, D, lambda a: 1 / np.sqrt(a), 1 << 28),
        case("v_sqrt_f64", D, D, np.sqrt, 1 << 28),
    ],
    "halves": [
        case("v_add_f16", (H, H), H, lambda a, b: a + b),
        case("v_sub_f16", (H, H), H, lambda a, b: a - b),
        case("v_mul_f16", (H, H), H, lambda a, b: a * b),
        case("v_fma_f16", (H, H, H), H, fma),
        case("v_min_f16", (H, H), H, least),
        case("v_max_f16", (H, H), H, most),
        case("v_max3_f16", (H, H, H), H, lambda a, b, c: most(most(a, b), c)),
        case("v_floor_f16", H, H, np.floor),
        case("v_ceil_f16", H, H, np.ceil),
        case("v_trunc_f16", H, H, np.trunc),
        case("v_rndne_f16", H, H, np.rint),
        case("v_rcp_f16", H, H, lambda a: 1 / a.astype(D), 1),
        case("v_rsq_f16", H, H, lambda a: 1 / np.sqrt(a.astype(D)), 1),
        case("v_sqrt_f16", H, H, lambda a: np.sqrt(a.astype(D)), 1),
        case("v_exp_f16", H, H, lambda a: np.exp2(a.astype(D)), 1),
        case("v_log_f16", H, H, lambda a: np.log2(a.astype(D)), 1),
        case("v_ldexp_f16", (H, S), H, scaled),
        case("v_cvt_i16_f16", H, S, lambda a: whole(a, -32768, 32767)),
        case("v_cvt_u16_f16", H, W, lambda a: whole(a, 0, 65535)),
        case("v_cvt_f16_i16", S, H, lambda a: a),
        case("v_cvt_f16_u16", W, H, lambda a: a.astype(F)),
        case("v_add_nc_u16 v_add_u16", (W, W), W, lambda a, b: a + b),
        case("v_sub_nc_u16 v_sub_u16", (W, W), W, lambda a, b: a - b),
        case("v_mul_lo_u16", (W, W), W, lambda a, b: a * b),
        case("v_mad_u16", (W, W, W), W, lambda a, b, c: a * b + c),
        case("v_min_i16", (S, S), S, np.minimum),
        case("v_max_u16", (W, W), W, np.maximum),
        case("v_max3_i16", (S, S, S), S, lambda a, b, c: np.maximum(np.maximum(a, b), c)),
        case("v_lshlrev_b16", (W, W), W, lambda a, b: b << (a & 15)),
        case("v_lshrrev_b16", (W, W), W, lambda a, b: b >> (a & 15)),
        case("v_ashrrev_i16", (W, S), S, lambda a, b: b >> (a & 15).astype(S)),
    ],
}
_TESTS: dict[str, Callable[[Array, Array], Array]] = {
    "lt": lambda a, b: a < b,
    "eq": lambda a, b: a == b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
}
_REAL_TESTS = _TESTS | {
    "lg": lambda a, b: (a < b) | (a > b),
    "neq": lambda a, b: ~(a == b),
    "o": lambda a, b: ~(np.isnan(a) | np.isnan(b)),
    "u": lambda a, b: np.isnan(a) | np.isnan(b),
    "nlt": lambda a, b: ~(a < b),
    "nle": lambda a, b: ~(a <= b),
    "ngt": lambda a, b: ~(a > b),
    "nge": lambda a, b: ~(a >= b),
    "nlg": lambda a, b: ~((a < b) | (a > b)),
}
for _dtype, _suffix in ((F, "f32"), (D, "f64"), (H, "f16")):
    FAMILIES[f"comparisons of {_suffix}"] = [
        *(case(f"v_cmp_{name}_{_suffix}", (_dtype, _dtype), None, test) for name, test in _REAL_TESTS.items()),
        case(f"v_cmp_class_{_suffix}", (_dtype, U), None, classes),
    ]
for _dtype, _suffix in ((U, "u32"), (N, "i32"), (L, "u64"), (W, "u16"), (S, "i16")):
    FAMILIES[f"comparisons of {_suffix}"] = [
        case(f"v_cmp_{name}_{_suffix}", (_dtype, _dtype), None, test)
        for name, test in (_TESTS | {"ne": lambda a, b: a != b}).items()
    ]


def words(x: Array) -> list[Array]:
    """Return the words of an operand."""
    if x.dtype.itemsize == 8:
        both = x.view(L)
        return [(both & L.type(0xFFFFFFFF)).astype(U), (both >> L.type(32)).astype(U)]
    return [x.view({2: W, 4: U}[x.dtype.itemsize]).astype(U)]


def close(found: Array, expected: Array, ulps: int) -> Array:
    """Return where a result is the expected one: the same number with its sign, or within units in the last place."""
    if found.dtype.kind != "f":
        return found == expected
    signed = found.view({2: np.int16, 4: np.int32, 8: np.int64}[found.dtype.itemsize])
    other = expected.view(signed.dtype)
    near = np.abs(signed.astype(np.longdouble) - other.astype(np.longdouble)) <= ulps
    return near | np.isnan(found) & np.isnan(expected)


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("family", FAMILIES)
def test_each_lane_is_computed(bench: Bench, family: str, seed: int) -> None:
    mask = "vcc" if bench.old else "vcc_lo"
    active = sum(1 << lane for lane in range(bench.wave) if lane % 4 != seed)
    on = np.array([active >> lane & 1 for lane in range(bench.wave)], bool)
    cases = FAMILIES[family]
    for start in range(0, len(cases), 12):  # registers of one kernel
        vectors: dict[int, Array] = {}
        used = 2
        lines, operands, out = [], [], []
        for k, each in enumerate(cases[start : start + 12]):
            given = [draw(dtype, bench.wave, 100 * seed + 10 * k + n) for n, dtype in enumerate(each.sources)]
            names = []
            for array in given:
                at, used = used, used + 2  # pairs begin at even registers
                vectors |= {at + n: word for n, word in enumerate(words(array))}
                names.append(f"v{at}" if array.dtype.itemsize < 8 else f"v[{at}:{at + 1}]")
            to = 92 + 2 * k
            wide_result = each.result is not None and each.result.itemsize == 8
            text = each.text or "{d}, " + ", ".join(f"{{{n}}}" for n in range(len(given)))
            if each.result is None:
                mask_name = f"s[{20 + 2 * k}:{21 + 2 * k}]" if bench.old else f"s{20 + k}"
                lines.append(f"{each.named(bench.old)}_e64 {mask_name}, {names[0]}, {names[1]}")
                lines.append(f"v_cndmask_b32 v{to}, 0, 1, {mask_name}")
            else:
                d = f"v[{to}:{to + 1}]" if wide_result else f"v{to}"
                lines.append(f"{each.named(bench.old)} {text.format(*names, d=d, m=mask)}")
            operands.append(given)
            out += [to, to + 1]
        assert used <= 92
        found = bench("\n".join(lines), vectors, active=active, out=out)
        for k, each in enumerate(cases[start : start + 12]):
            with np.errstate(all="ignore"):
                computed = np.asarray(each.compute(*operands[k]))
                if each.result is None:
                    expected, result = computed.astype(U), found[2 * k]
                elif each.result.itemsize == 8:
                    expected = computed.astype(each.result)
                    result = (found[2 * k].astype(L) | found[2 * k + 1].astype(L) << L.type(32)).view(each.result)
                else:
                    expected = computed.astype(each.result)
                    view = {2: W, 4: U}[each.result.itemsize]
                    result = found[2 * k].astype(view).view(each.result)
            good = close(result, expected, each.ulps) | ~on
            lanes = np.flatnonzero(~good)[:3]
            assert good.all(), (
                each.name,
                [[x[lane] for x in operands[k]] for lane in lanes],
                result[lanes],
                expected[lanes],
            )
            assert (found[2 * k][~on] == POISON).all(), each.name
