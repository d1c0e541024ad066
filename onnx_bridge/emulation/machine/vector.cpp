// Instructions on lanes of numbers: each line states an instruction as a function of one lane's operands.
#include "machine.hpp"
#include "memory.hpp"

#include <limits>

namespace {
using I = const Instruction*;
template<class T> using Bits = std::conditional_t<sizeof(T) == 8, u64, std::conditional_t<sizeof(T) == 4, u32, u16>>;
template<class T> constexpr int MANTISSA = sizeof(T) == 8 ? 52 : sizeof(T) == 4 ? 23 : 10;
template<class T> constexpr int BIAS = sizeof(T) == 8 ? 1023 : sizeof(T) == 4 ? 127 : 15;
template<class T> Bits<T> bits(T x) { return cast<Bits<T>>(x); }
template<class T> constexpr Bits<T> SIGN = Bits<T>(1) << (8 * sizeof(T) - 1);
template<class T> constexpr Bits<T> INFINITE = Bits<T>(2 * BIAS<T> + 1) << MANTISSA<T>;
template<class T> constexpr Bits<T> QUIET = Bits<T>(1) << (MANTISSA<T> - 1);
template<class T> Bits<T> magnitude(T x) { return bits(x) & Bits<T>(~SIGN<T>); }
template<class T> int exponent(T x) { return magnitude(x) >> MANTISSA<T>; }
template<class T> bool is_nan(T x) { return magnitude(x) > INFINITE<T>; }
template<class T> bool is_infinite(T x) { return magnitude(x) == INFINITE<T>; }
template<class T> bool is_zero(T x) { return magnitude(x) == 0; }
template<class T> bool is_subnormal(T x) { return (exponent(x) == 0) & !is_zero(x); }
template<class T> bool is_signaling(T x) { return is_nan(x) & !(bits(x) & QUIET<T>); }
template<class T> T pick(bool first, T a, T b) // without a branch, which g++ may make of ?:
{
    const Bits<T> mask = -(Bits<T>)first;
    return cast<T>(Bits<T>((bits(a) & mask) | (bits(b) & Bits<T>(~mask))));
}
template<class T> T quiet(T x) { return cast<T>(Bits<T>(bits(x) | QUIET<T>)); }
template<class T> T signed_(T x, bool negative) { return cast<T>(Bits<T>(magnitude(x) | (negative ? SIGN<T> : 0))); }

inline f32 flush(f32 x) { return exponent(x) == 0 ? signed_(0.0f, bits(x) >> 31) : x; }
inline f32 scaled(f32 x, i32 n) // x·2ⁿ, rounded once: the product is exact in f64
{
    n = std::clamp(n, -400, 400);
    return (f32)((f64)x * cast<f64>((u64)(1023 + n) << 52));
}
inline f64 scaled(f64 x, i32 n) { return std::ldexp(x, std::clamp(n, -4000, 4000)); }
inline f16 scaled(f16 x, i32 n) { return f16((f64)(f32)x * cast<f64>((u64)(1023 + std::clamp(n, -100, 100)) << 52)); }
template<class T> T fma_(T a, T b, T c) { return std::fma(a, b, c); }
inline f16 fma_(f16 a, f16 b, f16 c) { return f16((f64)(f32)a * (f64)(f32)b + (f64)(f32)c); }
template<class T> auto value(T x) { if constexpr (std::is_same_v<T, f16>) return (f32)x; else return x; }

// a signaling NaN becomes the quiet result (IEEE mode); otherwise the operand that is a number; −0 is below +0
template<class T> auto order(T x) // a whole number that grows with numbers
{
    const std::make_signed_t<Bits<T>> s = bits(x);
    return (std::make_signed_t<Bits<T>>)(s ^ (s >> (8 * sizeof(T) - 1) & Bits<T>(~SIGN<T>)));
}
template<class T> T chosen(T a, T b, bool first) // one operand after the other is preferred: lanes side by side
{
    T r = pick(first, a, b);
    r = pick(is_nan(a), b, r);
    r = pick(is_nan(b), a, r);
    r = pick(is_signaling(b), b, r);
    r = pick(is_signaling(a), a, r);
    return pick(is_nan(r), quiet(r), r);
}
template<class T> T least(T a, T b) { return chosen(a, b, order(a) < order(b)); }
template<class T> T most(T a, T b) { return chosen(a, b, order(a) > order(b)); }
template<class T> T middle(T a, T b, T c)
{
    if constexpr (std::is_integral_v<T>) return std::max(std::min(a, b), std::min(std::max(a, b), c));
    else
    {
        const T top = most(most(a, b), c);
        const T r = pick(value(top) == value(a), most(b, c), pick(value(top) == value(b), most(a, c), most(a, b)));
        return pick(is_nan(a) | is_nan(b) | is_nan(c), least(least(a, b), c), r);
    }
}
template<class T> T either_nan(T a, T b, T otherwise) { return pick(is_nan(a), quiet(a), pick(is_nan(b), quiet(b), otherwise)); }
template<class T> T minimum(T a, T b) { return either_nan(a, b, least(a, b)); } // of IEEE 754-2019
template<class T> T maximum(T a, T b) { return either_nan(a, b, most(a, b)); }

template<class T> bool class_of(T x, u32 mask)
{
    const Bits<T> m = magnitude(x);
    const u32 kind = (m < INFINITE<T>) + (m < Bits<T>(1) << MANTISSA<T>) + (m < 1); // from ∞, 0, to zero, 3
    const u32 number = pick((bits(x) & SIGN<T>) != 0, 2 + kind, 9 - kind);
    return (mask >> pick(is_nan(x), (u32)!is_signaling(x), number) & 1) != 0;
}
// The division of f32 and f64: scale, approximate, refine, div_fmas, div_fixup. The documents' factors do not undo each
// other (a factor 2³² of 2⁶⁴; a denominator near the largest number is scaled up); these are the ones with which the
// compilers' sequences give the quotient, rounded once. A finite quotient that is not a number has overflowed.
template<class T> WithMask<T> div_scale(T x, T denominator, T numerator) // the last condition that holds decides
{
    constexpr int far = sizeof(T) == 4 ? 96 : 768;
    constexpr T up = sizeof(T) == 4 ? 0x1p64 : 0x1p128, down = 1 / up;
    const T quotient = numerator / denominator, larger = x * up, smaller = x * down;
    const bool is_numerator = bits(x) == bits(numerator), is_denominator = bits(x) == bits(denominator);
    const bool small = is_subnormal(quotient) | (is_zero(quotient) & !is_infinite(denominator));
    const bool small_inverse = (exponent(denominator) >= (sizeof(T) == 4 ? 253 : 2045)) & is_subnormal(T(1) / denominator);
    const bool is_far = exponent(numerator) - exponent(denominator) >= far, invalid = is_zero(numerator) | is_zero(denominator);
    T r = pick(exponent(numerator) <= MANTISSA<T> + (sizeof(T) == 8), larger, x);
    r = pick(small, pick(is_numerator, larger, x), r);
    r = pick(small_inverse, pick(!small | is_denominator, smaller, x), r);
    r = pick(is_subnormal(denominator), larger, r);
    r = pick(is_far, pick(is_denominator, larger, x), r);
    r = pick(invalid, cast<T>(Bits<T>(INFINITE<T> | QUIET<T>)), r);
    return {r, !invalid & (is_far | (!is_subnormal(denominator) & small))};
}
template<class T> T div_fmas(T a, T b, T c, Bit scale) // undoes the scaling of div_scale before it rounds, once
{
    using Wide = std::conditional_t<sizeof(T) == 4, f64, long double>;
    const T plain = fma_(a, b, c);
    if (sizeof(T) == 8 && !scale) return plain;
    constexpr Wide by = sizeof(T) == 4 ? 0x1p64 : 0x1p128;
    const T scaled = (T)(std::fma((Wide)a, (Wide)b, (Wide)c) * (exponent(c) > BIAS<T> ? by : 1 / by));
    return scale ? scaled : plain;
}
template<class T> T div_fixup(T quotient, T denominator, T numerator) // the last condition that holds decides
{
    const Bits<T> negative = (bits(denominator) ^ bits(numerator)) & SIGN<T>;
    const bool vanishes = sizeof(T) > 2 && exponent(numerator) - exponent(denominator) < -(BIAS<T> + MANTISSA<T>);
    Bits<T> r = magnitude(quotient);
    r = (sizeof(T) > 2) & is_nan(quotient) ? INFINITE<T> : r;
    r = vanishes | is_infinite(denominator) | is_zero(numerator) ? Bits<T>(0) : r;
    r = is_zero(denominator) | is_infinite(numerator) ? INFINITE<T> : r;
    r |= negative;
    r = (is_zero(denominator) & is_zero(numerator)) | (is_infinite(denominator) & is_infinite(numerator)) ? Bits<T>(SIGN<T> | INFINITE<T> | QUIET<T>) : r;
    r = is_nan(denominator) ? Bits<T>(bits(denominator) | QUIET<T>) : r;
    r = is_nan(numerator) ? Bits<T>(bits(numerator) | QUIET<T>) : r;
    return cast<T>(r);
}
template<class T> T fraction(T x) { return std::min(x - std::floor(x), cast<T>(Bits<T>(bits(T(1)) - 1))); } // NaN stays
template<class T> auto normal(T x) { return value(x) * (is_subnormal(value(x)) ? 0x1p64f : 1.0f); }
template<class T> T frexp_mant(T x)
{
    using V = decltype(value(x));
    const V v = normal(x), m = cast<V>(Bits<V>((bits(v) & ~INFINITE<V>) | Bits<V>(BIAS<V> - 1) << MANTISSA<V>));
    return is_nan(x) | is_infinite(x) | is_zero(x) ? x : T(m);
}
template<class T> i32 frexp_exp(T x)
{
    const auto v = value(x);
    const i32 n = exponent(normal(x)) - BIAS<decltype(v + 0)> + 1 - (is_subnormal(v) ? 64 : 0);
    return is_nan(x) | is_infinite(x) | is_zero(x) ? 0 : n;
}
template<class To, class T> To whole(T x) // towards zero, saturating; NaN is 0
{
    constexpr T low = std::numeric_limits<To>::min(), over = T(std::numeric_limits<To>::max() / 2 + 1) * 2;
    const To inside = (To)((x >= low) & (x < over) ? x : T(0));
    return x >= over ? std::numeric_limits<To>::max() : x < low ? std::numeric_limits<To>::min() : inside;
}
// exp2 and log2, rounded once; without calls and branches, so that lanes are computed side by side
inline f64 polynomial(f64, f64 c) { return c; }
template<class... C> f64 polynomial(f64 x, f64 c, C... more) { return std::fma(polynomial(x, more...), x, c); }
inline f32 exp2_(f32 x)
{
    const f64 a = x < -200 ? -200 : x > 200 ? 200 : x, n = std::nearbyint(a), r = (a - n) * 0.693147180559945309417;
    const f64 p = polynomial(r, 1, 1, 1 / 2., 1 / 6., 1 / 24., 1 / 120., 1 / 720., 1 / 5040., 1 / 40320., 1 / 362880.);
    return (f32)(p * cast<f64>((u64)((i32)n + 1023) << 52));
}
inline f32 log2_(f32 x)
{
    const u64 b = bits((f64)x), over = (b & 0xfffffffffffff) > 0x6a09e667f3bcd; // the mantissa is above √2
    const f64 m = cast<f64>((b & 0xfffffffffffff) | (1023 - over) << 52), s = (m - 1) / (m + 1);
    const f64 l = s * polynomial(s * s, 1, 1 / 3., 1 / 5., 1 / 7., 1 / 9., 1 / 11., 1 / 13.) * 2.8853900817779268147;
    const f32 r = (i32)(b >> 52) - 1023 + (i32)over + l;
    return x > 0 ? (is_infinite(x) ? x : r) : x == 0 ? -HUGE_VALF : cast<f32>(0x7fc00000 | bits(x));
}
inline f32 turn(f32 x, u64 quarters) // the sine of revolutions, and of some quarters more
{
    const f64 a = flush(x), rest = a - std::nearbyint(a), q = std::nearbyint(4 * rest), r = (rest - q / 4) * 6.283185307179586476925286766559, s = r * r;
    const f64 sine = r * polynomial(s, 1, -1 / 6., 1 / 120., -1 / 5040., 1 / 362880., -1 / 39916800., 1 / 6227020800., -1 / 1307674368000.);
    const f64 cosine = polynomial(s, 1, -1 / 2., 1 / 24., -1 / 720., 1 / 40320., -1 / 3628800., 1 / 479001600., -1 / 87178291200., 1 / 20922789888000.);
    const u64 quarter = (u64)(i32)q + quarters;
    const f64 y = cast<f64>(bits(quarter & 1 ? cosine : sine) ^ (quarter & 2) << 62);
    return is_nan(x) | is_infinite(x) ? cast<f32>(bits(x) | 0x7fc00000u) : (f32)y;
}
inline u16 narrow_toward_zero(f32 x)
{
    const u16 nearest = narrow(x);
    if (is_nan(x) || is_infinite(x)) return nearest;
    const f32 back = std::fabs(widen(nearest));
    return back > std::fabs(x) ? nearest - 1 : nearest;
}
inline u32 permuted(u64 data, u32 select)
{
    const auto byte = [&](u32 s) -> u32
    {
        u32 r = data >> 8 * (s & 7) & 255;
        r = s >= 8 ? (data >> (16 * (s & 3) + 15) & 1) * 255 : r;
        r = s >= 12 ? 0 : r;
        return s >= 13 ? 255 : r;
    };
    return byte(select & 255) | byte(select >> 8 & 255) << 8 | byte(select >> 16 & 255) << 16 | byte(select >> 24) << 24;
}
template<class T> u32 difference(u32 a, u32 b, u32 sum)
{
    for (unsigned k = 0; k < 32; k += 8 * sizeof(T)) sum += std::abs((i64)(T)(a >> k) - (i64)(T)(b >> k));
    return sum;
}
inline f64 two_over_pi(f64 x, u32 part) // 53 bits of 2/π
{
    static const u32 digits[] = {0xa2f9836e, 0x4e441529, 0xfc2757d1, 0xf534ddc0, 0xdb629599, 0x3c439041, 0xfe5163ab, 0xdebbc561, 0xb7246e3a, 0x424dd2e0,
        0x06492eea, 0x09d1921c, 0xfe1deb1c, 0xb129a73e, 0xe88235f5, 0x2ebb4484, 0xe99c7026, 0xb45f7e41, 0x3991d639, 0x835339f4, 0x9c845f8b, 0xbdf9283b,
        0x1ff897ff, 0xde05980f, 0xef2f118b, 0x5a0a6d1f, 0x6d367ecf, 0x27cb09b7, 0x4f463f66, 0x9e5fea2d, 0x7527bac7, 0xebe5f17b, 0x3d0739f7, 0x8a5292ea,
        0x6bfb5fb1, 0x1f8d5d08, 0x56033046, 0xfc7b6bab};
    int shift = (part & 31) * 53 + std::max(exponent(x) - 1077, 0);
    u64 r = 0;
    for (int k = 0; k < 53; k++)
    {
        const int at = shift + k;
        r = r << 1 | (at < 1201 ? digits[at / 32] >> (31 - at % 32) & 1 : 0);
    }
    return std::ldexp((f64)r, -53 - shift + (exponent(x) >= 1968 ? 128 : 0));
}
template<class T> i32 leading(T x) { return x ? (sizeof(T) == 8 ? __builtin_clzll(x) : __builtin_clz(x)) : -1; }
inline WithMask<u32> with_carry(u32 a, u32 b, u32 carry) { const u32 sum = a + b; return {sum + carry, (sum < a) | (sum + carry < sum)}; }
inline WithMask<u32> with_borrow(u32 a, u32 b, u32 borrow) { return {a - b - borrow, (a < b) | (a - b < borrow)}; }
inline i32 sign24(u32 x) { return (i32)(x << 8) >> 8; }
inline u64 u24(u32 x) { return x & 0xffffff; }
template<class T> i64 dot4(u32 a, u32 b)
{
    i64 r = 0;
    for (int k = 0; k < 4; k++) r += (i64)(T)(a >> 8 * k) * (T)(b >> 8 * k);
    return r;
}

#define F32(name, expression) V("v_" name "_f32", [](f32 a) -> f32 { return expression; })
#define REALS1(name, expression) /* of the three formats; T is the one that is computed in */ \
    V("v_" name "_f32", [](f32 a) -> f32 { using T = f32; return (T)(expression); }), V("v_" name "_f64", [](f64 a) -> f64 { using T = f64; return (T)(expression); }), \
    V("v_" name "_f16", [](f16 h) -> f16 { using T = f32; const f32 a = h; return (T)(expression); })
#define REALS2(name, expression) \
    V("v_" name "_f32", [](f32 a, f32 b) -> f32 { return expression; }), V("v_" name "_f64", [](f64 a, f64 b) -> f64 { return expression; }), \
    V("v_" name "_f16", [](f16 g, f16 h) -> f16 { const f32 a = g, b = h; return expression; })
#define SAME2(name, function) /* functions of the formats themselves */ \
    V("v_" name "_f32", [](f32 a, f32 b) { return function(a, b); }), V("v_" name "_f64", [](f64 a, f64 b) { return function(a, b); }), \
    V("v_" name "_f16", [](f16 a, f16 b) { return function(a, b); })
#define THREE(name, function, T, letter) V("v_" name "_" letter, [](T a, T b, T c) { return function(a, b, c); })
#define COMPARE(op, T, type, expression) V("v_cmp_" op "_" type, [](T a, T b) -> bool { return expression; })
#define WHOLES(op, expression) COMPARE(op, u32, "u32", expression), COMPARE(op, i32, "i32", expression), COMPARE(op, u64, "u64", expression), \
    COMPARE(op, i64, "i64", expression), COMPARE(op, u16, "u16", expression), COMPARE(op, i16, "i16", expression)
#define FLOATS(op, expression) COMPARE(op, f32, "f32", expression), COMPARE(op, f64, "f64", expression), COMPARE(op, f16, "f16", expression)
#define U32(name, expression) V("v_" name, [](u32 a) -> u32 { return expression; })
#define U32_2(name, expression) V("v_" name, [](u32 a, u32 b) -> u32 { return expression; })
#define U32_3(name, expression) V("v_" name, [](u32 a, u32 b, u32 c) -> u32 { return expression; })
#define U16_2(name, expression) V("v_" name, [](u16 a, u16 b) -> u16 { return expression; })
#define U16_3(name, expression) V("v_" name, [](u16 a, u16 b, u16 c) -> u16 { return expression; })
#define I16_3(name, expression) V("v_" name, [](i16 a, i16 b, i16 c) -> i16 { return expression; })
using std::max; using std::min;
} // namespace

