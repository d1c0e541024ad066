"""From the text of instructions to the records that the machine executes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from onnx_bridge.emulation.comgr import Line
from onnx_bridge.emulation.names import NOTHING, canonical
from onnx_bridge.emulation.operands import CONSTANT, EXEC, NONE, SCALAR, SINK, VCC, VECTOR, Operand, encode, parse

SOURCE = np.dtype([("at", "<u4"), ("space", "u1"), ("plain", "u1"), ("modifiers", "u1"), ("select", "u1")])
INSTRUCTION = np.dtype(
    {
        "names": [
            *("run", "d", "d2", "offset", "extra", "place", "s", "finish", "clamp", "scale", "first", "bits", "fill"),
            *("move", "move_rows", "move_banks", "move_zero", "moved"),
        ],
        "formats": ["<u8", "<u2", "<u2", "<i4", "<u4", "<u4", (SOURCE, 4), *["u1"] * 10, "<u4"],
        "offsets": [0, 44, 46, 48, 52, 56, 64, *range(96, 106), 108],
        "itemsize": 128,
    }
)
"""`Instruction` of machine.hpp."""
_MOVES = {
    **{"quad_perm": 1, "row_shl": 2, "row_shr": 3, "row_ror": 4, "row_mirror": 5, "row_half_mirror": 6},
    **{"row_bcast": 7, "row_share": 9, "row_newbcast": 9, "row_xmask": 10, "dpp8": 11},
    **{"wave_shl": 12, "wave_shr": 13, "wave_rol": 14, "wave_ror": 15},
}
_SELECTS = {"DWORD": 0, **{f"BYTE_{k}": 1 + k for k in range(4)}, "WORD_0": 5, "WORD_1": 6}
_UNUSED = {"UNUSED_PAD": 0, "UNUSED_SEXT": 1, "UNUSED_PRESERVE": 2}
_SCALES = {"mul:2": 1, "mul:4": 2, "div:2": 3}
_IGNORED = re.compile(r"glc|slc|dlc|nv|sc0|sc1|nt|off|th:\w+|scope:\w+|done|offen|idxen|fi:1|clamp|mul:\d|div:2")
_KEPT_BELOW_GFX10 = re.compile(r"v_(fma|mad|div_fixup)_f16|v_mad_[ui]16|v_fma_mix.*|v_cvt_pk_(fp8|bf8)_f32")
_HALVES = {"h", "w", "s"}
_WIDE = {"d", "U", "I", "P"}
_SIGNED_IMMEDIATE = re.compile(r"s_(movk|cmovk|addk|mulk|cmpk)_.*i32")


class Unknown(Exception):
    """The machine has no such instruction, or not in this form."""


@dataclass
class Translation:
    """The records of a code object.

    Attributes:
        records: the instructions.
        lines: the text of each record's instruction.
        index: the record at each fourth byte of the code; of instructions without effect, the next one.
        constants: the two words of each constant.
        vectors: the number of vector registers.
        missing: the instructions that are not known, by record; executing one is an error.
    """

    records: np.ndarray[Any, Any]
    lines: list[str]
    index: np.ndarray[Any, Any]
    constants: list[tuple[int, int]]
    vectors: int
    missing: dict[int, str]


def translate(
    lines: Sequence[Line], code: bytes, table: Sequence[tuple[str, str]], wave: int, old: bool
) -> Translation:
    """Translate the instructions of a code object.

    Args:
        lines: the disassembled instructions.
        code: their bytes.
        table: the machine's instructions, with their signatures.
        wave: the lanes of a wave.
        old: whether the architecture is before gfx10, where results of 16 bits clear the rest of a register.
    """
    start = lines[0].address if lines else 0
    one = _Translator({name: (n, signature) for n, (name, signature) in enumerate(table)}, wave, old)
    index = np.full(len(code) // 4 + 1, 0xFFFFFFFF, np.uint32)
    for line in lines:
        place = line.address - start
        index[place // 4] = len(one.records)
        if not NOTHING.fullmatch(line.text.split(" ", 1)[0]):
            one.add(line, place, int.from_bytes(code[place : place + 4], "little"))
    for number, target in one.branches.items():
        place = (target - start) // 4
        reached = 0 <= place < len(index) and index[place] < len(one.records)
        if reached:
            one.records[number]["offset"] = index[place]
        else:
            one.missing[number] = f"{one.lines[number]} (to outside the code)"
    return Translation(
        np.array(one.records, INSTRUCTION), one.lines, index, list(one.constants), one.vectors, one.missing
    )


def split(text: str) -> tuple[str, list[str], dict[str, str]]:
    """Return the mnemonic, operands and modifiers of an instruction's text."""
    mnemonic, _, rest = text.partition(" ")
    pieces = re.split(r",\s*(?![^\[(]*[\])])", rest.strip()) if rest.strip() else []
    words = re.findall(r"(?:[^\s\[(]|\[[^\]]*\]|\([^)]*\))+", pieces[-1]) if pieces else []
    operands = [*pieces[:-1], *words[:1]]
    modifiers = dict(word.partition(":")[::2] for word in words[1:])
    if operands and not pieces[:-1] and re.match(r"(row|quad|offset)", operands[0]):
        operands = []
    return mnemonic, operands, modifiers


