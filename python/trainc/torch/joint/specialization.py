"""The plans of one captured graph for one set of sizes, and what runs them: the forward, its arena, the backward.

A trace with symbolic sizes has many specializations behind one autograd function (`joint.Compiler`); each arena is of another
length, which tells the backward whose it is.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import torch

from trainc.base import interrupts
from trainc.base.errors import NotCompiled, UserError
from trainc.base.records import Compilation
from trainc.base.shared_kernels import SharedKernels
from trainc.base.step_graph import NotChunked, StepGraph
from trainc.torch import compat
from trainc.torch.compat import disable_current_modes
from trainc.torch.device import Host
from trainc.torch.graph.captured import captured
from trainc.torch.guards.overlap import Apart
from trainc.torch.joint import storage
from trainc.torch.joint.outputs import Outputs
from trainc.torch.joint.unread import Unread
from trainc.torch.optimizers.plan_updates import Misfit, PlanMemory, PlanUpdates
from trainc.torch.optimizers.updates import Found, Slot, Updates
from trainc.torch.run.deferred import Pending
from trainc.torch.run.executable import CoreExecutable
from trainc.torch.run.pool import Pool
from trainc.torch.run.rerun import Rerun
from trainc.torch.run.runner import Executable, Joint, Runner, attempt
from trainc.torch.strided import is_apart

Tensor = torch.Tensor


class TraceContext:
    """What all specializations of one trace share."""

    def __init__(
        self, primals: int, constants: list[Tensor], forward_outputs: int, reached: list[int], written: set[int], draws: bool,
        device: Host,
    ):  # fmt: skip
        self.device, self.draws = device, draws  # whether a call draws random numbers
        self.primals, self.constants, self.forward_outputs = primals, constants, forward_outputs
        self.written = written  # primals that the program changes when the forward is over
        self.reached = reached  # of each gradient, a bit for each tangent that it is made for (reached.py)
        # what the backward is given beside the arena: indices below `primals` + `constants` are inputs, others results
        self.held: list[int] = []
        self.by_arena: dict[int, Specialization] = {}  # by the arena's length
        self.last: Specialization | None = None
        self.pool = Pool(device)
        self.pending = Pending()
        self.parameters: dict[int, dict[int, Tensor]] = {}  # by arena: those of its call that the backward makes gradients of

    def unmade(self, defined: tuple[bool, ...]) -> list[int]:
        """The gradients that none of these tangents reaches, by index: they are None."""
        mask = sum(1 << i for i, there in enumerate(defined) if there)
        return [i for i, tangents in enumerate(self.reached) if not tangents & mask]

    def is_constant(self, index: int) -> bool:
        return self.primals <= index < self.primals + len(self.constants)

    def held_of(self, inputs: Sequence[Any], results: Sequence[Any], arena: Tensor) -> list[Any]:
        """What the backward is given beside the arena, of a forward's inputs and results."""
        count = self.primals + len(self.constants)
        wholes = vars(arena).pop("trainc_wholes", {})  # the caller has parts of them
        return [inputs[i] if i < count else wholes.get(i - count, results[i - count]) for i in self.held]

    def kept(self) -> list[int] | None:
        """What a joint graph may keep of its inputs beside the arena: constants, and what the first one's backward holds."""
        return None if self.last is None else [*self.held, *range(self.primals, self.primals + len(self.constants))]

    def arena_bytes(self, saved: int) -> int:
        """At least `saved`, and no other specialization's."""
        size = max(saved, 1)
        while size in self.by_arena:
            size += 1
        return size


