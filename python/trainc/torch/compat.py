"""All of PyTorch that is not public and that trainc stands on, by what it is for. No other module names what is private of
torch's (tests/python/house/test_fences.py), and tests/python/house/test_compat.py asks of each what is relied on here: another
version of PyTorch fails there first.
"""
# ruff: noqa: F401, I001 (names for others to import; in groups, not by the alphabet)

from __future__ import annotations

import contextlib
import copy
import os
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, NamedTuple

import torch
import torch._functorch.aot_autograd  # first: the modules below import each other

# -- what a graph's nodes call: operators; a region of higher order is not seen into ----------------------------------------
from torch._higher_order_ops import effects  # which operators do something beside their results
from torch._ops import HigherOrderOperator, OpOverload, OpOverloadPacket, _OpNamespace as OpNamespace, _Ops as Ops

# -- tensors without values, and the modes that a trace puts around a program: operation_cache.py takes over their dispatch --
from torch._subclasses import fake_tensor
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
    _functionalize_enable_reapply_views as reapply_views, _functionalize_mutation_counter as writes_of_functional,
    _sync as sync_functional_tensor,
    _to_functional_tensor as to_functional_tensor,
)  # fmt: skip

# -- sizes as symbols: hints decide, guards are read back as Python ----------------------------------------------------------
from torch._dynamo.source import ConstantSource, GlobalStateSource
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
from torch._subclasses.fake_impls import op_implementations_dict as fake_rules  # of fake tensors' own, by operation
from torch._decomp import decomposition_table  # of which fake tensors take rules before those of the dispatcher
from torch._guards import TracingContext
from torch._logging._internal import trace_log

# -- Dynamo: the backend's door; one trace at a time; the flat comparison of tensors' types in C -----------------------------
from torch._C._dynamo import guards as tensor_guards
from torch._C._dynamo.eval_frame import get_eval_frame_callback as dynamo_callback  # None: it looks at no frame now
from torch._dynamo import disable as dynamo_disable, eval_frame
from torch._dynamo.eval_frame import DynamoStance
from torch._dynamo.convert_frame import compile_lock
from torch._dynamo.convert_frame import ConvertFrame  # whose errors are told, and its frame left to Python
from torch._dynamo.exc import BackendCompilerFailed, RestartAnalysis, TorchDynamoException
from torch._dynamo.output_graph import OutputGraph
from torch._dynamo.symbolic_convert import InliningInstructionTranslator
from torch._dynamo.types import ConvertFrameReturn
from torch._dynamo.variables.misc import RandomVariable  # whose draws are left to Python

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
from torch.nn.modules.module import (
    _WrappedHook as WrappedHook,  # around a module's hook that is no full backward hook, where the module is called
    _has_any_global_hook as has_global_module_hooks,
)  # fmt: skip

# -- autograd's other mode: derivatives that go forward with the tensors ------------------------------------------------------
from torch.autograd import forward_ad

# -- what packs the tensors that autograd saves ------------------------------------------------------------------------------
from torch._C._autograd import _top_saved_tensors_default_hooks as saved_tensors_hooks

# -- autograd's engine in the middle of a backward ---------------------------------------------------------------------------
from torch._C import _will_engine_execute_node as will_execute
from torch._C._autograd import _get_current_graph_task_keep_graph as keeps_graph

# -- memory: tensors over memory of ours, and who else holds a block ----------------------------------------------------------
from torch._C import _construct_storage_from_data_pointer as storage_at, _storage_Use_Count as storage_use_count
from torch._prims_common import is_non_overlapping_and_dense_or_false
from torch._prims_common import wrappers as reference_wrappers

# -- oneDNN: a trace takes layers apart, a measurement wants it as the user has it (there is no public getter) ------------------
from torch._C import (
    _get_mkldnn_deterministic as onednn_deterministic, _get_mkldnn_enabled as onednn_is_on, _set_mkldnn_enabled as set_onednn,
)  # fmt: skip

# -- optimizers: hooks for all of them; which of eager's loops runs -----------------------------------------------------------
from torch.optim.optimizer import (
    _default_to_fused_or_foreach as default_to_fused_or_foreach, _global_optimizer_post_hooks as optimizer_post_hooks,
    _global_optimizer_pre_hooks as optimizer_pre_hooks,
)  # fmt: skip

