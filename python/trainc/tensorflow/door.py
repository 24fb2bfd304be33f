"""`trainc.function`: a function that TensorFlow traces, compiled by trainc and called by TensorFlow's XLA.

The compiled function is a `tf.function` of TensorFlow's own, which is traced once for each signature, and holds one operation,
the plan, and the assignments of its results to the variables: so arguments, retracing, variables and errors are TensorFlow's.
"""

from __future__ import annotations

import functools
import inspect
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from trainc.base import messages, plans, records, tuning
from trainc.base.errors import InternalError, NotCompiled, UserError
from trainc.base.garbage import uncollected
from trainc.base.options import CompileOptions
from trainc.base.report import Explanation
from trainc.tensorflow import compat
from trainc.tensorflow.calls import Called, register_handler
from trainc.tensorflow.lowering import lowered
from trainc.xla import signatures
from trainc.xla.plans import Host, XlaPlans

HOST = Host(f"tensorflow {tf.__version__}")
_DRAWS = (
    "draws random numbers without a seed of their own (tf.random.normal, tf.nn.dropout and the like): of the same distributions "
    "as TensorFlow's, and the same after each tf.random.set_seed, but not its numbers. tf.random.stateless_* and "
    "tf.random.Generator draw XLA's, to the bit"
)


class _Held:
    """A variable among the arguments: which one it is, and not only of which kind. So the same one under two names is one."""

    def __init__(self, variable: tf.Variable):
        self.variable = weakref.ref(variable)

    @staticmethod
    def of(x: Any) -> Any:
        """Anything else is as it is. TensorFlow knows an object that it saw before by a weak reference: it is kept."""
        return vars(x).setdefault("_trainc_held", _Held(x)) if isinstance(x, tf.Variable) else x

    @staticmethod
    def given(x: Any) -> Any:
        return x.variable() if isinstance(x, _Held) else x