class Specialization:
    def __init__(
        self, compiler: Any, gm: torch.fx.GraphModule, record: Compilation, context: TraceContext,
        outputs_: Outputs | None = None, may_be_unread: bool = False,
    ):  # fmt: skip
        """`outputs_`: those of a specialization that this one replaces; they were taken from `gm` already. `may_be_unread`: a
        result may be left to whoever reads it (unread.py)."""
        self._compiler, self._record, self._context = compiler, record, context
        self.apart = Apart()
        inputs = context.primals + len(context.constants)
        self._outputs = outputs_ or Outputs(gm, context.forward_outputs)
        _give_tangents_memory(gm, inputs)
        outputs = next(iter(gm.graph.find_nodes(op="output"))).args[0]
        self._gradients = [i for i, made in enumerate(outputs[context.forward_outputs :]) if made is not None]
        record.gradients = self._gradients
        self._tangents = len(list(gm.graph.find_nodes(op="placeholder"))) - inputs
        self._fusion = compiler.fusion
        self._fused: dict[tuple, tuple[PlanUpdates, Any, PlanMemory] | None] = {}
        self._unmade: dict[tuple[bool, ...], list[int]] = {}  # by the tangents that are defined
        self._graph: torch.fx.GraphModule | None = gm  # until a backward has been compiled: PyTorch may have to run it
        # What is looked at beside PyTorch (verify=); what stands in for a plan is PyTorch's own.
        self._looked_at = gm if compiler.verification is not None and outputs_ is None else None
        self._replaced: Specialization | None = None  # what runs in PyTorch instead
        self._overwriting: dict[tuple[bool, ...], Any] = {}  # backward plans, by the tangents that are defined
        self._retaining: dict[tuple[bool, ...], Any] = {}
        record.backward, record.retaining, record.deferred = self._overwriting, self._retaining, None
        self._unread = self._left_out(gm, inputs) if may_be_unread and not compiler.reads_all else None
        self._unread_plan: Executable | None = None
        self._all: Specialization | None = None  # of the whole program, once the result was read

        whole = captured("joint", gm, record.name, context.device, inputs, context.forward_outputs)

        def joint_by(runner: Runner, defer_small: bool) -> Joint:
            if (unread := self._unread) is not None:
                step = captured("joint", unread.narrow, record.name, context.device, inputs, unread.forward_outputs)
                step = dataclasses.replace(step, undefined=unread.undefined, whole=whole)
                with contextlib.suppress(NotChunked):
                    return self._joint_by(runner, step, compiler.shared_without, defer_small)
                self._unread = None
            return self._joint_by(runner, whole, compiler.shared, defer_small)

        def joint_of(defer_small: bool) -> tuple[Joint, list[int]]:
            joint = compiler.runners.make(record, lambda runner: joint_by(runner, defer_small))
            return joint, [i for i in joint.saved_inputs if not context.is_constant(i)]

        joint, held = joint_of(False)
        if self._unread is not None and self._unread.is_given_away(held, joint.forward.aliases, inputs):
            self._unread = None
            joint, held = joint_of(False)
        if context.last is None:
            context.held = held
            if self._unread is not None:  # the plans of the whole program may follow
                also = {i for i in joint.saved_inputs_of_whole if not context.is_constant(i)} - {inputs + self._unread.index}
                context.held = sorted(also.union(held))
        elif not set(held) <= set(context.held):
            # A result that the backward wants is held where it is small, and lies in the arena (deferred) where it is large.
            joint, held = joint_of(True)
            if not set(held) <= set(context.held):
                raise NotCompiled("the backward for these sizes keeps other tensors of the caller's")
        self._joint, self._like = joint, context.last
        if self._like is not None and (self._like._unread is None) != (self._unread is None):  # it gives other results
            self._like = None
        record.forward, record.footprint, record.unread = joint.forward, joint.footprint, ""
        if (unread := self._unread) is not None:
            record.unread, self._copies = unread.described(), unread.copies(context.device)
            copied = sum(copy.bytes for copy in self._copies)
            record.footprint = lambda: _with_results(joint.footprint(), copied)
        if self._like is not None:
            joint.forward.share_memory(self._like._joint.forward)
        self.arena_bytes = context.arena_bytes(joint.saved_bytes)
        self._arena_type = torch.uint8, (self.arena_bytes,), (1,)
        self._outputs.settle(joint.forward)
        self._deferred_metas = [outputs[i].meta["val"] for i in joint.deferred_outputs]
        self._deferred_plan: Executable | None = None
        record.deferred_bytes = sum(meta.numel() * meta.itemsize for meta in self._deferred_metas)
        context.by_arena[self.arena_bytes] = context.last = self

    def _left_out(self, gm: torch.fx.GraphModule, inputs: int) -> Unread | None:
        if self._record.limit is not None or self._compiler.verification is not None:
            return None
        found = Unread.of(gm, inputs, self._context.forward_outputs)
        return None if found is None or found.index in self._outputs.shared() else found

    def _joint_by(self, runner: Runner, step: StepGraph, shared: SharedKernels | None, defer_small: bool) -> Joint:
        limit = self._record.limit
        # A limit is of one batch's sizes, and is met with numbers that kernels for other sizes would not have.
        shared = shared if limit is None else None
        step = dataclasses.replace(step, updates=self._expected_updates())
        return runner.joint(step, shared, limit, defer_small, self._context.kept())

    def forward(self, inputs: Sequence[Tensor]) -> list[Any]:
        """(the user's outputs..., arena)"""
        if self._unread is not None and (self._compiler.reads_all or compat.saved_tensors_hooks(True) is not None):
            return self._whole().forward(inputs)
        self._context.pending.settle()  # or their arena could not be used again
        return self._call(inputs)

    def _call(self, inputs: Sequence[Tensor]) -> list[Any]:
        context = self._context
        if self._compiler.writes:
            self.apart.check(inputs, self._compiler.writes)
        if self._compiler.begin:
            storage.check([*inputs, *context.constants], self._compiler.begin)
        arena = context.pool.tensor(self.arena_bytes, self._arena_type)
        if self._graph is not None or self._unread is not None:
            arena.trainc_rerun = Rerun(inputs, context.written, context.device, context.draws, self._graph)
        look = self._look_at(inputs)
        results = self._joint.forward([*inputs, *context.constants], arena)
        if self._unread is not None:
            results = self._unread.give(results, inputs, self._copies, self._read)
        if self._deferred_metas:
            tensors = context.pending.tensors(self._deferred_metas, context.device.torch, lambda: self._deferred(arena))
            for i, tensor in zip(self._joint.deferred_outputs, tensors, strict=True):
                results[i] = tensor
        if look is not None:
            if error := look.outputs(results):
                return self._instead(error, inputs, look)
            arena.trainc_look = look
        results, wholes = self._outputs(results, inputs)
        if wholes:
            arena.trainc_wholes = wholes
        if self._fuses:
            context.parameters[arena.data_ptr()] = {i: inputs[i] for i in self._gradients}
        return [*results, arena]

    def backward_in_parts(
        self, held: Sequence[Tensor], arena: Tensor, tangents: Sequence[Tensor | None]
    ) -> Callable[[Sequence[int]], list[Any]]:
        """What gives the gradients of inputs, by their places, each once. A plan that can runs no further than to these."""
        found = self.backward(held, arena, tangents, in_parts=True)
        return found if callable(found) else lambda places: [found[i] for i in places]

    def backward(
        self, held: Sequence[Tensor], arena: Tensor, tangents: Sequence[Tensor | None], in_parts: bool = False
    ) -> Any:
        if self._unread is not None and self._unread.wants(tangents):
            return self._backward_of_all(arena, tangents, in_parts)
        if self._compiler.before_backward is not None:
            self._compiler.before_backward()
        context = self._context
        given = dict(zip(context.held, held, strict=True))
        kept = [context.constants[i - context.primals] if context.is_constant(i) else given[i] for i in self._joint.saved_inputs]
        defined = tuple([tangent is not None for tangent in tangents])
        # Somebody may read the arena again: deferred outputs, or (retain_graph) another backward.
        retained = compat.keeps_graph()
        again = retained or context.pending.alive()

        unmade = self._unmade.get(defined)
        if unmade is None:
            unmade = self._unmade[defined] = context.unmade(defined)

        found = None

        def plan() -> Any:
            nonlocal found
            found = found or self._plans(not again).get(defined)
            if found is None:
                rerun = lambda error: functools.partial(self._backward_in_pytorch, error, tangents)  # noqa: E731
                found = attempt(self._record, lambda: self._backward(defined, overwrites=not again), rerun)
            return found

        def of_others() -> set[int]:
            """The gradients that are a parameter, or the caller's, as they are: autograd would take over their memory."""
            aliases = getattr(plan(), "aliases", {})  # PyTorch, where it runs in a plan's place, has none
            return {i for i, given in aliases.items() if given < len(kept) and i < len(context.reached)}

        def run() -> list[Tensor | None]:
            gradients = plan()([*kept, *tangents], arena)[: len(context.reached)]
            for i in of_others():
                gradients[i] = gradients[i].clone()
            for i in unmade:
                gradients[i] = None
            return gradients

        look = getattr(arena, "trainc_look", None)
        if in_parts and look is None and isinstance(plan(), CoreExecutable):
            parts = plan().in_parts([*kept, *tangents], arena)
            if parts is not None:
                copied = of_others()
                return lambda places: [
                    None if i in unmade else g.clone() if i in copied else g
                    for i, g in zip(places, parts.results(places), strict=True)
                ]
        if look is not None:
            return self._looked_at_gradients(look, run, tangents, unmade)

        def step(slots: list[Slot]) -> None:
            self._step(slots, kept, tangents, defined, arena)

        parameters = context.parameters.get(arena.data_ptr())  # not there: a hook on saved tensors gave a copy of the arena
        if self._fuses and not retained and parameters is not None:
            read = dict(zip(self._joint.saved_inputs, kept, strict=True))
            # One that has other memory by now (`p.data = other`) is updated there, and read where it was.
            moved = any(i in read and read[i].data_ptr() != p.data_ptr() for i, p in parameters.items())
            read = {i: parameters.get(i, tensor) for i, tensor in read.items()}
            parameters = {i: p for i, p in parameters.items() if i not in unmade} if unmade else parameters
            if not moved and self._fusion.defer(parameters, read, run, step):
                return [None] * len(context.reached)
        return run()

    # -- a result that is left to whoever reads it (unread.py) --------------------------------------------------------

    def _read(self, bases: list[Tensor]) -> Tensor:
        unread, context = self._unread, self._context
        self._compiler.reads_all = True
        if self._unread_plan is None:
            step = captured("inference", unread.graph, self._record.name, context.device, len(bases), 1)
            self._unread_plan = self._compiler.runners.make(self._record, lambda runner: runner.inference(step))
        return self._unread_plan(bases)[0]

    def _whole(self) -> Specialization:
        """The plans of the whole program, which serve later calls, too."""
        if self._all is None:
            whole = Specialization(self._compiler, self._unread.whole, self._record, self._context, self._outputs)
            whole.apart = self.apart
            self._compiler.replace(self, whole)
            self._all = whole
        return self._all

    def _backward_of_all(self, arena: Tensor, tangents: Sequence[Tensor | None], in_parts: bool) -> Any:
        """The backward of a call one of whose results was left out, and has a gradient: the call is done once more."""
        changed = RuntimeError(
            f"{self._record.name}: a tensor that the gradient needs was changed in place since the call; take the gradient "
            "of all its results before the optimizer's step"
        )
        _, *called = self._again(changed, arena, lambda _: self._whole())
        self._compiler.reads_all = True
        return self._whole().backward(*called, tangents, in_parts)

    # -- beside PyTorch (verify=) -------------------------------------------------------------------------------------

    def _look_at(self, inputs: Sequence[Tensor]) -> Any:
        """A verify.Call, made before the plan runs; None where there is nothing to look at."""
        if self._looked_at is None:
            return None
        compiler, context = self._compiler, self._context
        traced = compiler.verification.traced(
            self._looked_at, self._record, context.forward_outputs, compiler.layout, context.device, self._record.tune
        )
        look = compiler.verification.begin(traced, inputs, context.constants)
        if look is None:  # nor at any later one
            self._looked_at = None
        return look

    def _instead(self, error: Exception, inputs: Sequence[Tensor], look: Any) -> list[Any]:
        """The call in PyTorch, from the generator's state before; later ones of these sizes run there, too."""
        self._context.device.generator().set_state(look.generator)
        self._replace(error, self._looked_at)
        with torch.no_grad():
            return self._replaced._call(inputs)

    def _looked_at_gradients(
        self, look: Any, run: Callable[[], list[Tensor | None]], tangents: Sequence[Tensor | None], unmade: list[int]
    ) -> list[Tensor | None]:
        late = self._context.device.generator().get_state()
        gradients = run()
        error, of_trace, eager = look.gradients(tangents, gradients, unmade, late)
        if error is None:
            return gradients
        if of_trace:
            self._compiler.verification.distrust(error, self._record)
        else:
            self._replace(error, look.traced.graph)
        return eager

    # -- with the optimizer's step (fuse.py) --------------------------------------------------------------------------

    @property
    def _forward_outputs(self) -> int:
        """Of the plans."""
        return self._context.forward_outputs if self._unread is None else self._unread.forward_outputs

    @property
    def _fuses(self) -> bool:
        return self._fusion is not None and bool(self._gradients) and self._joint.fuses

    def _expected_updates(self) -> PlanUpdates | None:
        """Those of the first step, where nothing reads a gradient before it; None where it will not be fused."""
        tensors = self._record.expected
        if self._fusion is None or tensors is None or not self._gradients or self._gradients[-1] >= len(tensors):
            return None
        slots = self._fusion.slots({i: tensors[i] for i in self._gradients})
        if slots is None:
            return None
        updates = self._fusion.updates(slots)
        with disable_current_modes():  # a trace is going on
            return self._plan_updates(updates, updates.look())

    def _plan_updates(self, updates: Updates, found: Found) -> PlanUpdates:
        context = self._context
        first = context.primals + len(context.constants) + self._tangents + self._forward_outputs
        primals = [slot.primal for slot in updates.slots]
        return PlanUpdates(found.classes, found.distinct, primals, primals, first, context.device)

    def _step(
        self,
        slots: list[Slot],
        kept: Sequence[Tensor],
        tangents: Sequence[Tensor | None],
        defined: tuple[bool, ...],
        arena: Tensor,
    ) -> None:
        """The backward and the updates of all parameters that it has gradients of. NotCompiled where that fails before it runs:
        they can run apart."""
        updates = self._fusion.updates(slots)
        try:
            executable, inputs, found, states = self._ready(updates, slots, kept, tangents, defined)
        except (UserError, NotCompiled):
            raise
        except Exception as error:
            _apart(error)
        with interrupts.held():
            executable(inputs, arena)
            updates.finish(found, states)

    def _ready(
        self, updates: Updates, slots: list[Slot], kept: Sequence[Tensor], tangents: Sequence[Tensor | None],
        defined: tuple[bool, ...],
    ) -> tuple[Executable, list[Tensor | None], Found, list[list[Tensor]]]:  # fmt: skip
        """The plan of a step, what it is given, and what is told of it when it has run. Nothing is changed."""
        context, found = self._context, updates.look()
        overwrites, unmade = not context.pending.alive(), self._unmade[defined]
        key = defined, overwrites, tuple(found.classes), tuple([key.variant for key in found.distinct])
        if key not in self._fused:
            plan = self._plan_updates(updates, found)
            build = lambda: self._joint.backward_step(defined, overwrites, unmade, plan)  # noqa: E731
            try:
                self._fused[key] = plan, attempt(self._record, build, _apart), PlanMemory([slot.primal for slot in slots])
            except NotCompiled:
                self._fused[key] = None  # it would fail at every step
                raise
        if self._fused[key] is None:
            raise Misfit("the backward and the step of this kind were not compiled as one")
        plan, executable, memory = self._fused[key]
        self._record.fused = executable
        primals = context.primals + len(context.constants)
        inputs: list[Tensor | None] = [*[None] * primals, *tangents, *[None] * self._forward_outputs]
        for i, tensor in zip(self._joint.saved_inputs, kept, strict=True):
            inputs[i if i < primals else i + len(tangents)] = tensor
        for slot in slots:
            inputs[slot.primal] = slot.parameter
        states = updates.states(found)
        memory.check(slots, found, states, inputs)
        return executable, [*inputs, *plan.inputs(states, updates.scalars(found))], found, states

    # -- the plans ----------------------------------------------------------------------------------------------------

    def _plans(self, overwrites: bool) -> dict[tuple[bool, ...], Any]:
        return self._overwriting if overwrites else self._retaining

    def _backward(self, defined: tuple[bool, ...], overwrites: bool) -> Executable:
        """Compiles the backward for the tangents that exist, when first needed. `overwrites`: it may write over the arena."""
        plan = self._joint.backward(defined, overwrites, self._unmade[defined])
        self._plans(overwrites)[defined], self._graph = plan, None
        like = self._like and self._like._plans(overwrites).get(defined)
        if like:
            plan.share_memory(like)
        return plan

    def _deferred(self, arena: Tensor) -> list[Any]:
        """The deferred outputs; what makes them is compiled when one is first read."""
        plan = self._deferred_plan
        if plan is None:
            rerun = lambda error: functools.partial(self._deferred_in_pytorch, error)  # noqa: E731
            plan = attempt(self._record, self._compile_deferred, rerun)
        return plan([], arena)

    def _compile_deferred(self) -> Executable:
        self._deferred_plan = self._record.deferred = self._joint.deferred()
        return self._deferred_plan

    # -- where a plan cannot be compiled ------------------------------------------------------------------------------

    def _in_pytorch(self, error: Exception, arena: Tensor) -> tuple[list[Any], list[Tensor], Tensor]:
        """Runs the forward that filled `arena` again in PyTorch, as `self._replaced` does with later calls. Gives its results,
        and what its backward takes before the tangents. Raises `error` where the call is no longer known."""
        return self._again(error, arena, lambda rerun: self._replace(error, rerun.graph))

    def _again(
        self, error: Exception, arena: Tensor, other: Callable[[Rerun], Specialization]
    ) -> tuple[list[Any], list[Tensor], Tensor]:
        """The forward that filled `arena`, done once more by another specialization, as `_in_pytorch` gives it."""
        rerun = getattr(arena, "trainc_rerun", None)
        inputs = rerun.inputs() if rerun is not None else None
        if inputs is None:
            raise error
        by = other(rerun)
        with rerun.generator(), torch.no_grad():
            *results, arena = by._call(inputs)  # it may be an output that is being settled that asks for this
        return results, self._context.held_of(inputs, results, arena), arena

    def _replace(self, error: Exception, graph: torch.fx.GraphModule) -> Specialization:
        """PyTorch runs `graph` from now on, because of `error`, which is said once."""
        if self._replaced is None:
            self._compiler.runners.fall_back(self._record, error)
            self._replaced = Specialization(self._compiler, graph, self._record, self._context, self._outputs)
            self._compiler.replace(self, self._replaced)
        return self._replaced

    def _backward_in_pytorch(
        self, error: Exception, tangents: Sequence[Tensor | None], _inputs: Sequence[Any], arena: Tensor
    ) -> list[Any]:
        _, *called = self._in_pytorch(error, arena)
        return self._replaced.backward(*called, tangents)

    def _deferred_in_pytorch(self, error: Exception, _inputs: Sequence[Any], arena: Tensor) -> list[Any]:
        results, *_ = self._in_pytorch(error, arena)
        return [results[i] for i in self._joint.deferred_outputs]


