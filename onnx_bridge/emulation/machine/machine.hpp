// The state of a wave, the form of a decoded instruction, and how an instruction reads and writes lanes.
//
// A register is an array of WAVE words, one for each lane; the 64-bit value in v[n:n+1] has its upper words in the
// next array. Constants and broadcast scalars have the same form, so that an instruction is a loop over arrays.
#pragma once
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <tuple>
#include <type_traits>
#include <utility>

#ifndef WAVE
#define WAVE 64
#endif

using u8 = std::uint8_t; using u16 = std::uint16_t; using u32 = std::uint32_t; using u64 = std::uint64_t;
using i8 = std::int8_t; using i16 = std::int16_t; using i32 = std::int32_t; using i64 = std::int64_t;
using f32 = float; using f64 = double; using u128 = unsigned __int128; using i128 = __int128;
template<class To, class From> To cast(From x) { return std::bit_cast<To>(x); }

// ---- floats of 16 bits: values are computed as f32 or f64, and rounded once ------------------------------------------
inline f32 widen(u16 h)
{
    const u32 magnitude = (h & 0x7fffu) << 13, sign = (h & 0x8000u) << 16;
    const u32 bits = cast<u32>(cast<f32>(magnitude) * 0x1p112f);
    return cast<f32>((magnitude >= 0x0f800000 ? bits | 0x7f800000 : bits) | sign);
}
inline u16 narrow(f32 x)
{
    const u32 bits = cast<u32>(x), sign = bits >> 16 & 0x8000, a = bits & 0x7fffffff;
    const u32 normal = (a - (112u << 23) + 0xfff + (a >> 13 & 1)) >> 13;
    const u32 subnormal = cast<u32>(cast<f32>(a) + 0.5f) - 0x3f000000;
    const u32 nan = 0x7e00 | (a >> 13 & 0x3ff);
    return sign | (a > 0x7f800000 ? nan : a >= 0x477ff000 ? 0x7c00 : a < 0x38800000 ? subnormal : normal);
}
inline f32 to_odd(f64 x) // an f32 whose last bit says that bits were lost, so that a second rounding is right
{
    const u64 bits = cast<u64>(x);
    if ((bits & 0x7fffffffffffffff) > 0x7ff0000000000000) return (f32)x;
    return (f32)cast<f64>((bits & ~0x1fffffffull) | ((bits & 0x1fffffff) ? 0x20000000 : 0));
}
struct f16
{
    u16 bits;
    f16() = default;
    f16(f32 x) : bits(narrow(x)) {}
    f16(f64 x) : bits(narrow(to_odd(x))) {}
    operator f32() const { return widen(bits); }
    static f16 of(u16 bits) { f16 h; h.bits = bits; return h; }
};
struct bf16
{
    u16 bits;
    operator f32() const { return cast<f32>((u32)bits << 16); }
    bf16() = default;
    bf16(f32 x) // to nearest even
    {
        const u32 b = cast<u32>(x);
        bits = (b & 0x7fffffff) > 0x7f800000 ? b >> 16 | 0x40 : (b + 0x7fff + (b >> 16 & 1)) >> 16;
    }
};

template<class T> T half(u32 x) { if constexpr (std::is_same_v<T, f16>) return f16::of(x); else return cast<T>((u16)x); } // of a register
template<class T> u16 word(T x) { if constexpr (std::is_same_v<T, f16>) return x.bits; else return cast<u16>(x); }

