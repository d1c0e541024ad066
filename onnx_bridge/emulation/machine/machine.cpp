// Loading a translated code object, and launching its kernels: workgroups on threads, waves in turns between barriers.
#include "memory.hpp"

#include <atomic>
#include <csetjmp>
#include <csignal>
#include <cstddef>
#include <cstdio>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

extern const Entry scalar_table[], vector_table[], memory_table[];

static_assert(offsetof(Instruction, d) == 44 && offsetof(Instruction, s) == 64 && offsetof(Instruction, finish) == 96); // as translate.py writes it

struct Program
{
    std::vector<u8> image;                 // the segments, as they lie in memory
    std::vector<Instruction> code;
    std::vector<u32> index;                // of the instruction at each fourth byte of the code, or ~0
    std::vector<u32> constants;
    std::vector<std::atomic<u64>> counts;  // of each instruction, less that of the one before
    u64 code_at;                           // of the code in the image
    bool barriers = false;                 // waves may wait for each other
    Program(std::size_t n) : counts(n + 1) {}
};
struct Kernel // as the Python side writes it
{
    u32 entry, vectors, lds, scratch, arguments_size, hidden_count, flags, user_scalars;
    struct { u16 offset, size, kind; } hidden[32];
    u8 user[16];                           // the kind of each user SGPR
};
struct Launch
{
    u32 grid[3], size[3], dynamic_lds, threads;
    const void* arguments; u64 arguments_size;
    const Range* memory; u64 memory_count;
    u64 limit, seed;
};
struct Report
{
    u32 state, place; u64 executed, address; u32 group[3], lane; char what[200];
};

namespace {
enum Flag : u32 { ID_X = 1, ID_Y = 2, ID_Z = 4, GROUP_INFO = 8, SCRATCH_OFFSET = 16, IDS_IN_TRAP = 32 };
enum User : u8 { NOTHING, ARGUMENTS, PACKET, PRELOAD = 16 };   // from PRELOAD on: a word of the arguments
enum Hidden : u16 { BLOCKS_X, BLOCKS_Y, BLOCKS_Z, SIZE_X, SIZE_Y, SIZE_Z, REST_X, REST_Y, REST_Z, DIMENSIONS, DYNAMIC_LDS, ZERO };

thread_local sigjmp_buf* rescue = nullptr;
thread_local u64 fault_address;
thread_local struct { Wave* wave; const Instruction* instruction; } current; // what touches memory
struct sigaction old_segv, old_bus;
void on_fault(int signal, siginfo_t* info, void* context)
{
    if (rescue) { fault_address = (u64)info->si_addr; siglongjmp(*rescue, 1); }
    const auto& old = signal == SIGSEGV ? old_segv : old_bus;
    if (old.sa_flags & SA_SIGINFO) old.sa_sigaction(signal, info, context);
    else if (old.sa_handler != SIG_DFL && old.sa_handler != SIG_IGN) old.sa_handler(signal);
    else { std::signal(signal, SIG_DFL); std::raise(signal); }
}
void catch_faults()
{
    struct sigaction action{};
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO | SA_NODEFER;
    sigaction(SIGSEGV, &action, &old_segv);
    sigaction(SIGBUS, &action, &old_bus);
}

// Runs waves until each pauses: at once, so that an instruction is looked at once for all of them, and the processor has
// several lines of computation. Of waves that are at different instructions, the last ones go on up to the others.
constexpr int AT_ONCE = 128 / WAVE;
void run(Wave** waves, int count)
{
    for (int k = 0; k < count; k++) waves[k]->state = RUNNING;
    for (;;)
    {
        Wave** end = std::partition(waves, waves + count, [](Wave* w) { return w->state == RUNNING; });
        if (end == waves) return;
        const auto earlier = [](const Wave* a, const Wave* b) { return a->pc < b->pc; };
        std::sort(waves, end, earlier);
        Wave** others = std::upper_bound(waves, end, waves[0], earlier);
        const Instruction *i = waves[0]->pc, *start = i, *limit = others == end ? (const Instruction*)~0ull : (*others)->pc;
        const int n = others - waves;
        const auto counted = [&](const Instruction* to) // of instructions that lie one behind the other
        {
            waves[0]->counts[start - waves[0]->code] += n, waves[0]->counts[to - waves[0]->code] -= n;
            for (int k = 0; k < n; k++) waves[k]->steps += to - start;
        };
        while (i < limit)
        {
            if (i->run_all) { i->run_all(waves, n, i++); continue; }
            const Instruction* next = nullptr;
            bool together = true;
            for (int k = 0; k < n; k++)
            {
                const Instruction* own = i->run(*waves[k], i);
                if (own) waves[k]->pc = own;
                together &= k ? own == next : own != nullptr;
                next = own;
            }
            if (together && next == i + 1) { i++; continue; }
            counted(i + 1);
            for (int k = 0; k < n; k++)
                if (waves[k]->state == RUNNING && waves[k]->steps > waves[k]->limit) fail(*waves[k], i, "exceeds the limit of executed instructions");
            if (std::any_of(waves, waves + n, [](Wave* w) { return w->state == FAILED; })) return;
            if (!together) break;
            start = i = next;
        }
        if (i >= limit) counted(i);
        if (i >= limit) for (int k = 0; k < n; k++) waves[k]->pc = i;
    }
}

struct Free { void operator()(void* p) const { std::free(p); } };
struct Worker // what a thread needs for one workgroup at a time
{
    const Program& p; const Kernel& k; const Launch& launch;
    std::vector<std::unique_ptr<Wave, Free>> waves;
    std::vector<u32> ids; std::vector<u8> lds, scratch;
    std::vector<u64> counts;
    std::vector<u8> arguments;
    u16 packet[32] = {}; // of the dispatch: sizes of a workgroup from byte 4, of the grid from byte 12
    u64 steps = 0;
    u32 groups[3], size[3] = {};
    static constexpr u32 POISON = 0xffa5a5a5; // a NaN, and as whole numbers large or negative