# -- containers ---------------------------------------------------------------------------------------------------------------
from torch.utils import _pytree as pytree

# -- activation checkpointing: what it marks is computed again -----------------------------------------------------------------
from torch.utils import checkpoint as checkpointing
from torch._higher_order_ops.wrap import tag_activation_checkpoint_impl as DYNAMO_CHECKPOINT  # gives it a function of its own


# -- what the tracer imports in the middle of a program ------------------------------------------------------------------------


def import_beforehand() -> None:
    """This module sets a variable of the environment when it is imported. Where the program reads the environment, that would be
    a change by the program, which would be traced again in the second step."""
    before = set(os.environ)
    import torch._inductor.compiler_bisector

    for name in set(os.environ) - before:
        del os.environ[name]


import_beforehand()


# -- what trainc replaces for the time of a trace (patches.patched) -----------------------------------------------------------


class Patch(NamedTuple):
    """Where something of PyTorch's is found."""

    owner: Any
    name: str

    def original(self) -> Any:
        return vars(self.owner)[self.name]


EFFECT_TOKENS = Patch(effects, "has_effects")  # operations with effects stay what they are, in their order
COMPILING_FLAG = Patch(torch.compiler, "_is_compiling_flag")  # torch.compiler.is_compiling() holds, as under Dynamo
STANCE = Patch(eval_frame, "_stance")  # what the program gave to torch.compile is called as it was before
NODE_OF_CALL = Patch(proxy_tensor.PythonKeyTracer, "create_node")  # operations remember the user's line
NODE_OF_ARGUMENT = Patch(proxy_tensor.PythonKeyTracer, "create_arg")  # symbols for sizes stay symbols
PROXY_OF_SIZE = Patch(proxy_tensor, "fetch_sym_proxy")  # the same
FUNCTIONAL_DISPATCH = Patch(FunctionalTensorMode, "__torch_dispatch__")  # operations that repeat are traced once
PROXY_DISPATCH = Patch(ProxyTorchDispatchMode, "__torch_dispatch__")  # the same
CHECKPOINT_GENERATOR = Patch(checkpointing, "_checkpoint_without_reentrant_generator")  # marks what is to be computed again
CHECKPOINT_FUNCTION = Patch(checkpointing, "CheckpointFunction")  # the same, of re-entrant ones
RECURRENT_LAYERS = Patch(decompositions, "_rnn_helper")  # eager's dropout between layers
MODULE_CALL = Patch(torch.nn.Module, "_call_impl")  # a thread waits while another traces the module
RUNTIME_WRAPPER = Patch(runtime_wrappers, "_create_runtime_wrapper")  # our node of autograd instead of AOTAutograd's
JOINT_GRAPH_LOG = Patch(graph_compile, "_log_joint_graph")  # not written where nobody reads it
AFFINE_GRID = Patch(torch, "affine_grid_generator")  # autocast narrows a product within its kernel
CAUSAL_MASK_LOOK = Patch(torch.nn.modules.transformer, "_detect_is_causal_mask")  # reads no value of a mask
REFERENCES_SEE = Patch(reference_wrappers, "utils")  # an expanded operand in bf16 stays one
FAKE_RESULTS = Patch(FakeTensorMode, "cache")  # what fake tensors remember of results by rules of ours is not PyTorch's to know
FAKE_MODE_MADE = Patch(FakeTensorMode, "__init__")  # so that it forgets the program's tensors afterwards
FAKE_RESULT_GOES = Patch(fake_tensor, "evict_fake_tensor_cache_key")  # a result of objects that are gone
FAKE_TENSOR_LOG = Patch(fake_tensor, "log")  # what a trace refuses, eager refuses with its own error: said once
DONATED_BUFFERS = Patch(graph_compile, "collect_bw_donated_buffer_idxs")  # none: a graph may be retained
GENERATOR_KEPT = Patch(torch._functorch.aot_autograd, "preserve_rng_state")  # other threads draw while a trace goes on
JOINT_TRACE = Patch(graph_capture, "create_joint")  # which gradients are reached from which tangents
MODULE_AS_FUNCTION = Patch(torch._functorch.aot_autograd, "create_functional_call")  # its results are looked at
MATERIALIZED_GRADS = Patch(torch.autograd.function.FunctionCtx, "set_materialize_grads")  # the same
TENSOR_RETAINS = Patch(torch.Tensor, "retain_grad")  # somebody reads the gradient after the call
TENSOR_HOOK = Patch(torch.Tensor, "register_hook")  # what the program's own backwards make of gradients that are not there
OWN_BACKWARD = Patch(torch.autograd.function.BackwardCFunction, "apply")  # the same
TENSOR_BACKWARD = Patch(torch.Tensor, "backward")  # a train_step's own backward
AUTOGRAD_BACKWARD = Patch(torch.autograd, "backward")  # the same
AUTOGRAD_ENGINE = Patch(torch.autograd, "_engine_run_backward")  # gradients of results that other results are made of
DYNAMO_FRAME = Patch(ConvertFrame, "__call__")  # what it cannot trace runs in Python, and nothing twice
DYNAMO_INLINE = Patch(InliningInstructionTranslator, "build_inline_tracer")  # which functions it traces
DYNAMO_GRAPH = Patch(OutputGraph, "__init__")  # of which each frame has one: it gets a guard of ours
DYNAMO_TAKES_OUT = Patch(OutputGraph, "remove_tensorify_specialized_graphargs")  # inputs, and by mistake writes of numbers
DYNAMO_COPIES_GENERATOR = Patch(RandomVariable, "is_supported_random_obj")  # it draws from a copy of the program's generator

