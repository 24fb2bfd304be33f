"""`trainc.train_step(fn)`: forward, loss, backward, clipping and the optimizers' updates as one plan (joint/step.py)."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from trainc.base import config, records, tuning
from trainc.base.errors import NotCompiled, SideEffect, UserError
from trainc.base.garbage import uncollected
from trainc.torch import compat, device, numbers
from trainc.torch.capture import distributed, turns
from trainc.torch.capture.step_guards import Binding, Methods, check_optimizer, check_tensors
from trainc.torch.capture.step_objects import Reached
from trainc.torch.capture.step_trace import Traced, trace_step
from trainc.torch.capture.structure import Flattener
from trainc.torch.capture.trace import packs_saved_tensors
from trainc.torch.doors import memory, reasons
from trainc.torch.doors.averaged_step import AveragedStep
from trainc.torch.doors.memory import ModelSettings
from trainc.torch.doors.replicated_step import ReplicatedStep
from trainc.torch.doors.signature import Call, Signature, describe_call, leaves_of, modes, stray, tensor_type
from trainc.torch.doors.signatures import Entry, Signatures
from trainc.torch.doors.traces import Traces
from trainc.torch.graph.sizes import Symbols
from trainc.torch.joint import family
from trainc.torch.joint.step import CompiledStep, GradientsHeld, Sizes
from trainc.torch.optimizers import fits_a_plan, names, optimizer
from trainc.torch.optimizers.updates import Updates
from trainc.torch.run.runner import Runners
from trainc.torch.verify.verification import Verification, check_verify

Tensor = torch.Tensor


class Body(torch.nn.Module):
    """The modules that a step reaches, under one root. `averaged`: the DistributedDataParallel among them, all of whose work the
    step's plan does."""

    def __init__(self, modules: dict[str, torch.nn.Module], averaged: list[torch.nn.Module]):
        super().__init__()
        self.averaged = tuple(map(id, averaged))
        for name, module in modules.items():
            self.add_module(name, module)


