"""All of PyTorch that is not public and that trainc stands on, by what it is for. No other module imports a private name of
torch's (tests/python/test_fences.py), and tests/python/test_compat.py asks of each what is relied on here: another version of
PyTorch fails there first.
"""
# ruff: noqa: F401, I001 (names for others to import; in groups, not by the alphabet)

from __future__ import annotations

from types import ModuleType

import torch
import torch._functorch.aot_autograd  # first: the modules below import each other

# -- what a graph's nodes call: operators; a region of higher order is not seen into ----------------------------------------
from torch._ops import HigherOrderOperator, OpOverload, OpOverloadPacket, _OpNamespace as OpNamespace, _Ops as Ops

# -- tensors without values, and the modes that a trace puts around a program: their dispatch is taken over (repeated.py) ---
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch._subclasses.functional_tensor import FunctionalTensor, FunctionalTensorMode
from torch.fx.experimental import proxy_tensor  # its tracer's methods are replaced: origins of nodes, symbols for sizes
from torch.fx.experimental.proxy_tensor import (
    ProxyTorchDispatchMode, _ProxyTensor as ProxyTensor, get_proxy_mode, make_fx, set_original_aten_op,
)  # fmt: skip
from torch.fx._lazy_graph_module import _use_lazy_graph_module as use_lazy_graph_module
from torch.utils._python_dispatch import (
    TorchDispatchMode, _disable_current_modes as disable_current_modes,  # real tensors in the middle of a trace
    is_traceable_wrapper_subclass, return_and_correct_aliasing,
)  # fmt: skip
from torch._dispatch.python import enable_python_dispatcher
from torch._C import (
    DispatchKey, DispatchKeySet, _DisableTorchDispatch as DisableTorchDispatch, _ForceDispatchKeyGuard as ForceDispatchKeyGuard,
    _TorchDispatchModeKey as DispatchModeKey, _dispatch_keys as dispatch_keys, _get_dispatch_mode as dispatch_mode,
    _dispatch_tls_local_exclude_set as excluded_dispatch_keys, _dispatch_tls_local_include_set as included_dispatch_keys,
    _set_throw_on_mutable_data_ptr as throw_on_mutable_data_ptr,
)  # fmt: skip
from torch import (
    _disable_functionalization as disable_functionalization, _from_functional_tensor as from_functional_tensor,
    _functionalize_enable_reapply_views as reapply_views, _sync as sync_functional_tensor,
    _to_functional_tensor as to_functional_tensor,
)  # fmt: skip

# -- sizes as symbols: hints decide, guards are read back as Python ----------------------------------------------------------
from torch._dynamo.source import ConstantSource
from torch.fx.experimental import sym_node
from torch.fx.experimental.sym_node import SymNode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext
from torch.utils._sympy.interp import sympy_interp
from torch.utils._sympy.reference import PythonReferenceAnalysis

# -- AOTAutograd: traces the joint graph; its wrappers of plain traces are replaced (joint/compiler.py) ----------------------
from torch._functorch import config as functorch_config
from torch._functorch._aot_autograd import graph_capture, graph_compile, runtime_wrappers
from torch._functorch._aot_autograd.functional_utils import from_fun, to_fun
from torch._functorch._aot_autograd.logging_utils import setup_stacktrace_preservation_hooks  # the backward's lines
from torch._functorch._aot_autograd.schemas import MutationType, OutputType, PlainTensorMeta, ViewAndMutationMeta
from torch._functorch.aot_autograd import aot_module_simplified
from torch._decomp import decompositions  # the recurrent layers' one is replaced: eager's dropout between layers
from torch._guards import TracingContext
from torch._logging._internal import trace_log

# -- Dynamo: the backend's door; one trace at a time; the flat comparison of tensors' types in C -----------------------------
from torch._C._dynamo import guards as tensor_guards
from torch._dynamo import disable as dynamo_disable
from torch._dynamo.convert_frame import compile_lock
from torch._dynamo.exc import TorchDynamoException

# -- what is active around a call: a plan is not used under what would have changed the trace ---------------------------------
from torch.overrides import _get_current_function_mode_stack as function_modes
from torch.utils._device import DeviceContext  # torch.set_default_device, which is no mode of the user's
from torch._C import (
    DisableTorchFunctionSubclass, _DisableAutocast as DisableAutocast, _get_tracing_state as jit_tracing_state,
    _is_torch_function_mode_enabled as function_modes_enabled, _len_torch_dispatch_stack as count_dispatch_modes,
    _len_torch_function_stack as count_function_modes, _get_default_device as default_device,
)  # fmt: skip
from torch._C import _disabled_torch_function_impl as no_torch_function  # as a class's __torch_function__: none of its own
from torch._C._functorch import is_legacy_batchedtensor, peek_interpreter_stack as functorch_transform
from torch.nn.modules.module import _has_any_global_hook as has_global_module_hooks

# -- autograd's engine in the middle of a backward ---------------------------------------------------------------------------
from torch._C import _will_engine_execute_node as will_execute
from torch._C._autograd import _get_current_graph_task_keep_graph as keeps_graph

# -- memory: tensors over memory of ours, and who else holds a block ----------------------------------------------------------
from torch._C import _construct_storage_from_data_pointer as storage_at, _storage_Use_Count as storage_use_count
from torch._prims_common import is_non_overlapping_and_dense_or_false

# -- oneDNN: a trace takes layers apart, a measurement wants it back (there is no public getter) ------------------------------
from torch._C import _get_mkldnn_enabled as onednn_enabled, _set_mkldnn_enabled as set_onednn

# -- optimizers: hooks for all of them; which of eager's loops runs -----------------------------------------------------------
from torch.optim.optimizer import (
    _default_to_fused_or_foreach as default_to_fused_or_foreach, _global_optimizer_post_hooks as optimizer_post_hooks,
    _global_optimizer_pre_hooks as optimizer_pre_hooks,
)  # fmt: skip

# -- containers ---------------------------------------------------------------------------------------------------------------
from torch.utils import _pytree as pytree

make_wrapper_subclass = torch.Tensor._make_wrapper_subclass


def inductor_config() -> ModuleType:
    """Of the compiler whose switches AOTAutograd reads; importing it takes a while."""
    from torch._inductor import config

    return config


def profiles_optimizers() -> bool:
    """Whether a profiler wants eager's own step."""
    return torch.autograd.profiler._is_profiler_enabled


def caches_parametrizations() -> bool:
    """Whether a `parametrize.cached()` is active: weights that calls hand to each other."""
    return torch.nn.utils.parametrize._cache_enabled > 0


def wants_gradient(output: object) -> bool:
    """Whether a joint graph has a tangent for an output (OutputAliasInfo). PyTorch 2.11 has no flag of its own for that."""
    return getattr(output, "requires_grad_for_backward", output.requires_grad)


def saved_inputs(metadata: ViewAndMutationMeta) -> list[int]:
    """Inputs that AOTAutograd keeps in another way than autograd's; PyTorch 2.11 knows of none."""
    return getattr(metadata, "act_input_indices", [])