// ---- floats of 8 bits with M bits of mantissa: one zero and one NaN on gfx942, those of the OCP on later ones ----------
constexpr bool ONE_ZERO = WAVE == 64;
template<int M> constexpr int BIAS_8 = (M == 3 ? 7 : 15) + ONE_ZERO;
template<int M> constexpr int LARGEST_8 = ONE_ZERO ? 0x7f : M == 3 ? 0x7e : 0x7b;
template<int M> f32 widen8(u8 x)
{
    const int magnitude = x & 0x7f, e = magnitude >> M, m = magnitude & ((1 << M) - 1);
    if (ONE_ZERO ? x == 0x80 : magnitude > LARGEST_8<M>) return cast<f32>(M == 2 && magnitude == 0x7c ? 0x7f800000 | (u32)x >> 7 << 31 : 0x7fc00000);
    const f32 r = std::ldexp((f32)(e ? m | 1 << M : m), std::max(e, 1) - BIAS_8<M> - M);
    return x & 0x80 ? -r : r;
}
template<int M> u8 narrow8(f32 x) // to nearest even
{
    const u8 sign = cast<u32>(x) >> 31 << 7;
    const f32 a = std::fabs(x);
    if (!(a < 0x1p17f)) return ONE_ZERO ? 0x80 : sign | (M == 2 && a == a ? 0x7c : 0x7f);
    const int e = a == 0 ? 1 - BIAS_8<M> : std::max(std::ilogb(a), 1 - BIAS_8<M>);
    const int bits = ((e + BIAS_8<M> - 1) << M) + (int)std::nearbyint(std::ldexp(a, M - e));
    if (bits > LARGEST_8<M>) return ONE_ZERO ? 0x80 : sign | (M == 2 ? 0x7c : 0x7f);
    return ONE_ZERO && !bits ? 0 : sign | bits;
}

// ---- operands of special form ---------------------------------------------------------------------------------------
struct Lane { int at; };                               // not an operand: the lane's number
struct Bit { bool set; operator bool() const { return set; } };       // the lane's bit of a scalar mask
template<class T> struct Pair { T low, high; };        // a packed operand
struct Mix { f32 value; operator f32() const { return value; } };     // f32, or one half of a register as f16
template<class T> struct WithMask { T value; u32 bit; };              // a result and the lane's bit of a scalar mask

template<class T> constexpr int words = sizeof(T) > 4 ? sizeof(T) / 4 : 1;
template<> constexpr int words<Lane> = 0;
template<class T> constexpr char letter = '?';
template<> constexpr char letter<u32> = 'u';   template<> constexpr char letter<i32> = 'i';
template<> constexpr char letter<f32> = 'f';   template<> constexpr char letter<f64> = 'd';
template<> constexpr char letter<u64> = 'U';   template<> constexpr char letter<i64> = 'I';
template<> constexpr char letter<f16> = 'h';   template<> constexpr char letter<bf16> = 'y';
template<> constexpr char letter<u16> = 'w';   template<> constexpr char letter<i16> = 's';
template<> constexpr char letter<Bit> = 'b';   template<> constexpr char letter<Mix> = 'm';
template<> constexpr char letter<Pair<f16>> = 'p'; template<> constexpr char letter<Pair<u16>> = 'q';
template<> constexpr char letter<Pair<bf16>> = 'y';
template<> constexpr char letter<Pair<i16>> = 'q'; template<> constexpr char letter<Pair<f32>> = 'P';
template<> constexpr char letter<Pair<u32>> = 'P';
template<> constexpr char letter<bool> = 'B'; template<> constexpr char letter<void> = '-';

// ---- the machine ----------------------------------------------------------------------------------------------------
enum Scalar { VCC = 106, TRAP = 108, NONE = 124, M0 = 125, EXEC = 126, SCC = 128, SINK = 132, SCALARS = 160 };
enum Space : u8 { VECTOR, CONSTANT, SCALAR };
enum Modifier : u8 { NEGATE = 1, ABSOLUTE = 2, EXTEND = 4, NEGATE_HIGH = 8 };
enum Select : u8 { WHOLE = 0, BYTE_0 = 1, WORD_0 = 5, WORD_1 = 6, LOW_IS_HIGH = 1, HIGH_IS_HIGH = 2 };
enum Move : u8 { NO_MOVE, QUAD, SHIFT_LEFT, SHIFT_RIGHT, ROTATE, MIRROR, HALF_MIRROR, BCAST_15, BCAST_31, SHARE, XOR_MASK,
                 EIGHT, WAVE_SHIFT_LEFT, WAVE_SHIFT_RIGHT, WAVE_ROTATE_LEFT, WAVE_ROTATE_RIGHT };
