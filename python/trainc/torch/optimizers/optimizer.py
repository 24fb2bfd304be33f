"""The optimizer's step: one kernel over all parameters, where its formula is known (`FORMULAS`).

State is made by torch's own code: `state_dict` goes to and from a plain optimizer. Tensors that a kernel cannot walk, capturable
and differentiable steps stay torch's.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from trainc.base import interrupts, messages, records
from trainc.torch import compat
from trainc.torch.guards.overlap import Apart, Overlapping
from trainc.torch.guards.watch import mark_step
from trainc.torch.optimizers import NUMBERS, Formula, Variant, formula_of, names
from trainc.torch.optimizers.kernels import Kernels
from trainc.torch.optimizers.settings import Remembered
from trainc.torch.optimizers.state import Counted, GroupGuard, are_apart, init_group, torchs_step, unhooked
from trainc.torch.trust import is_trusted_file

Tensor = torch.Tensor


def attach(optimizer: torch.optim.Optimizer, fusion: Any = None, verification: Any = None) -> None:
    """Replaces `optimizer.step` where the registry has its class; another optimizer stays as it is. `fusion` (fuse.StepFusion)
    may do the step together with the backward; `verification` (verify.Verification) looks at the first ones."""
    if formula_of(optimizer) is None:
        records.of(optimizer).append(
            records.Compilation(type(optimizer).__name__, route="eager", reason=f"not one of {names()}")
        )
        return
    if method := replaced(optimizer):
        reason = f"its `{method}` was replaced, and may do more than PyTorch's"
        messages.warn(f"{type(optimizer).__name__} stays PyTorch's: {reason}")
        records.of(optimizer).append(records.Compilation(type(optimizer).__name__, route="eager", reason=reason))
        return
    # torch's own step, under the learning rate scheduler's wrapper where there is one
    plain = type(optimizer).step
    kernels = Kernels(optimizer)

    @functools.wraps(plain)
    def compiled_step(self: torch.optim.Optimizer, closure: Callable[[], Any] | None = None) -> Any:
        self._opt_called = True  # learning rate schedulers ask
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if fusion is not None and fusion.step(self):
            return loss
        if stays_torchs(self) or verification is not None and verification.steps_in_pytorch:
            unhooked(plain)(self)
            if verification is not None:
                verification.step_done()
        elif verification is not None:
            verification.step(self, lambda: _step(self, kernels))
        else:
            _step(self, kernels)
        return loss

    watched = torch.optim.Optimizer.profile_hook_step(compiled_step)

    alone = "step" not in optimizer.__dict__  # else a scheduler's wrapper is there, and calls what it found

    @functools.wraps(compiled_step)
    def hooked(self: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
        if alone and type(self).step is not plain and getattr(self.__dict__.get("step"), "__func__", None) is hooked:
            return type(self).step(self, *args, **kwargs)  # the program has put its own there since
        return (watched if _is_watched(self) else compiled_step)(self, *args, **kwargs)

    mark_step(hooked)
    compat.follow_scheduler(hooked, optimizer.step)
    optimizer.register_load_state_dict_pre_hook(lambda *_: kernels.known.clear())  # it holds the state that is replaced
    optimizer.step = types.MethodType(hooked, optimizer)
    optimizer.zero_grad = types.MethodType(_zero_grad, optimizer)


def is_attached(optimizer: torch.optim.Optimizer) -> bool:
    """Whether `attach` was here."""
    return bool(records.of(optimizer)) or _zero_grad is getattr(optimizer.__dict__.get("zero_grad"), "__func__", None)


def _step(optimizer: torch.optim.Optimizer, kernels: Kernels) -> None:
    kernels.start_step()
    with torch.no_grad():
        known = [_look_up(optimizer, group, kernels) for group in optimizer.param_groups]
        for group, found in zip(optimizer.param_groups, known, strict=True):
            _step_group(optimizer, group, kernels, found)
    if len(kernels.known) > len(optimizer.param_groups):
        kernels.known.clear()  # it holds the state of a group that is gone


def replaced(optimizer: torch.optim.Optimizer) -> str | None:
    """Which method, "step" or "zero_grad", the program put a function of its own in the place of, on the optimizer or its class.
    (What PyTorch's learning rate schedulers and trainc put there wraps the class's own.)"""
    for name in ("step", "zero_grad"):
        own = getattr(type(optimizer), name)
        method, wraps_own = optimizer.__dict__.get(name, own), False
        while method is not None:
            function = getattr(method, "__func__", method)
            code = getattr(function, "__code__", None)
            if code is None or not is_trusted_file(code.co_filename):
                return name
            wraps_own = wraps_own or function is own
            method = getattr(function, "__wrapped__", None)
        if not wraps_own:
            return name
    return None


_PLAIN = torch.optim.Optimizer.zero_grad  # else the program has put its own there, after `attach`


@functools.wraps(_PLAIN)
def _zero_grad(self: torch.optim.Optimizer, set_to_none: bool = True) -> None:
    if not set_to_none or type(self).zero_grad is not _PLAIN or compat.is_profiled() or torch.compiler.is_compiling():
        type(self).zero_grad(self, set_to_none)
        return
    for group in self.param_groups:
        for p in group["params"]:
            p.grad = None


def _is_watched(optimizer: torch.optim.Optimizer) -> bool:
    """Whether torch's wrapper of a step has something to do: run hooks, tell a profiler."""
    return compat.is_profiled() or compat.has_step_hooks(optimizer)


