"""The keywords of the API's functions. `make keywords` writes this from the requests; do not edit it."""

from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from typing import Literal, Required, TypedDict

from torch import nn

from onnx_bridge.core.tolerance import PartialTolerance, Tolerance
from onnx_bridge.core.values import Array
from onnx_bridge.requests.parity import ExpectedOutputs
from onnx_bridge.requests.request import ModelSource
from onnx_bridge.samples.dataset import DataSource
from onnx_bridge.samples.files import SampleSource

class BatchOptions(TypedDict, total=False):
    timeout: float | None
    memory: float | None
    runtime: str | None
    pipeline: str
    dims: Mapping[str, int]
    shapes: Mapping[str, Sequence[int]]
    freeze: Mapping[str, Array | str]
    dim_default: int | None
    target: str
    application: Literal["onnxruntime"] | None
    host: bool
    cache: bool
    probe_budget: float | None
    precision: str
    calibration: SampleSource | None
    keep_fp32: Sequence[str]
    options: Mapping[str, bool | str]
    rehearse: Literal["gpu"] | None
    prove: Literal["auto", "always", "never"]
    prove_budget: float
    buckets: Mapping[str, Sequence[int] | str]
    pad: Mapping[str, str]
    pad_before: Sequence[str]
    decoder: bool
    max_length: int | None
    prefill: Sequence[int]
    layout: Literal["session", "triton"]
    reuse: bool
    check: bool
    rtol: float | None
    atol: float | None
    jobs: int | None
    resume: bool
    retry: bool
    verify: bool
    dry_run: bool
    passes: Sequence[str | PathLike[str]]

class JobOptions(TypedDict, total=False):
    timeout: float | None
    memory: float | None
    runtime: str | None
    pipeline: str
    dims: Mapping[str, int]
    shapes: Mapping[str, Sequence[int]]
    freeze: Mapping[str, Array | str]
    dim_default: int | None
    target: str
    application: Literal["onnxruntime"] | None
    host: bool
    cache: bool
    probe_budget: float | None
    precision: str
    calibration: SampleSource | None
    keep_fp32: Sequence[str]
    options: Mapping[str, bool | str]
    rehearse: Literal["gpu"] | None
    prove: Literal["auto", "always", "never"]
    prove_budget: float
    buckets: Mapping[str, Sequence[int] | str]
    pad: Mapping[str, str]
    pad_before: Sequence[str]
    decoder: bool
    max_length: int | None
    prefill: Sequence[int]
    layout: Literal["session", "triton"]
    reuse: bool
    check: bool
    rtol: float | None
    atol: float | None

class CleanOptions(TypedDict, total=False):
    timeout: float | None
    memory: float | None
    pipeline: str
    dims: Mapping[str, int]
    shapes: Mapping[str, Sequence[int]]
    freeze: Mapping[str, Array | str]
    dim_default: int | None
    verify: Literal["none", "each"]
    max_rewrites: int | None

class ConvertOptions(TypedDict, total=False):
    timeout: float | None
    memory: float | None
    runtime: str | None
    pipeline: str
    dims: Mapping[str, int]
    shapes: Mapping[str, Sequence[int]]
    freeze: Mapping[str, Array | str]
    dim_default: int | None
    target: str
    application: Literal["onnxruntime"] | None
    host: bool
    cache: bool
    probe_budget: float | None
    precision: str
    calibration: SampleSource | None
    keep_fp32: Sequence[str]
    options: Mapping[str, bool | str]
    rehearse: Literal["gpu"] | None
    prove: Literal["auto", "always", "never"]
    prove_budget: float
    buckets: Mapping[str, Sequence[int] | str]
    pad: Mapping[str, str]
    pad_before: Sequence[str]
    decoder: bool
    max_length: int | None
    prefill: Sequence[int]
    layout: Literal["session", "triton"]
    reuse: bool

class DoctorOptions(TypedDict, total=False):
    timeout: float | None
    memory: float | None
    runtime: str | None
    pipeline: str
    dims: Mapping[str, int]
    shapes: Mapping[str, Sequence[int]]
    freeze: Mapping[str, Array | str]
    dim_default: int | None
    target: str
    application: Literal["onnxruntime"] | None
    host: bool
    cache: bool
    probe_budget: float | None
    compile_time: bool

