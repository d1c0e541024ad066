// A HIP runtime without a GPU: enough of libamdhip64 to compile for one and hand its kernels to an emulator, and for ONNX
// Runtime's provider.
//
// Device memory is memory of the process, streams and events are tokens, and everything is done when a call returns.
// A launch does nothing unless gpustub_set_launch_hook names a function that carries it out.
//
//   GPUSTUB_DEVICE  the device, as "gfx942:sramecc+:xnack- mach major minor units wavefront gibibytes lds"
//
// As the real runtime, it refuses code objects of another architecture, kernels that a code object lacks, and copies
// beyond an allocation. The layouts are those of HIP 6 and 7 (hipDeviceProp_tR0600).
#include <elf.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#define API extern "C" __attribute__((visibility("default")))

enum error : int
{
    success           = 0,
    invalid_value     = 1,
    out_of_memory     = 2,
    no_device         = 100,
    invalid_device    = 101,
    invalid_image     = 200,
    no_binary_for_gpu = 209,
    file_not_found    = 301,
    not_found         = 500,
    launch_failure    = 719,
};

// ---- functions that the stub lacks --------------------------------------------------------------------------------

namespace {
const char* called = nullptr;
}
[[noreturn]] void absent(const char* symbol)
{
    called = symbol;
    throw std::runtime_error(std::string(symbol) + ": not available without a GPU");
}
// The name of such a function that was called since this was last asked; null without one
API const char* gpustub_absent() { return std::exchange(called, nullptr); }

// ---- the device ---------------------------------------------------------------------------------------------------

namespace {
struct device
{
    std::string name;
    unsigned mach = 0; // EF_AMDGPU_MACH of its code objects
    int major = 0, minor = 0, units = 0, wavefront = 0;
    std::size_t memory = 0, lds = 0;

    std::string architecture() const { return name.substr(0, name.find(':')); }
};

const device* the_device()
{
    static const device described = [] {
        device d;
        char name[256]   = "";
        const char* text = std::getenv("GPUSTUB_DEVICE");
        unsigned gib     = 0;
        const char* form = "%255s %u %d %d %d %d %u %zu";
        if(text != nullptr and
           std::sscanf(text, form, name, &d.mach, &d.major, &d.minor, &d.units, &d.wavefront, &gib, &d.lds) == 8)
            d.name = name, d.memory = std::size_t(gib) << 30;
        return d;
    }();
    return described.name.empty() ? nullptr : &described;
}

template <class T>
void put(char* properties, std::size_t offset, T value)
{
    std::memcpy(properties + offset, &value, sizeof value);
}
} // namespace

API error hipInit(unsigned) { return the_device() != nullptr ? success : no_device; }
API error hipGetDeviceCount(int* n) { return *n = the_device() != nullptr, *n != 0 ? success : no_device; }
API error hipGetDevice(int* id) { return *id = 0, the_device() != nullptr ? success : no_device; }
API error hipSetDevice(int id) { return id == 0 and the_device() != nullptr ? success : invalid_device; }
API error hipDeviceSynchronize() { return success; }
API error hipGetDevicePropertiesR0600(char* properties, int id)
{
    auto* d = the_device();
    if(d == nullptr or id != 0)
        return invalid_device;
    std::memset(properties, 0, 1472);
    std::snprintf(properties, 256, "%s without hardware", d->architecture().c_str());
    put(properties, 288, d->memory);
    put(properties, 296, d->lds);      // of a workgroup
    put(properties, 304, 65536);       // registers of a workgroup
    put(properties, 308, d->wavefront);
    put(properties, 320, 1024);        // threads of a workgroup, at most; in each dimension
    for(int i = 0; i < 3; i++)
        put(properties, 324 + 4 * i, 1024), put(properties, 336 + 4 * i, i == 0 ? 2147483647 : 65536);
    put(properties, 360, d->major);
    put(properties, 364, d->minor);
    put(properties, 388, d->units);
    put(properties, 624, 2048);        // threads of a compute unit
    put(properties, 640, d->lds);
    put(properties, 648, 65536);
    put(properties, 712, 2);           // workgroups of a compute unit
    std::snprintf(properties + 1160, 256, "%s", d->name.c_str());
    put(properties, 1416, d->lds);
    return success;
}
API const char* hipGetErrorString(error e)
{
    switch(e)
    {
    case success: return "success";
    case invalid_value: return "invalid value";
    case out_of_memory: return "out of memory";
    case no_device: return "no device";
    case no_binary_for_gpu: return "no code object for this device";
    case not_found: return "no such kernel";
    case launch_failure: return "the kernel failed";
    default: return "unknown error";
    }
}
API const char* hipGetErrorName(error e) { return hipGetErrorString(e); }
API error hipGetLastError() { return success; }
API error hipPeekAtLastError() { return success; }

