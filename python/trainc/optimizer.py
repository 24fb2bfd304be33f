"""The optimizer's step: AdamW, Adam and SGD as one elementwise kernel over all parameters; any other runs as it is.

The formulas are those of torch.optim's single-tensor, foreach and fused variants, which differ in single roundings (their C++
compilers contract some products and sums), written with the operations in their order. What depends on the step or on a
setting (learning rate, betas, bias corrections) is computed on the host in double precision, as torch does, and passed as
scalars, so that a scheduler never recompiles. State is made by torch's own code: `state_dict` goes to and from a plain
optimizer. Capturable and differentiable steps stay torch's.
"""

from __future__ import annotations

import functools
import itertools
import json
import time
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.optim.adam import adam
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks
from torch.optim.sgd import sgd

from trainc import cache, config, device, messages, records, wire
from trainc.errors import InternalError
from trainc.optimizer_state import Known, Steps
from trainc.options import CompileOptions
from trainc.watch import is_trusted_file

Tensor = torch.Tensor


# ---- the formulas ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Variant:
    """What selects a formula: the user's flags and the type of the parameters."""

    kind: str
    dtype: torch.dtype
    maximize: bool = False
    weight_decay: bool = False
    decoupled: bool = False
    amsgrad: bool = False
    nesterov: bool = False
    momentum: bool = False
    first: bool = False  # SGD's first step of a parameter: the buffer starts as the gradient
    lerp_from_end: bool = False  # torch.lerp counts from the far end from weight 0.5 on

    def tensors(self) -> int:
        if self.kind == "adam":
            return 5 if self.amsgrad else 4
        return 3 if self.momentum else 2


def adam_formula(v: Variant) -> tuple[Callable[..., tuple[Tensor, ...]], int, list[int]]:
    """(update, how many scalars it takes, inputs that its results replace). Inputs: param, grad, exp_avg, exp_avg_sq, [max]."""

    def update(*inputs: Tensor) -> tuple[Tensor, ...]:
        param, grad, exp_avg, exp_avg_sq = inputs[:4]
        weight, beta2, rest2, bias2_sqrt, eps, step_size, *decay = inputs[v.tensors() :]
        if v.maximize:
            grad = -grad
        if v.weight_decay:
            if v.decoupled:
                param = param * decay[0]
            else:
                grad = grad + param * decay[0]
        exp_avg = grad - (grad - exp_avg) * weight if v.lerp_from_end else exp_avg + weight * (grad - exp_avg)
        exp_avg_sq = exp_avg_sq * beta2 + rest2 * grad * grad
        second = exp_avg_sq
        results = (exp_avg, exp_avg_sq)
        if v.amsgrad:
            second = torch.maximum(inputs[4], exp_avg_sq)
            results = (*results, second)
        denom = second.sqrt() / bias2_sqrt + eps
        return (param + step_size * exp_avg / denom, *results)

    return update, 6 + v.weight_decay, [0, 2, 3, 4] if v.amsgrad else [0, 2, 3]


def adam_scalars(group: dict, step: float, v: Variant) -> list[float]:
    beta1, beta2 = group["betas"]
    lr, weight_decay = group["lr"], group["weight_decay"]
    decay = 1 - lr * weight_decay if v.decoupled else weight_decay
    return [
        1 - (1 - beta1) if v.lerp_from_end else 1 - beta1,
        beta2,
        1 - beta2,
        (1 - beta2**step) ** 0.5,
        group["eps"],
        -(lr / (1 - beta1**step)),
        *([decay] if v.weight_decay else []),
    ]


def sgd_formula(v: Variant) -> tuple[Callable[..., tuple[Tensor, ...]], int, list[int]]:
    """Inputs: param, grad, [momentum_buffer]."""

    def update(*inputs: Tensor) -> tuple[Tensor, ...]:
        param, grad = inputs[:2]
        scalars = dict(zip(sgd_scalar_names(v), inputs[v.tensors() :], strict=True))
        if v.maximize:
            grad = -grad
        if v.weight_decay:
            grad = grad + param * scalars["decay"]
        if not v.momentum:
            return (param + scalars["step_size"] * grad,)
        buffer = grad if v.first else inputs[2] * scalars["momentum"] + scalars["rest"] * grad
        direction = grad + buffer * scalars["momentum"] if v.nesterov else buffer
        return param + scalars["step_size"] * direction, buffer

    return update, len(sgd_scalar_names(v)), [0, 2] if v.momentum else [0]