def stays_torchs(optimizer: torch.optim.Optimizer) -> bool:
    """Capturable and differentiable steps, tensors as settings, GradScaler's attributes: torch's own code has its say."""
    if getattr(optimizer, "grad_scale", None) is not None or getattr(optimizer, "found_inf", None) is not None:
        return True
    return any([_group_stays_torchs(group, optimizer.defaults) for group in optimizer.param_groups])


@Remembered
def _group_stays_torchs(group: dict, names: Iterable[str]) -> bool:
    """`names`: of the settings that PyTorch knows."""
    return bool(group.get("capturable") or group.get("differentiable") or any(_holds_tensor(group.get(n)) for n in names))


def _holds_tensor(setting: Any) -> bool:
    return isinstance(setting, Tensor) or isinstance(setting, (tuple, list)) and any(isinstance(s, Tensor) for s in setting)


def _has_memory(tensor: Any) -> bool:
    """Whether its elements lie in memory that can be looked at: it is no sparse one, wraps none."""
    if not isinstance(tensor, Tensor) or tensor.layout is not torch.strided:
        return False
    return not isinstance(tensor, compat.FakeTensor) and not compat.is_traceable_wrapper_subclass(tensor)


def compiles(*tensors: Tensor, shapes: Sequence[Sequence[int]] | None = None) -> bool:
    """Whether a kernel can take these: dense, row-major, one dtype that it knows, in memory, of one shape or of these."""
    first = tensors[0]
    shapes = shapes or [first.shape] * len(tensors)
    return first.dtype in (torch.float32, torch.float64) and all(
        type(t) in (Tensor, torch.nn.Parameter)
        and t.layout is torch.strided and t.dtype == first.dtype and t.shape == shape
        and t.device == first.device and t.device.type in ("cpu", "cuda") and t.is_contiguous() and not t.is_neg()
        for t, shape in zip(tensors, shapes, strict=True)
    )  # fmt: skip


def variant_of(optimizer: torch.optim.Optimizer, group: dict, dtype: torch.dtype | None, shape: Sequence[int] = ()) -> Variant:
    """The formula of a group's parameters of this type (and shape, where the formula is not elementwise)."""
    return formula_of(optimizer).variant(group, dtype, shape)


def _look_up(optimizer: torch.optim.Optimizer, group: dict, kernels: Kernels) -> tuple[dict, list[Tensor]] | None:
    """The settings and gradients of a group that is as the last step found it; None for another, whose kernels are there then.
    Of all groups before any is stepped: compiling can be interrupted, or fail."""
    formula, known = formula_of(optimizer), kernels.known.get(id(group))
    if known is not None:
        settings = formula.settings(group, known.params)
        if (grads := known.gradients(optimizer, settings)) is not None:
            return settings, grads
        del kernels.known[id(group)]
    having = [p for p in group["params"] if p.grad is not None]
    group = formula.settings(group, having)
    for param in {(p.dtype, p.device, None if formula.elementwise else p.shape): p for p in having}.values():
        if compiles(param):
            kernels.get(formula.variant(group, param.dtype, param.shape), param)
    return None


