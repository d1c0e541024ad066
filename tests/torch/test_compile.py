"""The backend of `torch.compile`: what a graph may be, and what becomes of those that cannot be lowered."""

from __future__ import annotations

import gc
import subprocess
import sys
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
import torch
from torch import nn
from torch.testing import assert_close

from onnx_bridge.core.errors import InputError, ParityError
from onnx_bridge.migraphx.runtime import Runtime
from onnx_bridge.requests.lowering import BackendRequest
from onnx_bridge.torch.compile import compile_backend
from onnx_bridge.torch.compile.compile_backend import CompiledGraph, compile_graph
from passes.cleanup.remove_dead import RemoveDead
from passes.rewriting.base import Proof, Result, Rewrite


class Compiler:
    """Compiles with the backend, and records its graphs."""

    def __init__(self, options: dict[str, Any]) -> None:
        self.options = options
        self.graphs: list[CompiledGraph] = []

    def __call__(self, model: Any, **options: Any) -> Callable[..., Any]:
        def backend(graph: torch.fx.GraphModule, inputs: Sequence[Any], **given: Any) -> Callable[..., Any]:
            made = compile_graph(graph, inputs, **given)
            assert isinstance(made, CompiledGraph)
            self.graphs.append(made)
            return made

        dynamic = options.pop("dynamic", None)
        compiled: Callable[..., Any] = torch.compile(
            model, backend=backend, dynamic=dynamic, options={**self.options, **options}
        )
        return compiled

    @property
    def counts(self) -> list[int]:
        """The number of programs of each graph."""
        return [len(graph.programs) for graph in self.graphs]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("compiled")


@pytest.fixture
def compiler(runtime: Runtime, cache: Path) -> Iterator[Compiler]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    with torch.no_grad():
        yield Compiler({"target": "ref", "runtime": str(runtime.path), "cache": cache, "strict": True})
    torch._dynamo.reset()


class Plans:
    """A graph of a weight, an input and a number, whose programs are the numbers that they were made of."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def obtain(module: Any, *_: Any) -> SimpleNamespace:
            return SimpleNamespace(programs=(float(module.owned_0[0]), *module._constants.values()))

        monkeypatch.setattr(compile_backend, "obtain_programs", obtain)
        graph = torch.fx.symbolic_trace(lambda weight, x, number: weight * x * number)
        values = (nn.Parameter(torch.ones(256)), torch.ones(256), 1.0)
        for node, value in zip(graph.graph.find_nodes(op="placeholder"), values, strict=True):
            node.meta["example_value"] = value
        self._graph = CompiledGraph(graph, BackendRequest.of({"programs": 20}))

    def program(self, weight: torch.Tensor, number: Any = 1.0) -> Any:
        return self._graph._plan([weight, torch.ones(256), number]).programs


def test_weights_in_the_place_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """A module that is made where another was freed, or given other memory, does not get the other's program."""
    plans = Plans(monkeypatch)
    assert [plans.program(nn.Parameter(torch.full((256,), float(n))))[0] for n in range(16)] == list(range(16))
    weight = nn.Parameter(torch.zeros(256))
    for number in range(16):
        weight.data = torch.full((256,), float(number))
        assert plans.program(weight)[0] == number
        with torch.no_grad():
            weight.mul_(2.0)
        assert plans.program(weight)[0] == 2 * number


def test_weights_are_held_no_longer_than_their_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    plans = Plans(monkeypatch)
    freed: list[int] = []
    for number in range(3):
        array = np.zeros(256, np.float32)
        weakref.finalize(array, freed.append, number)
        plans.program(nn.Parameter(torch.from_numpy(array)))
        del array
    gc.collect()
    assert freed == [0, 1]


def test_numbers_that_are_equal_and_not_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    plans, weight = Plans(monkeypatch), nn.Parameter(torch.ones(256))
    signs = [np.signbit(plans.program(weight, zero)[1]) for zero in (0.0, -0.0, np.float32(0.0), np.float32(-0.0))]
    assert signs == [False, True, False, True]
    assert [type(plans.program(weight, one)[1]) for one in (1, True, 1.0, np.float32(1))] == [
        int,
        bool,
        float,
        np.float32,
    ]
    assert plans.program(weight, float("nan")) is plans.program(weight, float("nan"))


