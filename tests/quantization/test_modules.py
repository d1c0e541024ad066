"""PyTorch modules, quantized by Quark."""

from __future__ import annotations

import copy
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
import torch
from torch import nn

import onnx_bridge
from onnx_bridge.core.errors import InputError
from onnx_bridge.core.values import Array
from onnx_bridge.quantization import quark
from onnx_bridge.quantization.torch import quark_modes
from onnx_bridge.reference.reference import Reference
from onnx_bridge.requests.quantization import Learnt, Mode
from onnx_bridge.requests.schemes import SCHEMES, Method


class Net(nn.Module):
    """Normalized convolutions, one of them without a bias, a shortcut, and linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.normal = nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.second = nn.Conv2d(8, 8, 3, padding=1)
        self.third, self.last = nn.Linear(32, 32), nn.Linear(32, 6)

    def forward(self, image: torch.Tensor) -> dict[str, torch.Tensor]:
        x = torch.relu(self.normal(self.first(image)))
        x = nn.functional.max_pool2d(torch.relu(x + self.second(x)), 4).flatten(1)
        return {"logits": self.last(torch.relu(self.third(x)))}


@pytest.fixture(scope="module")
def net() -> Net:
    torch.manual_seed(0)
    return Net().eval()


@pytest.fixture(scope="module")
def data() -> list[dict[str, Array]]:
    random = np.random.default_rng(0)
    return [{"image": random.standard_normal((4, 3, 8, 8)).astype(np.float32)} for _ in range(4)]


IMAGE = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(1))
FX = [name for name, each in SCHEMES.items() if "fx" not in each.refusals]
LEAST = {"int8-pow2": 24, "fp8": 18, "mxfp4": 8, "int4-weights": 15}


def operators(model: ir.Model) -> Counter[str]:
    return Counter(node.op_type for node in model.graph)


def scales_of(node: ir.Node) -> Array:
    scale = node.inputs[1]
    assert scale is not None
    assert scale.const_value is not None
    return scale.const_value.numpy().reshape(-1)


def weights(model: ir.Model) -> list[ir.DataType]:
    """The stored dtypes of the weights of convolutions and matrix products."""
    found = []
    for node in model.graph:
        if node.op_type in ("Conv", "Gemm", "MatMul"):
            value = node.inputs[1]
            assert value is not None
            while (maker := value.producer()) is not None:
                value = maker.inputs[0]
                assert value is not None
            assert value.dtype is not None
            found.append(value.dtype)
    return found


@pytest.mark.parametrize(("mode", "scheme"), [*(("fx", each) for each in FX), *(("eager", each) for each in SCHEMES)])
def test_every_scheme_exports_and_stays_near_float(
    net: Net, data: list[dict[str, Array]], mode: str, scheme: str
) -> None:
    made = onnx_bridge.quantize(net, args=IMAGE, scheme=scheme, mode=mode, calibration=data)  # type: ignore[arg-type]
    (output,) = made.deviations
    assert output.name == "logits"
    assert output.sqnr_db is not None
    assert output.sqnr_db > LEAST.get(scheme, 28)
    assert [str(each.name) for each in made.model.graph.inputs] == ["image"]
    stored = set(weights(made.model))
    if SCHEMES[scheme].calibrated:
        assert stored == {ir.DataType.FLOAT8E4M3FN if scheme == "fp8" else ir.DataType.INT8}
    elif scheme == "int4-weights":
        assert stored == {ir.DataType.FLOAT, ir.DataType.INT4}  # convolutions stay in float
    else:
        assert stored == {ir.DataType.FLOAT}
        assert any("weights are stored as float" in note for note in made.notes)
    assert made.module is not None
    with torch.no_grad():
        in_torch = made.module(IMAGE)["logits"].numpy()
    on_ort = Reference(made.model).run({"image": IMAGE.numpy()})["logits"]
    assert isinstance(on_ort, np.ndarray)
    assert np.abs(on_ort - in_torch).max() <= 0.03 * output.largest  # a rounding tie may fall otherwise
    names = {str(node.name) for node in made.model.graph}
    assert names
    seen = {str(value.name) for value in made.model.graph.inputs} | set(made.model.graph.initializers)
    for node in made.model.graph:  # in order
        assert all(value is None or value.name in seen for value in node.inputs)
        seen |= {str(value.name) for value in node.outputs}


@pytest.mark.parametrize("mode", ["fx", "eager"])
def test_layers_stay_in_float(net: Net, data: list[dict[str, Array]], mode: Mode) -> None:
    options: dict[str, Any] = {"mode": mode, "calibration": data}
    whole = onnx_bridge.quantize(net, args=IMAGE, **options)
    assert whole.kernels == {"int8": 4}
    ends = onnx_bridge.quantize(net, args=IMAGE, float_ends=True, **options)
    assert ends.excluded == ("first", "last")
    assert ends.kernels == {"float": 2, "int8": 2}
    quantized = operators(ends.model)["QuantizeLinear"]
    assert quantized < operators(whole.model)["QuantizeLinear"]  # nor are the input and the output quantized
    middle = onnx_bridge.quantize(net, args=IMAGE, exclude=["second"], **options)
    assert middle.kernels == {"float": 1, "int8": 3}


def test_biases_in_eight_bits(net: Net, data: list[dict[str, Array]]) -> None:
    made = onnx_bridge.quantize(net, args=IMAGE, calibration=data, bias=True)
    products = [node for node in made.model.graph if node.op_type in ("Conv", "Gemm")]
    biases = [value for node in products for value in node.inputs[2:]]
    assert len(biases) == 4  # the normalization is folded into the first layer
    for bias in biases:
        producer = None if bias is None else bias.producer()
        assert producer is not None
        assert producer.op_type == "DequantizeLinear"
    assert (made.deviations[0].sqnr_db or 0) > 25


def test_unsupported_options_of_the_modes_are_errors(net: Net) -> None:
    with pytest.raises(InputError, match="graph mode cannot do it: it quantizes only to integers .Quark.* can"):
        onnx_bridge.quantize(net, args=IMAGE, scheme="fp8", mode="fx")
    with pytest.raises(InputError, match="no convolution or matrix product of this name"):
        onnx_bridge.quantize(net, args=IMAGE, exclude=["normal"])
    with pytest.raises(InputError, match="biases are quantized to 8 bits"):
        onnx_bridge.quantize(net, args=IMAGE, scheme="bf16", bias=True)
    with pytest.raises(InputError, match="eager mode leaves all biases in float"):
        onnx_bridge.quantize(net, args=IMAGE, mode="eager", bias=True)
    with pytest.raises(InputError, match="graph mode supports no open dimensions"):
        onnx_bridge.quantize(net, args=IMAGE, dynamic={"image": {0: "batch"}}, mode="fx")
    with pytest.raises(InputError, match="mode: the value cannot be 'graph'"):
        onnx_bridge.quantize(net, args=IMAGE, mode="graph")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="no layer 'lost' .did you mean last"):
        onnx_bridge.quantize(net, args=IMAGE, mode="eager", exclude=["lost"])
    with pytest.raises(InputError, match="not a torch.nn.Module"):
        onnx_bridge.quantize(len, args=IMAGE)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"the shape is \[2, 3, 8, 8\]"):
        onnx_bridge.quantize(net, args=IMAGE, calibration=[{"image": IMAGE[:2].numpy()}])
    narrow = nn.Linear(30, 4)
    with pytest.raises(InputError, match="no Linear whose inputs are a multiple of 32"):
        onnx_bridge.quantize(narrow, args=torch.randn(2, 30), mode="eager", scheme="int4-weights")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_weights_in_four_bits_of_any_float(dtype: torch.dtype) -> None:
    layers = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 32)).to(dtype)
    made = onnx_bridge.quantize(layers, args=torch.ones(2, 64, dtype=dtype), scheme="int4-weights")
    assert set(weights(made.model)) == {ir.DataType.INT4}


@pytest.mark.parametrize("opset", [20, 21, 23])
def test_weights_in_four_bits_at_the_opset_that_is_asked_for(opset: int) -> None:
    layers = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 32))
    made = onnx_bridge.quantize(layers, args=torch.ones(2, 64), scheme="int4-weights")
    model = onnx_bridge.export(made.module, torch.ones(2, 64), opset=opset).model
    assert model.opset_imports[""] == opset
    assert set(weights(model)) == {ir.DataType.INT4 if opset > 20 else ir.DataType.FLOAT}


def test_layers_stay_in_float_and_sizes_open(net: Net, data: list[dict[str, Array]], tmp_path: Path) -> None:
    made = onnx_bridge.quantize(
        net,
        args=IMAGE,
        mode="eager",
        calibration=[*data, {"image": data[0]["image"][:3]}],
        exclude=["last"],
        dynamic={"image": {0: "batch"}},
        out=tmp_path / "net.onnx",
    )
    assert made.path == tmp_path / "net.onnx"
    assert Counter(weights(made.model)) == {ir.DataType.INT8: 3, ir.DataType.FLOAT: 1}
    found = Reference(tmp_path / "net.onnx").run({"image": IMAGE[:1].numpy()})["logits"]
    assert isinstance(found, np.ndarray)
    assert found.shape == (1, 6)


@pytest.mark.parametrize(
    ("mode", "scheme", "method"),
    [("fx", "int8", "mse"), ("eager", "uint8", "mse"), ("eager", "int16", "percentile"), ("fx", "int8-pow2", "minmax")],
)
def test_methods_that_find_ranges(
    net: Net, data: list[dict[str, Array]], mode: Mode, scheme: str, method: Method
) -> None:
    made = onnx_bridge.quantize(net, args=IMAGE, mode=mode, scheme=scheme, calibration=data, calibrate=method)
    default = onnx_bridge.quantize(net, args=IMAGE, mode=mode, scheme=scheme, calibration=data)
    assert made.method == method != default.method
    assert made.deviations[0].max_abs != default.deviations[0].max_abs
    assert (made.deviations[0].sqnr_db or 0) > 15


def test_methods_that_the_modes_do_not_have(net: Net, data: list[dict[str, Array]]) -> None:
    wrong: list[tuple[str, Method]] = [("uint8", "percentile"), ("int8", "entropy"), ("int16", "mse")]
    for scheme, method in wrong:
        with pytest.raises(InputError, match=f"no {method} for {scheme}"):
            onnx_bridge.quantize(net, args=IMAGE, mode="eager", scheme=scheme, calibration=data, calibrate=method)


@pytest.mark.parametrize(
    ("mode", "scheme", "observer"),
    [("fx", "int8", None), ("eager", "int8", None), ("eager", "int8-pow2", "tqt"), ("fx", "int8", "lsq")],
)
def test_training_with_quantizers(
    net: Net, data: list[dict[str, Array]], mode: str, scheme: str, observer: str | None
) -> None:
    before = copy.deepcopy(net.state_dict())
    target = torch.ones(4, 6)
    losses: list[float] = []

    def train(module: nn.Module) -> None:
        module.train()
        optimizer = torch.optim.SGD(module.parameters(), lr=0.02)
        for _ in range(6):
            optimizer.zero_grad()
            loss = (module(IMAGE)["logits"] - target).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())

    def far(module: nn.Module) -> float:
        with torch.no_grad():
            return float((module(IMAGE)["logits"] - target).square().mean())

    options = {"mode": mode, "calibration": data, "scheme": scheme}
    learning = {"train": train, "validate": far, "observer": observer}
    made = onnx_bridge.quantize(net, args=IMAGE, **learning, **options)  # type: ignore[arg-type]
    untrained = onnx_bridge.quantize(net, args=IMAGE, **options)  # type: ignore[arg-type]
    assert losses[-1] < losses[0]
    assert "trained" in made.quantizer
    assert set(weights(made.model)) == {ir.DataType.INT8}

    def distance(model: ir.Model) -> float:
        logits = Reference(model).run({"image": IMAGE.numpy()})["logits"]
        assert isinstance(logits, np.ndarray)
        return float(np.square(logits - 1).mean())

    assert distance(made.model) < distance(untrained.model)  # what was trained is in the graph
    assert list(made.accuracy) == ["float", "PTQ", "QAT"]
    assert made.accuracy["float"] == far(net)
    assert made.accuracy["PTQ"] == pytest.approx(distance(untrained.model), rel=0.02)  # a tie may fall otherwise
    assert made.accuracy["QAT"] == pytest.approx(distance(made.model), rel=0.02)
    learnt = [scale for node in made.model.graph if node.op_type == "QuantizeLinear" for scale in scales_of(node)]
    assert all(np.log2(scale).is_integer() for scale in learnt) == (observer == "tqt")
    assert all(torch.equal(before[name], each) for name, each in net.state_dict().items())  # and not in the module


@pytest.mark.parametrize(("scheme", "observer"), [("int8-pow2", "tqt"), ("int8", "lsq")])
def test_scales_are_learnt_and_not_measured(
    net: Net, data: list[dict[str, Array]], scheme: str, observer: Learnt, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured: list[bool] = []
    quantizers = quark.load("quark.torch.quantization.tensor_quantize")

    def train(module: nn.Module) -> None:
        monkeypatch.setattr(
            quantizers.StaticScaledFakeQuantize, "calculate_qparams", lambda self, x: measured.append(True)
        )
        module.train()
        module(IMAGE)["logits"].mean().backward()

    onnx_bridge.quantize(net, args=IMAGE, scheme=scheme, calibration=data, train=train, observer=observer)
    assert not measured


@pytest.mark.parametrize("scale", [2.0**-7, 2.0**-4, 2.0**-1])
def test_thresholds_have_the_gradients_of_quark(scale: float) -> None:
    quantizer = SimpleNamespace(scale=torch.tensor(scale), quant_min=-128, quant_max=127, ch_axis=None, round_method=8)
    thresholds = quark_modes._LEARNERS["tqt"](quantizer)
    x = (4 * torch.randn(1000, generator=torch.Generator().manual_seed(0))).requires_grad_()
    incoming = torch.sin(torch.arange(1000.0))
    rounded = thresholds.rounded(quantizer, x)
    rounded.backward(incoming)
    other = x.detach().clone().requires_grad_()
    logarithm = (thresholds.learnable.detach() + 7).requires_grad_()
    tqt_quantize = quark.load("quark.torch.kernel").tqt_quantize
    theirs = tqt_quantize(other, logarithm, torch.tensor(0), torch.tensor([128.0]), quantizer.round_method)
    theirs.backward(incoming)
    assert torch.equal(rounded, theirs)
    assert torch.equal(x.grad, other.grad)
    torch.testing.assert_close(thresholds.learnable.grad, logarithm.grad)


def test_learnt_scales_suit_the_scheme(net: Net) -> None:
    for options, word in (
        ({"observer": "lsq", "scheme": "int8-pow2", "train": print}, "any numbers"),
        ({"observer": "tqt", "train": print}, "powers of two"),
        ({"observer": "tqt", "scheme": "int8-pow2", "per_channel": True, "train": print}, "each tensor"),
        ({"observer": "lsq"}, "without"),
        ({"observer": "lsq", "train": print, "with_": "ort"}, "does not have it"),
    ):
        with pytest.raises(InputError, match=word):
            onnx_bridge.quantize(net, args=IMAGE, **options)  # type: ignore[arg-type]


class Rewritten(nn.Module):
    """What Quark's graph mode rewrites for NPUs, or reads arguments of that are not there; an output of each."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.rows = nn.Conv2d(3, 4, 3, padding=1), nn.Linear(144, 2)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = self.layer(x)
        return (
            torch.sigmoid(y),
            nn.functional.silu(y),
            nn.functional.leaky_relu(y, 0.5),
            nn.functional.avg_pool2d(y, 2),
            nn.functional.avg_pool2d(y, 3, 2, 1, ceil_mode=True, count_include_pad=False),
            nn.functional.adaptive_avg_pool2d(y, 1),
            self.rows(y.mean(1).flatten(1)),
            y.clamp(0, 0.3),
            y.clamp(min=0),
            torch.cat(torch.split(y, 1)[::-1]),
            (2 * y + 1) / 3,
            y * torch.tensor([1.0, 2.0, 3.0, 4.0])[:, None, None],
        )


