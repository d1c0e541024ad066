"""A MIGraphX program in a worker process, as the caller sees it."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from onnx_bridge.migraphx.process.protocol import TensorMessage
from onnx_bridge.migraphx.program import Shape, Tensor


class RemoteProgram:
    """A program in a worker process; implements `program.Program`.

    It is lost when the process ends: every use after that raises `ProgramLost`. ``coverage`` counts what was emulated
    in the last run, of a program for a GPU.

    Args:
        request: `Worker.request`, for the process that has the program.
        forget: lets that process free the program, by its number.
        description: the process's answer to the request that made the program.
    """

    def __init__(
        self,
        request: Callable[..., TensorMessage],
        forget: Callable[[int], None],
        description: Mapping[str, Any],
    ) -> None:
        self._send = request
        self._number = int(description["program"])
        self._describe(description)
        self.coverage: Counter[str] = Counter()
        weakref.finalize(self, forget, self._number)

    def get_parameter_shapes(self) -> dict[str, Shape]:
        return dict(self._parameters)

    def get_output_shapes(self) -> list[Shape]:
        return list(self._outputs)

    def compile(self, target: str, **options: bool) -> None:
        self._describe(self._request("compile", target=target, options=options)[0])

    def run_gpu_passes(self, library: Path, count: int, *, fast_math: bool = True) -> list[dict[str, Any]]:
        """Run the first groups of passes of the gpu target (`onnx_bridge.migraphx.rehearsal`), before compiling.

        Returns:
            The operators that quantization is about, as `rehearsal.operators.Operator` reads them.
        """
        answer, _ = self._request("gpu_passes", library=str(library), count=count, fast_math=fast_math)
        self._describe(answer)
        operators: list[dict[str, Any]] = answer["operators"]
        return operators

    def run(self, parameters: Mapping[str, Tensor], *, copy: bool = True) -> list[Tensor]:
        """Run the program; outputs are dense and stay valid in any case."""
        answer, outputs = self._request("run", parameters)
        self.coverage = Counter(answer["coverage"])
        return [outputs[str(index)] for index in range(len(outputs))]

    def trace(self, parameters: Mapping[str, Tensor], wanted: Sequence[tuple[str, int]]) -> TensorMessage:
        """Run an emulated program, and return what kernels write (`onnx_bridge.migraphx.gpu.kernels`)."""
        return self._request("trace", parameters, wanted=wanted)

    def save(self, path: Path) -> None:
        self._request("save", path=str(path.absolute()))

    def quantize(self, precision: str, target: str = "ref", calibration: Sequence[Mapping[str, Tensor]] = ()) -> None:
        arguments = {"precision": precision, "target": target}
        tensors = {
            f"{index}:{name}": tensor for index, sample in enumerate(calibration) for name, tensor in sample.items()
        }
        self._describe(self._request("quantize", tensors, samples=len(calibration), arguments=arguments)[0])

    def _request(self, do: str, tensors: Mapping[str, Tensor] | None = None, **message: Any) -> TensorMessage:
        return self._send(do, {"do": do, "program": self._number, **message}, tensors)

    def _describe(self, description: Mapping[str, Any]) -> None:
        self._parameters = msgspec.convert(description["parameters"], dict[str, Shape])
        self._outputs = msgspec.convert(description["outputs"], list[Shape])
