// Instructions that touch memory, and those that move values between lanes.
#include "memory.hpp"

namespace {
using I = const Instruction*;
enum Where { GLOBAL, FLAT, LDS, SCRATCH, BUFFER };
constexpr u32 ADDRESS = 1, OFFSET = 2, IDXEN = 4, RETURNS = 8; // of Instruction::extra: operands that are there

// The place in the host's memory that a lane means, or null (and the launch fails).
template<Where K> inline __attribute__((always_inline)) u8* place(Wave& w, I i, int l, u32 bytes)
{
    const u32* v = w.space[i->s[0].space] + i->s[0].at * WAVE; // the addresses
    if constexpr (K == LDS)
    {
        const u32 at = v[l] + i->offset;
        if ((u64)at + bytes > w.group->lds_size) { fail(w, i, "reaches outside the LDS", at); return nullptr; }
        return w.group->lds + at;
    }
    else if constexpr (K == SCRATCH)
    {
        const u32 at = (i->extra & ADDRESS ? v[l] : 0) + (i->extra & OFFSET ? scalar<u32>(w, i, 2) : 0) + i->offset;
        if ((u64)at + bytes > w.scratch_size) { fail(w, i, "reaches outside the scratch memory", at); return nullptr; }
        return w.scratch + (u64)l * w.scratch_size + at;
    }
    else if constexpr (K == BUFFER)
    {
        const u64 word = w.get(i->s[3].at), base = word & 0xffffffffffff;
        const u32 stride = word >> 48 & 0x3fff, records = w.s[i->s[3].at + 2];
        const u32 index = i->extra & IDXEN ? v[l] : 0, at = (i->extra & ADDRESS ? v[i->extra & IDXEN ? WAVE + l : l] : 0) + i->offset;
        const u64 offset = (u64)index * stride + at;
        if (stride ? index >= records : offset + bytes > records) { fail(w, i, "reaches outside its buffer", base + offset); return nullptr; }
        const u64 address = base + offset + scalar<u32>(w, i, 2);
        if (!inside(w, address, bytes)) { fail(w, i, "reaches outside its memory", address); return nullptr; }
        return (u8*)address;
    }
    else
    {
        const u64 address = (i->extra & OFFSET ? scalar<u64>(w, i, 2) + v[l] : (v[l] | (u64)v[WAVE + l] << 32)) + (i64)i->offset;
        if (K == FLAT && address >> 48 == SHARED)
        {
            if ((address & 0xffffffffffff) + bytes > w.group->lds_size) { fail(w, i, "reaches outside the LDS", address); return nullptr; }
            return w.group->lds + (u32)address;
        }
        if (K == FLAT && address >> 48 == PRIVATE)
        {
            if ((address & 0xffffffffffff) + bytes > w.scratch_size) { fail(w, i, "reaches outside the scratch memory", address); return nullptr; }
            return w.scratch + (u64)l * w.scratch_size + (u32)address;
        }
        if (!inside(w, address, bytes)) { fail(w, i, "reaches outside its memory", address); return nullptr; }
        return (u8*)address;
    }
}
// All lanes active, one behind the other: then memory is touched once for all.
template<Where K, int Words> u8* block(Wave& w, I i)
{
    if (K != GLOBAL || w.exec() != (WAVE == 64 ? ~0ull : 0xffffffffull)) return nullptr;
    const u32* low = w.space[i->s[0].space] + i->s[0].at * WAVE;
    const bool offsets = i->extra & OFFSET;
    const u32 *high = offsets ? low : low + WAVE, first = low[0];
    u32 other = first > ~0u - 4 * Words * WAVE;
    for (int l = 0; l < WAVE; l++) other |= low[l] - first - 4 * Words * l;
    if (!offsets) for (int l = 0; l < WAVE; l++) other |= high[l] ^ high[0];
    if (other) return nullptr;
    const u64 address = (offsets ? scalar<u64>(w, i, 2) + first : first | (u64)high[0] << 32) + (i64)i->offset;
    return inside(w, address, 4 * Words * WAVE) ? (u8*)address : nullptr;
}
#define LANES for (int l = 0; l < WAVE; l++) if (w.mask[l])

template<Where K, int Words> I load(Wave& w, I i)
{
    note(w, i);
    u32* d = w.v + i->d * WAVE;
    if (const u8* p = block<K, Words>(w, i))
    {
        u32 t[Words * WAVE];
        std::memcpy(t, p, sizeof t);
        for (int k = 0; k < Words; k++)
            for (int l = 0; l < WAVE; l++) d[k * WAVE + l] = t[l * Words + k];
        return i + 1;
    }
    LANES
    {
        const u8* p = place<K>(w, i, l, 4 * Words);
        if (!p) return nullptr;
        u32 t[Words];
        std::memcpy(t, p, sizeof t);
        for (int k = 0; k < Words; k++) w.temporary[0][k * WAVE + l] = t[k];
    }
    for (int k = 0; k < Words * WAVE; k++) d[k] = w.mask[k % WAVE] ? w.temporary[0][k] : d[k];
    return i + 1;
}
template<Where K, class T, int Half> I load_part(Wave& w, I i) // Half: −1 the whole register, otherwise the half that is written
{
    note(w, i);
    u32* d = w.v + i->d * WAVE;
    LANES
    {
        const u8* p = place<K>(w, i, l, sizeof(T));
        if (!p) return nullptr;
        T t;
        std::memcpy(&t, p, sizeof t);
        const u32 x = (u32)(i32)t;
        d[l] = Half < 0 ? x : Half == 0 ? (d[l] & 0xffff0000) | (x & 0xffff) : (d[l] & 0xffff) | x << 16;
    }
    return i + 1;
}
template<Where K, int Words> I store(Wave& w, I i)
{
    note(w, i);
    const u32* data = w.space[i->s[1].space] + i->s[1].at * WAVE;
    if (u8* p = block<K, Words>(w, i))
    {
        u32 t[Words * WAVE];
        for (int k = 0; k < Words; k++)
            for (int l = 0; l < WAVE; l++) t[l * Words + k] = data[k * WAVE + l];
        std::memcpy(p, t, sizeof t);
        return i + 1;
    }
    LANES
    {
        u8* p = place<K>(w, i, l, 4 * Words);
        if (!p) return nullptr;
        u32 t[Words];
        for (int k = 0; k < Words; k++) t[k] = data[k * WAVE + l];
        std::memcpy(p, t, sizeof t);
    }
    return i + 1;
}
template<Where K, class T, int Half> I store_part(Wave& w, I i)
{
    note(w, i);
    const u32* data = w.space[i->s[1].space] + i->s[1].at * WAVE;
    const int shift = i->s[1].select == WORD_1 ? 16 : 16 * Half;
    LANES
    {
        u8* p = place<K>(w, i, l, sizeof(T));
        if (!p) return nullptr;
        const T t = data[l] >> shift;
        std::memcpy(p, &t, sizeof t);
    }
    return i + 1;
}
template<int Words, int Step> I load_two(Wave& w, I i) // from two places of the LDS, at offsets of `Step` elements
{
    u32* d = w.v + i->d * WAVE;
    LANES
    {
        const u32 base = (w.space[i->s[0].space] + i->s[0].at * WAVE)[l];
        for (int k = 0; k < 2; k++)
        {
            const u64 at = base + (u64)(k ? i->extra : i->offset) * 4 * Words * Step;
            if (at + 4 * Words > w.group->lds_size) return fail(w, i, "reaches outside the LDS", at);
            for (int n = 0; n < Words; n++) std::memcpy(&w.temporary[0][(Words * k + n) * WAVE + l], w.group->lds + at + 4 * n, 4);
        }
    }
    for (int k = 0; k < 2 * Words * WAVE; k++) d[k] = w.mask[k % WAVE] ? w.temporary[0][k] : d[k];
    return i + 1;
}
template<int Words, int Step> I store_two(Wave& w, I i)
{
    LANES
    {
        const u32 base = (w.space[i->s[0].space] + i->s[0].at * WAVE)[l];
        for (int k = 0; k < 2; k++)
        {
            const u32* data = w.space[i->s[1 + k].space] + i->s[1 + k].at * WAVE;
            const u64 at = base + (u64)(k ? i->extra : i->offset) * 4 * Words * Step;
            if (at + 4 * Words > w.group->lds_size) return fail(w, i, "reaches outside the LDS", at);
            for (int n = 0; n < Words; n++) std::memcpy(w.group->lds + at + 4 * n, &data[n * WAVE + l], 4);
        }
    }
    return i + 1;
}
// a function of the value in memory and the data; lanes one after the other, other threads at once
template<Where K, class T, class F> I atomic(Wave& w, I i)
{
    note(w, i);
    using B = std::conditional_t<sizeof(T) == 8, u64, u32>;
    u32* d = w.v + i->d * WAVE;
    const u32* data = w.space[i->s[1].space] + i->s[1].at * WAVE;
    const int second = K == LDS ? 2 : 1; // compare-and-swap: the other operand of LDS is a register of its own
    const u32* other = K == LDS ? w.space[i->s[second].space] + i->s[second].at * WAVE : data + (sizeof(T) / 4) * WAVE;
    LANES
    {
        u8* p = place<K>(w, i, l, sizeof(T));
        if (!p) return nullptr;
        if ((u64)p % sizeof(T)) return fail(w, i, "is not aligned", (u64)p);
        B old = __atomic_load_n((B*)p, __ATOMIC_RELAXED), now;
        do now = cast<B>(F{}(cast<T>(old), lane<T>(data, l), lane<T>(other, l)));
        while (!__atomic_compare_exchange_n((B*)p, &old, now, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
        if (i->extra & RETURNS) set_lane<B>(d, l, old, -1);
    }
    return i + 1;
}

// ---- between lanes
I read_first(Wave& w, I i)
{
    const u32* p = source<u32>(w, i, 0);
    const u64 e = w.exec();
    return w.put(i->d, p[e ? __builtin_ctzll(e) : 0]), i + 1;
}
I read_lane(Wave& w, I i) { return w.put(i->d, source<u32>(w, i, 0)[scalar<u32>(w, i, 1) % WAVE]), i + 1; }
I write_lane(Wave& w, I i) { return w.v[i->d * WAVE + scalar<u32>(w, i, 1) % WAVE] = scalar<u32>(w, i, 0), i + 1; }
I swap(Wave& w, I i)
{
    u32 *a = w.v + i->d * WAVE, *b = w.v + i->s[0].at * WAVE;
    LANES std::swap(a[l], b[l]);
    return i + 1;
}
template<int Other> I permute_lanes(Wave& w, I i) // within rows of 16, or from the other row of two
{
    u32 copy[WAVE], *d = w.v + i->d * WAVE;
    std::copy_n(source<u32>(w, i, 0), WAVE, copy);
    const u64 select = scalar<u32>(w, i, 1) | (u64)scalar<u32>(w, i, 2) << 32;
    LANES
    {
        const int from = ((l & ~15) ^ (16 * Other)) + (select >> 4 * (l & 15) & 15);
        if (w.mask[from] || i->extra & 1) d[l] = copy[from]; // the first bit: also from inactive lanes
        else if (i->extra & 2) d[l] = 0;
    }
    return i + 1;
}
I backward_permute(Wave& w, I i)
{
    u32 t[WAVE] = {}, *d = w.v + i->d * WAVE;
    const u32 *address = source<u32>(w, i, 0), *data = source<u32>(w, i, 1);
    LANES
    {
        const u32 from = (address[l] + i->offset) / 4 % WAVE;
        t[l] = w.mask[from] ? data[from] : 0;
    }
    LANES d[l] = t[l];
    return i + 1;
}
I forward_permute(Wave& w, I i)
{
    u32 t[WAVE] = {}, *d = w.v + i->d * WAVE;
    const u32 *address = source<u32>(w, i, 0), *data = source<u32>(w, i, 1);
    LANES t[(address[l] + i->offset) / 4 % WAVE] = data[l];
    LANES d[l] = t[l];
    return i + 1;
}
I swizzle(Wave& w, I i)
{
    u32 t[WAVE] = {}, *d = w.v + i->d * WAVE;
    const u32 *data = source<u32>(w, i, 0), n = i->offset;
    if (n >= 0xe000) return fail(w, i, "swizzles in a way that is not emulated");
    LANES
    {
        int from;
        if (n >= 0xc000) // rotate within 32
        {
            const int by = n >> 5 & 31, keep = n & 31, to = n & 0x400 ? l - by : l + by;
            from = (l & 32) | (((l & keep) | (to & ~keep)) & 31);
        }
        else if (n & 0x8000) from = (l & ~3) + (n >> 2 * (l & 3) & 3);
        else from = (l & 32) | (((l & (n & 31)) | (n >> 5 & 31)) ^ (n >> 10 & 31));
        t[l] = w.mask[from] ? data[from] : 0;
    }
    LANES d[l] = t[l];
    return i + 1;
}

#define KINDS(prefix, K) \
    {prefix "_load_u8", "m1", &load_part<K, u8, -1>}, {prefix "_load_i8", "m1", &load_part<K, i8, -1>}, {prefix "_load_u16", "m1", &load_part<K, u16, -1>}, \
    {prefix "_load_i16", "m1", &load_part<K, i16, -1>}, {prefix "_load_d16_u8", "m1", &load_part<K, u8, 0>}, {prefix "_load_d16_i8", "m1", &load_part<K, i8, 0>}, \
    {prefix "_load_d16_b16", "m1", &load_part<K, u16, 0>}, {prefix "_load_d16_hi_u8", "m1", &load_part<K, u8, 1>}, {prefix "_load_d16_hi_i8", "m1", &load_part<K, i8, 1>}, \
    {prefix "_load_d16_hi_b16", "m1", &load_part<K, u16, 1>}, {prefix "_load_b32", "m1", &load<K, 1>}, {prefix "_load_b64", "m2", &load<K, 2>}, \
    {prefix "_load_b96", "m3", &load<K, 3>}, {prefix "_load_b128", "m4", &load<K, 4>}, {prefix "_store_b8", "M1", &store_part<K, u8, 0>}, \
    {prefix "_store_b16", "M1", &store_part<K, u16, 0>}, {prefix "_store_d16_hi_b8", "M1", &store_part<K, u8, 1>}, {prefix "_store_d16_hi_b16", "M1", &store_part<K, u16, 1>}, \
    {prefix "_store_b32", "M1", &store<K, 1>}, {prefix "_store_b64", "M2", &store<K, 2>}, {prefix "_store_b96", "M3", &store<K, 3>}, {prefix "_store_b128", "M4", &store<K, 4>}
template<class T> Entry A(const char* name, char kind, I (*run)(Wave&, I)) { return {name, {kind, sizeof(T) == 8 ? '2' : '1'}, run}; }
#define ATOMIC(prefix, K, op, T, expression) A<T>(prefix op, 'a', &atomic<K, T, decltype([]([[maybe_unused]] T m, T x, T) -> T { return expression; })>)
#define SWAP(prefix, K, op, T, expression) A<T>(prefix op, 'c', &atomic<K, T, decltype([](T m, T x, T y) -> T { return expression; })>)
#define WORDS(prefix, K, op, expression) ATOMIC(prefix, K, op "_u32", u32, expression), ATOMIC(prefix, K, op "_u64", u64, expression)
#define PLAIN(prefix, K, op, expression) ATOMIC(prefix, K, op "_b32", u32, expression), ATOMIC(prefix, K, op "_b64", u64, expression)
#define ATOMICS(prefix, K) \
    WORDS(prefix, K, "add", m + x), WORDS(prefix, K, "sub", m - x), WORDS(prefix, K, "min", std::min(m, x)), WORDS(prefix, K, "max", std::max(m, x)), \
    WORDS(prefix, K, "inc", m >= x ? 0 : m + 1), WORDS(prefix, K, "dec", m == 0 || m > x ? x : m - 1), \
    ATOMIC(prefix, K, "min_i32", i32, std::min(m, x)), ATOMIC(prefix, K, "min_i64", i64, std::min(m, x)), ATOMIC(prefix, K, "max_i32", i32, std::max(m, x)), \
    ATOMIC(prefix, K, "max_i64", i64, std::max(m, x)), PLAIN(prefix, K, "and", m & x), PLAIN(prefix, K, "or", m | x), PLAIN(prefix, K, "xor", m ^ x), \
    ATOMIC(prefix, K, "add_f32", f32, m + x), ATOMIC(prefix, K, "add_f64", f64, m + x), ATOMIC(prefix, K, "min_f32", f32, std::fmin(m, x)), ATOMIC(prefix, K, "max_f32", f32, std::fmax(m, x)), \
    ATOMIC(prefix, K, "min_f64", f64, std::fmin(m, x)), ATOMIC(prefix, K, "max_f64", f64, std::fmax(m, x)), \
    ATOMIC(prefix, K, "pk_add_f16", u32, (halves<f16>(m, x))), ATOMIC(prefix, K, "pk_add_bf16", u32, (halves<bf16>(m, x)))
template<class T> u32 halves(u32 a, u32 b)
{
    const auto p = cast<Pair<T>>(a), q = cast<Pair<T>>(b);
    return cast<u32>(Pair<T>{T((f32)p.low + (f32)q.low), T((f32)p.high + (f32)q.high)});
}
// compare-and-swap: in memory's instructions the new value comes first, in gfx9's and gfx10's of the LDS the old one
#define SWAPS(prefix, K) PLAIN(prefix, K, "swap", x), SWAP(prefix, K, "cmpswap_b32", u32, m == y ? x : m), SWAP(prefix, K, "cmpswap_b64", u64, m == y ? x : m)
} // namespace

void move(Wave& w, const Instruction* i, const u32* from, u32* to, int count)
{
    for (int l = 0; l < WAVE; l++)
    {
        const int at = moved_from(i, l);
        const bool valid = at >= 0 && (w.mask[at] || i->move_zero & 2);
        const bool enabled = i->move_rows >> (l / 16 & 3) & 1 && i->move_banks >> (l / 4 & 3) & 1;
        for (int k = 0; k < count; k++) to[k * WAVE + l] = valid ? from[k * WAVE + at] : 0;
        w.moved[l] = w.mask[l] && enabled && (valid || i->move_zero & 1) ? -1 : 0;
    }
}

extern const Entry memory_table[] = {
    KINDS("global", GLOBAL), KINDS("flat", FLAT), KINDS("ds", LDS), KINDS("scratch", SCRATCH), KINDS("buffer", BUFFER),
    ATOMICS("global_atomic_", GLOBAL), ATOMICS("flat_atomic_", FLAT), ATOMICS("ds_", LDS), ATOMICS("buffer_atomic_", BUFFER),
    SWAPS("global_atomic_", GLOBAL), SWAPS("flat_atomic_", FLAT), SWAPS("buffer_atomic_", BUFFER),
    PLAIN("ds_", LDS, "storexchg", x), SWAP("ds_", LDS, "cmpstore_b32", u32, m == y ? x : m), SWAP("ds_", LDS, "cmpstore_b64", u64, m == y ? x : m),
    SWAP("ds_", LDS, "cmpst_b32", u32, m == x ? y : m), SWAP("ds_", LDS, "cmpst_b64", u64, m == x ? y : m),
    {"ds_load_2addr_b32", "d2", &load_two<1, 1>}, {"ds_load_2addr_b64", "d4", &load_two<2, 1>}, {"ds_load_2addr_stride64_b32", "d2", &load_two<1, 64>},
    {"ds_load_2addr_stride64_b64", "d4", &load_two<2, 64>}, {"ds_store_2addr_b32", "D1", &store_two<1, 1>}, {"ds_store_2addr_b64", "D2", &store_two<2, 1>},
    {"ds_store_2addr_stride64_b32", "D1", &store_two<1, 64>}, {"ds_store_2addr_stride64_b64", "D2", &store_two<2, 64>},
    {"ds_bpermute_b32", "xu=uu", &backward_permute}, {"ds_permute_b32", "xu=uu", &forward_permute}, {"ds_swizzle_b32", "xu=u", &swizzle},
    {"v_readfirstlane_b32", "ru=u", &read_first}, {"v_readlane_b32", "ru=uu", &read_lane}, {"v_writelane_b32", "vu=uu", &write_lane},
    {"v_swap_b32", "vu=u", &swap}, {"v_permlane16_b32", "vu=uuu", &permute_lanes<0>}, {"v_permlanex16_b32", "vu=uuu", &permute_lanes<1>},
    {nullptr, "", nullptr}};