    Worker(const Program& p, const Kernel& k, const Launch& l) : p(p), k(k), launch(l), counts(p.counts.size())
    {
        const u32 items = l.size[0] * l.size[1] * l.size[2], n = (items + WAVE - 1) / WAVE;
        for (int d = 0; d < 3; d++) groups[d] = (l.grid[d] + l.size[d] - 1) / l.size[d];
        lds.resize(k.lds + l.dynamic_lds);
        scratch.resize((u64)n * WAVE * k.scratch);
        for (u32 i = 0; i < (p.barriers ? n : AT_ONCE); i++) // without barriers, waves are computed in the place of those before
        {
            waves.emplace_back(new (std::aligned_alloc(64, sizeof(Wave) + 4 * (p.constants.size() + (u64)k.vectors * WAVE))) Wave);
            waves[i]->state = ENDED;
            std::copy(p.constants.begin(), p.constants.end(), (u32*)(waves[i].get() + 1));
        }
        resize(l.size);
        for (int d = 0; d < 3; d++) packet[2 + d] = l.size[d];
        std::memcpy(&packet[6], l.grid, sizeof l.grid);
    }
    void resize(const u32* to) // the work-items of the next group
    {
        if (std::equal(to, to + 3, size)) return;
        std::copy_n(to, 3, size);
        ids.clear();
        for (u32 i = 0; i < (to[0] * to[1] * to[2] + WAVE - 1) / WAVE * WAVE; i++) ids.push_back(i % to[0] | i / to[0] % to[1] << 10 | i / to[0] / to[1] << 20);
    }
    void start(Wave& w, u32 number, const u32* group, Group& g)
    {
        const u32 items = size[0] * size[1] * size[2];
        std::fill(std::begin(w.s), std::end(w.s), POISON);
        w.s[NONE] = w.s[SCC] = 0;
        w.v = (u32*)(&w + 1) + p.constants.size();
        w.space[VECTOR] = w.v; w.space[CONSTANT] = (u32*)(&w + 1);
        w.code = p.code.data(); w.pc = w.code + k.entry;
        w.group = &g; w.counts = counts.data(); w.steps = 0; w.limit = launch.limit; w.state = RUNNING;
        w.scratch = scratch.data() + (u64)number * WAVE * k.scratch; w.scratch_size = k.scratch;
        std::fill_n(w.v, (u64)k.vectors * WAVE, POISON);
        const u32 left = items - number * WAVE;
        const u64 active = left >= 64 ? ~0ull : (1ull << left) - 1;
        w.put(EXEC, WAVE == 64 ? active : active & 0xffffffff);
        w.s[SCALARS - 3] = arguments.size(); // for `inside`
        w.put(SCALARS - 2, (u64)arguments.data());
        u32 at = 0;
        for (; at < k.user_scalars; at++)
            if (k.user[at] == ARGUMENTS) w.put(at, (u64)arguments.data()), at++;
            else if (k.user[at] == PACKET) w.put(at, (u64)packet), at++;
            else if (k.user[at] >= PRELOAD) std::memcpy(&w.s[at], arguments.data() + 4 * (k.user[at] - PRELOAD), 4);
        if (k.flags & ID_X) w.s[at++] = group[0];
        if (k.flags & ID_Y) w.s[at++] = group[1];
        if (k.flags & ID_Z) w.s[at++] = group[2];
        if (k.flags & GROUP_INFO) w.s[at++] = 0;
        if (k.flags & SCRATCH_OFFSET) w.s[at++] = 0;
        if (k.flags & IDS_IN_TRAP) { w.s[TRAP + 9] = group[0]; w.s[TRAP + 7] = (group[1] & 0xffff) | group[2] << 16; }
        std::copy_n(&ids[number * WAVE], WAVE, w.v);
    }
    bool group(u64 number, Report& r)
    {
        const u32 at[3] = {(u32)(number % groups[0]), (u32)(number / groups[0] % groups[1]), (u32)(number / groups[0] / groups[1])};
        u32 part[3]; // the last group along an axis may be smaller
        for (int k = 0; k < 3; k++) part[k] = std::min(launch.size[k], launch.grid[k] - at[k] * launch.size[k]);
        resize(part);
        Group g{&p, lds.data(), (u32)lds.size(), launch.memory, launch.memory_count, {}, 0, "", packet};
        for (std::size_t n = 0; n + 3 < lds.size() + 3; n += 4) std::memcpy(&lds[n], &POISON, std::min<std::size_t>(4, lds.size() - n));
        std::fill(scratch.begin(), scratch.end(), 0xa5);
        sigjmp_buf here;
        const u32 n = (part[0] * part[1] * part[2] + WAVE - 1) / WAVE;
        if (sigsetjmp(here, 0)) { rescue = nullptr; fail(*current.wave, current.instruction, "touches memory that is not there", fault_address); }
        else
        {
            rescue = &here;
            for (bool first = true, some = true, failed = false; some && !failed; first = false)
            {
                some = false;
                for (u32 k = 0; k < n && !failed; k += AT_ONCE)
                {
                    Wave* some_waves[AT_ONCE];
                    u32 count = 0;
                    for (u32 j = k; j < std::min(k + AT_ONCE, n); j++)
                    {
                        const u32 number = launch.seed & 1 ? n - 1 - j : j;
                        Wave* w = waves[p.barriers ? number : j - k].get();
                        if (first) start(*w, number, at, g);
                        if (w->state != ENDED) some_waves[count++] = w;
                    }
                    run(some_waves, count);
                    for (u32 j = 0; j < count; j++)
                    {
                        const State state = some_waves[j]->state;
                        failed |= state == FAILED, some |= state == AT_BARRIER;
                        if (state == ENDED) steps += some_waves[j]->steps;
                    }
                }
            }
            rescue = nullptr;
        }
        for (const auto& w : waves)
        {
            if (w->state == FAILED && !r.state)
            {
                r.state = 1; r.place = w->pc->place; r.address = g.fault;
                std::copy_n(at, 3, r.group); std::memcpy(r.what, g.what, sizeof r.what);
            }
        }
        return !r.state;
    }
    void fill_arguments()
    {
        arguments.resize(std::max<u64>(k.arguments_size, launch.arguments_size) + 64, 0);
        if (launch.arguments_size) std::memcpy(arguments.data(), launch.arguments, launch.arguments_size);
        for (u32 n = 0; n < k.hidden_count; n++)
        {
            const auto [offset, size, kind] = k.hidden[n];
            const u32 dimensions = launch.grid[2] > 1 ? 3 : launch.grid[1] > 1 ? 2 : 1;
            u64 value = 0;
            if (kind <= BLOCKS_Z) value = launch.grid[kind] / launch.size[kind];
            else if (kind <= SIZE_Z) value = launch.size[kind - SIZE_X];
            else if (kind <= REST_Z) value = launch.grid[kind - REST_X] % launch.size[kind - REST_X];
            else if (kind == DIMENSIONS) value = dimensions;
            else if (kind == DYNAMIC_LDS) value = launch.dynamic_lds;
            if (offset + size <= (int)arguments.size()) std::memcpy(arguments.data() + offset, &value, std::min<u32>(size, 8));
        }
    }
};
} // namespace