# -- attributes without a public name -----------------------------------------------------------------------------------------
PROMOTED = reference_wrappers.ELEMENTWISE_TYPE_PROMOTION_KIND.DEFAULT  # to the type that operands have in common
make_wrapper_subclass = torch.Tensor._make_wrapper_subclass
EXTRA_KEYS = FunctionalTensor._extra_dispatch_keys  # that a FunctionalTensor takes from what it wraps
_MODULE_CALL = torch.nn.Module._wrapped_call_impl.__code__  # which asks for COMPILED_CALL
EXAMPLE = "example_value"  # in the meta of nodes of Dynamo's graphs
COMPILED_CALL = "_compiled_call_impl"  # of a module: what `module(...)` runs instead of its hooks and forward
SCRIPT_IGNORES = torch.jit._recursive.ignored_attributes  # a list: attributes of modules that torch.jit.script does not read
# of every module, beside what its class puts there
MODULE_ATTRIBUTES = frozenset({
    *torch.nn.Module().__dict__, COMPILED_CALL, "_forward_hooks_with_kwargs", "_forward_hooks_always_called",
    "_forward_pre_hooks_with_kwargs",
})  # fmt: skip
MODULE_TABLES = frozenset({"_parameters", "_buffers", "_modules"})  # which the constructor of every module makes
# hooks around a module's forward, and which of them are given its keywords; those around its backward
FORWARD_HOOKS = {"_forward_pre_hooks": "_forward_pre_hooks_with_kwargs", "_forward_hooks": "_forward_hooks_with_kwargs"}
BACKWARD_HOOKS = ("_backward_hooks", "_backward_pre_hooks")
HOOKS_AFTER_ERRORS = "_forward_hooks_always_called"  # also where forward has raised
# Until 2.12, clamp with one bound leaves it out where it is NaN: nothing is cut off. (Its gradient is another's: 0.)
CLAMP_SKIPS_NAN = not bool(torch.ones(1, device="cpu").clamp(min=float("nan")).isnan())
# those of a trace's tensors, which the program has not put there
FUNCTIONAL_TENSOR_ATTRIBUTES = frozenset({"elem", "_inference_mode_base", "_is_param", "_is_buffer"})
REASONS_OF_DATA = (
    "_local_scalar_dense", "data-dependent", "data dependent", "DataDependent", "DynamicOutputShape", "guard on",
    "its data is not allocated yet",  # a tensor that is made of a list of tensors, x[[i, j]] among them
)  # fmt: skip
# in its messages
REASON_OF_REAL_TENSORS = "convert all Tensors to FakeTensors first"
REASON_OF_COLLECTIVES = "for effect EffectType.ORDERED which came from the function c10d."


def schema_of(operator: Any) -> Any:
    """Of an OpOverload: what it takes, gives, writes and aliases."""
    return operator._schema


def has_decomposition(operator: Any) -> bool:
    """Whether autograd itself takes the operator apart."""
    return operator._can_decompose()


# PyTorch's rule for what these give is not eager's for bf16 (capture/traced_kernels.py).
EMBEDDING_BAGS = (torch.ops.aten._embedding_bag.default, torch.ops.aten._embedding_bag_forward_only.default)


