"""`trainc.compile(..., fuse_step=True)`: the backward waits for the optimizer's step, and the two run as one plan.

`loss.backward()` leaves a deferred tensor in each parameter's `.grad`. Where they all are untouched when `optimizer.step()`
comes, one plan makes each gradient, updates its parameter, and forgets it: the gradients never all exist at once. Where anybody
reads one before (clipping, a second backward, a hook), all are computed then, and the step is an ordinary one.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

from trainc.base import interrupts, messages
from trainc.base.errors import NotCompiled, UserError
from trainc.torch import compat
from trainc.torch.optimizers import optimizer
from trainc.torch.optimizers.plan_updates import Misfit
from trainc.torch.optimizers.updates import Slot, Updates, shared_memory
from trainc.torch.run.deferred import DeferredTensor, Outputs

Tensor = torch.Tensor

CONSUMED = (
    "fuse_step=True: this gradient was consumed by optimizer.step(), which made it and used it at once. Read gradients between "
    "backward() and step(), and call optimizer.zero_grad() after each step; or leave fuse_step out."
)
CHANGED = (
    "fuse_step=True: a tensor of shape {} that the backward needs was changed between backward() and optimizer.step(), where the "
    "backward runs. Change it after the step, or leave fuse_step out."
)


class DeferredBackward(Outputs):
    """The gradients of one backward that has not run. `run()`: gives them, by their primals; `step(slots)`: runs with the
    optimizer's step. Each frees what the backward needs."""

    def __init__(
        self, parameters: dict[int, Tensor], held: Iterable[Tensor], run: Callable[[], Sequence[Tensor | None]], step: Any
    ):
        super().__init__(self._gradients)
        self.parameters, self._run, self._step = parameters, run, step
        self._ids = list(map(id, parameters.values()))
        self._held = [(tensor, tensor._version, hash_of(tensor)) for tensor in held]

    def is_own(self, parameter: Tensor, gradient: DeferredTensor) -> bool:
        return self._ids[gradient.index] == id(parameter)

    def hand_out(self) -> None:
        for place, p in enumerate(self.parameters.values()):
            p.grad = DeferredTensor(p, p.device, self, place)

    def _gradients(self) -> list[Tensor]:
        self._check()
        with torch.no_grad():
            made = self._run()
            gradients = [made[i] for i in self.parameters]
            for p, gradient in zip(self.parameters.values(), gradients, strict=True):
                if deferred_backward_of(p) is self:
                    p.grad = gradient
        self._forget()
        return gradients

    def step(self, slots: list[Slot]) -> None:
        """Leaves all as it is where it fails."""
        self._check()
        with self._lock, interrupts.held():
            self._step(slots)
            self._compute = _consumed
            self._forget()

    def _check(self) -> None:
        for tensor, version, content in self._held:
            if tensor._version != version or hash_of(tensor) != content:
                raise UserError(CHANGED.format(list(tensor.shape)))

    def _forget(self) -> None:
        self.parameters, self._held, self._run, self._step = {}, [], None, None


def hash_of(tensor: Tensor) -> int:
    """Another number where an element of its memory is written in a way that raises no version: `p.data[0] = 1`, a NumPy array
    that shares it. All of it is read: for GPT-2's 124M parameters some 2% of a step."""
    from trainc import _core

    storage = tensor.untyped_storage()
    return _core.hash_memory(storage.data_ptr(), storage.nbytes()) if tensor.is_cpu else 0


def _consumed() -> Any:
    raise UserError(CONSUMED)


def deferred_backward_of(parameter: Tensor) -> DeferredBackward | None:
    """Whose gradient it waits for: its own one, not one that the program has moved here from another parameter."""
    gradient = parameter.grad
    if type(gradient) is DeferredTensor and not gradient.known and isinstance(gradient.outputs, DeferredBackward):
        return gradient.outputs if gradient.outputs.is_own(parameter, gradient) else None
    return None


class StepFusion:
    """What a model and its optimizer know of each other."""

    def __init__(self, owner: torch.optim.Optimizer):
        self._owner = weakref.ref(owner)
        self._updates: Updates | None = None

    def slots(self, tensors: Mapping[int, Tensor]) -> list[Slot] | None:
        """One for each of these tensors, by their places among a graph's inputs; None where one is not the optimizer's to update
        within a plan."""
        owner = self._owner()
        if owner is None or optimizer.stays_torchs(owner):
            return None
        groups = {id(p): g for g, group in enumerate(owner.param_groups) for p in group["params"]}
        if any(id(p) not in groups or not optimizer.compiles(p) for p in tensors.values()):
            return None
        return [Slot(0, groups[id(p)], p, i) for i, p in tensors.items()]

    def updates(self, slots: list[Slot]) -> Updates:
        if self._updates is None or list(map(_named, self._updates.slots)) != list(map(_named, slots)):
            self._updates = Updates(slots, [self._owner()])
        return self._updates

    def defer(self, parameters: dict[int, Tensor], held: Mapping[int, Tensor], run: Any, step: Any) -> bool:
        """Called within a backward: true where it need not run now. `parameters`: whose gradients it makes; `held`: what
        it reads; both by their places among the graph's inputs."""
        if not self._may_wait(parameters, held):
            return False
        DeferredBackward(parameters, held.values(), run, step).hand_out()
        return True

    def _may_wait(self, parameters: dict[int, Tensor], held: Mapping[int, Tensor]) -> bool:
        there = [p for p in parameters.values() if p.grad is not None]
        _compute_gradients(there)  # to be added to, by C++ that knows of no deferred tensors
        if there or self.slots(parameters) is None or (torch.distributed.is_available() and torch.distributed.is_initialized()):
            return False
        if shared_memory(parameters, held) is not None:
            return False  # an update would write what is still read
        hooked = any(compat.has_gradient_hooks(p) or compat.has_accumulation_hooks(p) for p in parameters.values())
        learns = all(p.requires_grad for p in parameters.values())  # one may have been frozen since the forward
        return learns and not hooked and all(map(_is_accumulated, parameters.values()))

    def step(self, owner: torch.optim.Optimizer) -> bool:
        """The optimizer's step together with the backward that waits for it; false where there is none such, and the gradients
        are there."""
        parameters = [p for group in owner.param_groups for p in group["params"] if p.grad is not None]
        waiting = [deferred_backward_of(p) for p in parameters]
        first = next(filter(None, waiting), None)
        if first is None:
            _compute_gradients(parameters)
            return False
        together = all(w is first for w in waiting) and len(parameters) == len(first.parameters)
        slots = self.slots(first.parameters) if together else None
        if slots is not None:
            try:
                first.step(slots)
                return True
            except Misfit:
                pass
            except NotCompiled as error:  # any other error is one of the run, which may have updated parameters
                messages.fell_back("the backward together with the optimizer's step", error.__cause__ or error)
        _compute_gradients(parameters)
        return False


def _named(slot: Slot) -> tuple:
    """A slot to compare: its parameter by identity."""
    return slot.optimizer, slot.group, id(slot.parameter), slot.primal


def _compute_gradients(parameters: list[Tensor]) -> None:
    for p in parameters:
        if type(p.grad) is DeferredTensor:
            p.grad = p.grad.value()


def _is_accumulated(parameter: Tensor) -> bool:
    """Whether this run of autograd puts the gradient into `.grad` (and not into the results of `torch.autograd.grad`)."""
    node = torch.autograd.graph.get_gradient_edge(parameter).node
    try:
        return compat.will_execute(node)
    except RuntimeError:  # torch.autograd.grad
        return False


__all__ = ["StepFusion"]
