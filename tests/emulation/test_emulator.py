"""Launching kernels: grids, barriers, faults, limits."""

from __future__ import annotations

import struct
from collections.abc import Callable

import numpy as np
import pytest

from onnx_bridge.core.errors import InputError
from onnx_bridge.emulation.emulator import Launch, Program
from onnx_bridge.emulation.errors import KernelFault, NotEmulated, readable
from tests.emulation.bench import WAVES, Bench
from tests.emulation.toolchain import Toolchain

_HIP = """
extern "C" __global__ void add(const float* a, const float* b, float* c, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) c[i] = a[i] + b[i];
}
extern "C" __global__ void reversed(const float* a, float* c) {
  __shared__ float t[512];
  int i = threadIdx.x + blockDim.x * threadIdx.y;
  t[i] = a[i + 512 * blockIdx.y];
  __syncthreads();
  c[i + 512 * blockIdx.y] = t[511 - i];
}
extern "C" __global__ void quotient(const float* a, const float* b, float* c) {
  c[threadIdx.x] = a[threadIdx.x] / b[threadIdx.x];
}
extern "C" __global__ void quotients(const double* a, const double* b, double* c) {
  c[threadIdx.x] = a[threadIdx.x] / b[threadIdx.x];
}
extern "C" __global__ void sizes(float* c) { c[blockIdx.x * 128 + threadIdx.x] = blockDim.x; }
extern "C" __global__ void forever(volatile int* a) { while (*a == 0) {} }
__device__ __noinline__ float twice(float x) { return x * 2 + 1; }
__device__ __noinline__ float halved(float x) { return x / 2; }
extern "C" __global__ void called(const float* a, float* c, int which) {
  float (*f)(float) = which ? twice : halved;
  c[threadIdx.x] = f(a[threadIdx.x]);
}
extern "C" __global__ void parted(const int* turns, int* c) {
  __shared__ int t[512];
  int i = threadIdx.x, n = turns[i / 32], x = i;
  for (int k = 0; k < n; k++) x = x * 3 + (i & 16 ? k : i);
  if (n & 1) x ^= 5; else x += 7;
  t[i] = x;
  __syncthreads();
  c[i] = x + t[(i + 96) % 512];
}
extern "C" __global__ void scratch(const int* a, int* c) {
  int t[16];
  for (int k = 0; k < 16; k++) t[k] = a[threadIdx.x] * k;
  c[threadIdx.x] = t[a[threadIdx.x] & 15];
}
"""


@pytest.fixture(scope="module", params=list(WAVES))
def program(request: pytest.FixtureRequest, toolchain: Toolchain) -> Program:
    return Program(toolchain.compile(_HIP, request.param), toolchain.disassemble)


def arguments(*values: np.ndarray | int) -> bytes:
    return b"".join(struct.pack("<q", v) if isinstance(v, int) else struct.pack("<Q", v.ctypes.data) for v in values)


def numbers(count: int) -> np.ndarray:
    return np.random.default_rng(0).normal(size=count).astype(np.float32)


@pytest.mark.parametrize("threads", [1, 2])
def test_a_grid_with_a_rest(program: Program, threads: int) -> None:
    a, b, c = numbers(1000), numbers(1000)[::-1].copy(), np.zeros(1001, np.float32)
    before = sum(program.counts().values())
    executed = program.launch("add", Launch((1024, 1, 1), (256, 1, 1), arguments(a, b, c, 1000), threads=threads))
    assert np.array_equal(c[:1000], a + b)
    assert c[1000] == 0
    assert executed == sum(program.counts().values()) - before > 100


@pytest.mark.parametrize("backwards", [False, True])
def test_waves_meet_at_barriers(program: Program, backwards: bool) -> None:
    a, c = numbers(1536), np.zeros(1536, np.float32)
    program.launch("reversed", Launch((128, 12, 1), (128, 4, 1), arguments(a, c), backwards=backwards))
    assert np.array_equal(c.reshape(3, 512), a.reshape(3, 512)[:, ::-1])


