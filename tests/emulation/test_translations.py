"""Translations that are kept, and what makes them invalid."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

from onnx_bridge.emulation import translations
from onnx_bridge.emulation.translate import Translation
from onnx_bridge.emulation.translations import kept
from tests.emulation.bench import Bench


def test_a_translation_is_kept_until_what_it_is_made_from_changes(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(translations, "cache_dir", lambda: tmp_path)
    original = bench.program("v_add_f32 v1, 2.5, v0\n s_nop 0\n v_exp_f32 v2, v1").translation
    original.missing[1] = "unknown"
    made: list[Translation] = []

    def make() -> Translation:
        made.append(original)
        return original

    def translation(code: str = "a", wave: int = bench.wave) -> Translation:
        return kept(code, wave, make)

    translation()
    again = translation()
    assert len(made) == 1
    for field in fields(Translation):
        before, after = getattr(original, field.name), getattr(again, field.name)
        assert np.array_equal(before, after) if isinstance(before, np.ndarray) else before == after, field.name
    translation("b")  # another code object
    translation(wave=96 - bench.wave)  # another machine
    assert len(made) == 3
    monkeypatch.setattr(translations, "_digest", lambda: "another")  # other code that translates
    translation()
    assert len(made) == 4
    for path in tmp_path.rglob("a.npz"):
        path.write_bytes(path.read_bytes()[:100])  # damaged
    translation()
    assert len(made) == 5
