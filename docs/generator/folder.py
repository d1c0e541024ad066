"""The files that the documentation's commands use: ``python -m docs.generator.folder FOLDER`` writes them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx

from docs.generator.blocks import PAGES, ROOT, files
from fixtures.models import encoder_decoder, grouped_query
from fixtures.suites.ties.models import planted
from onnx_bridge.model import io as models

_DETECTOR = ROOT / "fixtures/models/detector.onnxtxt"


def prepare(folder: Path, export: Callable[[str, Path], object]) -> None:
    """Write the models, inputs and scripts into a folder; ``export(name, path)`` writes a network."""
    for name in ("bert", "resnet"):
        export(name, folder / f"{name}.onnx")
    (folder / "llama").mkdir(exist_ok=True)
    grouped_query.build(folder / "llama" / "model.onnx")
    encoder_decoder.write(folder / "translator", merged=True)
    rng = np.random.default_rng(0)
    onnx.save(detector(rng), folder / "detector.onnx")
    queries = next(planted())
    models.save(queries.model, folder / "queries.onnx")
    np.savez(folder / "queries.npz", **queries.sample)
    for page in PAGES:
        for name, text in files(page.read_text(encoding="utf-8")).items():
            (folder / name).write_text(text, encoding="utf-8")
    tokens = rng.integers(0, 1000, (2, 16))
    images = rng.standard_normal((8, 1, 3, 32, 32)).astype(np.float32)
    np.savez(folder / "images.npz", pixel_values=images)
    np.savez(folder / "tokens.npz", input_ids=tokens, attention_mask=np.ones_like(tokens))


def detector(rng: np.random.Generator) -> onnx.ModelProto:
    """A small detector with operators that MIGraphX does not support."""
    model = onnx.parser.parse_model(_DETECTOR.read_text())
    corners = rng.uniform(0, 12, (1, 16, 2))
    weights = {
        "weight": rng.standard_normal((8, 3, 3, 3)) / 4,
        "bias": rng.standard_normal(8),
        "head": rng.standard_normal((8, 32)),
        "anchors": np.concatenate([corners, corners + 4], axis=-1),
    }
    model.graph.initializer.extend(
        onnx.numpy_helper.from_array(array.astype(np.float32), name) for name, array in weights.items()
    )
    return model


def export(name: str, path: Path) -> None:
    """Export a network of `fixtures.models.networks` with a symbolic batch."""
    from fixtures.models.networks import export

    export(name, path, dynamic_batch=True)


def main() -> None:
    """Write them."""
    if len(sys.argv) != 2:
        sys.exit("usage: python -m docs.generator.folder FOLDER")
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    try:
        prepare(folder, export)
    except ModuleNotFoundError as error:
        what = f"{error.name} is missing, which makes the models: `make setup` installs it into .venv"
        sys.exit(f"{what}; then run .venv/bin/python -m docs.generator.folder {folder}")


if __name__ == "__main__":
    main()
