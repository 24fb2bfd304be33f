"""`verify=`: which calls and steps are looked at, and what becomes of a model whose numbers are not PyTorch's."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch

from trainc.base import messages, records
from trainc.base.errors import UserError, VerifyError
from trainc.base.step_graph import StepGraph
from trainc.torch.guards.state import ModuleState
from trainc.torch.verify import update
from trainc.torch.verify.call import Call, Traced
from trainc.torch.verify.oracle import parted
from trainc.torch.verify.told import Summary, by, goes_on, written
from trainc.torch.verify.whole import WholeCall

Tensor = torch.Tensor

DEFAULT_STEPS = 3


def check_verify(verify: Any) -> None:
    if not isinstance(verify, int) or verify < 0:
        raise UserError(f"verify={verify!r} is neither True, False nor a number of steps")


class Verification:
    """Of one model and its optimizer. Steps are counted by the optimizer's, which several calls may lead to; without one that
    trainc steps (`counts_calls`), by the calls themselves."""

    def __init__(self, steps: int, model: torch.nn.Module, counts_calls: bool):
        self._left, self.counts_calls = steps, counts_calls
        self._model = weakref.ref(model)
        self._begun = threading.local()
        self.in_pytorch = False  # the program is not what was traced: its calls are PyTorch's
        self.steps_in_pytorch = False  # the optimizer's updates were wrong

    @staticmethod
    def of(verify: bool | int, model: torch.nn.Module, counts_calls: bool) -> Verification | None:
        """What was asked for; None where it was not."""
        return Verification(DEFAULT_STEPS if verify is True else verify, model, counts_calls) if verify else None

    @property
    def active(self) -> bool:
        return self._left > 0

    # -- a call -------------------------------------------------------------------------------------------------------

    def call(
        self, run: Callable[[], Any], again: Callable[[], Any], inputs: Sequence[Tensor], state: ModuleState, args: tuple,
        kwargs: dict,
    ) -> Any:  # fmt: skip
        """`run()`, the compiled call of these; `again()` runs it in PyTorch instead."""
        if not self.active or not torch.is_grad_enabled():
            return run()
        before, self._begun.calls = getattr(self._begun, "calls", None), []
        try:
            result = run()
            begun = self._begun.calls
        finally:
            self._begun.calls = before
        if self.counts_calls:
            self._left -= 1
        for call in begun[:1]:  # none where PyTorch or Dynamo ran it
            if error := call.program(state, args, kwargs):
                self.distrust(error, call.traced.record)
                undo(call, inputs)
                return again()
        return result

    def begin(self, traced: Traced, inputs: Sequence[Tensor], constants: Sequence[Tensor]) -> Call | None:
        """Before a forward's plan runs; None where it is not looked at."""
        if not self.active:
            return None
        call = Call(traced, inputs, constants, self._names(inputs))
        if (begun := getattr(self._begun, "calls", None)) is not None:
            begun.append(call)
        return call

    def traced(self, *about: Any) -> Traced:
        return Traced(*about)

    def begin_step(self, step: StepGraph, record: records.Compilation, primals: Sequence[int], inputs: Sequence[Tensor],
                   *about: Any) -> WholeCall | None:  # fmt: skip
        """Before a train_step's plan runs. `about`: states, scalars, device."""
        if not self.active:
            return None
        self._left -= 1
        states, scalars, device = about
        return WholeCall(step, record, primals, inputs, states, scalars, self._names(inputs), device)

    def distrust(self, error: VerifyError, record: records.Compilation) -> None:
        """Says `error`, and has PyTorch run the model from now on. Raises it where fallback is off."""
        messages.fell_back(record.name, error)
        self.in_pytorch = True
        record.route, record.reason = "eager", str(error)

    def _names(self, inputs: Sequence[Any]) -> list[str]:
        model = self._model()
        tensors = () if model is None else (*model.named_parameters(), *model.named_buffers())
        names = {id(tensor): f"`{name}`" for name, tensor in tensors}
        return [names.get(id(t), f"argument {i}") for i, t in enumerate(inputs)]

    # -- an optimizer's step ------------------------------------------------------------------------------------------

    def step(self, optimizer: torch.optim.Optimizer, run: Callable[[], None]) -> None:
        """`run()`, the compiled step, where it is looked at or not."""
        if not self.active:
            run()
            return
        before, copies = update.beside(optimizer)
        run()
        self._left -= 1
        eager, truth = update.in_pytorch(before), update.in_pytorch(before, wide=True)
        summary, wrong = Summary(), []
        for group in optimizer.param_groups:
            for p in group["params"]:
                if (copied := copies.get(id(p))) is None:
                    continue
                ours = update.values(p, optimizer.state[p]) if p in optimizer.state else update.values(p, {})
                found = update.distances(ours, update.values_of(eager, copied), update.values_of(truth, copied))
                summary.see("updates", found.items())
                if difference := parted(list(found.items())):
                    wrong.append((group, p, copied, *difference))
        made = records.of(optimizer)
        summary = _added(made, summary)
        if wrong:
            error = self._of_update(optimizer, before, wrong[0])
            summary.seen(error)
            for each in made:
                each.reason = str(error)
            for _, p, copied, *_ in wrong:
                update.take(p, optimizer, eager, copied)
            self.steps_in_pytorch = True
            messages.fell_back(type(optimizer).__name__, error)

    def step_done(self) -> None:
        """PyTorch made a step: there is nothing to compare."""
        self._left -= self.active

    def _of_update(self, optimizer: torch.optim.Optimizer, before: torch.optim.Optimizer, wrong: tuple) -> VerifyError:
        group, p, copied, name, distance = wrong
        kind = type(optimizer).__name__
        (parameter,) = self._names([p])
        what = f"`{name}` of {parameter}" if name else parameter
        state = dict(before.state[copied]) if copied in before.state else {}
        case = update.Update.of(f"{kind}-step", optimizer, group, copied, state)
        shown = written(case, f"{kind}: the update of {what}", distance)
        return VerifyError(f"{kind}: verify: after optimizer.step() {what} is {by(distance)}.{goes_on()}{shown}")


def _added(made: list[records.Compilation], new: Summary) -> Summary:
    """One summary for all kernels of an optimizer."""
    known = next((each.verified for each in made if each.verified is not None), None) or Summary()
    known.steps += 1
    for what, ratio in new.ratios.items():
        known.ratios[what] = max(known.ratios.get(what, 0.0), ratio)
    for each in made:
        each.verified = known
    return known


def undo(call: Call, inputs: Sequence[Tensor]) -> None:
    """What a compiled call wrote, and what it drew."""
    written = call.traced.layout[0] if call.traced.layout is not None else []
    with torch.no_grad():
        for i in written:
            inputs[i].copy_(call.inputs[i])
    call.traced.device.generator().set_state(call.generator)


__all__ = ["DEFAULT_STEPS", "Verification", "check_verify"]
