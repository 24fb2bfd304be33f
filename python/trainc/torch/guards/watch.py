"""Which functions a program runs while it is traced, and which calls make a trace impossible: what `reads.Reads` starts from.

A trace stands for later calls only if nothing but its inputs and the places that are watched can change what the program does. So
calls that ask the world (the clock, a file), that draw from a generator out of sight, or that do something which a compiled call
would not do again (print) end the trace with the reason.
"""

from __future__ import annotations

import builtins
import contextlib
import gc
import inspect
import logging
import os
import threading
import types
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch

from trainc.base import PACKAGE
from trainc.base.errors import NotCompiled, SideEffect
from trainc.torch import compat
from trainc.torch.guards import known_functions
from trainc.torch.guards.kinds import methods_of
from trainc.torch.guards.places import STEPPING
from trainc.torch.trust import C_TRUSTED, is_trusted_code, is_trusted_file, is_trusted_module, top_package_of

try:
    from trainc._core import CallWatch
except ImportError:  # the package without its compiler
    CallWatch = None

# C functions, by module and name, whose result is another one at each call, or which do what a compiled call would not do again.
_ASKS = {
    "time": {"time", "time_ns", "perf_counter", "perf_counter_ns", "monotonic", "monotonic_ns", "process_time", "process_time_ns",
             "thread_time", "thread_time_ns", "localtime", "gmtime", "ctime", "asctime", "strftime"},
    "posix": {"urandom", "getpid", "read", "write", "open", "listdir", "stat", "scandir", "times", "getrandom", "getloadavg",
              "system", "remove", "unlink", "mkdir", "rename", "rmdir", "putenv", "fork", "_exit", "kill", "access"},
    "builtins": {"print", "input", "exec", "eval"},
    "io": {"open", "open_code"},
    "_io": {"open", "open_code", "write", "read", "readline", "flush"},
    "_thread": {"start_new_thread", "get_ident", "locked"},
    "_random": {"random", "getrandbits", "seed"},
    "gc": {"collect", "enable", "disable"},
    "sys": {"exit", "setrecursionlimit"},
    "torch": {"set_num_threads"},
    "_uuid": {"generate_time_safe"},
    "_socket": {"socket"},
    "datetime": {"now", "utcnow", "today"},
}  # fmt: skip
_READS_TENSOR = {"tolist", "numpy", "item", "__array__"}
# What tells where a tensor lies, or works on its memory: no signature says that.
_ASKS_MEMORY = {"storage_offset", "data_ptr", "untyped_storage", "is_set_to", "_is_view", "is_inference"}

# Functions of PyTorch's and of the standard library that change, or read, a state which a trace does not have.
_STATEFUL: dict[types.CodeType, str] = {}


def _stateful(reason: str, *functions: Any) -> None:
    for function in functions:
        code = getattr(getattr(function, "__wrapped__", function), "__code__", None)
        if code is not None:
            _STATEFUL[code] = reason


_stateful("sets or reads the state of torch's generator", torch.manual_seed, torch.seed, torch.set_rng_state, torch.get_rng_state,
          torch.random.manual_seed, torch.random.seed, torch.random.fork_rng, torch.cuda.manual_seed, torch.cuda.manual_seed_all,
          torch.cuda.get_rng_state, torch.cuda.set_rng_state)  # fmt: skip
_stateful("changes a setting of torch's", torch.set_default_dtype, torch.set_default_device, torch.use_deterministic_algorithms,
          torch.set_float32_matmul_precision, torch.set_deterministic_debug_mode)  # fmt: skip


# Steps of optimizers and schedulers, whoever calls them: a trace does those that it knows itself, and loses others.
_STEPS: dict[types.CodeType, str] = {}


def mark_step(function: Any) -> None:
    """The program's calls of this function, an optimizer's step, end a trace."""
    _STEPS[function.__code__] = "an optimizer"


def _all_of(kind: type) -> Iterator[type]:
    yield kind
    for each in kind.__subclasses__():
        yield from _all_of(each)


class Refusing:
    """Ends a trace in the middle of the program's code, which may catch what is raised: the first reason is kept."""

    reason: Exception | None = None

    def check(self) -> None:
        """Raises what was refused, also where the program caught it."""
        if self.reason is not None:
            raise self.reason

    def _refuse(self, reason: Exception) -> None:
        self.reason = self.reason or reason
        raise self.reason