// ---- memory -------------------------------------------------------------------------------------------------------

namespace {
// A kernel's arguments are one piece of memory as the code object describes it, or, if that is null, a pointer to each.
struct launched
{
    const char* code_object;
    std::size_t code_size;
    const char* kernel;
    std::uint32_t threads[3], workgroup[3];
    std::size_t lds;
    const void* arguments;
    std::size_t arguments_size;
    void** parameters;
};
using launch_hook     = int (*)(const launched*);
launch_hook on_launch = nullptr;

enum class place
{
    device,
    host,
    registered // the caller's own
};
struct allocation
{
    std::size_t size;
    place where;
};
std::mutex memory_mutex;
std::map<char*, allocation> allocations;

auto containing(const void* p) // with the lock held
{
    auto* c = static_cast<char*>(const_cast<void*>(p));
    auto it = allocations.upper_bound(c);
    if(it == allocations.begin())
        return allocations.end();
    --it;
    return c < it->first + std::max<std::size_t>(it->second.size, 1) ? it : allocations.end();
}

error allocate(void** out, std::size_t n, place where)
{
    *out = nullptr;
    if(n == 0)
        return success;
    // If kernels run, memory that none has written is not a number; otherwise untouched pages cost nothing.
    void* p = std::calloc(1, n);
    if(p == nullptr)
        return out_of_memory;
    if(on_launch != nullptr)
        std::memset(p, 0xff, n);
    std::lock_guard<std::mutex> lock(memory_mutex);
    allocations[static_cast<char*>(p)] = {n, where};
    *out                               = p;
    return success;
}

error release(void* p)
{
    if(p == nullptr)
        return success;
    std::lock_guard<std::mutex> lock(memory_mutex);
    auto it = allocations.find(static_cast<char*>(p));
    if(it == allocations.end() or it->second.where == place::registered)
        return invalid_value;
    allocations.erase(it);
    std::free(p);
    return success;
}

bool inside(const void* p, std::size_t n)
{
    std::lock_guard<std::mutex> lock(memory_mutex);
    auto it = containing(p); // memory that was not allocated here is the host's
    return it == allocations.end() or static_cast<const char*>(p) + n <= it->first + it->second.size;
}

error copy(void* to, const void* from, std::size_t n)
{
    if(n == 0)
        return success;
    if(to == nullptr or from == nullptr or not inside(to, n) or not inside(from, n))
        return invalid_value;
    std::memmove(to, from, n);
    return success;
}

struct pointer_attributes
{
    int type; // 1: host, 2: device
    int device;
    void* device_pointer;
    void* host_pointer;
    int managed;
    unsigned flags;
};
} // namespace

