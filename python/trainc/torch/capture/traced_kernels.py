"""Kernels in Python that PyTorch's dispatcher takes while a program is traced, where those that it has are not eager's.

`one_hot` refuses a class that is out of range, but leaves its check out where it is traced (the numbers are not known there):
an operation of ours that the compiler knows stands before it, and checks when the plan runs. The shrinking activations are
written out in operations with other zeros, and another gradient at NaN: they stay whole, and are rows of the front end. So do
the margin losses of several classes: of several labels, PyTorch adds up terms for places past the last label, too; of one, a NaN
and a margin that is just kept have another loss and gradient. Resizing by a given factor takes the factor also where eager's
kernels do not look at it; linearly, it has the weights of resize.py. Within the kernel of `affine_grid` is a product, which
autocast narrows. `cov` and `combinations` look at numbers that the sizes
tell, in tensors; these are written out without a look. Determinants factor a real matrix that is contiguous as its transpose,
and their gradients ask of the traced one whether it is; a plan hands PyTorch contiguous matrices, so the traced one is one."""

from __future__ import annotations

import contextlib
import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator
from operator import getitem
from typing import Any

import torch

from trainc.base.patches import patched
from trainc.torch import compat
from trainc.torch.capture import layouts_of_results, resize, turns
from trainc.torch.compat import DispatchKey, OpOverload, OpOverloadPacket, decompositions

_library = torch.library.Library("trainc", "FRAGMENT")
_library.define("classes(Tensor classes, int num_classes) -> Tensor")
_one_hot_of = torch.ops.aten.one_hot.default


def _checked(classes: torch.Tensor, num_classes: int) -> torch.Tensor:
    """A copy, after eager's check: where PyTorch runs a traced graph."""
    if classes.numel() and classes.min() < 0:
        raise RuntimeError("Class values must be non-negative.")
    if classes.numel() and classes.max() >= num_classes:
        raise RuntimeError("Class values must be smaller than num_classes.")
    return classes.clone()


_library.impl("classes", _checked, "CompositeExplicitAutograd")
_library.impl("classes", lambda classes, num_classes: torch.empty_like(classes), "Meta")


def _one_hot(classes: torch.Tensor, num_classes: int = -1) -> torch.Tensor:
    if num_classes > 0:
        classes = torch.ops.trainc.classes(classes, num_classes)
    return compat.run_kernel(_one_hot_of, DispatchKey.CompositeImplicitAutograd, classes, num_classes)


