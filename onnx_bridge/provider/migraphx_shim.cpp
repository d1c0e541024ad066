// Stands in front of a real libmigraphx_c.so.3, loaded with RTLD_GLOBAL before the provider. It
//   1. turns the target "gpu" into "ref",
//   2. writes one line of JSON per call that matters to the file STANDIN_LOG,
//   3. gives every program the parameters "main:#output_N" of a program that was compiled for the GPU without
//      offload_copy, and lets run_async write into them: ref programs return their results instead.
// STANDIN_REAL is the real library's path. If STANDIN_KEEPS_TARGET is set, only calls are written: MIGraphX compiles for a
// GPU that is not there.
#include <dlfcn.h>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <vector>

using status = int;  // migraphx_status: 0 success, 1 bad_param, 5 unknown_error
using handle = void*;

static std::mutex mu;
static const bool keeps_target = std::getenv("STANDIN_KEEPS_TARGET") != nullptr;

static void* real(const char* name) {
  static void* lib = [] {
    void* h = dlopen(std::getenv("STANDIN_REAL"), RTLD_NOW | RTLD_LOCAL);
    if (!h) std::fprintf(stderr, "migraphx shim: %s\n", dlerror()), std::abort();
    return h;
  }();
  void* f = dlsym(lib, name);
  if (!f) std::fprintf(stderr, "migraphx shim: no %s\n", name), std::abort();
  return f;
}
#define REAL(name, ...) reinterpret_cast<status (*)(__VA_ARGS__)>(real(#name))

static std::string quote(const char* s) {
  std::string r = "\"";
  for (; *s; ++s) {
    if (*s == '"' || *s == '\\') r += '\\';
    if (static_cast<unsigned char>(*s) >= 0x20) r += *s;
  }
  return r + "\"";
}

static void log(const char* call, status s, const char* file = "") {
  const char* to = std::getenv("STANDIN_LOG");
  std::lock_guard<std::mutex> lock(mu);
  FILE* f = to ? std::fopen(to, "a") : nullptr;
  if (!f) return;
  std::fprintf(f, "{\"call\": \"%s\", \"status\": %d, \"file\": %s}\n", call, s, quote(file).c_str());
  std::fclose(f);
}

struct ParamShapes {  // what a migraphx_program_parameter_shapes_t of ours points to
  handle inner;       // the real one
  std::vector<std::string> outs;
  handle out_shapes;  // migraphx_shapes_t
};
static std::map<handle, ParamShapes> shapes_of;
static std::map<handle, std::map<std::size_t, handle>> outs_of;  // program_parameters -> bound outputs
static long output_index(const char* name) {
  const char* at = std::strstr(name, "#output_");
  return at ? std::atol(at + 8) : -1;
}