def _step_group(
    optimizer: torch.optim.Optimizer, group: dict, kernels: Kernels, found: tuple[dict, list[Tensor]] | None
) -> None:
    """`found`: what `_look_up` gave."""
    formula, key = formula_of(optimizer), id(group)
    if found is not None:
        (group, grads), known = found, kernels.known[key]
        rows = [(param, grad, *states) for param, grad, states in zip(known.params, grads, known.states, strict=True)]
        counted = Counted(formula, group, known.columns, known.dtypes, [False] * len(rows))
        torchs_step(optimizer, group, _run(formula, group, kernels, rows, counted, known))
        return
    group = formula.settings(group, [p for p in group["params"] if p.grad is not None])
    params, grads = init_group(optimizer, group)
    rows, numbers, firsts, left = [], [], [], []
    for param, grad in zip(params, grads, strict=True):
        v, state = formula.variant(group, param.dtype, param.shape), optimizer.state.get(param, {})
        absent = [name for name in v.states if state.get(name) is None]
        row = [param, grad, *(formula.start(name, param) if name in absent else state[name] for name in v.states)]
        own = [state[name] for name in formula.numbers]
        dtypes = [number.dtype for number in (numbers[0] if numbers else own)]
        shapes = None if formula.elementwise else [param.shape, param.shape, *formula.shapes(v, param.shape)]
        if compiles(*row, shapes=shapes) and NUMBERS.keys() >= set(dtypes) and dtypes == [n.dtype for n in own]:
            rows.append(row)
            numbers.append(own)
            firsts.append(bool(absent))
        else:
            left.append(param)
    by_name = [list(column) for column in zip(*numbers, strict=True)]
    # Where one parameter's update writes what another's reads, their order counts: eager's is the group's.
    one_by_one = not are_apart([number for column in by_name for number in column])
    if not one_by_one and rows and left:
        of_left = [(param, param.grad, *optimizer.state.get(param, {}).values()) for param in left]
        one_by_one = _meet([*[(*row, *own) for row, own in zip(rows, numbers, strict=True)], *of_left], Apart())
    if one_by_one:
        rows, left = [], params
    if rows:
        columns = list(map(kernels.numbers.column, by_name))
        dtypes = [column[0].dtype for column in by_name]
        counted = Counted(formula, group, columns, dtypes, firsts)
        refused = _run(formula, group, kernels, rows, counted)
        for (param, _, *states), first in zip(rows, firsts, strict=True):
            if first and not any(param is p for p in refused):
                names = formula.variant(group, param.dtype, param.shape).states
                optimizer.state[param].update(zip(names, states, strict=True))
        left += refused
        if not left:
            kernels.known[key] = GroupGuard(optimizer, group, formula, rows, by_name, columns)
    still = set(map(id, left))
    torchs_step(optimizer, group, [param for param in params if id(param) in still])


def _meet(rows: list[Sequence[Any]], apart: Apart) -> bool:
    """Whether what is written of one of these parameters is another's, too: rows of (param, grad, *states). What has no elements
    in memory is nobody else's."""
    there = [(t, i) for row in rows for i, t in enumerate(row) if _has_memory(t)]
    try:
        apart.check([t for t, _ in there], [place for place, (_, i) in enumerate(there) if i != 1])
    except Overlapping:
        return True
    return False


def _run(
    formula: Formula, group: dict, kernels: Kernels, rows: list[Sequence[Tensor]], counted: Counted,
    known: GroupGuard | None = None,
) -> list[Tensor]:
    """The kernels over rows of (param, grad, *states); gives the parameters that they did not update, since they share
    memory with others. `known`: what knows them, where the last step found them, too."""
    alike: dict[tuple, Sequence[int]] = {}
    if known is not None and known.kind is not None and counted.all is not None:
        alike[(*known.kind, None, counted.all)] = range(len(rows))
    else:
        for i, (row, count) in enumerate(zip(rows, counted.counts, strict=True)):
            shape = None if formula.elementwise else row[0].shape
            alike.setdefault((row[0].device, row[0].dtype, shape, count), []).append(i)
    chosen = []
    for (_, dtype, shape, count), places in alike.items():
        v, some = formula.variant(group, dtype, shape), [rows[i] for i in places]
        chosen.append((kernels.get(v, some[0][0]), some, v.values(group, count), places))
    if len(chosen) > 1 and _meet(rows, known.apart if known else Apart()):  # a kernel looks at its own alone
        return [row[0] for row in rows]
    # From here on tensors are changed: compiling, which can be interrupted, is over. Counting comes before the kernel,
    # which takes these objects out of the caches.
    still = set(range(len(rows)))
    with interrupts.held():
        counted.advance()
        # Autograd is told that all but the gradients, second in a row, were written: a saved weight is seen to have changed.
        torch.autograd.graph.increment_version(known.written if known else [t for p, _, *its in rows for t in (p, *its)])
        try:
            for kernel, some, scalars, places in chosen:
                if kernel.run(some, scalars):
                    still.difference_update(places)
        finally:
            if still:
                counted.go_back(still)
    return [rows[i][0] for i in sorted(still)]


__all__ = ["attach", "compiles", "is_attached", "replaced", "stays_torchs", "variant_of"]