def sgd_scalar_names(v: Variant) -> list[str]:
    """Only those that the variant reads."""
    after_first = v.momentum and not v.first
    wanted = {"decay": v.weight_decay, "momentum": after_first or v.nesterov, "rest": after_first, "step_size": True}
    return [name for name, reads in wanted.items() if reads]


def sgd_scalars(group: dict, v: Variant) -> list[float]:
    values = {
        "decay": group["weight_decay"], "momentum": group["momentum"], "rest": 1 - group["dampening"], "step_size": -group["lr"],
    }  # fmt: skip
    return [values[name] for name in sgd_scalar_names(v)]


def variant_of(owner: torch.optim.Optimizer, group: dict, dtype: torch.dtype | None, first: bool = False) -> Variant:
    """The formula of a group's parameters of this type; `first`: SGD's first step of one."""
    maximize, decay = group["maximize"], group["weight_decay"] != 0
    if isinstance(owner, torch.optim.SGD):
        return _variant("sgd", dtype, maximize, decay, nesterov=group["nesterov"], momentum=group["momentum"] != 0, first=first)
    return _variant(
        "adam", dtype, maximize, decay, group["decoupled_weight_decay"], group["amsgrad"],
        lerp_from_end=1 - group["betas"][0] >= 0.5,
    )  # fmt: skip


_variant = functools.lru_cache(Variant)  # of the few that a program has


# ---- the kernels ----------------------------------------------------------------------------------------------------

ELEMENTS = 1024  # of the tensors that a formula is traced with; the kernel takes any number


def formula_of(v: Variant) -> tuple[Callable[..., tuple[Tensor, ...]], int, list[int]]:
    """The update of a variant, how many scalars it takes after its tensors, and the inputs that its results replace."""
    return (adam_formula if v.kind == "adam" else sgd_formula)(v)


@functools.cache
def trace_formula(v: Variant) -> torch.fx.GraphModule:
    """The update as a graph, for whoever only reads it."""
    formula, scalars, _ = formula_of(v)
    with torch._subclasses.FakeTensorMode():
        inputs = [torch.empty(ELEMENTS, dtype=v.dtype, device="cpu") for _ in range(v.tensors())]
        inputs += [torch.empty((), dtype=v.dtype, device="cpu") for _ in range(scalars)]
        return make_fx(lambda *args: formula(*args))(*inputs)


class CoreKernel:
    def __init__(self, v: Variant, name: str, where: device.Host):
        from trainc import _core

        gm, in_place = trace_formula(v), formula_of(v)[2]
        self.elements = 0  # that the last step updated
        self._where, on = where, where.target()["device"]
        options = CompileOptions.of(where)
        self._operations = sum(n.meta["val"].dim() for n in gm.graph.nodes if n.op == "call_function")
        self._moved = (v.tensors() + len(in_place)) * v.dtype.itemsize
        with messages.progress(name):
            graph = wire.graph_json(gm.graph, name)
            (self._foreach, self.from_cache), _ = cache.through(
                cache.key("foreach", options, graph, in_place, name),
                lambda _, plan: (_core.load_foreach(plan, on), True),
                lambda: (_core.compile_foreach(graph, in_place, name, options.for_compiler(), on), False),
                lambda made: ({}, made[0].save()),
            )

    def run(self, tensors: list[Sequence[Tensor]], scalars: list[float]) -> bool:
        """False, and nothing is done, where a tensor that is written shares memory with another."""
        numels = [row[0].numel() for row in tensors]
        self.elements += sum(numels)
        try:
            return self._foreach.run([[t.data_ptr() for t in row] for row in tensors], numels, scalars, self._where.stream())
        except InternalError:
            for row in tensors:
                device.refuse_freed(row)
            raise

    def report(self) -> dict:
        report = json.loads(self._foreach.report())
        step = {
            "name": report["name"], "kind": "kernel", "flops": self.elements * self._operations,
            "bytes": self.elements * self._moved, "origins": report["origins"], "seconds": report.pop("seconds"),
        }  # fmt: skip
        return {**report, "from_cache": self.from_cache, "steps": [step] if self.elements else []}


