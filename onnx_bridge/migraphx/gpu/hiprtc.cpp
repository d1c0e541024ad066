// The compiler of kernels (libhiprtc), with a memory: what it compiled before is read from a folder.
//
//   GPUSTUB_HIPRTC   the real library
//   GPUSTUB_KERNELS  the folder, which belongs to one version of the compiler
//
// A code object is kept by the content of everything that is compiled: the source, its headers, and the options. Its
// source lies beside it.
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#define API extern "C" __attribute__((visibility("default")))

namespace {
const int internal_error = 11;

template <class Function>
Function real(const char* name)
{
    // with its own symbols first: this library has the same ones
    static void* library = dlopen(std::getenv("GPUSTUB_HIPRTC"), RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND);
    return reinterpret_cast<Function>(library == nullptr ? nullptr : dlsym(library, name));
}
template <class... T>
int call(const char* name, T... arguments)
{
    auto* function = real<int (*)(T...)>(name);
    return function == nullptr ? internal_error : function(arguments...);
}

struct program
{
    std::string source, name;
    std::vector<std::string> headers, names;
    void* made = nullptr; // by the real library
    std::string code;
};

// Two hashes of 64 bits (FNV-1a), over pieces and their lengths
struct digest
{
    std::uint64_t first = 0xcbf29ce484222325, second = 0x84222325cbf29ce4;

    void add(const void* data, std::size_t size)
    {
        for(auto* byte = static_cast<const unsigned char*>(data); size != 0; byte++, size--)
            first = (first ^ *byte) * 0x100000001b3, second = (second ^ *byte) * 0x10000000233;
    }
    void add(const std::string& piece)
    {
        const std::uint64_t size = piece.size();
        add(&size, sizeof size), add(piece.data(), piece.size());
    }
    std::string text() const
    {
        char written[33];
        std::snprintf(written, sizeof written, "%016llx%016llx", static_cast<unsigned long long>(first),
                      static_cast<unsigned long long>(second));
        return written;
    }
};

std::string place(const program& p, int count, const char** options)
{
    digest d;
    d.add(p.name), d.add(p.source);
    for(std::size_t i = 0; i < p.headers.size(); i++)
        d.add(p.names[i]), d.add(p.headers[i]);
    for(int i = 0; i < count; i++)
        d.add(options[i]);
    return std::string(std::getenv("GPUSTUB_KERNELS")) + "/" + d.text();
}

int compile(program& p, int count, const char** options)
{
    std::vector<const char*> headers, names;
    for(std::size_t i = 0; i < p.headers.size(); i++)
        headers.push_back(p.headers[i].c_str()), names.push_back(p.names[i].c_str());
    const int size = headers.size();
    if(int failed = call("hiprtcCreateProgram", &p.made, p.source.c_str(), p.name.c_str(), size, headers.data(), names.data()))
        return failed;
    if(int failed = call("hiprtcCompileProgram", p.made, count, options))
        return failed;
    std::size_t bytes = 0;
    if(int failed = call("hiprtcGetCodeSize", p.made, &bytes))
        return failed;
    p.code.resize(bytes);
    return call("hiprtcGetCode", p.made, p.code.data());
}
// Whole, or not at all: threads and processes may keep the same one
void keep(const std::string& code, const std::string& path)
{
    static std::atomic<unsigned> number = 0;
    const std::string written = path + "." + std::to_string(getpid()) + "." + std::to_string(number++);
    std::ofstream file(written, std::ios::binary);
    file.write(code.data(), code.size());
    file.close();
    if(not file or std::rename(written.c_str(), path.c_str()) != 0)
        std::remove(written.c_str());
}
} // namespace

API int hiprtcCreateProgram(
    program** out, const char* source, const char* name, int count, const char** headers, const char** names)
{
    *out = new program{source, name == nullptr ? "" : name, {headers, headers + count}, {names, names + count}, nullptr, ""};
    return 0;
}
API int hiprtcDestroyProgram(program** p)
{
    if((*p)->made != nullptr)
        call("hiprtcDestroyProgram", &(*p)->made);
    delete *p;
    return *p = nullptr, 0;
}
API int hiprtcCompileProgram(program* p, int count, const char** options)
{
    const std::string path = place(*p, count, options);
    keep(p->source, path + ".hip");
    if(std::ifstream file{path, std::ios::binary})
        p->code.assign(std::istreambuf_iterator<char>(file), {});
    if(not p->code.empty())
        return utimensat(AT_FDCWD, path.c_str(), nullptr, 0), 0; // the time of its last use
    if(int failed = compile(*p, count, options))
        return failed;
    keep(p->code, path);
    return 0;
}
API int hiprtcGetCodeSize(program* p, std::size_t* size) { return *size = p->code.size(), 0; }
API int hiprtcGetCode(program* p, char* to) { return std::memcpy(to, p->code.data(), p->code.size()), 0; }
API int hiprtcGetProgramLogSize(program* p, std::size_t* size)
{
    return p->made == nullptr ? (*size = 0, 0) : call("hiprtcGetProgramLogSize", p->made, size);
}
API int hiprtcGetProgramLog(program* p, char* to)
{
    return p->made == nullptr ? 0 : call("hiprtcGetProgramLog", p->made, to);
}
API const char* hiprtcGetErrorString(int result)
{
    auto* function = real<const char* (*)(int)>("hiprtcGetErrorString");
    return function == nullptr ? "the compiler of kernels cannot be loaded" : function(result);
}
