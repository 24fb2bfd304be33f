"""Where results of eager's CPU kernels lie, of which PyTorch's rules for traces say otherwise.

Dropout fills its mask in the order in which its operand lies in memory, and a program may ask for strides: both are right only
where a trace knows the strides that eager's kernels give. For most operations PyTorch's rules do. These here were found by
running its table of operations (`op_db`) over transposed, permuted, expanded and channels-last operands, as
tests/python/graph/test_layouts_of_results.py does with some. Of elementwise operations the rules are
wrong where operands in bf16 or f16 are expanded (`References`)."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from trainc.torch import compat
from trainc.torch.compat import DispatchKey, FakeTensor, OpOverload, decompositions

aten = torch.ops.aten
Layout = Callable[[torch.Tensor, tuple], torch.Tensor]


def _row_major(result: torch.Tensor, args: tuple) -> torch.Tensor:
    return result.new_empty(result.shape)


def _as_images(result: torch.Tensor, args: tuple) -> torch.Tensor:
    """Channels last where the operand is, else row-major."""
    operand = next(arg for arg in args if isinstance(arg, torch.Tensor) and arg.dim() == result.dim())
    return torch.empty_like(result, memory_format=decompositions.utils.suggest_memory_format(operand))


def _row_major_of_complex(result: torch.Tensor, args: tuple) -> torch.Tensor:
    return _row_major(result, args) if args[0].is_complex() else result


def _as_product(result: torch.Tensor, args: tuple) -> torch.Tensor:
    """As a product of the two operands lies, like most elementwise results."""
    return torch.empty_like(torch.mul(*args[:2]), dtype=result.dtype)


def _as_scaled(result: torch.Tensor, args: tuple) -> torch.Tensor:
    """As the first operand times a power of 2, which is row-major."""
    return _as_product(result, (args[0], args[1].new_empty(args[1].shape)))


def _as_first(result: torch.Tensor, args: tuple) -> torch.Tensor:
    return torch.empty_like(args[0]) if result.shape == args[0].shape else result  # else it is a sum


def _as_second(result: torch.Tensor, args: tuple) -> torch.Tensor:
    return torch.empty_like(args[1])


_LAYOUTS: dict[OpOverload, Layout] = {
    aten._log_softmax_backward_data.default: _row_major,
    aten.log_sigmoid_forward.default: _row_major,
    aten.mse_loss_backward.default: _row_major,
    aten.smooth_l1_loss_backward.default: _row_major,
    aten.huber_loss_backward.default: _row_major,
    aten.normal.Tensor_Tensor: _row_major,
    aten.angle.default: _row_major_of_complex,
    aten.pow.Scalar: _row_major,
    aten.native_layer_norm_backward.default: _row_major,
    aten.native_batch_norm.default: _as_images,
    aten._native_batch_norm_legit.default: _as_images,
    aten._native_batch_norm_legit.no_stats: _as_images,
    aten._native_batch_norm_legit_functional.default: _as_images,
    aten._batch_norm_with_update.default: _as_images,
    aten._batch_norm_with_update_functional.default: _as_images,
    aten.channel_shuffle.default: _as_images,
    aten.max_unpool2d.default: _as_images,
    aten.reflection_pad2d_backward.default: _as_images,
    aten.reflection_pad3d.default: _as_images,
    aten.reflection_pad3d_backward.default: _as_images,
    aten.replication_pad2d_backward.default: _as_images,
    aten.replication_pad3d.default: _as_images,
    aten.replication_pad3d_backward.default: _as_images,
    aten.copysign.Tensor: _as_product,
    aten.div.Tensor_mode: _as_product,
    aten.floor_divide.default: _as_product,
    aten.heaviside.default: _as_product,
    aten.xlogy.Tensor: _as_product,
    aten.ldexp.Tensor: _as_scaled,
    aten.binary_cross_entropy.default: _as_first,
    aten.binary_cross_entropy_backward.default: _as_second,
    aten.logaddexp.default: _as_product,
    aten.logical_and.default: _as_product,
    aten.logical_or.default: _as_product,
    aten.logical_xor.default: _as_product,
    aten.native_dropout_backward.default: _as_product,
}


class References:
    """What the wrapper of PyTorch's references, which its rules for elementwise results are, sees of PyTorch's own (`_utils`)."""

    def __getattr__(self, name: str) -> Any:
        return getattr(_utils, name)

    @staticmethod
    def elementwise_dtypes(*operands: Any, type_promotion_kind: Any) -> tuple[torch.dtype, torch.dtype]:
        """(the type that operands are converted to, the result's). Eager's kernels convert tensors to the type that they have in
        common, but compute bf16 and f16 in f32 element by element. An expanded operand has no say in how a result lies; converted
        as a whole, it is expanded no more."""
        computed, result = _utils.elementwise_dtypes(*operands, type_promotion_kind=type_promotion_kind)
        tensors = [operand for operand in operands if isinstance(operand, torch.Tensor)]
        if computed is not torch.float32 or not all(type(tensor) is FakeTensor for tensor in tensors):
            return computed, result
        if compat.dispatch_mode(compat.DispatchModeKey.PROXY) is not None:  # a trace takes this one apart, for its values
            return computed, result
        _, common = _utils.elementwise_dtypes(*operands, type_promotion_kind=compat.PROMOTED)
        return (common if common in (torch.bfloat16, torch.float16) else computed), result


_utils = compat.REFERENCES_SEE.original()


def _on_cpu(args: tuple) -> bool:
    tensors = [arg for arg in args if isinstance(arg, torch.Tensor)]
    return bool(tensors) and all(type(tensor) is FakeTensor and tensor.fake_device.type == "cpu" for tensor in tensors)


def _laid(rule: Callable[..., Any], layout: Layout) -> Callable[..., Any]:
    """`rule`, with results where the layout says; vectors (statistics of a BatchNorm) lie in one way alone."""

    @functools.wraps(rule)  # fake tensors ask once for a rule's name whether it is PyTorch's own, and keep the answer
    def kernel(*args: Any, **kwargs: Any) -> Any:
        try:
            results = rule(*args, **kwargs)
        except ZeroDivisionError:  # PyTorch's rules for gradients of losses divide by the number of elements, 0 too
            results = torch.empty_like(args[1])
        if not _on_cpu(args):
            return results
        if isinstance(results, torch.Tensor):
            return layout(results, args)
        return tuple([layout(r, args) if isinstance(r, torch.Tensor) and r.dim() > 1 else r for r in results])

    return kernel


def _with_users_onednn(rule: Callable[..., Any]) -> Callable[..., Any]:
    """A rule that looks at which library eager would choose (a trace has switched oneDNN off, for recurrent layers)."""

    @functools.wraps(rule)
    def asked(*args: Any, **kwargs: Any) -> Any:
        with compat.users_onednn():
            return rule(*args, **kwargs)

    return asked


CONVOLUTIONS = {
    operator: _with_users_onednn(compat.fake_rules[operator])
    for operator in (aten.convolution.default, aten.convolution_backward.default)
}


KERNELS: dict[OpOverload, dict[DispatchKey, Callable[..., Any]]] = {  # as traced_kernels.py has them
    operator: {DispatchKey.Meta: _laid(operator.py_kernels[DispatchKey.Meta], layout)}
    for operator, layout in _LAYOUTS.items()
}
# Rules of operations that are written out in others: fake tensors look here before they ask the dispatcher.
WRITTEN_OUT: dict[OpOverload, Callable[..., Any]] = {
    operator: _laid(compat.decomposition_table[operator], layout)
    for operator, layout in _LAYOUTS.items()
    if operator in compat.decomposition_table
}

__all__ = ["CONVOLUTIONS", "KERNELS", "WRITTEN_OUT", "References"]
