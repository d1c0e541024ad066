"""A module whose ``forward`` runs on MIGraphX."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor

from onnx_bridge.bundle.manifest.proof import BundleProof
from onnx_bridge.core.errors import InputError
from onnx_bridge.model.int8_forecast import Forecast, forecast
from onnx_bridge.torch.lowering.packed_folder import pack, unpack
from onnx_bridge.torch.lowering.programs import Programs
from onnx_bridge.torch.modules.calls import Call
from onnx_bridge.torch.modules.structure import Constant, Structure, rebuild
from onnx_bridge.torch.modules.tensors import require_dtype


@dataclass(frozen=True)
class Interface:
    """The signature of a lowered module.

    Attributes:
        signature: the signature of its ``forward``, without annotations.
        call: the call of the sample, with defaults applied.
        result: how the returned value is built from the outputs.
        dtype: what it computes in; None for its own dtypes.
    """

    name: str
    signature: inspect.Signature
    call: Call
    result: Structure
    dtype: torch.dtype | None
    inputs: Mapping[str, torch.dtype]
    outputs: Mapping[str, torch.dtype]

    def tensors(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        """Return the tensors of a call, by name.

        Raises InputError if the arguments do not fit the signature, or differ from the sample in more than sizes.
        """
        call, tensors = Call.bound(self.name, self.signature, args, kwargs, defaults=True)
        _check_call(call, self.call, list(self.signature.parameters), self.name)
        if self.dtype is None:
            return tensors
        return {name: self._cast(name, tensor) for name, tensor in tensors.items()}

    def returned(self, outputs: Mapping[str, torch.Tensor]) -> Any:
        """Return the value that the module returns."""
        if self.dtype is not None:
            outputs = {name: output.to(self.outputs[name]) for name, output in outputs.items()}
        return rebuild(self.result, outputs)

    def _cast(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        require_dtype(name, tensor, self.inputs[name])
        return tensor.to(self.dtype) if tensor.is_floating_point() else tensor


class Lowered(nn.Module):
    """A lowered module: it has the signature of the original module.

    It has no parameters, and is always in evaluation mode: a call in training mode is an error. ``state_dict`` holds
    its programs as a tensor of bytes, and loads with ``weights_only=True``; a module saved as a whole by
    ``torch.save(module)`` is a pickle, so it needs ``torch.load(…, weights_only=False)``. Neither needs the original
    module's weights.

    Attributes:
        notes: what the user should know, in sentences.
    """

    def __init__(self, programs: Programs, interface: Interface) -> None:
        super().__init__()
        self._programs, self._interface = programs, interface
        self.eval()

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences for the user about the lowering."""
        return tuple(self._programs.bundle.manifest.notes)

    @property
    def proof(self) -> BundleProof:
        """The extent to which the programs' numbers are known: what was compared with the reference, and how."""
        return self._programs.bundle.proof

    @property
    def programs(self) -> Programs:
        return self._programs

    def forecast(self) -> Forecast:
        """Return which of its convolutions and matrix products a GPU runs in 8 bits, and why not the others.

        That of the first program; those of other buckets differ only in sizes.
        """
        path = self._programs.bundle.programs[0].model_path
        assert path is not None  # always kept in these folders
        return forecast(path)

    @torch.compiler.disable  # type: ignore[untyped-decorator]  # called as it is from compiled modules
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return the original module's result.

        Raises:
            InputError: the arguments differ from the sample in more than open sizes, or no bucket is large enough; or
                the module is in training mode, or traced.
            RuntimeFailure: MIGraphX failed.
        """
        if self.training:
            what = "the module is in training mode, and MIGraphX is for inference only"
            raise InputError(what, where=self._interface.name, hint="call eval(), or train the original module")
        tensors = self._interface.tensors(args, kwargs)
        if torch._C._get_tracing_state() is not None or any(map(_is_symbolic, tensors.values())):
            what = "the programs cannot be traced, exported or transformed by torch.func"
            raise InputError(what, where=self._interface.name, hint="do that with the original module")
        return self._interface.returned(self._programs.run(tensors))

    def extra_repr(self) -> str:
        """Return the module's name, its inputs and its target."""
        manifest = self._programs.bundle.manifest
        inputs = ", ".join(f"{info.name}: {info.dtype}{list(info.shape or ())}" for info in manifest.inputs)
        sizes = f", buckets={[program.dims for program in manifest.programs]}" if manifest.dims else ""
        return f"{self._interface.name}, {inputs}, target={manifest.target!r}{sizes}"

    def get_extra_state(self) -> torch.Tensor:
        """Return the programs as uint8[n], for ``state_dict``."""
        return pack(self._programs.folder.path)

    def set_extra_state(self, state: torch.Tensor) -> None:
        """Load programs from a ``state_dict``; raises InputError if they are damaged, or have another signature."""
        other = Programs(unpack(state), self._programs.request)
        bundle = self._programs.bundle
        if (other.bundle.inputs, other.bundle.outputs) != (bundle.inputs, bundle.outputs):
            what = "the programs have other inputs or outputs than this module"
            raise InputError(what, where="the state", hint="lower that module for the same arguments first")
        self._programs = other

    def __deepcopy__(self, memo: dict[int, Any]) -> Lowered:
        copied = self.__new__(type(self))
        memo[id(self)] = copied
        shared = {"_programs", "_interface"}
        copied.__dict__.update({key: attribute for key, attribute in vars(self).items() if key in shared})
        copied.__dict__.update({key: copy.deepcopy(var, memo) for key, var in vars(self).items() if key not in shared})
        return copied

    def __getstate__(self) -> dict[str, Any]:
        state = {**vars(self), "_packed": self.get_extra_state(), "_request": self._programs.request}
        del state["_programs"]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        state = dict(state)
        folder = unpack(state.pop("_packed"))
        programs = Programs(folder, state.pop("_request"))
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._programs = programs


