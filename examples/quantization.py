"""Quantize a classifier of handwritten digits to int8, and measure what that costs, and what MIGraphX adds to it."""

from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_digits

import onnx_bridge

torch.manual_seed(0)
digits = load_digits()
images = torch.from_numpy(digits.images.astype(np.float32) / 16)[:, None]
labels = torch.from_numpy(digits.target)

net = torch.nn.Sequential(
    torch.nn.Conv2d(1, 8, 3, padding=1), torch.nn.ReLU(), torch.nn.MaxPool2d(2),
    torch.nn.Conv2d(8, 16, 3, padding=1), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(256, 10),
)  # fmt: skip
optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
for _ in range(60):
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(net(images[:1400]), labels[:1400]).backward()
    optimizer.step()

onnx_bridge.export(net.eval(), (images[:1],), out="digits.onnx")
calibration, held_out = Path("calibration.npz"), Path("held_out.npz")
np.savez(calibration, input=images[:64, None].numpy())
np.savez(held_out, input=images[1400:1500, None].numpy(), label=labels[1400:1500].numpy())

quantized = onnx_bridge.quantize("digits.onnx", "int8.onnx", with_="ort", scheme="int8", calibration=calibration)
print(f"{quantized.deviations[0].sqnr_db:.1f} dB between int8 and float")
print("on a GPU:", onnx_bridge.forecast("int8.onnx").summary())

report = onnx_bridge.check(
    "int8.onnx", data=held_out, reference="digits.onnx", metrics=["top1", "cosine"], least={"top1": 0.9}
)
for score in report.scores:
    print(f"{score.side:30} {score.metric:8} {score.shown}")
assert report.passed