const Instruction* fail(Wave& w, const Instruction* i, const char* what, u64 address)
{
    w.state = FAILED; w.pc = i; w.group->fault = address;
    std::snprintf(w.group->what, sizeof w.group->what, "%s", what);
    return nullptr;
}
void note(Wave& w, const Instruction* i) { current = {&w, i}; }
bool inside(Wave& w, u64 address, u64 bytes)
{
    Group& g = *w.group;
    if (!g.memory_count || (address >= g.last.begin && address + bytes <= g.last.end)) return true;
    const Range* end = g.memory + g.memory_count;
    const Range* r = std::upper_bound(g.memory, end, address, [](u64 a, const Range& r) { return a < r.begin; });
    if (r != g.memory && address + bytes <= r[-1].end) return g.last = r[-1], true;
    const auto own = [&](const void* p, u64 n) { return address >= (u64)p && address + bytes <= (u64)p + n; };
    return own(g.program->image.data(), g.program->image.size()) || own((const void*)w.get(SCALARS - 2), w.s[SCALARS - 3]) ||
           own(g.packet, 64);
}
u64 address_after(Wave& w, const Instruction* i)
{
    return (u64)w.group->program->image.data() + w.group->program->code_at + i->place + i->extra;
}
const Instruction* go(Wave& w, const Instruction* i, u64 address)
{
    const Program& p = *w.group->program;
    const u64 place = (address - (u64)p.image.data() - p.code_at) / 4;
    if (address % 4 || place >= p.index.size() || p.index[place] == ~0u) return fail(w, i, "jumps to where there is no instruction", address);
    return p.code.data() + p.index[place];
}

