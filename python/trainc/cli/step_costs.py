"""The run of `trainc plan-cluster`: the program on one rank, of whose steps is written down what a cluster would have to do: when
each gradient is there, how large it is, and what memory is for what."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import trainc
from trainc.base.cluster import BUCKET
from trainc.cli.observe import Observing, peak_bytes
from trainc.torch.doors.as_replicated import as_replicated

APART = 3  # first steps, which compile and warm up


class Costs(Observing):
    """While active, writes down each step as `Observing` does, and its parts."""

    def __init__(self, way: str, steps: int, seed: int, file: str, tune: str = "fast"):
        super().__init__(way, steps, seed, file, tune=tune)
        self._ready: list[dict[int, float]] = [{}]  # of each step: when each parameter's gradient came last, by id
        self._backwards: list[tuple[float, float]] = [(0.0, 0.0)]  # of each step: its last one
        self._parameters: dict[int, torch.Tensor] = {}  # those that are watched
        self._models: list[nn.Module] = []  # held, for the program may let go of them
        self._replicated = False

    def __enter__(self) -> None:
        self._around.enter_context(as_replicated(BUCKET))
        super().__enter__()

    def _now(self) -> float:
        return time.perf_counter() - self._begin

    def _observed(self, backward: Callable[..., Any]) -> Callable[..., Any]:
        observed = super()._observed(self._timed(backward))

        def watched(*args: Any, **kwargs: Any) -> None:
            self._watch()
            observed(*args, **kwargs)

        return watched

    def _timed(self, backward: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> None:
            begin = self._now()
            backward(*args, **kwargs)
            if torch.cuda.is_initialized():
                torch.cuda.synchronize()
            self._backwards[-1] = (begin, self._now())

        return timed

    def _watch(self) -> None:
        if len(self._ends) >= APART:
            return  # no model begins to be trained so late
        self._models, self._replicated = self._finder.models(), self._finder.replicated()
        for model in self._models:
            for parameter in model.parameters():
                if parameter.requires_grad and id(parameter) not in self._parameters:
                    self._parameters[id(parameter)] = parameter
                    parameter.register_post_accumulate_grad_hook(self._arrived)

    def _arrived(self, parameter: torch.Tensor) -> None:
        self._ready[-1][id(parameter)] = self._now()

    def _next_step(self) -> None:
        super()._next_step()
        self._ready.append({})
        self._backwards.append((0.0, 0.0))

    def _record(self) -> dict[str, Any]:
        return {"ends": self._ends, "costs": self._costs() if len(self._ends) > APART + 1 else None, **self._said()}

    def _said(self) -> dict[str, Any]:
        record = super()._record()
        return {name: record[name] for name in ("others", "compiled", "reason")}

    # -- what they come to --------------------------------------------------------------------------------------------------

    def _costs(self) -> dict[str, Any]:
        """base.cluster.Workload, without its title: medians of the steps."""
        steps = range(APART, len(self._ends))
        begins = [self._ends[i - 1] for i in steps]
        parts = [
            (b - begin, e - b, self._ends[i] - e)
            for i, begin in zip(steps, begins, strict=True) for b, e in [self._backwards[i]]
        ]  # fmt: skip
        forward, backward, update = (statistics.median(part) for part in zip(*parts, strict=True))
        models, notes, gradients = self._models, [], []
        for name, parameter, unit in named(models):
            seen = [(i, self._ready[i][id(parameter)]) for i in steps if id(parameter) in self._ready[i]]
            if not seen:
                continue
            # As a share of the backward: so the parts of different steps go together.
            shares = [(t - self._backwards[i][0]) / max(self._backwards[i][1] - self._backwards[i][0], 1e-9) for i, t in seen]
            ready = forward + backward * min(max(statistics.median(shares), 0.0), 1.0)
            gradients.append({"name": name, "bytes": parameter.numel() * parameter.element_size(), "ready": ready, "unit": unit})
        if len(models) > 1:
            notes.append(f"{len(models)} models are trained: their gradients are taken for those of one backward")
        device = next((p.device.type for p in self._parameters.values()), "cpu")
        return {
            "threads": torch.get_num_threads(), "cores": len(os.sched_getaffinity(0)) if device == "cpu" else 0,
            "device": device, "forward": forward, "backward": backward,
            "update": update, "gradients": gradients, "memory": self._memory(models, notes),
            "copy": 0.0 if self._replicated else copy_seconds(sum(g["bytes"] for g in gradients)),
            "spread": _spread([sum(part) for part in parts]),
            "buffers": sum(b.numel() * b.element_size() for model in models for b in model.buffers()), "notes": notes,
        }  # fmt: skip

    def _memory(self, models: list[nn.Module], notes: list[str]) -> dict[str, int]:
        told = [memory for model in models if (memory := trainc.explain(model).memory) is not None]
        if len(told) == len(models):
            return {
                name: sum(getattr(memory, name) for memory in told)
                for name in ("model", "gradients", "optimizer", "batch", "saved", "temporary", "results")
            }
        tensors = [t for model in models for t in (*model.parameters(), *model.buffers())]
        state = [t for o in self._finder.optimizers() for values in o.state.values() for t in values.values()]
        known = {
            "model": _bytes(tensors), "gradients": _bytes(self._parameters.values()),
            "optimizer": _bytes(t for t in state if isinstance(t, torch.Tensor)),
        }  # fmt: skip
        notes.append("memory: what the process had at its peak, with Python's and the libraries' own, for no plan tells it")
        return known | {"process": max(peak_bytes() - sum(known.values()), 0)}


def named(models: list[nn.Module]) -> list[tuple[str, torch.Tensor, str]]:
    """(name, parameter, unit) in the order of the models' parameters. A unit is what fully_shard is usually given: a layer of the
    outermost list of layers; "" is the rest."""
    found = []
    for number, model in enumerate(models):
        before = f"{number + 1}." if len(models) > 1 else ""
        units = layers(model)
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                unit = next((unit for unit in units if name.startswith(f"{unit}.")), "")
                found.append((before + name, parameter, before + unit if unit else ""))
    return found


def layers(model: nn.Module) -> list[str]:
    """Paths of the modules in the outermost lists of several that have parameters."""
    found: list[str] = []
    for path, module in model.named_modules():
        if isinstance(module, (nn.ModuleList, nn.Sequential)) and not any(f"{path}.".startswith(f"{unit}.") for unit in found):
            own = [name for name, child in module.named_children() if any(True for _ in child.parameters())]
            if len(own) > 1:
                found += [f"{path}.{name}" if path else name for name in own]
    return found


def copy_seconds(size: int, times: int = 5) -> float:
    """A byte, of what DDP's reducer does with a gradient: it divides it into the bucket. The fastest: others may have the CPU."""
    elements = max(min(size, BUCKET) // 4, 1024)
    source, bucket, spent = torch.ones(elements), torch.ones(elements), []
    for _ in range(times):
        start = time.perf_counter()
        torch.mul(source, 0.5, out=bucket)
        spent.append(time.perf_counter() - start)
    return min(spent) / (4 * elements)


def _spread(steps: list[float]) -> float:
    """Standard deviation, by the quartiles: a step that something else held up says little."""
    if len(steps) < 4:
        return 0.0
    low, _, high = statistics.quantiles(steps, n=4, method="inclusive")
    return (high - low) / 1.349


def _bytes(tensors: Any) -> int:
    return sum(t.numel() * t.element_size() for t in tensors)


__all__ = ["Costs", "copy_seconds", "layers", "named"]
