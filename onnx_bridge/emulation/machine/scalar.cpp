// Instructions of the scalar unit: arithmetic, branches, masks and constants in memory.
#include "machine.hpp"
#include "memory.hpp"

namespace {
using I = const Instruction*;

I missing(Wave& w, I i) { return fail(w, i, "is not emulated"); }
I end(Wave& w, I) { w.state = ENDED; return nullptr; }
I barrier(Wave& w, I i) { w.state = AT_BARRIER; w.pc = i + 1; return nullptr; }
template<class F> I branch(Wave& w, I i) { return F{}(w) ? w.code + i->offset : i + 1; }
template<class F> Entry B(const char* name, F) { return {name, "b", &branch<F>}; }

I jump(Wave& w, I i) { return go(w, i, w.get(i->s[0].at)); }
I get_pc(Wave& w, I i) { return w.put(i->d, address_after(w, i)), i + 1; }
I swap_pc(Wave& w, I i)
{
    const u64 to = w.get(i->s[0].at);
    w.put(i->d, address_after(w, i));
    return go(w, i, to);
}
I call(Wave& w, I i) { return w.put(i->d, address_after(w, i)), w.code + i->offset; }

// the mask before, and a function of it and the source
template<class F, int Words> I save_exec(Wave& w, I i)
{
    const u64 source = Words == 2 ? scalar<u64>(w, i, 0) : scalar<u32>(w, i, 0), old = Words == 2 ? w.get(EXEC) : w.s[EXEC];
    u64 now = F{}(source, old);
    if (Words == 1) now = (u32)now;
    Words == 2 ? w.put(i->d, old) : w.put(i->d, (u32)old);
    Words == 2 ? w.put(EXEC, now) : w.put(EXEC, (u32)now);
    w.s[SCC] = now != 0;
    return i + 1;
}
template<class F, int Words> I write_exec(Wave& w, I i) // the same, with the new mask as result
{
    const u64 source = Words == 2 ? scalar<u64>(w, i, 0) : scalar<u32>(w, i, 0);
    u64 now = F{}(source, Words == 2 ? w.get(EXEC) : w.s[EXEC]);
    if (Words == 1) now = (u32)now;
    Words == 2 ? w.put(i->d, now) : w.put(i->d, (u32)now);
    Words == 2 ? w.put(EXEC, now) : w.put(EXEC, (u32)now);
    w.s[SCC] = now != 0;
    return i + 1;
}
#define SAVE(op, expression) \
    Entry{"s_" op "_saveexec_b32", "su=u", &save_exec<decltype([](u64 a, u64 e) { return expression; }), 1>}, \
    Entry{"s_" op "_saveexec_b64", "sU=U", &save_exec<decltype([](u64 a, u64 e) { return expression; }), 2>}

template<int Words> I load(Wave& w, I i)
{
    const u64 address = (scalar<u64>(w, i, 0) & ~3ull) + (i64)i->offset + (i->extra ? scalar<u32>(w, i, 1) : 0);
    if (!inside(w, address, 4 * Words)) return fail(w, i, "reads outside its memory", address);
    u32 t[Words];
    note(w, i), std::memcpy(t, (const void*)address, sizeof t);
    for (int k = 0; k < Words; k++) w.put(i->d + k, t[k]);
    return i + 1;
}
template<class T> I load_small(Wave& w, I i)
{
    const u64 address = scalar<u64>(w, i, 0) + (i64)i->offset + (i->extra ? scalar<u32>(w, i, 1) : 0);
    if (!inside(w, address, sizeof(T))) return fail(w, i, "reads outside its memory", address);
    T t;
    note(w, i), std::memcpy(&t, (const void*)address, sizeof t);
    return w.put(i->d, (u32)(i32)t), i + 1;
}
I move_relative(Wave& w, I i)
{
    if (i->s[0].at + w.s[M0] >= SCALARS) return fail(w, i, "reads a scalar register that does not exist");
    return w.put(i->d, w.s[i->s[0].at + w.s[M0]]), i + 1;
}

template<class T> int leading(T x) { return x ? (sizeof(T) == 8 ? __builtin_clzll(x) : __builtin_clz(x)) : -1; }
template<class T> int trailing(T x) { return x ? (sizeof(T) == 8 ? __builtin_ctzll(x) : __builtin_ctz(x)) : -1; }
template<class T> T reversed(T x)
{
    T r = 0;
    for (unsigned k = 0; k < 8 * sizeof(T); k++) r |= (x >> k & 1) << (8 * sizeof(T) - 1 - k);
    return r;
}
template<class T> T field(T x, u32 first, u32 width) { return width >= 8 * sizeof(T) ? x >> first : x >> first & ((T(1) << width) - 1); }
template<class T> T signed_field(T x, u32 first, u32 width)
{
    if (width == 0) return 0;
    const u32 unused = width >= 8 * sizeof(T) ? 0 : 8 * sizeof(T) - width;
    return T(std::make_signed_t<T>(field(x, first, width) << unused) >> unused);
}
#define BOTH(op, expression) /* of words and double words; scc: the result is not 0 */ \
    S("s_" op "_b32", [](u32 a, u32 b, bool& c) { const u32 r = expression; c = r != 0; return r; }), \
    S("s_" op "_b64", [](u64 a, u64 b, bool& c) { const u64 r = expression; c = r != 0; return r; })
#define COMPARE(op, symbol) \
    S("s_cmp_" op "_i32", [](i32 a, i32 b, bool& c) { c = a symbol b; }), S("s_cmp_" op "_u32", [](u32 a, u32 b, bool& c) { c = a symbol b; })
#define REAL(op, expression) S("s_cmp_" op "_f32", [](f32 a, f32 b, bool& c) { c = expression; })
} // namespace

