"""The modules' tensors while a step is traced: by whatever way the body reaches one (a list of parameters, an
optimizer's groups), it finds the one that is traced. And what the body does with their gradients (gradient_states.py).
"""

from __future__ import annotations

import inspect
import sys
import types
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from trainc.base import PACKAGE
from trainc.base.errors import NotCompiled
from trainc.torch import compat
from trainc.torch.capture.gradient_states import Event, GradientState
from trainc.torch.compat import FakeTensor, FunctionalTensor
from trainc.torch.guards.reads import Reads

Tensor = torch.Tensor

_ACCESS = {"__get__": "reads", "__set__": "sets", "__delete__": "deletes"}
# What changes from call to call and is in no signature, of a tensor that is not traced.
_HIDDEN = frozenset({"grad", "grad_fn", "_base", "_version"})
_CHANGES = frozenset({"requires_grad_", "register_hook", "register_post_accumulate_grad_hook", "retain_grad"})
_VALUES = frozenset(
    {"item", "tolist", "numpy", "__array__", "__bool__", "__int__", "__float__", "__complex__", "__index__", "is_nonzero"}
)
# What asks whether there is a gradient, to clear it.
_ZERO_GRAD = tuple(inspect.unwrap(owner.zero_grad).__code__ for owner in (torch.nn.Module, torch.optim.Optimizer))


class StepTensors(TorchFunctionMode):
    """Active while the body runs. `owned`: the modules' tensors, which the first of `stand_ins` stand for."""

    def __init__(self, owned: Sequence[Tensor], stand_ins: Sequence[Tensor], reads: Reads):
        super().__init__()
        self._owned, self._stand_ins, self._reads = list(owned), list(stand_ins), reads
        self._index = {id(tensor): i for i, tensor in enumerate(owned)}
        self._places = {id(tensor): i for i, tensor in enumerate(stand_ins)}
        self.gradients: defaultdict[int, GradientState] = defaultdict(GradientState)  # of inputs

    def traced(self, value: Any) -> Any:
        """`value` with what is traced in the place of the modules' own tensors."""
        if isinstance(value, Tensor):
            i = self._index.get(id(value))
            if i is None:
                return value
            self._reads.elsewhere[i] = self._owned[i]
            return self._stand_ins[i]
        kind = type(value)
        if kind is list or kind is tuple:
            mapped = [self.traced(item) for item in value]
            return value if all(a is b for a, b in zip(mapped, value, strict=True)) else kind(mapped)
        if kind is dict:
            mapped = {key: self.traced(item) for key, item in value.items()}
            return value if all(mapped[key] is item for key, item in value.items()) else mapped
        return value

    def __torch_function__(self, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if sys._getframe(1).f_code.co_filename.startswith(PACKAGE):  # trainc's own work
            return func(*args, **(kwargs or {}))
        args, kwargs = self.traced(tuple(args)), self.traced(kwargs or {})
        if args and isinstance(args[0], Tensor):
            self._look(func, getattr(func, "__name__", ""), args)
        return func(*args, **kwargs)

    def _look(self, func: Any, name: str, args: tuple) -> None:
        tensor, access = args[0], _ACCESS.get(name)
        attribute = getattr(func.__self__, "__name__", "") if access is not None and hasattr(func, "__self__") else ""
        if self._is_real(tensor):
            if attribute in _HIDDEN or attribute and access != "reads" or name in _CHANGES:
                what = f"{access} `{attribute}` of" if attribute else f"calls {name}() of"
                raise NotCompiled(
                    f"the step {what} a tensor of shape {list(tensor.shape)} that is none of its modules' or arguments"
                )
            if name in _VALUES:
                self._reads.read(tensor)
        elif attribute == "grad" and (i := self._places.get(id(tensor))) is not None:
            self._gradient(i, access, args[1] if access == "sets" else None)

    def _gradient(self, i: int, access: str, value: Any) -> None:
        state, clears = self.gradients[i], _clears(sys._getframe(3)) if access == "reads" else None
        if access != "reads":
            state.after("dropped" if value is None else "set")
        elif clears is None:
            state.read()
        elif self._stand_ins[i].grad is None or clears == "zeroed":  # else it sets it to None
            state.after(clears)

    @staticmethod
    def _is_real(tensor: Tensor) -> bool:
        """Whether a tensor is one of the program's that is not traced."""
        return not isinstance(tensor, (FakeTensor, FunctionalTensor)) and compat.functorch_transform() is None


def _clears(frame: types.FrameType) -> Event | None:
    """Of a frame that looks whether there is a gradient, what it does then: None where it is no zero_grad()."""
    if not any(frame.f_code is code for code in _ZERO_GRAD):
        return None
    return "dropped" if frame.f_locals.get("set_to_none") else "zeroed"


__all__ = ["StepTensors"]
