"""The names of instructions: each generation's spelling, and the one spelling that the machine's tables use."""

from __future__ import annotations

import functools
import re

_ENCODING = re.compile(r"(_e32|_e64|_sdwa|_dpp8|_dpp|_gfx\d+|_t16|_fake16|_vop3)+$")
_SPELLINGS = [
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"_dwordx16$", "_b512"),
        (r"_dwordx8$", "_b256"),
        (r"_dwordx4$", "_b128"),
        (r"_dwordx3$", "_b96"),
        (r"_dwordx2$", "_b64"),
        (r"_dword$", "_b32"),
        (r"_store_(byte|b8)_d16_hi$", "_store_d16_hi_b8"),
        (r"_(?:store|write)_(short|b16)_d16_hi$", "_store_d16_hi_b16"),
        (r"_store_byte$", "_store_b8"),
        (r"_store_short$", "_store_b16"),
        (r"_(?:load|read)_(?:ubyte|u8)_d16(_hi)?$", r"_load_d16\1_u8"),
        (r"_(?:load|read)_(?:sbyte|i8)_d16(_hi)?$", r"_load_d16\1_i8"),
        (r"_(?:load|read)_(?:short|u16)_d16(_hi)?$", r"_load_d16\1_b16"),
        (r"_load_ubyte$", "_load_u8"),
        (r"_load_sbyte$", "_load_i8"),
        (r"_load_ushort$", "_load_u16"),
        (r"_load_sshort$", "_load_i16"),
        (r"^ds_read2st64", "ds_load_2addr_stride64"),
        (r"^ds_write2st64", "ds_store_2addr_stride64"),
        (r"^ds_read2", "ds_load_2addr"),
        (r"^ds_write2", "ds_store_2addr"),
        (r"^ds_read", "ds_load"),
        (r"^ds_write", "ds_store"),
        (r"^ds_wrxchg", "ds_storexchg"),
        (r"^(ds_.*)_rtn_", r"\1_"),
        (r"_atomic_(s|u)(min|max)(_x2)?$", r"_atomic_\2_\1\3"),
        (r"_atomic_(add|sub|inc|dec)$", r"_atomic_\1_u32"),
        (r"_atomic_(add|sub|inc|dec)_x2$", r"_atomic_\1_u64"),
        (r"_atomic_(and|or|xor|swap|cmpswap)$", r"_atomic_\1_b32"),
        (r"_atomic_(and|or|xor|swap|cmpswap)_x2$", r"_atomic_\1_b64"),
        (r"_atomic_(min|max)_s$", r"_atomic_\1_i32"),
        (r"_atomic_(min|max)_u$", r"_atomic_\1_u32"),
        (r"_atomic_(min|max)_s_x2$", r"_atomic_\1_i64"),
        (r"_atomic_(min|max)_u_x2$", r"_atomic_\1_u64"),
        (r"_num_f", "_f"),
        (r"^s_andn2_", "s_and_not1_"),
        (r"^s_orn2_", "s_or_not1_"),
        (r"^s_andn1_", "s_and_not0_"),
        (r"^s_orn1_", "s_or_not0_"),
        (r"^s_ff1_i32", "s_ctz_i32"),
        (r"^s_flbit_i32_b(32|64)$", r"s_clz_i32_u\1"),
        (r"^s_flbit_i32", "s_cls_i32"),
        (r"^s_(add|sub)_co_u32$", r"s_\1_u32"),
        (r"^s_(add|sub)_co_ci_u32$", lambda match: f"s_{'addc' if match[1] == 'add' else 'subb'}_u32"),
        (r"^s_(add|sub)_nc_u64$", r"s_\1_u64"),
        (r"^s_(add|sub)_co_i32$", r"s_\1_i32"),
        (r"^s_movk_i32$", "s_mov_b32"),
        (r"^s_cmovk_i32$", "s_cmov_b32"),
        (r"^s_addk_(co_)?i32$", "s_add_i32"),
        (r"^s_mulk_i32$", "s_mul_i32"),
        (r"^s_cmpk_", "s_cmp_"),
        (r"^v_dual_", "v_"),
        (r"^v_(add|sub|subrev)_nc_", r"v_\1_"),
        (r"^v_add_co_ci_u32$", "v_addc_co_u32"),
        (r"^v_sub_co_ci_u32$", "v_subb_co_u32"),
        (r"^v_subrev_co_ci_u32$", "v_subbrev_co_u32"),
        (r"^v_addc_u32$", "v_addc_co_u32"),
        (r"^v_subb_u32$", "v_subb_co_u32"),
        (r"^v_subbrev_u32$", "v_subbrev_co_u32"),
        (r"^v_(pk_)?(fmac|fmamk|fmaak)_", lambda match: f"v_{match[1] or ''}fma_"),
        (r"^v_mac_legacy_f32$|^v_fma_legacy_f32$|^v_fmac_legacy_f32$|^v_fmac_dx9_zero_f32$", "v_fma_dx9_zero_f32"),
        (r"^v_(mac|madmk|madak)_f32$", "v_mad_f32"),
        (r"^v_mul_legacy_f32$", "v_mul_dx9_zero_f32"),
        (r"^v_dot2c_", "v_dot2_"),
        (r"^v_dot2_f32_f16_.*$", "v_dot2_f32_f16"),
        (r"^v_ffbh_u32$", "v_clz_i32_u32"),
        (r"^v_ffbl_b32$", "v_ctz_i32_b32"),
        (r"^v_ffbh_i32$", "v_cls_i32"),
        (r"^v_cvt_rpi_i32", "v_cvt_nearest_i32"),
        (r"^v_cvt_flr_i32", "v_cvt_floor_i32"),
        (r"^v_cvt_pkrtz_f16_f32$", "v_cvt_pk_rtz_f16_f32"),
        (r"^v_fma_mixhi_f16$", "v_fma_mixlo_f16"),
        (r"^v_mad_mix", "v_fma_mix"),
        (r"^v_mad_co_", "v_mad_"),
        (r"^v_cmpx_", "v_cmp_"),
        (r"^v_cmp_lg_([iu])", r"v_cmp_ne_\1"),
        (r"^v_(lshl_add|add_lshl)_b32$", r"v_\1_u32"),
        (r"^v_accvgpr_(read|write|mov)_b32$", "v_mov_b32"),
    )
]
NOTHING = re.compile(
    r"s_(nop|waitcnt.*|wait_.*|clause|delay_alu|inst_prefetch|set_inst_prefetch_distance|sleep|setprio|sendmsg|"
    r"icache_inv|dcache_.*|gl1_inv|code_end|ttrace.*|barrier_signal|set_vgpr_msb|setkill|sethalt|incperflevel|"
    r"decperflevel|prefetch_.*)|buffer_(gl[01]_inv|wbl2|inv|wbinvl1(_vol)?)|global_(inv|wb|wbinv)|v_nop"
)
"""Instructions without an effect on registers and memory: waits, hints, and the control of caches."""


@functools.cache
def canonical(mnemonic: str) -> str:
    """Return the name by which the machine knows an instruction."""
    name = _ENCODING.sub("", mnemonic)
    for pattern, replacement in _SPELLINGS:
        name = pattern.sub(replacement, name)
    return "s_barrier" if name == "s_barrier_wait" else name