def _is_symbolic(tensor: torch.Tensor) -> bool:
    """Return whether a tensor has no values of its own: it belongs to a tracer, or to torch.func."""
    return isinstance(tensor, FakeTensor) or torch._C._functorch.is_functorch_wrapped_tensor(tensor)


def without_annotations(signature: inspect.Signature) -> inspect.Signature:
    """Return a signature without annotations, which may not be picklable."""
    parameters = [parameter.replace(annotation=inspect.Parameter.empty) for parameter in signature.parameters.values()]
    return inspect.Signature(parameters)


def _check_call(call: Call, sample: Call, parameters: list[str], name: str) -> None:
    """Check that a call of the module ``name`` has the sample's structure and constants; raises InputError if not."""
    # further arguments belong to ``*args``
    places = [*parameters, *range(len(call.positional) + len(sample.positional))]
    given: dict[Any, Structure] = {**dict(zip(places, call.positional, strict=False)), **call.keywords}
    wanted: dict[Any, Structure] = {**dict(zip(places, sample.positional, strict=False)), **sample.keywords}
    nothing = Constant(None)
    for key in dict.fromkeys((*wanted, *given)):
        mine, sampled = given.get(key, nothing), wanted.get(key, nothing)
        if isinstance(mine, Constant) and isinstance(sampled, Constant):
            if _same(mine.value, sampled.value):
                continue
            what = f"the value is {mine.value!r}, but the programs have it fixed as {sampled.value!r}"
        elif mine == sampled and _constants_agree(mine, sampled):
            continue
        elif isinstance(mine, Constant) and mine.value is None:
            what = "the argument is missing, but was given when the module was lowered"
        elif isinstance(sampled, Constant) and sampled.value is None:
            what = "the argument is given, but was not when the module was lowered"
        else:
            what = "the argument is nested differently than when the module was lowered"
        raise InputError(what, where=f"{name}, argument {key!r}", hint="lower it again for such arguments")


def _constants_agree(mine: Structure, sampled: Structure) -> bool:
    """Return whether equal structures have equal constants."""
    if isinstance(mine, Constant) and isinstance(sampled, Constant):
        return _same(mine.value, sampled.value)
    children, others = getattr(mine, "children", ()), getattr(sampled, "children", ())
    return all(_constants_agree(*pair) for pair in zip(children, others, strict=True))


def _same(value: Any, other: Any) -> bool:
    if value is other:
        return True
    if type(value) is not type(other):
        return False
    if "__eq__" not in {name for kind in type(value).__mro__[:-1] for name in vars(kind)}:  # they cannot be compared
        return True
    return bool(value == other)
