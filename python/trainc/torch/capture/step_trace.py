"""The body of a training loop as one graph: forward, backward and clipping as they are, the optimizers' steps as what they
would update.

The body runs once, on fake tensors that stand in for the modules' own. `backward()` leaves gradients on them, so that clipping
and
whatever else reads or changes `.grad` is traced like any operation; `optimizer.step()` records the gradients that it finds.
"""

from __future__ import annotations

import builtins
import contextlib
import sys
import threading
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import traceback as fx_traceback

from trainc.base.errors import NotCompiled, SideEffect
from trainc.base.patches import patched, replaced
from trainc.torch import compat
from trainc.torch.capture import caught, checkpoints, distributed, operation_cache, trace, traced_kernels, turns, writes
from trainc.torch.capture.averages import Averages
from trainc.torch.capture.constants import lift_constants
from trainc.torch.capture.disguise import Disguise
from trainc.torch.capture.dtypes import refuse_mixed, refuse_numbers
from trainc.torch.capture.gradient_states import GradientsBefore, GradientState, Left, gradients_before
from trainc.torch.capture.step_guards import NotYet, Unknown, check_result
from trainc.torch.capture.step_objects import Reached
from trainc.torch.capture.step_results import Returned, given_back
from trainc.torch.capture.step_tensors import StepTensors
from trainc.torch.capture.structure import Flattener, unflatten
from trainc.torch.compat import (
    FunctionalTensorMode,
    enable_python_dispatcher,
    from_fun,
    get_proxy_mode,
    make_fx,
    setup_stacktrace_preservation_hooks,
    to_fun,
)
from trainc.torch.graph import wire
from trainc.torch.graph.sizes import SYMBOLIC, Symbols
from trainc.torch.guards.kinds import names_of_users, set_later
from trainc.torch.guards.reads import Reads
from trainc.torch.guards.watch import suspended
from trainc.torch.optimizers.updates import Slot
from trainc.torch.strided import is_view, span
from trainc.torch.trust import is_trusted_code

Tensor = torch.Tensor


@dataclass
class Traced:
    """Inputs of `graph`: the modules' tensors, the arguments' tensors, `constants`, one tangent (the number 1).
    Outputs: `forward` of them that need no tangent, then the consumed gradients (one a slot), the gradients that stay, and the
    results that come of gradients."""

    graph: torch.fx.GraphModule
    constants: list[Tensor]
    forward: int
    slots: list[Slot]
    structure: tuple  # of what the body returns
    results: list[int | Returned]  # its tensors, as outputs of the graph, or what they are of an input
    mutated: list[tuple[int, int]]  # (input, output that is its new value)
    # (input, output that is added to its .grad, whether the step reads that gradient itself)
    kept: list[tuple[int, int, bool]]
    afterwards: list[Callable[[], Any]] = field(default_factory=list)  # what runs as Python after each step: schedulers
    before: GradientsBefore = field(default_factory=GradientsBefore)
    # inputs of which the body changes whether they want a gradient
    learns: list[tuple[int, bool]] = field(default_factory=list)

    def interface(self) -> tuple:
        """What a call gives back and writes, beside the graph."""
        slots = [(slot.primal, slot.group) for slot in self.slots]
        around = len(self.afterwards), self.before.interface(), self.learns
        return self.structure, self.forward, slots, self.results, self.mutated, self.kept, around


