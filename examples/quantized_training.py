"""Train a small classifier of digits with its quantizers, and print what each way to quantize costs it.

Scales are any numbers (int8) or powers of two (int8-pow2). They are measured after training (PTQ), or trained together
with the weights (QAT): by LSQ if they are any numbers, by TQT if they are powers of two.
"""

import numpy as np
import torch
from sklearn.datasets import load_digits

import onnx_bridge

torch.manual_seed(0)
torch.set_num_threads(1)  # small layers are slower on more
digits = load_digits()
order = np.random.default_rng(0).permutation(len(digits.images))
images = torch.from_numpy(digits.images[order].astype(np.float32) / 16)[:, None]
labels = torch.from_numpy(digits.target[order])
BATCH, SEEN = 120, 1440  # the graph of a module is that of one batch size


def separable(channels, outputs):
    """Return a depthwise convolution and a pointwise one, whose weights quantize badly together."""
    return [
        torch.nn.Conv2d(channels, channels, 3, padding=1, groups=channels), torch.nn.ReLU(),
        torch.nn.Conv2d(channels, outputs, 1), torch.nn.ReLU(),
    ]  # fmt: skip


net = torch.nn.Sequential(
    torch.nn.Conv2d(1, 6, 3, padding=1), torch.nn.ReLU(), *separable(6, 12), torch.nn.MaxPool2d(2),
    *separable(12, 12), torch.nn.Flatten(), torch.nn.Linear(192, 10),
)  # fmt: skip


def train(module, epochs=1, rate=1e-3):
    """Train in place; quantized modules are called like the network."""
    optimizer = torch.optim.Adam(module.train().parameters(), lr=rate)
    for _ in range(epochs):
        for places in torch.randperm(SEEN).split(BATCH):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(module(images[places]), labels[places]).backward()
            optimizer.step()


def validate(module):
    """Return the share of held-out digits that a module recognizes."""
    held = slice(SEEN, SEEN + 2 * BATCH)
    with torch.no_grad():
        found = torch.cat([module(batch).argmax(1) for batch in images[held].split(BATCH)])
    return float((found == labels[held]).float().mean())


train(net, epochs=12, rate=8e-3)
net.eval()
calibration = [{"input": batch.numpy()} for batch in images[:SEEN].split(BATCH)]
rows = {}
for scheme, observer in (("int8", "lsq"), ("int8-pow2", "tqt")):
    quantized = onnx_bridge.quantize(
        net, f"{scheme}.onnx", args=images[:BATCH], scheme=scheme, calibration=calibration,
        train=train, observer=observer, validate=validate,
    )  # fmt: skip
    kernels = onnx_bridge.forecast(f"{scheme}.onnx").kernels()
    share = kernels.get("int8", 0) / sum(kernels.values())
    rows["float"] = quantized.accuracy["float"], 0.0
    rows[f"PTQ {scheme}"] = quantized.accuracy["PTQ"], share
    rows[f"QAT {scheme}, {observer}"] = quantized.accuracy["QAT"], share
for name, (accuracy, share) in rows.items():
    print(f"{name:20} {accuracy:7.1%} of held-out digits, {share:5.0%} of the products in int8")
assert rows["QAT int8-pow2, tqt"][0] >= rows["float"][0] - 0.02
