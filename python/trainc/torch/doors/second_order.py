"""A compiled call's program, done once more for a gradient that no plan makes (joint/second_order.py)."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch

from trainc.base.errors import NotCompiled, UserError
from trainc.torch.capture import again
from trainc.torch.capture.structure import Flattener
from trainc.torch.doors.signature import Call
from trainc.torch.doors.variants import Variants
from trainc.torch.joint.family import Family
from trainc.torch.joint.second_order import SECOND


def kind_of(call_kind: tuple) -> tuple:
    """What calls have in common of whose gradients a program asks for gradients: all but sizes, and what varies in Python."""
    training, _, types, *active = call_kind
    return training, tuple([(len(shape), dtype, learns, leaf) for shape, _, dtype, learns, leaf, *_ in types]), *active


class CallAgain:
    """`joint.second_order.Program` of what was traced for `call`, and holds while `serving` does. It keeps none of the program
    alive: a loss that somebody keeps would keep the model."""

    def __init__(
        self, name: str, variants: Variants, serving: Family, call: Call, numbers: bool,
        asked: Callable[[tuple, bool, str], None], differentiates: Callable[[tuple, frozenset[int]], None],
    ):  # fmt: skip
        """`numbers`: whether the trace has numbers that change."""
        self._name, self._structure, self._kind, self._numbers = name, call.structure, call.kind, numbers
        self._variant, self._variants = call.key[0], weakref.ref(variants)
        self._state, self._serving, self._asked = weakref.ref(variants.state), weakref.ref(serving), weakref.WeakMethod(asked)
        self._differentiates = weakref.WeakMethod(differentiates)

    def asked(self, often: bool, what: str = SECOND) -> None:
        if (told := self._asked()) is not None:
            told(self._kind, often, what)

    def differentiates(self, places: frozenset[int]) -> None:
        if (told := self._differentiates()) is not None:
            told(self._kind, places)

    def again(self, inputs: list[torch.Tensor]) -> Sequence[Any]:
        variants, state, serving = self._variants(), self._state(), self._serving()
        if variants is None or state is None or serving is None or not self._is_as_it_was(variants, state, serving):
            raise UserError(
                f"{self._name}: what forward reads has changed since its call, and a gradient is asked for (of a gradient, or of "
                "a result that another is made of) for which the call is done again: change it afterwards, or leave this model "
                "out of trainc.compile"
            )
        result, _ = again.result_of(state, self._structure, inputs)
        flattener = Flattener(known=lambda _: False)
        flattener.flatten(result)
        return flattener.tensors

    def _is_as_it_was(self, variants: Variants, state: Any, serving: Family) -> bool:
        if self._numbers or variants.state is not state:
            return False
        try:
            return variants.find()[0] == self._variant and variants.state is state and serving.holds()
        except NotCompiled:
            return False


__all__ = ["CallAgain", "kind_of"]
