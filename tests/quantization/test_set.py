"""A part of the quantized set: each kind of quantizer, on a small network if one will do, and each kind of network.

The suite ``quantized`` runs all.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fixtures.suites import kept_results
from fixtures.suites.quantized import run
from fixtures.suites.quantized.judge import Outcome, distance, judge
from fixtures.suites.quantized.sources import MODULES, NETWORKS, Source
from onnx_bridge.migraphx.runtime import Runtime

CASES = [
    ("mobile", "qdq-uint8-int8-channel"),
    ("residual", "qdq-int16-int8"),
    ("normalized", "qdq-int8-int4"),
    ("residual", "qdq-float8"),
    ("residual", "qoperator-int8-int8"),
    ("dense", "dynamic-uint8"),
    ("dense", "nbits-4-asymmetric-qdq"),
    ("bert", "nbits-4-gather"),
    ("dense", "nbits-4-hqq"),
    ("dense", "bnb-nf4"),
    ("bert", "quark-xint8"),
    ("mobile", "quark-a8w8"),
    ("mobile", "quark-u8s8-aaws"),
    ("dense", "quark-fp16"),
    ("residual", "quark-bf16"),
    ("dense", "quark-bfp16"),
    ("dense", "quark-mx6"),
    ("residual", "quark-mxfp4e2m1"),
    ("llama", "quark-matmul-nbits"),
    ("convolutional", "fx-pow2"),
    ("vit", "eager-int8"),
    ("perceptron", "eager-frozen"),
    ("perceptron", "eager-fp8"),
    ("convolutional", "pt2e-x86"),
    ("perceptron", "torchao-int8"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("quantized")


@pytest.mark.parametrize(("network", "scheme"), CASES, ids=[" ".join(case) for case in CASES])
def test_a_part(network: str, scheme: str, folder: Path, runtime: Runtime) -> None:
    target = folder / f"{network}-{scheme}.onnx"
    run.make(network, scheme, target)
    found = judge(target, Source(network, folder))
    assert found.verdict == "right", found
    assert found.agrees, found


def test_there_are_enough() -> None:
    cases = {(network, name) for name, (_, networks) in run.schemes().items() for network in networks}
    assert len(cases) > 400
    assert set(CASES) <= cases
    assert {network for network, _ in CASES} == {*NETWORKS, *MODULES}


def test_operators_that_a_quantizer_leaves_in_float(tmp_path: Path) -> None:
    with pytest.raises(run.Refused, match="leaves it in float"):
        run.make("residual", "nbits-4-hqq", tmp_path / "m.onnx")
    assert not (tmp_path / "m.onnx").exists()


def test_the_last_line() -> None:
    right, refused = Outcome("right", agrees=True), Outcome("refused", "no")
    rows = [
        run.Row("a", "s", "", right, 1.0),
        run.Row("b", "s", "", refused, 1.0),
        run.Row("c", "s", "the quantizer fails", None, 1.0),
    ]
    assert run.SUITE.counts(rows) == "quantized: right 1, wrong 0, refused 1, forecast agrees 1, of 2"
    assert "the quantizer fails" in run.SUITE.line(rows[2])


def test_only_correct_outcomes_are_cached(runtime: Runtime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others may be accidental, and are computed again."""
    right = Outcome("right", "", 1e-7, False, 0.01, 0.02, 0.03, {"int8": 2}, {"int8": 2}, True)
    found = [
        run.Row("a", "s", "the quantizer fails", None, 1.0),
        run.Row("a", "s", "", Outcome("refused", "MIGraphX did not end in time"), 1.0),
        run.Row("a", "s", "", Outcome("right", agrees=False), 1.0),
        run.Row("a", "s", "", right, 1.0),
    ]
    told = iter(found)
    folder = tmp_path / "quantized" / run._key()
    folder.mkdir(parents=True)
    monkeypatch.setattr(run, "BUILD", tmp_path)
    monkeypatch.setattr(run, "run", lambda *_: next(told))
    assert [run._kept("a", "s") for _ in range(6)] == [*found, found[-1], found[-1]]
    monkeypatch.setattr(kept_results, "_code", lambda: "other")
    with pytest.raises(StopIteration):
        run._kept("a", "s")


def test_distance_is_relative_to_the_largest_value() -> None:
    truth = [{"y": np.array([1.0, -4.0])}]
    assert distance([{"y": np.array([1.0, -3.0])}], truth) == 0.25
    assert distance([{"y": np.array([np.nan, 0.0])}], truth) == np.inf
