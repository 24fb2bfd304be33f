"""What tells one call of a program from another: the types of its tensors, the modes that are active, and how that is said to the
user."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch.backends import cuda as sdp
from torch.utils import deterministic

from trainc.base.arithmetic import flushes_denormals
from trainc.base.errors import NotCompiled
from trainc.torch import compat, device
from trainc.torch.capture.structure import changes, describe, leaves
from trainc.torch.capture.trace import dispatch_modes

Tensor = torch.Tensor


def stored_type(tensor: Tensor) -> tuple:
    """Of a tensor that a module holds."""
    return tensor.shape, tensor.stride(), tensor.dtype, tensor.requires_grad, tensor.is_cpu or tensor.device


def tensor_type(tensor: Tensor) -> tuple:
    """Of an argument. NotCompiled where it is no ordinary tensor."""
    kind = type(tensor)
    if kind is not Tensor and kind is not torch.nn.Parameter and not isinstance(tensor, torch.nn.Buffer):
        raise NotCompiled(f"a tensor is a {kind.__qualname__}")
    if tensor.layout is not torch.strided:
        raise NotCompiled(f"a tensor is no dense one ({str(tensor.layout).removeprefix('torch.')})")
    if compat.has_no_memory(tensor):
        raise NotCompiled("a tensor of zeros has no memory", in_pytorch=True)
    if tensor.is_conj() or tensor.is_neg():
        raise NotCompiled(f"a tensor is {'conjugated' if tensor.is_conj() else 'negated'} lazily")
    if not tensor.is_cpu:
        device.get(tensor.device)  # may refuse
    return (
        tensor.shape, tensor.stride(), tensor.dtype, tensor.requires_grad, tensor.is_leaf,
        kind is torch.nn.Parameter, tuple(vars(tensor)),  # attributes that the program has put on it
        tensor.is_cpu or tensor.device,
    )  # fmt: skip


def modes() -> tuple:
    """What of the state of PyTorch and of arithmetic decides what operations do. The first: whether gradients are on."""
    return (
        *dispatch_modes(),
        torch.get_default_dtype(),
        torch.are_deterministic_algorithms_enabled(),
        *unguarded(),
        device.flags() if device.gpu_in_use() else None,
        torch.get_default_device() if compat.count_function_modes() > 0 else None,
    )


def unguarded() -> tuple:
    """Those settings that torch.compile's tracer does not look at."""
    return (
        flushes_denormals(),  # constants are folded so
        sdp.flash_sdp_enabled(), sdp.math_sdp_enabled(),  # which of eager's kernels for attention is traced
        torch.are_deterministic_algorithms_enabled() and deterministic.fill_uninitialized_memory,
    )  # fmt: skip


@dataclasses.dataclass
class Call:
    """One call as it is looked up. `key`: (variant of the module, `kind`)."""

    kind: tuple  # (training, structure, types of the arguments' tensors, modes, and what else selects a plan)
    structure: tuple  # of the arguments (capture/structure.py)
    arguments: list[Tensor]  # their tensors
    key: tuple = ()
    tensors: list[Tensor] = dataclasses.field(default_factory=list)  # the modules' own
    entry: Callable[..., Any] | None = None  # what serves it, where its kind alone tells that

    @property
    def inputs(self) -> list[Tensor]:
        return [*self.tensors, *self.arguments]


@dataclasses.dataclass
class Signature:
    """What was compiled, in the user's terms."""

    arguments: dict[str, tuple]
    variant: int
    training: bool
    modes: tuple
    settings: tuple = ()  # of a step's optimizers: their formulas, their parameters (`step_guards.Binding`)
    reads: list[str] = dataclasses.field(default_factory=list)  # what the program reads that is other than in the call before

    def arguments_changed(self, new: Signature) -> list[str]:
        return changes(self.arguments, new.arguments)

    def modes_changed(self, new: Signature) -> list[str]:
        told = []
        if self.training != new.training:
            told.append("the model is in training now" if new.training else "the model is in evaluation now")
        if self.modes != new.modes:
            told.append(
                f"gradients are {'on' if new.modes[0] else 'off'}" if self.modes[0] != new.modes[0] else "another mode of torch"
            )
        if self.settings != new.settings:
            same = self.settings[0] == new.settings[0]
            told.append(
                "the parameters of an optimizer changed" if same
                else "a setting of an optimizer that its update is made of changed"
            )  # fmt: skip
        told += new.reads
        if self.variant != new.variant and not told:
            told.append("the module's modules, tensors or attributes changed")
        return told


def leaves_of(call: Call, function: Callable[..., Any]) -> dict[str, tuple]:
    """A call's arguments by their names in the `function` that takes them, a model's `forward`."""
    args, kwargs = call.structure[3]
    parameters = inspect.signature(function).parameters.values()
    names = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    found: dict[str, tuple] = {}
    for i, child in enumerate(args[3]):
        found |= leaves(child, call.arguments, names[i] if i < len(names) else str(i))
    return found | leaves(kwargs, call.arguments)


def stray(name: str, tensors: list[Tensor], given: dict[str, tuple]) -> str | None:
    """What to tell of an argument that does not lie where the `tensors` of the model `name` do; None where there is none such.
    `given`: `leaves_of` the call."""
    where = {str(place) for place in device.devices_of(tensors)}
    for argument, leaf in given.items():
        if leaf[0] == "tensor" and tensors and leaf[5] not in where and (leaf[5] != "cpu" or leaf[2]):
            there = " and ".join(sorted(where))
            return f"`{argument}` is on {leaf[5]}, {name} on {there}: give it {argument}.to({there!r})"
    return None


def describe_call(call: Call, training: bool) -> str:
    """A call for `records.Compilation.signature`."""
    args, kwargs = call.structure[3]
    parts = describe(args, call.arguments) + describe(kwargs, call.arguments)
    mode = "training" if training else "evaluation"
    return ", ".join([*parts, mode if torch.is_grad_enabled() else f"{mode}, no_grad"])


__all__ = ["Call", "Signature", "describe_call", "leaves_of", "modes", "stored_type", "stray", "tensor_type", "unguarded"]