class Branching(nn.Module):
    """Two graphs with a branch in Python between them."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.register_buffer("offset", torch.ones(4))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, None, int, dict[str, torch.Tensor]]:
        y = self.inner(x) + self.offset
        y = y * 2 if y.sum() > 0 else y - 1
        return y, None, x.shape[0], {"z": y.relu(), "again": y}


def test_a_branch_on_data_makes_several_programs(compiler: Compiler) -> None:
    model = Branching().eval()
    compiled = compiler(model)
    for x in (torch.full((2, 4), 3.0), torch.full((2, 4), -3.0), torch.randn(2, 4)):
        found, expected = compiled(x), model(x)
        assert_close(found, expected)
        assert found[3]["again"] is found[0]
    assert len(compiler.graphs) > 1
    assert set(compiler.counts) == {1}


def test_open_sizes_are_padded_to_powers_of_two(compiler: Compiler) -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU()).eval()
    compiled = compiler(model, dynamic=True)
    for size in (5, 8, 7, 6, 3, 4):
        x = torch.randn(size, 4)
        found = compiled(x)
        assert_close(found, model(x))
        assert found.shape == (size, 3)
    assert compiler.counts == [2]


def test_own_buckets_and_a_size_beyond_them(compiler: Compiler) -> None:
    model = nn.Linear(4, 3).eval()
    compiled = compiler(model, dynamic=True, buckets=[6])
    for size in (2, 6, 5, 9):
        assert_close(compiled(x := torch.randn(size, 4)), model(x))
    assert compiler.counts == [2]


class Summing(nn.Module):
    """Values depend on sizes, which padding changes."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, int]:
        return x.softmax(0) * x.shape[0] + x.mean(0), x.shape[0] * 2


def test_dimensions_whose_padding_changes_outputs_are_not_padded(compiler: Compiler) -> None:
    model = Summing().eval()
    compiled = compiler(model, dynamic=True, programs=2)
    for size in (3, 5, 3):
        assert_close(compiled(x := torch.randn(size, 4)), model(x))
    assert compiler.counts == [2]
    with pytest.raises(InputError, match="too many sizes: it has 2 programs"):
        compiled(torch.randn(6, 4))


def test_numbers_and_none_are_fixed_in_programs(compiler: Compiler) -> None:
    def function(x: torch.Tensor, scale: float, other: torch.Tensor | None = None) -> torch.Tensor:
        return x * scale if other is None else x * scale + other

    compiled = compiler(function)
    x = torch.randn(3)
    for scale in (2.0, 0.5):
        assert_close(compiled(x, scale), function(x, scale))
    assert_close(compiled(x, 2.0, x), function(x, 2.0, x))


