"""What the body of a training loop works on: the modules, optimizers and schedulers that a function reaches."""

from __future__ import annotations

import builtins
import functools
import os
import sysconfig
import types
from collections.abc import Iterator
from typing import Any

import torch

from trainc.torch.graph import wire
from trainc.torch.trust import is_trusted_code

_LIBRARIES = tuple({sysconfig.get_path(key) + os.sep for key in ("stdlib", "purelib", "platlib")})
DEPTH = 5  # of containers and objects within each other


class Reached:
    """Modules (roots alone), optimizers and schedulers that `fn` reaches by its closure, the globals that it names, its
    defaults and the object that it is a method of; through lists, dictionaries, plain objects and the user's own functions,
    decorated or not."""

    def __init__(self, fn: Any):
        self.modules: dict[str, torch.nn.Module] = {}
        self.optimizers: list[torch.optim.Optimizer] = []
        self.schedulers: list[Any] = []
        self._seen: set[int] = set()
        self._visit("", fn, DEPTH)
        inner = {id(child) for module in self.modules.values() for child in list(module.modules())[1:]}
        self.modules = {name: module for name, module in self.modules.items() if id(module) not in inner}

    def _visit(self, name: str, value: Any, depth: int) -> None:
        if depth < 0 or id(value) in self._seen:
            return
        self._seen.add(id(value))
        if isinstance(value, torch.nn.Module):
            self.modules[name.replace(".", "_") or f"module{len(self.modules)}"] = value
        elif isinstance(value, torch.optim.Optimizer):
            self.optimizers.append(value)
        elif isinstance(value, torch.optim.lr_scheduler.LRScheduler):
            self.schedulers.append(value)
        elif isinstance(value, functools.partial):
            for child in (value.func, *value.args, *value.keywords.values()):
                self._visit(name, child, depth)
        elif isinstance(value, types.MethodType):
            self._visit(name, value.__func__, depth)
            self._visit("self", value.__self__, depth)
        elif isinstance(value, types.FunctionType):
            if "__wrapped__" in vars(value):  # by a decorator, which may be a library's: torch.compile, torch.no_grad
                self._visit(name, value.__wrapped__, depth)
            if not _is_library(value):
                for key, child in variables(value):
                    self._visit(key, child, depth - 1)
        elif isinstance(value, (list, tuple, set)):
            for i, child in enumerate(value):
                self._visit(f"{name}_{i}", child, depth - 1)
        elif isinstance(value, dict):
            for key, child in value.items():
                self._visit(f"{name}_{key}", child, depth - 1)
        elif not isinstance(value, (type, types.ModuleType, torch.Tensor)) and not callable(value) or _is_users(value):
            for key, child in getattr(value, "__dict__", {}).items():
                self._visit(f"{name}_{key}", child, depth - 1)


def _is_library(function: types.FunctionType) -> bool:
    path = function.__code__.co_filename
    if path.startswith("<"):
        return is_trusted_code(function.__code__, function.__globals__)
    return wire.is_internal_file(path) or path.startswith(_LIBRARIES)


def _is_users(value: Any) -> bool:
    """An object of a class that the user wrote himself, such as his trainer."""
    module = getattr(type(value), "__module__", "")
    return not isinstance(value, (type, types.ModuleType, types.BuiltinFunctionType)) and module.split(".")[0] in ("__main__",)


def variables(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """The variables outside of `function` that it may read: (name, value)."""
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield name, cell.cell_contents
        except ValueError:  # not set yet
            continue
    for name in _names(function.__code__):
        if name in function.__globals__ and not hasattr(builtins, name):
            yield name, function.__globals__[name]
    for i, value in enumerate((*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())):
        yield f"default{i}", value


def _names(code: types.CodeType) -> list[str]:
    inner = [name for constant in code.co_consts if isinstance(constant, types.CodeType) for name in _names(constant)]
    return [*code.co_names, *inner]


__all__ = ["Reached"]
