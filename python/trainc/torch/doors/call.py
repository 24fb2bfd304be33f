"""What `model(...)` does once trainc.compile has seen the model: look up the signature, run what was compiled for it."""

from __future__ import annotations

import dataclasses
import functools
import time
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.parameter import is_lazy

from trainc.base import config, messages, records
from trainc.base.errors import DependsOnData, NotCompiled, SideEffect, UserError
from trainc.base.garbage import uncollected
from trainc.torch import compat, device, numbers
from trainc.torch.capture import again, distributed, turns
from trainc.torch.capture.operation_cache import OperationCache
from trainc.torch.capture.structure import Flattener, unflatten
from trainc.torch.capture.trace import FlatCall, packs_saved_tensors, tracing
from trainc.torch.compat import DeviceContext, function_modes
from trainc.torch.doors import agreement, reasons
from trainc.torch.doors.as_python import as_python
from trainc.torch.doors.beside_dynamo import BesideDynamo
from trainc.torch.doors.memory import ModelSettings
from trainc.torch.doors.second_order import CallAgain, kind_of
from trainc.torch.doors.signature import Call, Signature, describe_call, leaves_of, modes, stray, tensor_type
from trainc.torch.doors.signatures import Entry, Signatures
from trainc.torch.doors.traces import Traces
from trainc.torch.graph import wire
from trainc.torch.graph.sizes import Symbols
from trainc.torch.guards import overlap
from trainc.torch.guards.overlap import Overlapping
from trainc.torch.joint import compiler as joint
from trainc.torch.joint import family
from trainc.torch.joint.second_order import BESIDE
from trainc.torch.run.deferred import out_of_sight
from trainc.torch.run.runner import Runners

Tensor = torch.Tensor


@dataclasses.dataclass
class Attempt:
    """One attempt to compile a call, and what came of it."""

    call: Call
    record: records.Compilation
    runners: Runners | None = None
    operations: OperationCache = dataclasses.field(default_factory=OperationCache)  # what its traces have met
    traces: Traces | None = None  # restored
    changed: str | None = None  # what the traces had changed, in the user's terms
    entry: Entry | None = None
    error: Exception | None = None  # without one, there is an entry
    family: family.Family | None = None
    in_pytorch: bool = False  # whether the program does what Dynamo would not do
    compiling: bool = True  # what torch.compiler.is_compiling() says to the program while it is traced

    @property
    def compiled(self) -> bool:
        return self.error is None and self.changed is None

    @property
    def splits(self) -> bool:
        """Whether Dynamo is the way to compile it: in parts, around what depends on tensors' values."""
        return isinstance(self.error, DependsOnData) and not self.in_pytorch

    @property
    def reason(self) -> str:
        return family.first_line(self.error) if self.splits or self.changed is None else self.changed

    @property
    def route(self) -> str:
        return "eager" if self.in_pytorch else "split" if self.splits else "dynamo"


