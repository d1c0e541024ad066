"""Generated samples of the sizes of a bucket, with its values of the inputs that select one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from onnx_bridge.samples import inputs as samplers
from onnx_bridge.samples.inputs import Sample, TensorSpec


def bucket_samples(
    specs: Sequence[TensorSpec], dims: Mapping[str, int], *, seed: int = 0, samples: int = 1
) -> list[Sample]:
    """Samples for some sizes.

    Args:
        specs: of the inputs; their dimensions are those of buckets.
        dims: sizes by dimension, and values by selecting input.
        seed: as for `onnx_bridge.samples.inputs.generate`, which raises the same.
        samples: how many.
    """
    symbols = {dim for spec in specs for dim in spec.shape or ()}
    selecting = {spec.name for spec in specs if spec.dtype == bool} & dims.keys() - symbols
    sizes = {name: size for name, size in dims.items() if name not in selecting}
    found = samplers.generate(specs, seed=seed, samples=samples, dims=sizes)
    return [{**each, **{name: np.full_like(each[name], dims[name]) for name in selecting}} for each in found]