@pytest.mark.parametrize("scheme", ["int8", "int8-pow2"])
def test_graph_mode_computes_what_the_module_does(scheme: Any) -> None:
    torch.manual_seed(0)
    module, x = Rewritten().eval(), torch.rand(4, 3, 12, 12)

    def train(quantized: nn.Module) -> None:
        sum(each.sum() for each in quantized(x)).backward()

    made = onnx_bridge.quantize(module, args=x, scheme=scheme, observer=None, train=train)
    found = operators(made.model)
    assert found["Sigmoid"] and found["LeakyRelu"] and not found["HardSigmoid"]
    assert any("calibrated on the arguments alone (4 samples in 1 batch)" in note for note in made.notes)
    assert len(made.deviations) == 12
    assert min(each.sqnr_db for each in made.deviations) > 25
    # what calibration did not see is bounded, too
    results = [*Reference(made.model).run({"x": (20 * x).numpy()}).values()]
    assert np.asarray(results[7]).max() == pytest.approx(0.3, abs=0.02)


@pytest.mark.parametrize("mode", ["fx", "eager"])
@pytest.mark.filterwarnings("ignore:.*weight_norm.*deprecated")
def test_layers_with_computed_weights_and_padding_by_name(mode: Mode) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(
        nn.utils.parametrizations.weight_norm(nn.Conv2d(3, 4, 3, padding="same")),
        nn.utils.weight_norm(nn.Conv2d(4, 4, 3, padding="valid")),
        nn.utils.parametrizations.spectral_norm(nn.Conv2d(4, 4, 3)),
        nn.utils.spectral_norm(nn.Conv2d(4, 4, 3)),
    ).eval()
    x = torch.randn(2, 3, 10, 10)
    before, names = module(x), list(module.state_dict())
    made = onnx_bridge.quantize(module, args=x, mode=mode)
    assert made.kernels == {"int8": 4}
    assert min(each.sqnr_db for each in made.deviations) > 25
    assert torch.equal(module(x), before)
    assert list(module.state_dict()) == names


