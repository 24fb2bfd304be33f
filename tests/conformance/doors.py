"""The doors through which a module is compiled, and what they say became of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

import trainc
from trainc.base import records

NOTHING = "nothing is left to compile"
backend = trainc.backend if hasattr(trainc, "backend") else None


class Door:
    """`call` is the compiled module. `outcome()`: (class, reason), of what has been called so far."""

    def __init__(self, module: torch.nn.Module):
        self.module = module
        self.call: Callable[..., Any] = module

    def records(self) -> list[records.Compilation]:
        return []

    def outcome(self) -> tuple[str, str]:
        found = self.records()
        for record in found:
            if record.route == "eager":
                return "refused", f"{record.route}: {record.reason}"
        externs = sorted({name for record in found for name, _ in record.externs()})
        return ("extern", ", ".join(externs)) if externs else ("compiled", "" if found else "nothing to compile")


class Compile(Door):
    """trainc.compile(module)"""

    def __init__(self, module: torch.nn.Module):
        from trainc.torch.doors import backend

        super().__init__(module)
        torch._dynamo.reset()  # it keeps what it has compiled of a code, whosever the module is
        self._graphs = backend.compilations  # of what is split
        self._graphs.clear()
        self.call = trainc.compile(module)

    def records(self) -> list[records.Compilation]:
        return [*records.of(self.module), *self._graphs]

    def outcome(self) -> tuple[str, str]:
        through = [record.reason for record in records.of(self.module) if record.route in ("split", "dynamo")]
        split = "; ".join(dict.fromkeys(through))  # Dynamo's graphs; what it must not be given has raised
        told = super().outcome()
        if not split or told[0] == "refused":
            return told
        return ("split", split) if self._graphs else ("refused", f"{NOTHING}: {split}")


class Backend(Door):
    """torch.compile(module, backend="trainc"), in one graph unless told otherwise"""

    def __init__(self, module: torch.nn.Module, fullgraph: bool = True):
        from trainc.torch.doors import backend

        super().__init__(module)
        torch._dynamo.reset()
        self._compilations = backend.compilations
        self._compilations.clear()
        self.call = torch.compile(module, backend=backend.backend, fullgraph=fullgraph)

    def records(self) -> list[records.Compilation]:
        return self._compilations


class Tracer(Door):
    """torch.compile(module, backend="aot_eager"): what PyTorch's own tracer makes of it, to tell its faults from ours"""

    def __init__(self, module: torch.nn.Module):
        super().__init__(module)
        torch._dynamo.reset()
        self.call = torch.compile(module, backend="aot_eager", fullgraph=True)


DOORS = {"compile": Compile, "backend": Backend}


def is_of_dynamo(error: BaseException) -> bool:
    """Whether Dynamo itself could not trace the program, before any backend saw it."""
    from torch._dynamo import exc

    return isinstance(error, (exc.Unsupported, exc.UserError, exc.InternalTorchDynamoError)) and not isinstance(
        error, exc.BackendCompilerFailed
    )