def run_kernel(operator: Any, key: Any, *args: Any, **kwargs: Any) -> Any:
    """The operator's kernel of one dispatch key."""
    return operator._op_dk(key, *args, **kwargs)


def forget_kernels(operator: Any) -> None:
    """What the operator remembers of its table of kernels (`py_kernels`), once that was changed."""
    operator._dispatch_cache.clear()


def has_no_memory(tensor: torch.Tensor) -> bool:
    """Whether it is nothing but zeros of a shape (`torch._efficientzerotensor`)."""
    return tensor._is_zerotensor()


@contextlib.contextmanager
def outside_vmap() -> Iterator[None]:
    """Operations within are none of the function that `torch.autograd.grad(is_grads_batched=True)` maps over a batch, which may
    draw no random numbers. Tensors of that batch stay such."""
    level = torch._C._vmapmode_increment_nesting() - 1
    for _ in range(level + 1):
        torch._C._vmapmode_decrement_nesting()
    try:
        yield
    finally:
        for _ in range(level):
            torch._C._vmapmode_increment_nesting()


def count_writes(tensor: FunctionalTensor) -> int:
    """How often the memory of a trace's tensor has been written."""
    return writes_of_functional(tensor.elem)


def views_of(tensor: FunctionalTensor) -> set[str]:
    """By which operations a trace's tensor is a view of its memory ("expand", "select_int", ...)."""
    sequence = torch._C._functionalization.get_view_meta_sequence(tensor.elem)
    return {type(view).__name__.removesuffix("_ViewMeta") for view in sequence}


def is_whole(tensor: Any) -> bool:
    """Whether a trace's tensor is no view, for functionalization."""
    return isinstance(tensor, FunctionalTensor) and tensor.is_base_tensor()


def differentiates_forward() -> bool:
    """Whether tensors may carry derivatives of forward-mode AD, within `dual_level()`."""
    return forward_ad._current_level >= 0


def last_node(graph: Any) -> Any:
    """Of a graph of torch.fx: what was recorded last."""
    return graph._root.prev


def name_of_target(graph: Any, target: str) -> str:
    """How torch.fx names a node of this operator."""
    return graph._target_to_str(target)


def node_type(value: Any) -> Any:
    """As which kind of container `pytree` sees a value."""
    return pytree._get_node_type(value)


def forget_tensors(mode: FakeTensorMode) -> None:
    """Fake tensors' mode knows by weak references which tensors they stand for, and PyTorch swaps no tensor that has one. (Dynamo
    does the same when it has compiled.)"""
    describer = mode.fake_tensor_converter.meta_converter.describer
    describer.lookup_tensor.clear()
    describer.lookup_storage.clear()


def expression_of(node: Any) -> Any:
    """Of a symbolic size's SymNode: in terms of the symbols, before replacements."""
    return node._expr


PARAMETER_MARK = "_is_param"  # in the dictionary of a tensor that isinstance() takes for a parameter


def mark_as(tensor: Any, kind: str) -> None:
    """isinstance() takes the tensor for a "parameter" or a "buffer"."""
    setattr(tensor, {"parameter": PARAMETER_MARK, "buffer": "_is_buffer"}[kind], True)


def is_marked_parameter(tensor: Any) -> bool:
    return getattr(tensor, PARAMETER_MARK, False)


def storage_id(tensor: torch.Tensor) -> int:
    """The same for all tensors in one memory, fakes too."""
    return tensor.untyped_storage()._cdata


def holders_of_memory(tensor: torch.Tensor) -> int:
    """How many hold a tensor's storage, and how many the storage's one object in Python. No variable holds it here: what looks at
    frames' variables (a profiler, a debugger) would be counted."""
    return storage_use_count(tensor.untyped_storage()._cdata) + sys.getrefcount(tensor.untyped_storage())


def is_view(tensor: torch.Tensor) -> bool:
    """Whether autograd takes it for a view of another tensor."""
    return tensor._is_view()


def base_of(view: torch.Tensor) -> torch.Tensor:
    return view._base


def has_gradient_hooks(tensor: torch.Tensor) -> bool:
    return bool(tensor._backward_hooks)


def has_accumulation_hooks(tensor: torch.Tensor) -> bool:
    """Hooks that run once the gradient is in `.grad`."""
    return bool(tensor._post_accumulate_grad_hooks)


