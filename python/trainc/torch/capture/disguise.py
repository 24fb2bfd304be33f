"""Tensors of a trace look to the program like its own: of their class, or with a refusal where only its own could answer.

A trace calls the program with tensors of PyTorch's tracing classes. What the program asks them about values, shapes and types is
answered as always; `type(x)`, `x.__class__`, `isinstance(x, nn.Parameter)`, an attribute that the program has put on a tensor, or
a tensor as the key of a dictionary would be answered otherwise, and another branch compiled, without a word. So would what raises
only because there are no values yet, where the program catches it.
"""

from __future__ import annotations

import contextlib
import os
import sys
import types
from collections.abc import Callable, Iterator, Sequence, Set
from typing import Any

import torch

from trainc.base.errors import DependsOnData, NotCompiled
from trainc.base.patches import patched, replaced
from trainc.torch import compat
from trainc.torch.capture.trace import calls_program
from trainc.torch.compat import FakeTensor, FunctionalTensor, FunctionalTensorMode
from trainc.torch.guards.code import about
from trainc.torch.guards.watch import Refusing
from trainc.torch.numbers import Number
from trainc.torch.trust import is_stdlib, is_trusted_code

try:
    from trainc._core import AttributeWatch
except ImportError:  # the package without its compiler
    AttributeWatch = None

_TRACING = (FunctionalTensor, FakeTensor)
_OF_CLASS = frozenset({"__class__", "__module__", "__doc__"})
_OF_ALL = _OF_CLASS | {"__dict__", "vars"}  # what an object has without a look at `__getattr__`
# Attributes of a trace's tensors that no other tensor has.
_OWN = frozenset(name for kind in _TRACING for name in (*dir(kind), *kind.__annotations__)) - set(dir(torch.nn.Buffer))
_OWN |= {"elem", "fake_mode", "fake_device", "constant"}
# Methods that give, or write down, a tensor's values, and do not come to the dispatcher.
_VALUES = (
    "__repr__", "__format__", "__array__", "__dlpack__", "__reduce_ex__", "__deepcopy__", "__dir__", "numpy", "tolist", "apply_",
    "map_", "storage", "share_memory_", "to_sparse",
)  # fmt: skip
_AS_PYTHON = frozenset({"__array__", "numpy", "tolist"})  # its values, whatever they are used for
_TEXT = frozenset({"__repr__", "__format__", "__dir__"})  # torch.compile's own tensors have another one, too
# Files of PyTorch's whose functions do no more than to ask a tensor further: `torch.save(x)`, `format(x)`.
_ASKING = tuple(os.path.join("torch", name) for name in ("_tensor.py", "_tensor_str.py", "storage.py", "serialization.py"))


def _class_of(thing: Any) -> type:
    """What `type(thing)` is where no trace runs."""
    kind = type(thing)
    if kind in _TRACING:
        return torch.nn.Parameter if compat.is_marked_parameter(thing) else torch.Tensor
    return float if kind is Number else Type if kind is type else kind


class _TypeOfTypes(type):
    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        return _class_of(args[0]) if len(args) == 1 and not kwargs else type(*args, **kwargs)

    def __instancecheck__(cls, thing: Any) -> bool:
        return isinstance(thing, type)

    def __subclasscheck__(cls, kind: type) -> bool:
        return issubclass(kind, type)


class Type(type, metaclass=_TypeOfTypes):
    """`type`, as the program's modules see it during a trace."""


Type.__name__ = Type.__qualname__ = "type"
Type.__module__ = "builtins"


