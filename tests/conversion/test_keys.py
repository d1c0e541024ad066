"""Content keys: what matters changes them, what does not leaves them, and no two settings have the same."""

from __future__ import annotations

import dataclasses
import json
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onnx_bridge.conversion import keys
from onnx_bridge.conversion.keys import check_key, cleaning_key, conversion_key
from onnx_bridge.conversion.precision.precision import BY_PASS
from onnx_bridge.core.errors import InputError
from onnx_bridge.core.files.code_digest import code_digest
from onnx_bridge.core.files.digest import canonical_json, json_digest
from onnx_bridge.migraphx.runtime import Runtime
from onnx_bridge.requests.conversion import PRECISIONS, ConvertRequest

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
NAMES = st.text(max_size=4)
SETTINGS = st.fixed_dictionaries(
    {
        "pipeline": st.sampled_from(["none", "minimal", "remove-dead", "fold-constants{max-bytes=1}"]),
        "dims": st.dictionaries(NAMES, st.integers(1, 3), max_size=2),
        "shapes": st.dictionaries(NAMES, st.lists(st.integers(0, 3), max_size=2), max_size=2),
        "freeze": st.dictionaries(NAMES, st.text(max_size=3), max_size=2),
        "host": st.booleans(),
        "buckets": st.dictionaries(NAMES, st.lists(st.integers(1, 3), max_size=2), max_size=2),
        "pad": st.dictionaries(NAMES, st.text(max_size=3), max_size=2),
        "options": st.dictionaries(NAMES, st.booleans() | st.text(max_size=3), max_size=2),
        "precision": st.sampled_from(
            [(name, ()) for name in PRECISIONS] + [("fp16", keep) for keep in (("a",), ("b",), ("a", "b"))]
        ),
    }
)
CLEANING = ("pipeline", "dims", "shapes", "freeze")
"""The fields of a request that cleaning depends on, besides the precisions that passes convert to."""
RUNTIME = Runtime("private", Path("/"), "here", "2.14.0", ("ref",), "2.14.0-abc")
PLAIN = {"pipeline": "none"}


def strictly(value: Any) -> Any:
    """A value with the types told apart, since 1 == 1.0 == True in Python."""
    if isinstance(value, dict):
        return {key: strictly(each) for key, each in value.items()}
    return [strictly(each) for each in value] if isinstance(value, list) else (type(value).__name__, repr(value))


def both(
    source: str | None, *, runtime: Runtime = RUNTIME, target: str = "ref", **given: Any
) -> tuple[str | None, str | None]:
    """The keys of the cleaned model and of the conversion."""
    precision, keep_fp32 = given.pop("precision", ("fp32", ()))
    request = ConvertRequest(precision=precision, keep_fp32=keep_fp32, **given)
    cleaned = cleaning_key(source, request, runtime)
    return cleaned, conversion_key(cleaned, request, runtime, target=target)


@settings(deadline=None, derandomize=True)
@given(JSON, JSON)
def test_canonical_text_is_injective(first: Any, second: Any) -> None:
    assert (canonical_json(first) == canonical_json(second)) == (strictly(first) == strictly(second))
    assert strictly(json.loads(canonical_json(first))) == strictly(first)


@settings(deadline=None, derandomize=True)
@given(st.dictionaries(st.text(), st.integers(), min_size=2))
def test_the_order_of_members_does_not_matter(value: dict[str, int]) -> None:
    assert json_digest(value) == json_digest(dict(reversed(value.items())))


@pytest.mark.parametrize("value", [{1: 2}, [{None: 1}], {"a": {True: 1}}])
def test_keys_that_json_would_convert_to_strings(value: Any) -> None:
    with pytest.raises(TypeError, match="keys must be strings"):
        canonical_json(value)


@settings(deadline=None, derandomize=True)
@given(SETTINGS, SETTINGS)
def test_no_two_settings_collide(first: dict[str, Any], second: dict[str, Any]) -> None:
    """Above all not by what one says as a dimension and the other as an input, or by characters in names."""
    keys = [both("0" * 64, **each)[1] for each in (first, second)]
    plain = [{**each, "pipeline": "", "pad": each["pad"] if each["buckets"] else {}} for each in (first, second)]
    same = plain[0] == plain[1]
    spelled = {"none": "", "remove-dead": "remove-dead"}
    same = same and spelled.get(first["pipeline"], first["pipeline"]) == spelled.get(
        second["pipeline"], second["pipeline"]
    )
    assert (keys[0] == keys[1]) == same