API error hipMalloc(void** p, std::size_t n) { return allocate(p, n, place::device); }
API error hipMallocAsync(void** p, std::size_t n, void*) { return allocate(p, n, place::device); }
API error hipHostMalloc(void** p, std::size_t n, unsigned) { return allocate(p, n, place::host); }
API error hipFree(void* p) { return release(p); }
API error hipFreeAsync(void* p, void*) { return release(p); }
API error hipHostFree(void* p) { return release(p); }
API error hipHostRegister(void* p, std::size_t n, unsigned)
{
    std::lock_guard<std::mutex> lock(memory_mutex);
    allocations[static_cast<char*>(p)] = {n, place::registered};
    return success;
}
API error hipHostUnregister(void* p)
{
    std::lock_guard<std::mutex> lock(memory_mutex);
    allocations.erase(static_cast<char*>(p));
    return success;
}
API error hipHostGetDevicePointer(void** on_device, void* on_host, unsigned) { return *on_device = on_host, success; }
API error hipPointerGetAttributes(pointer_attributes* attributes, const void* p)
{
    std::lock_guard<std::mutex> lock(memory_mutex);
    auto it = containing(p);
    if(it == allocations.end())
        return invalid_value;
    const bool on_device = it->second.where == place::device;
    auto* address        = const_cast<void*>(p);
    *attributes          = {on_device ? 2 : 1, 0, address, on_device ? nullptr : address, 0, 0};
    return success;
}
API error hipMemGetInfo(std::size_t* free, std::size_t* total)
{
    return *free = *total = the_device() == nullptr ? 0 : the_device()->memory, success;
}
API error hipMemcpy(void* to, const void* from, std::size_t n, int) { return copy(to, from, n); }
API error hipMemcpyAsync(void* to, const void* from, std::size_t n, int, void*) { return copy(to, from, n); }
API error hipMemcpyWithStream(void* to, const void* from, std::size_t n, int, void*) { return copy(to, from, n); }
API error hipMemset(void* p, int value, std::size_t n)
{
    return inside(p, n) ? (std::memset(p, value, n), success) : invalid_value;
}
API error hipMemsetAsync(void* p, int value, std::size_t n, void*) { return hipMemset(p, value, n); }

// The begin and end of each allocation; returns their number, of which as many are written as fit
API std::size_t gpustub_allocations(std::uint64_t (*ranges)[2], std::size_t capacity)
{
    std::lock_guard<std::mutex> lock(memory_mutex);
    std::size_t count = 0;
    for(auto& [begin, described] : allocations)
    {
        const auto address = reinterpret_cast<std::uint64_t>(begin);
        if(count < capacity)
            ranges[count][0] = address, ranges[count][1] = address + described.size;
        count++;
    }
    return count;
}

// ---- streams and events -------------------------------------------------------------------------------------------

API error hipStreamCreateWithFlags(void** stream, unsigned) { return *stream = std::malloc(8), success; }
API error hipStreamDestroy(void* stream) { return std::free(stream), success; }
API error hipStreamSynchronize(void*) { return success; }
API error hipStreamQuery(void*) { return success; }
API error hipStreamWaitEvent(void*, void*, unsigned) { return success; }
API error hipLaunchHostFunc(void*, void (*function)(void*), void* data) { return function(data), success; }
API error hipEventCreate(void** event) { return *event = std::malloc(8), success; }
API error hipEventCreateWithFlags(void** event, unsigned) { return hipEventCreate(event); }
API error hipEventDestroy(void* event) { return std::free(event), success; }
API error hipEventRecord(void*, void*) { return success; }
API error hipEventSynchronize(void*) { return success; }
API error hipEventElapsedTime(float* ms, void*, void*) { return *ms = 0.01f, success; } // the first candidate wins

// ---- code objects and launches ------------------------------------------------------------------------------------

