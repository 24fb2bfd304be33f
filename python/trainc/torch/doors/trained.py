"""The models that a program trains, found while it runs, without a line of its own.

An optimizer says which parameters are trained. When one is made, the modules that hold some of them are looked for among all
objects, and a `Scout` stands in for the call of each. The outermost module that the program then calls in training is a model:
`meet` is told of it, once, before that call. A program that has no optimizer (it changes its parameters itself) is looked at
after its first backward. Nothing else of PyTorch's is replaced, and all of it is put back at the end.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import threading
import weakref
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from trainc.base import messages
from trainc.base.errors import UserError
from trainc.base.patches import patched
from trainc.torch import compat
from trainc.torch.capture import distributed, turns
from trainc.torch.doors.door import check, compile_objects, compile_optimizer

Module, Optimizer = torch.nn.Module, torch.optim.Optimizer


class Scout(compat.ModuleCall):
    """Stands in for a module's call until the module is met, or is part of one that is."""

    def __init__(self, finder: Finder, module: Module):
        self._finder, self._module = finder, weakref.ref(module)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        module = self._module()
        if turns.is_compiling() or compat.dynamo_callback() is not None:  # the program compiles it by itself
            return compat.uncompiled_call(module)(*args, **kwargs)
        if (copy := self.copy_of(module)) is not None:
            return compat.uncompiled_call(copy)(*args, **kwargs)
        return self._finder.called(module, args, kwargs)


class Finder:
    """While active, `meet` is called with each model that is trained, its optimizers, and the arguments of its first call in
    training. Afterwards the module is called as usual. `made` is told of optimizers made later, for a model that was met."""

    def __init__(self) -> None:
        self._optimizers: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self._met: weakref.WeakSet[Module] = weakref.WeakSet()
        self._scouts: weakref.WeakSet[Module] = weakref.WeakSet()  # modules that have one
        self._known: dict[int, weakref.ref] = {}  # parameters whose modules were looked for
        self._inside = threading.local()  # a module's call
        self.saw_training = False  # an optimizer, or a backward
        self._own: set[str] = set()  # classes of the modules that the program compiles itself
        self._patches = contextlib.ExitStack()

    def meet(self, module: Module, optimizers: list[Optimizer], args: tuple, kwargs: dict) -> None:
        pass

    def made(self, optimizer: Optimizer) -> None:
        pass

    def __enter__(self) -> Finder:
        init = Optimizer.__init__

        @functools.wraps(init)
        def optimizer_init(optimizer: Optimizer, *args: Any, **kwargs: Any) -> None:
            init(optimizer, *args, **kwargs)
            self.add(optimizer)

        self._patches.enter_context(patched(Optimizer, "__init__", optimizer_init))
        self._look_after_first_backward()
        return self

    def __exit__(self, *_: Any) -> None:
        self._patches.close()
        self._leave(list(self._scouts))

    # -- who is trained -----------------------------------------------------------------------------------------------

    def add(self, optimizer: Optimizer) -> None:
        """An optimizer that was made; the program's own are added by themselves."""
        self._optimizers.add(optimizer)
        self.saw_training = True
        try:
            parameters = _parameters_of(optimizer)
            if any(_holds(module, parameters) for module in list(self._met)):
                self.made(optimizer)
            self._look_for(parameters)
        except Exception as error:  # ours: the program goes on
            messages.fell_back(f"what {type(optimizer).__name__} trains", error)

    def _look_after_first_backward(self) -> None:
        """The first backward of the program tells, by the gradients that are there, what a program without optimizers trains."""
        patch = contextlib.ExitStack()
        backward = compat.AUTOGRAD_BACKWARD.original()

        @functools.wraps(backward)
        def first_backward(*args: Any, **kwargs: Any) -> None:
            backward(*args, **kwargs)
            patch.close()
            self.saw_training = True
            if not self._optimizers:
                leaves = {id(p) for m in _modules() for p in Module.parameters(m, recurse=False) if p.grad is not None}
                self._look_for(leaves)

        patch.enter_context(patched(compat.AUTOGRAD_BACKWARD.owner, compat.AUTOGRAD_BACKWARD.name, first_backward))
        self._patches.enter_context(patch)

    def _look_for(self, parameters: set[int]) -> None:
        """Scouts for the modules that hold some of `parameters`."""
        if all(key in self._known and self._known[key]() is not None for key in parameters):
            return
        modules = _modules()
        taken = {id(part) for m in [*self._met, *self._own_compiles(modules)] for part in Module.modules(m)}
        parts = {id(child) for module in modules for child in Module.children(module)}
        for module in modules:
            own = [p for p in Module.parameters(module) if id(p) in parameters]
            self._known |= {id(p): weakref.ref(p) for p in own}
            # A layer that is part of a model is not worth a plan of its own.
            alone = id(module) not in parts or any(True for _ in Module.children(module))
            if own and alone and id(module) not in taken and not isinstance(module, torch.jit.ScriptModule):
                compat.set_compiled_call(module, Scout(self, module))
                self._scouts.add(module)

    def has_optimizers(self) -> bool:
        return len(self._optimizers) > 0

    def models(self) -> list[Module]:
        """What is trained: models that were met, and those that the program compiles itself."""
        trained = set().union(*map(_parameters_of, self._optimizers))
        own = [module for module in self._own_compiles(_modules()) if _holds(module, trained)]
        found = {id(module): module for module in (*self._met, *own)}
        parts = {id(part) for module in found.values() for part in list(Module.modules(module))[1:]}
        return [module for key, module in found.items() if key not in parts]

    def replicated(self) -> bool:
        """Whether one of them is within a DistributedDataParallel."""
        own = {id(p) for model in self.models() for p in Module.parameters(model)}
        return any(_holds(wrapper, own) for module in _modules() for wrapper in distributed.replicated(module))

    def optimizers(self) -> list[Optimizer]:
        return list(self._optimizers)

    def compile_themselves(self) -> str:
        """Which modules the program compiles itself: their classes' names."""
        self._own_compiles(_modules())
        return ", ".join(sorted(self._own))

    def _own_compiles(self, modules: list[Module]) -> list[Module]:
        found = [module for module in modules if module not in self._met and _compiles_itself(module)]
        self._own |= set(map(_name, found))
        return found

    def _leave(self, modules: Iterable[Module]) -> None:
        for module in modules:
            if isinstance(compat.compiled_call(module), Scout):
                compat.set_compiled_call(module, None)
            self._scouts.discard(module)

    # -- who is called ------------------------------------------------------------------------------------------------

    def called(self, module: Module, args: tuple, kwargs: dict) -> Any:
        inside = getattr(self._inside, "depth", 0)
        if inside or not torch.is_grad_enabled() or not (module.training or self._is_trained(module)):
            with self._call():
                return compat.uncompiled_call(module)(*args, **kwargs)
        parts = list(Module.modules(module))
        self._leave(parts)
        self._met.add(module)
        own = {id(p) for p in Module.parameters(module)}
        self.meet(module, [o for o in list(self._optimizers) if own & _parameters_of(o)], args, kwargs)
        return module(*args, **kwargs)

    @contextlib.contextmanager
    def _call(self) -> Iterator[None]:
        """A module that is called by another one is part of that one."""
        self._inside.depth = getattr(self._inside, "depth", 0) + 1
        try:
            yield
        finally:
            self._inside.depth -= 1

    def _is_trained(self, module: Module) -> bool:
        """Whether a module in evaluation mode has been in a training step: it has gradients, or an optimizer's state."""
        own = list(Module.parameters(module))
        return any(p.grad is not None or any(p in o.state for o in list(self._optimizers)) for p in own)