extern "C" {

status migraphx_target_create(handle* target, const char* name) {
  return REAL(migraphx_target_create, handle*, const char*)(target, keeps_target || std::strcmp(name, "gpu") ? name : "ref");
}

status migraphx_parse_onnx_buffer(handle* out, const void* data, std::size_t size, handle options) {
  status s = REAL(migraphx_parse_onnx_buffer, handle*, const void*, std::size_t, handle)(out, data, size, options);
  log("parse", s);
  return s;
}

status migraphx_program_compile(handle prog, handle target, handle options) {
  status s = REAL(migraphx_program_compile, handle, handle, handle)(prog, target, options);
  log("compile", s);
  return s;
}

status migraphx_load(handle* out, const char* name, handle options) {
  status s = REAL(migraphx_load, handle*, const char*, handle)(out, name, options);
  log("load", s, name);
  return s;
}

status migraphx_save(handle prog, const char* name, handle options) {
  status s = REAL(migraphx_save, handle, const char*, handle)(prog, name, options);
  log("save", s, name);
  return s;
}

status migraphx_program_get_parameter_shapes(handle* out, handle prog) {
  status s = REAL(migraphx_program_get_parameter_shapes, handle*, handle)(out, prog);
  if (s || keeps_target) return s;
  ParamShapes p{*out, {}, nullptr};
  s = REAL(migraphx_program_get_output_shapes, handle*, handle)(&p.out_shapes, prog);
  std::size_t n = 0;
  if (!s) s = REAL(migraphx_shapes_size, std::size_t*, handle)(&n, p.out_shapes);
  for (std::size_t i = 0; i < n; ++i) p.outs.push_back("main:#output_" + std::to_string(i));
  std::lock_guard<std::mutex> lock(mu);
  shapes_of[*out] = p;
  return s;
}

status migraphx_program_parameter_shapes_size(std::size_t* out, handle shapes) {
  status s = REAL(migraphx_program_parameter_shapes_size, std::size_t*, handle)(out, shapes);
  auto it = shapes_of.find(shapes);
  if (it != shapes_of.end()) *out += it->second.outs.size();
  return s;
}

status migraphx_program_parameter_shapes_names(const char** out, handle shapes) {
  status s = REAL(migraphx_program_parameter_shapes_names, const char**, handle)(out, shapes);
  auto it = shapes_of.find(shapes);
  if (s || it == shapes_of.end()) return s;
  std::size_t n = 0;
  s = REAL(migraphx_program_parameter_shapes_size, std::size_t*, handle)(&n, shapes);
  for (const auto& name : it->second.outs) out[n++] = name.c_str();
  return s;
}

status migraphx_program_parameter_shapes_get(handle* out, handle shapes, const char* name) {
  auto it = shapes_of.find(shapes);
  long i = output_index(name);
  if (it != shapes_of.end() && i >= 0) return REAL(migraphx_shapes_get, handle*, handle, std::size_t)(out, it->second.out_shapes, i);
  return REAL(migraphx_program_parameter_shapes_get, handle*, handle, const char*)(out, shapes, name);
}

status migraphx_program_parameter_shapes_destroy(handle shapes) {
  {
    std::lock_guard<std::mutex> lock(mu);
    auto it = shapes_of.find(shapes);
    if (it != shapes_of.end()) {
      REAL(migraphx_shapes_destroy, handle)(it->second.out_shapes);
      shapes_of.erase(it);
    }
  }
  return REAL(migraphx_program_parameter_shapes_destroy, handle)(shapes);
}

status migraphx_program_parameters_add(handle params, const char* name, handle argument) {
  long i = output_index(name);
  if (i >= 0 && !keeps_target) {
    void* buffer = nullptr;
    status s = REAL(migraphx_argument_buffer, void**, handle)(&buffer, argument);
    std::lock_guard<std::mutex> lock(mu);
    outs_of[params][i] = buffer;
    return s;
  }
  return REAL(migraphx_program_parameters_add, handle, const char*, handle)(params, name, argument);
}

status migraphx_program_parameters_destroy(handle params) {
  {
    std::lock_guard<std::mutex> lock(mu);
    outs_of.erase(params);
  }
  return REAL(migraphx_program_parameters_destroy, handle)(params);
}

status migraphx_program_run_async(handle* out, handle prog, handle params, void* stream, const char* stream_name) {
  status s = REAL(migraphx_program_run_async, handle*, handle, handle, void*, const char*)(out, prog, params, stream, stream_name);
  auto it = outs_of.find(params);
  if (!s && it != outs_of.end()) {
    for (auto& [i, buffer] : it->second) {  // the GPU's program would have written here itself
      handle arg = nullptr, shape = nullptr;
      void* data = nullptr;
      std::size_t bytes = 0;
      s = REAL(migraphx_arguments_get, handle*, handle, std::size_t)(&arg, *out, i);
      if (!s) s = REAL(migraphx_argument_buffer, void**, handle)(&data, arg);
      if (!s) s = REAL(migraphx_argument_shape, handle*, handle)(&shape, arg);
      if (!s) s = REAL(migraphx_shape_bytes, std::size_t*, handle)(&bytes, shape);
      if (s) break;
      std::memcpy(buffer, data, bytes);
    }
  }
  log("run", s);
  return s;
}

}  // extern "C"