class CompiledCall(compat.ModuleCall):
    """Set by `compat.set_compiled_call`, which nn.Module's call uses and which copies and pickles leave out."""

    def __init__(
        self, model: torch.nn.Module, settings: ModelSettings | None = None, fusion: Any = None, verification: Any = None,
        wrapped: bool = False,
    ):  # fmt: skip
        """`wrapped`: whether hooks on its results are its wrapper's (FSDP), which run before its backward and read none."""
        self._gives_inner = not wrapped
        self._model, self._verification = weakref.ref(model), verification
        self.settings, self._fusion = settings or ModelSettings(), fusion
        self._seen_once: set[Any] = set()  # keys seen under no_grad
        self._signatures = Signatures(self._model, self._is_full, self._seen_once.clear)
        self._unsettled: set[Any] = set()  # kinds of calls whose tracing changed Python state, once
        self._stateful: dict[Any, Entry] = {}  # those that did so again, and what runs them
        self._differentiated: dict[tuple, frozenset[int]] = {}  # by such a kind: the results that a loss is made of
        self._second_order: set[tuple] = set()  # kinds of calls of whose gradients the program takes gradients
        self._busy = False
        self._beyond_dynamo = False  # whether a trace has shown that the program does what Dynamo would not do
        self._dynamo: Callable[..., Any] | None = None
        self._beside: BesideDynamo | None = None
        self.compilations = records.of(model)
        # by entry: its last compilation
        self._records: weakref.WeakKeyDictionary[Entry, records.Compilation] = weakref.WeakKeyDictionary()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        model = self._model()
        if not turns.is_compiling() and (copy := self.copy_of(model)) is not None:
            return compat.uncompiled_call(copy)(*args, **kwargs)
        turns.wait_for(model)
        distrusted = self._verification is not None and self._verification.in_pytorch
        if self._busy or distrusted or turns.is_compiling() or again.is_running() or _in_transform():
            return compat.uncompiled_call(model)(*args, **kwargs)
        if compat.dynamo_callback() is not None:  # within a function of torch.compile's that is not traced as a whole
            return compat.dynamo_disable(self.__call__)(*args, **kwargs)
        if turns.is_anomaly_enabled():  # who asks which operation gives NaN asks for PyTorch's own operations
            messages.warn_once("anomaly", f"{type(model).__name__} runs in PyTorch while torch.autograd detects anomalies")
            return compat.uncompiled_call(model)(*args, **kwargs)
        if packs_saved_tensors():
            messages.warn_once("packed", f"{type(model).__name__} runs in PyTorch within saved_tensors_hooks() of the program's")
            return compat.uncompiled_call(model)(*args, **kwargs)
        call_of = lambda: self._call(args, kwargs)  # noqa: E731
        try:
            call, entry = self._signatures.look_up(call_of)
        except (NotCompiled, TypeError) as reason:  # TypeError: a constant that cannot be hashed
            return self._refused(str(reason), args, kwargs, getattr(reason, "in_pytorch", False))
        except (UserError, Warning):  # a warning of ours may be an error
            raise
        except Exception as error:
            return self._failed(error, args, kwargs)
        if entry is None:
            try:
                call, entry = self._signatures.compiled(call, call_of, self._first_call)
            except NotCompiled as reason:
                return self._refused(str(reason), args, kwargs, reason.in_pytorch)
            except (UserError, Warning):
                raise
            except Exception as error:
                return self._failed(error, args, kwargs, call)
        try:
            if self._verification is None:
                result = entry(call.inputs, args, kwargs)
            else:
                result = self._verified(call, entry, args, kwargs)
            return self._compared(model, entry, result)
        except Overlapping as reason:
            messages.warn_once(f"overlap {id(self)}", f"{type(model).__name__} runs in PyTorch where {reason}")
            return self._compared(model, None, compat.uncompiled_call(model)(*args, **kwargs))

    def _verified(self, call: Call, entry: Entry, args: tuple, kwargs: dict) -> Any:
        return self._verification.call(
            lambda: entry(call.inputs, args, kwargs), lambda: self._in_pytorch(call.inputs, args, kwargs),
            call.inputs, self._signatures.variants.state, args, kwargs,
        )  # fmt: skip

    def _compared(self, model: torch.nn.Module, entry: Entry | None, result: Any) -> Any:
        """The result; where DistributedDataParallel called the model, its ranks compare what they train before its backward."""
        wrapper = distributed.replicating(model)
        if wrapper is not None and agreement.is_due(wrapper):
            record = None if entry is None else self._records.get(getattr(entry, "entry", entry))
            agreement.before_backward(wrapper, result, lambda: agreement.told(record, self._names()))
        return result

    def _names(self) -> dict[int, str]:
        """Of the model's parameters, by their places among a graph's inputs."""
        names = {id(p): name for name, p in self._model().named_parameters()}
        tensors = self._signatures.variants.state.tensors()
        return {i: names[id(t)] for i, t in enumerate(tensors) if id(t) in names}

    def prepare(self, args: tuple, kwargs: dict) -> None:
        """Compiles for these arguments, as their first call would, and runs nothing. Where the model refuses them, its error;
        where they cannot be compiled, a record with the reason."""
        name = type(self._model()).__name__
        try:
            _, entry = self._signatures.serve(lambda: self._call(args, kwargs), self._first_call)
        except (NotCompiled, TypeError) as refused:
            reason, route = str(refused), "eager" if getattr(refused, "in_pytorch", False) else "dynamo"
        else:
            attempt = entry.args[0] if isinstance(entry, functools.partial) else None  # of _run_uncompiled
            if attempt is None:
                return
            if attempt.error is not None and reasons.is_users(attempt.error):
                raise attempt.error
            reason, route = attempt.reason, attempt.route
        if not any(other.reason == reason for other in self.compilations):
            self.compilations.append(records.Compilation(name, route=route, reason=reason))

    def _call(self, args: tuple, kwargs: dict) -> Call:
        """How a call is looked up. NotCompiled, or a TypeError of what cannot be hashed, where it cannot be."""
        if compat.has_global_module_hooks():  # they would run for modules of trainc's and of a trace's, too
            raise NotCompiled("a hook is registered on all modules", in_pytorch=True)
        flattener, known = Flattener(), self._signatures
        structure = known.numbers.without_numbers(flattener.flatten((args, kwargs)))
        arguments = flattener.tensors
        kind = (self._model().training, structure, tuple([tensor_type(t) for t in arguments]), modes())
        call = Call(kind, structure, arguments, entry=self._stateful.get(kind))
        if call.entry is None:
            variant, call.tensors = known.variants.find()
            call.key = (variant, kind)
            known.check_apart(call)
        return call

    def _is_full(self) -> bool:
        return self._signatures.traces() + len(self._unsettled) + len(self._stateful) >= config.max_signatures

    # -- the first call of a signature --------------------------------------------------------------------------------

    @uncollected()
    def _first_call(self, call: Call) -> Entry:
        """What runs a call of which nothing is known yet. `numbers.Constant` where a number must not move."""
        model, state = self._model(), self._signatures.variants.state
        if not torch.is_grad_enabled() and call.key not in self._seen_once:
            if len(self._seen_once) < 10_000:
                self._seen_once.add(call.key)
            return self._in_pytorch  # as in generate(), where a shape may never come again
        if kind_of(call.kind) in self._second_order:
            self._signatures.add(call.key, None, self._in_pytorch)
            return self._in_pytorch
        if self._is_full():
            messages.warn_once(
                f"signatures {id(self)}",
                f"{type(model).__name__} was called with more than {config.max_signatures} different signatures; further ones "
                "run in PyTorch. Pad inputs to few shapes, or raise trainc.config.max_signatures.",
            )
            return self._in_pytorch
        given = leaves_of(call, model.forward)
        if misplaced := stray(type(model).__name__, state.tensors(), given):
            return self._mixed(call.key, misplaced)
        attempt = self._attempt(call)
        if isinstance(attempt.error, numbers.Constant):
            raise attempt.error
        if attempt.error is not None and reasons.is_users(attempt.error):
            # Code that does otherwise where it is compiled may fail there alone (LongT5 makes no mask then, and reads its shape).
            plain = self._attempt(call, compiling=False)
            attempt = plain if plain.compiled else attempt
        if attempt.compiled:
            self._unsettled.discard(call.kind)
            return self._keep(attempt, given)
        snapshot = attempt.traces.snapshot
        if attempt.error is None and snapshot.state_changed and snapshot.only_set and call.kind not in self._unsettled:
            if (settled := self._settled(attempt)) is not None:
                settled.record.capture_seconds += attempt.record.capture_seconds
                settled.record.compile_seconds += attempt.record.compile_seconds
                same = wire.same_graph(attempt.record.captured, settled.record.captured, attempt.runners.device)
                entry = self._keep(settled, given)
                if same:  # so the first call, too, computes what was traced
                    return entry
                snapshot.restore()
                return self._in_pytorch
        return functools.partial(self._run_uncompiled, attempt)

    def _run_uncompiled(self, attempt: Attempt, _inputs: list[Tensor], args: tuple, kwargs: dict) -> Any:
        """The first call of what could not be compiled; what runs later ones is known then."""
        kind, error = attempt.call.kind, attempt.error
        if error is not None and not attempt.splits and not isinstance(error, SideEffect) and not reasons.is_users(error):
            messages.require_fallback(error)  # before the model runs, and changes
        run = self._through_dynamo if attempt.splits else self._in_pytorch
        result = run(_inputs, args, kwargs)  # where the model itself is at fault, this raises its own error
        if attempt.traces.snapshot.state_changed or isinstance(error, SideEffect):
            if kind not in self._unsettled:  # a first call may set what later ones find: a cache, a default
                self._unsettled.add(kind)
                return result
            self._unsettled.discard(kind)
            # of any variant: what changes may be among the values that make one
            self._stateful[kind] = self._in_pytorch if attempt.in_pytorch else self._through_dynamo
        if error is not None and not attempt.splits:
            messages.require_fallback(error)
        self._route(attempt)
        return result

    def _attempt(self, call: Call, before: Attempt | None = None, compiling: bool = True) -> Attempt:
        """Compiles. The program's Python state is as it was before, also where a UserError or Ctrl-C passes through. `before`:
        an attempt whose kernels, and whose trace's operations, are known in this one."""
        model = self._model()
        record = records.Compilation(
            type(model).__name__, signature=describe_call(call, model.training), tune=self.settings.tune
        )
        attempt = Attempt(call, record, compiling=compiling)
        if before is not None:
            attempt.runners, attempt.operations, attempt.compiling = before.runners, before.operations, before.compiling
        with turns.alone(model):
            self._attempt_alone(attempt)
        if attempt.compiled:  # here, for a trace changes a class of PyTorch's for its time
            try:
                self._signatures.variants.reachable.update(map(id, attempt.traces.guard(attempt.family)))
                self._signatures.check_apart(call)
            except Exception as reason:  # a trace without its guards must serve nothing
                attempt.error = reason
        if attempt.family is not None and not attempt.compiled:
            attempt.family.forget(record)
        return attempt

    def _attempt_alone(self, attempt: Attempt) -> None:
        variants, record, start = self._signatures.variants, attempt.record, time.perf_counter()
        attempt.traces = Traces(self._model(), variants)
        self._busy = True
        try:
            with out_of_sight(variants.state.tensors()):
                attempt.family, attempt.entry = self._compile(attempt)
        except UserError:
            raise
        except Exception as caught:
            attempt.error = caught
            if reasons.asks_for_data(caught):
                attempt.error = DependsOnData(reasons.reason_of(caught, ""))
            elif reasons.meets_a_real_tensor(caught):
                attempt.error = NotCompiled(reasons.reason_of(caught, ""))
        finally:
            self._busy = False
            attempt.changed = attempt.traces.restore()
        if attempt.traces.drawn and (attempt.error is None or not reasons.is_users(attempt.error)):
            attempt.error = DependsOnData(attempt.traces.drawn, getattr(attempt.error, "in_pytorch", False))
        attempt.in_pytorch = getattr(attempt.error, "in_pytorch", False) or attempt.traces.in_pytorch
        self._beyond_dynamo |= attempt.in_pytorch
        record.capture_seconds = time.perf_counter() - start - record.compile_seconds

    def _keep(self, attempt: Attempt, given: dict[str, tuple]) -> Entry:
        call, record, known = attempt.call, attempt.record, self._signatures
        variant, (training, _, _, active) = call.key
        known.tell(record, Signature(given, variant, training, active, reads=known.differences(call.key)))
        record.captured = record.expected = None
        self.compilations.append(record)
        known.add(call.key, attempt.family, attempt.entry)
        self._records[attempt.entry] = record
        return attempt.entry

    def _settled(self, attempt: Attempt) -> Attempt | None:
        """Hugging Face's models set defaults in their configuration when they are first called. What the trace set is set for
        good, and the model traced again as later calls will find it, so that no later call waits. None, and nothing is set, where
        that is not the end of it."""
        settled, snapshot, call = None, attempt.traces.snapshot, attempt.call
        snapshot.set_again()
        try:
            variant, tensors = self._signatures.variants.find()
            again = self._attempt(dataclasses.replace(call, key=(variant, call.kind), tensors=tensors), attempt)
            settled = again if again.compiled else None
        except NotCompiled:  # what was set cannot be told from other values
            pass
        finally:
            if settled is None:
                snapshot.restore()
        return settled

    def _compile(self, attempt: Attempt) -> tuple[family.Family, Entry]:
        """The entry of a new signature: new sizes of what was traced with symbols, or another trace."""
        call, record = attempt.call, attempt.record
        tensors, arguments = self._signatures.variants.state.tensors(), call.arguments
        if attempt.runners is None:
            attempt.runners = Runners(device.one(tensors or arguments, "the model's tensors"), self.settings.tune)
        record.fixed = self.settings.fixed(tensors, arguments)
        record.limit = self.settings.limit(record.fixed)
        record.expected = self._fusion and tensors
        record.prints = bool(self._signatures.numbers.slots)
        # Traced as if all lay apart; where they do not, and one is written, the call runs in PyTorch.
        originals = [*tensors, *arguments]
        separate = overlap.apart(originals)
        tensors, arguments = separate[: len(tensors)], separate[len(tensors) :]

        def again_of(numbers: bool) -> CallAgain:
            told = self._differentiated_again, self._differentiates
            return CallAgain(record.name, self._signatures.variants, shapes, call, numbers, *told)

        def prepared(compiler: joint.Compiler, numbers: bool) -> joint.Compiler:
            compiler.program, compiler.gives_inner = again_of(numbers), self._gives_inner
            compiler.differentiated = self._differentiated.get(kind_of(call.kind), frozenset())
            return compiler

        def static() -> Entry:
            compiler = joint.Compiler(record, attempt.runners, fusion=self._fusion, verification=self._verification)
            return self._trace(attempt, [*tensors, *arguments], originals, prepared(compiler, False))

        def symbolic(symbols: Symbols) -> family.Serve:
            compiler = joint.Compiler(record, attempt.runners, symbols, self._fusion, self._verification)
            entry = self._trace(attempt, symbols.inputs, originals, prepared(compiler, symbols.numbers is not None))
            return lambda inputs, record: entry if compiler.add_sizes(inputs, record) else None

        shapes = self._signatures.family(call.key)
        return shapes, shapes.entry(record, tensors, arguments, static, symbolic)

    def _trace(
        self, attempt: Attempt, inputs: list[Tensor], originals: list[Tensor], compiler: joint.Compiler
    ) -> Entry:
        """`inputs` may be fakes, or lie elsewhere; the program's own tensors are `originals`."""
        trace = attempt.traces.start()
        reads, disguise, watched = trace.reads, trace.disguise, trace.watched
        program = compiler.symbols.numbers if compiler.symbols is not None else None
        if program is not None:
            reads.in_place, program.reads = True, reads
        dress = functools.partial(disguise.dress, originals=originals)
        # A program whose numbers move is asked as a whole what it could tell of them (numbers/questions.py).
        in_backward = functools.partial(attempt.traces.backward, trace, compiler) if program is None else None
        call = FlatCall(
            self._signatures.variants.state, attempt.call.structure, attempt.traces.snapshot, watched, reads, dress, originals,
            program, in_backward,
        )  # fmt: skip
        compiler.operations, compiler.first_inputs = attempt.operations, originals
        with tracing(attempt.compiling), disguise.active(), call.watched():
            compiler.is_users, compiler.result = reads.is_users, lambda: call.result
            compiled = joint.compile_flat(call, inputs, attempt.record, compiler)
        if watched.logged:
            raise SideEffect(f"{watched.logged} would be written once, while the model is traced")
        call.forget()  # `compiled` holds it
        result = call.result

        def entry(inputs: list[Tensor], args: tuple, kwargs: dict) -> Any:
            return unflatten(result, compiled(*inputs))

        return entry

    # -- what is not captured -----------------------------------------------------------------------------------------

    def _differentiated_again(self, kind: tuple, often: bool, what: str) -> None:
        """`what`: a gradient of a call of this kind was asked for that PyTorch makes by doing the call again; calls of which such
        are asked `often` run in PyTorch from now on."""
        name = type(self._model()).__name__
        if not often:
            messages.warn_once(f"second order {id(self)} {what}", f"{name}: PyTorch does a call again where {what}")
        elif kind_of(kind) not in self._second_order:
            self._second_order.add(kind_of(kind))
            self._signatures.serve_by(self._in_pytorch, lambda other: kind_of(other) == kind_of(kind))
            self._tell(records.Compilation(name, route="eager", reason=what))

    def _differentiates(self, kind: tuple, places: frozenset[int]) -> None:
        """A loss was made of these results, of which a trace had no backward: it is traced for them, once."""
        same = kind_of(kind)
        if same not in self._differentiated:
            self._differentiated[same] = places
            self._signatures.drop(lambda other: kind_of(other) == same)
        elif self._differentiated[same] != places:  # else it was a call that waited for its backward meanwhile
            self._differentiated_again(kind, True, BESIDE)

    def _route(self, attempt: Attempt) -> None:
        """Sends a signature through torch.compile's tracer, which sees Python itself, with trainc as its backend; to PyTorch
        where the tracer would do other than the program does: it draws from a copy of a generator."""
        record = attempt.record
        record.route, record.reason, record.captured = attempt.route, attempt.reason, None
        self._signatures.add(attempt.call.key, None, self._in_pytorch if attempt.in_pytorch else self._through_dynamo)
        self._tell(record)

    def _refused(self, reason: str, args: tuple, kwargs: dict, in_pytorch: bool) -> Any:
        in_pytorch = in_pytorch or self._beyond_dynamo
        self._tell_once("eager" if in_pytorch else "dynamo", reason)
        result = (self._in_pytorch if in_pytorch else self._through_dynamo)([], args, kwargs)
        return self._compared(self._model(), None, result)

    def _failed(self, error: Exception, args: tuple, kwargs: dict, call: Call | None = None) -> Any:
        """A call that failed by a fault of ours, or of an object of the program's that was looked at, before anything ran: it
        runs in PyTorch, and so does every `call` like it."""
        name = type(self._model()).__name__
        record = records.Compilation(name, route="eager", reason=f"{type(error).__name__}: {family.first_line(error)}")
        known = any(other.reason == record.reason for other in self.compilations)
        if known:
            messages.require_fallback(error)
        else:
            messages.fell_back(name, error)
            self.compilations.append(record)
        if call is not None and call.key is not None:
            self._signatures.add(call.key, None, self._in_pytorch)
        return self._compared(self._model(), None, self._in_pytorch([], args, kwargs))

    def _tell(self, record: records.Compilation) -> None:
        """Keeps the record, and then warns, once for a reason: a warning may be an error."""
        where = "runs in PyTorch" if record.route == "eager" else "goes through torch.compile's tracer"
        known = any((other.route, other.reason) == (record.route, record.reason) for other in self.compilations)
        self.compilations.append(record)
        if not known:
            messages.warn(f"{record.name} {where}: {record.reason}")

    def _tell_once(self, route: str, reason: str) -> None:
        """Of calls that have no record each."""
        if not any(other.reason == reason for other in self.compilations):
            self._tell(records.Compilation(type(self._model()).__name__, route=route, reason=reason))

    def _in_pytorch(self, _inputs: list[Tensor], args: tuple, kwargs: dict) -> Any:
        return compat.uncompiled_call(self._model())(*args, **kwargs)

    def _mixed(self, key: tuple, reason: str) -> Entry:
        """A call with tensors of several devices: PyTorch may know what to do (forward moves them itself); where it does not, the
        error names the argument."""
        messages.require_fallback(UserError(reason))

        def run(inputs: list[Tensor], args: tuple, kwargs: dict) -> Any:
            try:
                result = self._in_pytorch(inputs, args, kwargs)
            except RuntimeError as error:
                raise UserError(f"{reason} ({family.first_line(error)})") from error
            record = records.Compilation(type(self._model()).__name__, route="eager", reason=reason)
            self._signatures.add(key, None, self._in_pytorch)
            self._tell(record)
            return result

        return run

    def _through_dynamo(self, _inputs: list[Tensor], args: tuple, kwargs: dict) -> Any:
        model = self._model()
        if self._dynamo is None and any(map(is_lazy, model.parameters())):
            return compat.uncompiled_call(model)(*args, **kwargs)  # Dynamo would initialise them without moving the generator on
        if self._dynamo is None and (found := distributed.beside_forward(model)):
            messages.warn(f"{type(model).__name__} runs in PyTorch: {found}")
            self._dynamo = compat.uncompiled_call(model)
        if self._dynamo is None:
            from trainc.torch.doors.backend import backend

            self._dynamo = torch.compile(compat.uncompiled_call(model), backend=backend, options={"tune": self.settings.tune})
        if self._beside is None:
            self._beside = BesideDynamo(model, lambda: self._signatures.variants.state)
        variant = self._signatures.variants.last
        if self._beside.before(variant, kwargs):
            messages.require_fallback(NotCompiled(self._beside.lost))
            self._tell_once("eager", self._beside.lost)
            return self._in_pytorch([], args, kwargs)
        with as_python(self._left_to_python, self._beside.trace):
            result = self._dynamo(*args, **kwargs)
        self._beside.after(variant)
        return result

    def _left_to_python(self, where: str, error: Exception) -> None:
        if isinstance(error, compat.BackendCompilerFailed):
            messages.require_fallback(error)
        name = type(self._model()).__name__
        messages.warn_once(f"left {id(self)} {where}", f"{name}: {where} runs in PyTorch: {family.first_line(error)}")



def _in_transform() -> bool:
    return (
        compat.functorch_transform() is not None
        or compat.differentiates_forward()
        or compat.jit_tracing_state() is not None
        or compat.count_dispatch_modes() > 0
        or compat.caches_parametrizations()
        or compat.function_modes_enabled()
        and compat.count_function_modes() > 0
        and not all(isinstance(mode, DeviceContext) for mode in function_modes())
    )


__all__ = ["CompiledCall"]
