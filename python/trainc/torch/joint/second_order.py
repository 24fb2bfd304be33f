"""The gradient of a gradient (create_graph=True).

A plan has no second derivative. Where autograd wants a graph of the backward, PyTorch does the call once more, of what it was
given and with its random numbers, and differentiates that: gradients and their graph are eager's, to any order. Each call keeps
what it was given until its backward is over.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import torch

from trainc.base import messages
from trainc.base.errors import UserError
from trainc.torch import compat
from trainc.torch.capture.trace import dispatch_modes, set_modes
from trainc.torch.device import Host
from trainc.torch.run.rerun import Rerun

Tensor = torch.Tensor


class Program(Protocol):
    """What was traced, as its door knows it."""

    def again(self, inputs: list[Tensor]) -> Sequence[Any]:
        """Its results, in the trace's order, done by PyTorch. UserError where it would do other than the call did."""

    def asked(self, often: bool) -> None:
        """A gradient of a gradient was asked for; `often`: more often than one that a plan makes."""


class SecondOrder:
    """Of one trace. `modes`: those that it was made in, `modes_now()`; `written`: inputs that a call writes to when it is over;
    `draws`: whether it draws random numbers."""

    def __init__(self, name: str, device: Host, program: Program, modes: tuple, written: Sequence[int], draws: bool):
        self._name, self._device, self._program, self._written, self._draws = name, device, program, written, draws
        self._modes = modes
        self.firsts = self._seconds = 0  # backwards that plans made, and others

    def keep(self, inputs: Sequence[Tensor]) -> Rerun:
        """Before a call."""
        return Rerun(inputs, self._written, self._device, self._draws and not self._device.deals_masks)

    def gradients(self, call: Rerun, tangents: dict[int, Tensor], wanted: Sequence[int]) -> dict[int, Tensor | None]:
        """Of the inputs `wanted`, for these tangents of the program's results."""
        what = "neither the gradient of a gradient nor gradients in a batch are compiled"
        messages.require_fallback(UserError(f"{self._name}: {what}"))
        if self._draws and self._device.deals_masks:  # whose generator a step reads once, and no more
            raise UserError(f"{self._name}: on a GPU there is no gradient of a gradient of a call that draws random numbers")
        inputs = call.inputs()
        if inputs is None:
            raise UserError(
                f"{self._name}: a tensor that it was given was written to before a gradient of its gradient was asked for"
            )
        self._seconds += 1
        self._program.asked(self._seconds > self.firsts)
        # Of the tensors themselves autograd would run the hooks here, and once more where this gradient arrives.
        with torch.enable_grad():
            given = [_alias(t) if i in wanted else t.clone() if i in self._written else t for i, t in enumerate(inputs)]
        with call.generator(), self._as_traced():
            results = self._program.again(given)
        pairs = [(results[i], tangent) for i, tangent in tangents.items() if results[i].requires_grad]
        if not pairs:
            return {}
        made = torch.autograd.grad(
            [result for result, _ in pairs], [given[i] for i in wanted], [tangent for _, tangent in pairs],
            create_graph=torch.is_grad_enabled(), allow_unused=True,
        )  # fmt: skip
        return dict(zip(wanted, made, strict=True))

    @contextlib.contextmanager
    def _as_traced(self) -> Iterator[None]:
        before = modes_now()
        _set(self._modes)
        try:
            yield
        finally:
            _set(before)


def modes_now() -> tuple:
    """What decides how operations are done."""
    return dispatch_modes(), torch.get_default_dtype()


def _set(modes: tuple) -> None:
    set_modes(modes[0])
    torch.set_default_dtype(modes[1])


def _alias(tensor: Tensor) -> Tensor:
    """The same values, which autograd takes for others; by isinstance() a parameter where `tensor` is one."""
    alias = tensor.view_as(tensor)
    if isinstance(tensor, torch.nn.Parameter):
        compat.mark_as(alias, "parameter")
    return alias


__all__ = ["Program", "SecondOrder", "modes_now"]
