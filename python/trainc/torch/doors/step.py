"""`trainc.train_step(fn)`: forward, loss, backward, clipping and the optimizers' updates as one plan.

The plan keeps nothing between calls: what the backward needs and each gradient are temporaries, and parameters and optimizer
state are overwritten
in place, each as soon as its gradient is there and nobody reads the old value any more.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from typing import Any

import torch

from trainc.base import cache, config, messages, records
from trainc.base.errors import NotCompiled, SideEffect, UserError
from trainc.base.options import CompileOptions
from trainc.torch import compat, device, numbers
from trainc.torch.capture import distributed, turns
from trainc.torch.capture.disguise import Disguise
from trainc.torch.capture.step_guards import Binding, Methods, check_optimizer, check_tensors
from trainc.torch.capture.step_objects import Reached
from trainc.torch.capture.step_trace import Traced, trace_step
from trainc.torch.capture.structure import Flattener, unflatten
from trainc.torch.doors import memory
from trainc.torch.doors.call import CompiledCall, Signature, _describe, _modes, _type, leaves_of, numbered, stray
from trainc.torch.doors.memory import Settings
from trainc.torch.graph import wire
from trainc.torch.graph.sizes import Symbols
from trainc.torch.guards.overlap import Apart, Overlapping
from trainc.torch.guards.reads import Reads
from trainc.torch.guards.state import Snapshot
from trainc.torch.guards.watch import Watched
from trainc.torch.joint import family
from trainc.torch.optimizers import fits_a_plan, names, optimizer
from trainc.torch.optimizers.updates import Launch, PlanUpdates, Updates, classes_of, shared_memory
from trainc.torch.run import engine, tuning
from trainc.torch.run.interpreter import InterpretedExecutable
from trainc.torch.run.stored import stored_plan

Tensor = torch.Tensor


class Body(torch.nn.Module):
    """The modules that a step reaches, under one root; calling it runs the step in PyTorch."""

    def __init__(self, fn: Callable[..., Any], modules: dict[str, torch.nn.Module]):
        super().__init__()
        for name, module in modules.items():
            self.add_module(name, module)
        self.fn = fn

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.fn(*args, **kwargs)


class TrainStep(CompiledCall):
    """What `trainc.train_step` returns: called with a batch, does the whole step and returns what `fn` returns."""

    def __init__(self, fn: Callable[..., Any], tune: str = "fast", memory: Any = None):
        tuning.check(tune)
        self.fn = fn
        self.reached = Reached(fn)
        if not self.reached.optimizers or not self.reached.modules:
            missing = "optimizer" if self.reached.modules else "model"
            raise UserError(
                f"trainc.train_step: {getattr(fn, '__name__', fn)} reaches no {missing}: it must use its model and "
                "optimizer as variables "
                "of the function around it, as globals, as defaults or as attributes of self"
            )
        for each in self.reached.optimizers:
            if not fits_a_plan(each):
                known = names(in_plans=True)
                raise UserError(f"trainc.train_step compiles {known}, not {type(each).__name__}: use trainc.compile")
        for module in self.reached.modules.values():
            if distributed.compiled_part(module, "trainc.train_step") is not module:
                raise UserError(
                    f"trainc.train_step: the model is a {type(module).__name__}, whose hooks a step of one plan would not run: "
                    "use trainc.compile for this model"
                )
        self._body = Body(fn, self.reached.modules)
        super().__init__(self._body, Settings(memory, tune=tune))
        self._binding, self._methods = Binding(self.reached.optimizers), Methods(self.reached.optimizers)
        self.compilations = records.of(self)
        self.__name__ = getattr(fn, "__name__", "step")
        self.__doc__ = getattr(fn, "__doc__", None)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        turns.wait_for(self._body)
        flattener = Flattener()
        key, structure, tensors = self._key(flattener, args, kwargs)
        entry = self._entry(key)
        if entry is None:
            entry = self._first_entry(key, structure, flattener.tensors, args, kwargs)
            tensors = self._state.tensors()
        return entry([*tensors, *flattener.tensors], args, kwargs)

    def _first_entry(self, key: Any, structure: tuple, arguments: list[Tensor], args: tuple, kwargs: dict) -> Any:
        """What runs a call of which nothing is known yet."""
        if self._see_numbers(key):
            key, structure, _ = self._key(Flattener(), args, kwargs)
            if (entry := self._entry(key)) is not None:
                return entry
        try:
            return numbered(self._first_call(key, structure, arguments, args, kwargs))
        except numbers.Constant as reason:  # then no number moves, and this does not happen twice in a call
            self._numbers.refuse(reason)
            self._numbers_changed()
        key, structure, _ = self._key(Flattener(), args, kwargs)
        entry = self._entry(key)
        return entry if entry is not None else self._first_call(key, structure, arguments, args, kwargs)

    def _key(self, flattener: Flattener, args: tuple, kwargs: dict) -> tuple[Any, tuple, list[Tensor]]:
        """What selects a plan; the arguments' structure; the modules' tensors."""
        try:
            if compat.caches_parametrizations():
                raise NotCompiled("a step within torch.nn.utils.parametrize.cached(): enter it in the step")
            structure = self._numbers.without_numbers(flattener.flatten((args, kwargs)))
            types = tuple([_type(t) for t in flattener.tensors])
            variants = self._variants_of_groups()
            variant, tensors = self._variant()
            check_tensors(tensors, flattener.tensors)
            kind = (self._training(), structure, types, _modes(), (variants, self._binding.number(tensors)))
            hash(structure)
        except (NotCompiled, TypeError) as reason:
            raise UserError(f"trainc.train_step: {reason}") from None
        return (variant, kind), structure, tensors

    def prepare(self, args: tuple, kwargs: dict) -> None:
        flattener = Flattener()
        key, structure, _ = self._key(flattener, args, kwargs)
        entry = self._entry(key)
        if entry is None:
            entry = self._first_entry(key, structure, flattener.tensors, args, kwargs)
        entry = entry.entry if isinstance(entry, numbers.Ready) else entry
        if isinstance(entry, CompiledStep):
            entry.prepare()

    def _training(self) -> tuple[bool, ...]:
        return tuple([module.training for module in self.reached.modules.values()])

    def _variants_of_groups(self) -> tuple:
        """What selects the formulas: settings that change which operations an update is made of."""
        for each in self.reached.optimizers:
            check_optimizer(each)
        self._methods.check()
        return tuple([optimizer.variant_of(each, group, None) for each in self.reached.optimizers for group in each.param_groups])

    # -- the first call of a signature --------------------------------------------------------------------------------

    def _first_call(self, key: Any, structure: tuple, arguments: list[Tensor], args: tuple, kwargs: dict) -> Any:
        given = leaves_of(structure, arguments, self.fn)
        if misplaced := stray(self._body, self._state.tensors(), given):
            raise UserError(f"trainc.train_step: {misplaced.replace(type(self._body).__name__, 'the model')}")
        signature = _describe(structure, arguments, self._body)
        record = records.Compilation(self.__name__, signature=signature, tune=self.settings.tune)
        record.fixed = memory.fixed(self._state.tensors(), arguments, self.reached.optimizers, gradients=False)
        record.limit = self.settings.limit(record.fixed)
        record.prints = bool(self._numbers.slots)
        start = time.perf_counter()
        self._reads = []
        serving, entry = self._compile(record, key, arguments)
        try:
            self._watch(serving)
        except NotCompiled as reason:
            serving.forget(record)
            raise UserError(f"trainc.train_step: {reason}") from None
        record.capture_seconds = time.perf_counter() - start
        training, _, _, modes, settings = key[1]
        self._tell(record, Signature(given, key[0], all(training), modes, settings, self._differing(key)))
        self.compilations.append(record)
        self._add_entry(key, serving, entry)
        return entry

    def _compile(
        self, record: records.Compilation, key: tuple, arguments: list[Tensor]
    ) -> tuple[family.Family, CompiledStep]:
        """The entry of a new signature: new sizes of what was traced with symbols, or another trace."""
        tensors, structure, optimizers = self._state.tensors(), key[1][1], self.reached.optimizers
        inputs = [*tensors, *arguments]
        try:
            where = device.one(inputs, "the step's tensors")
        except NotCompiled as reason:
            raise UserError(f"trainc.train_step: {reason}") from None

        def static() -> CompiledStep:
            try:
                traced = self._traced(structure, inputs)
            except UserError:
                raise
            except Exception as error:
                raise UserError(f"trainc.train_step: {_reason(error)}") from error
            if record.prints:
                record.fingerprint = numbers.fingerprint(traced.graph.graph, traced.told())
            return CompiledStep(traced, Updates(traced.slots, optimizers), inputs, record, where)

        def symbolic(symbols: Symbols) -> family.Serve:
            traced = self._traced(structure, inputs, symbols)
            return Sizes(traced, symbols, Updates(traced.slots, optimizers), where)

        shapes = self._family(key)
        return shapes, shapes.entry(record, tensors, arguments, static, symbolic)

    def _traced(self, structure: tuple, inputs: list[Tensor], symbols: Symbols | None = None) -> Traced:
        """The step's trace. What it changed is put back; SideEffect where that was anything."""
        if self._is_full():
            raise UserError(
                f"trainc.train_step: {self.__name__} was called with more than {config.max_signatures} different "
                "signatures. Pad inputs to "
                "few shapes, or raise trainc.config.max_signatures."
            )
        with turns.alone(self._body):
            return self._traced_alone(structure, inputs, symbols)

    def _is_full(self) -> bool:
        return sum(len(shapes.shapes) for found in self._families.values() for shapes in found) >= config.max_signatures

    def _traced_alone(self, structure: tuple, inputs: list[Tensor], symbols: Symbols | None) -> Traced:
        for again in (False, True):
            reads = Reads(self._state, "the step")
            reads.root("", self.fn)
            disguise, snapshot = Disguise(), Snapshot(self._body)
            watched = Watched(disguise.beside(reads.enter), reads.read)
            self._reads.append(reads)
            self._busy = True
            try:
                with disguise.active(), watched.active():
                    traced = trace_step(
                        self.fn, self._state, structure, inputs, self.reached, symbols, reads=reads, disguise=disguise
                    )
                self._asked = disguise.asked
            finally:
                self._busy = False
                changed = self._put_back(snapshot)
            if not watched.logged:  # what is logged once is not logged by the second trace
                break
            if again:
                raise SideEffect(f"{watched.logged} would be written once, while the step is traced: log outside of the step")
        if changed:
            raise SideEffect(f"{changed}; it would happen once, while the step is traced: do it outside of the step")
        return traced