class LimitsOptions(TypedDict, total=False):
    timeout: float | None
    memory: float | None

class RunOptions(TypedDict, total=False):
    timeout: float | None
    memory: float | None
    runtime: str | None
    dims: Mapping[str, int]
    shapes: Mapping[str, Sequence[int]]
    freeze: Mapping[str, Array | str]
    dim_default: int | None

class RuntimeOptions(TypedDict, total=False):
    timeout: float | None
    memory: float | None
    runtime: str | None

class VerifyOptions(TypedDict, total=False):
    here: bool
    runtime: str | None

class ExportOptions(TypedDict, total=False):
    dynamic: Mapping[str, Mapping[int, str]]
    exporter: Literal["auto", "dynamo", "torchscript"]
    opset: int | None

class BackendOptions(TypedDict, total=False):
    strict: bool
    buckets: Sequence[int] | None
    programs: int
    cache: bool | str | PathLike[str]
    in_process: bool
    timeout: float | None
    memory: float | None
    runtime: str | None
    target: str
    application: Literal["onnxruntime"] | None
    host: bool
    prove: Literal["auto", "always", "never"]
    prove_budget: float
    exporter: Literal["auto", "dynamo", "torchscript"]
    opset: int | None

class LowerOptions(TypedDict, total=False):
    precision: Literal["fp16", "bf16"] | None
    cache: bool | str | PathLike[str]
    in_process: bool
    timeout: float | None
    memory: float | None
    runtime: str | None
    target: str
    application: Literal["onnxruntime"] | None
    host: bool
    prove: Literal["auto", "always", "never"]
    prove_budget: float
    buckets: Mapping[str, Sequence[int] | str]
    pad_before: Sequence[str]
    dynamic: Mapping[str, Mapping[int, str]]
    exporter: Literal["auto", "dynamo", "torchscript"]
    opset: int | None

class BisectOptions(TypedDict, total=False):
    inputs: SampleSource | None
    seed: int
    samples: int | None
    rtol: float | None
    atol: float | None
    timeout: float | None
    memory: float | None
    runtime: str | None
    pipeline: str
    dims: Mapping[str, int]
    shapes: Mapping[str, Sequence[int]]
    freeze: Mapping[str, Array | str]
    dim_default: int | None
    target: str
    application: Literal["onnxruntime"] | None
    host: bool
    cache: bool
    rehearse: Literal["gpu"] | None
    reference: ModelSource | None
    outputs: ExpectedOutputs | None
    precision: Literal["fp16", "bf16", "int8", "fp8"] | None

class CheckOptions(TypedDict, total=False):
    inputs: SampleSource | None
    seed: int
    samples: int | None
    rtol: float | None
    atol: float | None
    tolerance: str | None
    timeout: float | None
    memory: float | None
    runtime: str | None
    pipeline: str
    dims: Mapping[str, int]
    shapes: Mapping[str, Sequence[int]]
    freeze: Mapping[str, Array | str]
    dim_default: int | None
    target: str
    application: Literal["onnxruntime"] | None
    host: bool
    cache: bool
    rehearse: Literal["gpu"] | None
    reference: str | PathLike[str] | None
    tolerances: Mapping[str, Tolerance | PartialTolerance]
    layers: bool
    layers_memory: float
    fresh: bool
    evidence: bool

class ComparisonOptions(TypedDict, total=False):
    inputs: SampleSource | None
    seed: int
    samples: int | None
    rtol: float | None
    atol: float | None
    timeout: float | None
    memory: float | None
    runtime: str | None
    pipeline: str
    dims: Mapping[str, int]
    shapes: Mapping[str, Sequence[int]]
    freeze: Mapping[str, Array | str]
    dim_default: int | None
    target: str
    application: Literal["onnxruntime"] | None
    host: bool
    cache: bool