@settings(deadline=None, derandomize=True)
@given(SETTINGS, SETTINGS)
def test_keys_are_a_chain(first: dict[str, Any], second: dict[str, Any]) -> None:
    """What is cleaned differently is another conversion; what is cleaned alike differs by the rest alone."""
    alike = {**second, **{name: first[name] for name in CLEANING}}
    keys = [both("0" * 64, **each) for each in (first, second, alike)]
    by_passes = {first["precision"][0], second["precision"][0]} & {*BY_PASS}
    if not by_passes:
        assert keys[0][0] == keys[2][0]
    elif first["precision"] != second["precision"]:
        assert keys[0][0] != keys[2][0]
    if keys[0][0] != keys[1][0]:
        assert keys[0][1] != keys[1][1]


class TestConversionKey:
    def key(self, source: str = "0" * 64, runtime: Runtime = RUNTIME, **changed: Any) -> str | None:
        return both(source, runtime=runtime, **{**PLAIN, **changed})[1]

    def test_fields_that_change_the_key(self) -> None:
        changed = [
            self.key(),
            self.key(source="1" * 64),
            self.key(target="gpu"),
            self.key(runtime=dataclasses.replace(RUNTIME, identity="2.14.0-def")),
            self.key(dims={"batch": 1}),
            self.key(shapes={"batch": (1,)}),
            self.key(freeze={"batch": "1"}),
            self.key(host=False),
        ]
        assert len(set(changed)) == len(changed)

    def test_a_named_pipeline_equals_its_passes(self) -> None:
        import passes

        assert self.key(pipeline="minimal") == self.key(pipeline=f" {passes.PIPELINES['minimal'].replace(',', ' , ')}")
        with pytest.raises(InputError, match="fold-constant"):
            self.key(pipeline="fold-constant")

    def test_the_path_of_the_runtime_does_not_matter(self) -> None:
        assert self.key() == self.key(runtime=dataclasses.replace(RUNTIME, path=Path("/elsewhere"), origin="there"))

    def test_the_environment(self, monkeypatch: pytest.MonkeyPatch) -> None:
        before = self.key()
        monkeypatch.setenv("MIGRAPHX_TRACE_COMPILE", "1")
        assert self.key() == before
        monkeypatch.setenv("MIGRAPHX_DISABLE_MLIR", "1")
        assert self.key() != before

    @pytest.mark.parametrize("library", ["onnx", "onnxruntime", "onnx-ir", "numpy"])
    def test_versions_of_libraries(self, library: str, monkeypatch: pytest.MonkeyPatch) -> None:
        before, real = both("0" * 64, **PLAIN), metadata.version
        monkeypatch.setattr(metadata, "version", lambda name: "0" if name == library else real(name))
        monkeypatch.setattr(keys, "code_digest", code_digest.__wrapped__)
        after = both("0" * 64, **PLAIN)
        assert before[0] != after[0]
        assert before[1] != after[1]

    def test_scripts_count_by_content(self, tmp_path: Path) -> None:
        script, moved = tmp_path / "a.py", tmp_path / "b.py"
        script.write_text("def f(graph): pass\n")
        first = self.key(pipeline=f"surgeon{{script={script}:f}}")
        script.write_text("def f(graph): return graph\n")
        assert self.key(pipeline=f"surgeon{{script={script}:f}}") != first
        moved.write_text("")
        assert self.key(pipeline=f"surgeon{{script={script}:f}}") != self.key(pipeline=f"surgeon{{script={moved}:f}}")

    def test_a_model_in_memory_has_none(self) -> None:
        assert both(None, **PLAIN) == (None, None)


def test_check_keys(tmp_path: Path) -> None:
    data = tmp_path / "x.npz"
    data.write_bytes(b"1")
    plain: dict[str, Any] = {
        "seed": 0,
        "samples": None,
        "rtol": None,
        "atol": None,
        "tolerance": None,
        "data": None,
    }
    changes: list[dict[str, Any]] = [
        {},
        {"seed": 1},
        {"samples": 1},
        {"rtol": 0.5},
        {"atol": 0.5},
        {"tolerance": "fp16"},
        {"data": data},
    ]
    keys = [check_key("a", **{**plain, **change}) for change in changes]
    keys.append(check_key("b", **plain))
    data.write_bytes(b"2")
    keys.append(check_key("a", **{**plain, "data": data}))
    assert len(set(keys)) == len(keys)