DATA = ("_local_scalar_dense", "data-dependent", "data dependent", "DataDependent", "guard on")


def _reason(error: BaseException) -> str:
    """The message for what could not be traced, with the user's line."""
    if isinstance(error, (NotCompiled, SideEffect)):
        return str(error)
    line = _line_of(error)
    text = family.first_line(error)
    if any(word in f"{type(error).__name__} {text}" for word in DATA):
        text = (
            "reads the value of a tensor (item(), float(), if), which is not known while the step is compiled: "
            "return it, and look at it outside"
        )
    return f"{line}: {text}" if line else text


def _line_of(error: BaseException) -> str:
    line, frame = "", error.__traceback__
    while frame is not None:
        path = frame.tb_frame.f_code.co_filename
        if not wire.is_internal_file(path):
            line = f"{wire.short(path)}:{frame.tb_lineno}"
        frame = frame.tb_next
    return line


# ---- the step ---------------------------------------------------------------------------------------------------------


class CompiledStep:
    """One signature of a step, compiled. Inputs of the plan: the traced graph's (tensors, constants, the number 1), then the
    state of each slot, then the scalars of each launch. `kernels`: what its plan shares with those for other sizes; `like`: one
    of these, whose memory its results may use."""

    def __init__(
        self, traced: Traced, updates: Updates, inputs: list[Tensor], record: records.Compilation, where: device.Host,
        kernels: engine.Family | None = None, like: CompiledStep | None = None,
    ):  # fmt: skip
        self.traced, self.updates, self.record, self.where = traced, updates, record, where
        self.kernels, self._like = kernels, like
        self.inputs = len(inputs) + len(traced.constants)
        self._one = torch.ones((), device=where.torch)
        self._classes: list[int] | None = None
        self._plan: Any = None
        record.engine = config.engine_name()
        shared = shared_memory({slot.primal: inputs[slot.primal] for slot in traced.slots}, dict(enumerate(inputs)))
        if shared is not None:
            raise UserError(
                f"trainc.train_step: a parameter of shape {list(shared.shape)} shares its memory with another tensor of the "
                "step; use trainc.compile for this model"
            )
        self._written = [*(slot.primal for slot in traced.slots), *(i for i, _ in traced.mutated)]
        self._apart = Apart()

    def __call__(self, tensors: list[Tensor], args: tuple, kwargs: dict) -> Any:
        try:
            self._apart.check(tensors, self._written)
        except Overlapping as reason:
            raise UserError(f"trainc.train_step: {reason}; use trainc.compile for this model") from None
        self._clear_gradients(tensors)
        launches = self.updates.launches()
        distinct, states = self._built_for(launches), self.updates.states(launches)
        outputs = self._run([*tensors, *self.traced.constants, self._one], states, distinct)
        for i, place in self.traced.mutated:
            with torch.no_grad():
                tensors[i].copy_(outputs[place])
        for i, place, _ in self.traced.kept:
            with torch.no_grad():
                if (into := tensors[i].grad) is not None:
                    into.add_(outputs[place])
                else:  # of its own memory: a result may lie where the output does
                    tensors[i].grad = torch.empty_like(tensors[i]).copy_(outputs[place])
        self.updates.finish(launches, states)
        for call in self.traced.afterwards:
            call()
        return unflatten(self.traced.structure, [outputs[place] for place in self.traced.results])

    def prepare(self) -> None:
        """Compiles what the next call would run."""
        self._built_for(self.updates.launches())

    def _built_for(self, launches: list[Launch]) -> list[Launch]:
        """The distinct ones of `launches`; a plan for them is there afterwards."""
        classes, distinct = classes_of(launches)
        if classes != self._classes:
            self._build(classes, distinct)
        return distinct

    def _clear_gradients(self, tensors: list[Tensor]) -> None:
        if any(parameter.grad is not None for parameter in self.traced.without):
            raise UserError(
                "trainc.train_step: parameters hold gradients from outside of the step, which would be added to its "
                "own or used as they are: call optimizer.zero_grad() before"
            )
        for i, _, read in self.traced.kept:
            if read and tensors[i].grad is not None:
                raise UserError(
                    f"trainc.train_step: the step reads the gradient of a tensor of shape {list(tensors[i].shape)} that "
                    "holds one from before, to which it is added: set its .grad to None before the step"
                )
        for parameter in self.traced.cleared:
            if parameter.grad is not None:
                parameter.grad = None

    def _build(self, classes: list[int], distinct: list[Launch]) -> None:
        start = time.perf_counter()
        build = CorePlan if self.record.engine == "core" else InterpretedPlan
        try:
            self._plan = build(self, classes, distinct)
        except UserError:
            raise
        except Exception as error:
            if build is InterpretedPlan:
                raise
            messages.fell_back(self.record.name, error)
            self.record.engine, self.record.reason = "interpreter", str(error)
            self._plan = InterpretedPlan(self, classes, distinct)
        self._classes = classes
        if self._like is not None and self._like._plan is not None:
            self._plan.share_memory(self._like._plan)
        self.record.forward, self.record.footprint = self._plan, self._plan.footprint
        self.record.compile_seconds += time.perf_counter() - start

    def _run(self, inputs: list[Tensor], states: list[list[Tensor]], distinct: list[Launch]) -> list[Tensor | None]:
        return self._plan(inputs, states, [self.updates.scalars(launch) for launch in distinct])