class Watched(Refusing):
    """While active: `enter(frame)` for the frame of each piece of the user's code at its first call, before it runs;
    `read(tensor)` where Python reads a tensor's memory; `ask(name, function)` where it calls a function whose answer must be
    watched; `method(code)` for a method of PyTorch's that an optimizer or a scheduler runs; calls that make the trace impossible
    raise."""

    def __init__(
        self, enter: Callable[[Any], None], read: Callable[[torch.Tensor], None], ask: Callable[[str, Callable[[], Any]], None],
        method: Callable[[types.CodeType], None],
    ):  # fmt: skip
        self._enter, self._read, self._ask, self._method = enter, read, ask, method
        self.warned = False  # whether a warning was shown that would not be shown again
        self.logged: str | None = None  # where a record was logged since this was set to None

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        if CallWatch is None:
            yield
            return
        watch = CallWatch(self._code, self._c_call)
        watch.start()
        try:
            with self._current(watch):
                yield
        finally:
            watch.stop()
        self.check()

    @contextlib.contextmanager
    def _current(self, watch: Any) -> Iterator[None]:
        before, _here.watch = getattr(_here, "watch", None), watch
        try:
            yield
        finally:
            _here.watch = before

    def _code(self, frame: Any) -> bool | None:
        code = frame.f_code
        if (owner := _STEPS.get(code)) is not None:
            what = f"steps {owner} that the trace does not know"
            ways = "a variable, a global, a default or an attribute of self"
            self._refuse(NotCompiled(f"{_line(_user_frame(frame))}: {what}: call step() of one that was there before, by {ways}"))
        if code is _LOGS:
            self.logged = f"{_line(_user_frame(frame))}: a log record"
            return None  # tell of it again
        if code is _WARNS:
            caller = frame.f_back  # C code has no frame: this is who warns
            if caller is not None and not is_trusted_code(caller.f_code, caller.f_globals):
                self._warns(frame.f_locals["msg"], caller)
            return None
        if code in _HOOKS_BACKWARD:  # PyTorch would call them, in a backward that nothing watches
            self._refuse(NotCompiled(f"{_line(_user_frame(frame))}: calls a module that has backward hooks"))
        if code is _HOOKS_SAVED:
            caller = frame.f_back
            if caller is not None and not is_trusted_code(caller.f_code, caller.f_globals):
                self._refuse(NotCompiled(f"{_line(caller)}: sets hooks on saved tensors"))
            return None
        if (reason := _STATEFUL.get(code)) is not None:
            caller = frame.f_back
            while caller is not None and caller.f_code.co_filename.endswith(_WRAPPERS):
                caller = caller.f_back
            if caller is not None and not is_trusted_file(caller.f_code.co_filename):
                self._refuse(SideEffect(f"{_line(caller)}: {code.co_name}() {reason}"))
            return None
        if is_trusted_code(code, frame.f_globals):
            if code in _METHODS:
                try:
                    self._method(code)
                except NotCompiled as reason:
                    self._refuse(reason)
            if not known_functions.reads(code):
                return False
            self._asked(frame)
            return None
        if _importing(frame) or _collecting(frame):
            return None  # where forward calls it itself, later, it is seen
        try:
            self._enter(frame)
        except NotCompiled as reason:
            self._refuse(reason)
        return True

    def _asked(self, frame: Any) -> None:
        """A function that reads a state is called: where the program does it, its answer is watched, or ends the trace."""
        caller, code, function = frame.f_back, frame.f_code, known_functions.ANSWERED.get(frame.f_code)
        if caller is None or is_trusted_code(caller.f_code, caller.f_globals) or known_functions.gives_the_same(frame):
            return
        if function is None or any(value is not None for value in frame.f_locals.values()):
            self._refuse(NotCompiled(f"{_line(caller)}: {code.co_name}() reads what no signature has", in_pytorch=True))
        self._ask(f"{function.__module__}.{code.co_name}()", function)

    def _warns(self, shown: Any, caller: Any) -> None:
        """What is shown once is shown by the trace; what is shown by each call must be."""
        if _action_for(shown, caller.f_globals.get("__name__", "")) in ("default", "module", "once"):
            self.warned = True
            return
        self._refuse(SideEffect(f"{_line(caller)}: a warning would be shown once, while the model is traced", in_pytorch=True))

    def _c_call(self, frame: Any, function: Any) -> None:
        if _collecting(frame):
            return
        name, module = function.__name__, top_package_of(function)
        owner = getattr(function, "__self__", None)
        if isinstance(owner, torch.Tensor):
            if name in _READS_TENSOR and type(owner) in (torch.Tensor, torch.nn.Parameter):
                self._read(owner)
            if name in _ASKS_MEMORY:
                self._refuse(NotCompiled(f"{_line(frame)}: {name}() depends on where, or how, a tensor was made", True))
            return
        if name in _ASKS.get(module, ()) and not _is_own_object(owner, module):
            what = "print()" if function is builtins.print else f"{module}.{name}()".replace("builtins.", "")
            self._refuse(SideEffect(f"{_line(frame)}: {what} would run once, while the model is traced"))
        if known_functions.c_function_reads(module, name, owner):
            self._refuse(NotCompiled(f"{_line(frame)}: {module}.{name}() reads what no signature has", in_pytorch=True))
        if module not in C_TRUSTED and not module.startswith("torch"):
            self._refuse(NotCompiled(f"{_line(frame)}: {module}.{name} is compiled code, and what it reads is not known"))