enum State { RUNNING, AT_BARRIER, ENDED, FAILED };

struct Source
{
    u32 at;        // index of the register or constant
    Space space;
    u8 plain;      // the array is read in place
    u8 modifiers;
    u8 select;
};
struct Wave;
struct alignas(128) Instruction // the first half is what most read
{
    using Run = const Instruction* (*)(Wave&, const Instruction*);
    using RunAll = void (*)(Wave* const*, int, const Instruction*);
    Run run;              // of one wave: returns the next one, or null when the wave pauses
    RunAll run_all;       // if it is a function of lanes: of several waves
    RunAll in_place;      // the same of operands and results that are read and written in place
    u32 a[4], to;         // where these operands and the result are, in bytes from the wave
    u16 d, d2;            // destinations
    i32 offset;           // of memory, or the index of a branch's target
    u32 extra;            // as the instruction needs
    u32 place;            // byte offset in the code
    alignas(64) Source s[4];
    u8 finish;            // the result passes through `finish`
    u8 clamp, scale;      // to [0, 1]; ×2, ×4, ÷2
    u8 first, bits, fill; // part of the destination that is written; the rest is 0 zeroed, 1 sign, 2 kept
    u8 move, move_rows, move_banks, move_zero; // zero: 1 where nothing is read, 2 inactive lanes are read
    u32 moved;            // the argument of `move`
};
struct Range { u64 begin, end; };
struct Program;
struct Group
{
    const Program* program;
    u8* lds; u32 lds_size;
    const Range* memory; u64 memory_count;
    Range last; // in which memory was found
    u64 fault; char what[200];
    const u16* packet;
};
constexpr auto BIT = [] { std::array<u32, 32> bits{}; for (int l = 0; l < 32; l++) bits[l] = 1u << l; return bits; }();
inline void spread(u32 bits, i32* to) // each bit to a lane
{
    for (int l = 0; l < 32; l++) to[l] = bits & BIT[l] ? -1 : 0;
}
struct alignas(64) Wave // behind it in memory: the constants, and its vector registers
{
    u32 s[SCALARS];
    alignas(64) i32 mask[WAVE];       // −1 in active lanes
    alignas(64) i32 moved[WAVE];      // the lanes that an instruction with a move writes
    alignas(64) u32 temporary[5][16 * WAVE / 4];
    u64 written;                      // the lanes whose bits of a mask an instruction writes
    const u32* space[2];              // vector registers, constants
    u32* v;
    const Instruction* pc; const Instruction* code;
    Group* group;
    u64* counts; u64 steps, limit;
    u8* scratch; u32 scratch_size;    // of one lane
    State state;

    u64 get(u32 at) const { return s[at] | (u64)s[at + 1] << 32; }
    u64 lanes(u32 at) const { return WAVE == 64 ? get(at) : s[at]; }
    u64 exec() const { return lanes(EXEC); }
    void put(u32 at, u32 x) { s[at] = x; if (at >= EXEC && at < EXEC + 2) update(); }
    void put(u32 at, u64 x) { s[at] = x; s[at + 1] = x >> 32; if (at == EXEC) update(); }
    void put_lanes(u32 at, u64 x) { WAVE == 64 ? put(at, x) : put(at, (u32)x); }
    [[gnu::noinline]] void update()
    {
        written = exec();
        for (int first = 0; first < WAVE; first += 32) spread(written >> first, mask + first);
    }
    u32* at(u32 bytes) { return (u32*)((u8*)this + bytes); }
    u32 place(const u32* p) const { return (const u8*)p - (const u8*)this; }
};
const Instruction* fail(Wave& w, const Instruction* i, const char* what, u64 address = 0); // ends the launch

