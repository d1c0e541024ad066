"""`lower`: a module that is called like the original, and travels like any other module."""

from __future__ import annotations

import copy
import io
import pickle
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import onnx_ir as ir
import pytest
import torch
from torch import nn
from torch.testing import assert_close

from onnx_bridge.core.errors import InputError, ParityError
from onnx_bridge.migraphx.runtime import Runtime
from onnx_bridge.torch.lowering.lower import lower
from onnx_bridge.torch.lowering.lowered import Lowered
from passes.rewriting.base import Proof


@dataclass
class Scores:
    logits: torch.Tensor
    parts: tuple[torch.Tensor, dict[str, torch.Tensor]]
    name: str = "scores"
    missing: torch.Tensor | None = None


class Scorer(nn.Module):
    """Takes and returns nested values, and constants."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 3)

    def forward(
        self, x: torch.Tensor, pair: dict[str, torch.Tensor], scale: float = 2.0, *, mask: torch.Tensor | None = None
    ) -> Scores:
        y = self.inner(x) * scale + pair["bias"]
        if mask is not None:
            y = y * mask
        return Scores(y, (y.relu(), {"sum": y.sum(-1)}))


Make = Callable[..., Lowered]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("lowered")


@pytest.fixture(scope="module")
def make(runtime: Runtime, cache: Path) -> Make:
    def made(module: nn.Module, sample: Any, **options: Any) -> Lowered:
        return lower(module, sample, target="ref", **{"runtime": str(runtime.path), "cache": cache, **options})

    return made


@pytest.fixture(scope="module")
def scorer() -> Scorer:
    torch.manual_seed(0)
    return Scorer().eval()


@pytest.fixture(scope="module")
def sample() -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    return torch.randn(2, 4), {"bias": torch.randn(3)}


@pytest.fixture(scope="module")
def lowered(make: Make, scorer: Scorer, sample: tuple[Any, ...]) -> Lowered:
    return make(scorer, sample)


def check(found: Scores, expected: Scores) -> None:
    assert isinstance(found, Scores)
    assert_close(found.logits, expected.logits)
    assert_close(found.parts[0], expected.parts[0])
    assert_close(found.parts[1]["sum"], expected.parts[1]["sum"])
    assert (found.name, found.missing) == ("scores", None)


def test_signature_and_results_are_those_of_the_module(lowered: Lowered, scorer: Scorer) -> None:
    x, bias = torch.randn(2, 4), {"bias": torch.randn(3)}
    with torch.no_grad():
        check(lowered(x, bias), scorer(x, bias))
        check(lowered(x, pair=bias, scale=2.0), scorer(x, bias))
        check(lowered(x=x, pair=bias, mask=None), scorer(x, bias))
    assert list(lowered.parameters()) == []
    assert "Scorer" in repr(lowered)
    assert "target='ref'" in repr(lowered)


def test_a_mapping_is_arguments_by_name(make: Make, scorer: Scorer, sample: tuple[Any, ...]) -> None:
    x, bias = sample
    mask = torch.tensor([1.0, 0.0, 1.0])
    lowered = make(scorer, {"x": x, "pair": bias, "mask": mask})
    with torch.no_grad():
        check(lowered(x=x, pair=bias, mask=mask), scorer(x, bias, mask=mask))


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda module, x, bias: module(x), "Scorer.forward: .* missing a required argument: 'pair'"),
        (
            lambda module, x, bias: module(x, bias, 3.0),
            "'scale': the value is 3.0, but the programs have it fixed as 2.0",
        ),
        (lambda module, x, bias: module(x, bias, mask=bias["bias"]), "'mask': the argument is given, but was not"),
        (lambda module, x, bias: module(x, None), "'pair': the argument is missing, but was"),
        (lambda module, x, bias: module(x, (bias["bias"],)), "'pair': the argument is nested differently"),
        (lambda module, x, bias: module(x.double(), bias), "'x': the dtype is torch.float64, but it was lowered for"),
        (lambda module, x, bias: module(x[:1], bias), r"'x': the shape is \[1, 4\] .the model takes float32\[2, 4\]"),
        (lambda module, x, bias: module(x[0], bias), r"'x': the shape is \[4\]"),
        (lambda module, x, bias: module(x.to("meta"), bias), "'x': the tensor is on the device meta"),
    ],
)
def test_a_call_that_does_not_fit_names_the_argument(
    lowered: Lowered, sample: tuple[Any, ...], call: Callable[..., Any], said: str
) -> None:
    with pytest.raises(InputError, match=said):
        call(lowered, *sample)


def test_training_mode_is_an_error(make: Make, lowered: Lowered, sample: tuple[Any, ...]) -> None:
    with pytest.raises(InputError, match="training mode"):
        copy.deepcopy(lowered).train()(*sample)
    half = nn.Sequential(nn.Linear(4, 4), nn.Dropout()).eval()
    half[1].train()
    with pytest.raises(InputError, match=r"module '1': the module is in training mode.*eval\(\)"):
        make(half, torch.randn(1, 4))


class Remembering(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(2, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.total += x
        return self.total * 1.0


class Measured(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, float]:
        return x + 1, (x * torch.arange(4.0)).sum().item()


def test_results_that_change_between_calls_are_errors(make: Make) -> None:
    module = Remembering().eval()
    with pytest.raises(InputError, match="Remembering: the module writes to its buffer 'total', which a later call"):
        make(module, torch.ones(2, 4))
    assert not module.total.any()
    with pytest.raises(InputError, match="Measured: returned values that are not tensors differ"):
        make(Measured().eval(), torch.randn(2, 4))


def test_wrong_modules_and_options_are_errors(make: Make, scorer: Scorer, sample: tuple[Any, ...]) -> None:
    with pytest.raises(InputError, match="not a torch.nn.Module"):
        make(torch.relu, torch.randn(2))  # type: ignore[arg-type]
    with pytest.raises(InputError, match="cannot be 'fp12'"):
        make(scorer, sample, precision="fp12")
    with pytest.raises(InputError, match="'batch': the dimension is open, and MIGraphX needs its sizes"):
        make(scorer, sample, dynamic={"x": {0: "batch"}})
    with pytest.raises(InputError, match="'seq': the dimension has buckets, but no input has it"):
        make(scorer, sample, buckets={"seq": [4]})
    with pytest.raises(InputError, match=r"'batch': the sizes are \[0\]"):
        make(scorer, sample, dynamic={"x": {0: "batch"}}, buckets={"batch": [0]})
    with pytest.raises(InputError, match="'batch': the sizes are 4 .give a list"):
        make(scorer, sample, dynamic={"x": {0: "batch"}}, buckets={"batch": 4})
    with pytest.raises(InputError, match="the module is in TorchScript"):
        make(torch.jit.trace(nn.ReLU().eval(), torch.randn(2)), torch.randn(2))
    with pytest.raises(InputError, match="pad_before: .*has no effect without"):
        make(scorer, sample, pad_before=["seq"])


def test_a_trace_or_transformation_through_it_is_an_error(make: Make) -> None:
    lowered, x = make(nn.ReLU().eval(), torch.randn(2)), torch.randn(2)
    for what in (lambda: torch.jit.trace(lowered, x), lambda: torch.vmap(lowered)(x[None])):
        with pytest.raises(InputError, match="ReLU: the programs cannot be traced"):
            what()
    with pytest.raises(InputError, match="the programs cannot be traced"):
        make(nn.Sequential(lowered, nn.ReLU()).eval(), x)


def test_gradients_are_an_error_and_not_zero(lowered: Lowered, sample: tuple[Any, ...]) -> None:
    x, bias = sample
    assert not lowered(x, bias).logits.requires_grad
    wanting = x.clone().requires_grad_()
    with torch.no_grad():
        assert not lowered(wanting, bias).logits.requires_grad
    output = lowered(wanting, bias).logits
    assert output.requires_grad
    with pytest.raises(InputError, match="MIGraphX computes no gradients"):
        output.sum().backward()


def test_torch_save_of_the_module(lowered: Lowered, scorer: Scorer, sample: tuple[Any, ...]) -> None:
    file = io.BytesIO()
    torch.save(lowered, file)
    loaded = torch.load(io.BytesIO(file.getvalue()), weights_only=False)
    assert loaded.programs.folder.path != lowered.programs.folder.path
    with torch.no_grad():
        check(loaded(*sample), scorer(*sample))


def test_state_dict_holds_the_programs(make: Make, lowered: Lowered, sample: tuple[Any, ...]) -> None:
    other = Scorer().eval()  # other weights
    target = make(other, sample)
    file = io.BytesIO()
    torch.save(lowered.state_dict(), file)
    target.load_state_dict(torch.load(io.BytesIO(file.getvalue()), weights_only=True))
    with torch.no_grad():
        check(target(*sample), lowered(*sample))


def test_a_state_with_other_inputs_is_an_error(make: Make, lowered: Lowered) -> None:
    other = make(nn.ReLU().eval(), torch.randn(2, 4))
    with pytest.raises(InputError, match="have other inputs or outputs"):
        other.load_state_dict(lowered.state_dict())
    state = other.state_dict()
    state["_extra_state"] = state["_extra_state"][:-40].clone()
    with pytest.raises(InputError, match="damaged"):
        other.load_state_dict(state)


def test_a_copy_computes_the_same_and_has_its_own_mode(
    lowered: Lowered, scorer: Scorer, sample: tuple[Any, ...]
) -> None:
    copied = copy.deepcopy(nn.Sequential(lowered))[0]
    assert copied is not lowered
    copied.train()
    assert not lowered.training
    with torch.no_grad():
        check(copied.eval()(*sample), scorer(*sample))


def test_it_can_be_part_of_a_compiled_module(make: Make) -> None:
    torch.manual_seed(0)
    module = nn.Linear(4, 4).eval()
    x = torch.randn(2, 4)
    larger = nn.Sequential(nn.ReLU(), make(module, x), nn.ReLU())
    with torch.no_grad():
        expected = module(x.relu()).relu()
        assert_close(larger(x), expected)
        assert_close(torch.compile(larger, backend="eager")(x), expected)


@pytest.mark.parametrize(("precision", "dtype"), [("fp16", torch.float16), ("bf16", torch.bfloat16)])
def test_precision_changes_the_computation_but_not_inputs_and_outputs(
    make: Make, scorer: Scorer, sample: tuple[Any, ...], precision: str, dtype: torch.dtype
) -> None:
    lowered = make(scorer, sample, precision=precision)
    narrow = copy.deepcopy(scorer).to(dtype)
    with torch.no_grad():
        found, expected = lowered(*sample), narrow(sample[0].to(dtype), {"bias": sample[1]["bias"].to(dtype)})
    assert found.logits.dtype == torch.float32
    assert_close(found.logits, expected.logits.float(), rtol=2 * torch.finfo(dtype).eps, atol=torch.finfo(dtype).eps)
    with pytest.raises(InputError, match="torch.float16, but it was lowered for torch.float32"):
        lowered(sample[0].half(), sample[1])


class Averages(nn.Module):
    """The mean of the elements selected by a mask; without it, of all, which padding changes."""

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        if mask is None:
            return x.mean(1)
        return (x * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)


_OPEN = {"x": {0: "batch", 1: "seq"}, "mask": {0: "batch", 1: "seq"}}


def test_buckets_pad_inputs_and_cut_outputs(make: Make) -> None:
    module = Averages().eval()
    sample = {"x": torch.randn(2, 3, 4), "mask": torch.ones(2, 3)}
    lowered = make(module, sample, dynamic=_OPEN, buckets={"batch": [2], "seq": [4, 6]})
    assert [len(each.inputs) for each in lowered.programs.bundle.programs] == [2, 2]
    for batch, seq in ((2, 4), (1, 3), (2, 5), (2, 6), (1, 1)):
        x, mask = torch.randn(batch, seq, 4), torch.ones(batch, seq)
        # a row of padding alone is 0 / 0, and cut off
        assert_close(lowered(x, mask), module(x, mask))
    with pytest.raises(InputError, match="no bucket holds batch=2,seq=7.*there are batch=2,seq=4; batch=2,seq=6"):
        lowered(torch.randn(2, 7, 4), torch.ones(2, 7))
    with pytest.raises(InputError, match="'mask'.*seq"):
        lowered(torch.randn(2, 5, 4), torch.ones(2, 4))


def test_a_module_that_padding_changes_is_refused(make: Make) -> None:
    with pytest.raises(InputError, match=r"something else when it is padded \(seq from 3 to 8\): output"):
        make(Averages().eval(), torch.randn(2, 3, 4), dynamic={"x": {1: "seq"}}, buckets={"seq": [8]})


def test_importing_the_project_does_not_import_pytorch() -> None:
    script = "import sys, onnx_bridge; onnx_bridge.lower; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def test_without_pytorch_the_error_says_how_to_get_it() -> None:
    script = """