extern const Entry vector_table[] = {
    // ---- moves and bits
    U32("mov_b32", a), V("v_mov_b64", [](u64 a) { return a; }), V("v_mov_b16", [](u16 a) { return a; }),
    V("v_cndmask_b32", [](u32 a, u32 b, Bit c) { return c ? b : a; }), V("v_cndmask_b16", [](u16 a, u16 b, Bit c) { return c ? b : a; }),
    U32("not_b32", ~a), U32_2("and_b32", a & b), U32_2("or_b32", a | b), U32_2("xor_b32", a ^ b), U32_2("xnor_b32", ~(a ^ b)),
    V("v_not_b16", [](u16 a) -> u16 { return ~a; }), U16_2("and_b16", a & b), U16_2("or_b16", a | b), U16_2("xor_b16", a ^ b),
    U32_3("or3_b32", a | b | c), U32_3("xor3_b32", a ^ b ^ c), U32_3("and_or_b32", (a & b) | c), U32_3("xad_u32", (a ^ b) + c),
    U32_2("lshlrev_b32", b << (a & 31)), U32_2("lshrrev_b32", b >> (a & 31)), U32_2("ashrrev_i32", (i32)b >> (a & 31)),
    U16_2("lshlrev_b16", b << (a & 15)), U16_2("lshrrev_b16", b >> (a & 15)), U16_2("ashrrev_i16", (i16)b >> (a & 15)),
    V("v_lshlrev_b64", [](u32 a, u64 b) { return b << (a & 63); }), V("v_lshrrev_b64", [](u32 a, u64 b) { return b >> (a & 63); }),
    V("v_ashrrev_i64", [](u32 a, i64 b) { return b >> (a & 63); }),
    U32_3("lshl_add_u32", (a << (b & 31)) + c), U32_3("add_lshl_u32", (a + b) << (c & 31)), U32_3("lshl_or_b32", a << (b & 31) | c),
    V("v_lshl_add_u64", [](u64 a, u32 b, u64 c) { return (a << (b & 7)) + c; }),
    U32_3("bfe_u32", a >> (b & 31) & ((1u << (c & 31)) - 1)),
    V("v_bfe_i32", [](u32 a, u32 b, u32 c) -> i32 { const u32 n = c & 31; const u32 x = a >> (b & 31); return n ? (i32)(x << (32 - n)) >> (32 - n) : 0; }),
    U32_3("bfi_b32", (a & b) | (~a & c)), U32_2("bfm_b32", ((1u << (a & 31)) - 1) << (b & 31)),
    V("v_bfrev_b32", [](u32 a) -> u32 {
        a = a >> 16 | a << 16; a = (a >> 8 & 0x00ff00ff) | (a & 0x00ff00ff) << 8; a = (a >> 4 & 0x0f0f0f0f) | (a & 0x0f0f0f0f) << 4;
        a = (a >> 2 & 0x33333333) | (a & 0x33333333) << 2; return (a >> 1 & 0x55555555) | (a & 0x55555555) << 1; }),
    U32_3("alignbit_b32", (u32)(((u64)a << 32 | b) >> (c & 31))), U32_3("alignbyte_b32", (u32)(((u64)a << 32 | b) >> 8 * (c & 3))),
    U32_3("perm_b32", permuted((u64)a << 32 | b, c)),
    V("v_clz_i32_u32", [](u32 a) { return leading(a); }), V("v_cls_i32", [](u32 a) { return leading((i32)a < 0 ? ~a : a); }),
    V("v_ctz_i32_b32", [](u32 a) -> i32 { return a ? __builtin_ctz(a) : -1; }), U32_2("bcnt_u32_b32", __builtin_popcount(a) + b),
    V("v_mbcnt_lo_u32_b32", [](Lane l, u32 a, u32 b) -> u32 { return __builtin_popcount(l.at < 32 ? a & ((1u << l.at) - 1) : a) + b; }),
    V("v_mbcnt_hi_u32_b32", [](Lane l, u32 a, u32 b) -> u32 { return (l.at < 32 ? 0 : __builtin_popcount(a & ((1u << (l.at - 32)) - 1))) + b; }),
    V("v_pack_b32_f16", [](f16 a, f16 b) -> u32 { return a.bits | (u32)b.bits << 16; }),
    V("v_pk_mov_b32", [](Pair<u32> a, Pair<u32> b) -> Pair<u32> { return {a.low, b.low}; }),
    // ---- whole numbers
    U32_2("add_u32", a + b), U32_2("sub_u32", a - b), U32_2("subrev_u32", b - a), U32_3("add3_u32", a + b + c),
    U32_2("add_i32", a + b), U32_2("sub_i32", a - b),
    V("v_add_co_u32", [](u32 a, u32 b) -> WithMask<u32> { return {a + b, a + b < a}; }), V("v_sub_co_u32", [](u32 a, u32 b) -> WithMask<u32> { return {a - b, b > a}; }),
    V("v_subrev_co_u32", [](u32 a, u32 b) -> WithMask<u32> { return {b - a, a > b}; }),
    V("v_addc_co_u32", [](u32 a, u32 b, Bit c) -> WithMask<u32> { return with_carry(a, b, c); }),
    V("v_subb_co_u32", [](u32 a, u32 b, Bit c) -> WithMask<u32> { return with_borrow(a, b, c); }),
    V("v_subbrev_co_u32", [](u32 a, u32 b, Bit c) -> WithMask<u32> { return with_borrow(b, a, c); }),
    U32_2("mul_lo_u32", a * b), U32_2("mul_hi_u32", (u64)a * b >> 32), V("v_mul_hi_i32", [](i32 a, i32 b) -> i32 { return (i64)a * b >> 32; }),
    U32_2("mul_u32_u24", u24(a) * u24(b)), U32_2("mul_i32_i24", (u32)sign24(a) * (u32)sign24(b)), U32_2("mul_hi_u32_u24", u24(a) * u24(b) >> 32),
    U32_2("mul_hi_i32_i24", (i64)sign24(a) * sign24(b) >> 32), U32_3("mad_u32_u24", u24(a) * u24(b) + c), U32_3("mad_i32_i24", (u32)sign24(a) * (u32)sign24(b) + c),
    V("v_mad_u64_u32", [](u32 a, u32 b, u64 c) -> WithMask<u64> { const u64 r = (u64)a * b + c; return {r, r < c}; }),
    V("v_mad_i64_i32", [](i32 a, i32 b, i64 c) -> WithMask<u64> { const i128 r = (i128)a * b + c; return {(u64)r, r != (i64)r}; }),
    V("v_mad_u32_u16", [](u16 a, u16 b, u32 c) -> u32 { return (u32)a * b + c; }), V("v_mad_i32_i16", [](i16 a, i16 b, u32 c) -> u32 { return (u32)((i32)a * b) + c; }),
    U16_2("add_u16", a + b), U16_2("sub_u16", a - b), U16_2("subrev_u16", b - a), U16_2("mul_lo_u16", (u32)a * b), U16_3("mad_u16", (u32)a * b + c), U16_3("mad_legacy_u16", (u32)a * b + c),
    U16_2("add_i16", a + b), U16_2("sub_i16", a - b), I16_3("mad_i16", a * b + c),
    U32_2("min_u32", min(a, b)), U32_2("max_u32", max(a, b)), V("v_min_i32", [](i32 a, i32 b) { return min(a, b); }), V("v_max_i32", [](i32 a, i32 b) { return max(a, b); }),
    U16_2("min_u16", min(a, b)), U16_2("max_u16", max(a, b)), V("v_min_i16", [](i16 a, i16 b) { return min(a, b); }), V("v_max_i16", [](i16 a, i16 b) { return max(a, b); }),
    U32_3("min3_u32", min(min(a, b), c)), U32_3("max3_u32", max(max(a, b), c)), U32_3("med3_u32", middle(a, b, c)),
    V("v_min3_i32", [](i32 a, i32 b, i32 c) { return min(min(a, b), c); }), V("v_max3_i32", [](i32 a, i32 b, i32 c) { return max(max(a, b), c); }), THREE("med3", middle, i32, "i32"),
    U16_3("min3_u16", min(min(a, b), c)), U16_3("max3_u16", max(max(a, b), c)), U16_3("med3_u16", middle(a, b, c)),
    I16_3("min3_i16", min(min(a, b), c)), I16_3("max3_i16", max(max(a, b), c)), I16_3("med3_i16", middle(a, b, c)),
    U32_3("sad_u8", difference<u8>(a, b, c)), U32_3("sad_u16", difference<u16>(a, b, c)), U32_3("sad_u32", difference<u32>(a, b, c)), U32_3("sad_hi_u8", (difference<u8>(a, b, 0) << 16) + c),
    V("v_dot4_i32_i8", [](u32 a, u32 b, u32 c) -> u32 { return c + (u32)dot4<i8>(a, b); }), V("v_dot4_u32_u8", [](u32 a, u32 b, u32 c) -> u32 { return c + (u32)dot4<u8>(a, b); }),
    V("v_dot4c_i32_i8", [](u32 a, u32 b, u32 c) -> u32 { return c + (u32)dot4<i8>(a, b); }),
    // ---- floats
    REALS2("add", a + b), REALS2("sub", a - b), REALS2("subrev", b - a), REALS2("mul", a * b), SAME2("min", least), SAME2("max", most), SAME2("minimum", minimum), SAME2("maximum", maximum),
    V("v_mul_dx9_zero_f32", [](f32 a, f32 b) -> f32 { return is_zero(a) || is_zero(b) ? 0.0f : a * b; }),
    THREE("fma", fma_, f32, "f32"), THREE("fma", fma_, f64, "f64"), THREE("fma", fma_, f16, "f16"),
    V("v_mad_f32", [](f32 a, f32 b, f32 c) { const f32 p = flush(flush(a) * flush(b)); return flush(p + flush(c)); }),
    V("v_fma_dx9_zero_f32", [](f32 a, f32 b, f32 c) { return is_zero(a) || is_zero(b) ? c : fma_(a, b, c); }),
    V("v_min3_f32", [](f32 a, f32 b, f32 c) { return least(least(a, b), c); }), V("v_max3_f32", [](f32 a, f32 b, f32 c) { return most(most(a, b), c); }), THREE("med3", middle, f32, "f32"),
    V("v_min3_f16", [](f16 a, f16 b, f16 c) { return least(least(a, b), c); }), V("v_max3_f16", [](f16 a, f16 b, f16 c) { return most(most(a, b), c); }), THREE("med3", middle, f16, "f16"),
    V("v_maxmin_f32", [](f32 a, f32 b, f32 c) { return least(most(a, b), c); }), V("v_minmax_f32", [](f32 a, f32 b, f32 c) { return most(least(a, b), c); }),
    V("v_maxmin_f16", [](f16 a, f16 b, f16 c) { return least(most(a, b), c); }), V("v_minmax_f16", [](f16 a, f16 b, f16 c) { return most(least(a, b), c); }),
    V("v_maxmin_i32", [](i32 a, i32 b, i32 c) { return min(max(a, b), c); }), V("v_minmax_i32", [](i32 a, i32 b, i32 c) { return max(min(a, b), c); }),
    U32_3("maxmin_u32", min(max(a, b), c)), U32_3("minmax_u32", max(min(a, b), c)),
    REALS1("floor", std::floor(a)), REALS1("ceil", std::ceil(a)), REALS1("trunc", std::trunc(a)), REALS1("rndne", std::nearbyint(a)), REALS1("fract", fraction(a)),
    F32("rcp", flush(1.0f / flush(a))), F32("rcp_iflag", flush(1.0f / flush(a))), F32("rsq", flush((f32)(1.0 / std::sqrt((f64)flush(a))))), F32("sqrt", std::sqrt(flush(a))),
    F32("exp", flush(exp2_(flush(a)))), F32("log", log2_(flush(a))), F32("sin", turn(a, 0)), F32("cos", turn(a, 1)),
    V("v_rcp_f64", [](f64 a) { return 1.0 / a; }), V("v_rsq_f64", [](f64 a) { return 1.0 / std::sqrt(a); }), V("v_sqrt_f64", [](f64 a) { return std::sqrt(a); }),
    V("v_rcp_f16", [](f16 a) { return f16(1.0f / (f32)a); }), V("v_rsq_f16", [](f16 a) { return f16(1.0 / std::sqrt((f64)(f32)a)); }), V("v_sqrt_f16", [](f16 a) { return f16(std::sqrt((f32)a)); }),
    V("v_exp_f16", [](f16 a) { return f16(exp2_(a)); }), V("v_log_f16", [](f16 a) { return f16(log2_(a)); }),
    V("v_sin_f16", [](f16 a) { return f16(turn(a, 0)); }), V("v_cos_f16", [](f16 a) { return f16(turn(a, 1)); }),
    V("v_ldexp_f32", [](f32 a, i32 n) { return scaled(a, n); }), V("v_ldexp_f64", [](f64 a, i32 n) { return scaled(a, n); }), V("v_ldexp_f16", [](f16 a, i16 n) { return scaled(a, n); }),
    V("v_frexp_mant_f32", [](f32 a) { return frexp_mant(a); }), V("v_frexp_mant_f64", [](f64 a) { return frexp_mant(a); }), V("v_frexp_mant_f16", [](f16 a) { return frexp_mant(a); }),
    V("v_frexp_exp_i32_f32", [](f32 a) { return frexp_exp(a); }), V("v_frexp_exp_i32_f64", [](f64 a) { return frexp_exp(a); }), V("v_frexp_exp_i16_f16", [](f16 a) { return (i16)frexp_exp(a); }),
    V("v_div_scale_f32", [](f32 a, f32 b, f32 c) { return div_scale(a, b, c); }), V("v_div_scale_f64", [](f64 a, f64 b, f64 c) { return div_scale(a, b, c); }),
    V("v_div_fmas_f32", [](f32 a, f32 b, f32 c, Bit s) { return div_fmas(a, b, c, s); }), V("v_div_fmas_f64", [](f64 a, f64 b, f64 c, Bit s) { return div_fmas(a, b, c, s); }),
    THREE("div_fixup", div_fixup, f32, "f32"), THREE("div_fixup", div_fixup, f64, "f64"), THREE("div_fixup", div_fixup, f16, "f16"),
    V("v_trig_preop_f64", [](f64 a, u32 n) { return two_over_pi(a, n); }),
    V("v_fma_mix_f32", [](Mix a, Mix b, Mix c) { return std::fma((f32)a, (f32)b, (f32)c); }),
    V("v_fma_mixlo_f16", [](Mix a, Mix b, Mix c) { return f16((f64)(f32)a * (f64)(f32)b + (f64)(f32)c); }),
    // ---- conversions
    V("v_cvt_f32_i32", [](i32 a) { return (f32)a; }), V("v_cvt_f32_u32", [](u32 a) { return (f32)a; }), V("v_cvt_f64_i32", [](i32 a) { return (f64)a; }), V("v_cvt_f64_u32", [](u32 a) { return (f64)a; }),
    V("v_cvt_f16_u16", [](u16 a) { return f16((f32)a); }), V("v_cvt_f16_i16", [](i16 a) { return f16((f32)a); }),
    V("v_cvt_u16_f16", [](f16 a) { return whole<u16>((f32)a); }), V("v_cvt_i16_f16", [](f16 a) { return whole<i16>((f32)a); }),
    V("v_cvt_i32_f32", [](f32 a) { return whole<i32>(a); }), V("v_cvt_u32_f32", [](f32 a) { return whole<u32>(a); }), V("v_cvt_i32_f64", [](f64 a) { return whole<i32>(a); }), V("v_cvt_u32_f64", [](f64 a) { return whole<u32>(a); }),
    V("v_cvt_nearest_i32_f32", [](f32 a) { return whole<i32>(std::floor((f64)a + 0.5)); }), V("v_cvt_floor_i32_f32", [](f32 a) { return whole<i32>(std::floor((f64)a)); }),
    V("v_cvt_f16_f32", [](f32 a) { return f16(a); }), V("v_cvt_f32_f16", [](f16 a) { return (f32)a; }), V("v_cvt_f64_f32", [](f32 a) { return (f64)a; }), V("v_cvt_f32_f64", [](f64 a) { return (f32)a; }),
    V("v_cvt_f32_bf16", [](bf16 a) { return (f32)a; }),
    V("v_cvt_f32_ubyte0", [](u32 a) { return (f32)(a & 255); }), V("v_cvt_f32_ubyte1", [](u32 a) { return (f32)(a >> 8 & 255); }),
    V("v_cvt_f32_ubyte2", [](u32 a) { return (f32)(a >> 16 & 255); }), V("v_cvt_f32_ubyte3", [](u32 a) { return (f32)(a >> 24); }),
    V("v_cvt_pk_rtz_f16_f32", [](f32 a, f32 b) -> u32 { return narrow_toward_zero(a) | (u32)narrow_toward_zero(b) << 16; }),
    V("v_cvt_pk_bf16_f32", [](f32 a, f32 b) -> u32 { return bf16(a).bits | (u32)bf16(b).bits << 16; }),
    V("v_cvt_pk_u16_u32", [](u32 a, u32 b) -> u32 { return min(a, 65535u) | min(b, 65535u) << 16; }),
    V("v_cvt_pk_i16_i32", [](i32 a, i32 b) -> u32 { return (u16)std::clamp(a, -32768, 32767) | (u32)std::clamp(b, -32768, 32767) << 16; }),
    V("v_cvt_i32_i16", [](i16 a) -> i32 { return a; }), V("v_cvt_u32_u16", [](u16 a) -> u32 { return a; }),
    V("v_sat_pk_u8_i16", [](u32 a) -> u32 { return (u32)std::clamp((i32)(i16)a, 0, 255) | (u32)std::clamp((i32)(i16)(a >> 16), 0, 255) << 8; }),
    V("v_cvt_f32_fp8", [](u32 a) { return widen8<3>(a); }), V("v_cvt_f32_bf8", [](u32 a) { return widen8<2>(a); }),
    V("v_cvt_pk_f32_fp8", [](u16 a) -> Pair<f32> { return {widen8<3>(a), widen8<3>(a >> 8)}; }), V("v_cvt_pk_f32_bf8", [](u16 a) -> Pair<f32> { return {widen8<2>(a), widen8<2>(a >> 8)}; }),
    V("v_cvt_pk_fp8_f32", [](f32 a, f32 b) -> u16 { return narrow8<3>(a) | narrow8<3>(b) << 8; }), V("v_cvt_pk_bf8_f32", [](f32 a, f32 b) -> u16 { return narrow8<2>(a) | narrow8<2>(b) << 8; }),
    // ---- two halves, or two floats, at once
    P<f16>("v_pk_add_f16", [](f16 a, f16 b) { return f16((f32)a + (f32)b); }), P<f16>("v_pk_mul_f16", [](f16 a, f16 b) { return f16((f32)a * (f32)b); }),
    P<f16>("v_pk_fma_f16", [](f16 a, f16 b, f16 c) { return fma_(a, b, c); }), P<f16>("v_pk_min_f16", [](f16 a, f16 b) { return least(a, b); }), P<f16>("v_pk_max_f16", [](f16 a, f16 b) { return most(a, b); }),
    P<f32>("v_pk_add_f32", [](f32 a, f32 b) { return a + b; }), P<f32>("v_pk_mul_f32", [](f32 a, f32 b) { return a * b; }), P<f32>("v_pk_fma_f32", [](f32 a, f32 b, f32 c) { return fma_(a, b, c); }),
    P<u16>("v_pk_add_u16", [](u16 a, u16 b) -> u16 { return a + b; }), P<u16>("v_pk_sub_u16", [](u16 a, u16 b) -> u16 { return a - b; }), P<u16>("v_pk_mul_lo_u16", [](u16 a, u16 b) -> u16 { return (u32)a * b; }),
    P<u16>("v_pk_add_i16", [](u16 a, u16 b) -> u16 { return a + b; }), P<u16>("v_pk_sub_i16", [](u16 a, u16 b) -> u16 { return a - b; }),
    P<u16>("v_pk_mad_u16", [](u16 a, u16 b, u16 c) -> u16 { return (u32)a * b + c; }), P<i16>("v_pk_mad_i16", [](i16 a, i16 b, i16 c) -> i16 { return a * b + c; }),
    P<u16>("v_pk_min_u16", [](u16 a, u16 b) { return min(a, b); }), P<u16>("v_pk_max_u16", [](u16 a, u16 b) { return max(a, b); }), P<i16>("v_pk_min_i16", [](i16 a, i16 b) { return min(a, b); }), P<i16>("v_pk_max_i16", [](i16 a, i16 b) { return max(a, b); }),
    P<u16>("v_pk_lshlrev_b16", [](u16 a, u16 b) -> u16 { return b << (a & 15); }), P<u16>("v_pk_lshrrev_b16", [](u16 a, u16 b) -> u16 { return b >> (a & 15); }), P<i16>("v_pk_ashrrev_i16", [](i16 a, i16 b) -> i16 { return b >> (a & 15); }),
    V("v_dot2_f32_f16", [](Pair<f16> a, Pair<f16> b, f32 c) { const f32 low = c + (f32)a.low * (f32)b.low; return low + (f32)a.high * (f32)b.high; }),
    V("v_dot2_f32_bf16", [](Pair<bf16> a, Pair<bf16> b, f32 c) { const f32 low = c + (f32)a.low * (f32)b.low; return low + (f32)a.high * (f32)b.high; }),
    // ---- comparisons
    WHOLES("lt", a < b), WHOLES("eq", a == b), WHOLES("le", a <= b), WHOLES("gt", a > b), WHOLES("ne", a != b), WHOLES("ge", a >= b),
    FLOATS("lt", a < b), FLOATS("eq", a == b), FLOATS("le", a <= b), FLOATS("gt", a > b), FLOATS("lg", (a < b) | (a > b)), FLOATS("ge", a >= b),
    FLOATS("o", (a == a) & (b == b)), FLOATS("u", (a != a) | (b != b)), FLOATS("nge", !(a >= b)), FLOATS("nlg", !((a < b) | (a > b))),
    FLOATS("ngt", !(a > b)), FLOATS("nle", !(a <= b)), FLOATS("neq", !(a == b)), FLOATS("nlt", !(a < b)),
    V("v_cmp_class_f32", [](f32 a, u32 b) { return class_of(a, b); }), V("v_cmp_class_f64", [](f64 a, u32 b) { return class_of(a, b); }), V("v_cmp_class_f16", [](f16 a, u32 b) { return class_of(a, b); }),
    {nullptr, "", nullptr}};