inline u64 packed(const i32* on) // one bit for each lane
{
    u8 set[WAVE];
    for (int l = 0; l < WAVE; l++) set[l] = on[l] & 1;
    u64 bits = 0;
    for (int l = 0; l < WAVE; l += 8)
    {
        u64 eight; std::memcpy(&eight, set + l, 8);
        bits |= (eight * 0x0102040810204080ull >> 56) << l;
    }
    return bits;
}

// ---- sources --------------------------------------------------------------------------------------------------------
template<class T> constexpr bool is_pair = requires(T x) { x.high; };
template<class T> inline T of_words(u32 low, u32 high)
{
    if constexpr (is_pair<T> && sizeof(T) == 8) return {cast<decltype(T::low)>(low), cast<decltype(T::low)>(high)};
    else if constexpr (is_pair<T>) return {half<decltype(T::low)>(low), half<decltype(T::low)>(low >> 16)};
    else if constexpr (sizeof(T) == 8) return cast<T>((u64)low | (u64)high << 32);
    else if constexpr (sizeof(T) == 2) return half<T>(low);
    else return cast<T>(low);
}
template<class T> inline T lane(const u32* p, int l) { return of_words<T>(p[l], p[(words<T> - 1) * WAVE + l]); }
template<class T> inline void set_lane(u32* p, int l, T x, i32 on)
{
    u32 low, high = 0;
    if constexpr (is_pair<T> && sizeof(T) == 8) low = cast<u32>(x.low), high = cast<u32>(x.high);
    else if constexpr (is_pair<T>) low = word(x.low) | (u32)word(x.high) << 16;
    else if constexpr (sizeof(T) == 8) low = (u32)cast<u64>(x), high = cast<u64>(x) >> 32;
    else if constexpr (sizeof(T) == 2) low = word(x);
    else low = cast<u32>(x);
    p[l] = on ? low : p[l];
    if constexpr (sizeof(T) == 8) p[WAVE + l] = on ? high : p[WAVE + l];
}

inline int moved_from(const Instruction* i, int l) // the lane that a move reads, or −1
{
    const int n = i->moved, row = l & ~15, in = l & 15;
    const auto inside = [&](int at) { return at >= 0 && at < 16 ? row + at : -1; };
    switch (i->move)
    {
    case QUAD: return (l & ~3) + (n >> 2 * (l & 3) & 3);
    case SHIFT_LEFT: return inside(in + n);
    case SHIFT_RIGHT: return inside(in - n);
    case ROTATE: return row + ((in - n) & 15);
    case MIRROR: return row + 15 - in;
    case HALF_MIRROR: return (l & ~7) + 7 - (l & 7);
    case BCAST_15: return row ? row - 1 : -1;
    case BCAST_31: return l >= 32 ? 31 : -1;
    case SHARE: return row + n;
    case XOR_MASK: return row + (in ^ n);
    case EIGHT: return (l & ~7) + (n >> 3 * (l & 7) & 7);
    case WAVE_SHIFT_LEFT: return l + 1 < WAVE ? l + 1 : -1;
    case WAVE_SHIFT_RIGHT: return l - 1;
    case WAVE_ROTATE_LEFT: return (l + 1) % WAVE;
    case WAVE_ROTATE_RIGHT: return (l + WAVE - 1) % WAVE;
    }
    return l;
}
void move(Wave& w, const Instruction* i, const u32* from, u32* to, int count); // also sets w.moved