class DataOptions(TypedDict, total=False):
    inputs: SampleSource | None
    seed: int
    samples: int | None
    rtol: float | None
    atol: float | None
    tolerance: str | None
    timeout: float | None
    memory: float | None
    runtime: str | None
    pipeline: str
    dims: Mapping[str, int]
    shapes: Mapping[str, Sequence[int]]
    freeze: Mapping[str, Array | str]
    dim_default: int | None
    target: str
    application: Literal["onnxruntime"] | None
    host: bool
    cache: bool
    rehearse: Literal["gpu"] | None
    reference: str | PathLike[str] | None
    tolerances: Mapping[str, Tolerance | PartialTolerance]
    layers: bool
    layers_memory: float
    fresh: bool
    evidence: bool
    data: Required[DataSource]
    metrics: Sequence[str]
    least: Mapping[str, float]

class ParityOptions(TypedDict, total=False):
    inputs: SampleSource | None
    seed: int
    samples: int | None
    rtol: float | None
    atol: float | None
    timeout: float | None
    memory: float | None
    runtime: str | None
    pipeline: str
    dims: Mapping[str, int]
    shapes: Mapping[str, Sequence[int]]
    freeze: Mapping[str, Array | str]
    dim_default: int | None
    target: str
    application: Literal["onnxruntime"] | None
    host: bool
    cache: bool
    rehearse: Literal["gpu"] | None

class ReduceOptions(TypedDict, total=False):
    inputs: SampleSource | None
    seed: int
    samples: int | None
    rtol: float | None
    atol: float | None
    timeout: float | None
    memory: float | None
    runtime: str | None
    pipeline: str
    dims: Mapping[str, int]
    shapes: Mapping[str, Sequence[int]]
    freeze: Mapping[str, Array | str]
    dim_default: int | None
    target: str
    application: Literal["onnxruntime"] | None
    cache: bool
    rehearse: Literal["gpu"] | None
    precision: Literal["fp16", "bf16", "int8", "fp8"] | None

class QuantizeOptions(TypedDict, total=False):
    with_: Literal["quark", "ort"]
    scheme: str
    mode: Literal["fx", "eager"] | None
    calibration: SampleSource | None
    calibrate: Literal["minmax", "mse", "percentile", "layer-percentile", "entropy", "distribution"] | None
    algorithm: str
    per_channel: bool
    exclude: Sequence[str]
    float_ends: bool
    bias: bool
    data: DataSource | None
    least: Mapping[str, float]
    runs: int
    train: Callable[[nn.Module], object] | None
    observer: Literal["tqt", "lsq"] | None
    validate: Callable[[nn.Module], float] | None
    timeout: float | None
    memory: float | None

class BenchOptions(TypedDict, total=False):
    batches: Sequence[int]
    precisions: Sequence[str]
    engines: Sequence[str]
    module: str | None
    inputs: SampleSource | None
    iterations: int
    warmup: int
    seconds: float | None
    seed: int
    against: str | PathLike[str] | None
    max_slowdown: float
    per_operator: bool
    timeout: float | None
    memory: float | None
    runtime: str | None
    pipeline: str
    dims: Mapping[str, int]
    dim_default: int | None
    target: str
    calibration: SampleSource | None
    keep_fp32: Sequence[str]
    options: Mapping[str, bool | str]

class MixedPrecisionOptions(TypedDict, total=False):
    inputs: SampleSource | None
    seed: int
    samples: int | None
    rtol: float | None
    atol: float | None
    timeout: float | None
    memory: float | None
    runtime: str | None
    pipeline: str
    dims: Mapping[str, int]
    dim_default: int | None
    target: str
    host: bool
    precision: str
    calibration: SampleSource | None
    tolerances: Mapping[str, Tolerance | PartialTolerance]
    runs: int

class TuneOptions(TypedDict, total=False):
    budget: float
    precisions: Sequence[str]
    options: Sequence[Mapping[str, bool | str]] | None
    pipelines: Sequence[str]
    inputs: SampleSource | None
    iterations: int
    seed: int
    resume: bool
    timeout: float | None
    memory: float | None
    runtime: str | None
    dims: Mapping[str, int]
    dim_default: int | None
    target: str
    host: bool
    calibration: SampleSource | None
    buckets: Mapping[str, Sequence[int] | str]
    pad: Mapping[str, str]