def hooks_of(tensor: torch.Tensor) -> list[Callable]:
    """Of its gradient, and of `.grad`."""
    return [*(tensor._backward_hooks or {}).values(), *(tensor._post_accumulate_grad_hooks or {}).values()]


def has_step_hooks(optimizer: torch.optim.Optimizer) -> bool:
    """Of its own, or of all optimizers."""
    own = optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks
    return bool(own or optimizer_pre_hooks or optimizer_post_hooks)


def init_group(kind: type) -> Callable[..., Any]:
    """Of a class of optimizers: fills lists with a group's parameters, gradients and states, and makes what states they lack."""
    return kind._init_group


def mark_stepped(optimizer: torch.optim.Optimizer) -> None:
    """Learning rate schedulers ask whether their optimizer has stepped."""
    optimizer._opt_called = True


def follow_scheduler(step: Callable[..., Any], before: Callable[..., Any]) -> None:
    """A scheduler takes `step` for the one that it wrapped, where it has wrapped `before`."""
    if hasattr(before, "_wrapped_by_lr_sched"):
        step._wrapped_by_lr_sched = True


def uncompiled_call(module: torch.nn.Module) -> Callable[..., Any]:
    """The module's hooks and forward, as `module(...)` runs them where nothing is compiled."""
    return module._call_impl


def compiled_call(module: Any) -> Any:
    """What `module(...)` runs instead; None where nothing is compiled. Copies and pickles leave it out."""
    return getattr(module, "_compiled_call_impl", None)


class ModuleCall:
    """What stands in the place of a module's call. nn.Module leaves it out of copies and pickles; one that writes its own state
    (a `__getstate__` of its own) has None there in them, which needs no trainc to be read."""

    def __reduce__(self) -> tuple:
        return type(None), ()

    @staticmethod
    def copy_of(module: torch.nn.Module | None) -> torch.nn.Module | None:
        """For `__call__`: the module that was called, where it is not `module` but has its attributes: whoever copies a
        `__dict__` (nn.DataParallel's replicas) copies the call, too, which is told of its arguments alone."""
        caller = sys._getframe(2)
        called = caller.f_locals["self"] if caller.f_code is _MODULE_CALL else module
        return None if called is module else called


def set_compiled_call(module: torch.nn.Module, call: ModuleCall | None) -> None:
    """torch.jit.script, which reads a module's attributes and refuses what is no function there, is told to leave it out."""
    if COMPILED_CALL not in SCRIPT_IGNORES:
        SCRIPT_IGNORES.append(COMPILED_CALL)
    module._compiled_call_impl = call


def dynamo_as_python() -> contextlib.AbstractContextManager:
    """Dynamo, where it traces, also guards that a module has no hooks, which left to itself it takes for settled; leaves an
    `assert` on a tensor to Python, where left to itself it makes an operation of it that raises another error; and leaves NumPy's
    random numbers to NumPy, where left to itself it draws them from PyTorch's generator."""
    from torch._dynamo import config

    return config.patch(
        skip_nnmodule_hook_guards=False, rewrite_assert_with_torch_assert=False, use_numpy_random_stream=True
    )


def node_of(function: type[torch.autograd.Function]) -> type:
    """The class of the nodes that stand for its calls, which `grad_fn` gives."""
    return function._backward_cls


def leave_frame() -> ConvertFrameReturn:
    """Dynamo's answer for a function that Python runs from now on, while Dynamo looks at what that calls."""
    return ConvertFrameReturn()


def compiler_within(compiler: Any) -> Any:
    """What one of Dynamo's wrappers around a backend calls; None where this is none."""
    return getattr(compiler, "_torchdynamo_orig_backend", None) or getattr(compiler, "compiler_fn", None)


def dynamo_saves_guards() -> bool:
    """Whether the guards are written to a file, which those of others cannot be."""
    return torch._dynamo.config.caching_precompile


def add_guard(builder: Any, holds: Callable[[Any], bool], words: list[str]) -> None:
    """`holds`, of a frame's variables, is asked after the other guards of the frame; `words`: what a log says where it fails."""
    builder.guard_manager.root.add_epilogue_lambda_guard(holds, words, None)