template<class T> constexpr u32 SIGN_BIT = std::is_same_v<T, f16> || std::is_same_v<T, bf16> ? 0x8000 : 0x80000000;
template<class T> const u32* prepare(Wave& w, const Instruction* i, int n)
{
    const Source& s = i->s[n];
    u32* t = w.temporary[n];
    constexpr int count = words<T>;
    constexpr u32 sign = SIGN_BIT<T>;
    for (int k = 0; k < count; k++)
        if (s.space == SCALAR) std::fill_n(t + k * WAVE, WAVE, w.s[s.at + k]);
        else std::copy_n(w.space[s.space] + (s.at + k) * WAVE, WAVE, t + k * WAVE);
    if (n == 0 && i->move)
    {
        u32 copy[count * WAVE];
        std::copy_n(t, count * WAVE, copy);
        move(w, i, copy, t, count);
    }
    const bool negative = s.modifiers & NEGATE, absolute = s.modifiers & ABSOLUTE;
    if constexpr (std::is_same_v<T, Mix>)
        for (int l = 0; l < WAVE; l++)
        {
            u32 x = s.select & HIGH_IS_HIGH ? cast<u32>(widen(s.select & LOW_IS_HIGH ? t[l] >> 16 : t[l])) : t[l];
            if (absolute) x &= 0x7fffffff;
            t[l] = negative ? x ^ 0x80000000 : x;
        }
    else if constexpr (is_pair<T> && sizeof(T) == 4)
    {
        const u32 flip = (negative ? 0x8000 : 0) | (s.modifiers & NEGATE_HIGH ? 0x80000000 : 0);
        for (int l = 0; l < WAVE; l++)
        {
            const u32 low = s.select & LOW_IS_HIGH ? t[l] >> 16 : t[l], high = s.select & HIGH_IS_HIGH ? t[l] >> 16 : t[l];
            t[l] = ((low & 0xffff) | high << 16) ^ flip;
        }
    }
    else if constexpr (is_pair<T>)
        for (int l = 0; l < WAVE; l++)
        {
            const u32 low = t[l], high = t[WAVE + l];
            t[l] = (s.select & LOW_IS_HIGH ? high : low) ^ (negative ? 0x80000000 : 0);
            t[WAVE + l] = (s.select & HIGH_IS_HIGH ? high : low) ^ (s.modifiers & NEGATE_HIGH ? 0x80000000 : 0);
        }
    else
    {
        if (s.select)
        {
            const int width = s.select < WORD_0 ? 8 : 16, first = s.select < WORD_0 ? 8 * (s.select - BYTE_0) : 16 * (s.select - WORD_0);
            for (int l = 0; l < WAVE; l++)
            {
                const u32 part = t[l] << (32 - first - width);
                t[l] = s.modifiers & EXTEND ? (u32)((i32)part >> (32 - width)) : part >> (32 - width);
            }
        }
        else if (s.modifiers & EXTEND) {} // of a whole word: as it is
        u32* top = t + (count - 1) * WAVE;
        if (absolute) for (int l = 0; l < WAVE; l++) top[l] &= ~sign;
        if (negative) for (int l = 0; l < WAVE; l++) top[l] ^= sign;
    }
    return t;
}
template<class T> inline const u32* source(Wave& w, const Instruction* i, int n)
{
    const Source& s = i->s[n];
    if (__builtin_expect(s.plain, 1)) return w.space[s.space] + s.at * WAVE;
    return prepare<T>(w, i, n);
}
template<class T> inline T scalar(const Wave& w, const Instruction* i, int n)
{
    const Source& s = i->s[n];
    const u32* p = s.space == SCALAR ? w.s + s.at : w.space[s.space] + s.at * WAVE;
    const int next = s.space == SCALAR ? 1 : WAVE;
    if constexpr (sizeof(T) == 8) return cast<T>(p[0] | (u64)p[next] << 32);
    else return cast<T>(p[0]);
}