class Function:
    """A function after `trainc.function`."""

    def __init__(self, function: Callable, arguments: dict[str, Any], tune: str = "fast", plain: Any = None):
        """`plain`: what TensorFlow makes of it, where that is there already."""
        functools.update_wrapper(self, function)
        self._function, self._arguments, self._tune = function, arguments, tune
        self._name = getattr(function, "__name__", type(function).__name__)
        self._plain = tf.function(function, **arguments) if plain is None else plain
        self._compiled = tf.function(self._body, autograph=False)
        self._of_instances: weakref.WeakKeyDictionary[Any, Function] = weakref.WeakKeyDictionary()
        self._state: tf.Variable | None = None
        self._seen = signatures.Seen()
        self._lock = threading.Lock()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._is_tensorflows():
            return self._plain(*args, **kwargs)
        args = self._in_dtypes_asked_for(args)
        if any(isinstance(x, tf.Variable) for x in tf.nest.flatten((args, kwargs))):
            args, kwargs = tf.nest.map_structure(_Held.of, (args, kwargs))
        return self._compiled(*args, **kwargs)

    def __get__(self, owner: Any, kind: Any = None) -> Any:
        """A method: of each instance one, which TensorFlow, too, has its own function of."""
        if owner is None:
            return self
        with self._lock:
            found = self._of_instances.get(owner)
            if found is None:
                method = _unbound(self._function)
                found = Function(method, self._arguments, self._tune, self._plain.__get__(owner, kind))
                self._of_instances[owner] = found
        return found

    def __getattr__(self, name: str) -> Any:
        """Whatever else a function of tf.function's has."""
        if name == "_plain":  # a copy that is not made yet
            raise AttributeError(name)
        return getattr(self._plain, name)

    def __deepcopy__(self, memo: Any) -> Function:
        """Itself, as of any function: what holds its step may be copied."""
        return self

    def __repr__(self) -> str:
        return f"<trainc.function of {self._name}>"

    def trainc_explained(self, batch: Any) -> Explanation:
        """What `trainc.explain` gives. `batch`: a tuple of arguments, a dict of keywords, or one argument."""
        if batch is not None:
            args, kwargs = signatures.arguments_of(batch)
            self._compiled.get_concrete_function(*args, **kwargs)
        return Explanation(self._name, list(records.of(self)))

    # ---- what TensorFlow traces --------------------------------------------------------------------------------------

    def _body(self, *args: Any, **kwargs: Any) -> Any:
        args, kwargs = tf.nest.map_structure(_Held.given, (args, kwargs))
        record = records.Compilation(self._name, framework="TensorFlow")
        flat = tf.nest.flatten((args, kwargs), expand_composites=True)
        places = [i for i, x in enumerate(flat) if tf.is_tensor(x) and not isinstance(x, tf.Variable)]
        results: list[Any] = []  # the structure that the function gives

        def flattened(*tensors: Any) -> list[Any]:
            leaves = list(flat)
            for place, tensor in zip(places, tensors, strict=True):
                leaves[place] = tensor
            own, named = tf.nest.pack_sequence_as((args, kwargs), leaves, expand_composites=True)
            results[:] = [self._plain(*own, **named)]
            found = tf.nest.flatten(results[0], expand_composites=True)
            return compat.barrier([x for x in found if tf.is_tensor(x)])

        specs = [tf.TensorSpec(flat[i].shape, flat[i].dtype) for i in places]
        try:
            with uncollected():
                called = self._made(record, flattened, specs, args, kwargs)
        except (NotCompiled, InternalError) as error:
            given = self._plain(*args, **kwargs)  # what the user's function raises is its own error
            record.route, record.reason = "eager", str(error)
            messages.fell_back(self._name, error, "TensorFlow")
            return given
        given = iter(called([flat[i] for i in places]))
        leaves = [next(given) if tf.is_tensor(x) else x for x in tf.nest.flatten(results[0], expand_composites=True)]
        return tf.nest.pack_sequence_as(results[0], leaves, expand_composites=True)

    def _made(
        self, record: records.Compilation, flattened: Callable, specs: list[tf.TensorSpec], args: Any, kwargs: Any
    ) -> Called:
        record.signature = str(signature := signatures.of(self._function, args, kwargs, _arrays_of))
        record.recompiled = self._seen.recompiled(self._name, signature)
        records.of(self).append(record)
        if tf.config.list_logical_devices("GPU"):
            raise NotCompiled("TensorFlow has a GPU; trainc.function is for its CPU")
        if any(not s.shape.is_fully_defined() for s in specs):
            raise NotCompiled("the shape of an argument is not known")
        register_handler()
        start = time.perf_counter()
        try:
            concrete = tf.function(flattened, autograph=False, jit_compile=True).get_concrete_function(*specs)
        except Exception as error:  # the user's own, which is met again without us, or what XLA does not let it do
            raise NotCompiled(f"{type(error).__name__}: {_last_line(error)}") from error
        with tf.init_scope():  # (not around the trace: within it no tape records)
            step = lowered(concrete, self._name)
        record.capture_seconds += time.perf_counter() - start
        if step.draws:
            messages.warn_once(f"draws {self._name}", f"{self._name} {_DRAWS}")
        options = CompileOptions.of(HOST, self._tune)
        with record.compiling():
            plan = plans.compile_step(step.step, options, XlaPlans(HOST, options)).forward
            with tf.init_scope():
                called = Called(step, plan, self._drawn_from() if step.draws else None)
        record.engine, record.forward, record.whole = "core", plan, True
        return called

    # ------------------------------------------------------------------------------------------------------------------

    def _drawn_from(self) -> tf.Variable:
        """The state of the random numbers that it draws without a seed of their own: set when it first does."""
        with self._lock:
            if self._state is None:
                seed = tf.random.uniform([3], 0, 2**62, tf.int64)  # by tf.random.set_seed, where that was called
                self._state = tf.Variable(tf.cast(seed, tf.uint64), trainable=False, name="trainc_state")
            return self._state

    def _in_dtypes_asked_for(self, args: tuple) -> tuple:
        """Numbers and arrays as `input_signature` wants them. What does not fit is left: TensorFlow says so when it traces."""
        asked = self._arguments.get("input_signature") or ()
        try:
            cast = tuple(
                _as_asked(spec, value) if isinstance(spec, tf.TensorSpec) else tf.nest.map_structure(_as_asked, spec, value)
                for spec, value in zip(asked, args, strict=False)
            )
        except (TypeError, ValueError):
            return args
        return (*cast, *args[len(cast) :])

    def _is_tensorflows(self) -> bool:
        """Within a function that is traced, where something is to be differentiated, and where nothing is to be compiled."""
        if not tf.executing_eagerly() or tf.config.functions_run_eagerly():
            return True
        if compat.is_recording():
            messages.warn_once(
                f"tape {id(self)}",
                f"{self._name} runs in TensorFlow: a GradientTape outside of it watches, and a plan has no gradient",
            )
            return True
        if tf.distribute.has_strategy():
            messages.warn_once(f"strategy {id(self)}", f"{self._name} runs in TensorFlow: under a distribution strategy")
            return True
        return False


def _unbound(method: Callable) -> Callable:
    """What tells the names of a method's arguments, and keeps no instance alive."""

    @functools.wraps(method)
    def named() -> None:
        pass

    own = inspect.signature(method)
    named.__signature__ = own.replace(parameters=list(own.parameters.values())[1:])  # type: ignore[attr-defined]
    return named


def _as_asked(spec: Any, value: Any) -> Any:
    if not isinstance(spec, tf.TensorSpec) or tf.is_tensor(value) or isinstance(value, tf.Variable):
        return value
    return tf.convert_to_tensor(value, spec.dtype)


def _last_line(error: Exception) -> str:
    """Of what autograph says of an error in the user's code: that error's own message."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else "no reason"


def _arrays_of(value: Any) -> dict[str, signatures.Leaf] | None:
    leaves = tf.nest.flatten(value, expand_composites=True)
    found = {
        f"[{i}]" if len(leaves) > 1 else "": signatures.Leaf(leaf.dtype.name, tuple(leaf.shape))
        for i, leaf in enumerate(leaves)
        if tf.is_tensor(leaf)
    }
    return None if leaves and not found else found


def function(fun: Callable | None = None, /, *, tune: str = "fast", memory: Any = None, **arguments: Any) -> Any:
    """`trainc.function`."""
    tuning.check(tune)
    if memory is not None:
        raise UserError("trainc.function: memory= is not there: leave it out")
    if fun is None:
        return lambda fun: Function(fun, arguments, tune)
    return Function(fun, arguments, tune)


__all__ = ["Function", "function"]