class Disguise(Refusing):
    """For the time of one trace."""

    def __init__(self) -> None:
        self._patches = contextlib.ExitStack()
        self._inputs: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}  # of the trace, and the program's own
        self.asked: set[str] = set()  # attributes that none of them had
        self._answers_attributes = False
        self._depth, self._raised = 0, ""  # of calls of the dispatcher within each other; what one of them raised

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        with self._patches:
            for kind in _TRACING:  # by functions, not by methods that are bound already: the tensor is their first argument
                missing = _asking(None, None, lambda tensor, name: self._missing(tensor, name))
                self._patches.enter_context(patched(kind, "__getattr__", missing))
                self._patches.enter_context(patched(kind, "__hash__", lambda tensor: self._hash(tensor)))
                for name in _VALUES:
                    self._patches.enter_context(patched(kind, name, self._giving(name, getattr(kind, name))))
            dispatch = FunctionalTensorMode.__dict__["__torch_dispatch__"]
            self._patches.enter_context(patched(*compat.FUNCTIONAL_DISPATCH, self._noting(dispatch)))
            yield
            self.check()
            if self._raised:  # and the trace went on
                raise NotCompiled(self._raised, in_pytorch=True)

    def dress(self, traced: Sequence[torch.Tensor], originals: Sequence[torch.Tensor]) -> None:
        """`traced` stand for the program's own `originals`."""
        for mine, its in zip(traced, originals, strict=False):
            if type(mine) in _TRACING:
                self._inputs[id(mine)] = mine, its
                if isinstance(its, torch.nn.Parameter):
                    compat.mark_as(mine, "parameter")
                elif isinstance(its, torch.nn.Buffer):
                    compat.mark_as(mine, "buffer")
                    if hasattr(its, "persistent"):  # which a module asks a buffer that it is given
                        mine.persistent = its.persistent

    def beside(self, enter: Callable[[types.FrameType], None]) -> Callable[[types.FrameType], None]:
        """`enter`, and what is to be done here when code is entered."""

        def both(frame: types.FrameType) -> None:
            enter(frame)
            self._enter(frame)

        return both

    def _enter(self, frame: types.FrameType) -> None:
        names, variables = about(frame.f_code).globals, frame.f_globals
        for name, ours in (("type", Type), ("id", self._id)):
            if name in names and name not in variables:  # where the builtin would be found
                self._patches.enter_context(replaced(variables, name, ours))
        if not self._answers_attributes and not (_OF_ALL | _OWN).isdisjoint(about(frame.f_code).names):
            self._answers_attributes = True
            named = _OF_CLASS | _OWN | {"__dict__"}
            shown = compat.PARAMETER_MARK, torch.Tensor, torch.nn.Parameter
            classes = dict.fromkeys(_TRACING, shown)
            answers = _asking(classes, named, lambda tensor, name: self._attribute(tensor, name))
            for kind in _TRACING:  # slow, and so only where some code asks
                self._patches.enter_context(patched(kind, "__getattribute__", answers))

    def _missing(self, tensor: torch.Tensor, name: str) -> Any:
        """An attribute that a tensor of the trace does not have; the program asks."""
        if id(tensor) in self._inputs and not name.startswith("__"):
            if hasattr(self._inputs[id(tensor)][1], name):
                self._end(f"asks a tensor for `{name}`, which a trace's tensors do not have")
            self.asked.add(name)
        raise AttributeError(f"'Tensor' object has no attribute '{name}'")

    def _attribute(self, tensor: torch.Tensor, name: str) -> Any:
        """One that a tensor of the trace may have to answer otherwise; the program asks."""
        if name == "__class__":
            return _class_of(tensor)
        if name in _OF_CLASS:
            return getattr(_class_of(tensor), name)
        if name in _OWN:
            raise AttributeError(f"'Tensor' object has no attribute '{name}'")
        if name == "__dict__" and id(tensor) in self._inputs:
            self._end("reads all attributes of a tensor")
        return torch.Tensor.__getattribute__(tensor, name)

    def _id(self, thing: Any) -> int:
        """`id`, as the program's modules see it."""
        if id(thing) in self._inputs:
            self._end("looks a tensor up by its identity", frames=2)
        if not isinstance(thing, (torch.Tensor, torch.nn.Module, type, types.ModuleType)):  # guards compare others by value
            self._end("looks an object up by its identity", frames=2)
        return id(thing)

    def _hash(self, tensor: torch.Tensor) -> int:
        if id(tensor) in self._inputs and _is_programs(sys._getframe(2)):
            self._end("looks a tensor up by its identity")
        return id(tensor)

    def _giving(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        """A method of a trace's tensors, which refuses where the program asks."""

        def asked(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            frame = _of_program(sys._getframe(1), _asks_for_itself)
            if frame is not None and (name in _AS_PYTHON or name == "__format__" and not tensor.dim()):  # f"{loss}" is its number
                self._refuse(DependsOnData(f"{_at(frame)}: asks a tensor for {name}()"))
            if frame is not None:
                self._refuse(NotCompiled(f"{_at(frame)}: asks a tensor for {name}()", name in _TEXT))
            return method(tensor, *args, **kwargs)

        return asked

    def _noting(self, dispatch: Callable[..., Any]) -> Callable[..., Any]:
        """The dispatcher, which remembers that it raised an exception towards the program: what is caught may be raised only
        because a trace has no values."""

        def dispatched(*args: Any, **kwargs: Any) -> Any:
            self._depth += 1
            try:
                return dispatch(*args, **kwargs)
            except Exception as error:
                if self._depth == 1 and not self._raised and (frame := _of_program(sys._getframe(1))) is not None:
                    self._raised = f"{_at(frame)}: a {type(error).__name__} of PyTorch's is caught, which may be the trace's own"
                raise
            finally:
                self._depth -= 1

        return dispatched

    def _end(self, what: str, frames: int = 3) -> None:
        """`frames`: how far up the program's code is."""
        self._refuse(NotCompiled(f"{_at(sys._getframe(frames))}: {what}", in_pytorch=True))


def _at(frame: types.FrameType) -> str:
    return f"{frame.f_code.co_name}, line {frame.f_lineno}"


def _of_program(frame: types.FrameType | None, ends: Callable[[types.CodeType], bool] = calls_program) -> types.FrameType | None:
    """The nearest caller that is the program's own code; None where other code that `ends` the way to it comes first."""
    while frame is not None and is_trusted_code(frame.f_code, frame.f_globals):
        frame = None if ends(frame.f_code) else frame.f_back
    return frame


def _asks_for_itself(code: types.CodeType) -> bool:
    """Whether this code of a package must have its own answer from a tensor; else it asks in the place of its caller."""
    return not (code.co_filename.endswith(_ASKING) or is_stdlib(code.co_filename))


def _is_programs(frame: types.FrameType) -> bool:
    """Whether the program's own code runs there."""
    return not is_trusted_code(frame.f_code, frame.f_globals)


def _asking(
    classes: dict[type, tuple[str, type, type]] | None, names: Set[str] | None, answer: Callable[[torch.Tensor, str], Any]
) -> Callable[..., Any]:
    """`answer` where the program asks a tensor for an attribute; else its own: an AttributeWatch."""
    if AttributeWatch is not None:
        return AttributeWatch(classes, names, answer, _is_programs)

    def missing(tensor: torch.Tensor, name: str) -> Any:  # `names` is None: who is not watched is not seen to ask for more
        if _is_programs(sys._getframe(1)):
            return answer(tensor, name)
        raise AttributeError(f"'Tensor' object has no attribute '{name}'")

    return missing


__all__ = ["Disguise", "Type"]