extern const Entry scalar_table[] = {
    {"missing", "-", &missing}, {"s_endpgm", "b", &end}, {"s_barrier", "b", &barrier},
    B("s_branch", [](Wave&) { return true; }),
    B("s_cbranch_scc0", [](Wave& w) { return !w.s[SCC]; }), B("s_cbranch_scc1", [](Wave& w) { return (bool)w.s[SCC]; }),
    B("s_cbranch_vccz", [](Wave& w) { return !w.lanes(VCC); }), B("s_cbranch_vccnz", [](Wave& w) { return w.lanes(VCC) != 0; }),
    B("s_cbranch_execz", [](Wave& w) { return !w.exec(); }), B("s_cbranch_execnz", [](Wave& w) { return w.exec() != 0; }),
    {"s_setpc_b64", "s-=U", &jump}, {"s_getpc_b64", "sU=", &get_pc}, {"s_swappc_b64", "sU=U", &swap_pc}, {"s_call_b64", "bU=", &call},
    SAVE("and", a & e), SAVE("or", a | e), SAVE("xor", a ^ e), SAVE("and_not1", a & ~e), SAVE("and_not0", ~a & e),
    SAVE("or_not1", a | ~e), SAVE("or_not0", ~a | e), SAVE("nand", ~(a & e)), SAVE("nor", ~(a | e)), SAVE("xnor", ~(a ^ e)),
    {"s_and_not1_wrexec_b32", "su=u", &write_exec<decltype([](u64 a, u64 e) { return a & ~e; }), 1>},
    {"s_and_not1_wrexec_b64", "sU=U", &write_exec<decltype([](u64 a, u64 e) { return a & ~e; }), 2>},
    {"s_and_not0_wrexec_b32", "su=u", &write_exec<decltype([](u64 a, u64 e) { return ~a & e; }), 1>},
    {"s_and_not0_wrexec_b64", "sU=U", &write_exec<decltype([](u64 a, u64 e) { return ~a & e; }), 2>},
    {"s_load_b32", "l1", &load<1>}, {"s_load_b64", "l2", &load<2>}, {"s_load_b96", "l3", &load<3>}, {"s_load_b128", "l4", &load<4>},
    {"s_load_b256", "l8", &load<8>}, {"s_load_b512", "l16", &load<16>},
    {"s_load_u8", "l1", &load_small<u8>}, {"s_load_i8", "l1", &load_small<i8>}, {"s_load_u16", "l1", &load_small<u16>}, {"s_load_i16", "l1", &load_small<i16>},
    {"s_movrels_b32", "su=u", &move_relative},

    S("s_mov_b32", [](u32 a) { return a; }), S("s_mov_b64", [](u64 a) { return a; }),
    S("s_cmov_b32", [](u32 old, u32 a, bool& c) { return c ? a : old; }), S("s_cmov_b64", [](u64 old, u64 a, bool& c) { return c ? a : old; }),
    S("s_cselect_b32", [](u32 a, u32 b, bool& c) { return c ? a : b; }), S("s_cselect_b64", [](u64 a, u64 b, bool& c) { return c ? a : b; }),
    S("s_add_u32", [](u32 a, u32 b, bool& c) { const u64 r = (u64)a + b; c = r >> 32; return (u32)r; }),
    S("s_sub_u32", [](u32 a, u32 b, bool& c) { c = b > a; return a - b; }),
    S("s_addc_u32", [](u32 a, u32 b, bool& c) { const u64 r = (u64)a + b + c; c = r >> 32; return (u32)r; }),
    S("s_subb_u32", [](u32 a, u32 b, bool& c) { const u64 r = (u64)a - b - c; c = r >> 32 & 1; return (u32)r; }),
    S("s_add_i32", [](i32 a, i32 b, bool& c) { i32 r; c = __builtin_add_overflow(a, b, &r); return r; }),
    S("s_sub_i32", [](i32 a, i32 b, bool& c) { i32 r; c = __builtin_sub_overflow(a, b, &r); return r; }),
    S("s_add_u64", [](u64 a, u64 b) { return a + b; }), S("s_sub_u64", [](u64 a, u64 b) { return a - b; }), S("s_mul_u64", [](u64 a, u64 b) { return a * b; }),
    S("s_mul_i32", [](u32 a, u32 b) { return a * b; }),
    S("s_mul_hi_u32", [](u32 a, u32 b) { return (u32)((u64)a * b >> 32); }), S("s_mul_hi_i32", [](i32 a, i32 b) { return (i32)((i64)a * b >> 32); }),
    S("s_min_i32", [](i32 a, i32 b, bool& c) { c = a < b; return c ? a : b; }), S("s_min_u32", [](u32 a, u32 b, bool& c) { c = a < b; return c ? a : b; }),
    S("s_max_i32", [](i32 a, i32 b, bool& c) { c = a > b; return c ? a : b; }), S("s_max_u32", [](u32 a, u32 b, bool& c) { c = a > b; return c ? a : b; }),
    S("s_abs_i32", [](u32 a, bool& c) { const u32 r = (i32)a < 0 ? -a : a; c = r != 0; return r; }),
    S("s_absdiff_i32", [](u32 a, u32 b, bool& c) { u32 r = a - b; if ((i32)r < 0) r = -r; c = r != 0; return r; }),
    BOTH("and", a & b), BOTH("or", a | b), BOTH("xor", a ^ b), BOTH("nand", ~(a & b)), BOTH("nor", ~(a | b)), BOTH("xnor", ~(a ^ b)),
    BOTH("and_not1", a & ~b), BOTH("or_not1", a | ~b),
    S("s_lshl_b32", [](u32 a, u32 b, bool& c) { const u32 r = a << (b & 31); c = r != 0; return r; }),
    S("s_lshl_b64", [](u64 a, u32 b, bool& c) { const u64 r = a << (b & 63); c = r != 0; return r; }),
    S("s_lshr_b32", [](u32 a, u32 b, bool& c) { const u32 r = a >> (b & 31); c = r != 0; return r; }),
    S("s_lshr_b64", [](u64 a, u32 b, bool& c) { const u64 r = a >> (b & 63); c = r != 0; return r; }),
    S("s_ashr_i32", [](i32 a, u32 b, bool& c) { const i32 r = a >> (b & 31); c = r != 0; return r; }),
    S("s_ashr_i64", [](i64 a, u32 b, bool& c) { const i64 r = a >> (b & 63); c = r != 0; return r; }),
    S("s_lshl1_add_u32", [](u32 a, u32 b, bool& c) { const u64 r = ((u64)a << 1) + b; c = r >> 32; return (u32)r; }),
    S("s_lshl2_add_u32", [](u32 a, u32 b, bool& c) { const u64 r = ((u64)a << 2) + b; c = r >> 32; return (u32)r; }),
    S("s_lshl3_add_u32", [](u32 a, u32 b, bool& c) { const u64 r = ((u64)a << 3) + b; c = r >> 32; return (u32)r; }),
    S("s_lshl4_add_u32", [](u32 a, u32 b, bool& c) { const u64 r = ((u64)a << 4) + b; c = r >> 32; return (u32)r; }),
    S("s_not_b32", [](u32 a, bool& c) { c = ~a != 0; return ~a; }), S("s_not_b64", [](u64 a, bool& c) { c = ~a != 0; return ~a; }),
    S("s_brev_b32", [](u32 a) { return reversed(a); }), S("s_brev_b64", [](u64 a) { return reversed(a); }),
    S("s_bcnt0_i32_b32", [](u32 a, bool& c) { const u32 r = __builtin_popcount(~a); c = r != 0; return r; }),
    S("s_bcnt0_i32_b64", [](u64 a, bool& c) { const u32 r = __builtin_popcountll(~a); c = r != 0; return r; }),
    S("s_bcnt1_i32_b32", [](u32 a, bool& c) { const u32 r = __builtin_popcount(a); c = r != 0; return r; }),
    S("s_bcnt1_i32_b64", [](u64 a, bool& c) { const u32 r = __builtin_popcountll(a); c = r != 0; return r; }),
    S("s_ctz_i32_b32", [](u32 a) { return (u32)trailing(a); }), S("s_ctz_i32_b64", [](u64 a) { return (u32)trailing(a); }),
    S("s_clz_i32_u32", [](u32 a) { return (u32)leading(a); }), S("s_clz_i32_u64", [](u64 a) { return (u32)leading(a); }),
    S("s_cls_i32", [](u32 a) { return (u32)leading((i32)a < 0 ? ~a : a); }), S("s_cls_i32_i64", [](u64 a) { return (u32)leading((i64)a < 0 ? ~a : a); }),
    S("s_sext_i32_i8", [](u32 a) { return (i32)(i8)a; }), S("s_sext_i32_i16", [](u32 a) { return (i32)(i16)a; }),
    S("s_bitset0_b32", [](u32 old, u32 a) { return old & ~(1u << (a & 31)); }), S("s_bitset1_b32", [](u32 old, u32 a) { return old | 1u << (a & 31); }),
    S("s_bitset0_b64", [](u64 old, u32 a) { return old & ~(1ull << (a & 63)); }), S("s_bitset1_b64", [](u64 old, u32 a) { return old | 1ull << (a & 63); }),
    S("s_bfm_b32", [](u32 a, u32 b) { return ((1u << (a & 31)) - 1) << (b & 31); }), S("s_bfm_b64", [](u32 a, u32 b) { return ((1ull << (a & 63)) - 1) << (b & 63); }),
    S("s_bfe_u32", [](u32 a, u32 b, bool& c) { const u32 r = field(a, b & 31, b >> 16 & 127); c = r != 0; return r; }),
    S("s_bfe_i32", [](u32 a, u32 b, bool& c) { const u32 r = signed_field(a, b & 31, b >> 16 & 127); c = r != 0; return r; }),
    S("s_bfe_u64", [](u64 a, u32 b, bool& c) { const u64 r = field(a, b & 63, b >> 16 & 127); c = r != 0; return r; }),
    S("s_bfe_i64", [](u64 a, u32 b, bool& c) { const u64 r = signed_field(a, b & 63, b >> 16 & 127); c = r != 0; return r; }),
    S("s_pack_ll_b32_b16", [](u32 a, u32 b) { return (a & 0xffff) | b << 16; }), S("s_pack_lh_b32_b16", [](u32 a, u32 b) { return (a & 0xffff) | (b & 0xffff0000); }),
    S("s_pack_hh_b32_b16", [](u32 a, u32 b) { return a >> 16 | (b & 0xffff0000); }), S("s_pack_hl_b32_b16", [](u32 a, u32 b) { return a >> 16 | b << 16; }),
    COMPARE("eq", ==), COMPARE("lg", !=), COMPARE("gt", >), COMPARE("ge", >=), COMPARE("lt", <), COMPARE("le", <=),
    S("s_cmp_eq_u64", [](u64 a, u64 b, bool& c) { c = a == b; }), S("s_cmp_lg_u64", [](u64 a, u64 b, bool& c) { c = a != b; }),
    S("s_bitcmp0_b32", [](u32 a, u32 b, bool& c) { c = !(a >> (b & 31) & 1); }), S("s_bitcmp1_b32", [](u32 a, u32 b, bool& c) { c = a >> (b & 31) & 1; }),
    S("s_bitcmp0_b64", [](u64 a, u32 b, bool& c) { c = !(a >> (b & 63) & 1); }), S("s_bitcmp1_b64", [](u64 a, u32 b, bool& c) { c = a >> (b & 63) & 1; }),
    // floats, from gfx1150 on
    S("s_add_f32", [](f32 a, f32 b) { return a + b; }), S("s_sub_f32", [](f32 a, f32 b) { return a - b; }), S("s_mul_f32", [](f32 a, f32 b) { return a * b; }),
    S("s_fmac_f32", [](f32 a, f32 b, f32 c) { return std::fma(a, b, c); }), S("s_fmaak_f32", [](f32 a, f32 b, f32 c) { return std::fma(a, b, c); }),
    S("s_fmamk_f32", [](f32 a, f32 b, f32 c) { return std::fma(a, b, c); }),
    S("s_cvt_f32_i32", [](i32 a) { return (f32)a; }), S("s_cvt_f32_u32", [](u32 a) { return (f32)a; }),
    S("s_ceil_f32", [](f32 a) { return std::ceil(a); }), S("s_floor_f32", [](f32 a) { return std::floor(a); }),
    S("s_trunc_f32", [](f32 a) { return std::trunc(a); }), S("s_rndne_f32", [](f32 a) { return std::nearbyint(a); }),
    REAL("lt", a < b), REAL("eq", a == b), REAL("le", a <= b), REAL("gt", a > b), REAL("lg", a < b || a > b), REAL("ge", a >= b),
    REAL("o", a == a && b == b), REAL("u", !(a == a && b == b)), REAL("nge", !(a >= b)), REAL("nlg", !(a < b || a > b)),
    REAL("ngt", !(a > b)), REAL("nle", !(a <= b)), REAL("neq", !(a == b)), REAL("nlt", !(a < b)),
    {nullptr, "", nullptr}};
