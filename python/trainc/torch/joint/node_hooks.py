"""Hooks on the node of a compiled call: `loss.grad_fn.register_hook()`, `register_prehook()`, and those that its graph leads to.

In eager PyTorch a result's `grad_fn` is the last of its operations, and hooks there see that one's gradients. A compiled call is
one node for all of its operations and results, so a hook would be given other gradients, and what it gives back would go
elsewhere. A pre-hook where the call has one result with a gradient is eager's: it is given that one. All others are refused.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor

from trainc.base import PACKAGE
from trainc.base.errors import UserError
from trainc.torch import compat
from trainc.torch.trust import is_trusted_file

HOOKED = "the program hooks, or walks, grad_fn of its results"
UNREACHED = "the program hooks parameters that only some of its results lead to"


def keep_to_eagers(node: type, sole: int | None, name: str, asked: Callable[[bool, str], None]) -> None:
    """`node`: the class of a call's node; `sole`: the only one of its outputs that has a gradient, if there is one; `asked(True,
    what)`: the calls that follow run in PyTorch, because of `what`."""
    register_prehook, register_hook, next_functions = node.register_prehook, node.register_hook, node.next_functions

    def prehook(self: Any, hook: Callable[[tuple], Any]) -> Any:
        if _is_ours(hook):
            return register_prehook(self, hook)
        if sole is None:
            refuse("register_prehook")
        return register_prehook(self, lambda gradients: _of_one(hook, gradients, sole))

    def posthook(self: Any, hook: Callable[..., Any]) -> Any:
        return register_hook(self, hook) if _is_ours(hook) else refuse("register_hook")

    def following(self: Any) -> Any:
        if not is_trusted_file(sys._getframe(1).f_code.co_filename):
            refuse("next_functions")
        return next_functions.__get__(self)

    def refuse(way: str) -> None:
        asked(True, HOOKED)
        raise UserError(
            f"{name}: grad_fn.{way} of a result of a compiled call, which is one node for all its operations: its next calls run "
            "in PyTorch, which this one should have done. Try the step again, or hook the tensor itself (register_hook)"
        )

    node.register_prehook, node.register_hook, node.next_functions = prehook, posthook, property(following)


def refuse_unreached(unreached: Iterable[Tensor], name: str, asked: Callable[[bool, str], None]) -> None:
    """Raises where the program hooks one of the inputs `unreached`, to which no used result leads. Eager's graph does not hold
    it; the engine would call its hooks with None, for the call's one node leads to all inputs."""
    for tensor in unreached:
        if any(not is_trusted_file(_file_of(hook)) for hook in compat.hooks_of(tensor)):
            asked(True, UNREACHED)
            raise UserError(
                f"{name}: a parameter that has a hook gets no gradient from those results of a compiled call that the loss uses, "
                "and the hook would be called nevertheless: its next calls run in PyTorch, which this one should have done. Try "
                "the step again, or give the loss all of the call's results"
            )


def _of_one(hook: Callable[[tuple], Any], gradients: tuple, place: int) -> tuple | None:
    """The hook of eager's node, which has one output."""
    found = hook((gradients[place],))
    if found is None:
        return None
    (found,) = found if isinstance(found, tuple) else (found,)
    return *gradients[:place], found, *gradients[place + 1 :]


def _is_ours(hook: Any) -> bool:
    return _file_of(hook).startswith(PACKAGE)


def _file_of(hook: Any) -> str:
    return str(getattr(getattr(hook, "__code__", None), "co_filename", ""))


__all__ = ["HOOKED", "UNREACHED", "keep_to_eagers", "refuse_unreached"]