class Sizes:
    """A step that was traced with symbols: gives a CompiledStep for each set of sizes that the trace holds for, or None. They
    share kernels, the memory of results and what is known of the optimizers."""

    def __init__(self, traced: Traced, symbols: Symbols, updates: Updates, where: device.Host):
        self._traced, self._symbols, self._updates, self._where = traced, symbols, updates, where
        self._template = symbols.template(traced.graph, traced.told())
        self._first: CompiledStep | None = None
        self._kernels = engine.Family.of(symbols if symbols.sizes else None, lambda: self._template, where)

    def __call__(self, inputs: list[Tensor], record: records.Compilation) -> CompiledStep | None:
        bound = self._symbols.bound(inputs)
        if bound is None:
            return None
        traced = dataclasses.replace(self._traced, graph=self._template.at(bound))
        # A limit is of one batch's sizes, and is met with numbers that kernels for other sizes would not have.
        kernels = self._kernels if record.limit is None else None
        inputs = [*inputs, self._symbols.numbers.input()] if self._symbols.numbers is not None else inputs
        step = CompiledStep(traced, self._updates, inputs, record, self._where, kernels, self._first)
        self._first = self._first or step
        return step


class CorePlan:
    """The step as the compiler's plan."""

    def __init__(self, step: CompiledStep, classes: list[int], distinct: list[Launch]):
        traced = step.traced
        for slot in traced.slots:
            if slot.parameter.dtype not in (torch.float32, torch.float64):
                kind = slot.parameter.dtype
                raise UserError(f"trainc.train_step updates f32 and f64 parameters, not {kind}: use trainc.compile")
        gradients = list(range(len(traced.slots)))
        parameters = [slot.primal for slot in traced.slots]
        self._updates = PlanUpdates(classes, distinct, gradients, parameters, step.inputs + 1, step.where)
        name = step.record.name
        where = step.where
        graph = wire.GraphText(traced.graph.graph, name, where)
        texts, listed = self._updates.formulas(name), self._updates.listed
        limit, kernels = step.record.limit, step.kernels
        kind, of_limit = engine.kind_of("step", kernels), engine.key_of(limit)
        options = CompileOptions.of(where, step.record.tune, limit is not None)
        key = cache.key(kind, options, graph.canonical, step.inputs, traced.forward, name, texts, listed, *of_limit)
        made: list[Any] = []

        def joint_of(graph: wire.GraphText) -> Any:
            return engine.joint_graph(graph, (step.inputs, traced.forward, name, -1), options, where)

        def sample(gm: torch.fx.GraphModule) -> Any:
            return joint_of(wire.GraphText(gm.graph, name, where))

        def learn(joint: Any, shared: Any) -> None:
            joint.learn_step([True], [], [], shared)  # the updates' kernels know no size

        def compile() -> Any:
            joint = joint_of(graph)
            made.append(joint)
            if limit is not None:
                room = limit.room(lambda: engine.sum_of(joint.fit_step(1 << 62, [True], texts, listed)))
                limit.check(joint.fit_step(room, [True], texts, listed), room)
            return joint.step([True], texts, listed, progress, kernels and kernels.learned("step", sample, learn))

        with messages.progress(name) as progress:
            self._executable, facts, _ = stored_plan(
                key, graph, where, compile, lambda: {"again_flops": made[0].again_flops}
            )
        self._again_flops = facts["again_flops"]

    def __call__(self, inputs: list[Tensor], states: list[list[Tensor]], scalars: list[list[float]]) -> list[Tensor | None]:
        return self._executable([*inputs, *self._updates.inputs(states, scalars)])

    def share_memory(self, other: CorePlan | InterpretedPlan) -> None:
        if isinstance(other, CorePlan):
            self._executable.share_memory(other._executable)

    def report(self) -> dict:
        return self._executable.report()

    def footprint(self) -> dict[str, int]:
        return {"saved": 0, **self._executable.footprint(), "again_flops": self._again_flops}


