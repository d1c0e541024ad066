"""Train a small detector with its quantizers, and print what each way to quantize costs it.

An image has one bright box in noise. For each cell of a grid the detector says whether the box has its centre there,
and the box itself; a box is found if what the best cell says overlaps with it by half (IoU).
"""

import torch

import onnx_bridge

SIZE, CELL, BATCH = 32, 4, 64
GRID = SIZE // CELL


def scenes(count):
    """Return images [N, 1, 32, 32], and their boxes [N, 4]: centre and size, from 0 to 1."""
    sizes = torch.rand(count, 2) * 0.4 + 0.2
    boxes = torch.cat([torch.rand(count, 2) * (1 - sizes) + sizes / 2, sizes], 1)
    places = (torch.arange(SIZE) + 0.5) / SIZE
    across, down = ((places - boxes[:, i, None]).abs() < boxes[:, i + 2, None] / 2 for i in (0, 1))
    images = (across[:, None] & down[:, :, None]) * (torch.rand(count, 1, 1) * 0.5 + 0.5)
    return (images + 0.2 * torch.rand(count, SIZE, SIZE))[:, None], boxes


def separable(channels, outputs, stride=1):
    """Return a depthwise convolution and a pointwise one, whose weights quantize badly together."""
    return [
        torch.nn.Conv2d(channels, channels, 3, padding=1, stride=stride, groups=channels), torch.nn.ReLU(),
        torch.nn.Conv2d(channels, outputs, 1), torch.nn.ReLU(),
    ]  # fmt: skip


class Detector(torch.nn.Module):
    """A trunk of separable convolutions with two heads, each with a scale of its own: scores are large, boxes small."""

    def __init__(self):
        super().__init__()
        self.trunk = torch.nn.Sequential(
            torch.nn.Conv2d(1, 12, 3, padding=1, stride=2), torch.nn.ReLU(),
            *separable(12, 24, 2), *separable(24, 24), *separable(24, 24), *separable(24, 24),
        )  # fmt: skip
        self.scores, self.boxes = torch.nn.Conv2d(24, 1, 1), torch.nn.Conv2d(24, 4, 1)

    def forward(self, image):
        """Return the scores [N, 1, 8, 8] of cells, and their boxes [N, 4, 8, 8], relative to the cells' centres."""
        features = self.trunk(image)
        return self.scores(features), self.boxes(features)


CELLS = torch.arange(GRID * GRID)
CENTRES = torch.stack([CELLS % GRID + 0.5, CELLS // GRID + 0.5, 0 * CELLS, 0 * CELLS], 1) / GRID


def loss(scores, maps, boxes):
    """Return what training makes small: the wrong cells, and how far the boxes of the right ones are off."""
    cell = (boxes[:, :2] * GRID).long() @ torch.tensor([1, GRID])
    said = maps.flatten(2)[torch.arange(len(maps)), :, cell] + CENTRES[cell]
    return torch.nn.functional.cross_entropy(scores.flatten(1), cell) + 10 * (said - boxes).abs().mean()


def train(module, images, boxes, epochs, rate):
    """Train in place, at a rate that goes down to 0; quantized modules are called like the network."""
    optimizer = torch.optim.Adam(module.train().parameters(), lr=rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
    for _ in range(epochs):
        for places in torch.randperm(len(images)).split(BATCH):
            optimizer.zero_grad()
            loss(*module(images[places]), boxes[places]).backward()
            optimizer.step()
        schedule.step()
    module.eval()


def share_found(scores, maps, boxes):
    """Return the share of boxes that are found in the scores and boxes of cells."""
    cell = scores.flatten(1).argmax(1)
    said = maps.flatten(2)[torch.arange(len(maps)), :, cell] + CENTRES[cell]
    low, high = (
        pick(said[:, :2] + side * said[:, 2:] / 2, boxes[:, :2] + side * boxes[:, 2:] / 2)
        for pick, side in ((torch.maximum, -1), (torch.minimum, 1))
    )
    common = (high - low).clamp(min=0).prod(1)
    union = said[:, 2:].prod(1) + boxes[:, 2:].prod(1) - common
    return float((common > union / 2).float().mean())


def main():
    """Print the table."""
    torch.manual_seed(0)
    torch.set_num_threads(1)  # small layers are slower on more
    images, boxes = scenes(2048)
    held_images, held_boxes = scenes(512)
    net = Detector()
    train(net, images, boxes, epochs=10, rate=5e-3)

    def tune(module):
        train(module, images, boxes, epochs=4, rate=3e-3)

    def validate(module):
        with torch.no_grad():
            outputs = [module(batch) for batch in held_images.split(BATCH)]
        return share_found(*map(torch.cat, zip(*outputs, strict=True)), held_boxes)

    calibration = [{"image": batch.numpy()} for batch in images[:512].split(BATCH)]
    rows = {}
    for scheme, observer in (("int8", "lsq"), ("int8-pow2", "tqt")):
        quantized = onnx_bridge.quantize(
            net, f"{scheme}.onnx", args=images[:BATCH], scheme=scheme, calibration=calibration,
            train=tune, observer=observer, validate=validate,
        )  # fmt: skip
        kernels = onnx_bridge.forecast(f"{scheme}.onnx").kernels()
        share = kernels.get("int8", 0) / sum(kernels.values())
        rows["float"] = quantized.accuracy["float"], 0.0
        rows[f"PTQ {scheme}"] = quantized.accuracy["PTQ"], share
        rows[f"QAT {scheme}, {observer}"] = quantized.accuracy["QAT"], share
    for name, (accuracy, share) in rows.items():
        print(f"{name:20} {accuracy:7.1%} of held-out boxes, {share:5.0%} of the products in int8")
    assert rows["QAT int8-pow2, tqt"][0] >= rows["float"][0] - 0.02


if __name__ == "__main__":
    main()