_here = threading.local()
_WRAPPERS = tuple(os.path.join("torch", *path) for path in (("_dynamo", "eval_frame.py"), ("_compile.py",), ("random.py",)))
_LOGS = logging.Logger.handle.__code__
_WARNS = warnings._showwarnmsg.__code__  # what shows a warning that the program's filters let through
# what `module(...)` makes of hooks around its backward, full ones and others
_HOOKS_BACKWARD = {torch.utils.hooks.BackwardHook.__init__.__code__, compat.WrappedHook.__init__.__code__}
_HOOKS_SAVED = torch.autograd.graph.saved_tensors_hooks.__enter__.__code__


_STEPS[torch.optim.Optimizer.profile_hook_step(mark_step).__code__] = "an optimizer"  # what is around every class's step
for _kind in _all_of(torch.optim.lr_scheduler.LRScheduler):
    if "step" in vars(_kind):
        _STEPS[inspect.unwrap(vars(_kind)["step"]).__code__] = "a scheduler"


# Methods of these that the program calls: what they name is read of the program's objects, as what its own code names.
_METHODS = frozenset(
    code for base in STEPPING for kind in _all_of(base) if is_trusted_module(kind.__module__) for code in methods_of(kind)
)


def _action_for(shown: Any, module: str) -> str:
    """What the program's filters say of a warning."""

    def fits(pattern: Any, text: str) -> bool:
        return pattern is None or (pattern == text if isinstance(pattern, str) else pattern.match(text) is not None)

    for action, message, kind, where, line in warnings.filters:
        known = issubclass(shown.category, kind) and line in (0, shown.lineno)
        if known and fits(message, str(shown.message)) and fits(where, module):
            return action
    return warnings.defaultaction


@contextlib.contextmanager
def suspended() -> Iterator[None]:
    """While trainc does its own work within a trace, nothing is the program's. Within another `suspended()` it does nothing."""
    watch = getattr(_here, "watch", None)
    if watch is None:
        yield
        return
    watch.stop()
    _here.watch = None
    try:
        yield
    finally:
        _here.watch = watch
        watch.start()


def _user_frame(frame: Any) -> Any:
    """The nearest caller that is the user's own code, or the frame itself."""
    found = frame
    while found is not None and is_trusted_file(found.f_code.co_filename):
        found = found.f_back
    return found or frame


def _collecting(frame: Any) -> bool:
    """Whether a callback of the garbage collector runs (JAX has one): it comes in anywhere, and is not the program's."""
    codes = [code for callback in gc.callbacks if (code := getattr(callback, "__code__", None)) is not None]
    while codes and frame is not None and not frame.f_code.co_filename.startswith(PACKAGE):
        if frame.f_code in codes:
            return True
        frame = frame.f_back
    return False


def _importing(frame: Any) -> bool:
    """Whether a frame runs for an import that forward makes."""
    while frame is not None and not frame.f_code.co_filename.startswith(PACKAGE):
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


def _is_own_object(owner: Any, module: str) -> bool:
    """Whether a method is one of an object in memory (io.StringIO) or of a generator whose state is watched (random.Random)."""
    return module == "_random" or type(owner).__name__ in ("StringIO", "BytesIO")


def _line(frame: Any) -> str:
    return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"


__all__ = ["Refusing", "Watched", "mark_step", "suspended"]