namespace {
struct module;
struct kernel
{
    const module* code;
    std::string name;
};
struct module
{
    std::string elf;
    std::vector<kernel> kernels;
};

// The bytes of an ELF, without those of its caller's that follow
std::string elf_at(const char* image)
{
    Elf64_Ehdr header;
    std::memcpy(&header, image, sizeof header);
    std::size_t size = header.e_shoff + header.e_shnum * std::size_t(header.e_shentsize);
    for(int i = 0; i < header.e_shnum; i++)
    {
        Elf64_Shdr section;
        std::memcpy(&section, image + header.e_shoff + i * header.e_shentsize, sizeof section);
        if(section.sh_type != SHT_NOBITS)
            size = std::max<std::size_t>(size, section.sh_offset + section.sh_size);
    }
    return {image, size};
}

// The names of the kernels: those of the symbols that end with ".kd" (kernel descriptor)
std::vector<std::string> kernels_of(const std::string& elf)
{
    std::vector<std::string> names;
    Elf64_Ehdr header;
    std::memcpy(&header, elf.data(), sizeof header);
    for(int i = 0; i < header.e_shnum; i++)
    {
        Elf64_Shdr symbols, strings;
        std::memcpy(&symbols, elf.data() + header.e_shoff + i * header.e_shentsize, sizeof symbols);
        if(symbols.sh_type != SHT_DYNSYM)
            continue;
        std::memcpy(&strings, elf.data() + header.e_shoff + symbols.sh_link * header.e_shentsize, sizeof strings);
        for(std::size_t at = 0; at + sizeof(Elf64_Sym) <= symbols.sh_size; at += sizeof(Elf64_Sym))
        {
            Elf64_Sym symbol;
            std::memcpy(&symbol, elf.data() + symbols.sh_offset + at, sizeof symbol);
            std::string name = elf.c_str() + strings.sh_offset + symbol.st_name;
            if(name.size() > 3 and name.compare(name.size() - 3, 3, ".kd") == 0)
                names.push_back(name.substr(0, name.size() - 3));
        }
    }
    return names;
}

error launch(const kernel* k,
             const std::uint32_t (&threads)[3],
             const std::uint32_t (&workgroup)[3],
             std::size_t lds,
             void** parameters,
             void** extra)
{
    if(on_launch == nullptr)
        return success;
    const std::string& elf = k->code->elf;
    launched l{elf.data(), elf.size(), k->name.c_str(), {}, {}, lds, nullptr, 0, parameters};
    std::copy(threads, threads + 3, l.threads);
    std::copy(workgroup, workgroup + 3, l.workgroup);
    for(; extra != nullptr and *extra != reinterpret_cast<void*>(3); extra += 2)
        if(*extra == reinterpret_cast<void*>(1))
            l.arguments = extra[1];
        else if(*extra == reinterpret_cast<void*>(2))
            l.arguments_size = *static_cast<std::size_t*>(extra[1]);
    return on_launch(&l) == 0 ? success : launch_failure;
}
} // namespace

// The hook returns 0, or another number if the kernel failed
API void gpustub_set_launch_hook(launch_hook hook) { on_launch = hook; }

API error hipModuleLoadData(module** out, const char* image)
{
    *out = nullptr;
    if(std::memcmp(image, ELFMAG, SELFMAG) != 0)
        return invalid_image;
    Elf64_Ehdr header;
    std::memcpy(&header, image, sizeof header);
    const unsigned amdgpu = 224;
    if(header.e_machine != amdgpu or (header.e_flags & 0xff) != the_device()->mach)
        return no_binary_for_gpu;
    auto* m = new module{elf_at(image), {}};
    for(auto& name : kernels_of(m->elf))
        m->kernels.push_back({m, name});
    return *out = m, success;
}
API error hipModuleUnload(module* m) { return delete m, success; }
API error hipModuleGetFunction(kernel** out, module* m, const char* name)
{
    for(auto& k : m->kernels)
        if(k.name == name)
            return *out = &k, success;
    return *out = nullptr, not_found;
}
// Declared as C++ in its header, so that its name is mangled
API error launch_kernel(kernel* k,
                        std::uint32_t gx,
                        std::uint32_t gy,
                        std::uint32_t gz,
                        std::uint32_t lx,
                        std::uint32_t ly,
                        std::uint32_t lz,
                        std::size_t lds,
                        void*,
                        void**,
                        void** extra,
                        void*,
                        void*,
                        std::uint32_t)
    __asm__("_Z24hipExtModuleLaunchKernelP18ihipModuleSymbol_tjjjjjjmP12ihipStream_tPPvS4_P11ihipEvent_tS6_j");
