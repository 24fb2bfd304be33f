"""`trainc run train.py`: runs a training script compiled, without changing a line of it."""

from __future__ import annotations

import runpy
import sys
import weakref

import torch

import trainc


class Compiling:
    """While active, a model is compiled when the program calls it for the first time in training, with the optimizers that hold
    its parameters by then. A module that is called by another one is part of that one."""

    def __init__(self, explain: bool = False):
        self.explain = explain
        self.compiled: list[weakref.ref] = []

    def __enter__(self) -> Compiling:
        self._module, self._optimizer = torch.nn.Module, torch.optim.Optimizer
        self._call, self._init = self._module.__call__, self._optimizer.__init__
        self._seen: weakref.WeakSet = weakref.WeakSet()
        self._optimizers: weakref.WeakSet = weakref.WeakSet()
        inside = False  # of another module's call

        def call(module, *args, **kwargs):
            nonlocal inside
            if inside or not torch.is_grad_enabled():
                return self._call(module, *args, **kwargs)
            inside = True
            try:
                self._meet(module, args, kwargs)
                return self._call(module, *args, **kwargs)
            finally:
                inside = False

        def init(optimizer, *args, **kwargs):
            self._init(optimizer, *args, **kwargs)
            self._optimizers.add(optimizer)

        self._module.__call__, self._optimizer.__init__ = call, init
        return self

    def __exit__(self, *_) -> None:
        self._module.__call__, self._optimizer.__init__ = self._call, self._init
        if self.explain:
            for model in filter(None, (reference() for reference in self.compiled)):
                print(trainc.explain(model), file=sys.stderr)

    def _meet(self, module, args: tuple, kwargs: dict) -> None:
        if module in self._seen or not module.training:
            return
        self._seen.add(module)
        parameters = {id(p) for p in module.parameters() if p.requires_grad}
        if not parameters:
            return  # a loss function
        trainc.compile(module)
        self.compiled.append(weakref.ref(module))
        for optimizer in list(self._optimizers):
            if any(id(p) in parameters for group in optimizer.param_groups for p in group["params"]):
                trainc.compile(module, optimizer)


def run(script: str, words: list[str], module: bool, compiling: Compiling) -> None:
    sys.argv = [script, *words]
    with compiling:
        if module:
            sys.path.insert(0, "")
            runpy.run_module(script, run_name="__main__", alter_sys=True)
        else:
            sys.path.insert(0, script.rpartition("/")[0] or ".")
            runpy.run_path(script, run_name="__main__")
