"""A small vision network: from PyTorch to ONNX, to a bundle, and its parity with ONNX Runtime, layer by layer."""

import torch

import onnx_bridge

torch.manual_seed(0)
net = torch.nn.Sequential(
    torch.nn.Conv2d(3, 16, 3, padding=1),
    torch.nn.BatchNorm2d(16),
    torch.nn.Hardswish(),
    torch.nn.MaxPool2d(2),
    torch.nn.Conv2d(16, 32, 3, padding=1, groups=2),
    torch.nn.Mish(),
    torch.nn.AdaptiveAvgPool2d(1),
    torch.nn.Flatten(),
    torch.nn.Linear(32, 10),
).eval()
images = torch.randn(2, 3, 32, 32)

# The export is compared with PyTorch at once; "batch" stays open.
onnx_bridge.export(net, (images,), dynamic={"input": {0: "batch"}}, out="vision.onnx")

# The bundle is compared with ONNX Runtime before it is written.
bundle = onnx_bridge.convert("vision.onnx", "vision", dims={"batch": 2})
print("proven:", bundle.manifest.proof.line)

outputs = bundle({"input": images.numpy()})
assert torch.allclose(torch.tensor(outputs["output"]), net(images), atol=1e-5)

report = onnx_bridge.check(bundle, layers=True)
for layer in report.layers.rows if report.layers else ():
    print(f"{layer.operator:20} {layer.local.max_abs if layer.local else None}")
print("parity holds:", report.passed)
assert report.passed