def dynamo_takes_lists() -> None:
    """From now on Dynamo gives a call of PyTorch's a list of a program's own class as a list, where left to itself it stops there
    (Keras keeps a layer's axes in such). A PyTorch that keeps its lists elsewhere stays as it is."""
    from torch._dynamo.variables import user_defined

    kind = getattr(user_defined, "UserDefinedListVariable", None)
    if kind is not None and "as_proxy" not in vars(kind):
        held = ("_base_vt", "_list_vt")  # of PyTorch 2.13, of 2.11
        kind.as_proxy = lambda self: next((v for v in map(vars(self).get, held) if v), super(kind, self)).as_proxy()


def dynamo_original(module: Any) -> Any:
    """The module that torch.compile has wrapped; None where it is none such."""
    return getattr(module, "_orig_mod", None)


# Writes to these tensors raise no version: of BatchNorm's statistics, which eager's kernel writes without raising one.
preserve_version_counter = torch.autograd._unsafe_preserve_version_counter


def boxed(call: Callable[[list[Any]], Any]) -> Callable[[list[Any]], Any]:
    """AOTAutograd hands its arguments over in a list, which may be emptied while the call goes on."""
    call._boxed_call = True
    return call


def inductor_config() -> ModuleType:
    """Of the compiler whose switches AOTAutograd reads; importing it takes a while."""
    from torch._inductor import config

    return config


_onednn_before: list[bool] = []  # what traces that go on have found it to be


def onednn_enabled() -> bool:
    """As the user has it, whatever a trace that goes on does with it."""
    return _onednn_before[0] if _onednn_before else onednn_is_on()


@contextlib.contextmanager
def without_onednn() -> Iterator[None]:
    """For a trace."""
    _onednn_before.append(onednn_is_on())
    set_onednn(False)
    try:
        yield
    finally:
        set_onednn(_onednn_before.pop())


@contextlib.contextmanager
def users_onednn() -> Iterator[None]:
    """For what runs in the middle of a trace as it will run in a step."""
    before = onednn_is_on()
    set_onednn(onednn_enabled())
    try:
        yield
    finally:
        set_onednn(before)


def is_profiled() -> bool:
    """Whether a profiler looks at what this thread runs; it wants an optimizer's own step, too."""
    return torch.autograd.profiler._is_profiler_enabled


def span(name: str) -> contextlib.AbstractContextManager:
    """What torch.profiler shows under this name, where a profiler is there."""
    if not is_profiled():
        return contextlib.nullcontext()
    return torch.profiler.record_function(f"trainc: {name}")


def caches_parametrizations() -> bool:
    """Whether a `parametrize.cached()` is active: weights that calls hand to each other."""
    return torch.nn.utils.parametrize._cache_enabled > 0


def wants_gradient(output: object) -> bool:
    """Whether a joint graph has a tangent for an output (OutputAliasInfo). PyTorch 2.11 has no flag of its own for that."""
    return getattr(output, "requires_grad_for_backward", output.requires_grad)


VIEWS_OF_RESULTS = (  # what a result may be to AOTAutograd that is a view of another one, or of the same memory
    OutputType.alias_of_intermediate, OutputType.alias_of_intermediate_save_as_output,
    OutputType.alias_of_intermediate_base_is_user_output,
)  # fmt: skip


def is_made_by_strides(sequence: Any) -> bool:
    """Whether a view is made again by its sizes and strides, and not by the operations of a ViewMetaSequence."""
    return sequence is None or any(view.has_symbolic_inputs for view in sequence.sequence)


def no_views(sequence: Any) -> Any:
    """A ViewMetaSequence (of an output that is made again) without an operation."""
    found = copy.copy(sequence)
    if found is not None:
        found.sequence = []
    return found


def saved_inputs(metadata: ViewAndMutationMeta) -> list[int]:
    """Inputs that AOTAutograd keeps in another way than autograd's; PyTorch 2.11 knows of none."""
    return getattr(metadata, "act_input_indices", [])


# -- DistributedDataParallel and its group (torch.distributed may not be there: it is imported when asked for) -----------------


def active_wrapper(kind: type) -> Any:
    """The DistributedDataParallel (`kind`) whose forward this process is in."""
    return kind._active_ddp_module


def is_joinable_now(wrapper: Any) -> bool:
    """Whether a DistributedDataParallel is within its `join()`, where ranks may be through with their data."""
    return wrapper._join_config.enable