API error launch_kernel(kernel* k,
                        std::uint32_t gx,
                        std::uint32_t gy,
                        std::uint32_t gz,
                        std::uint32_t lx,
                        std::uint32_t ly,
                        std::uint32_t lz,
                        std::size_t lds,
                        void*,
                        void** parameters,
                        void** extra,
                        void*,
                        void*,
                        std::uint32_t)
{
    return launch(k, {gx, gy, gz}, {lx, ly, lz}, lds, parameters, extra);
}

// ---- kernels that are part of a library -----------------------------------------------------------------------------

namespace {
struct fat_binary
{
    std::uint32_t magic, version;
    const char* image;
};
struct size3
{
    std::uint32_t x, y, z;
};
struct library
{
    const fat_binary* binary;
    module* loaded;
};
struct call
{
    size3 grid, block;
    std::size_t lds;
    void* stream;
};
std::map<const void*, std::pair<library*, std::string>> built_in;
thread_local call configured;

// The code object for the device in a bundle; null without one
const char* bundled(const char* image)
{
    static const char magic[] = "__CLANG_OFFLOAD_BUNDLE__";
    if(std::memcmp(image, magic, sizeof magic - 1) != 0)
        return nullptr;
    const char* at = image + sizeof magic - 1;
    std::uint64_t count;
    std::memcpy(&count, at, 8), at += 8;
    const std::string wanted = the_device()->architecture();
    for(std::uint64_t i = 0; i < count; i++)
    {
        std::uint64_t entry[3]; // offset, size, length of the name
        std::memcpy(entry, at, sizeof entry);
        const std::string name(at + sizeof entry, entry[2]);
        at += sizeof entry + entry[2];
        const auto end = name.find(wanted) + wanted.size();
        if(name.find(wanted) != std::string::npos and (end == name.size() or name[end] == ':') and entry[1] != 0)
            return image + entry[0];
    }
    return nullptr;
}
} // namespace

API void** __hipRegisterFatBinary(const fat_binary* binary)
{
    return reinterpret_cast<void**>(new library{binary, nullptr});
}
API void __hipUnregisterFatBinary(void**) {}
API void __hipRegisterFunction(
    void** l, const void* function, char*, const char* name, unsigned, void*, void*, void*, void*, int*)
{
    built_in[function] = {reinterpret_cast<library*>(l), name};
}
API error __hipPushCallConfiguration(size3 grid, size3 block, std::size_t lds, void* stream)
{
    return configured = {grid, block, lds, stream}, success;
}
API error __hipPopCallConfiguration(size3* grid, size3* block, std::size_t* lds, void** stream)
{
    return *grid = configured.grid, *block = configured.block, *lds = configured.lds, *stream = configured.stream,
           success;
}
API error hipLaunchKernel(const void* function, size3 g, size3 b, void** parameters, std::size_t lds, void*)
{
    auto it = built_in.find(function);
    if(it == built_in.end())
        return invalid_value;
    if(on_launch == nullptr)
        return success;
    auto& [l, name] = it->second;
    if(l->loaded == nullptr)
    {
        const char* image = bundled(l->binary->image);
        if(image == nullptr) // which MIGraphX does not notice
            return called = "a kernel of MIGraphX's libraries, which are not built for this GPU", no_binary_for_gpu;
        if(auto failed = hipModuleLoadData(&l->loaded, image))
            return failed;
    }
    kernel* k;
    if(auto failed = hipModuleGetFunction(&k, l->loaded, name.c_str()))
        return failed;
    return launch(k, {g.x * b.x, g.y * b.y, g.z * b.z}, {b.x, b.y, b.z}, lds, parameters, nullptr);
}
