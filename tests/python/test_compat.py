"""What trainc relies on of PyTorch beyond its public interface (trainc/torch/compat.py), each by itself: another version that
changed one of these fails here, by its name, before a model is wrong."""

from __future__ import annotations

import dataclasses
import inspect
import threading

import pytest
import torch
from torch.autograd.function import FunctionCtx
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils import checkpoint

from trainc.torch import compat

# Functions in whose place trainc puts its own for a while (patches.patched), with the parameters that its own take
REPLACED = {
    (compat.runtime_wrappers, "_create_runtime_wrapper"): ["compiled_fn"],
    (compat.graph_compile, "_log_joint_graph"): None,
    (compat.graph_compile, "collect_bw_donated_buffer_idxs"): None,
    (compat.graph_capture, "create_joint"): ["fn", "primals_descs"],
    (compat.decompositions, "_rnn_helper"): None,
    (compat.proxy_tensor, "fetch_sym_proxy"): ["tracer"],
    (compat.proxy_tensor.PythonKeyTracer, "create_arg"): ["self", "a"],
    (compat.proxy_tensor.PythonKeyTracer, "create_node"): None,
    (compat.FunctionalTensorMode, "__torch_dispatch__"): ["self", "func", "types", "args", "kwargs"],
    (compat.ProxyTorchDispatchMode, "__torch_dispatch__"): ["self", "func", "types", "args", "kwargs"],
    (checkpoint, "_checkpoint_without_reentrant_generator"): ["fn", "preserve_rng_state"],
    (checkpoint, "CheckpointFunction"): None,
    (torch.compiler, "_is_compiling_flag"): None,
    (torch.nn.Module, "_call_impl"): ["self", "args", "kwargs"],
    (torch.Tensor, "backward"): ["self", "gradient", "retain_graph", "create_graph", "inputs"],
    (torch.autograd, "backward"): ["tensors", "grad_tensors", "retain_graph", "create_graph"],
    (FunctionCtx, "set_materialize_grads"): ["self", "value"],
}


@pytest.mark.parametrize(("owner", "name"), REPLACED, ids=lambda x: x if isinstance(x, str) else x.__name__)
def test_what_is_replaced_is_there(owner, name):
    assert name in vars(owner)
    wanted = REPLACED[owner, name]
    if wanted is not None:
        assert list(inspect.signature(vars(owner)[name]).parameters)[: len(wanted)] == wanted


def test_symbols_have_the_methods_that_answer_from_their_hints():
    for name in ("add", "mul", "eq", "lt"):
        assert callable(getattr(compat.SymNode, name))


def test_functional_tensors_wrap_and_sync():
    wrapped = compat.to_functional_tensor(torch.ones(3))
    view = wrapped[1:]
    view.add_(1)
    compat.sync_functional_tensor(wrapped)
    inner = compat.from_functional_tensor(wrapped)
    assert type(inner) is torch.Tensor and inner.shape == (3,)


def test_a_functional_tensor_is_told_from_its_fake():
    with compat.FakeTensorMode() as mode:
        fake = mode.from_tensor(torch.ones(2))
    assert type(fake) is compat.FakeTensor and fake.fake_mode is mode


def test_modes_are_off_within():
    with compat.FakeTensorMode(), compat.disable_current_modes():
        assert type(torch.ones(1)) is torch.Tensor


def test_keys_of_a_tensor_are_readable():
    assert compat.dispatch_keys(torch.ones(1)).raw_repr() != compat.dispatch_keys(torch.ones(1).neg_().to_sparse()).raw_repr()
    key = compat.DispatchKeySet(compat.DispatchKey.Functionalize)
    assert (compat.included_dispatch_keys() | key).has(compat.DispatchKey.Functionalize)


def test_reapplying_views_is_a_switch_that_tells_what_it_was():
    before = compat.reapply_views(True)
    assert compat.reapply_views(before) is True


def test_nothing_is_active_around_a_plain_call():
    assert compat.functorch_transform() is None
    assert compat.jit_tracing_state() is None
    assert compat.count_dispatch_modes() == 0
    assert not compat.caches_parametrizations()
    assert not compat.profiles_optimizers()
    assert not compat.has_global_module_hooks()


def test_transforms_and_modes_are_seen():
    seen = []
    torch.func.vmap(lambda x: seen.append(compat.functorch_transform()) or x)(torch.ones(2))
    assert seen[0] is not None
    with compat.FakeTensorMode():
        assert compat.count_dispatch_modes() == 1
    with torch.device("meta"):
        assert compat.count_function_modes() == 1
        assert [type(mode) for mode in compat.function_modes()] == [compat.DeviceContext]


def test_a_backward_tells_whether_its_graph_is_kept_and_what_it_will_run():
    kept, runs = [], []
    w = torch.ones(1, requires_grad=True)

    class Look(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, g):
            kept.append(compat.keeps_graph())
            runs.append(compat.will_execute(accumulates))
            return g * 2

    y = Look.apply(w)
    accumulates = y.grad_fn.next_functions[0][0]
    y.backward(retain_graph=True)
    y.backward()
    assert kept == [True, False] and runs == [True, True]


def test_memory_can_be_wrapped_and_its_holders_counted():
    block = torch.arange(4.0)
    storage = compat.storage_at(block.data_ptr(), block.device, 16)
    view = torch.empty(0).set_(storage, 0, (4,), (1,))
    assert torch.equal(view, block)
    alone = compat.storage_use_count(block.untyped_storage()._cdata)
    held = block[1:]
    assert compat.storage_use_count(block.untyped_storage()._cdata) > alone
    del held


def test_onednn_can_be_switched():
    before = compat.onednn_enabled()
    compat.set_onednn(not before)
    try:
        assert compat.onednn_enabled() is not before
    finally:
        compat.set_onednn(before)


def test_the_lock_of_traces_is_reentrant_and_excludes_other_threads():
    found = []
    with compat.compile_lock, compat.compile_lock:
        thread = threading.Thread(target=lambda: found.append(compat.compile_lock.acquire(blocking=False)))
        thread.start()
        thread.join()
    assert found == [False]


def test_tensors_types_are_compared_in_c():
    x = torch.ones(2, 3)
    guard = compat.tensor_guards.TensorGuards(x, dynamic_dims_sizes=[[None, None]], dynamic_dims_strides=[[None, None]])
    assert guard.check(torch.zeros(2, 3)) and not guard.check(torch.zeros(2, 3).double())


def test_a_joint_trace_describes_its_inputs_and_outputs():
    fields = {field.name for field in dataclasses.fields(compat.ViewAndMutationMeta)}
    assert {"input_info", "output_info", "num_intermediate_bases", "traced_tangents"} <= fields
    assert {"non_alias", "alias_of_input", "is_input"} <= {kind.name for kind in compat.OutputType}


def test_hooks_for_all_optimizers_are_dictionaries():
    handle = register_optimizer_step_post_hook(lambda *_: None)
    try:
        assert len(compat.optimizer_post_hooks) >= 1
    finally:
        handle.remove()


def test_inductors_switch_for_draws_is_there():
    assert isinstance(compat.inductor_config().fallback_random, bool)