def test_complex_inputs_and_outputs(compiler: Compiler) -> None:
    def turned(x: torch.Tensor, by: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return (x * by).conj(), (x * by).abs()

    compiled = compiler(turned)
    x, by = torch.randn(3, dtype=torch.complex64), torch.randn(3, dtype=torch.complex64)
    assert_close(compiled(x, by), turned(x, by))
    assert_close(compiled(by.conj(), x), turned(by.conj(), x))
    assert compiler.counts == [1, 1]  # dynamo guards on what is conjugated


def test_new_weights_make_a_new_program(compiler: Compiler) -> None:
    model = nn.Linear(4, 3).eval()
    compiled = compiler(model)
    x = torch.randn(2, 4)
    before = compiled(x)
    model.weight.mul_(2)
    assert_close(compiled(x), model(x))
    assert not torch.equal(compiled(x), before)


def test_gradients_are_an_error_and_not_zero(compiler: Compiler) -> None:
    model = nn.Linear(4, 3).eval()
    compiled = compiler(model)
    with torch.enable_grad():
        output = compiled(torch.randn(2, 4))
        assert output.requires_grad
        with pytest.raises(InputError, match="MIGraphX computes no gradients"):
            output.sum().backward()


def test_inference_mode(compiler: Compiler) -> None:
    model = nn.Linear(4, 3).eval()
    compiled = compiler(model)
    with torch.inference_mode():
        x = torch.randn(2, 4)
        assert_close(compiled(x), model(x))
    assert compiler.counts == [1]


def writes(x: torch.Tensor) -> torch.Tensor:
    x.add_(1)
    return x * 2


def views(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return x.view(-1), x + 1


def drops(x: torch.Tensor) -> torch.Tensor:
    return nn.functional.dropout(x, 0.5, training=True)


REFUSED = [(writes, "writes to its inputs"), (views, "returns a view of an input"), (drops, "differs from PyTorch")]


@pytest.mark.parametrize(("function", "reason"), REFUSED)
def test_graphs_that_cannot_be_lowered_run_in_pytorch_with_one_warning(
    compiler: Compiler, function: Callable[..., Any], reason: str
) -> None:
    compiled = compiler(function, strict=False)
    x = torch.randn(2, 4)
    for turn in range(2):
        mine, theirs = x.clone(), x.clone()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            torch.manual_seed(0)
            found = compiled(mine)
        said = [str(each.message) for each in caught if "onnx_bridge" in str(each.message)]
        assert len(said) == (turn == 0)
        assert all(reason in each and "runs in PyTorch" in each for each in said)
        torch.manual_seed(0)
        assert_close(found, function(theirs))
        assert_close(mine, theirs)
    assert reason in str(compiler.graphs[0].reason)


@pytest.mark.parametrize(("function", "reason"), REFUSED[:2])
def test_strict_raises(compiler: Compiler, function: Callable[..., Any], reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        compiler(function)(torch.randn(2, 4))


def test_a_returned_input_is_the_same_object(compiler: Compiler) -> None:
    compiled = compiler(lambda x: (x, x + 1))
    x = torch.randn(3)
    same, more = compiled(x)
    assert same is x
    assert_close(more, x + 1)


def test_without_migraphx_the_model_runs_in_pytorch(compiler: Compiler, tmp_path: Path) -> None:
    compiled = compiler(torch.sigmoid, strict=False, runtime=str(tmp_path))
    with pytest.warns(UserWarning, match=str(tmp_path)):
        assert_close(compiled(torch.zeros(2)), torch.full((2,), 0.5))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"stric": True}, "option 'stric': the option does not exist .did you mean strict"),
        ({"buckets": []}, "option 'buckets': the sizes are"),
        ({"programs": 0}, "programs"),
    ],
)
def test_wrong_options_are_errors(options: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        BackendRequest.of(options)


_SCRIPT = """
import torch
torch.manual_seed(0)
model = torch.nn.Linear(4, 3).eval()
options = {{"cache": {cache!r}, "runtime": {runtime!r}, "target": "ref", "strict": True}}
compiled = torch.compile(model, backend="onnx_bridge", options=options)
with torch.no_grad():
    torch.testing.assert_close(compiled(torch.ones(2, 4)), model(torch.ones(2, 4)))
"""


def test_it_is_registered_and_programs_outlive_the_process(runtime: Runtime, tmp_path: Path) -> None:
    script = _SCRIPT.format(cache=str(tmp_path), runtime=str(runtime.path))

    def written() -> int:
        (entry,) = (each for each in tmp_path.iterdir() if each.is_dir())
        return (entry / "manifest.json").stat().st_mtime_ns

    torch._dynamo.reset()
    exec(script, {})
    before = written()
    subprocess.run([sys.executable, "-c", script], check=True)
    assert written() == before


class TestProofs:
    def test_programs_are_proven_on_the_tensors_of_the_first_call(self, compiler: Compiler) -> None:
        model = nn.Linear(3, 2).eval()
        compiled = compiler(model, cache=False)
        compiled(x := torch.randn(2, 3))
        proofs = [each.bundle.proof for each in compiler.graphs[0].programs]
        assert [each.level for each in proofs] == [Proof.RUN]
        compiled(x)
        assert [each.bundle.proof for each in compiler.graphs[0].programs] == proofs

    @pytest.mark.parametrize("strict", [True, False])
    def test_a_difference_is_an_error_or_leaves_the_graph_to_pytorch(
        self, compiler: Compiler, monkeypatch: pytest.MonkeyPatch, strict: bool
    ) -> None:
        def doubles(self: Any, model: ir.Model, context: Any) -> Result:
            """A defect of a pass that should change nothing."""
            for value in model.graph.initializers.values():
                if value.const_value is not None and value.dtype == ir.DataType.FLOAT:
                    value.const_value = ir.tensor(value.const_value.numpy() * 2, name=value.name)
            return Result(model, [Rewrite((), note="doubled")])

        monkeypatch.setattr(RemoveDead, "run", doubles)
        model, x = nn.Linear(3, 2).eval(), torch.randn(2, 3)
        compiled = compiler(model, cache=False, strict=strict)
        if strict:
            with pytest.raises(ParityError):
                compiled(x)
        else:
            with pytest.warns(UserWarning):
                assert_close(compiled(x), model(x))
            assert compiler.counts == [0]