@pytest.mark.parametrize("backwards", [False, True])
def test_waves_take_different_ways(program: Program, backwards: bool) -> None:
    turns, c, i = np.random.default_rng(0).integers(0, 9, 16).astype(np.int32), np.zeros(512, np.int32), np.arange(512)
    n, x = turns[i // 32], i.copy()
    for k in range(9):
        x = np.where(k < n, x * 3 + np.where(i & 16, k, i), x)
    x = np.where(n & 1, x ^ 5, x + 7)
    before = sum(program.counts().values())
    launch = Launch((512, 1, 1), (512, 1, 1), arguments(turns, c), backwards=backwards)
    executed = program.launch("parted", launch)
    assert np.array_equal(c, x + x[(i + 96) % 512])
    assert executed == sum(program.counts().values()) - before


def test_a_division_is_rounded_once_also_where_it_is_subnormal(program: Program) -> None:
    tiny = np.float32(1e-45)
    special = np.array(
        [0, -0.0, 1, -3, np.inf, -np.inf, np.nan, tiny, 3 * tiny, 1e-38, 3e38, 2e-38, 7, 1e30, 1e-30, 5e37], np.float32
    )
    a, b = (each.ravel().copy() for each in np.meshgrid(special, special))
    c = np.zeros(256, np.float32)
    program.launch("quotient", Launch((256, 1, 1), (256, 1, 1), arguments(a, b, c)))
    with np.errstate(all="ignore"):
        expected = a / b
    assert np.array_equal(c, expected, equal_nan=True)
    assert np.array_equal(np.signbit(c), np.signbit(expected) | np.isnan(expected) & np.signbit(c))


@pytest.mark.parametrize(
    ("name", "dtype", "lowest"), [("quotient", np.float32, -148), ("quotients", np.float64, -1073)]
)
def test_a_subnormal_quotient_is_rounded_once(program: Program, name: str, dtype: type, lowest: int) -> None:
    random = np.random.default_rng(0)
    half = lowest // 2
    a = (random.uniform(1, 2, 1024) * 2.0 ** (random.integers(lowest, lowest + 24, 1024) - half)).astype(dtype)
    b = (random.uniform(1, 2, 1024) * 2.0**-half).astype(dtype)
    c = np.zeros(1024, dtype)
    program.launch(name, Launch((1024, 1, 1), (1024, 1, 1), arguments(a, b, c)))
    assert np.array_equal(c, a / b)


@pytest.mark.parametrize("which", [0, 1])
def test_functions_are_called_by_address(program: Program, which: int) -> None:
    a, c = numbers(64), np.zeros(64, np.float32)
    program.launch("called", Launch((64, 1, 1), (64, 1, 1), arguments(a, c, which)))
    assert np.array_equal(c, a * 2 + 1 if which else a / 2)


def test_memory_that_must_not_be_touched_is_named(program: Program) -> None:
    a = numbers(256)
    launch = Launch((256, 1, 1), (256, 1, 1), arguments(a, a, 16, 256))
    with pytest.raises(KernelFault) as caught:
        program.launch("add", launch)
    assert (caught.value.kernel, caught.value.address >> 12) == ("add", 0)
    assert caught.value.instruction.startswith("global_store")
    beyond = Launch(launch.grid, launch.size, arguments(a, a, a, 256), memory=[(a.ctypes.data, a.ctypes.data + 1020)])
    with pytest.raises(KernelFault) as caught:
        program.launch("add", beyond)
    assert caught.value.address == a.ctypes.data + 1020


def test_an_endless_kernel_ends(program: Program) -> None:
    with pytest.raises(KernelFault):
        program.launch("forever", Launch((64, 1, 1), (64, 1, 1), arguments(np.zeros(1, np.int32)), limit=1000))


def test_what_cannot_be_launched_is_refused(program: Program) -> None:
    for name, size in (("nobody", (1, 1, 1)), ("add", (1025, 1, 1)), ("add", (0, 1, 1))):
        with pytest.raises(InputError):
            program.launch(name, Launch((1, 1, 1), size, b""))


def test_an_unknown_instruction_is_named_when_it_is_reached(bench: Bench) -> None:
    program = bench.program(
        "s_cbranch_scc0 over\n s_getreg_b32 s3, hwreg(HW_REG_HW_ID)\n over: s_nop 0"
        if bench.old
        else "s_cbranch_scc0 over\n s_getreg_b32 s3, hwreg(HW_REG_HW_ID1)\n over: s_nop 0"
    )
    program.launch("k", Launch((1, 1, 1), (1, 1, 1), b""))
    with pytest.raises(NotEmulated) as caught:
        bench.program(
            "s_sendmsg_rtn_b32 s0, sendmsg(MSG_RTN_GET_REALTIME)" if not bench.old else "s_memtime s[0:1]"
        ).launch("k", Launch((1, 1, 1), (1, 1, 1), b""))
    assert caught.value.kernel == "k"


@pytest.mark.parametrize("damage", [slice(0, 4), slice(40, 48), slice(32, 40), slice(60, 64)])
def test_a_damaged_file_is_refused(toolchain: Toolchain, bench: Bench, damage: slice) -> None:
    data = bytearray(toolchain.compile('extern "C" __global__ void f() {}', bench.isa))
    data[damage] = b"\xff" * (damage.stop - damage.start)
    with pytest.raises(InputError):
        Program(bytes(data), toolchain.disassemble)


def test_the_last_workgroup_may_be_smaller(program: Program) -> None:
    c = np.zeros(384, np.float32)
    program.launch("sizes", Launch((300, 1, 1), (128, 1, 1), arguments(c)))
    assert np.array_equal(c, [*[128] * 300, *[0] * 84])


def test_arguments_that_are_loaded_ahead(bench_for: Callable[[str], Bench]) -> None:
    bench = bench_for("gfx942")
    lines = "v_mov_b32 v1, s4\n v_mov_b32 v2, 0\n global_store_dword v2, v1, s[2:3]"
    ahead = "  .amdhsa_user_sgpr_kernarg_preload_length 3\n  .amdhsa_user_sgpr_kernarg_preload_offset 0"
    result = np.zeros(1, np.uint32)
    given = struct.pack("<QI", result.ctypes.data, 77)
    bench.program(lines, more=ahead).launch("k", Launch((1, 1, 1), (1, 1, 1), given))
    assert result[0] == 77


_DEVICE = "_ZN8migraphx14version_2_14_03gpu6device8launcherIZZNS2_"


@pytest.mark.parametrize(
    ("symbol", "name"),
    [
        ("mul_reduce_sum_kernel", "mul_reduce_sum_kernel"),
        (f"{_DEVICE}9gs_launchEP12ihipStream_tjjENKUlT_E_clIZZNS2_L17contiguous_packedES5_RKNS0_", "contiguous_packed"),
        (f"{_DEVICE}9mi_launchILj1EEEDaP12ihipStream_tRKNS2_9hip_shapeIXT_EEEjENKUlT_E_clIZZNS2_12mi_gs_launchILj1EE"
         "EDaS6_SA_jENKUlSB_E_clIZZZNS2_L22contiguous_nonstandardES6_", "contiguous_nonstandard"),
        ("_ZN8migraphx999999999", "_ZN8migraphx999999999"),
    ],
)  # fmt: skip
def test_names_that_cpp_has_mangled_are_read(symbol: str, name: str) -> None:
    assert readable(symbol).split()[0] == name
