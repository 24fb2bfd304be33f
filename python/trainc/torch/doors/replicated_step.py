"""`trainc.train_step` of a body that trains a DistributedDataParallel: forward and backward of the model, and the optimizers'
updates, as plans of their own.

One plan for all would update each parameter by this process's gradient alone. DDP averages gradients between the backward and the
updates, in hooks of autograd's graph, and only those that the program's own `backward()` walks call it. So the body runs as the
program wrote it, with its `no_sync()`, clipping and schedulers, and what it calls is compiled.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from trainc.torch import compat
from trainc.torch.capture import distributed
from trainc.torch.capture.step_objects import Reached
from trainc.torch.doors.door import compile_objects, compile_optimizer
from trainc.torch.optimizers.optimizer import is_attached


class ReplicatedStep:
    """The body, once its models and optimizers are compiled where they are not yet. Settings are those of `train_step`."""

    def __init__(self, fn: Callable[..., Any], reached: Reached, models: list[torch.nn.Module], **settings: Any):
        self._fn, self.reason = fn, ""  # why it is no plan of its own
        self.parts: list[Any] = []  # whose records tell of this step
        optimizers = list(reached.optimizers)
        for model in models:
            inner = distributed.inner_of(model)
            self.parts.append(inner)
            if compat.compiled_call(inner) is None:
                own = set(map(id, inner.parameters()))
                updating = [o for o in optimizers if any(id(p) in own for g in o.param_groups for p in g["params"])]
                first = next((o for o in updating if not is_attached(o)), None)
                compile_objects(model, first, fuse_step=False, **settings)
        for optimizer in optimizers:
            self.parts.append(optimizer)
            if not is_attached(optimizer):
                compile_optimizer(optimizer)

    def __call__(self, args: tuple, kwargs: dict) -> Any:
        """What `fn` returns, its tensors without history, as a plan's are."""
        result = self._fn(*args, **kwargs)
        return compat.pytree.tree_map(lambda leaf: leaf.detach() if isinstance(leaf, torch.Tensor) else leaf, result)


__all__ = ["ReplicatedStep"]
