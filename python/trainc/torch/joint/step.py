"""A whole step, compiled: forward, loss, backward, clipping and the optimizers' updates as one plan.

The plan keeps nothing between calls: what the backward needs and each gradient are temporaries, and parameters and optimizer
state are overwritten in place, each as soon as its gradient is there and nobody reads the old value any more.
"""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import torch

from trainc.base import interrupts, records
from trainc.base.errors import UserError
from trainc.base.shared_kernels import SharedKernels
from trainc.base.step_graph import StepGraph
from trainc.torch.capture.gradient_states import Want
from trainc.torch.capture.step_results import Returned
from trainc.torch.capture.step_trace import Traced
from trainc.torch.capture.structure import unflatten
from trainc.torch.graph.captured import captured, shared_kernels
from trainc.torch.graph.sizes import Symbols
from trainc.torch.joint.unleft import Unleft
from trainc.torch.optimizers.plan_updates import Misfit, PlanMemory, PlanUpdates
from trainc.torch.optimizers.updates import Found, Updates, shared_memory
from trainc.torch.run.runner import Runners, Step

Tensor = torch.Tensor


class GradientsHeld(UserError):
    """Tensors hold gradients from before the step, which a plan does not add to. Nothing has run yet."""


class CompiledStep:
    """One signature of a step, compiled. Inputs of the plan: the traced graph's (tensors, constants, the number 1), then the
    state of each slot, then the scalars of each key. `kernels`: what its plan shares with those for other sizes; `like`: one
    of these, whose memory its results may use."""

    def __init__(
        self, traced: Traced, updates: Updates, inputs: list[Tensor], record: records.Compilation, runners: Runners,
        kernels: SharedKernels | None = None, like: CompiledStep | None = None, verification: Any = None,
    ):  # fmt: skip
        self.traced, self.updates, self.record, self._runners = traced, updates, record, runners
        self._kernels, self._like, self._verification = kernels, like, verification
        self._inputs = len(inputs) + len(traced.constants)
        self._one = torch.ones((), device=runners.device.torch)
        self._classes: list[int] | None = None
        self._plan: Step | None = None
        self._step: StepGraph  # what it was made of
        for slot in traced.slots:
            if slot.parameter.dtype not in (torch.float32, torch.float64):
                kind = slot.parameter.dtype
                raise UserError(f"trainc.train_step updates f32 and f64 parameters, not {kind}: use trainc.compile")
        shared = shared_memory({slot.primal: inputs[slot.primal] for slot in traced.slots}, dict(enumerate(inputs)))
        if shared is not None:
            raise UserError(
                f"trainc.train_step: a parameter of shape {list(shared.shape)} shares its memory with another tensor of the "
                "step; use trainc.compile for this model"
            )
        self._memory = PlanMemory([*(slot.primal for slot in traced.slots), *(i for i, _ in traced.mutated)])
        before = traced.before
        wants = {**before.wants, **{i: Want.NO_VALUE for i, _, read in traced.kept if read}}
        # Not of arguments, which are others at each call.
        lasting = [i for i in wants if i in before.left or isinstance(inputs[i], torch.nn.Parameter)]
        left = {id(inputs[i]): what for i, what in before.left.items()}
        self._unleft = Unleft(left, {id(inputs[i]): wants[i] for i in lasting})
        self._read = [*before.read, *(i for i, _, read in traced.kept if read)]
        self._unread = [i for i in before.wants if i not in before.read]

    def __call__(self, tensors: list[Tensor], args: tuple, kwargs: dict) -> Any:
        self._check_gradients(tensors)
        self._unleft.check()
        found = self.updates.look()
        self._build_for(found)
        states = self.updates.states(found)
        try:
            self._memory.check(self.traced.slots, found, states, tensors)
        except Misfit as reason:
            raise UserError(f"trainc.train_step: {reason}; use trainc.compile for this model") from None
        scalars = self.updates.scalars(found)
        with interrupts.held():
            outputs = self._run(tensors, states, scalars)
            self.updates.finish(found, states)
            self._unleft.ran = True
            for call in self.traced.afterwards:
                call()
        own = [None if isinstance(place, Returned) else outputs[place] for place in self.traced.results]
        bases = [*tensors, *own]
        results = [place.of(bases) if isinstance(place, Returned) else outputs[place] for place in self.traced.results]
        return unflatten(self.traced.structure, results)

    def _run(self, tensors: list[Tensor], states: list[list[Tensor]], scalars: list[list[float]]) -> list[Tensor | None]:
        """All that a step writes: the plan's updates, buffers, gradients that stay."""
        self._clear_gradients(tensors)
        outputs = self._outputs([*tensors, *self.traced.constants, self._one], states, scalars)
        for i, learns in self.traced.learns:
            tensors[i].requires_grad_(learns)
        for i, place in self.traced.mutated:
            with torch.no_grad():
                tensors[i].copy_(outputs[place])
        for i, place, _ in self.traced.kept:
            with torch.no_grad():
                if (into := tensors[i].grad) is not None:
                    into.add_(outputs[place])
                else:  # of its own memory: a result may lie where the output does
                    tensors[i].grad = torch.empty_like(tensors[i]).copy_(outputs[place])
        return outputs

    def _outputs(
        self, inputs: list[Tensor], states: list[list[Tensor]], scalars: list[list[float]]
    ) -> list[Tensor | None]:
        """The plan's; parameters and states are updated. With verify= beside PyTorch, which goes on where the two part."""
        look = None
        if self._verification is not None:
            primals = [slot.primal for slot in self.traced.slots]
            about = states, scalars, self._runners.device
            look = self._verification.begin_step(self._step, self.record, primals, inputs, *about)
        outputs = self._plan(inputs, states, scalars)
        if look is not None and (error := look.differs(outputs, inputs, states)):
            outputs = look.take(inputs, states)
            self._runners.fall_back(self.record, error)
            self._plan = self._runners.now.whole(self._step)
        return outputs

    def prepare(self) -> None:
        """Compiles what the next call would run."""
        self._build_for(self.updates.look())

    def _build_for(self, found: Found) -> None:
        """A plan for these keys is there afterwards."""
        if found.classes != self._classes:
            self._build(found)

    def _check_gradients(self, tensors: list[Tensor]) -> None:
        """UserError where a gradient from before would be added to one of the step's, be used or be read."""
        held = any(tensors[i].grad is not None for i in self._unread)
        if held or any(state.want and other.grad is not None for other, state in self.traced.before.others):
            raise GradientsHeld(
                "trainc.train_step: parameters hold gradients from outside of the step, which would be added to its "
                "own or used as they are: call optimizer.zero_grad() before"
            )
        for i in self._read:
            if tensors[i].grad is not None:
                raise GradientsHeld(
                    f"trainc.train_step: the step reads the gradient of a tensor of shape {list(tensors[i].shape)} that "
                    "holds one from before, to which it is added: set its .grad to None before the step"
                )

    def _clear_gradients(self, tensors: list[Tensor]) -> None:
        before = self.traced.before
        others = [(other, state.now) for other, state in before.others]
        for tensor in (*(tensors[i] for i in before.drops), *(other for other, now in others if now == "own")):
            if tensor.grad is not None:
                tensor.grad = None
        for tensor in (*(tensors[i] for i in before.zeros), *(other for other, now in others if now == "zeros")):
            if tensor.grad is not None:
                with torch.no_grad():
                    tensor.grad.zero_()

    def _build(self, found: Found) -> None:
        traced, record, where = self.traced, self.record, self._runners.device
        primals = [slot.primal for slot in traced.slots]
        graph, narrow = traced.graph, {}
        if where.narrow_gradients:
            graph, narrow = _with_narrow_gradients(graph, traced.forward, len(primals))
        updates = PlanUpdates(found.classes, found.distinct, range(len(primals)), primals, self._inputs + 1, where, narrow)
        step = self._step = captured("step", graph, record.name, where, self._inputs, traced.forward, updates)
        self._plan = self._runners.make(record, lambda runner: runner.whole(step, self._kernels, record.limit))
        self._classes = found.classes
        if self._like is not None and self._like._plan is not None:
            self._plan.share_memory(self._like._plan)
        record.forward, record.whole, record.footprint = self._plan, True, self._plan.footprint