class InterpretedKernel:
    def __init__(self, v: Variant, name: str, _where: device.Host):
        self.elements = 0
        self._formula, _, self._in_place = formula_of(v)
        self._variant, self._name = v, name

    def run(self, tensors: list[Sequence[Tensor]], scalars: list[float]) -> bool:
        numbers = [torch.tensor(value, dtype=self._variant.dtype, device="cpu") for value in scalars]
        for row in tensors:
            results = self._formula(*row, *numbers)
            for place, result in zip(self._in_place, results, strict=True):
                row[place].copy_(result)
        return True  # one row after the other, as PyTorch does

    def report(self) -> dict:
        return {"name": self._name, "steps": [], "temp_bytes": 0, "saved_bytes": 0, "notes": ["interpreted"]}


class Kernels:
    """The kernels of one optimizer, by variant and device, compiled when first needed."""

    def __init__(self, optimizer: torch.optim.Optimizer):
        self._kernels: dict[tuple[Variant, device.Host], Any] = {}
        self.known: dict[int, Known] = {}  # by group: what all went into kernels
        self._records = records.of(optimizer)
        self.steps = Steps()

    def start_step(self) -> None:
        for kernel in self._kernels.values():
            kernel.elements = 0

    def get(self, v: Variant, like: Tensor) -> Any:
        """The kernel for tensors that lie where `like` does."""
        where = device.get(like.device)
        kernel = self._kernels.get((v, where))
        if kernel is None:
            kernel = self._kernels[v, where] = self._build(v, where)
        return kernel

    def _build(self, v: Variant, where: device.Host) -> Any:
        name = f"{'AdamW' if v.decoupled else v.kind.capitalize()} step"
        record = records.Compilation(name, engine=config.engine_name())
        start = time.perf_counter()
        try:
            kernel = (CoreKernel if record.engine == "core" else InterpretedKernel)(v, name, where)
        except Exception as error:
            messages.fell_back(name, error)
            record.engine, record.reason = "interpreter", str(error)
            kernel = InterpretedKernel(v, name, where)
        record.compile_seconds = time.perf_counter() - start
        record.optimizer = kernel
        self._records.append(record)
        return kernel


# ---- the steps ------------------------------------------------------------------------------------------------------