def _resized(packet: OpOverloadPacket, written_out: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """`written_out`, but where eager does not look at the factor of a dimension, in the gradient at least: it becomes as long as
    it was (1.25 of three rows are three rows), or twice as long. There the operation stays whole, as it does for bytes."""
    names = [argument.name for argument in compat.schema_of(packet.vec).arguments]

    def kernel(*args: Any, **kwargs: Any) -> torch.Tensor:
        given = dict(zip(names, args, strict=False)) | kwargs
        x, factors = given[names[0]], given["scale_factors"]
        sizes = decompositions.upsample_compute_output_size(x.size(), given["output_size"], factors)
        corners = [given["align_corners"]] if "align_corners" in names else []
        factors = factors or [None] * len(sizes)
        ignored = any(
            factor not in (None, 1, 2) and (size == old or size == 2 * old)
            for old, size, factor in zip(x.shape[2:], sizes, factors, strict=True)
        )
        fixed_point = written_out is resize.linear and not x.is_floating_point()  # so eager resizes bytes
        if ignored or fixed_point:
            return packet.default(x, sizes, *corners, *factors)
        result = written_out(x, sizes, *corners, *factors)
        if written_out is resize.linear or x.device.type != "cpu":  # the first lays its results by itself
            return result
        return result.contiguous(memory_format=decompositions.utils.suggest_memory_format(x))

    return kernel


_cov_of, _combinations_of = torch.ops.aten.cov.default, torch.ops.aten.combinations.default
_dropout_of = torch.ops.aten.dropout.default


def _dropout(x: torch.Tensor, p: float, train: bool | None) -> torch.Tensor:
    """Where nothing is dropped, eager gives `x` itself: who writes the one writes the other. PyTorch's kernel gives a copy."""
    if not train or p == 0 or x.numel() == 0:
        return x
    return torch.ops.aten.native_dropout(x, p, train)[0]


def _polygamma_in_place(x: torch.Tensor, n: int) -> torch.Tensor:
    """PyTorch has no functional form of it by its name: the operands are in another order there."""
    made = torch.polygamma(n, x.clone())  # the gradient's formula reads what x was
    if not torch.can_cast(made.dtype, x.dtype):
        raise RuntimeError(f"result type {made.dtype} can't be cast to the desired output type {x.dtype}")
    return x.copy_(made)


def _bernoulli_in_place(x: torch.Tensor, p: float = 0.5, *, generator: torch.Generator | None = None) -> torch.Tensor:
    """In the order in which x lies in memory. The functional form of it that PyTorch has is row-major."""
    order = range(x.dim()) if x.is_contiguous() else sorted(range(x.dim()), key=x.stride, reverse=True)
    drawn = torch.bernoulli(x.detach().new_empty([x.size(axis) for axis in order]), p, generator=generator)
    return x.copy_(drawn.permute([order.index(axis) for axis in range(x.dim())]))


def _cov(x: torch.Tensor, *, correction: int = 1, fweights: Any = None, aweights: Any = None) -> torch.Tensor:
    """Eager looks at the number of observations as at a tensor's value. With weights it is one."""
    count = x.size(-1) if x.dim() else 1
    if fweights is not None or aweights is not None or x.dim() > 2 or x.dtype is torch.bool or count - correction <= 0:
        weights = {"fweights": fweights, "aweights": aweights}
        return compat.run_kernel(_cov_of, DispatchKey.CompositeImplicitAutograd, x, correction=correction, **weights)
    rows = x.reshape(1, -1) if x.dim() < 2 else x
    apart = rows - (rows.sum(1) / count).unsqueeze(1)
    return (torch.mm(apart, apart.t().conj()) / (count - correction)).squeeze()


def _combinations(x: torch.Tensor, r: int = 2, with_replacement: bool = False) -> torch.Tensor:
    """Eager picks them out of all tuples by a mask, whose values a trace does not know."""
    if x.dim() != 1 or r < 1 or type(x.size(0)) is not int:
        return compat.run_kernel(_combinations_of, DispatchKey.CompositeImplicitAutograd, x, r, with_replacement)
    choose = itertools.combinations_with_replacement if with_replacement else itertools.combinations
    places = torch.tensor(list(choose(range(x.size(0)), r)), dtype=torch.int64, device=x.device).reshape(-1, r)
    return torch.stack([x[places[:, column]] for column in range(r)], 1)


def _of_contiguous(operator: OpOverload) -> Callable[..., Any]:
    def kernel(matrix: torch.Tensor) -> Any:
        return compat.run_kernel(operator, DispatchKey.CompositeImplicitAutograd, matrix.contiguous())

    return kernel


_affine_grid_of = compat.AFFINE_GRID.original()


def _affine_grid(theta: torch.Tensor, size: list[int], align_corners: bool) -> torch.Tensor:
    """Under autocast, as eager's kernel makes it: a product, which autocast narrows, of the places of an image and theta. So too
    where a side has one place: the kernel of its gradient makes a tensor of memory for it, which a trace has none of."""
    if not torch.is_autocast_enabled(theta.device.type) and all(side > 1 for side in size[2:]):
        return _affine_grid_of(theta, size, align_corners)
    count = len(size) - 2
    with compat.DisableAutocast():
        identity = torch.eye(count, count + 1, dtype=theta.dtype, device=theta.device).expand(size[0], count, count + 1)
        places = _affine_grid_of(identity, size, align_corners).reshape(size[0], -1, count)
        places = torch.cat([places, torch.ones_like(places[..., :1])], -1)
    return torch.bmm(places, theta.transpose(1, 2)).reshape(size[0], *size[2:], count)


_aten = torch.ops.aten
_RESIZES = {
    **{name: getattr(decompositions, name) for name in ("upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d")},
    **dict.fromkeys(("upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d"), resize.linear),
    "upsample_bicubic2d": decompositions.upsample_bicubic2d_default,
}


def _kernels() -> dict[OpOverload, dict[DispatchKey, Callable[..., Any] | None]]:
    """operator -> dispatch key -> the kernel that it takes; None: that of C++"""
    kernels: dict[OpOverload, dict[DispatchKey, Callable[..., Any] | None]] = {
        _one_hot_of: {DispatchKey.CompositeImplicitAutograd: _one_hot},
        _dropout_of: {DispatchKey.CompositeImplicitAutograd: _dropout, DispatchKey.Autograd: _dropout},
        _aten.polygamma_.default: {DispatchKey.Autograd: _polygamma_in_place},
        _aten.bernoulli_.float: {DispatchKey.Autograd: _bernoulli_in_place},
        _cov_of: {DispatchKey.CompositeImplicitAutograd: _cov},
        _combinations_of: {DispatchKey.CompositeImplicitAutograd: _combinations},
        _aten.hardshrink.default: {DispatchKey.Autograd: None},
        _aten.softshrink.default: {DispatchKey.Autograd: None},
        _aten.multi_margin_loss.default: {DispatchKey.Autograd: None},
        _aten.multilabel_margin_loss_forward.default: {DispatchKey.Autograd: None},
    }
    for determinant in (_aten.linalg_det.default, _aten.linalg_slogdet.default):
        kernels[determinant] = {DispatchKey.CompositeImplicitAutograd: _of_contiguous(determinant)}
    for name, written_out in _RESIZES.items():
        packet = getattr(_aten, name)
        kernel = _resized(packet, written_out)
        for key in (DispatchKey.Autograd, DispatchKey.CompositeImplicitAutograd):
            kernels.setdefault(packet.vec, {})[key] = kernel
            kernels.setdefault(packet.default, {})[key] = None
    return kernels | layouts_of_results.KERNELS


_KERNELS = _kernels()


class _Remembered(dict):
    """What fake tensors remember of results, of all traces: the rules are the same in each. It is not for others, and what they
    remember is not for us. (To look for these among all that PyTorch remembers would take 0.2 s a trace in a process that has
    traced a thousand programs.)"""

    others: dict = compat.FAKE_RESULTS.original()

    def __contains__(self, key: Any) -> bool:
        return super().__contains__(key) or key in self.others

    def pop(self, key: Any, *default: Any) -> Any:  # type: ignore[override]
        """Of objects that are gone: another one may have the address of one that others remember, too."""
        super().pop(key, None)
        return self.others.pop(key, None)


# by what the rules look at beside operands: a convolution's result lies as the library lays it that eager chooses by these
_remembered: defaultdict[tuple[bool, int], _Remembered] = defaultdict(_Remembered)


@contextlib.contextmanager
def _remembered_apart() -> Iterator[None]:
    remembered = _remembered[compat.onednn_enabled(), torch.get_num_threads()]

    def goes(key: Any) -> None:
        remembered.pop(key)

    with patched(*compat.FAKE_RESULTS, remembered), patched(*compat.FAKE_RESULT_GOES, goes):
        yield


@contextlib.contextmanager
def as_eager() -> Iterator[None]:
    """For the time of a trace, under PyTorch's Python dispatcher."""
    before = {operator: dict(operator.py_kernels) for operator in _KERNELS}
    for operator, kernels in _KERNELS.items():
        for key, kernel in kernels.items():
            operator.py_kernels.pop(key, None)
            if kernel is not None:
                operator.py_kernels[key] = kernel
        compat.forget_kernels(operator)
    tables = [(compat.decomposition_table, layouts_of_results.WRITTEN_OUT), (compat.fake_rules, layouts_of_results.CONVOLUTIONS)]
    rules = [{operator: table[operator] for operator in ours} for table, ours in tables]
    for table, ours in tables:
        table.update(ours)
    try:
        with (
            patched(*compat.REFERENCES_SEE, layouts_of_results.References()), _remembered_apart(),
            patched(*compat.AFFINE_GRID, turns.mine(_affine_grid, _affine_grid_of)),
        ):  # fmt: skip
            yield
    finally:
        for (table, _), theirs in zip(tables, rules, strict=True):
            table.update(theirs)
        for operator, kernels in before.items():
            operator.py_kernels.clear()
            operator.py_kernels.update(kernels)
            compat.forget_kernels(operator)


def correct_results(graph: torch.fx.Graph) -> None:
    """Of what PyTorch says wrongly. Sums of bags go a fast way on CPUs, which does not say which bag an index is in (an empty
    tensor); those of bf16, too, which PyTorch's rule has forgotten: it is asked about f16."""
    bags_of = [node for target in compat.EMBEDDING_BAGS for node in graph.find_nodes(op="call_function", target=target)]
    for node in bags_of:
        weight, *rest = torch.fx.map_arg(node.args, lambda arg: arg.meta["val"])
        if weight.dtype is not torch.bfloat16 or not weight.is_cpu:
            continue
        with weight.fake_mode:
            like = torch.empty_strided(weight.shape, weight.stride(), dtype=torch.float16)
            bags = node.target(like, *rest)[1]
        output, _, *others = node.meta["val"]
        node.meta["val"] = (output, bags, *others)
        for item in node.users:
            if item.target is getitem and item.args[1] == 1:
                item.meta["val"] = bags


__all__ = ["as_eager", "correct_results"]