class Compiling(Finder):
    """Compiles each model that is met, with the optimizers that hold its parameters by then, and those made later."""

    def __init__(self, tune: str = "fast", memory: Any = None):
        super().__init__()
        self._settings = {"tune": tune, "memory": memory}
        check(torch.nn.Identity(), None, tune, memory, False)
        self.compiled = self.refused = 0
        self._attached: weakref.WeakSet[Optimizer] = weakref.WeakSet()

    def meet(self, module: Module, optimizers: list[Optimizer], args: tuple, kwargs: dict) -> None:
        first = next(iter(optimizers), None)
        try:
            compile_objects(module, first, fuse_step=False, verify=False, **self._settings)
        except UserError as error:
            self.refused += 1
            self.say(f"{type(module).__name__} runs in PyTorch: {str(error).removeprefix('trainc.compile: ')}")
            return
        except Exception as error:
            self.refused += 1
            messages.fell_back(type(module).__name__, error)
            return
        self.compiled += 1
        with_what = "".join(f", {type(optimizer).__name__}" for optimizer in optimizers)
        messages.info(f"{type(module).__name__}{with_what}: found by its first call in training")
        self._attached.update(optimizers[:1])
        for optimizer in optimizers[1:]:
            self.made(optimizer)
        self.kept(module)

    def made(self, optimizer: Optimizer) -> None:
        if optimizer not in self._attached:
            self._attached.add(optimizer)
            compile_optimizer(optimizer)

    def say(self, text: str) -> None:
        messages.warn(text)

    def kept(self, module: Module) -> None:
        """Told of each model that was compiled."""


def _modules() -> list[Module]:
    """All modules that there are (those whose constructor still runs apart)."""
    found = [each for each in gc.get_objects() if issubclass(type(each), Module)]
    return [module for module in found if compat.MODULE_TABLES <= vars(module).keys()]


def _compiles_itself(module: Module) -> bool:
    call = compat.compiled_call(module)
    return compat.dynamo_original(module) is not None or not (call is None or isinstance(call, Scout))


def _name(module: Module) -> str:
    original = compat.dynamo_original(module)
    return type(module if original is None else original).__name__


def _parameters_of(optimizer: Optimizer) -> set[int]:
    return {id(p) for group in optimizer.param_groups for p in group["params"]}


def _holds(module: Module, parameters: set[int]) -> bool:
    return any(id(p) in parameters for p in Module.parameters(module))


__all__ = ["Compiling", "Finder", "Scout"]
