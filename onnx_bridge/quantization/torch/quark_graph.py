"""The graph of a module as Quark's graph mode takes it, and what that mode does to it.

Its rewrites are made for AMD's NPUs: Sigmoid becomes HardSigmoid, LeakyReLU's slope .1015625, averages are scaled by a
quotient of powers of two, and a Clip of positive numbers loses its bound. They compute something else, read arguments
of operators that torch leaves out, and are turned off. What aligns scales, folds BatchNorm and splits tensors stays.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from onnx_bridge.core.errors import InputError
from onnx_bridge.core.third_party import ProcessState, suppressed_output
from onnx_bridge.quantization import quark
from onnx_bridge.torch.export.exporters import reason

LAYERS = "flat.module."
"""The prefix of the names of layers in the module that Quark gets."""
_FOR_NPUS = {
    "ConvertReduceMean2GapQOPass",  # of any axes, if a Flatten follows
    "SplitLargeKernelPoolQOPass",
    "ConvertAdaptiveavgpool2d2Quantadaptiveavgpool2DQOPass",
    "ConverAvgpool2d2QuantAvgPool2dQOPass",
    "ConvertSigmoid2HardSigmoidQOPass",
    "ConvertSilu2HardswishQOPass",
    "ConvertLeakyReLu2QuantLeakyReLuQOPass",
    "ConvertClip2ReLUQOPass",
    "ConvertHardSigmoidDpuVersionQOPass",
}
"""Quark's passes that change what is computed, by class."""
_ARITHMETIC = {"add", "subtract", "sub", "multiply", "mul", "div"}


def exported(listed: nn.Module, tensors: Mapping[str, torch.Tensor]) -> torch.fx.GraphModule:
    """Return the graph of a function of a list of tensors; raises InputError if torch.export fails.

    Operands that are Python's integers become floats, as the results are: Quark makes tensors of them, and quantizes
    these. Axes that are left out are added, since Quark reads them.
    """
    try:
        with suppressed_output():
            module = torch.export.export(listed, ([tensor.clone() for tensor in tensors.values()],)).module()
    except Exception as error:  # of any type
        what = f"torch.export fails: {reason(error)}"
        raise InputError(what, where="the module", hint="mode='eager' needs no graph") from error
    for node in module.graph.nodes:
        if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
            continue
        operator = node.target._schema.name.partition("::")[2].rstrip("_")
        if operator in _ARITHMETIC and not _is_integer(node):
            node.args = tuple(float(each) if isinstance(each, int) else each for each in node.args)
        if operator in ("split", "split_with_sizes") and len(node.args) == 2:
            node.args = (*node.args, node.kwargs.get("dim", 0))
        if operator == "lift_fresh_copy":  # of a constant; torch.onnx does not know it
            node.replace_all_uses_with(node.args[0])
            module.graph.erase_node(node)
    module.recompile()
    return module


@contextlib.contextmanager
def _same_results() -> Iterator[None]:
    """Turn off, meanwhile, the rewrites of Quark that change what is computed."""
    manager = quark.load("quark.torch.quantization.graph.optimization.opt_pass_manager").OptPassManager
    add = manager.add_pass

    def add_general(passes: Any, each: Any) -> None:
        if type(each).__name__ not in _FOR_NPUS:
            add(passes, each)

    manager.add_pass = add_general
    try:
        yield
    finally:
        manager.add_pass = add


same_results = ProcessState(_same_results)


def refuse_integers(graph: torch.fx.GraphModule, quantizers: Collection[str]) -> None:
    """Raise GraphModeError if integers are quantized: Quark does so with all operands of additions and comparisons."""
    for node in graph.graph.nodes:
        if node.target in quantizers and _is_integer(node.args[0]):
            what = "Quark's graph mode quantizes integers (a mask or indices), which no runtime supports"
            hint = "use mode='eager', or quantize the ONNX export"
            where = f"{node.args[0].name}, an operand of {next(iter(node.users)).name}"
            raise quark.GraphModeError(what, where=where, hint=hint)


def leave_in_float(graph: torch.fx.GraphModule, quantizers: Collection[str], layers: Sequence[str]) -> None:
    """Take away the quantizers of some layers: of their weights, and of activations that no other layer needs."""
    names = {node: _layer(node) for node in graph.graph.nodes}
    chosen = {node for node, name in names.items() if name in layers}
    missing = {*layers} - {*names.values()}
    if missing:
        what = "Quark's graph mode has no convolution or matrix product of this name"
        raise InputError(what, where=f"layer {min(missing).removeprefix(LAYERS)}", hint="use mode='eager'")
    for node in chosen:
        layer: Any = graph.get_submodule(str(node.target))
        layer._weight_quantizer = layer._bias_quantizer = None
    for node in reversed(graph.graph.nodes):
        returned = all(user.op == "output" for user in node.users) and _follows(node, chosen)
        if node.target in quantizers and (returned or chosen.issuperset(node.users)):
            node.replace_all_uses_with(node.args[0])
            graph.graph.erase_node(node)
    graph.recompile()


def _is_integer(node: torch.fx.Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and not value.is_floating_point()


def _layer(node: torch.fx.Node) -> str:
    """Return the name of the layer that a node stands for, to which Quark appends that of a normalization."""
    return str(node.meta.get("org_module_name")).partition(f"_{LAYERS}")[0]


def _follows(node: torch.fx.Node, layers: Collection[torch.fx.Node]) -> bool:
    """Return whether a node computes only what one of some layers returns further."""
    while node not in layers and len(node.all_input_nodes) == 1:
        node = node.all_input_nodes[0]
    return node in layers