// ---- results --------------------------------------------------------------------------------------------------------
template<class T> void finish(Wave& w, const Instruction* i, u32* t, const i32* on)
{
    constexpr bool real = std::is_same_v<T, f32> || std::is_same_v<T, f64> || std::is_same_v<T, f16>;
    const auto adjusted = [&](auto x) {
        using X = decltype(x);
        if (i->scale) x *= i->scale == 1 ? X(2) : i->scale == 2 ? X(4) : X(0.5);
        return i->clamp ? (x > 0 ? (x < 1 ? x : X(1)) : X(0)) : x;
    };
    if (i->clamp || i->scale)
        for (int l = 0; l < WAVE; l++)
        {
            if constexpr (std::is_same_v<T, f16>) set_lane(t, l, f16(adjusted((f32)lane<f16>(t, l))), -1);
            else if constexpr (real) set_lane(t, l, adjusted(lane<T>(t, l)), -1);
            else if constexpr (is_pair<T>)
            {
                T x = lane<T>(t, l);
                set_lane(t, l, T{decltype(x.low)(adjusted((f32)x.low)), decltype(x.low)(adjusted((f32)x.high))}, -1);
            }
        }
    u32* d = w.v + i->d * WAVE;
    if (sizeof(T) > 4)
    {
        for (int l = 0; l < 2 * WAVE; l++) d[l] = on[l % WAVE] ? t[l] : d[l];
        return;
    }
    const u32 field = (i->bits == 32 ? ~0u : (1u << i->bits) - 1) << i->first;
    for (int l = 0; l < WAVE; l++)
    {
        const u32 x = t[l] << i->first & field;
        const u32 rest = i->fill == 2 ? d[l] & ~field : i->fill == 1 && x >> (i->first + i->bits - 1) & 1 ? ~(field | (field - 1)) : 0;
        const u32 y = i->bits == 32 ? t[l] : x | rest;
        d[l] = on[l] ? y : d[l];
    }
}

// ---- a function of lanes as an instruction ----------------------------------------------------------------------------
template<class F> struct Call : Call<decltype(&F::operator())> {};
template<class C, class R, class... A> struct Call<R (C::*)(A...) const> { using Result = R; using Arguments = std::tuple<std::decay_t<A>...>; };
template<class T> struct Unmasked { using type = T; static constexpr bool with_mask = false; };
template<class T> struct Unmasked<WithMask<T>> { using type = T; static constexpr bool with_mask = true; };