def _numbers(text: str) -> list[int]:
    return [int(number, 0) for number in text.strip("[]").split(",")]


@dataclass
class _Translator:
    table: dict[str, tuple[int, str]]
    wave: int
    old: bool
    records: list[Any] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    constants: dict[tuple[int, int], int] = field(default_factory=dict)
    branches: dict[int, int] = field(default_factory=dict)
    missing: dict[int, str] = field(default_factory=dict)
    vectors: int = 3

    def add(self, line: Line, place: int, word: int) -> None:
        """Add the records of one instruction."""
        parts = line.text.split(" :: ")
        try:
            records = [self._record(part, line, place, word) for part in parts]
            if len(parts) == 2:
                records = self._together(*records)
        except Unknown as error:
            what = line.text or "bytes that are no instruction"
            self.missing[len(self.records)] = f"{what}{f' ({error})' if str(error) else ''}"
            records = [np.zeros((), INSTRUCTION)]
            records[0]["place"] = place
        self.records.extend(records)
        self.lines.extend([line.text] * len(records))

    def _together(self, first: Any, second: Any) -> list[Any]:
        """Return two records that take effect at once: both read before either writes."""

        def reads(record: Any, register: int) -> bool:
            return any(s["space"] == VECTOR and s["at"] == register for s in record["s"])

        if not reads(second, int(first["d"])):
            return [first, second]
        if not reads(first, int(second["d"])):
            return [second, first]
        spare = 255 + 256
        self.vectors = spare + 1
        copy = np.zeros((), INSTRUCTION)
        copy["run"], _ = self.table["v_mov_b32"]
        copy["d"], copy["d2"], copy["bits"], copy["place"] = spare, SINK, 32, first["place"]
        copy["s"][0] = (first["d"], VECTOR, 1, 0, 0)
        for source in second["s"]:
            if source["space"] == VECTOR and source["at"] == first["d"]:
                source["at"] = spare
        return [copy, first, second]

    def _record(self, text: str, line: Line, place: int, word: int) -> Any:
        mnemonic, operands, modifiers = split(text)
        name = canonical(mnemonic)
        if mnemonic in ("s_denorm_mode", "s_round_mode"):
            if operands != [{"s_denorm_mode": "15", "s_round_mode": "0x0"}[mnemonic]]:
                raise Unknown("another mode of floats than the usual one")
            name, operands = "s_mov_b32", ["null", "0"]
        if name not in self.table:
            raise Unknown
        run, signature = self.table[name]
        r = np.zeros((), INSTRUCTION)
        r["run"], r["place"], r["d2"], r["bits"], r["d"] = run, place, SINK, 32, SINK
        for s in r["s"]:
            s["space"] = CONSTANT
        kind = signature[0]
        if kind == "b":
            if line.target is not None:
                self.branches[len(self.records)] = line.target
            elif name not in ("s_endpgm", "s_barrier"):
                raise Unknown
            r["extra"] = line.size
            if "=" in signature:
                r["d"] = self._scalar(operands[0])
        elif kind == "s":
            self._scalar_operation(r, name, mnemonic, signature, operands, line)
        elif kind == "l":
            self._scalar_load(r, operands, modifiers)
        elif kind in "vr":
            self._vector_operation(r, name, mnemonic, signature, operands, modifiers)
        elif kind == "x":
            self._exchange(r, name, operands, word)
        else:
            self._memory(r, name, kind, int(signature[1]), operands, modifiers, mnemonic, word)
        return r

    # ---- operands

    def _operand(self, text: str) -> Operand:
        operand = parse(text)
        if operand is None:
            raise Unknown(f"the operand {text}")
        if operand.space == VECTOR:
            self.vectors = max(self.vectors, operand.last + 1)
        return operand

    def _scalar(self, text: str) -> int:
        """Return the index of a scalar destination."""
        if text == "null":
            return SINK
        operand = self._operand(text)
        if operand.space != SCALAR or operand.modifiers:
            raise Unknown(f"the operand {text}")
        return operand.at

    def _constant(self, words: tuple[int, int] | None) -> int:
        if words is None:
            raise Unknown("a constant of another type")
        return 2 * self.constants.setdefault(words, len(self.constants))

    def _source(self, r: Any, n: int, operand: Operand, letter: str, select: int = 0) -> None:
        at = operand.at
        if operand.space == CONSTANT:
            at = self._constant(encode(operand.number, "h" if letter == "m" and select & 2 else letter))
        usual = 2 if letter in "pqP" else 0
        moved = n == 0 and r["move"] != 0
        plain = (
            operand.space != SCALAR and not operand.modifiers and select == usual and letter not in "bm" and not moved
        )
        r["s"][n] = (at, operand.space, plain, operand.modifiers, select)

    # ---- kinds

    def _scalar_operation(
        self, r: Any, name: str, mnemonic: str, signature: str, operands: list[str], line: Line
    ) -> None:
        result, letters = signature[1], signature[3:]
        texts = list(operands)
        if result != "-":
            if not texts:
                raise Unknown
            r["d"] = self._scalar(texts[0])
            if len(texts) - 1 < len(letters):  # the destination is a source as well
                texts.insert(len(texts) if name == "s_fmac_f32" else 1, texts[0])
            texts = texts[1:]
        if len(texts) != len(letters):
            raise Unknown
        for n, (text, letter) in enumerate(zip(texts, letters, strict=True)):
            operand = self._operand(text)
            if operand.modifiers or operand.space == VECTOR:
                raise Unknown
            if operand.space == CONSTANT and _SIGNED_IMMEDIATE.fullmatch(mnemonic):
                value = int(operand.number, 0) & 0xFFFF
                operand = Operand(CONSTANT, number=str((value ^ 0x8000) - 0x8000))
            self._source(r, n, operand, letter)
        r["extra"] = line.size

    def _scalar_load(self, r: Any, operands: list[str], modifiers: dict[str, str]) -> None:
        if len(operands) < 2:
            raise Unknown
        r["d"] = self._scalar(operands[0])
        self._source(r, 0, self._operand(operands[1]), "U")
        offset = self._operand(operands[2]) if len(operands) > 2 else Operand(CONSTANT, number="0")
        if offset.space == SCALAR:
            r["extra"] = 1
            self._source(r, 1, offset, "u")
            r["offset"] = int(modifiers.get("offset", "0"), 0)
        else:
            r["offset"] = int(offset.number, 0)
        self._only(modifiers, "offset")

    def _vector_operation(
        self, r: Any, name: str, mnemonic: str, signature: str, operands: list[str], modifiers: dict[str, str]
    ) -> None:
        kind, result, more, letters = signature[0], signature[1], signature[2], signature[3:]
        texts = list(operands)
        half = ""
        if result == "B" and mnemonic.startswith("v_cmpx"):
            r["d"] = EXEC
            if len(texts) > len(letters):
                r["d2"] = self._scalar(texts.pop(0))
        elif result == "B" or kind == "r":
            r["d"] = self._scalar(texts.pop(0))
        else:
            to = self._operand(texts.pop(0))
            if to.space != VECTOR or to.modifiers:
                raise Unknown
            r["d"], half = to.at, to.half
        if more == "+":
            r["d2"] = self._scalar(texts.pop(0))
        if len(texts) < len(letters):
            texts.append("vcc" if letters[len(texts)] == "b" else operands[0])
        if len(texts) != len(letters):
            raise Unknown
        self._move(r, modifiers)
        self._result(r, name, mnemonic, result, half, modifiers)
        for n, (text, letter) in enumerate(zip(texts, letters, strict=True)):
            operand = self._operand(text)
            if letter == "b" and operand.space != SCALAR:
                raise Unknown
            select, more_modifiers = self._select(n, operand, letter, modifiers, len(letters))
            operand = Operand(operand.space, operand.at, operand.number, operand.modifiers ^ more_modifiers)
            self._source(r, n, operand, letter, select)
        if name.startswith("v_permlane"):
            fetch = _numbers(modifiers.get("op_sel", "[0,0]"))
            r["extra"] = fetch[0] | fetch[1] << 1
        elif "op_sel" in modifiers and not re.search(r"v\d+\.[lh]", " ".join(operands)):
            allowed = [letter in "hwspqPm" for letter in letters]
            if any(bit and not ok for bit, ok in zip(_numbers(modifiers["op_sel"]), allowed, strict=False)):
                raise Unknown("op_sel")
        self._only(
            modifiers,
            *("op_sel", "op_sel_hi", "neg_lo", "neg_hi", "dst_sel", "dst_unused", "src0_sel", "src1_sel"),
            *("row_mask", "bank_mask", "bound_ctrl", "byte_sel", *_MOVES),
        )

    def _select(self, n: int, operand: Operand, letter: str, modifiers: dict[str, str], count: int) -> tuple[int, int]:
        """Return the part of a source that is read, and further modifiers."""

        def bit(name: str, default: int) -> int:
            bits = _numbers(modifiers[name]) if name in modifiers else []
            return bits[n] if n < len(bits) else default

        if letter in "pqP":
            negated = bit("neg_lo", 0) | bit("neg_hi", 0) << 3
            return bit("op_sel", 0) | bit("op_sel_hi", 1) << 1, negated
        if letter == "y":
            if {"op_sel", "op_sel_hi", "neg_lo", "neg_hi"} & modifiers.keys():
                raise Unknown("modifiers")
            return 0, 0
        if letter == "m":
            return bit("op_sel", 0) | bit("op_sel_hi", 0) << 1, 0
        if "byte_sel" in modifiers:
            return _SELECTS[f"BYTE_{modifiers['byte_sel']}"], 0
        if f"src{n}_sel" in modifiers:
            return _SELECTS[modifiers[f"src{n}_sel"]], 0
        if operand.half:
            return (6 if operand.half == ".h" else 5), 0
        if letter in _HALVES and bit("op_sel", 0) and n < count:
            return 6, 0
        return 0, 0

    def _move(self, r: Any, modifiers: dict[str, str]) -> None:
        moves = modifiers.keys() & _MOVES.keys()
        if not moves:
            return
        (name,) = moves
        argument = modifiers[name]
        r["move"] = _MOVES[name]
        if name in ("quad_perm", "dpp8"):
            width = 2 if name == "quad_perm" else 3
            r["moved"] = sum(number << width * k for k, number in enumerate(_numbers(argument)))
        elif argument:
            r["moved"] = int(argument, 0)
        if name == "row_bcast" and argument == "31":
            r["move"] = _MOVES[name] + 1
        r["move_rows"] = int(modifiers.get("row_mask", "0xf"), 0)
        r["move_banks"] = int(modifiers.get("bank_mask", "0xf"), 0)
        r["move_zero"] = ("bound_ctrl" in modifiers) | (modifiers.get("fi") == "1") << 1

    def _result(self, r: Any, name: str, mnemonic: str, result: str, half: str, modifiers: dict[str, str]) -> None:
        """Set the part of the destination that is written, and what is done to the result."""
        if "dst_sel" in modifiers:
            part = _SELECTS[modifiers["dst_sel"]]
            r["first"], r["bits"] = [(0, 32), *((8 * k, 8) for k in range(4)), (0, 16), (16, 16)][part]
            r["fill"] = _UNUSED[modifiers.get("dst_unused", "UNUSED_PAD")]
        elif result in _HALVES and not (self.old and not half and not self._kept(name, modifiers)):
            high = half == ".h" or "mixhi" in mnemonic or (not half and self._high(modifiers, mnemonic))
            r["first"], r["bits"], r["fill"] = (16 if high else 0), 16, 2
        r["clamp"] = "clamp" in modifiers
        r["scale"] = next((n for word, n in _SCALES.items() if modifiers.get(word[:3]) == word[4:]), 0)
        if (r["clamp"] and result not in "fdhpP") or (r["scale"] and result not in "fdh"):
            raise Unknown("clamp or scale of whole numbers")
        r["finish"] = bool(r["clamp"] or r["scale"] or r["bits"] != 32) and result != "B"

    def _kept(self, name: str, modifiers: dict[str, str]) -> bool:
        return _KEPT_BELOW_GFX10.fullmatch(name) is not None or self._high(modifiers, name)

    def _high(self, modifiers: dict[str, str], name: str) -> bool:
        """Return whether op_sel names the upper half of the destination: its last bit."""
        if "op_sel" not in modifiers or "mix" in name:
            return False
        return bool(_numbers(modifiers["op_sel"])[-1])

    def _exchange(self, r: Any, name: str, operands: list[str], word: int) -> None:
        to, *sources = map(self._operand, operands)
        if to.space != VECTOR:
            raise Unknown
        r["d"], r["offset"] = to.at, word & 0xFFFF
        for n, operand in enumerate(sources):
            self._source(r, n, operand, "u")

    def _memory(
        self,
        r: Any,
        name: str,
        kind: str,
        words: int,
        operands: list[str],
        modifiers: dict[str, str],
        mnemonic: str,
        word: int,
    ) -> None:
        space = name.split("_")[0]
        texts = list(operands)
        returns = kind in "ac" and (
            "_rtn_" in mnemonic or "glc" in modifiers or "sc0" in modifiers or "RETURN" in modifiers.get("th", "")
        )
        if kind in "md" or returns:
            to = self._operand(texts.pop(0))
            if to.space != VECTOR or to.half:
                raise Unknown
            r["d"] = to.at
        if space == "buffer" and kind in "Mac":
            texts.insert(1, texts.pop(0))  # the data comes first
        if kind in "MDac":
            data = self._operand(texts.pop(1))
            if data.space != VECTOR:
                raise Unknown
            self._source(r, 1, data, "u", 6 if data.half == ".h" else 0)
        if space == "ds" and kind in "Dc":
            self._source(r, 2, self._operand(texts.pop(1)), "u")
        extra = 8 if returns else 0
        if texts[0] != "off":
            address = self._operand(texts[0])
            if address.space != VECTOR:
                raise Unknown
            self._source(r, 0, address, "u")
            extra |= 1
        if space == "buffer":
            extra = extra & ~1 | ("offen" in modifiers) | ("idxen" in modifiers) << 2
            r["s"][3]["at"] = self._scalar(texts[1])
            self._source(r, 2, self._operand(texts[2]), "u")
        elif space in ("global", "scratch") and texts[1] != "off":
            self._source(r, 2, self._operand(texts[1]), "U" if space == "global" else "u")
            extra |= 2
        elif space == "flat" and len(texts) > 1:
            raise Unknown
        if kind in "dD":
            r["offset"], extra = word & 0xFF, word >> 8 & 0xFF
        else:
            r["offset"] = int(modifiers.get("offset", "0"), 0)
        r["extra"] = extra
        self._only(modifiers, "offset", "offset0", "offset1")

    def _only(self, modifiers: dict[str, str], *known: str) -> None:
        for name, value in modifiers.items():
            if name not in known and not _IGNORED.fullmatch(f"{name}:{value}" if value else name):
                raise Unknown(f"the modifier {name}")


def used(lines: Iterable[str]) -> set[str]:
    """Return the machine's names of instructions."""
    return {canonical(part.split(" ", 1)[0]) for line in lines for part in line.split(" :: ") if part}


__all__ = ["NONE", "VCC", "Translation", "translate", "used"]