def _with_narrow_gradients(
    gm: torch.fx.GraphModule, forward: int, count: int
) -> tuple[torch.fx.GraphModule, dict[int, torch.dtype]]:
    """The graph with the first `count` results behind its `forward` ones, gradients, as they were before they were widened:
    (that graph, the dtype of each that is narrow). A gradient that is more than a cast of something stays."""
    aten, graph = torch.ops.aten, copy.deepcopy(gm.graph)
    output = next(iter(reversed(graph.nodes)))
    results, narrow = list(output.args[0]), {}
    for i in range(count):
        node = results[forward + i]
        while node is not None and node.target is aten.detach.default:
            node = node.args[0]
        if node is None or node.target is not aten._to_copy.default:
            continue
        wide, small = node.meta["val"], node.args[0].meta["val"]
        same = wide.shape == small.shape and wide.stride() == small.stride() and wide.device == small.device
        if same and wide.dtype == torch.float32 and small.dtype in (torch.bfloat16, torch.float16):
            results[forward + i], narrow[i] = node.args[0], small.dtype
    widened = [node for node, left in zip(output.args[0], results, strict=True) if node is not left]
    output.args = (type(output.args[0])(results),)
    for node in widened:
        while not node.users and node.target in (aten.detach.default, aten._to_copy.default):
            below = node.args[0]
            graph.erase_node(node)
            node = below
    return torch.fx.GraphModule(gm, graph), narrow


class Sizes:
    """A step that was traced with symbols: gives a CompiledStep for each set of sizes that the trace holds for, or None. They
    share kernels, the memory of results and what is known of the optimizers."""

    def __init__(self, traced: Traced, symbols: Symbols, updates: Updates, name: str, runners: Runners,
                 verification: Any = None):  # fmt: skip
        self._traced, self._symbols, self._updates, self._runners = traced, symbols, updates, runners
        self._template = symbols.template(traced.graph, traced.interface())
        self._first: CompiledStep | None = None
        self._verification = verification
        self._kernels = shared_kernels(symbols, lambda: self._template, name, runners.device)

    def __call__(self, inputs: list[Tensor], record: records.Compilation) -> CompiledStep | None:
        bound = self._symbols.bound(inputs)
        if bound is None:
            return None
        traced = dataclasses.replace(self._traced, graph=self._template.at(bound))
        # A limit is of one batch's sizes, and is met with numbers that kernels for other sizes would not have.
        kernels = self._kernels if record.limit is None else None
        inputs = [*inputs, self._symbols.numbers.input()] if self._symbols.numbers is not None else inputs
        step = CompiledStep(traced, self._updates, inputs, record, self._runners, kernels, self._first, self._verification)
        self._first = self._first or step
        return step


__all__ = ["CompiledStep", "GradientsHeld", "Sizes"]
