"""Dropout in inference mode, and the forms of com.microsoft."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from passes.legalize.nn.dropout import remove_dropout, remove_fused_dropout
from tests.passes.device import Device
from tests.passes.legalize.one_node import Case, case, declare, legalized, normal, skipped


class TestDropout:
    @pytest.mark.parametrize("opset", [12, 13, 22])
    def test_inference(self, opset: int, device: Device) -> None:
        found = legalized(remove_dropout, case("Dropout", [normal(3, 4)], opset=opset, outputs=2), device=device)
        assert set(found) == {"Identity"}
        inputs = [normal(3, 4), np.array(0.5, np.float32), np.array(False)]
        legalized(remove_dropout, case("Dropout", inputs, opset=opset, constants=[1, 2], outputs=2))
        legalized(remove_dropout, case("Dropout", inputs, opset=opset, constants=[2]))

    @pytest.mark.parametrize("opset", [7, 10])
    def test_old_masks(self, opset: int, device: Device) -> None:
        source = case("Dropout", [normal(3, 4)], {"ratio": 0.5}, opset=opset, outputs=2)
        legalized(remove_dropout, declare(source, source.expected()), device=device)

    def test_training_without_a_loss(self) -> None:
        inputs = [normal(3, 4), np.array(0, np.float32), np.array(True)]
        legalized(remove_dropout, case("Dropout", inputs, opset=13, constants=[1, 2], outputs=2))

    def test_skips(self) -> None:
        x, ratio, training = normal(3), np.array(0.5, np.float32), np.array(True)
        random = "the node is in training mode, which is random"
        assert skipped(remove_dropout, case("Dropout", [x, ratio, training], constants=[1, 2])) == [random]
        assert skipped(remove_dropout, case("Dropout", [x, None, training], constants=[2])) == [random]
        reason = "{} is not constant: freeze it with --freeze {}=VALUE"
        assert skipped(remove_dropout, case("Dropout", [x, ratio, training])) == [reason.format("training_mode", "x2")]
        source = case("Dropout", [x, ratio, training], constants=[2])
        assert skipped(remove_dropout, source) == [reason.format("ratio", "x1")]


class TestFusedDropout:
    """com.microsoft's, which ONNX Runtime has for GPUs alone."""

    X, BIAS, RESIDUAL = normal(3, 4), normal(4), normal(3, 4, seed=1)

    def fused(self, operator: str, *inputs: Any, outputs: int = 1, constants: Any = ()) -> Case:
        return case(operator, inputs, domain="com.microsoft", opset=17, outputs=outputs, constants=constants)

    def test_a_bias_and_a_residual(self, device: Device) -> None:
        expected = [self.X + self.BIAS + self.RESIDUAL, np.ones((3, 4), bool)]
        source = declare(self.fused("BiasDropout", self.X, self.BIAS, self.RESIDUAL, outputs=2), expected)
        assert legalized(remove_fused_dropout, source, expected, device=device) == ["Add", "Add", "Identity"]

    def test_without_a_residual(self) -> None:
        ratio, training = np.array(0.5, np.float32), np.array(False)
        source = self.fused("BitmaskBiasDropout", self.X, self.BIAS, None, ratio, training, constants=[3, 4])
        legalized(remove_fused_dropout, declare(source, [self.X + self.BIAS]), [self.X + self.BIAS])

    def test_identity(self) -> None:
        source = declare(self.fused("BitmaskDropout", self.X), [self.X])
        assert legalized(remove_fused_dropout, source, [self.X]) == ["Identity"]

    def test_skips(self) -> None:
        ratio, training = np.array(0.5, np.float32), np.array(True)
        random = "the node is or may be in training mode, which is random"
        source = self.fused("BiasDropout", self.X, self.BIAS, None, ratio, training, constants=[3, 4])
        assert skipped(remove_fused_dropout, source) == [random]
        source = self.fused("BitmaskDropout", self.X, ratio, training)
        assert skipped(remove_fused_dropout, source) == [random]
        (reason,) = skipped(remove_fused_dropout, self.fused("BitmaskDropout", self.X, outputs=2))
        assert reason == "the padding bits of the bit mask are not specified"
