"""torch.compile(model, backend="trainc"): Dynamo's graphs through the same joint partition as trainc.compile."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from trainc import device, joint, messages, records, tuning
from trainc.errors import NotCompiled, UserError
from trainc.trace import tracing

compilations: list[records.Compilation] = []  # of all graphs that came through this door


def backend(
    gm: torch.fx.GraphModule, example_inputs: Sequence[Any], *, options: dict[str, Any] | None = None, **_: Any
) -> Callable[..., Any]:
    """What torch.compile calls. `options`: {"tune": "max"}, as trainc.compile's tune="max"."""
    tune = (options or {}).get("tune", "fast")
    tuning.check(tune)
    if unknown := set(options or {}) - {"tune"}:
        raise UserError(f'torch.compile(backend="trainc"): no option {sorted(unknown)[0]!r}; there is "tune"')
    if any(isinstance(value, (torch.SymInt, torch.SymFloat)) or _is_symbolic(value) for value in example_inputs):
        return _by_sizes(gm, tune)
    return _static(gm, example_inputs, tune)


def _static(gm: torch.nn.Module, inputs: Sequence[Any], tune: str) -> Callable[..., Any]:
    record = records.Compilation(f"graph {len(compilations)}", signature=_describe(inputs), tune=tune, route="dynamo")
    try:
        where = device.one((t for t in inputs if isinstance(t, torch.Tensor)), "its tensors")
    except NotCompiled as reason:
        messages.warn(f"{record.name} runs in PyTorch: {reason}")
        return gm.forward
    compiled = joint.compile_flat(gm, inputs, record, joint.Compiler(record, joint.new_engine(where, tune)))
    compilations.append(record)
    return torch._dynamo.disable(compiled, reason="compiled by trainc")


def _by_sizes(gm: torch.fx.GraphModule, tune: str) -> Callable[..., Any]:
    """Dynamo gives sizes as symbols once a second shape comes; plans have concrete ones: one plan per sizes."""
    found: dict[Any, Callable[..., Any]] = {}

    @torch._dynamo.disable
    def call(*inputs: Any) -> Any:
        key = tuple(
            (t.shape, t.stride(), t.dtype, t.requires_grad, t.device) if isinstance(t, torch.Tensor) else t for t in inputs
        ) + (torch.is_grad_enabled(),)
        compiled = found.get(key)
        if compiled is None:
            with tracing():
                tensors = [t for t in inputs if isinstance(t, torch.Tensor)]
                compiled = found[key] = _static(WithNumbers(gm, inputs), tensors, tune)
        return compiled(*[t for t in inputs if isinstance(t, torch.Tensor)])

    return call


class WithNumbers(torch.nn.Module):
    """A graph as a function of its tensors, the numbers among its inputs being these."""

    def __init__(self, gm: torch.fx.GraphModule, inputs: Sequence[Any]):
        super().__init__()
        self._graph = [gm]  # out of sight: AOTAutograd would take the graph's own tensors for parameters twice
        self._inputs = [None if isinstance(value, torch.Tensor) else value for value in inputs]

    def forward(self, *tensors: torch.Tensor) -> Any:
        given = iter(tensors)
        return self._graph[0](*(next(given) if value is None else value for value in self._inputs))


def _is_symbolic(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and not all(type(n) is int for n in (*value.shape, *value.stride()))


def _describe(inputs: Sequence[Any]) -> str:
    from trainc.wire import dtype_name

    return ", ".join(f"{dtype_name(t.dtype)}{list(t.shape)}" for t in inputs if isinstance(t, torch.Tensor))