class Recorder:
    """What stands in for autograd, optimizers and schedulers while the body is traced."""

    def __init__(
        self,
        reached: Reached,
        originals: list[Tensor],
        stand_ins: list[Tensor],
        tangent: Tensor,
        own_backward: Callable[[], bool],
        tensors: StepTensors,
        averages: Averages | None,
    ):
        self.averages = averages
        self.reached, self.tangent, self.own_backward, self.tensors = reached, tangent, own_backward, tensors
        self._index = {id(original): i for i, original in enumerate(originals)}
        self._originals, self._stand_ins = originals, stand_ins
        self.consumed: list[tuple[Slot, Tensor]] = []
        self._updated: dict[int, int] = {}  # by inputs that were updated: the optimizer
        self._zeros: dict[int, Any] = {}  # gradients of inputs that zero_grad() has filled with zeros, as they were then
        self._others: dict[int, tuple[Tensor, GradientState]] = {}  # parameters of optimizers that are no inputs
        self.stepped: set[int] = set()  # optimizers
        self._scheduled: list[Any] = []  # schedulers that stepped
        self._until_over = contextlib.ExitStack()
        self.backwards = 0
        self._raw: dict[int, Any] = {}  # of each input, its gradient as the first backward() left it
        self._shared: list[tuple[Tensor, Any]] = []  # gradients that share memory with others in PyTorch, as they were made
        self.last_node: Any = None  # when the first parameter was updated
        self.afterwards: list[Callable[[], Any]] = []

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            # Other threads have backward passes, optimizers and print() of their own.
            backward = turns.mine(lambda t, *a, **k: self.backward(t, *a, **k), Tensor.backward)
            stack.enter_context(patched(*compat.TENSOR_BACKWARD, lambda t, *a, **k: backward(t, *a, **k)))
            both = turns.mine(self.backward_of, torch.autograd.backward)
            stack.enter_context(patched(*compat.AUTOGRAD_BACKWARD, both))
            stack.enter_context(patched(builtins, "print", _refusing_print()))
            if self.averages is not None:
                stack.enter_context(self.averages.active())
            for i, optimizer in enumerate(self.reached.optimizers):
                step = turns.mine(lambda *a, i=i, **k: self.step(i, *a, **k), optimizer.step)
                stack.enter_context(replaced(optimizer.__dict__, "step", step))
                zero_grad = turns.mine(
                    lambda set_to_none=True, *, i=i: self.zero_grad(i, set_to_none), optimizer.zero_grad
                )
                stack.enter_context(replaced(optimizer.__dict__, "zero_grad", zero_grad))
                kind = type(optimizer).__name__
                unknown = Unknown(f"the step reads `{kind}.state`, which is another at each call: read it outside of the step")
                stack.enter_context(replaced(optimizer.__dict__, "state", unknown))
            for scheduler in self.reached.schedulers:
                later = turns.mine(lambda *a, s=scheduler, **k: self.later(s, *a, **k), scheduler.step)
                stack.enter_context(replaced(scheduler.__dict__, "step", later))
            stack.enter_context(self._until_over)
            stack.enter_context(self.tensors)
            yield

    def backward_of(
        self, tensors: Any, grad_tensors: Any = None, retain_graph: Any = None, create_graph: bool = False,
        grad_variables: Any = None, inputs: Any = None,
    ) -> None:  # fmt: skip
        """`torch.autograd.backward`."""
        gradients = grad_tensors if grad_variables is None else grad_variables
        one = [given[0] if isinstance(given, (list, tuple)) and len(given) == 1 else given for given in (tensors, gradients)]
        self.backward(*one, retain_graph, create_graph, inputs)

    def backward(
        self, loss: Tensor, gradient: Any = None, retain_graph: Any = None, create_graph: bool = False, inputs: Any = None
    ) -> None:
        if create_graph or inputs is not None or not isinstance(loss, Tensor):
            raise NotCompiled(
                f"{here()}backward() with create_graph, inputs or several tensors; train_step takes loss.backward()"
            )
        if gradient is None and loss.numel() != 1:
            raise RuntimeError("grad can be implicitly created only for scalar outputs")
        self.backwards += 1
        tangent = self.tangent.to(loss.dtype).expand(loss.shape)
        own = {i: t for i, t in enumerate(self._stand_ins) if t.requires_grad and t.is_leaf}
        leaves = [*own.values(), *_other_leaves(loss, {id(leaf) for leaf in own.values()})]
        if any(compat.has_accumulation_hooks(leaf) for leaf in leaves):
            raise NotCompiled(f"{here()}a hook on a gradient's accumulation: change gradients after backward()")
        if loss.grad_fn is not None:
            setup_stacktrace_preservation_hooks([loss.grad_fn])
        if gradient is not None and gradient.shape != loss.shape:
            shapes = f"the gradient of backward() has shape {list(gradient.shape)}, what it is of {list(loss.shape)}"
            raise RuntimeError(f"Mismatch in shape: {shapes}")
        tangent_of_loss = tangent if gradient is None else gradient * tangent
        with contextlib.ExitStack() as stack:
            # Its operations' lines end with it: PyTorch sees to that only until a backward has raised an error under a trace.
            stack.enter_context(fx_traceback.preserve_node_meta())
            if not self.own_backward():
                stack.enter_context(suspended())
            # A GPU's part of a backward runs on a thread of autograd's own, where nothing of this trace is in place.
            stack.enter_context(torch.autograd.set_multithreading_enabled(False))
            found = torch.autograd.grad(loss, leaves, tangent_of_loss, retain_graph=retain_graph, allow_unused=True)
        self._accumulate(leaves, found, tangent)
        reached = {id(leaf) for leaf, grad in zip(leaves, found, strict=True) if grad is not None}
        if self.averages is not None:
            self.averages.after_backward(reached)
            # Each mean has memory of its own.
            self._shared = [(grad, from_fun(grad)) for grad, _ in self._shared]
        for i, leaf in own.items():
            if leaf.grad is not None and (id(leaf) in reached or self.tensors.gradients[i].now in ("before", "zeros")):
                self.tensors.gradients[i].after("added")
        grads = {i: leaf.grad for i, leaf in own.items()} if self.backwards == 1 else {}
        self._raw = {i: from_fun(grad) for i, grad in grads.items() if grad is not None}

    def _accumulate(self, leaves: list[Tensor], found: Any, tangent: Tensor) -> None:
        """As PyTorch's AccumulateGrad: into a gradient that is there, in place; else each becomes a tensor of its own."""
        owners: dict[int, list[Tensor]] = {}  # by memory
        for grad in found:
            if grad is not None:
                owners.setdefault(compat.storage_id(grad), []).append(grad)
        taken = {compat.storage_id(tangent)}
        with torch.no_grad():
            for leaf, grad in zip(leaves, found, strict=True):
                if grad is None:
                    continue
                if leaf.grad is not None:
                    leaf.grad.add_(grad)
                    continue
                memory = compat.storage_id(grad)
                alike = owners[memory]
                if self.own_backward() or memory in taken or len(alike) > 1 or 0 in grad.stride():
                    leaf.grad = torch.empty_like(leaf).copy_(grad)
                    if any(_overlap(grad, other) for other in alike):
                        self._shared.append((leaf.grad, from_fun(leaf.grad)))
                else:
                    leaf.grad = grad

    def step(self, number: int, closure: Any = None) -> None:
        if closure is not None:
            raise NotCompiled(f"{here()}optimizer.step(closure): train_step takes a step without one")
        if number in self.stepped:
            raise NotCompiled(f"{here()}a second step of one optimizer: a train_step updates each parameter once")
        self.stepped.add(number)
        own = self.reached.optimizers[number]
        if any(getattr(scheduler, "optimizer", own) is own for scheduler in self._scheduled):
            raise NotCompiled(f"{here()}scheduler.step() before optimizer.step(): it runs after the step, so call it there")
        for g, group in enumerate(self.reached.optimizers[number].param_groups):
            for parameter in group["params"]:
                primal = self._index.get(id(parameter))
                if primal in self._updated:
                    what = "the optimizer has a parameter" if self._updated[primal] == number else "optimizers update a parameter"
                    raise NotCompiled(f"{here()}{what} twice; a train_step updates each once")
                if primal is None and parameter.requires_grad:
                    raise NotCompiled(
                        f"{here()}the optimizer updates a tensor{list(parameter.shape)} that belongs to no module that the step "
                        "reaches: make it a parameter of one"
                    )
                self._state_of(parameter).stepped()
                if primal is None:
                    continue
                with torch.no_grad():
                    if (grad := self._stand_ins[primal].grad) is not None:  # as it is now: the body may write it afterwards
                        laid_out = from_fun(_laid_out(grad, parameter).detach())
                        self.consumed.append((Slot(number, g, parameter, primal), laid_out))
                        self._updated[primal] = number
        if self.last_node is None and (mode := get_proxy_mode()) is not None:
            self.last_node = compat.last_node(mode.tracer.graph)

    def _state_of(self, parameter: Tensor) -> GradientState:
        primal = self._index.get(id(parameter))
        if primal is not None:
            return self.tensors.gradients[primal]
        return self._others.setdefault(id(parameter), (parameter, GradientState()))[1]

    def zero_grad(self, number: int, set_to_none: bool) -> None:
        for group in self.reached.optimizers[number].param_groups:
            for parameter in group["params"]:
                self._state_of(parameter).after("dropped" if set_to_none else "zeroed")
                primal = self._index.get(id(parameter))
                if primal is None or (grad := self._stand_ins[primal].grad) is None:
                    continue
                with torch.no_grad():
                    if set_to_none:
                        self._stand_ins[primal].grad = None
                    else:
                        self._zeros[primal] = from_fun(grad.zero_())

    def gradients_before(self) -> GradientsBefore:
        left: dict[int, Left | None] = {}
        for slot, _ in self.consumed:
            if (grad := self._stand_ins[slot.primal].grad) is None:
                left[slot.primal] = None
            else:
                left[slot.primal] = "zeros" if from_fun(grad) is self._zeros.get(slot.primal) else "value"
        return gradients_before(self.tensors.gradients, self._others.values(), left)

    def check_shared(self) -> None:
        """NotCompiled where the body wrote a gradient that another lies over in PyTorch, where that was changed, too."""
        if any(from_fun(grad) is not raw for grad, raw in self._shared):
            raise NotCompiled(
                "the step writes gradients in place, two of which are one in PyTorch, since their parameters, of two shapes, are "
                "added: give each a clone() of its own before"
            )

    def later(self, scheduler: Any, *args: Any, **kwargs: Any) -> None:
        if any(isinstance(value, SYMBOLIC) for value in (*args, *kwargs.values())):
            raise NotCompiled(f"{here()}a scheduler is given a size")
        if any(isinstance(value, Tensor) for value in (*args, *kwargs.values())):
            raise NotCompiled(
                f"{here()}{type(scheduler).__name__}.step() is given a tensor, whose value is not known while the step is "
                "compiled: return it, and call scheduler.step() after the step"
            )
        self._scheduled.append(scheduler)
        self._hide_settings(scheduler)
        self.afterwards.append(lambda: scheduler.step(*args, **kwargs))

    def _hide_settings(self, scheduler: Any) -> None:
        """What a scheduler sets has its new value only after the step: the rest of the body must not read the old one."""
        owner = getattr(scheduler, "optimizer", None)
        # a scheduler of the user's may set what it likes
        settings = {"lr", "momentum", "betas", *names_of_users(type(scheduler))} - {"params"}
        tables = [(group, settings, "param_groups") for group in owner.param_groups] if owner else []
        for each in (scheduler, *self.reached.schedulers):
            if each is scheduler or getattr(each, "optimizer", None) is owner:  # SequentialLR steps others
                kind = type(each)
                tables.append((each.__dict__, {"_last_lr", "last_epoch", "_step_count"} | set_later(kind), kind.__name__))
        for table, keys, name in tables:
            for key in keys:
                if key in table and not isinstance(table[key], NotYet):
                    self._until_over.enter_context(replaced(table, key, NotYet(f"{name}.{key}")))

    def kept(self) -> list[tuple[int, Tensor, bool]]:
        """(input, gradient, whether it is as backward() left it) of what no optimizer consumed and no zero_grad() dropped."""
        consumed = {slot.primal for slot, _ in self.consumed}
        return [
            (i, grad, from_fun(grad) is self._raw.get(i))
            for i, stand_in in enumerate(self._stand_ins)
            if (grad := stand_in.grad) is not None and i not in consumed
        ]