// An operand in the lane `first + l`, of which `first` is a multiple of 32.
template<class T> struct Operand
{
    const u32* p;
    Operand(Wave& w, const Instruction* i, int n) : p(w.at(i->a[n])) {}
    T in(int first, int l) const { return lane<T>(p + first, l); }
};
template<> struct Operand<Lane>
{
    Operand(Wave&, const Instruction*, int) {}
    Lane in(int first, int l) const { return {first + l}; }
};
template<> struct Operand<Bit>
{
    u32 bits[2];
    Operand(Wave& w, const Instruction* i, int n) { std::memcpy(bits, w.at(i->a[n]), WAVE / 8); }
    Bit in(int first, int l) const { return {(bits[first / 32] & BIT[l]) != 0}; }
};
// The same of words that are shifted (halves), masked and flipped as they are read: signs, and scalars, which keep no bit.
template<class T> struct ModifiedOperand
{
    static constexpr int last = words<T> - 1;
    const u32* p[2];
    u32 keep[2], flip[2], shift;
    ModifiedOperand(Wave& w, const Instruction* i, int n)
    {
        const Source& s = i->s[n];
        shift = sizeof(T) == 2 && s.select == WORD_1 ? 16 : 0;
        #pragma GCC unroll 2
        for (int k = 0; k <= last; k++)
        {
            const int word = is_pair<T> && last ? s.select >> k & 1 : k;
            const u32 sign = k < last && !is_pair<T> ? 0 : SIGN_BIT<T>;
            p[k] = w.at(i->a[n]) + word * WAVE;
            keep[k] = s.modifiers & ABSOLUTE ? ~sign : ~0u;
            flip[k] = s.modifiers & (is_pair<T> && k ? NEGATE_HIGH : NEGATE) ? sign : 0;
            if constexpr (is_pair<T> && !last) flip[k] = (s.modifiers & NEGATE ? 0x8000 : 0) | (s.modifiers & NEGATE_HIGH ? 0x80000000 : 0);
            if (s.space == SCALAR) flip[k] ^= w.s[s.at + word] >> shift & keep[k], keep[k] = 0;
        }
    }
    u32 word(int k, int first, int l) const { return ((p[k] + first)[l] >> (sizeof(T) == 2 ? shift : 0) & keep[k]) ^ flip[k]; }
    T in(int first, int l) const { return of_words<T>(word(0, first, l), word(last, first, l)); }
};
template<class T, bool Modified>
using Read = std::conditional_t<Modified && !std::is_same_v<T, Lane> && !std::is_same_v<T, Bit>, ModifiedOperand<T>, Operand<T>>;
template<class... A> constexpr int place_of(int n) // of an operand among the sources: the lane's number is none
{
    return n - (std::is_same_v<std::tuple_element_t<0, std::tuple<A..., Lane>>, Lane> ? 1 : 0);
}
template<class F, bool Modified, class R, class... A, std::size_t... N>
inline void run_lanes(Wave& w, const Instruction* i, std::tuple<A...>*, R*, std::index_sequence<N...>)
{
    using T = typename Unmasked<R>::type;
    const std::tuple<Read<A, Modified>...> operands{Read<A, Modified>{w, i, std::max(place_of<A...>(N), 0)}...};
    u64 bits = 0;
    for (int first = 0; first < WAVE; first += 32)
    {
        const i32* on = w.mask + first;
        u32 *d = w.at(i->to) + first, part = 0;
        #pragma GCC ivdep
        for (int l = 0; l < 32; l++)
        {
            const R r = F{}(std::get<N>(operands).in(first, l)...);
            if constexpr (std::is_same_v<R, bool>) part |= -(u32)r & BIT[l];
            else if constexpr (Unmasked<R>::with_mask)
            {
                set_lane<T>(d, l, r.value, on[l]);
                part |= -r.bit & BIT[l];
            }
            else set_lane<T>(d, l, r, on[l]);
        }
        bits |= (u64)part << first;
    }
    if constexpr (std::is_same_v<R, bool> || Unmasked<R>::with_mask)
    {
        if (i->d2 != SINK) w.put_lanes(i->d2, bits & w.written);
        if constexpr (std::is_same_v<R, bool>) w.put_lanes(i->d, bits & w.written);
    }
}
template<class F, bool Modified> [[gnu::flatten]] void lanes(Wave* const* waves, int count, const Instruction* i)
{
    using C = Call<F>;
    for (int k = 0; k < count; k++)
        run_lanes<F, Modified>(*waves[k], i, (typename C::Arguments*)nullptr, (typename C::Result*)nullptr,
                               std::make_index_sequence<std::tuple_size_v<typename C::Arguments>>{});
}
// The same of operands and results of any form, for all functions of one type.
template<class R, class... A> void general(Wave* const* waves, int count, const Instruction* i)
{
    using T = typename Unmasked<R>::type;
    const bool merged = i->finish || i->move;
    Instruction in_place = *i;
    if (merged) in_place.to = waves[0]->place(waves[0]->temporary[4]);
    for (int k = 0; k < count; k++)
    {
        Wave& w = *waves[k];
        int n = 0;
        const auto prepared = [&]<class X>(X*)
        {
            if constexpr (std::is_same_v<X, Lane>) return;
            else if constexpr (!std::is_same_v<X, Bit>) if (!i->s[n].plain) in_place.a[n] = w.place(prepare<X>(w, i, n));
            n++;
        };
        (prepared((A*)nullptr), ...);
        if (i->move) w.written = packed(w.moved);
    }
    i->in_place(waves, count, &in_place);
    for (int k = 0; k < count; k++)
    {
        Wave& w = *waves[k];
        if (i->move) w.written = w.exec();
        if constexpr (!std::is_same_v<R, bool>) if (merged) finish<T>(w, i, w.temporary[4], i->move ? w.moved : w.mask);
    }
}
template<class F, class R, class... A, std::size_t... N>
inline const Instruction* run_scalar(Wave& w, const Instruction* i, std::tuple<A...>*, R*, std::index_sequence<N...>)
{
    bool scc = w.s[SCC];
    const auto value = [&]<class T>(T*, int n) -> decltype(auto) { if constexpr (std::is_same_v<T, bool>) return (scc); else return scalar<T>(w, i, n); };
    if constexpr (std::is_same_v<R, void>) F{}(value((A*)nullptr, N)...);
    else
    {
        const R r = F{}(value((A*)nullptr, N)...);
        if constexpr (sizeof(R) == 8) w.put(i->d, cast<u64>(r)); else w.put(i->d, cast<u32>(r));
    }
    w.s[SCC] = scc;
    return i + 1;
}
template<class F> const Instruction* scalar_function(Wave& w, const Instruction* i)
{
    using C = Call<F>;
    return run_scalar<F>(w, i, (typename C::Arguments*)nullptr, (typename C::Result*)nullptr,
                         std::make_index_sequence<std::tuple_size_v<typename C::Arguments>>{});
}