class TrainStep:
    """What `trainc.train_step` returns: called with a batch, does the whole step and returns what `fn` returns."""

    def __init__(self, fn: Callable[..., Any], tune: str = "fast", memory: Any = None, verify: bool | int = False):
        tuning.check(tune)
        check_verify(verify)
        self.fn, self._settings = fn, (tune, memory, verify)
        self.__name__ = getattr(fn, "__name__", "step")
        self.__doc__ = getattr(fn, "__doc__", None)
        self._begin()

    def _begin(self) -> None:
        """Finds what `fn` works on."""
        fn, (tune, memory, verify) = self.fn, self._settings
        self.reached = Reached(fn)
        if not self.reached.optimizers or not self.reached.modules:
            missing = "optimizer" if self.reached.modules else "model"
            raise UserError(
                f"trainc.train_step: {getattr(fn, '__name__', fn)} reaches no {missing}: it must use its model and "
                "optimizer as variables "
                "of the function around it, as globals, as defaults or as attributes of self"
            )
        self.settings = ModelSettings(memory, tune=tune)
        roots = self.reached.modules.values()
        self.compilations = records.of(self)
        self._replicated: ReplicatedStep | None = None  # where it is compiled in parts
        self._averaged: AveragedStep | None = None  # where DDP's averages are operations of the plan
        self._untraced: dict[Any, str] = {}  # of such a step: kinds of calls that no plan serves, and why
        replicated = [model for root in roots for model in distributed.replicated(root)]
        if replicated and (reason := self._begin_averaged(replicated)):
            return self._in_parts(reason)
        for each in self.reached.optimizers:
            if not fits_a_plan(each):
                known = names(in_plans=True)
                raise UserError(f"trainc.train_step compiles {known}, not {type(each).__name__}: use trainc.compile")
        for module in roots:
            distributed.compiled_part(module, "trainc.train_step")  # refuses what a plan would leave out
        self._body = Body(self.reached.modules, replicated)
        self._verification = Verification.of(verify, self._body, counts_calls=True)
        self._signatures = Signatures(lambda: self._body, self._is_full)
        self._traces: Traces | None = None  # the last
        self._binding, self._methods = Binding(self.reached.optimizers), Methods(self.reached.optimizers)

    def _begin_averaged(self, wrappers: list[torch.nn.Module]) -> str:
        """Looks whether the averages of DistributedDataParallel can be operations of the plan: empty, or why not."""
        if self._settings[2]:
            return "verify= is given, which would exchange gradients twice"
        if strange := next((o for o in self.reached.optimizers if optimizer.is_attached(o) or not fits_a_plan(o)), None):
            return f"{type(strange).__name__} is compiled already, or is none that a plan updates by"
        if any(root not in wrappers for root in self.reached.modules.values() if distributed.replicated(root)):
            return "a DistributedDataParallel is part of another module"
        if any(compat.compiled_call(distributed.inner_of(each)) is not None for each in wrappers):
            return "the model is compiled already"
        if device.asked() != "cpu":
            return "it is compiled for a device"
        try:
            self._averaged = AveragedStep(self.__name__, wrappers)
        except NotCompiled as reason:
            return str(reason)
        return ""

    def _in_parts(self, reason: str) -> None:
        """From now on, what the body calls is compiled, and DDP's own reducer runs between the parts."""
        tune, memory, verify = self._settings
        wrappers = [model for root in self.reached.modules.values() for model in distributed.replicated(root)]
        self._averaged = None
        self._replicated = ReplicatedStep(self.fn, self.reached, wrappers, tune=tune, memory=memory, verify=verify)
        self._replicated.reason = f"in parts, between which DistributedDataParallel averages gradients: {reason}"

    # A copy is one of the copied `fn`, and has compiled nothing: what `fn` works on is looked for when the copy is first called,
    # for while an object is copied that holds both, neither is whole.
    def __getstate__(self) -> dict[str, Any]:
        return {key: self.__dict__[key] for key in ("fn", "_settings", "__name__", "__doc__")}

    def __getattr__(self, name: str) -> Any:
        begun = ("reached", "settings", "compilations", "_body", "_signatures", "_replicated", "_averaged", "_untraced")
        if name in begun and "fn" in self.__dict__:
            self._begin()
            return self.__dict__[name]
        raise AttributeError(f"{type(self).__name__!r} has no attribute {name!r}")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if turns.is_tracing():
            raise NotCompiled(f"{self.__name__}, which trainc.train_step compiles itself, is called within what is compiled")
        if turns.is_compiling() or compat.dynamo_callback() is not None:  # in a function of torch.compile's
            return compat.dynamo_disable(self.__call__)(*args, **kwargs)
        if self._replicated is not None:
            return self._replicated(args, kwargs)
        if self._averaged is not None:
            return self._call_averaged(self._averaged, args, kwargs)
        call, entry = self._entry(args, kwargs)
        return entry(call.inputs, args, kwargs)

    def _call_averaged(self, step: AveragedStep, args: tuple, kwargs: dict) -> Any:
        """A step over DistributedDataParallel (averaged_step.py)."""
        reason, found = "", None
        try:
            step.averages.check()
        except NotCompiled as changed:  # on all ranks, as DDP itself asks for
            self._in_parts(str(changed))
            return self._replicated(args, kwargs)
        if not step.averages.reduces():
            reason = "it is called within no_sync()"
        else:
            try:
                found = self._entry(args, kwargs)
            except UserError as error:
                reason = str(error).removeprefix("trainc.train_step: ")
        if step.agreed is None and (refused := step.agree(reason)):
            self._in_parts(refused)
            return self._replicated(args, kwargs)
        if step.averages.reduces():
            step.averages.broadcast()
        if found is not None:
            call, entry = found
            try:
                return entry(call.inputs, args, kwargs)
            except GradientsHeld as error:
                reason = str(error).removeprefix("trainc.train_step: ")
        return step.in_pytorch(self.fn, args, kwargs, reason)

    def prepare(self, args: tuple, kwargs: dict) -> None:
        """Compiles for these arguments, as their first call would, and runs nothing."""
        if self._replicated is not None or self._averaged is not None:
            raise UserError(
                "trainc.train_step: a step over DistributedDataParallel is compiled while it runs, with the other processes: "
                "call it, and explain it then"
            )
        _, entry = self._entry(args, kwargs)
        entry = entry.entry if isinstance(entry, numbers.Ready) else entry
        entry.prepare()

    def parts(self) -> list[Any]:
        """Models and optimizers whose own compilations are this step's, too: where DDP's hooks run between them."""
        return [] if self._replicated is None else self._replicated.parts

    def why_in_parts(self) -> str:
        """Of a step over DistributedDataParallel, why it is no plan of its own; empty where it is one."""
        return "" if self._replicated is None else self._replicated.reason

    def _entry(self, args: tuple, kwargs: dict) -> tuple[Call, Entry]:
        turns.wait_for(self._body)
        return self._signatures.serve(lambda: self._call(args, kwargs), self._first_call)

    def _call(self, args: tuple, kwargs: dict) -> Call:
        """How a call is looked up."""
        flattener, known = Flattener(), self._signatures
        try:
            if compat.caches_parametrizations():
                raise NotCompiled("a step within torch.nn.utils.parametrize.cached(): enter it in the step")
            if compat.has_global_module_hooks():
                raise NotCompiled("a hook is registered on all modules: call the function itself")
            if compat.differentiates_forward():
                raise NotCompiled("a step has no derivatives that go forward (forward_ad.dual_level()): call the function itself")
            if packs_saved_tensors():
                raise NotCompiled("saved_tensors_hooks() around a step, which saves nothing: call the function itself")
            if turns.is_anomaly_enabled():
                raise NotCompiled("torch.autograd detects anomalies in PyTorch's own operations: call the function itself")
            structure = known.numbers.without_numbers(flattener.flatten((args, kwargs)))
            types = tuple([tensor_type(t) for t in flattener.tensors])
            formulas = self._formulas()
            variant, tensors = known.variants.find()
            check_tensors(tensors, flattener.tensors)
            kind = (self._training(), structure, types, modes(), (formulas, self._binding.number(tensors)))
            hash(structure)
        except (NotCompiled, TypeError) as reason:
            raise UserError(f"trainc.train_step: {reason}") from None
        return Call(kind, structure, flattener.tensors, (variant, kind), tensors)

    def _training(self) -> tuple[bool, ...]:
        return tuple([module.training for module in self.reached.modules.values()])

    def _formulas(self) -> tuple:
        """What selects the optimizers' formulas: settings that change which operations an update is made of."""
        for each in self.reached.optimizers:
            check_optimizer(each)
        self._methods.check()
        return tuple([optimizer.variant_of(each, group, None) for each in self.reached.optimizers for group in each.param_groups])

    def _is_full(self) -> bool:
        return self._signatures.sizes() >= config.max_signatures

    # -- the first call of a signature --------------------------------------------------------------------------------

    @uncollected()
    def _first_call(self, call: Call) -> Entry:
        if call.key in self._untraced:
            raise UserError(self._untraced[call.key])
        tensors, known = self._signatures.variants.state.tensors(), self._signatures
        given = leaves_of(call, self.fn)
        if misplaced := stray("the model", tensors, given):
            raise UserError(f"trainc.train_step: {misplaced}")
        record = records.Compilation(
            self.__name__, signature=describe_call(call, all(self._training())), tune=self.settings.tune
        )
        record.fixed = memory.fixed(tensors, call.arguments, self.reached.optimizers, gradients=False)
        record.limit = self.settings.limit(record.fixed)
        record.prints = bool(known.numbers.slots)
        start, self._traces = time.perf_counter(), None
        try:
            serving, entry = self._compile(record, call)
        except UserError as error:
            if self._averaged is not None:
                self._untraced[call.key] = str(error)
            raise
        try:
            if self._traces is not None:  # None: other sizes of a trace that there is
                known.variants.reachable.update(map(id, self._traces.guard(serving)))
        except Exception as reason:  # a trace without its guards must serve nothing
            serving.forget(record)
            if isinstance(reason, NotCompiled):
                raise UserError(f"trainc.train_step: {reason}") from None
            raise
        self._traces = None
        record.capture_seconds = time.perf_counter() - start
        variant, (training, _, _, active, settings) = call.key
        known.tell(record, Signature(given, variant, all(training), active, settings, known.differences(call.key)))
        self.compilations.append(record)
        known.add(call.key, serving, entry)
        return entry

    def _compile(self, record: records.Compilation, call: Call) -> tuple[family.Family, CompiledStep]:
        """The entry of a new signature: new sizes of what was traced with symbols, or another trace."""
        optimizers = self.reached.optimizers
        tensors, arguments = self._signatures.variants.state.tensors(), call.arguments
        inputs = [*tensors, *arguments]
        try:
            runners = Runners(device.one(inputs, "the step's tensors"), record.tune)
        except NotCompiled as reason:
            raise UserError(f"trainc.train_step: {reason}") from None

        def static() -> CompiledStep:
            try:
                traced = self._traced(call.structure, inputs)
            except UserError:
                raise
            except Exception as error:
                if self._averaged is None and (raised := reasons.eagers(error)) is not None:
                    raise raised from raised.__cause__
                reason = reasons.reason_of(error, ": return it, and look at it outside")
                raise UserError(f"trainc.train_step: {reason}") from error
            if record.prints:
                record.fingerprint = numbers.fingerprint(traced.graph.graph, traced.interface())
            updates = Updates(traced.slots, optimizers)
            return CompiledStep(traced, updates, inputs, record, runners, verification=self._verification)

        def symbolic(symbols: Symbols) -> family.Serve:
            traced = self._traced(call.structure, inputs, symbols)
            return Sizes(traced, symbols, Updates(traced.slots, optimizers), record.name, runners, self._verification)

        shapes = self._signatures.family(call.key)
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
            traced, logged = self._traced_alone(structure, inputs, symbols)
            if logged:  # what is logged once is not logged by a second trace
                traced, logged = self._traced_alone(structure, inputs, symbols)
        if logged:
            raise SideEffect(f"{logged} would be written once, while the step is traced: log outside of the step")
        return traced

    def _traced_alone(self, structure: tuple, inputs: list[Tensor], symbols: Symbols | None) -> tuple[Traced, str | None]:
        """The trace, and where it logged something."""
        state = self._signatures.variants.state
        self._traces = Traces(self._body, self._signatures.variants)
        trace = self._traces.start("the step", self.fn, self.reached.optimizers)
        try:
            with trace.disguise.active(), trace.watched.active():
                traced = trace_step(
                    self.fn, state, structure, inputs, self.reached, symbols, reads=trace.reads, disguise=trace.disguise,
                    averages=None if self._averaged is None else self._averaged.averages,
                )  # fmt: skip
        finally:
            changed = self._traces.restore() or self._traces.drawn
        if self._averaged is not None:
            self._averaged.check()
        if changed and not trace.watched.logged:
            raise SideEffect(f"{changed}; it would happen once, while the step is traced: do it outside of the step")
        return traced, trace.watched.logged


__all__ = ["TrainStep"]
