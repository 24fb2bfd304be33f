"""What a test of PyTorch's gives to a compiler, put through a backend: ours, or PyTorch's own way to run a graph.

A test names its compiler in several ways: Inductor's `compile_fx`, a backend's name, a counter of graphs that runs them as they
are, or AOTAutograd itself. Each leads to the one backend here. What a test says about the compiler (the text of a kernel, how
many graphs a partitioner makes) is lost by that, with either backend, so such a test fails plainly.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import unittest
import warnings
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any
from unittest import mock

import torch
import torch._dynamo.testing
import torch._inductor.compile_fx
from torch._dynamo import eval_frame
from torch._dynamo.backends import registry
from torch._dynamo.backends.debugging import aot_eager

from trainc.base import messages
from trainc.torch.doors import backend as door

NAMED = ("inductor", "eager", "aot_eager", "aot_eager_decomp_partition")
COUNTERS = ("CompileCounter", "CompileCounterWithBackend", "EagerAndRecordGraphs")
AOT = ("aot_function", "aot_module", "compiled_function", "compiled_module")


@dataclasses.dataclass
class Seen:
    """What became of the graphs of one test."""

    graphs: int = 0
    reasons: list[str] = dataclasses.field(default_factory=list)  # why some run in PyTorch


class Through:
    def __init__(self, modules: Callable[[], list[ModuleType]]):
        self._modules = modules  # the files of tests, which have imported these names

    @contextlib.contextmanager
    def on(self, ours: bool) -> Iterator[Seen]:
        seen, known = Seen(), len(door.compilations)
        backend = door.backend if ours else aot_eager

        def compile(gm: Any, inputs: Any, *_: Any, **__: Any) -> Any:
            seen.graphs += 1
            return backend(gm, inputs)

        def aot(function: Any, *_: Any, dynamic: bool = False, **__: Any) -> Any:
            return torch.compile(function, backend=compile, dynamic=dynamic)

        plain_lookup = registry.lookup_backend

        def lookup(name: Any) -> Any:
            return compile if name in NAMED else plain_lookup(name)

        def warn(message: str) -> None:
            seen.reasons.append(message)
            warnings.warn(f"trainc: {message}", messages.TraincWarning, stacklevel=2)

        with contextlib.ExitStack() as stack:
            put = lambda where, name, value: stack.enter_context(mock.patch.object(where, name, value))  # noqa: E731
            put(torch._inductor.compile_fx, "compile_fx", compile)
            for module in (registry, eval_frame):
                put(module, "lookup_backend", lookup)
            put(messages, "warn", warn)
            for name in COUNTERS:
                counter = getattr(torch._dynamo.testing, name, None)
                if counter is not None:
                    put(counter, "__call__", _counting(counter.__call__, compile))
            for module in self._modules():
                for name in ("compile_fx", *AOT):
                    if hasattr(module, name):
                        put(module, name, compile if name == "compile_fx" else aot)
            yield seen
        seen.reasons += [c.reason for c in door.compilations[known:] if c.route == "eager"]
        del door.compilations[known:]  # they hold their graphs


def _counting(count: Callable[..., Any], compile: Callable[..., Any]) -> Callable[..., Any]:
    def call(self: Any, gm: Any, inputs: Any) -> Any:
        count(self, gm, inputs)
        return compile(gm, inputs)

    return call


def on_cpu(module: ModuleType) -> None:
    """PyTorch's templates of tests, which each device makes a class of, as classes for the CPU: once as they are, and once with
    gradients of all inputs that may have some."""
    template = getattr(module, "CommonTemplate", None)
    if template is None or not hasattr(module, "check_model"):
        return
    for name, check in (("OnCpu", module.check_model), ("WithGradients", _with_gradients(module.check_model))):
        tests = {n: v for n, v in vars(template).items() if not n.startswith("__")}
        made = type(name, (module.TestCase,), {**tests, "common": check, "device": "cpu", "__module__": module.__name__})
        setattr(module, name, made)


def _with_gradients(check: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(check)
    def common(self: unittest.TestCase, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> None:
        wants = [isinstance(x, torch.Tensor) and x.is_floating_point() and x.layout == torch.strided for x in inputs]
        if not any(wants):
            self.skipTest("none of its inputs may have a gradient")
        inputs = [x.detach().requires_grad_() if wanted else x for x, wanted in zip(inputs, wants, strict=True)]
        check(self, model, inputs, *args, **{**kwargs, "check_gradient": True})

    return common