def unsharded_class(kind: type) -> type:
    """Of a module of `fully_shard`: its class before."""
    return kind.__mro__[kind._orig_cls_mro_index]


def reduces_alone(wrapper: Any) -> bool:
    """Whether gradients are all that a DistributedDataParallel changes in a backward: its communication hooks are PyTorch's that
    compress, and no optimizer is among them."""
    ours = ("default_hooks", "powerSGD_hook", "quantization_hooks")
    modules = [getattr(hook, "__module__", None) for hook, _ in wrapper._comm_hooks]
    return all(module in [f"torch.distributed.algorithms.ddp_comm_hooks.{name}" for name in ours] for module in modules)


def communication_hooks(wrapper: Any) -> list[tuple[Any, Any]]:
    """(hook, its state) of a DistributedDataParallel."""
    return wrapper._comm_hooks


def replicates_otherwise(wrapper: Any) -> str:
    """What a DistributedDataParallel is set to that changes more than how gradients are averaged; empty for nothing."""
    settings = {
        "find_unused_parameters=True": wrapper.find_unused_parameters, "mixed_precision": wrapper.mixed_precision is not None,
        "delay_all_reduce_named_params": bool(getattr(wrapper, "_delay_all_reduce_params", None)),
        "parameters that it ignores": bool(wrapper.parameters_to_ignore),
        "a hook on buffers": hasattr(wrapper, "buffer_hook"),
        "a builtin communication hook": str(wrapper._get_ddp_logging_data().get("comm_hook")).startswith("BuiltinCommHookType"),
        "a Python reducer": bool(getattr(wrapper, "_use_python_reducer", False)),
    }  # fmt: skip
    return next((name for name, is_set in settings.items() if is_set), "")


def buckets_of(wrapper: Any, parameters: list[torch.Tensor]) -> list[list[int]]:
    """The buckets that a DistributedDataParallel would make of parameters whose gradients come in this order: places in it."""
    cap, default = wrapper.bucket_bytes_cap, getattr(wrapper, "bucket_bytes_cap_default", False)
    limits = list(getattr(wrapper, "bucket_bytes_cap_list", None) or [])
    if not limits:
        limits = [torch.distributed._DEFAULT_FIRST_BUCKET_BYTES, cap] if default else [cap]
    return torch.distributed._compute_bucket_assignment_by_size(parameters, limits)[0]


def syncs_buffers(wrapper: Any) -> bool:
    """Whether a DistributedDataParallel has buffers that it keeps equal on all ranks."""
    return wrapper.broadcast_buffers and len(wrapper.modules_buffers) > 0


def broadcast_buffers(wrapper: Any) -> None:
    """As a DistributedDataParallel does around a forward that reduces."""
    if wrapper._check_sync_bufs_pre_fwd():
        wrapper._sync_buffers()
    wrapper.require_forward_param_sync = True


def group_named(name: str) -> Any:
    """The group of this name in this process."""
    from torch.distributed import distributed_c10d

    return distributed_c10d._resolve_process_group(name)


def group_store(group: Any) -> Any:
    """By which the processes of a group met."""
    from torch.distributed import distributed_c10d

    return distributed_c10d._world.pg_map[group][1]


def group_timeout(group: Any) -> Any:
    """A timedelta."""
    return group._get_backend(torch.device(group._device_types[0])).options._timeout


def group_name(group: Any) -> str:
    """The same on all its processes."""
    from torch.distributed import distributed_c10d

    return distributed_c10d._world.pg_names[group]


def has_registered_effect(operator: Any) -> bool:
    """Whether the operator was registered as one that does something beside its results."""
    return isinstance(operator, OpOverload) and effects._get_effect(operator) is not None


def takes_objects(operator: Any) -> bool:
    """Whether an argument is an object of TorchScript's (a process group), which no graph can hold."""
    return any(isinstance(argument.type, torch.ClassType) for argument in operator._schema.arguments)


def _order_checks() -> None:
    """PyTorch before 2.13 takes the check by which `linalg.inv` and its like raise for an operation without effects: it drops
    it, and a singular matrix gives NaN where eager raises. Registered as PyTorch 2.13 does, it is kept."""
    check = torch.ops.aten._linalg_check_errors.default
    if effects._get_effect(check) is None:
        effects._register_effectful_op(check, effects._EffectType.ORDERED)


_order_checks()
