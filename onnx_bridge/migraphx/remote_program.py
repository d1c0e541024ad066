"""A MIGraphX program in a worker process, as the caller sees it."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from onnx_bridge.migraphx.program import Shape, Tensor
from onnx_bridge.migraphx.protocol import TensorMessage, shape_from_json


class RemoteProgram:
    """A program in a worker process; implements `program.Program`.

    It is lost when the process ends: every use after that raises `ProgramLost`.

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
        weakref.finalize(self, forget, self._number)

    def get_parameter_names(self) -> list[str]:
        """The names of the inputs."""
        return list(self._parameters)

    def get_parameter_shapes(self) -> dict[str, Shape]:
        """The inputs' shapes by name."""
        return dict(self._parameters)

    def get_output_shapes(self) -> list[Shape]:
        """The outputs' shapes in the model's order."""
        return list(self._outputs)

    def compile(
        self, target: str, *, offload_copy: bool = True, fast_math: bool = True, exhaustive_tune: bool = False
    ) -> None:
        """Compile for ``target``."""
        options = {"offload_copy": offload_copy, "fast_math": fast_math, "exhaustive_tune": exhaustive_tune}
        self._describe(self._request("compile", target=target, options=options)[0])

    def run_gpu_passes(self, library: Path, count: int, *, fast_math: bool = True) -> list[dict[str, Any]]:
        """Run the first groups of passes of the gpu target (`onnx_bridge.migraphx.rehearsal`), before compiling.

        Returns:
            The operators that quantization is about, as `rehearsal.gpu_operators.Operator` reads them.
        """
        answer, _ = self._request("gpu_passes", library=str(library), count=count, fast_math=fast_math)
        self._describe(answer)
        operators: list[dict[str, Any]] = answer["operators"]
        return operators

    def run(self, parameters: Mapping[str, Tensor], *, copy: bool = True) -> list[Tensor]:
        """Run the program; outputs are dense and stay valid in any case."""
        _, outputs = self._request("run", parameters)
        return [outputs[str(index)] for index in range(len(outputs))]

    def save(self, path: Path) -> None:
        """Write the program as msgpack."""
        self._request("save", path=str(path.absolute()))

    def quantize_fp16(self, ins_names: Sequence[str] = ("all",)) -> None:
        """Convert the named operators to float16."""
        self._quantize("fp16", ins_names)

    def quantize_bf16(self, ins_names: Sequence[str] = ("all",)) -> None:
        """Convert the named operators to bfloat16."""
        self._quantize("bf16", ins_names)

    def quantize_int8(
        self, target: str, calibration: Sequence[Mapping[str, Tensor]], ins_names: Sequence[str] = ()
    ) -> None:
        """Quantize to int8 with ranges measured on ``calibration``."""
        self._quantize("int8", ins_names, target, calibration)

    def quantize_fp8(self, target: str, calibration: Sequence[Mapping[str, Tensor]]) -> None:
        """Quantize to fp8 with ranges measured on ``calibration``."""
        self._quantize("fp8", None, target, calibration)

    def _quantize(
        self,
        precision: str,
        ins_names: Sequence[str] | None,
        target: str | None = None,
        calibration: Sequence[Mapping[str, Tensor]] = (),
    ) -> None:
        names = None if ins_names is None else list(ins_names)
        message: dict[str, Any] = {"precision": precision, "ins_names": names}
        if target is not None:
            message |= {"target": target, "samples": len(calibration)}
        tensors = {
            f"{index}:{name}": tensor for index, sample in enumerate(calibration) for name, tensor in sample.items()
        }
        self._describe(self._request("quantize", tensors, **message)[0])

    def _request(self, do: str, tensors: Mapping[str, Tensor] | None = None, **message: Any) -> TensorMessage:
        return self._send(do, {"do": do, "program": self._number, **message}, tensors)

    def _describe(self, description: Mapping[str, Any]) -> None:
        self._parameters = {name: shape_from_json(value) for name, value in description["parameters"].items()}
        self._outputs = [shape_from_json(value) for value in description["outputs"]]
