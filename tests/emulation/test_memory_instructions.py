"""Loads, stores and atomics of each kind of memory, and permutations through the LDS."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from onnx_bridge.emulation.errors import KernelFault, NotEmulated
from tests.emulation.bench import Bench
from tests.emulation.test_modified_instructions import EVERY_THIRD, equal, lanes
from tests.emulation.test_vector_instructions import POISON, F, L, N, U, draw

Array = np.ndarray[Any, np.dtype[Any]]


def pointers(memory: Array, offsets: Array) -> dict[int, Array]:
    """Return v[2:3] with the address of each lane."""
    addresses = memory.ctypes.data + offsets.astype(np.uint64)
    return {2: (addresses & L.type(0xFFFFFFFF)).astype(U), 3: (addresses >> L.type(32)).astype(U)}


def renamed(text: str, old: bool) -> str:
    """Return gfx9's names for gfx11's."""
    if not old:
        return text
    names = {
        **{"load_u8": "load_ubyte", "load_i8": "load_sbyte", "load_u16": "load_ushort", "load_i16": "load_sshort"},
        **{"load_d16_hi_b16": "load_short_d16_hi", "load_d16_b16": "load_short_d16", "load_d16_u8": "load_ubyte_d16"},
        **{"store_d16_hi_b16": "store_short_d16_hi", "store_b8": "store_byte", "store_b16": "store_short"},
        **{"_b32": "_dword", "_b64": "_dwordx2", "_b96": "_dwordx3", "_b128": "_dwordx4"},
    }
    for new, earlier in names.items():
        text = text.replace(new, earlier)
    return text


@pytest.mark.parametrize("space", ["global", "flat"])
def test_loads_of_each_size(bench: Bench, space: str) -> None:
    memory = np.random.default_rng(0).integers(0, 256, 4096).astype(np.uint8)
    offsets = np.random.default_rng(1).integers(0, 4000, bench.wave) // 4 * 4
    off = ", off" if space == "global" else ""
    kinds: list[tuple[str, Any]] = [
        ("u8", np.uint8),
        ("i8", np.int8),
        ("u16", np.uint16),
        ("i16", np.int16),
        ("b32", np.uint32),
        ("d16_b16", np.uint16),
        ("d16_hi_b16", np.uint16),
        ("d16_u8", np.uint8),
    ]
    lines = [f"{space}_load_{kind} v{10 + k}, v[2:3]{off} offset:4" for k, (kind, _) in enumerate(kinds)]
    lines += [f"{space}_load_b64 v[20:21], v[2:3]{off}", f"{space}_load_b96 v[22:24], v[2:3]{off}"]
    lines += [f"{space}_load_b128 v[26:29], v[2:3]{off} offset:16"]
    text = renamed("\n".join(lines), bench.old)
    out = [*range(10, 18), *range(20, 25), *range(26, 30)]
    found = bench(text, pointers(memory, offsets), active=EVERY_THIRD, out=out, memory=())
    on = lanes(bench.wave, EVERY_THIRD)
    for k, (kind, dtype) in enumerate(kinds):
        value = np.array([memory[at + 4 : at + 8].view(dtype)[0] for at in offsets]).astype(N).view(U)
        if kind.startswith("d16"):
            value = (
                POISON & U.type(0xFFFF) | value << U.type(16) if "hi" in kind else POISON & U.type(0xFFFF0000) | value
            )
        assert equal(found[k], np.where(on, value, POISON)), kind
    for k, first in zip((8, 10, 13), (0, 0, 16), strict=True):
        for n in range({8: 2, 10: 3, 13: 4}[k]):
            value = np.array([memory[at + first + 4 * n :][:4].view(U)[0] for at in offsets])
            assert equal(found[k + n], np.where(on, value, POISON))


def test_registers_that_accumulate(bench_for: Callable[[str], Bench]) -> None:
    a = draw(U, 64, 1)
    memory = np.arange(64, dtype=U)
    text = """
    v_accvgpr_write_b32 a3, v4
    v_accvgpr_read_b32 v10, a3
    global_load_dword a4, v[2:3], off
    s_waitcnt vmcnt(0)
    v_accvgpr_read_b32 v11, a4
    """
    found = bench_for("gfx90a")(text, {4: a, **pointers(memory, 4 * np.arange(64))}, out=[10, 11])
    assert equal(found[0], a)
    assert equal(found[1], memory)


@pytest.mark.parametrize("ordered", [False, True])
def test_stores_of_each_size(bench: Bench, ordered: bool) -> None:
    on = lanes(bench.wave, EVERY_THIRD)
    order = np.arange(bench.wave) if ordered else np.random.default_rng(0).permutation(bench.wave)
    data = {k: draw(U, bench.wave, k) for k in range(4, 8)}
    for kind, size, words in (
        ("b8", 1, 1),
        ("b16", 2, 1),
        ("d16_hi_b16", 2, 1),
        ("b32", 4, 1),
        ("b64", 8, 2),
        ("b96", 12, 3),
        ("b128", 16, 4),
    ):
        for active in (EVERY_THIRD, None):
            memory = np.zeros(bench.wave * 16, np.uint8)
            register = "v4" if words == 1 else f"v[4:{3 + words}]"
            text = renamed(f"global_store_{kind} v1, {register}, s[16:17] offset:0", bench.old)
            address = memory.ctypes.data
            vectors = {1: (order * size).astype(U), **data}
            bench(text, vectors, scalars=[address & 0xFFFFFFFF, address >> 32], active=active)
            expected = np.zeros_like(memory)
            for lane in range(bench.wave):
                if on[lane] or active is None:
                    row = np.array([data[4 + n][lane] for n in range(words)])
                    row = row >> U.type(16) if "hi" in kind else row
                    expected[order[lane] * size :][:size] = row.view(np.uint8)[:size]
            assert equal(memory, expected), (kind, active)


@pytest.mark.parametrize("isa", ["gfx942", "gfx1100", "gfx1201"])
def test_stores_and_loads_of_private_memory(bench_for: Callable[[str], Bench], isa: str) -> None:
    bench = bench_for(isa)
    a = draw(U, bench.wave, 1)
    names = ("dwordx2", "dword") if bench.old else ("b64", "b32")
    text = f"""
    v_mov_b32 v4, 8
    v_lshrrev_b32 v5, 1, v2
    scratch_store_{names[0]} off, v[2:3], s16 offset:8
    scratch_load_{names[1]} v10, v4, off offset:8
    scratch_load_{names[1]} v11, off, s16 offset:12
    """
    found = bench(text, {2: a, 3: a + U.type(1)}, scalars=[8], out=[10, 11], scratch=64)
    assert equal(found[0], a)
    assert equal(found[1], a + U.type(1))
    with pytest.raises(KernelFault):
        bench(f"scratch_load_{names[1]} v10, off, s16", {}, scalars=[64], scratch=64)


def test_private_memory_of_gfx90a_is_not_emulated(bench_for: Callable[[str], Bench]) -> None:
    with pytest.raises(NotEmulated):
        bench_for("gfx90a")("s_nop 0", {}, scratch=64)


_ATOMICS: list[tuple[str, str, Callable[[int, int], int]]] = [
    ("add_u32", "add", lambda m, x: m + x),
    ("sub_u32", "sub", lambda m, x: m - x),
    ("min_u32", "umin", min),
    ("max_u32", "umax", max),
    ("and_b32", "and", lambda m, x: m & x),
    ("or_b32", "or", lambda m, x: m | x),
    ("xor_b32", "xor", lambda m, x: m ^ x),
    ("swap_b32", "swap", lambda m, x: x),
    ("inc_u32", "inc", lambda m, x: 0 if m >= x else m + 1),
    ("dec_u32", "dec", lambda m, x: x if m == 0 or m > x else m - 1),
]


@pytest.mark.parametrize(("name", "old_name", "function"), _ATOMICS)
def test_atomics(bench: Bench, name: str, old_name: str, function: Callable[[int, int], int]) -> None:
    memory, data = np.full(2, 77, U), draw(U, bench.wave, 3)
    returns = {"gfx942": "sc0", "gfx1201": "th:TH_ATOMIC_RETURN"}.get(bench.isa, "glc")
    text = f"global_atomic_{old_name if bench.old else name} v10, v1, v2, s[16:17] offset:4 {returns}"
    address = memory.ctypes.data
    (found,) = bench(
        text, {1: np.zeros(bench.wave, U), 2: data}, scalars=[address & 0xFFFFFFFF, address >> 32], out=[10]
    )
    value = 77
    for lane in range(bench.wave):
        assert found[lane] == value
        value = function(value, int(data[lane])) & 0xFFFFFFFF
    assert memory.tolist() == [77, value]


def test_atomics_that_compare_and_those_of_floats(bench: Bench) -> None:
    memory = np.array([5, 7], U)
    address = memory.ctypes.data
    where = [address & 0xFFFFFFFF, address >> 32]
    lane = np.arange(bench.wave, dtype=U)
    swap = "cmpswap v1, v[2:3]" if bench.old else "cmpswap_b32 v1, v[2:3]"
    bench(
        f"global_atomic_{swap}, s[16:17]",
        {1: lane % U.type(2) * U.type(4), 2: lane + U.type(100), 3: lane + U.type(5)},
        scalars=where,
    )
    # lanes with even numbers touch the first word: 5 is met by lane 0 only; 7 by no odd lane
    assert memory.tolist() == [100, 7]
    floats = np.zeros(2, F)
    address = floats.ctypes.data
    bench(
        "global_atomic_add_f32 v1, v2, s[16:17]",
        {1: np.zeros(bench.wave, U), 2: np.full(bench.wave, 0.5, F).view(U)},
        scalars=[address & 0xFFFFFFFF, address >> 32],
    )
    assert floats[0] == bench.wave / 2
    bench(
        "ds_write_b32 v1, v1\n ds_add_u32 v1, v2 offset:4\n ds_read_b32 v10, v1 offset:4"
        if bench.old
        else "ds_store_b32 v1, v1\n ds_add_u32 v1, v2 offset:4\n ds_load_b32 v10, v1 offset:4",
        {1: np.zeros(bench.wave, U), 2: lane},
        lds=8,
        out=[10],
    )


def test_the_local_memory(bench: Bench) -> None:
    wave = bench.wave
    order = np.random.default_rng(0).permutation(wave).astype(U) * U.type(16)
    data = {k: draw(U, wave, k) for k in range(4, 8)}
    text = """
    ds_store_b128 v1, v[4:7]
    ds_load_b32 v10, v1 offset:8
    ds_load_b64 v[12:13], v1 offset:4
    ds_load_2addr_b32 v[14:15], v1 offset0:3 offset1:1
    ds_load_u8 v16, v1 offset:5
    ds_load_i16 v17, v1 offset:2
    ds_store_2addr_b32 v1, v4, v5 offset0:1 offset1:0
    ds_load_2addr_b64 v[18:21], v1 offset0:0 offset1:1
    ds_store_b16_d16_hi v1, v6
    ds_load_b32 v22, v1
    """
    if bench.old:
        text = (
            text.replace("load_2addr", "read2")
            .replace("store_2addr", "write2")
            .replace("load", "read")
            .replace("store", "write")
        )
    found = bench(text, {1: order, **data}, lds=wave * 16, out=[10, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22])
    a, b, c, d = data.values()
    mixed = b & U.type(0xFFFF0000) | c >> U.type(16)
    expected = [c, b, c, d, b, b >> U.type(8) & U.type(255), (a.view(N) >> 16).view(U), b, a, c, d, mixed]
    for k, each in enumerate(expected):
        assert equal(found[k], each), k


def test_the_local_memory_of_inactive_lanes_is_not_touched(bench: Bench) -> None:
    at = np.where(np.arange(bench.wave) % 2, 1 << 30, 0).astype(U)
    even = 0x5555555555555555
    store, load = ("ds_write_b32", "ds_read_b32") if bench.old else ("ds_store_b32", "ds_load_b32")
    (found,) = bench(f"{store} v1, v1\n {load} v10, v1", {1: at}, active=even, lds=4, out=[10])
    assert equal(found, np.where(lanes(bench.wave, even), 0, POISON).astype(U))
    with pytest.raises(KernelFault) as caught:
        bench(f"{load} v10, v1", {1: at}, lds=4)
    assert caught.value.address == 1 << 30
    (found,) = bench(f"{load} v10, v1", {1: np.zeros(bench.wave, U)}, lds=4, out=[10])
    assert (found == POISON).all()  # what nobody has written


@pytest.mark.parametrize("active", [(1 << 64) - 1, EVERY_THIRD])
def test_permutations_by_addresses(bench: Bench, active: int) -> None:
    wave, on = bench.wave, lanes(bench.wave, active)
    a, at = draw(U, wave, 1), np.random.default_rng(0).permutation(4 * wave)[:wave].astype(U) * U.type(4)
    found = bench(
        "ds_bpermute_b32 v10, v2, v1 offset:8\n ds_permute_b32 v11, v2, v1", {1: a, 2: at}, active=active, out=[10, 11]
    )
    source = (at // 4 + 2) % wave  # beyond the wave it begins again
    assert equal(found[0], np.where(on, np.where(on[source], a[source], 0), POISON).astype(U))
    pushed = np.zeros(wave, U)
    for lane in np.flatnonzero(on):
        pushed[at[lane] // 4 % wave] = a[lane]
    assert equal(found[1], np.where(on, pushed, POISON).astype(U))


@pytest.mark.parametrize(
    ("offset", "source"),
    [
        ("swizzle(QUAD_PERM,3,1,0,2)", lambda lane: (lane & ~3) + (3, 1, 0, 2)[lane & 3]),
        ('swizzle(BITMASK_PERM,"01pi0")', lambda lane: lane & ~31 | (lane & 0b00110 | 0b01000) ^ 0b00010),
        ("swizzle(BROADCAST,8,3)", lambda lane: (lane & ~7) + 3),
        ("swizzle(SWAP,4)", lambda lane: lane ^ 4),
        ("swizzle(REVERSE,16)", lambda lane: lane ^ 15),
    ],
)
def test_swizzles(bench: Bench, offset: str, source: Callable[[int], int]) -> None:
    a = draw(U, bench.wave, 1)
    (found,) = bench(f"ds_swizzle_b32 v10, v1 offset:{offset}", {1: a}, out=[10], active=EVERY_THIRD)
    on = lanes(bench.wave, EVERY_THIRD)
    expected = [(a[source(lane)] if on[source(lane)] else 0) if on[lane] else POISON for lane in range(bench.wave)]
    assert found.tolist() == expected