// ---- the table of instructions: name, signature and function ----------------------------------------------------------
struct Entry { const char* name; char signature[12]; Instruction::Run run; Instruction::RunAll in_place = nullptr, modified = nullptr, general = nullptr; };
template<class R, class... A> constexpr Instruction::RunAll general_of(R*, std::tuple<A...>*) { return &general<R, A...>; }
template<class... A> void letters(char* to, std::tuple<A...>*)
{
    (((std::is_same_v<A, Lane> || std::is_same_v<A, bool>) ? 0 : *to++ = letter<A>), ...);
    *to = 0;
}
template<class F> Entry V(const char* name, F) // of lanes: "v", the result, the sources
{
    using R = typename Call<F>::Result;
    Entry e{name, {'v'}, nullptr, &lanes<F, false>, &lanes<F, true>, general_of((R*)nullptr, (typename Call<F>::Arguments*)nullptr)};
    e.signature[1] = letter<typename Unmasked<R>::type>;
    e.signature[2] = Unmasked<R>::with_mask ? '+' : '=';
    letters(e.signature + 3, (typename Call<F>::Arguments*)nullptr);
    return e;
}
template<class F> Entry S(const char* name, F) // of scalars
{
    Entry e{name, {'s'}, &scalar_function<F>};
    e.signature[1] = letter<typename Call<F>::Result>;
    e.signature[2] = '=';
    letters(e.signature + 3, (typename Call<F>::Arguments*)nullptr);
    return e;
}
// a function of one half, on both
template<class F, class A> struct Packed1 { Pair<A> operator()(Pair<A> a) const { return {F{}(a.low), F{}(a.high)}; } };
template<class F, class A> struct Packed2 { Pair<A> operator()(Pair<A> a, Pair<A> b) const { return {F{}(a.low, b.low), F{}(a.high, b.high)}; } };
template<class F, class A> struct Packed3 { Pair<A> operator()(Pair<A> a, Pair<A> b, Pair<A> c) const { return {F{}(a.low, b.low, c.low), F{}(a.high, b.high, c.high)}; } };
template<class A, class F> Entry P(const char* name, F)
{
    constexpr auto count = std::tuple_size_v<typename Call<F>::Arguments>;
    if constexpr (count == 1) return V(name, Packed1<F, A>{});
    else if constexpr (count == 2) return V(name, Packed2<F, A>{});
    else return V(name, Packed3<F, A>{});
}