#pragma GCC visibility push(default)
extern "C" {
u32 emulator_wave() { return WAVE; }
u32 emulator_instruction_size() { return sizeof(Instruction); }
// the table, a line each: name and signature; the index of a line is what a program holds instead of a function
const char* emulator_table()
{
    static const std::string text = [] {
        std::string t;
        for (const Entry* table : {scalar_table, vector_table, memory_table})
            for (; table->name; table++) t += std::string(table->name) + " " + table->signature + "\n";
        return t;
    }();
    return text.c_str();
}
Program* emulator_load(const u8* image, u64 image_size, u64 code_at, const u8* code, u64 count, const u32* index, u64 index_size, const u32* constants, u64 constant_count)
{
    std::vector<const Entry*> entries;
    for (const Entry* table : {scalar_table, vector_table, memory_table})
        for (; table->name; table++) entries.push_back(table);
    auto p = std::make_unique<Program>(count);
    p->image.assign(image, image + image_size);
    p->code_at = code_at;
    p->code.resize(count);
    std::memcpy((void*)p->code.data(), code, count * sizeof(Instruction));
    const u32 begin[] = {(u32)(sizeof(Wave) + 8 * constant_count * WAVE), sizeof(Wave)}; // of a wave's registers and constants
    for (auto& i : p->code)
    {
        if ((u64)i.run >= entries.size()) return nullptr;
        const Entry& entry = *entries[(u64)i.run];
        const char* operands = entry.signature + 3;
        p->barriers |= !std::strcmp(entry.name, "s_barrier");
        bool general = i.finish || i.move, modified = false;
        for (int n = 0; entry.general && operands[n]; n++)
        {
            const Source& s = i.s[n];
            const bool bit = operands[n] == letter<Bit>, pair = std::strchr("pqP", operands[n]), half = std::strchr("hws", operands[n]);
            const bool any = operands[n] == letter<Pair<f32>> || (half && s.select >= WORD_0); // of the parts that can be selected
            i.a[n] = bit ? offsetof(Wave, s) + 4 * s.at : s.space == SCALAR ? offsetof(Wave, mask) : begin[s.space == CONSTANT] + 4 * WAVE * s.at;
            modified |= !bit && !s.plain;
            general |= !bit && (operands[n] == letter<Mix> || s.modifiers & EXTEND || (!any && s.select != (pair ? HIGH_IS_HIGH : WHOLE)));
        }
        i.to = begin[0] + 4 * WAVE * i.d;
        i.run = entry.run;
        i.in_place = entry.in_place;
        i.run_all = general ? entry.general : modified ? entry.modified : entry.in_place;
    }
    p->index.assign(index, index + index_size);
    for (u64 n = 0; n < constant_count; n++)
        for (int half = 0; half < 2; half++) p->constants.insert(p->constants.end(), WAVE, constants[2 * n + half]);
    return p.release();
}
void* emulator_image(Program* p) { return p->image.data(); }
void emulator_unload(Program* p) { delete p; }
void emulator_counts(const Program* p, u64* to)
{
    u64 n = 0;
    for (std::size_t k = 0; k < p->code.size(); k++) to[k] = n += p->counts[k];
}

u32 emulator_launch(Program* p, const Kernel* k, const Launch* l, Report* report)
{
    static std::mutex one_report;
    static std::once_flag once;
    std::call_once(once, catch_faults);
    *report = {};
    u64 groups = 1;
    for (int d = 0; d < 3; d++) groups *= (l->grid[d] + l->size[d] - 1) / l->size[d];
    std::atomic<u64> next = 0, executed = 0;
    std::atomic<bool> failed = false;
    const auto work = [&] {
        Worker worker(*p, *k, *l);
        worker.fill_arguments();
        for (u64 n; !failed && (n = next++) < groups;)
        {
            Report r{};
            if (worker.group(n, r) && executed + worker.steps <= l->limit) continue;
            if (!r.state) { r.state = 1; std::snprintf(r.what, sizeof r.what, "exceeds the limit of executed instructions"); }
            std::lock_guard<std::mutex> lock(one_report);
            if (!failed.exchange(true)) *report = r;
        }
        executed += worker.steps;
        for (std::size_t n = 0; n < worker.counts.size(); n++) p->counts[n] += worker.counts[n];
    };
    const u64 threads = std::min<u64>(std::max<u32>(l->threads, 1), groups);
    std::vector<std::thread> others;
    for (u64 n = 1; n < threads; n++) others.emplace_back(work);
    if (groups) work();
    for (auto& t : others) t.join();
    report->executed = executed;
    return report->state;
}
}
