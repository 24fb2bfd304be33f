"""What no plan makes of a call: the gradient of a gradient (create_graph=True), and that of a result which other results are made
of (intermediate.py).

A plan has no second derivative, and gives the gradients of its inputs alone. Where autograd wants more, PyTorch does the call
once more, of what it was given and with its random numbers, and differentiates that: gradients and their graph are eager's, to
any order. Each call keeps what it was given until its backward is over.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, Protocol

import torch

from trainc.base import messages
from trainc.base.errors import UserError
from trainc.torch import compat
from trainc.torch.capture.trace import dispatch_modes, set_modes
from trainc.torch.device import Host
from trainc.torch.joint.intermediate import Watch, gradients_of
from trainc.torch.joint.node_hooks import keep_to_eagers, refuse_unreached
from trainc.torch.run.rerun import Rerun

Tensor = torch.Tensor
SECOND = "gradients of its gradients are taken (create_graph=True)"
INTERMEDIATE = "gradients of its results are asked for (hooks, retain_grad) that other results are made of"
BESIDE = "a loss is made of results beside its own"


class Program(Protocol):
    """What was traced, as its door knows it."""

    def again(self, inputs: list[Tensor]) -> Sequence[Any]:
        """Its results, in the trace's order, done by PyTorch. UserError where it would do other than the call did."""

    def asked(self, often: bool, what: str = SECOND) -> None:
        """SECOND, INTERMEDIATE or BESIDE: such a gradient was asked for; `often`: more often than one that a plan makes."""

    def differentiates(self, places: frozenset[int]) -> None:
        """A loss was made of these results, of which the plan has no backward: the next trace may be for them alone."""


class SecondOrder:
    """Of one trace. `modes`: those that it was made in, `modes_now()`; `written`: inputs that a call writes to when it is over;
    `draws`: whether it draws random numbers; `statistics`: inputs that nothing is made of but what is written so."""

    def __init__(
        self, name: str, device: Host, program: Program, modes: tuple, written: Sequence[int], draws: bool,
        statistics: Collection[int],
    ):  # fmt: skip
        self._name, self._device, self._program, self._written, self._draws = name, device, program, written, draws
        self._modes = modes
        # A gradient is the same whatever these were: a call need not keep what they were (a copy of each, 0.9 ms of ResNet-50).
        self._any_value = set(written).intersection(statistics)
        self.firsts = self._seconds = 0  # backwards that plans made, and others

    def keep_hooks(self, node: type, sole: int | None) -> None:
        """Of the class of a call's node (`node_hooks.keep_to_eagers`)."""
        keep_to_eagers(node, sole, self._name, self._program.asked)

    def refuse_unreached(self, unreached: Iterable[Tensor]) -> None:
        refuse_unreached(unreached, self._name, self._program.asked)

    def keep(self, inputs: Sequence[Tensor]) -> Rerun:
        """Before a call."""
        draws = self._draws and not self._device.deals_masks
        return Rerun(inputs, self._written, self._device, draws, any_value=self._any_value)

    def gradients(
        self, call: Rerun, tangents: dict[int, Tensor], wanted: Sequence[int], watch: Watch | None = None, beside: bool = False
    ) -> dict[int, Tensor | None]:
        """Of the inputs `wanted`, for these tangents of the program's results. `watch`: its gradients may be asked for, too.
        `beside`: a tangent is of a result that the plan has no backward of."""
        results_too = watch.wanted() if watch is not None else []
        what, kind = ("a gradient of a result beside the loss", BESIDE) if beside else ("the gradient of a gradient", SECOND)
        if results_too:
            what, kind = "a gradient of a result that another result is made of", INTERMEDIATE
        refused = "neither the gradient of a gradient nor gradients in a batch are" if kind is SECOND else f"{what} is not"
        if not beside:
            messages.require_fallback(UserError(f"{self._name}: {refused} compiled"))
        if self._draws and self._device.deals_masks:  # whose generator a step reads once, and no more
            self._program.asked(True, kind)
            raise UserError(f"{self._name}: on a GPU there is not {what} of a call that draws random numbers")
        if results_too and torch.is_grad_enabled() and not watch.only_asked(results_too):
            # What is made of these gradients leads to the results by two ways, that of the call and that of its repetition.
            self._program.asked(True, kind)
            raise UserError(
                f"{self._name}: results that other results are made of have hooks or retain_grad, and gradients of gradients are "
                "asked for: its next calls run in PyTorch, which this one should have done. Try the step again"
            )
        inputs = call.inputs()
        if inputs is None:
            raise UserError(f"{self._name}: a tensor that it was given was written to before {what} was asked for")
        self._seconds += 1
        if beside:
            self._program.differentiates(frozenset(tangents))
        else:
            self._program.asked(self._seconds > self.firsts, kind)
        # Of the tensors themselves autograd would run the hooks here, and once more where this gradient arrives.
        with torch.enable_grad():
            given = [_alias(t) if i in wanted else t.clone() if i in self._written else t for i, t in enumerate(inputs)]
        with call.generator(), self._as_traced(), compat.outside_vmap():
            results = self._program.again(given)
        chosen = [given[i] for i in wanted]
        if results_too:
            made = watch.gradients(results_too, results, tangents, chosen, [inputs[i] for i in wanted])
        else:
            made = gradients_of(results, tangents, chosen)
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


__all__ = ["BESIDE", "INTERMEDIATE", "SECOND", "Program", "SecondOrder", "modes_now"]
