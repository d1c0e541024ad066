// libamdhip64.so.7 for a machine without an AMD GPU: one pretended device, whose memory is the host's.
//
// It has the 24 functions that ONNX Runtime 1.27's MIGraphX provider imports, with the symbol versions that it asks for
// (hip_stub.map). Streams and events are tokens: everything is synchronous. The provider reads nothing of
// hipDeviceProp_t but gcnArchName, whose offset (layout R0600) is 1160; STANDIN_ARCHITECTURE is what it says.
#include <cstdlib>
#include <cstring>

extern "C" {

typedef int hipError_t;  // 0 success, 2 out of memory, 101 invalid device
typedef void *hipStream_t;
typedef void *hipEvent_t;
enum { PROP_SIZE = 1472, PROP_NAME = 0, PROP_MEMORY = 288, PROP_WARP = 308, PROP_ARCH = 1160 };

hipError_t hipGetDeviceCount(int *n) { return *n = 1, 0; }
hipError_t hipGetDevice(int *d) { return *d = 0, 0; }
hipError_t hipSetDevice(int d) { return d ? 101 : 0; }
hipError_t hipDeviceSynchronize(void) { return 0; }
hipError_t hipGetLastError(void) { return 0; }
const char *hipGetErrorString(hipError_t e) { return e ? "error of the HIP stub" : "no error"; }

hipError_t hipGetDevicePropertiesR0600(char *p, int d) {
  const char *arch = getenv("STANDIN_ARCHITECTURE");
  if (d) return 101;
  memset(p, 0, PROP_SIZE);
  strcpy(p + PROP_NAME, "stub of HIP (host memory)");
  *(size_t *)(p + PROP_MEMORY) = (size_t)4 << 30;
  *(int *)(p + PROP_WARP) = 64;
  strncpy(p + PROP_ARCH, arch ? arch : "stub", 255);
  return 0;
}

hipError_t hipMalloc(void **p, size_t n) {
  *p = NULL;
  if (n && posix_memalign(p, 256, n)) return 2;
  return 0;
}
hipError_t hipHostMalloc(void **p, size_t n, unsigned) { return hipMalloc(p, n); }
hipError_t hipFree(void *p) { return free(p), 0; }
hipError_t hipHostFree(void *p) { return free(p), 0; }

hipError_t hipMemcpy(void *to, const void *from, size_t n, int) {
  if (n) memmove(to, from, n);
  return 0;
}
hipError_t hipMemcpyAsync(void *to, const void *from, size_t n, int kind, hipStream_t) { return hipMemcpy(to, from, n, kind); }
hipError_t hipMemcpyWithStream(void *to, const void *from, size_t n, int kind, hipStream_t) { return hipMemcpy(to, from, n, kind); }

hipError_t hipStreamCreateWithFlags(hipStream_t *s, unsigned) { return (*s = malloc(1)) ? 0 : 2; }
hipError_t hipStreamDestroy(hipStream_t s) { return free(s), 0; }
hipError_t hipStreamQuery(hipStream_t) { return 0; }
hipError_t hipStreamSynchronize(hipStream_t) { return 0; }
hipError_t hipStreamWaitEvent(hipStream_t, hipEvent_t, unsigned) { return 0; }
hipError_t hipLaunchHostFunc(hipStream_t, void (*fn)(void *), void *arg) { return fn(arg), 0; }

hipError_t hipEventCreateWithFlags(hipEvent_t *e, unsigned) { return (*e = malloc(1)) ? 0 : 2; }
hipError_t hipEventDestroy(hipEvent_t e) { return free(e), 0; }
hipError_t hipEventRecord(hipEvent_t, hipStream_t) { return 0; }
hipError_t hipEventSynchronize(hipEvent_t) { return 0; }

}  // extern "C"