def test_padding_that_quarks_layers_do_not_have() -> None:
    module, x = nn.Sequential(nn.Conv2d(3, 4, 4, padding="same"), nn.Conv2d(4, 4, 3)), torch.randn(2, 3, 8, 8)
    with pytest.raises(InputError, match="layer 0: .*same"):
        onnx_bridge.quantize(module, args=x, mode="eager")
    assert onnx_bridge.quantize(module, args=x, mode="eager", exclude=["0"]).kernels == {"int8": 1, "float": 1}
    assert onnx_bridge.quantize(module, args=x).kernels == {"int8": 1, "float": 1}


@pytest.mark.parametrize("mode", ["fx", "eager"])
def test_a_wrong_export_is_refused(mode: Mode) -> None:
    """torch.onnx's exporter drops the divisor of an average."""

    class Pooled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Conv2d(3, 4, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return nn.functional.avg_pool2d(self.layer(x), 2, divisor_override=3)

    with pytest.raises(InputError, match="export"):
        onnx_bridge.quantize(Pooled(), args=torch.randn(2, 3, 8, 8), mode=mode)


@pytest.mark.parametrize("mode", ["fx", "eager"])
def test_a_weight_of_two_layers(mode: Mode) -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.head = nn.Embedding(16, 8), nn.Linear(8, 16, bias=False)
            self.head.weight = self.table.weight

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            return self.head(self.table(tokens))

    module = Tied()
    made = onnx_bridge.quantize(module, args=torch.arange(16)[None], mode=mode)
    assert made.kernels == {"int8": 1}
    assert made.deviations[0].sqnr_db > 25
    assert module.head.weight is module.table.weight


def test_a_module_that_does_not_take_its_arguments() -> None:
    with pytest.raises(InputError, match="Linear: PyTorch cannot run it"):
        onnx_bridge.quantize(nn.Linear(3, 4), args=torch.ones(2, 5))


def test_what_graph_mode_cannot_do_is_done_on_the_export(net: Net) -> None:
    """It quantizes integers, has no open dimensions, and is exported by TorchScript alone."""

    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 8)

        def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            shifted = mask + 1
            return self.layer(x) * shifted

    arguments = (torch.randn(2, 8), torch.ones(2, 8, dtype=torch.int64))
    with pytest.raises(InputError, match="tensors_1, an operand of .*integers.*use mode='eager'"):
        onnx_bridge.quantize(Masked(), args=arguments, mode="fx")
    with pytest.raises(InputError, match="tensors_1, an operand of .*integers.*use mode='eager'"):
        onnx_bridge.quantize(Masked(), args=arguments, train=lambda _: None)
    assert onnx_bridge.quantize(Masked(), args=arguments, mode="eager").deviations
    made = onnx_bridge.quantize(Masked(), args=arguments)
    assert "ONNX export" in made.notes[0]
    assert made.kernels == {"int8": 1}
    made = onnx_bridge.quantize(net, args=IMAGE, dynamic={"image": {0: "batch"}})
    assert "ONNX export" in made.notes[0]
    assert str(made.model.graph.inputs[0].shape).startswith("[batch,")
    made = onnx_bridge.quantize(nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(4)), args=IMAGE)
    assert "ONNX export" in made.notes[0]
    assert made.kernels == {"int8": 1}


def test_options_that_do_not_apply(net: Net, tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    onnx_bridge.export(net, IMAGE, out=path)
    with pytest.raises(InputError, match="train: the option is only for PyTorch modules"):
        onnx_bridge.quantize(path, train=lambda _: None)
    with pytest.raises(InputError, match="mode: ONNX Runtime's quantizer does not have it"):
        onnx_bridge.quantize(net, args=IMAGE, with_="ort", mode="fx")


def test_ort_quantizes_the_export(net: Net, data: list[dict[str, Array]]) -> None:
    made = onnx_bridge.quantize(net, args=IMAGE, with_="ort", calibration=data)
    assert made.quantizer.startswith("ONNX Runtime")
    assert set(weights(made.model)) == {ir.DataType.INT8}
