"""`trainc.jit`: a function that JAX traces, compiled by trainc and called by XLA.

The compiled function is a `jax.jit` of JAX's own, of a function that is traced as the user's is and holds one operation, the
plan: so arguments, static arguments, weak types, donation, caching and errors are jax.jit's.
"""

from __future__ import annotations

import dataclasses
import functools
import time
import types
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from trainc.base import messages, plans, records, tuning
from trainc.base.errors import InternalError, NotCompiled, UserError
from trainc.base.garbage import uncollected
from trainc.base.options import CompileOptions
from trainc.base.report import Explanation
from trainc.jax import calls, compat, split
from trainc.jax.lowering import Pairs, lowered, on_its_mesh, operations_of, pairs_of
from trainc.xla import signatures
from trainc.xla.plans import Host, XlaPlan, XlaPlans

jax_jit = jax.jit  # install.py may put ours in its place
HOST = Host(f"jax {jax.__version__}")
_SHARDED = ("in_shardings", "out_shardings", "device", "backend")  # arguments of jax.jit's that say where a function runs


@dataclasses.dataclass(frozen=True)
class Whole:
    """A function, or a part of one, as one plan."""

    plan: XlaPlan
    constants: list[np.ndarray]  # that the plan takes behind the arguments
    results: list[Any]  # their types
    given_away: Pairs  # arguments whose memory results may take
    original: calls.Original

    def __call__(self, *arguments: Any) -> list[Any]:
        """Within a traced function."""
        return calls.call(self.plan, [*arguments, *self.constants], self.results, self.given_away, self.original)