def _give_tangents_memory(gm: torch.fx.GraphModule, inputs: int) -> None:
    """A trace's tangents have their outputs' strides. Where elements of an output share memory (`unfold`), those of its tangent
    do not: each has a gradient of its own."""
    for node in list(gm.graph.find_nodes(op="placeholder"))[inputs:]:
        value = node.meta.get("val")
        if isinstance(value, Tensor) and value.layout is torch.strided and not is_apart(value.shape, value.stride()):
            with disable_current_modes():
                node.meta["val"] = value.new_empty(value.shape)


def _with_results(footprint: dict[str, int] | None, more: int) -> dict[str, int] | None:
    """A footprint of plans beside `more` bytes of results."""
    return None if footprint is None else {**footprint, "results": footprint["results"] + more}


def _apart(error: Exception) -> NoReturn:
    """Nothing was updated: the backward and the step can run apart."""
    raise NotCompiled(str(error)) from error


class Inference:
    """A specialization without a backward."""

    def __init__(self, compiler: Any, gm: torch.fx.GraphModule, record: Compilation, constants: list[Tensor]):
        self._compiler, self._constants = compiler, constants
        self.apart = Apart()
        inputs, outputs = list(gm.graph.find_nodes(op="placeholder")), next(iter(gm.graph.find_nodes(op="output"))).args[0]
        self._outputs = Outputs(gm, len(outputs))
        step = captured("inference", gm, record.name, compiler.device, len(inputs), len(outputs))
        self._executable = record.forward = compiler.runners.make(record, lambda runner: runner.inference(step, compiler.shared))
        self._outputs.settle(self._executable)

    def forward(self, inputs: Sequence[Tensor]) -> list[Any]:
        if self._compiler.writes:
            self.apart.check(inputs, self._compiler.writes)
        if self._compiler.begin:
            storage.check([*inputs, *self._constants], self._compiler.begin)
        results, _ = self._outputs(self._executable([*inputs, *self._constants]), inputs)
        return results


__all__ = ["Inference", "Specialization", "TraceContext"]