import sys, onnx_bridge
sys.modules["torch"] = None
try:
    onnx_bridge.lower(None, None)
except onnx_bridge.core.errors.InputError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    assert "onnx-bridge[torch]" in done.stdout


def test_this_process_needs_amds_own_module(
    make: Make, lowered: Lowered, sample: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    said = "in_process: the option needs AMD's own Python module, but the runtime is .*private.*worker process"
    with pytest.raises(InputError, match=said):
        make(nn.ReLU().eval(), torch.randn(3, 4), in_process=True)
    copied = pickle.loads(pickle.dumps(lowered))
    here = replace(copied.programs.request, in_process=True)  # as pickled on a machine with a GPU
    monkeypatch.setattr(copied.programs, "request", here)
    with pytest.raises(InputError, match=said):
        copied(*sample)


class TestProofs:
    def test_programs_are_compared_on_the_sample_before_they_are_used(self, make: Make) -> None:
        lowered = make(nn.Sequential(nn.Linear(4, 3), nn.ReLU()).eval(), torch.randn(2, 4))
        assert lowered.proof.level is Proof.RUN
        assert (lowered.proof.samples, lowered.proof.unproven) == (1, "")

    def test_cached_programs_are_proven_if_that_is_asked_for(self, runtime: Runtime, tmp_path: Path) -> None:
        module, sample = nn.Linear(5, 3).eval(), torch.randn(2, 5)
        levels = [
            lower(module, sample, target="ref", cache=tmp_path, prove=prove).proof.level
            for prove in ("never", "auto", "never")
        ]
        assert levels == [Proof.NONE, Proof.RUN, Proof.RUN]

    def test_buckets_are_proven_each(self, runtime: Runtime, tmp_path: Path) -> None:
        lowered = lower(
            nn.Linear(4, 3).eval(),
            torch.randn(2, 4),
            target="ref",
            cache=tmp_path,
            dynamic={"input": {0: "n"}},
            buckets={"n": [2, 4]},
        )
        assert lowered.proof.level is Proof.RUN
        assert lowered.proof.samples == 2

    def test_a_difference_is_an_error(self, runtime: Runtime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A pass of the default pipeline with a defect: it claims to change nothing, and doubles a constant."""
        from passes.cleanup.remove_dead import RemoveDead
        from passes.rewriting.base import Result, Rewrite

        def doubles(self: Any, model: ir.Model, context: Any) -> Result:
            for value in model.graph.initializers.values():
                if value.const_value is not None and value.dtype == ir.DataType.FLOAT and value.shape is not None:
                    value.const_value = ir.tensor(value.const_value.numpy() * 2, name=value.name)
            return Result(model, [Rewrite((), note="doubled")])

        monkeypatch.setattr(RemoveDead, "run", doubles)
        with pytest.raises(ParityError):
            lower(nn.Linear(4, 3).eval(), torch.randn(2, 4), target="ref", cache=False)
        lowered = lower(nn.Linear(4, 3).eval(), torch.randn(2, 4), target="ref", cache=False, prove="never")
        assert lowered.proof.level is Proof.NONE
