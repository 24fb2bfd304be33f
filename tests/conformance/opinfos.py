"""Cases of PyTorch's own tables of operations and modules (torch.testing._internal)."""

from __future__ import annotations

import copy
import functools
import itertools
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from observe import UNINITIALISED
from program import Program, of_call
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.common_modules import module_db

# The table seeds the generator within its random operations; a program that does so in forward is another test.
for module in [m for name, m in sys.modules.items() if name.startswith("torch.testing._internal")]:
    if hasattr(module, "wrapper_set_seed"):
        module.wrapper_set_seed = lambda op, *args, **kwargs: op(*args, **kwargs)

DTYPES = {n: getattr(torch, n) for n in ("float32", "bfloat16", "float64", "int64", "float16", "bool")}


@dataclass
class Case:
    name: str  # "op/nn.functional.gelu/float32/2 noncontiguous"
    make: Callable[[], Program]
    values: bool = True  # whether the numbers mean something


@functools.cache
def operations() -> dict[str, list]:
    return {op.full_name: op for op in op_db}


@functools.cache
def modules() -> dict[str, list]:
    return {info.name.removeprefix("nn."): info for info in module_db}


def groups(table: str, dtypes: list[str]) -> Iterator[tuple[str, str, str]]:
    """(table, operation, dtype) of everything that runs on a CPU."""
    for dtype in dtypes:
        for name, info in sorted((operations() if table == "op" else modules()).items()):
            supported = (
                info.supports_dtype(DTYPES[dtype], "cpu")
                if table == "op"
                else DTYPES[dtype] in info.supported_dtypes("cpu")
            )
            if supported or (table == "op" and dtype == "float32"):
                yield table, name, dtype


def cases(table: str, name: str, dtype: str, most: int | None) -> Iterator[Case]:
    """At most `most` samples, each in all its variants."""
    yield from (of_operation if table == "op" else of_module)(name, dtype, most)


def of_operation(name: str, dtype: str, most: int | None) -> Iterator[Case]:
    op, type_ = operations()[name], DTYPES[dtype]
    values = op.name.rsplit(".", 1)[-1] not in UNINITIALISED
    with_gradient = op.supports_autograd and type_.is_floating_point and type_ in op.supported_backward_dtypes("cpu")
    if op.supports_dtype(type_, "cpu"):
        samples = op.sample_inputs("cpu", type_, requires_grad=with_gradient)
        for i, sample in enumerate(itertools.islice(samples, most)):
            label = f"op/{name}/{dtype}/{i}"
            yield Case(label, functools.partial(_program, op, sample), values)
            yield Case(f"{label} noncontiguous", functools.partial(_program, op, sample, strided=True), values)
            if op.inplace_variant is not None and not sample.broadcasts_input:
                yield Case(f"{label} in place", functools.partial(_program, op, sample, in_place=True), values)
    if dtype == "float32":  # error inputs choose their types themselves
        for i, wrong in enumerate(itertools.islice(_errors(op), most)):
            yield Case(f"op/{name}/{dtype}/error {i}", functools.partial(_program, op, wrong.sample_input), values)


def _errors(op) -> Iterator:
    if op.error_inputs_func is not None:
        yield from op.error_inputs("cpu")


def _program(op, sample, strided: bool = False, in_place: bool = False) -> Program:
    sample = sample.noncontiguous() if strided else sample
    args = (sample.input, *sample.args)
    if not in_place:
        return of_call(op.op, op.full_name, args, sample.kwargs)
    into_copy = isinstance(sample.input, torch.Tensor) and sample.input.requires_grad
    if isinstance(sample.input, (list, tuple)):  # foreach
        args = ([x.detach() for x in sample.input], *sample.args)
    return of_call(op.inplace_variant, f"{op.full_name} in place", args, sample.kwargs, into_copy)


def of_module(name: str, dtype: str, most: int | None) -> Iterator[Case]:
    info, type_ = modules()[name], DTYPES[dtype]
    for training in (True, False) if info.train_and_eval_differ else (True,):
        inputs = info.module_inputs_func(info, device="cpu", dtype=type_, requires_grad=True, training=training)
        for i, given in enumerate(inputs[:most]):
            label = f"module/{name}/{dtype}/{i}{'' if training else ' evaluation'}"
            if given.forward_input is not None:
                yield Case(label, functools.partial(_module_program, info, given, type_, training))


def _module_program(info, given, dtype: torch.dtype, training: bool) -> Program:
    made = given.constructor_input
    torch.manual_seed(0)
    module = info.module_cls(*made.args, **made.kwargs).to(dtype=dtype).train(training)
    args, kwargs = given.forward_input.args, given.forward_input.kwargs
    return Program(
        functools.partial(copy.deepcopy, module),
        tuple(args),
        kwargs,
        f"{module!r}  # {given.desc}, {'training' if training else 'evaluation'}",
    )