class InterpretedPlan:
    """The traced graph operation by operation in PyTorch, and the updates by their formulas."""

    def __init__(self, step: CompiledStep, classes: list[int], distinct: list[Launch]):
        self._graph = InterpretedExecutable(step.traced.graph, step.record.name)
        self._traced, self._classes = step.traced, classes
        self._variants = [distinct[i].variant for i in classes]

    def __call__(self, inputs: list[Tensor], states: list[list[Tensor]], scalars: list[list[float]]) -> list[Tensor | None]:
        outputs = self._graph(inputs)
        with torch.no_grad():
            for i, (slot, v) in enumerate(zip(self._traced.slots, self._variants, strict=True)):
                where = slot.parameter.device
                numbers = [torch.tensor(value, dtype=v.dtype, device=where) for value in scalars[self._classes[i]]]
                row = [slot.parameter, outputs[self._traced.forward + i], *states[i]]
                for place, result in zip(v.in_place, v.update(*row, *numbers), strict=True):
                    row[place].copy_(result)
        return outputs

    def share_memory(self, other: CorePlan | InterpretedPlan) -> None:
        """Its results are PyTorch's own."""

    def report(self) -> dict:
        return self._graph.report()

    def footprint(self) -> None:
        return None


__all__ = ["TrainStep"]
