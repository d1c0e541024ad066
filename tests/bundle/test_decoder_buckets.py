"""Buckets of a decoder with a cache: sizes that follow, padding that is proven or refused, outputs without it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import onnx_bridge
from fixtures.models.decoder import decoder, step
from onnx_bridge.bundle.bundle import Bundle
from onnx_bridge.cli import main
from onnx_bridge.conversion.programs import instances
from onnx_bridge.conversion.steps.run import run
from onnx_bridge.core.errors import InputError, ParityError, WorkerTimeout
from onnx_bridge.migraphx.runtime import Runtime
from onnx_bridge.parity.checking.bucket_check import check_buckets
from onnx_bridge.reference.comparison.compare import compare
from onnx_bridge.reference.reference import Reference
from onnx_bridge.requests.parity import CheckRequest
from passes.rewriting.base import Proof

PAST, NEW, TOTAL = "past_sequence_length", "sequence_length", "total_sequence_length"


def write(path: Path, **how: Any) -> Path:
    onnx.save(decoder(**how), path)
    return path


def agrees(bundle: Bundle, path: Path, given: dict[str, Any]) -> bool:
    return compare(bundle(given), Reference(path).run(given)).passed


def test_the_cache_of_optimum_is_padded_at_its_start(runtime: Runtime, tmp_path: Path) -> None:
    path = write(tmp_path / "m.onnx")
    bundle = onnx_bridge.convert(
        path, tmp_path / "out", buckets={PAST: [4, 15]}, pad_before=[PAST], target="ref", dim_default=1
    )
    assert all(agrees(bundle, path, step(past)) for past in (1, 3, 4, 5, 15))
    assert check_buckets(bundle, CheckRequest()).passed
    with pytest.raises(InputError, match="attention_mask"):
        bundle({**step(3), "attention_mask": np.ones((1, 5), np.int64)})


def test_several_new_tokens_are_padded_at_their_end(runtime: Runtime, tmp_path: Path) -> None:
    path = write(tmp_path / "m.onnx", total=TOTAL, present=TOTAL)
    sizes = {"batch_size": [2], PAST: [6], NEW: [4]}
    bundle = onnx_bridge.convert(path, tmp_path / "out", buckets=sizes, pad_before=[PAST], target="ref")
    assert all(agrees(bundle, path, step(*each)) for each in ((6, 4, 2), (3, 2, 1), (5, 1, 2)))


def test_the_cache_of_grouped_attention_is_padded_at_its_end(runtime: Runtime, tmp_path: Path) -> None:
    path = write(tmp_path / "m.onnx", total=TOTAL, present=TOTAL, grouped=True)
    bundle = onnx_bridge.convert(path, tmp_path / "out", buckets={PAST: [7]}, target="ref", dim_default=1)
    assert all(agrees(bundle, path, step(past)) for past in (2, 6, 7))
    with pytest.raises(ParityError, match=f"omit {PAST} from `pad_before`"):
        onnx_bridge.convert(
            path, tmp_path / "other", buckets={PAST: [7]}, pad_before=[PAST], target="ref", dim_default=1
        )


def test_padding_that_changes_outputs_is_refused(runtime: Runtime, tmp_path: Path) -> None:
    path = write(tmp_path / "m.onnx")
    with pytest.raises(ParityError, match=f"{PAST}=7.*give `pad_before=.*{PAST}") as caught:
        onnx_bridge.convert(path, tmp_path / "out", buckets={PAST: [7, 15]}, target="ref", dim_default=1)
    assert caught.value.error
    assert caught.value.error > 0.1
    assert not (tmp_path / "out").exists()


def test_outputs_of_undeclared_sizes_are_cut(runtime: Runtime, tmp_path: Path) -> None:
    path = write(tmp_path / "m.onnx", present="whatever")
    bundle = onnx_bridge.convert(
        path, tmp_path / "out", buckets={PAST: [4]}, pad_before=[PAST], target="ref", dim_default=1
    )
    assert bundle.manifest.outputs[1].shape == (1, 2, f"{PAST} + 1", 8)
    assert agrees(bundle, path, step(2))


def test_verbs(runtime: Runtime, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """On the command line: two programs of four combinations, and a dimension that is tied."""
    path, out = write(tmp_path / "m.onnx", total=TOTAL), tmp_path / "out"

    def bridge(*arguments: object) -> tuple[object, str]:
        with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit) as caught:
            patch.setattr("sys.argv", ["onnx-bridge", *map(str, arguments)])
            main.main()
        printed = capsys.readouterr()
        return caught.value.code, printed.out + printed.err

    how = ("--pad-before", PAST, "--target", "ref")
    sizes = ("--bucket", f"{PAST}=3,7", "--bucket", f"{TOTAL}=4,8")
    code, printed = bridge("convert", path, "-o", out, *sizes, *how, "--dim-default", "1")
    assert (code, f"buckets: {PAST}=3; {PAST}=7" in printed) == (0, True), printed
    assert f"{PAST}=3,{TOTAL}=8 is left out" in " ".join(printed.split())
    tied = ("--bucket", f"{PAST}=5", "--bucket", f"{TOTAL}={PAST}+1")
    code, printed = bridge("convert", path, "-o", tmp_path / "tied", *tied, *how, "--dim-default", "1", "--json")
    assert code == 0, printed
    assert json.loads(printed)["request"]["ties"] == {TOTAL: f"{PAST}+1"}


def test_nothing_stays_of_a_conversion_that_fails(
    runtime: Runtime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, out = write(tmp_path / "m.onnx"), tmp_path / "out"

    def fail(source: Any, folder: Path, *rest: Any) -> Any:
        if folder.name == f"{PAST}=7":
            raise WorkerTimeout("it takes too long")
        return run(source, folder, *rest)

    def convert(*sizes: int) -> Bundle:
        return onnx_bridge.convert(
            path, out, buckets={PAST: sizes}, pad_before=[PAST], target="ref", dim_default=1, prove="never"
        )

    monkeypatch.setattr(instances, "run", fail)
    with pytest.raises(WorkerTimeout):
        convert(3, 7)
    assert not out.exists()
    convert(3)
    before = sorted(out.rglob("*"))
    with pytest.raises(WorkerTimeout):
        convert(3, 5, 7)
    assert sorted(out.rglob("*")) == before
    assert agrees(Bundle(out), path, step(2))


@pytest.mark.parametrize("how", [{}, {"grouped": True, "total": TOTAL, "present": TOTAL}], ids=["optimum", "genai"])
def test_an_empty_cache(runtime: Runtime, tmp_path: Path, how: dict[str, Any]) -> None:
    """The first call has no cache yet: as a bundle of its own, and as a bucket beside others."""
    path = write(tmp_path / "m.onnx", **how)
    first = onnx_bridge.convert(path, tmp_path / "first", target="ref", dims={PAST: 0, NEW: 3})
    assert first.proof.level is Proof.RUN
    assert not [note for note in first.manifest.notes if "ONNX Runtime" in note]
    given = step(0, 3)
    assert compare(first(given), Reference(path).run(given)).passed
    before = () if how else (PAST,)
    bundle = onnx_bridge.convert(
        path, tmp_path / "out", buckets={PAST: [0, 4]}, pad_before=before, target="ref", dim_default=1
    )
    assert all(agrees(bundle, path, step(past)) for past in (0, 1, 4))
    assert bundle.manifest.programs[0].dims == {PAST: 0}
