"""A program to be run eagerly and compiled: a module, its arguments, and its text for whoever has to mend what is found."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_map, tree_map_only


@dataclass
class Program:
    module: Callable[[], torch.nn.Module]  # a fresh one, with the same parameters each time
    args: tuple
    kwargs: dict
    source: str = ""
    between: Program | None = None  # the same call with something before it that a compiler can take

    def arguments(self) -> tuple[tuple, dict]:
        """Fresh ones: those that share memory do so again, and all lie in memory as they did."""
        return copied((self.args, self.kwargs))

    def text(self) -> str:
        tensors = [x for x in tree_flatten((self.args, self.kwargs))[0] if isinstance(x, torch.Tensor)]
        return "\n".join([*(f"# t{i}: {described(x)}" for i, x in enumerate(tensors)), self.source])


def described(x: torch.Tensor) -> str:
    strides = f" strides {list(x.stride())}" if x.layout is torch.strided and not x.is_contiguous() else ""
    layout = f" {x.layout}" if x.layout is not torch.strided else ""
    return f"{str(x.dtype).removeprefix('torch.')}{list(x.shape)}{strides}{layout}{' requires_grad' if x.requires_grad else ''}"


def copied(tree: Any) -> Any:
    storages: dict[int, torch.UntypedStorage] = {}
    seen: dict[int, torch.Tensor] = {}

    def copy(x: torch.Tensor) -> torch.Tensor:
        if id(x) not in seen:
            if x.layout is not torch.strided or x.is_quantized:
                new = x.detach().clone()
            else:
                storage = x.untyped_storage()
                if storage._cdata not in storages:
                    storages[storage._cdata] = storage.clone()
                new = torch.empty(0, dtype=x.dtype)
                new.set_(storages[storage._cdata], x.storage_offset(), x.shape, x.stride())
                if x.is_conj():
                    new = torch._conj(new)
                if x.is_neg():
                    new = torch._neg_view(new)
            seen[id(x)] = new.requires_grad_(x.requires_grad)
        return seen[id(x)]

    with torch.no_grad():
        return tree_map_only(torch.Tensor, copy, tree)


def in_float64(tree: Any) -> Any:
    """The same numbers in float64, and float64 wherever a floating type is asked for by name."""

    def up(x: Any) -> Any:
        if isinstance(x, torch.Tensor) and x.dtype.is_floating_point:
            return x.detach().double().requires_grad_(x.requires_grad)
        return torch.float64 if isinstance(x, torch.dtype) and x.is_floating_point else x

    return tree_map(up, tree)


class Written:
    """Writes a call as Python: tensors are t0, t1, ...; constants that have no literal are names of `scope`."""

    def __init__(self) -> None:
        self.tensors: list[torch.Tensor] = []
        self.scope: dict[str, Any] = {"torch": torch, "math": math}

    def call(self, function: str, args: tuple, kwargs: dict) -> str:
        parts = [self.value(a) for a in args] + [f"{k}={self.value(v)}" for k, v in kwargs.items()]
        return f"{function}({', '.join(parts)})"

    def value(self, v: Any) -> str:
        if isinstance(v, torch.Tensor):
            for i, known in enumerate(self.tensors):
                if known is v:
                    return f"t{i}"
            self.tensors.append(v)
            return f"t{len(self.tensors) - 1}"
        if isinstance(v, float) and not math.isfinite(v):
            return "math.nan" if math.isnan(v) else "math.inf" if v > 0 else "-math.inf"
        if v is None or v is Ellipsis or type(v) in (bool, int, float, complex, str):
            return repr(v)
        if isinstance(v, (torch.dtype, torch.layout, torch.memory_format)):
            return str(v)
        if isinstance(v, torch.device):
            return f"torch.{v!r}"
        if type(v) in (list, tuple, torch.Size):
            inner = ", ".join(self.value(x) for x in v)
            return f"[{inner}]" if type(v) is list else f"({inner},)" if v else "()"
        if type(v) is dict:
            return "{" + ", ".join(f"{k!r}: {self.value(x)}" for k, x in v.items()) + "}"
        if type(v) is slice:
            return f"slice({self.value(v.start)}, {self.value(v.stop)}, {self.value(v.step)})"
        name = f"c{len(self.scope)}"
        self.scope[name] = v
        return name

    def module(self, body: str) -> tuple[type[torch.nn.Module], str]:
        names = ", ".join(["self", *(f"t{i}" for i in range(len(self.tensors)))])
        source = f"def forward({names}):\n{body}"
        scope = dict(self.scope)
        exec(compile(source, "conformance_case.py", "exec"), scope)  # a file, as of a program: whose line is it?
        return type("Case", (torch.nn.Module,), {"forward": scope["forward"]}), source


def of_call(op: Callable[..., Any], name: str, args: tuple, kwargs: dict, into_copy: bool = False) -> Program:
    """`op(*args, **kwargs)` as a module's forward. `into_copy`: the first argument is copied before (it is written, and a leaf
    that requires a gradient must not be)."""
    w = Written()
    w.scope["op"] = op
    call = w.call("op", args, kwargs)
    body = "    t0 = t0.clone()\n" if into_copy else ""
    dense = [(i, t) for i, t in enumerate(w.tensors) if t.layout is torch.strided and not t.is_quantized]
    before = "".join(f"    t{i} = t{i} {'& True' if t.dtype is torch.bool else '* 1'}\n" for i, t in dense)

    def written(body: str, between: Program | None = None) -> Program:
        cls, source = w.module(f"{body}    return {call}\n")
        return Program(cls, tuple(w.tensors), {}, f"# op = {name}\n{source}", between)

    return written(body, written(before) if before else None)
