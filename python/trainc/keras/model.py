"""`trainc.compile` of a Keras model: the steps of `fit` and `evaluate` through the door of Keras's backend.

On JAX and TensorFlow a step is one function, which is compiled whole. On PyTorch it is a program whose model is called: that call
is compiled."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import keras

from trainc.base.errors import UserError
from trainc.base.report import Explanation

KINDS = ("train", "test")  # steps that are compiled; `predict` is Keras's own


def backend() -> str:
    """What Keras computes with: "jax", "torch", "tensorflow"."""
    return keras.backend.backend()


def compile_model(model: Any, jit: Callable) -> Any:
    """The same model on JAX or TensorFlow. `jit`: the backend's door for a step."""
    if not model.compiled:
        raise UserError("trainc.compile wants a Keras model after model.compile(...), which says what a step is")
    compiled: dict[str, list[Any]] = {kind: [] for kind in KINDS}
    for kind in KINDS:
        # Keras asks for its functions by these methods when it first runs a step, and after each model.compile().
        setattr(model, f"make_{kind}_function", functools.partial(_make, model, kind, jit, compiled[kind]))
        setattr(model, f"{kind}_function", None)
    model.trainc_explained = functools.partial(_explained, model, compiled)
    return model


def compile_call(model: Any, compile_: Callable[[Any], None]) -> Any:
    """The same model on PyTorch, where any loop may call it. `compile_`: puts what is compiled in the place of its call."""
    compile_(model)
    for kind in KINDS if isinstance(model, keras.Model) else ():
        setattr(model, f"make_{kind}_function", functools.partial(_made_plain, model, kind))
        setattr(model, f"{kind}_function", None)
    return model


def _made_plain(model: Any, kind: str, force: bool = False) -> None:
    """Keras's own step around the compiled call: with `jit_compile` another compiler would take both."""
    jits, model.jit_compile = model.jit_compile, False
    try:
        getattr(type(model), f"make_{kind}_function")(model, force)
    finally:
        model.jit_compile = jits


def _make(model: Any, kind: str, jit: Callable, compiled: list[Any], force: bool = False) -> None:
    """In the place of Keras's own method: that has a step that is compiled already, and is told to do no more to it."""
    if getattr(model, f"{kind}_function") is not None and not force:
        return
    make, name = getattr(type(model), f"make_{kind}_function"), f"{kind}_step"
    if model.run_eagerly or not model.jit_compile or _is_distributed(model):
        make(model, force)
        return
    own = vars(model).get(name)
    compiled.append(jit(getattr(model, name)))
    setattr(model, name, compiled[-1])
    try:
        with _as_it_is(model):
            make(model, force=True)
    finally:
        if own is None:
            delattr(model, name)
        else:
            setattr(model, name, own)


def _is_distributed(model: Any) -> bool:
    if backend() == "tensorflow" and type(model.distribute_strategy).__name__ != "_DefaultDistributionStrategy":
        return True
    return keras.distribution.distribution() is not None


@contextlib.contextmanager
def _as_it_is(model: Any) -> Iterator[None]:
    """Keras makes its function of a step that it calls as it is. On TensorFlow that is its function for eager steps: a loop in
    Python, which calls the step with each batch."""
    name, meanwhile = ("run_eagerly", True) if backend() == "tensorflow" else ("jit_compile", False)
    before = getattr(model, name)
    setattr(model, name, meanwhile)
    try:
        yield
    finally:
        setattr(model, name, before)


def _explained(model: Any, compiled: dict[str, list[Any]], batch: Any = None) -> Explanation:
    """What `trainc.explain` gives: of the steps that ran."""
    if batch is not None:
        raise UserError("trainc.explain(batch=...) of a Keras model is not there: train a step first")
    steps = [step for kind in KINDS for step in compiled[kind]]
    return Explanation(model.name, [c for step in steps for c in step.trainc_explained(None).compilations])


__all__ = ["backend", "compile_call", "compile_model"]