def attach(optimizer: torch.optim.Optimizer, fusing: Any = None) -> None:
    """Replaces `optimizer.step` where its class is one of those above; another optimizer stays as it is. `fusing` (fuse.Fusing)
    may do the step together with the backward."""
    step = STEPS.get(type(optimizer))
    if step is None:
        records.of(optimizer).append(
            records.Compilation(type(optimizer).__name__, route="eager", reason="not one of AdamW, Adam, SGD")
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
        if fusing is not None and fusing.step(self):
            return loss
        if stays_torchs(self):
            _unhooked(plain)(self)
            return loss
        kernels.start_step()
        with torch.no_grad():
            for group in self.param_groups:
                step(self, group, kernels)
        if len(kernels.known) > len(self.param_groups):
            kernels.known.clear()  # it holds the state of a group that is gone
        return loss

    watched = torch.optim.Optimizer.profile_hook_step(compiled_step)

    @functools.wraps(compiled_step)
    def hooked(self: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
        return (watched if _is_watched(self) else compiled_step)(self, *args, **kwargs)

    if hasattr(optimizer.step, "_wrapped_by_lr_sched"):
        hooked._wrapped_by_lr_sched = True  # type: ignore[attr-defined]
    optimizer.register_load_state_dict_pre_hook(lambda *_: kernels.known.clear())  # it holds the state that is replaced
    optimizer.step = types.MethodType(hooked, optimizer)
    optimizer.zero_grad = types.MethodType(_zero_grad, optimizer)


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


@functools.wraps(torch.optim.Optimizer.zero_grad)
def _zero_grad(self: torch.optim.Optimizer, set_to_none: bool = True) -> None:
    if not set_to_none or torch.autograd.profiler._is_profiler_enabled or torch.compiler.is_compiling():
        type(self).zero_grad(self, set_to_none)
        return
    for group in self.param_groups:
        for p in group["params"]:
            p.grad = None


def _is_watched(optimizer: torch.optim.Optimizer) -> bool:
    """Whether torch's wrapper of a step has something to do: run hooks, tell a profiler."""
    return bool(
        torch.autograd.profiler._is_profiler_enabled
        or optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks
        or _global_optimizer_pre_hooks or _global_optimizer_post_hooks
    )  # fmt: skip


def _unhooked(step: Callable[..., Any]) -> Callable[..., Any]:
    """torch's step without the wrapper that runs step hooks, which ours has run."""
    return step.__wrapped__ if getattr(step, "hooked", False) else step


def stays_torchs(optimizer: torch.optim.Optimizer) -> bool:
    """Capturable steps, tensors as settings, GradScaler's attributes: torch's own code has its say."""
    if getattr(optimizer, "grad_scale", None) is not None or getattr(optimizer, "found_inf", None) is not None:
        return True
    return any(
        group.get("capturable") or group.get("differentiable")
        or any(isinstance(group.get(name), Tensor) for name in ("lr", "weight_decay", "momentum"))
        or any(isinstance(beta, Tensor) for beta in group.get("betas", ()))
        for group in optimizer.param_groups
    )  # fmt: skip


def compiles(*tensors: Tensor) -> bool:
    """Whether the kernel can walk these side by side: dense, row-major, one dtype that it knows, in memory."""
    first = tensors[0]
    return first.dtype in (torch.float32, torch.float64) and all(
        type(t) in (Tensor, torch.nn.Parameter)
        and t.layout is torch.strided and t.dtype == first.dtype and t.shape == first.shape
        and t.device == first.device and t.device.type in ("cpu", "cuda") and t.is_contiguous() and not t.is_neg()
        for t in tensors
    )  # fmt: skip


def _adam_step(optimizer: torch.optim.Optimizer, group: dict, kernels: Kernels) -> None:
    known = kernels.known.get(id(group))
    if known is not None and (grads := known.gradients(optimizer, group)) is not None:
        table = list(zip(known.params, grads, *known.states, strict=True))
        numbers = kernels.steps.count(known.steps, known.scalar)
        torch.autograd.graph.increment_version(known.written)  # before the kernel, which takes these objects out of the caches
        _run_adam(optimizer, group, kernels, table, known.steps, numbers, known.kind)
        return
    for param in {(p.dtype, p.device): p for p in group["params"] if p.grad is not None}.values():
        if compiles(param):  # before any state is touched: compiling can be interrupted
            kernels.get(variant_of(optimizer, group, param.dtype), param)
    lists: list[list[Tensor]] = [[] for _ in range(6)]  # params, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs, steps
    has_complex = optimizer._init_group(group, *lists)
    *columns, steps = lists
    table = list(zip(*[column for column in columns if column], strict=True))
    fits = [compiles(*row) for row in table]
    kernels.known.pop(id(group), None)
    if table and all(fits):
        kernels.known[id(group)] = Known(optimizer, group, lists)
    compiled, counted = (list(itertools.compress(column, fits)) for column in (table, steps))
    _run_adam(optimizer, group, kernels, compiled, counted, kernels.steps.count(counted))
    _written(compiled)
    left = [i for i, fit in enumerate(fits) if not fit]
    if left:
        _torchs_adam(optimizer, group, [table[i] for i in left], [steps[i] for i in left], has_complex)


def _torchs_adam(
    optimizer: torch.optim.Optimizer, group: dict, rows: list[Sequence[Tensor]], steps: list[Tensor], has_complex: bool = False
) -> None:
    """torch's own step over rows of (param, grad, exp_avg, exp_avg_sq, [max])."""
    columns = [list(column) for column in zip(*rows, strict=True)]
    beta1, beta2 = group["betas"]
    adam(
        *columns, *([] if group["amsgrad"] else [[]]), steps, has_complex=has_complex, foreach=group["foreach"],
        fused=group["fused"], decoupled_weight_decay=group["decoupled_weight_decay"], amsgrad=group["amsgrad"], beta1=beta1,
        beta2=beta2, lr=group["lr"], weight_decay=group["weight_decay"], eps=group["eps"], maximize=group["maximize"],
    )  # fmt: skip


def _run_adam(
    optimizer: torch.optim.Optimizer,
    group: dict,
    kernels: Kernels,
    table: list[Sequence[Tensor]],
    steps: list[Tensor],
    numbers: list[float],
    kind: tuple[torch.device, torch.dtype] | None = None,
) -> None:
    """The kernels over rows of (param, grad, exp_avg, exp_avg_sq, [max]), each in its step of this number, which `steps` hold
    already. `kind`: of all params, where it is known to be one."""
    alike: dict[tuple[torch.device, torch.dtype, float], Sequence[int]] = {}
    if kind is not None and len(set(numbers)) == 1:
        alike[(*kind, numbers[0])] = range(len(table))
    else:
        for i, (row, number) in enumerate(zip(table, numbers, strict=True)):
            alike.setdefault((row[0].device, row[0].dtype, number), []).append(i)
    for (_, dtype, number), places in alike.items():
        v, rows = variant_of(optimizer, group, dtype), [table[i] for i in places]
        if not kernels.get(v, rows[0][0]).run(rows, adam_scalars(group, number, v)):
            counted = [steps[i] for i in places]
            torch._foreach_sub_(counted, 1.0)  # torch counts them itself
            _torchs_adam(optimizer, group, rows, counted)


def _sgd_step(optimizer: torch.optim.Optimizer, group: dict, kernels: Kernels) -> None:
    momentum = group["momentum"] != 0
    variant = functools.partial(variant_of, optimizer, group)
    params: list[Tensor] = []
    grads: list[Tensor] = []
    buffers: list[Tensor | None] = []
    optimizer._init_group(group, params, grads, buffers)
    buffers = buffers or [None] * len(params)
    rows: dict[tuple[Variant, torch.device], dict[int, list[Tensor]]] = {}
    left = []
    for i, (param, grad, buffer) in enumerate(zip(params, grads, buffers, strict=True)):
        first = momentum and buffer is None
        row = [param, grad, *([torch.empty_like(param) if first else buffer] if momentum else [])]
        if compiles(*row):
            rows.setdefault((variant(param.dtype, first), param.device), {})[i] = row
        else:
            left.append(i)
    chosen = [kernels.get(v, params[next(iter(places))]) for (v, _), places in rows.items()]
    # from here on parameters are touched: compiling, which can be interrupted, is over
    for ((v, _), places), kernel in zip(rows.items(), chosen, strict=True):
        tensors = list(places.values())
        if not kernel.run(tensors, sgd_scalars(group, v)):
            left = sorted([*left, *places])
            continue
        _written(tensors)
        if v.first:
            for param, _, buffer in tensors:
                optimizer.state[param]["momentum_buffer"] = buffer
    if left:
        rest = [buffers[i] for i in left]
        sgd(
            [params[i] for i in left], [grads[i] for i in left], rest, has_sparse_grad=any(grads[i].is_sparse for i in left),
            foreach=group["foreach"], fused=group["fused"], weight_decay=group["weight_decay"], momentum=group["momentum"],
            lr=group["lr"], dampening=group["dampening"], nesterov=group["nesterov"], maximize=group["maximize"],
        )  # fmt: skip
        if momentum:
            for i, buffer in zip(left, rest, strict=True):
                optimizer.state[params[i]]["momentum_buffer"] = buffer


def _written(rows: list[Sequence[Tensor]]) -> None:
    """Tells autograd that all but the gradients, second in a row, were written: a saved weight is seen to have changed."""
    torch.autograd.graph.increment_version([t for row in rows for i, t in enumerate(row) if i != 1])


STEPS = {torch.optim.AdamW: _adam_step, torch.optim.Adam: _adam_step, torch.optim.SGD: _sgd_step}