class Jitted:
    """A function after `trainc.jit`."""

    def __init__(self, function: Callable, arguments: dict[str, Any], tune: str = "fast", least: int = 0):
        functools.update_wrapper(self, function)
        self._tune = tune
        self._least = least  # operations of what is compiled
        self._name = getattr(function, "__name__", type(function).__name__)
        names = ("static_argnums", "static_argnames")
        self._static = {name: arguments[name] for name in names if arguments.get(name) is not None}
        self._elsewhere = [name for name in _SHARDED if arguments.get(name) is not None]
        self._whole = jax_jit(function, **self._static, keep_unused=True)
        self._plain = jax_jit(function, **arguments)  # what JAX makes of it
        self._compiled = jax_jit(self._body(function), **arguments)
        self._seen = signatures.Seen()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._now()(*args, **kwargs)

    def lower(self, *args: Any, **kwargs: Any) -> Any:
        return self._now().lower(*args, **kwargs)

    def trace(self, *args: Any, **kwargs: Any) -> Any:
        return self._now().trace(*args, **kwargs)

    def eval_shape(self, *args: Any, **kwargs: Any) -> Any:
        return self._plain.eval_shape(*args, **kwargs)

    def clear_cache(self) -> None:
        for function in (self._whole, self._plain, self._compiled):
            function.clear_cache()

    def __get__(self, owner: Any, kind: Any = None) -> Any:
        return self if owner is None else types.MethodType(self, owner)

    def __getattr__(self, name: str) -> Any:
        """Whatever else a function of jax.jit's has."""
        if name == "_plain":  # a copy that is not made yet
            raise AttributeError(name)
        return getattr(self._plain, name)

    def __deepcopy__(self, memo: Any) -> Jitted:
        """Itself, as of any function: a train state that holds its step may be copied."""
        return self

    def __repr__(self) -> str:
        return f"<trainc.jit of {self._name}>"

    def trainc_explained(self, batch: Any) -> Explanation:
        """What `trainc.explain` gives. `batch`: a tuple of arguments, a dict of keywords, or one argument."""
        if batch is not None:
            args, kwargs = signatures.arguments_of(batch)
            self._compiled.trace(*args, **kwargs)
        return Explanation(self._name, list(records.of(self)))

    def _now(self) -> Any:
        """Within a function that is traced (by jit, grad, vmap) and where nothing is to be compiled, it is JAX's."""
        return self._plain if compat.is_tracing() or jax.config.jax_disable_jit else self._compiled

    def _body(self, function: Callable) -> Callable:
        """What JAX traces in the function's place."""

        @functools.wraps(function)
        def body(*args: Any, **kwargs: Any) -> Any:
            if not compat.is_tracing():  # jax_debug_nans and jax_debug_infs run it once more, operation by operation
                return function(*args, **kwargs)
            with uncollected():
                return self._traced(function, args, kwargs)

        return body

    def _traced(self, function: Callable, args: tuple, kwargs: dict[str, Any]) -> Any:
        """Within a trace of JAX's: the function's plan, or the function itself."""
        donated = [leaf.donated for leaf in jax.tree.leaves(self._plain.trace(*args, **kwargs).args_info)]
        traced = self._whole.trace(*args, **kwargs)  # not traced again
        made = self._made(traced, donated, signatures.of(function, args, kwargs, _arrays_of))
        if made is None:
            return self._whole(*args, **kwargs)
        arguments = [leaf for leaf in jax.tree.leaves((args, kwargs)) if isinstance(leaf, jax.core.Tracer)]
        results = on_its_mesh(traced.jaxpr, made(*arguments))
        return jax.tree.unflatten(jax.tree.structure(traced.out_avals), results)

    def _made(self, traced: Any, donated: list[bool], signature: signatures.Signature) -> Whole | split.Split | None:
        """None where there is no plan; but for what is too small it is said."""
        if operations_of(traced) < self._least:
            return None
        record = records.Compilation(self._name, str(signature), self._seen.recompiled(self._name, signature), framework="JAX")
        records.of(self).append(record)
        try:
            if self._elsewhere:
                raise NotCompiled(f"{self._elsewhere[0]} says where it runs")
            if jax.default_backend() != "cpu":
                raise NotCompiled(f"JAX runs on {jax.default_backend()}; trainc.jit is for its CPU backend")
            try:
                made = self._plan(record, self._name, traced, jax.tree.leaves(traced.out_avals), pairs_of(traced, donated))
            except (NotCompiled, InternalError) as error:
                return self._in_parts(record, traced, pairs_of(traced, donated), error)
        except (NotCompiled, InternalError) as error:
            record.route, record.reason = "eager", str(error)
            messages.fell_back(self._name, error, "JAX")
            return None
        record.engine, record.forward, record.whole = "core", made.plan, True
        return made

    def _plan(self, record: records.Compilation, name: str, traced: Any, results: list[Any], given_away: Pairs) -> Whole:
        start = time.perf_counter()
        step, constants = lowered(traced, name, given_away)
        record.capture_seconds += time.perf_counter() - start
        options = CompileOptions.of(HOST, self._tune)
        calls.register_handler()
        with record.compiling():
            plan = plans.compile_step(step, options, XlaPlans(HOST, options)).forward
        return Whole(plan, constants, results, given_away, calls.Original(traced.jaxpr, self._refused))

    def _refused(self, reason: str) -> None:
        """Of a call for whose arguments XLA does not run the plans that its trace has."""
        known = records.of(self)
        if not any(record.reason == reason for record in known):
            known.append(records.Compilation(self._name, route="eager", reason=reason, framework="JAX"))
            messages.fell_back(self._name, NotCompiled(reason), "JAX")

    def _in_parts(self, record: records.Compilation, traced: Any, given_away: Pairs, error: Exception) -> split.Split:
        """A function that cannot be one plan, because of `error`; raises it where there is no part worth one."""
        if not messages.falls_back():
            raise error

        def compile_(traced: Any, results: list[Any], given_away: Pairs) -> Whole:
            part = self._plan(record, f"{self._name}, part {len(record.parts) + 1}", traced, results, given_away)
            record.parts.append(part.plan)
            return part

        try:
            made = split.split(traced.jaxpr, self._name, given_away, compile_)
            if made is not None:  # asked before anything of it, an effect, is a part of the trace that goes on
                jax.eval_shape(made, *jax.tree.leaves(traced.in_avals))
        except Exception:  # JAX does not take the parts again: a failure of ours, for it has traced the function itself
            made = None  # what the whole was refused for is the reason
        if made is None:
            record.parts.clear()
            raise error
        record.engine, record.route, record.reason = "core", "split", "; ".join(made.reasons)
        messages.warn(f"{self._name} is compiled in parts, around what runs in JAX: {record.reason}")
        return made


def _arrays_of(value: Any) -> dict[str, signatures.Leaf] | None:
    """Of an argument of a function that is traced: what is no tracer is static."""
    leaves = jax.tree_util.tree_leaves_with_path(value)
    found = {}
    for path, leaf in leaves:
        if isinstance(leaf, jax.core.Tracer):
            type_ = jax.typeof(leaf)
            found[jax.tree_util.keystr(path)] = signatures.Leaf(str(type_.dtype), tuple(type_.shape), type_.weak_type)
    return None if leaves and not found else found


def jit(function: Callable | None = None, /, *, tune: str = "fast", memory: Any = None, **arguments: Any) -> Any:
    """`trainc.jit`."""
    tuning.check(tune)
    if memory is not None:
        raise UserError("trainc.jit: memory= is not there: leave it out")
    if function is None:
        return lambda function: Jitted(function, arguments, tune)
    return Jitted(function, arguments, tune)


def jit_by_jax(function: Callable | None = None, /, *, tune: str = "fast", memory: Any = None, **arguments: Any) -> Any:
    """In the place of `jit` where nothing is to be compiled."""
    return functools.partial(jax_jit, **arguments) if function is None else jax_jit(function, **arguments)


__all__ = ["Jitted", "jit", "jit_by_jax"]
