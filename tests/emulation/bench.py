"""A bench for single instructions: registers in, instructions, registers out."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from onnx_bridge.emulation.emulator import Launch, Program
from tests.emulation.toolchain import Toolchain

Array = np.ndarray[Any, np.dtype[Any]]
WAVES = {"gfx90a": 64, "gfx942": 64, "gfx1100": 32, "gfx1201": 32}
_SCALARS, _ADDRESS = 16, 120
"""Scalars s16… are loaded with the given words; v120 holds the lane's place, from that in v127 on."""

_KERNEL = """
.amdgcn_target "amdgcn-amd-amdhsa--{isa}"
.text
.globl k
.p2align 8
.type k,@function
k:
{body}
  s_endpgm
.rodata
.p2align 6
.amdhsa_kernel k
  .amdhsa_next_free_vgpr {vectors}
  .amdhsa_next_free_sgpr 96
  .amdhsa_user_sgpr_kernarg_segment_ptr 1
  .amdhsa_kernarg_size 24
  .amdhsa_float_denorm_mode_32 3
  .amdhsa_group_segment_fixed_size {lds}
  .amdhsa_private_segment_fixed_size {scratch}
{more}
.end_amdhsa_kernel
"""


class Bench:
    """Runs instructions on one architecture.

    Args:
        toolchain: assembles.
        isa: the architecture.
    """

    def __init__(self, toolchain: Toolchain, isa: str) -> None:
        self.isa, self.wave, self._toolchain = isa, WAVES[isa], toolchain
        self.old = self.wave == 64
        self.words = 2 if self.old else 1

    def __call__(
        self,
        text: str,
        vectors: Mapping[int, Array],
        *,
        scalars: Sequence[int] = (),
        active: int | None = None,
        out: Sequence[int] = (),
        out_scalars: Sequence[str] = (),
        lds: int = 0,
        scratch: int = 0,
        **launch: Any,
    ) -> list[Array]:
        """Execute instructions with one wave.

        Args:
            text: the instructions.
            vectors: the words of vector registers.
            scalars: the words of s16, s17, …
            active: the active lanes of the instructions; all by default.
            out: the vector registers to return.
            out_scalars: 32-bit scalar operands to return after them, in every lane.
            lds: bytes of LDS.
            scratch: bytes of private memory of a lane.
            launch: further fields of `Launch`.
        """
        load, s_load, store = ("global_load_dword", "s_load_dword", "global_store_dword")
        wait = "s_waitcnt vmcnt(0) lgkmcnt(0)"
        if self.isa.startswith("gfx12"):
            wait = "s_wait_loadcnt 0x0\n s_wait_kmcnt 0x0"
        if not self.old:
            load, s_load, store = ("global_load_b32", "s_load_b32", "global_store_b32")
        pair = s_load.replace("b32", "b64").replace("dword", "dwordx2")
        lines = [
            *(f"{pair} s[{2 + 2 * k}:{3 + 2 * k}], s[0:1], {hex(8 * k)}" for k in range(3)),
            *(f"v_and_b32 v0, {self.wave - 1}, v0", f"v_lshlrev_b32 v{_ADDRESS + 7}, 2, v0", wait),
        ]
        lines += [f"{s_load} s{_SCALARS + k}, s[4:5], {hex(4 * k)}" for k in range(len(scalars))]
        lines += self._rows(load, "v{1}, v{0}, s[2:3]", list(vectors))
        lines.append(wait)
        mask = "exec" if self.old else "exec_lo"
        move = f"s_mov_b{32 * self.words} {mask}"
        if active is not None:
            lines.append(f"s_mov_b32 exec_lo, {hex(active & 0xFFFFFFFF)}")
            lines += [f"s_mov_b32 exec_hi, {hex(active >> 32)}"] if self.old else []
        lines += [text]
        lines += [f"s_mov_b32 s{60 + k}, {name}" for k, name in enumerate(out_scalars)]
        lines += [f"{move}, -1"]
        results = [*out, *(121 + k for k in range(len(out_scalars)))]
        lines += [f"v_mov_b32 v{121 + k}, s{60 + k}" for k in range(len(out_scalars))]
        lines += self._rows(store, "v{0}, v{1}, s[6:7]", results)
        program = self.program("\n".join(lines), lds=lds, scratch=scratch)
        given = np.zeros((max(1, len(vectors)), self.wave), np.uint32)
        for k, words in enumerate(vectors.values()):
            given[k] = words
        words = np.array([*scalars, 0], np.uint64).astype(np.uint32)
        found = np.full((max(1, len(results)), self.wave), 0xDEADBEEF, np.uint32)
        arguments = struct.pack("<3Q", *(array.ctypes.data for array in (given, words, found)))
        program.launch("k", Launch((self.wave, 1, 1), (self.wave, 1, 1), arguments, **launch))
        return list(found)

    def _rows(self, mnemonic: str, operands: str, registers: Sequence[int]) -> list[str]:
        """Return the lines that load or store registers, one row of memory each."""
        row, add = 4 * self.wave, "v_add_u32" if self.old else "v_add_nc_u32"
        lines = [f"v_mov_b32 v{_ADDRESS}, v{_ADDRESS + 7}"]
        for k, register in enumerate(registers):
            if k and k % 8 == 0:  # offsets are short
                lines.append(f"{add} v{_ADDRESS}, {8 * row}, v{_ADDRESS}")
            lines.append(f"{mnemonic} {operands.format(_ADDRESS, register)} offset:{k % 8 * row}")
        return lines

    def program(self, body: str, lds: int = 0, scratch: int = 0, more: str = "") -> Program:
        """Assemble and load the kernel ``k``."""
        size = "  .amdhsa_accum_offset 128" if self.old else "  .amdhsa_wavefront_size32 1"
        source = _KERNEL.format(
            isa=self.isa, body=body, lds=lds, scratch=scratch, vectors=256 if self.old else 128, more=f"{size}\n{more}"
        )
        return Program(self._toolchain.assemble(source, self.isa), self._toolchain.disassemble)