def _laid_out(grad: Tensor, parameter: Tensor) -> Tensor:
    if not parameter.is_contiguous():
        raise NotCompiled(f"a parameter of shape {list(parameter.shape)} is not contiguous")
    return grad.contiguous() if grad.is_contiguous() else grad.clone(memory_format=torch.contiguous_format)


def _overlap(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors that one memory holds, and that are not the very same, may have an element in common."""
    return a is not b and all(x.storage_offset() <= _last_of(y) for x, y in ((a, b), (b, a)))


def _last_of(tensor: Tensor) -> Any:
    return tensor.storage_offset() + span(tensor.shape, tensor.stride()) - 1


def _other_leaves(loss: Tensor, known: set[int]) -> list[Tensor]:
    """Tensors that want a gradient and were made in the step (detach().requires_grad_()); it may read their `.grad`."""
    found: dict[int, Tensor] = {}
    waiting, seen = [loss.grad_fn], {None}
    while waiting:
        node = waiting.pop()
        if node in seen:
            continue
        seen.add(node)
        if node.name() == "torch::autograd::AccumulateGrad":
            if id(node.variable) not in known and node.variable.requires_grad:  # no longer: PyTorch passes over it
                found[id(node.variable)] = node.variable
        else:
            waiting += [following for following, _ in node.next_functions]
    return list(found.values())


_print = builtins.print


def _refusing_print() -> Callable[..., None]:
    thread = threading.get_ident()

    def refuse_print(*args: Any, **kwargs: Any) -> None:
        if threading.get_ident() != thread or not _is_users(sys._getframe(1)):
            return _print(*args, **kwargs)
        raise NotCompiled(f"{here()}print() would run once, while the step is traced: return what you want to print")

    return refuse_print


def _is_users(frame: types.FrameType) -> bool:
    """Whether a line is the program's, which may be a string."""
    path = frame.f_code.co_filename
    return not (is_trusted_code(frame.f_code, frame.f_globals) if path.startswith("<") else wire.is_internal_file(path))


def here() -> str:
    """The user's line that is running, before what is said of it: "train.py:41: "."""
    frame = sys._getframe(1)
    while frame is not None and not _is_users(frame):
        frame = frame.f_back
    return "" if frame is None else f"{wire.short(frame.f_code.co_filename)}:{frame.f_lineno}: "


def trace_step(
    body: Callable[..., Any],
    state: Any,
    structure: tuple,
    inputs: list[Tensor],
    reached: Reached,
    symbols: Symbols | None = None,
    *,
    reads: Reads,
    disguise: Disguise,
    averages: Averages | None = None,
) -> Traced:
    """Traces `body(*arguments)`; `inputs`: the tensors of `state`, then those of the arguments. `symbols`, of these
    inputs: the trace is with their symbolic sizes. `reads`: what the body is seen to reach. `disguise`: what
    the trace's tensors look like to it. `averages`: of the DistributedDataParallel among its modules."""
    count = len(state.tensors())
    numbers = symbols.numbers if symbols is not None else None
    if numbers is not None:
        reads.in_place, numbers.reads = True, reads
    found: dict[str, Any] = {}

    def flat(*fakes: Tensor) -> tuple[Tensor, ...]:
        with FunctionalTensorMode():
            tensors = [to_fun(fake) for fake in fakes]
            for tensor, original in zip(tensors, inputs, strict=False):
                if original.requires_grad:
                    tensor.requires_grad_()
            disguise.dress(tensors, inputs)
            own = StepTensors(inputs[:count], tensors[:-1], reads)
            recorder = Recorder(reached, inputs, tensors[:-1], tensors[-1], lambda: reads.own_backward, own, averages)
            modes = trace.ambient()
            args, kwargs = unflatten(structure, tensors[count:-1], numbers)
            in_place = numbers.in_place() if numbers is not None else contextlib.nullcontext()
            with state.swapped(tensors[:count]), recorder.active(), in_place, checkpoints.of_program(tensors[:-1]):
                result = own.traced(body(*args, **kwargs))
            caught.now().check(": catch it around the step")
            trace.check_ambient(modes, "the step")
            after = Flattener()
            if after.flatten((args, kwargs)) != structure or any(
                a is not b for a, b in zip(after.tensors, tensors[count:-1], strict=False)
            ):
                raise SideEffect("the step changes a list or dictionary among its arguments: return what it would put there")
            if any(compat.has_gradient_hooks(tensors[i]) for i in range(len(inputs)) if inputs[i].requires_grad):
                raise NotCompiled("the step registers a gradient hook on a tensor that stays: it would be registered once")
            if any(t.shape != fake.shape or t.stride() != fake.stride() for t, fake in zip(tensors, fakes, strict=True)):
                raise SideEffect("the step changes the shape or strides of an argument or of its model's tensors")
            if not recorder.consumed:
                raise NotCompiled(
                    "the step never calls optimizer.step() with a gradient: train_step wants forward, backward() and step() in it"
                )
            recorder.check_shared()
            found["before"] = recorder.gradients_before()
            found["learns"] = [
                (i, t.requires_grad) for i, (t, original) in enumerate(zip(tensors, inputs, strict=False))
                if t.is_leaf and t.requires_grad != original.requires_grad
            ]  # fmt: skip
            flattener = Flattener(known=reads.knows)
            found["structure"], found["recorder"] = flattener.flatten(result), recorder
            trace.check_attributes([*tensors[:-1], *flattener.tensors], "the step")
            memory.check_left(tensors, flattener.tensors, knows_parts=False)
            check_result(found["structure"])
            found["returned"] = given_back(flattener.tensors, tensors[:-1])
            results = [
                from_fun(tensor.detach())
                for tensor, returned in zip(flattener.tensors, found["returned"], strict=True) if returned is None
            ]  # fmt: skip
            values = [from_fun(tensor) for tensor in tensors[:-1]]
            found["mutated"] = [i for i, (value, fake) in enumerate(zip(values, fakes, strict=False)) if value is not fake]
            kept = recorder.kept()
            found["kept"] = [(i, raw) for i, _, raw in kept]
            gradients = [*(grad for _, grad in recorder.consumed), *(from_fun(grad.detach()) for _, grad, _ in kept)]
            return (*results, *(values[i] for i in found["mutated"]), *gradients)

    mode = symbols.mode if symbols is not None else compat.FakeTensorMode()
    tangent = torch.ones((), device=next((t.device for t in inputs if t.dim()), "cpu"))
    with (
        trace.tracing(), trace.inside(flat.__code__), trace.recurrent_layers(), traced_kernels.as_eager(),
        trace.without_tokens(), fx_traceback.preserve_node_meta(),
    ):  # fmt: skip
        static = [*inputs, tangent] if symbols is None else [tangent]
        fakes = [mode.from_tensor(tensor.detach(), static_shapes=True) for tensor in static]
        if symbols is not None:
            fakes = [*(fake.detach() for fake in symbols.inputs), *fakes]
        with enable_python_dispatcher(), mode, operation_cache.quick(), writes.as_eager() as memory:
            gm = make_fx(flat)(*fakes)
    return _arranged(gm, inputs, found, reads.is_users)


def _arranged(
    gm: torch.fx.GraphModule, inputs: list[Tensor], found: dict[str, Any], is_users: Callable[[Tensor], bool]
) -> Traced:
    """Outputs in the order of `Traced`: first what comes of no gradient."""
    recorder: Recorder = found["recorder"]
    placeholders = list(gm.graph.find_nodes(op="placeholder"))
    _check_order(gm, recorder, placeholders)
    output = next(iter(gm.graph.find_nodes(op="output")))
    outputs = list(output.args[0])
    late = {placeholders[-1]}
    for node in gm.graph.nodes:
        if node.op == "call_function" and not late.isdisjoint(node.all_input_nodes):
            late.add(node)
    for node in late:
        if node.op == "call_function" and node.meta.get("seq_nr", -1) >= 0:
            node.stack_trace = None  # the line of backward(); the forward's says more
    late = _with_later_draws(gm, late)
    for i in found["mutated"]:
        if inputs[i].requires_grad:
            raise NotCompiled(f"the step writes a parameter of shape {list(inputs[i].shape)} itself")
    results = len(outputs) - len(found["mutated"]) - len(recorder.consumed) - len(found["kept"])
    gradients = results + len(found["mutated"])
    early = [i for i in range(gradients) if outputs[i] not in late]
    order = [*early, *range(gradients, len(outputs)), *(i for i in range(gradients) if outputs[i] in late)]
    place = {old: new for new, old in enumerate(order)}
    states = recorder.tensors.gradients
    first_kept = gradients + len(recorder.consumed)
    kept = []
    for k, (i, raw) in enumerate(found["kept"]):
        read = states[i].now == "sum" and (not raw or _is_read(outputs[first_kept + k], outputs))
        kept.append((i, place[first_kept + k], read))
    output.args = (tuple(outputs[i] for i in order),)
    distributed.refuse_collectives(gm.graph)
    traced_kernels.correct_results(gm.graph)
    refuse_mixed(node for node in gm.graph.nodes if node not in late)  # also what eager computes for nothing
    gm.graph.eliminate_dead_code()
    gm.recompile()
    wire.give_backward_its_lines(gm.graph)
    refuse_numbers(gm.graph.nodes)
    constants = lift_constants(gm, placeholders[-1], is_users)
    return Traced(
        gm, constants, len(early), [slot for slot, _ in recorder.consumed], found["structure"],
        results=_in_order(found["returned"], place),
        mutated=[(i, place[results + k]) for k, i in enumerate(found["mutated"])],
        kept=kept, afterwards=recorder.afterwards, before=found["before"], learns=found["learns"],
    )  # fmt: skip


def _in_order(returned: list[Returned | None], place: dict[int, int]) -> list[int | Returned]:
    """Of each result, its index among the outputs of the graph; or the input, or other result, that it is or lies in."""
    outputs = iter(range(len(returned)))
    return [place[next(outputs)] if each is None else each for each in returned]


def _is_read(gradient: Any, outputs: list[Any]) -> bool:
    """Whether anything beside `.grad` is made of a gradient: another operation, or a result."""
    while isinstance(gradient, torch.fx.Node) and gradient.target is torch.ops.aten.detach.default:
        if len(gradient.users) > 1 or outputs.count(gradient) > 1:
            return True
        gradient = gradient.args[0]
    return not isinstance(gradient, torch.fx.Node) or len(gradient.users) > 1 or outputs.count(gradient) > 1


def _with_later_draws(gm: torch.fx.GraphModule, late: set[torch.fx.Node]) -> set[torch.fx.Node]:
    """`late` and what is behind a draw of it: draws keep their order."""
    late, drawn = set(late), False
    for node in gm.graph.nodes:
        if node.op == "call_function" and (drawn and wire.is_random(node.target) or not late.isdisjoint(node.all_input_nodes)):
            late.add(node)
            drawn = drawn or wire.is_random(node.target)
    return late


def _check_order(gm: torch.fx.GraphModule, recorder: Recorder, placeholders: list[torch.fx.Node]) -> None:
    """No operation after optimizer.step() may read a parameter, or the memory of one: it would see the old value."""
    updated, after = {placeholders[slot.primal] for slot, _ in recorder.consumed}, False
    for node in gm.graph.nodes:
        if node.op == "call_function" and not updated.isdisjoint(node.all_input_nodes):
            if is_view(node):
                updated.add(node)
            elif after:
                line = f"{line}: " if (line := wire.origin(node)) else ""
                raise NotCompiled(f"{line}the step uses a parameter again after optimizer.step(): make it two train_steps")
        after = after or node is recorder.last_node


__all__ = ["Traced", "trace_step"]
