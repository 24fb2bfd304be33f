"""What trainc relies on of PyTorch beyond its public interface (trainc/torch/compat.py), each by itself: another version that
changed one of these fails here, by its name, before a model is wrong."""

from __future__ import annotations

import ast
import collections
import copy
import dataclasses
import functools
import inspect
import os
import random
import re
import sys
import threading
import warnings
from pathlib import Path

import numpy
import pytest
import torch
from modules import Asserted
from torch._functorch import partitioners as functorch
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils import checkpoint

from trainc.base import patches
from trainc.torch import compat

# What trainc's own takes in the place of each that it replaces for a while: the parameters, as far as it relies on them
REPLACED = {
    compat.COMPILING_FLAG: None,
    compat.STANCE: None,
    compat.EFFECT_TOKENS: None,
    compat.NODE_OF_CALL: None,
    compat.NODE_OF_ARGUMENT: ["self", "a"],
    compat.PROXY_OF_SIZE: ["tracer"],
    compat.FUNCTIONAL_DISPATCH: ["self", "func", "types", "args", "kwargs"],
    compat.PROXY_DISPATCH: ["self", "func", "types", "args", "kwargs"],
    compat.CHECKPOINT_GENERATOR: ["fn", "preserve_rng_state"],
    compat.CHECKPOINT_FUNCTION: None,
    compat.RECURRENT_LAYERS: None,
    compat.MODULE_CALL: ["self", "args", "kwargs"],
    compat.RUNTIME_WRAPPER: ["compiled_fn"],
    compat.JOINT_GRAPH_LOG: None,
    compat.AFFINE_GRID: None,
    compat.CAUSAL_MASK_LOOK: ["mask", "is_causal", "size"],
    compat.FAKE_RESULTS: None,
    compat.FAKE_RESULT_GOES: ["key"],
    compat.FAKE_MODE_MADE: ["self"],
    compat.FAKE_TENSOR_LOG: None,
    compat.REFERENCES_SEE: None,
    compat.DONATED_BUFFERS: None,
    compat.GENERATOR_KEPT: [],
    compat.JOINT_TRACE: ["fn", "primals_descs"],
    compat.MODULE_AS_FUNCTION: ["mod", "params_spec", "params_len"],
    compat.MATERIALIZED_GRADS: ["self", "value"],
    compat.TENSOR_HOOK: ["self", "hook"],
    compat.TENSOR_RETAINS: None,
    compat.OWN_BACKWARD: ["self", "args"],
    compat.TENSOR_BACKWARD: ["self", "gradient", "retain_graph", "create_graph", "inputs"],
    compat.DYNAMO_COPIES_GENERATOR: ["val"],
    compat.DYNAMO_INLINE: ["parent", "func"],
    compat.DYNAMO_TAKES_OUT: ["self"],
    compat.DYNAMO_GRAPH: ["self", "code_options", "compiler_fn", "root_tx"],
    compat.DYNAMO_FRAME: ["self", "frame", "cache_entry", "hooks", "frame_state"],
    compat.AUTOGRAD_BACKWARD: ["tensors", "grad_tensors", "retain_graph", "create_graph"],
}


@pytest.mark.parametrize("patch", REPLACED, ids=lambda patch: f"{patch.owner.__name__}.{patch.name}")
def test_what_is_replaced_is_there(patch):
    wanted = REPLACED[patch]
    if wanted is not None:
        assert list(inspect.signature(patch.original()).parameters)[: len(wanted)] == wanted
    owners = patch.owner.__mro__ if isinstance(patch.owner, type) else [patch.owner]
    assert any(patch.name in vars(owner) for owner in owners)


def test_every_name_is_asked_of_here():
    """A name that is new in compat.py is relied on in some way, and that way has a test."""
    tree = ast.parse(Path(compat.__file__).read_text())
    names = {alias.asname or alias.name for node in tree.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    names |= {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    names |= {target.id for node in tree.body if isinstance(node, ast.Assign) for target in node.targets}
    names -= {"Any", "Callable", "Container", "Iterator", "ModuleType", "NamedTuple", "annotations"}
    tests = Path(__file__).read_text()
    assert sorted(name for name in names if not re.search(rf"compat\.{name}\b", tests)) == []


def test_what_the_tracer_imports_is_there_before_a_program_runs():
    before = dict(os.environ)
    compat.import_beforehand()
    assert "torch._inductor.compiler_bisector" in sys.modules and before == dict(os.environ)


def test_what_a_trace_refuses_is_logged_there(monkeypatch):
    said = []
    monkeypatch.setattr(compat.fake_tensor.log, "exception", lambda *args: said.append(args))
    with pytest.raises(RuntimeError), compat.FakeTensorMode() as mode:
        mode.from_tensor(torch.ones(2, 3)) @ mode.from_tensor(torch.ones(4, 5))
    assert said


# ---- operators ---------------------------------------------------------------------------------------------------------


def test_operators_tell_what_they_take_and_give():
    add, view = torch.ops.aten.add_.Tensor, torch.ops.aten.view.default
    assert isinstance(add, compat.OpOverload) and isinstance(torch.ops.aten.add, compat.OpOverloadPacket)
    assert isinstance(torch.ops.aten, compat.OpNamespace) and isinstance(torch.ops, compat.Ops)
    assert isinstance(torch.ops.higher_order.cond, compat.HigherOrderOperator)
    assert compat.schema_of(add).is_mutable and not compat.schema_of(view).is_mutable
    assert compat.schema_of(view).returns[0].alias_info is not None and view.is_view
    assert [argument.name for argument in compat.schema_of(view).arguments] == ["self", "size"]
    assert compat.has_decomposition(torch.ops.aten.reshape.default) and not compat.has_decomposition(add)


def test_a_kernel_in_an_operators_table_is_run():
    operator, key = torch.ops.aten.one_hot.default, compat.DispatchKey.CompositeImplicitAutograd
    assert compat.run_kernel(operator, key, torch.tensor([1]), 3).tolist() == [[0, 1, 0]]
    before = dict(operator.py_kernels)
    operator.py_kernels[key] = lambda classes, count: classes + count
    compat.forget_kernels(operator)
    try:
        with compat.enable_python_dispatcher():
            assert operator(torch.tensor([1]), 3).item() == 4
    finally:
        operator.py_kernels.clear()
        operator.py_kernels.update(before)
        compat.forget_kernels(operator)


def test_fake_tensors_take_their_rules_from_the_table_of_decompositions():
    """Those of operations that are written out there; and they remember what a rule gave."""
    operator = torch.ops.aten.mse_loss_backward.default
    rule = compat.decomposition_table[operator]

    def result():
        with compat.FakeTensorMode() as mode:
            given = mode.from_tensor(torch.rand(3, 4))
            return operator(given, given, given, 1).shape

    assert result() == (3, 4)
    compat.decomposition_table[operator] = lambda gradient, x, y, reduction: rule(gradient, x, y, reduction).sum(1)
    try:
        assert result() == (3, 4)
        with patches.patched(*compat.FAKE_RESULTS, {}):
            assert result() == (3,)
    finally:
        compat.decomposition_table[operator] = rule
    assert result() == (3, 4)


def test_fake_tensors_forget_what_they_stand_for():
    tensor, mode = torch.ones(3), compat.FakeTensorMode()
    fake = mode.from_tensor(tensor)
    with pytest.raises(RuntimeError, match="weakref"):
        torch.utils.swap_tensors(tensor, torch.zeros(3))
    compat.forget_tensors(mode)
    torch.utils.swap_tensors(tensor, torch.zeros(3))
    assert tensor[0] == 0 and (fake + 1).shape == (3,)


def test_references_convert_operands_to_what_their_wrapper_is_told():
    class Told:
        def __getattr__(self, name):
            return getattr(utils, name)

        @staticmethod
        def elementwise_dtypes(*operands, type_promotion_kind):
            asked.append(utils.elementwise_dtypes(*operands, type_promotion_kind=type_promotion_kind))
            _, common = utils.elementwise_dtypes(*operands, type_promotion_kind=compat.PROMOTED)
            return common, common

    asked, utils = [], compat.REFERENCES_SEE.original()
    assert vars(compat.reference_wrappers)["utils"] is utils
    expanded, other = torch.ones(1, 3, dtype=torch.bfloat16).expand(2, 3), torch.ones(3, 2, dtype=torch.bfloat16).t()
    with patches.patched(*compat.REFERENCES_SEE, Told()):
        assert torch._refs.maximum(expanded, other).stride() == (1, 2)
    assert asked == [(torch.float32, torch.bfloat16)]


def test_fake_tensors_ask_a_table_where_convolutions_lie():
    def rule(*args, **kwargs):
        asked.append(args[1])
        return rules(*args, **kwargs)

    convolution, asked = torch.ops.aten.convolution.default, []
    rules = compat.fake_rules[convolution]
    with patches.replaced(compat.fake_rules, convolution, rule), compat.FakeTensorMode() as mode:
        x, weight = mode.from_tensor(torch.ones(1, 2, 5, 3)), mode.from_tensor(torch.ones(4, 2, 2, 2))
        torch.conv2d(x, weight)
    assert asked == [convolution]


def test_dynamo_checkpoints_a_function_of_its_own():
    def kept(function, preserve_rng_state, *args, **kwargs):
        seen.append((function.__module__, preserve_rng_state))
        yield

    seen = []
    graph = torch.fx.symbolic_trace(torch.nn.ReLU())
    with patches.patched(*compat.CHECKPOINT_GENERATOR, kept):
        compat.DYNAMO_CHECKPOINT(graph, torch.ones(2), use_reentrant=False)
    assert seen == [(compat.DYNAMO_CHECKPOINT.__module__, False)]


# ---- traces ------------------------------------------------------------------------------------------------------------


def test_a_trace_is_seen_from_within():
    def program(x):
        mode = compat.get_proxy_mode()
        assert compat.dispatch_mode(compat.DispatchModeKey.PROXY) is mode
        with compat.set_original_aten_op(torch.ops.aten.add.Tensor):
            y = x + 1
        last.append(compat.last_node(mode.tracer.graph))
        names.append(compat.name_of_target(mode.tracer.graph, "add"))
        assert isinstance(compat.proxy_tensor.get_proxy_mode(), compat.ProxyTorchDispatchMode)
        with compat.DisableTorchDispatch():
            assert type(torch.ones(1)) is torch.Tensor
        return y

    last, names = [], []
    with compat.use_lazy_graph_module(True):
        graph = compat.make_fx(program)(torch.ones(2)).graph
    assert last[0].target is torch.ops.aten.add.Tensor and last[0].graph is graph and names == ["add"]
    assert compat.dispatch_mode(compat.DispatchModeKey.FAKE) is None

    class Counting(compat.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            names.append(func)
            return func(*args, **(kwargs or {}))

    with Counting():
        torch.ones(1)
    assert names[-1] is torch.ops.aten.ones.default
    assert {"proxy", "constant"} <= {field.name for field in dataclasses.fields(compat.ProxyTensor)}


def test_functionalization_wraps_and_unwraps():
    def program(x):
        with compat.FunctionalTensorMode():
            wrapped = compat.to_fun(x)
            assert type(wrapped) is compat.FunctionalTensor
            assert vars(wrapped).keys() <= compat.FUNCTIONAL_TENSOR_ATTRIBUTES
            view, other = wrapped[:1], wrapped + 1
            assert compat.storage_id(view) == compat.storage_id(wrapped) != compat.storage_id(other)
            for kind, owner in {"parameter": torch.nn.Parameter, "buffer": torch.nn.Buffer}.items():
                assert not isinstance(wrapped, owner)
                compat.mark_as(wrapped, kind)
                assert isinstance(wrapped, owner)
            assert compat.is_marked_parameter(wrapped) and not compat.is_marked_parameter(view)
            assert vars(wrapped)[compat.PARAMETER_MARK] and compat.PARAMETER_MARK not in vars(view)
            return compat.from_fun(other)

    with compat.FakeTensorMode() as mode, compat.enable_python_dispatcher():
        graph = compat.make_fx(program)(mode.from_tensor(torch.ones(2))).graph
    assert torch.ops.aten.add.Tensor in {node.target for node in graph.nodes}
    before = compat.reapply_views(True)
    compat.disable_functionalization()
    compat.reapply_views(before)


def test_a_wrapper_is_made_as_functional_tensors_are():
    elem = torch.ones(2, 3)
    keys = compat.EXTRA_KEYS & compat.dispatch_keys(elem)
    out = compat.make_wrapper_subclass(
        compat.FunctionalTensor, elem.shape, elem.stride(), 0, None, elem.dtype, elem.layout, elem.device, False, False, None,
        False, False, keys,
    )  # fmt: skip
    assert out.shape == elem.shape and type(out) is compat.FunctionalTensor
    compat.throw_on_mutable_data_ptr(out)
    with pytest.raises(RuntimeError):
        out.data_ptr()


def test_keys_can_be_forced():
    include = compat.included_dispatch_keys() | compat.DispatchKeySet(compat.DispatchKey.Functionalize)
    with compat.ForceDispatchKeyGuard(include, compat.excluded_dispatch_keys()):
        assert compat.included_dispatch_keys().has(compat.DispatchKey.Functionalize)
    assert not compat.included_dispatch_keys().has(compat.DispatchKey.Functionalize)


def test_what_is_mapped_over_a_batch_may_draw_outside_of_that():
    class Draws(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            with compat.outside_vmap():
                return gradient * torch.ones(3).bernoulli_(1.0)

    x = torch.ones(3, requires_grad=True)
    (found,) = torch.autograd.grad(Draws.apply(x), x, torch.eye(3), is_grads_batched=True)
    assert torch.equal(found, torch.eye(3))


def test_a_view_is_taken_for_one_of_what_it_was_made_of():
    x, view = torch.ones(4), torch.ones(2)
    given = compat.return_and_correct_aliasing(torch.ops.aten.slice.Tensor, (x, 0, 0, 2), {}, view)
    assert compat.storage_id(given) == compat.storage_id(x)


def test_autocast_and_subclasses_can_be_left_out():
    with torch.autocast("cpu", torch.bfloat16), compat.DisableAutocast():
        assert torch.mm(torch.ones(1, 1), torch.ones(1, 1)).dtype == torch.float32

    class Own(torch.Tensor):
        pass

    with compat.DisableTorchFunctionSubclass():
        assert type(torch.ones(1).as_subclass(Own) + 1) is torch.Tensor
    assert not compat.function_modes_enabled() or compat.count_function_modes() == 0
    assert callable(compat.no_torch_function)
    with torch.device("meta"):
        assert compat.default_device() == "cpu" and compat.function_modes_enabled()


# ---- sizes -------------------------------------------------------------------------------------------------------------


def test_sizes_are_symbols_whose_expressions_can_be_computed():
    env = compat.ShapeEnv(duck_shape=False)
    mode = compat.FakeTensorMode(shape_env=env)
    context = compat.StatelessSymbolicContext(dynamic_sizes=[compat.DimDynamic.DYNAMIC, compat.DimDynamic.STATIC])
    fake = mode.from_tensor(torch.ones(4, 3), symbolic_context=context, source=compat.ConstantSource("argument_0"))
    twice = fake.shape[0] * 2 + 1
    expression = compat.expression_of(twice.node)
    (symbol,) = expression.free_symbols
    assert compat.sympy_interp(compat.PythonReferenceAnalysis, {symbol: 5}, expression) == 11
    assert fake.shape[1] == 3 and type(fake.shape[1]) is int
    assert "add" in compat.sym_node.METHOD_TO_OPERATOR and "is_contiguous" in compat.sym_node.sizes_strides_methods


# ---- AOTAutograd and Dynamo --------------------------------------------------------------------------------------------


def test_aot_autograd_is_entered_as_torch_compile_enters_it():
    wanted = {"mod", "args", "fw_compiler", "bw_compiler", "partition_fn", "decompositions", "keep_inference_input_mutations"}
    assert wanted <= set(inspect.signature(compat.aot_module_simplified).parameters)
    assert hasattr(compat.functorch_config, "donated_buffer") and hasattr(compat.runtime_wrappers, "AOTDispatchAutograd")
    assert hasattr(compat.graph_compile, "aot_joint_log") and hasattr(compat.trace_log, "handlers")
    assert hasattr(compat.graph_capture, "create_joint") and hasattr(compat.decompositions, "lstm_impl")
    assert compat.TracingContext.try_get() is None
    assert {"unwrapped_idx"} <= {field.name for field in dataclasses.fields(compat.PlainTensorMeta)}
    assert {"NOT_MUTATED", "MUTATED_IN_GRAPH", "MUTATED_OUT_GRAPH"} <= {kind.name for kind in compat.MutationType}
    assert compat.boxed(lambda arguments: None)._boxed_call


def test_a_write_may_raise_no_version():
    statistics = torch.zeros(2)
    with compat.preserve_version_counter((statistics,)):
        statistics.add_(1)
    assert statistics._version == 0
    torch.nn.functional.batch_norm(torch.ones(3, 2), statistics, torch.ones(2), training=True)
    assert statistics._version == 0, "eager's kernel raises one"


def test_outputs_say_whether_they_have_a_tangent():
    seen = []

    def compiler(gm, _):
        return compat.boxed(lambda arguments: list(gm(*arguments)))

    def partition(joint, *_, **about):
        seen.append(len(list(joint.graph.find_nodes(op="placeholder"))))
        return functorch.default_partition(joint, *_, **about)

    class Layer(torch.nn.Linear):
        def forward(self, x):
            return (super().forward(x),)

    module = Layer(2, 2)
    compat.aot_module_simplified(module, (torch.ones(1, 2),), compiler, compiler, partition_fn=partition)(torch.ones(1, 2))
    assert seen

    class Output:
        requires_grad, requires_grad_for_backward = True, False

    class Older:
        requires_grad = True

    assert not compat.wants_gradient(Output) and compat.wants_gradient(Older)

    class Metadata:
        act_input_indices = [1]

    assert compat.saved_inputs(Metadata) == [1] and compat.saved_inputs(Older) == []


def test_views_that_a_result_is_made_again_by():
    """Where a result says by which views it is made again of another one, that can be another list of views."""
    told = []

    class Views(torch.nn.Module):
        def forward(self, x):
            v = (x * 2)[:, :2].t()
            return v, v.detach(), v[0]

    def noted(call, *, runtime_metadata, **about):
        told.extend(runtime_metadata.output_info)
        return original(call, runtime_metadata=runtime_metadata, **about)

    original = compat.RUNTIME_WRAPPER.original()
    with patches.patched(*compat.RUNTIME_WRAPPER, noted):
        compat.aot_module_simplified(
            Views(), [torch.rand(2, 3, requires_grad=True)], lambda gm, _: compat.boxed(lambda args: gm(*args))
        )
    sequences = [info.view_meta_sequence for info in told if info.output_type in compat.VIEWS_OF_RESULTS]
    assert len(sequences) == 3 and all(each.sequence and not compat.no_views(each).sequence for each in sequences)
    assert compat.no_views(None) is None
    assert compat.is_made_by_strides(None) and not any(map(compat.is_made_by_strides, sequences))


def test_dynamo_is_kept_out_and_has_errors_of_its_own():
    assert compat.dynamo_disable(lambda: 3, reason="a test")() == 3


def test_a_stance_of_dynamos_leaves_programs_as_they_are():
    compiled = torch.compile(lambda x: x + 1, backend=lambda *_: pytest.fail("compiled"))
    with patches.patched(*compat.STANCE, compat.DynamoStance("force_eager")):
        assert compiled(torch.ones(())) == 2
    assert compat.eval_frame._stance.stance == "default"
    seen = []
    torch.compile(lambda: seen.append(compat.dynamo_callback()), backend="eager")()
    assert seen == [None] or callable(seen[0]), seen
    assert compat.dynamo_callback() is None
    assert issubclass(compat.TorchDynamoException, Exception) and issubclass(compat.RestartAnalysis, Exception)
    module = torch.nn.Linear(1, 1)
    assert compat.dynamo_original(torch.compile(module)) is module and compat.dynamo_original(module) is None


def test_lines_of_the_forward_reach_the_backward():
    compat.setup_stacktrace_preservation_hooks([(torch.ones(1, requires_grad=True) * 2).grad_fn])


def test_what_is_no_plain_tensor_is_seen():
    assert not compat.is_legacy_batchedtensor(torch.ones(1)) and not compat.is_traceable_wrapper_subclass(torch.ones(1))
    assert compat.is_non_overlapping_and_dense_or_false(torch.ones(2, 3).t())
    assert not compat.is_non_overlapping_and_dense_or_false(torch.ones(4, 4)[:, ::2])


# ---- modules, tensors, optimizers ----------------------------------------------------------------------------------------


def test_a_modules_call_can_be_replaced():
    class Layer(torch.nn.Module):
        def forward(self, x):
            return x + 1

    module = Layer()
    module.register_forward_hook(lambda *_: None)
    assert module.__dict__.keys() - {"training"} <= compat.MODULE_ATTRIBUTES
    assert module.__dict__.keys() >= compat.MODULE_TABLES
    hooks = {*compat.FORWARD_HOOKS, *compat.FORWARD_HOOKS.values(), *compat.BACKWARD_HOOKS, compat.HOOKS_AFTER_ERRORS}
    assert hooks <= compat.MODULE_ATTRIBUTES and compat.COMPILED_CALL in compat.MODULE_ATTRIBUTES
    assert compat.compiled_call(module) is None
    compat.set_compiled_call(module, lambda x: "compiled")
    assert compat._MODULE_CALL.co_name == "_wrapped_call_impl"
    assert module(torch.ones(1)) == "compiled" and vars(module)[compat.COMPILED_CALL] is compat.compiled_call(module)
    assert compat.uncompiled_call(module)(torch.ones(1)).item() == 2
    plain = Layer()
    compat.set_compiled_call(plain, functools.partial(print))  # an object, which torch.jit.script would refuse as an attribute
    assert torch.jit.script(plain)(torch.ones(1)).item() == 2 and compat.COMPILED_CALL in compat.SCRIPT_IGNORES
    assert compat.compiled_call(copy.deepcopy(module)) is None
    assert compat.checkpointing.checkpoint is checkpoint.checkpoint


def test_hooks_of_tensors_are_seen():
    leaf, other = torch.ones(1, requires_grad=True), torch.ones(1, requires_grad=True)
    assert not compat.has_gradient_hooks(leaf) and not compat.has_accumulation_hooks(leaf)
    leaf.register_hook(lambda g: g)
    other.register_post_accumulate_grad_hook(lambda p: None)
    assert compat.has_gradient_hooks(leaf) and not compat.has_accumulation_hooks(leaf)
    assert compat.has_accumulation_hooks(other) and not compat.has_gradient_hooks(other)
    assert len(compat.hooks_of(leaf)) == len(compat.hooks_of(other)) == 1 and compat.hooks_of(torch.ones(1)) == []
    assert compat.is_view(leaf.view(1, 1)) and not compat.is_view(leaf) and compat.base_of(leaf.view(1, 1)) is leaf
    assert compat.has_no_memory(torch._efficientzerotensor(2)) and not compat.has_no_memory(torch.zeros(2))


def test_optimizers_hooks_states_and_schedulers():
    p = torch.ones(2, requires_grad=True)
    optimizer = torch.optim.Adam([p])
    assert not compat.has_step_hooks(optimizer) and not compat.optimizer_pre_hooks
    handle = optimizer.register_step_pre_hook(lambda *_: None)
    assert compat.has_step_hooks(optimizer)
    handle.remove()
    p.grad = torch.ones(2)
    fill = compat.init_group(type(optimizer))
    lists = [[] for _ in range(len(inspect.signature(fill).parameters) - 2)]
    fill(optimizer, optimizer.param_groups[0], *lists)
    assert lists[0] == [p] and lists[1][0] is p.grad and "exp_avg" in optimizer.state[p]
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)

    def step(*_):
        pass

    compat.follow_scheduler(step, optimizer.step)
    optimizer.step = step
    compat.mark_stepped(optimizer)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        scheduler.step()  # it does not find that the optimizer's step was replaced, or left out
    fused, foreach = compat.default_to_fused_or_foreach([p], False, use_fused=False)
    assert fused is False and isinstance(foreach, bool)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_sums_of_bags_say_not_which_bag_an_index_is_in(dtype):
    for bags in compat.EMBEDDING_BAGS:
        assert bags(torch.ones(4, 3, dtype=dtype), torch.tensor([0, 1, 2]), torch.tensor([0, 2]))[1].numel() == 0


def test_checks_of_matrices_are_kept():
    check, add = torch.ops.aten._linalg_check_errors.default, torch.ops.aten.add.Tensor
    compat._order_checks()  # once more changes nothing
    assert compat.has_registered_effect(check) and not compat.has_registered_effect(add)
    assert compat.effects._get_effect(check) is not None and not compat.takes_objects(check)


def test_an_operation_with_an_effect_has_no_token_where_it_asks_for_none():
    from torch._functorch.aot_autograd import aot_export_module

    class Inverse(torch.nn.Module):
        def forward(self, x):
            return (torch.linalg.inv(x),)

    with patches.patched(*compat.EFFECT_TOKENS, lambda *_: False):
        graph = aot_export_module(Inverse(), [torch.eye(2)], trace_joint=False)[0].graph
    assert any(node.target is torch.ops.aten._linalg_check_errors.default for node in graph.nodes)


def test_objects_are_known_among_an_operators_arguments():
    if torch.distributed.is_available():
        assert compat.takes_objects(torch.ops.c10d.allreduce_.default)


def test_containers_are_known_by_their_type():
    assert compat.node_type((1, 2)) is tuple and tuple in compat.pytree.SUPPORTED_NODES
    children, context = compat.pytree.SUPPORTED_NODES[dict].flatten_fn({"a": 1})
    assert children == [1] and context == ["a"]


def test_errors_of_values_say_so():
    def program(x):
        return x * x.sum().item()

    with pytest.raises(Exception) as error, compat.FakeTensorMode() as mode:
        program(mode.from_tensor(torch.ones(2)))
    text = f"{type(error.value).__name__} {error.value}"
    assert any(reason in text for reason in compat.REASONS_OF_DATA)


def test_a_tensor_of_a_list_of_tensors_says_so_too():
    with pytest.raises(RuntimeError) as error, compat.FakeTensorMode() as mode:
        torch.tensor([mode.from_tensor(torch.ones(()))])
    assert any(reason in str(error.value) for reason in compat.REASONS_OF_DATA)


def test_a_fake_says_that_it_meets_a_real_tensor():
    real = torch.ones(2)
    with pytest.raises(Exception, match=compat.REASON_OF_REAL_TENSORS), compat.FakeTensorMode() as mode:
        mode.from_tensor(real) + real


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
    before = compat.writes_of_functional(wrapped)
    view.mul_(2)  # counts for all that share the memory
    assert compat.writes_of_functional(wrapped) > before
    with compat.FunctionalTensorMode():
        assert compat.count_writes(compat.to_fun(torch.ones(3))) == 0


def test_a_functional_tensor_tells_its_views():
    found = []

    def program(x):
        for view in (x * 1, (x * 1).expand(2, 3)[0], (x * 1).unfold(0, 1, 2), (x * 1).as_strided([1], [1])):
            found.append((compat.views_of(view), compat.is_whole(view)))
        return (x * 2,)

    compat.aot_module_simplified(_Module(program), [torch.ones(3)], fw_compiler=lambda module, _: module)
    assert found[-4:] == [(set(), True), ({"expand", "select_int"}, False), ({"unfold"}, False), ({"as_strided"}, False)]
    assert not compat.is_whole(torch.ones(3))


class _Module(torch.nn.Module):
    def __init__(self, program):
        super().__init__()
        self.forward = program


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


def test_which_dictionaries_have_a_modules_hooks():
    module = torch.nn.Linear(2, 2)
    module.register_forward_pre_hook(lambda *_: None, with_kwargs=True)
    module.register_forward_hook(lambda *_: None, with_kwargs=True, always_call=True)
    module.register_full_backward_hook(lambda *_: None)
    module.register_full_backward_pre_hook(lambda *_: None)
    for hooks, flags in compat.FORWARD_HOOKS.items():
        assert len(vars(module)[hooks]) == 1 and vars(module)[hooks].keys() == vars(module)[flags].keys()
    assert all(len(vars(module)[hooks]) == 1 for hooks in compat.BACKWARD_HOOKS)
    assert vars(module)[compat.HOOKS_AFTER_ERRORS].keys() == vars(module)["_forward_hooks"].keys()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("register", ["register_backward_hook", "register_full_backward_hook", "register_full_backward_pre_hook"])
def test_a_call_makes_something_of_backward_hooks(register, monkeypatch):
    made = []
    for kind in (compat.WrappedHook, torch.utils.hooks.BackwardHook):
        before = kind.__init__
        monkeypatch.setattr(kind, "__init__", lambda self, *args, before=before: made.append(1) or before(self, *args))
    module = torch.nn.Linear(2, 2)
    getattr(module, register)(lambda *_: None)
    module(torch.ones(1, 2))
    assert made


def test_dynamo_sees_a_first_hook_where_it_is_told_to():
    class Outer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = torch.nn.Linear(2, 2)

        def forward(self, x):
            return self.inner(x)

    outer, x = Outer(), torch.ones(1, 2)
    compiled = torch.compile(outer.forward, backend="eager")
    with compat.dynamo_as_python():
        without = compiled(x)
        outer.inner.register_forward_hook(lambda _module, _args, result: result * 2)
        assert torch.equal(compiled(x), without * 2)


def test_dynamo_leaves_an_assert_to_python_where_it_is_told_to():
    compiled = torch.compile(Asserted().forward, backend="eager")
    with compat.dynamo_as_python():
        assert compiled(torch.ones(2, 4)).isfinite().all()
        with pytest.raises(AssertionError, match="not finite"):
            compiled(torch.full((2, 4), float("nan")))


def test_dynamo_leaves_random_numbers_to_python_where_it_is_told_to(monkeypatch):
    """NumPy's by a switch; of a copy of a random.Random it draws only where it takes the generator for one that it knows."""
    own = random.Random(3)

    def draw(x):
        return x * own.random() * numpy.random.rand()

    assert compat.RandomVariable.is_supported_random_obj(own)
    monkeypatch.setattr(*compat.DYNAMO_COPIES_GENERATOR, staticmethod(lambda _: False))
    numpy.random.seed(4)
    expected = [draw(torch.ones(2)) for _ in range(3)]
    own.seed(3), numpy.random.seed(4)
    compiled = torch.compile(draw, backend="eager")
    with compat.dynamo_as_python():
        for each in expected:
            torch.testing.assert_close(compiled(torch.ones(2)), each)


def test_dynamo_takes_a_list_of_a_programs_own_class_where_it_is_told_to():
    class Axes(list):
        pass

    class Mean(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.axes = Axes([0, 2])

        def forward(self, x):
            return x.mean(dim=self.axes)

    compat.dynamo_takes_lists()
    mean, x = Mean(), torch.rand(2, 3, 4)
    compiled = torch.compile(mean, backend="eager", fullgraph=True)
    assert torch.equal(compiled(x), x.mean((0, 2)))
    mean.axes[1] = 1
    assert torch.equal(compiled(x), x.mean((0, 1)))


def test_dynamo_tells_which_functions_it_traces(monkeypatch):
    """Those that a function calls, with their globals."""
    told, inline = [], compat.InliningInstructionTranslator.build_inline_tracer
    assert inline is getattr(*compat.DYNAMO_INLINE)

    def inlined(parent, func, *args, **kwargs):
        told.append((func.get_code(), func.get_globals()))
        return inline(parent, func, *args, **kwargs)

    monkeypatch.setattr(*compat.DYNAMO_INLINE, staticmethod(inlined))

    def inner(x):
        return (lambda y: y + 1)(x)

    torch.compile(lambda x: inner(x) * 2, backend="eager")(torch.ones(2))
    assert inner.__code__ in [code for code, _ in told] and all(variables is globals() for _, variables in told)
    assert "<lambda>" in [code.co_name for code, _ in told]


def test_a_guard_of_ours_is_asked_after_dynamos(monkeypatch):
    """It is given the frame's variables; where it fails, the frame is traced again."""
    asked, fails, init, compilers = [], [], compat.OutputGraph.__init__, []

    def backend(graph, _inputs):
        return graph

    def within(compiler):
        return compiler if compiler in (None, backend) else within(compat.compiler_within(compiler))

    def holds(code, x):
        asked.append((code.co_name, x))
        return not (fails and fails.pop())

    def with_guard(graph, *args, **kwargs):
        init(graph, *args, **kwargs)
        compilers.append(within(graph.compiler_fn))

        def create(builder, _guard):
            code = graph.tracing_context.traced_code[0]
            assert builder.scope["G"] is globals() and "x" in builder.scope["L"]
            compat.add_guard(builder, lambda variables: holds(code, variables["x"]), ["a test's"])

        graph.guards.add(compat.GlobalStateSource().make_guard(create))

    monkeypatch.setattr(*compat.DYNAMO_GRAPH, with_guard)
    compiled, counted = torch.compile(lambda x: x + 1, backend=backend), torch._dynamo.utils.counters
    counted.clear()
    x = torch.ones(2)
    for change in (False, False, True, False):
        fails += [True] * change
        assert compiled(x).tolist() == [2, 2]
    assert compilers == [backend, backend]
    assert counted["stats"]["unique_graphs"] == 2 and asked[-1][0] == "<lambda>" and asked[-1][1] is x
    assert not compat.dynamo_saves_guards()
    with torch._dynamo.config.patch(caching_precompile=True):
        assert compat.dynamo_saves_guards()


def test_a_functions_nodes_have_a_class_of_their_own():
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

    node = Double.apply(torch.ones(1, requires_grad=True)).grad_fn
    assert type(node) is compat.node_of(Double)
    compat.node_of(Double).register_hook = lambda self, hook: "ours"
    assert node.register_hook(None) == "ours"


def test_a_frame_that_dynamo_is_told_to_leave_runs_in_python(monkeypatch):
    """Its errors come through ConvertFrame, with the frame; what it calls is looked at all the same."""
    told, seen = [], []
    convert = compat.DYNAMO_FRAME.original()

    def converted(self, frame, *args, **kwargs):
        try:
            return convert(self, frame, *args, **kwargs)
        except compat.TorchDynamoException as error:
            told.append((frame.f_code.co_name, type(error)))
            return compat.leave_frame()

    monkeypatch.setattr(*compat.DYNAMO_FRAME, converted)

    def inner(x):
        return x + 1

    def outer(x):
        return inner(x)[tuple(torch.tensor([0, 1])),]

    def refuses(graph, _inputs):
        seen.append(graph)
        raise ValueError("a backend's")

    assert torch.compile(outer, backend=lambda graph, _: seen.append(graph) or graph.forward)(torch.ones(2)).tolist() == [2, 2]
    assert [name for name, _ in told] == ["outer"] and len(seen) == 1
    torch._dynamo.reset()
    assert torch.compile(inner, backend=refuses)(torch.ones(2)).tolist() == [2, 2] and len(seen) == 2
    assert told[-1] == ("inner", compat.BackendCompilerFailed) and issubclass(compat.ConvertFrame, object)
    assert isinstance(compat.leave_frame(), compat.ConvertFrameReturn)


def test_reapplying_views_is_a_switch_that_tells_what_it_was():
    before = compat.reapply_views(True)
    assert compat.reapply_views(before) is True


def test_nothing_is_active_around_a_plain_call():
    assert compat.functorch_transform() is None
    assert compat.jit_tracing_state() is None
    assert compat.count_dispatch_modes() == 0
    assert not compat.caches_parametrizations()
    assert not compat.is_profiled()
    assert not compat.has_global_module_hooks()
    assert not compat.differentiates_forward()
    assert compat.saved_tensors_hooks(True) is None


def test_transforms_and_modes_are_seen():
    seen = []
    torch.func.vmap(lambda x: seen.append(compat.functorch_transform()) or x)(torch.ones(2))
    assert seen[0] is not None
    with compat.forward_ad.dual_level():
        assert compat.differentiates_forward()
    with torch.autograd.graph.saved_tensors_hooks(abs, abs), torch.autograd.graph.saved_tensors_hooks(len, max):
        assert compat.saved_tensors_hooks(True) == (len, max)  # those of the innermost
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
    alone, uses = compat.holders_of_memory(block), compat.storage_use_count(block.untyped_storage()._cdata)
    held = block[1:]
    assert compat.holders_of_memory(block) > alone
    assert compat.storage_use_count(block.untyped_storage()._cdata) > uses
    del held
    held = block.untyped_storage()  # a second name of one object in Python
    assert compat.holders_of_memory(block) > alone
    del held
    assert compat.holders_of_memory(block) == alone


def test_onednn_can_be_switched():
    before = compat.onednn_is_on()
    try:
        for users in (True, False):
            compat.set_onednn(users)
            assert compat.onednn_is_on() is compat.onednn_enabled() is users
            with compat.without_onednn(), compat.without_onednn():
                assert not compat.onednn_is_on() and compat.onednn_enabled() is users
                with compat.users_onednn():
                    assert compat.onednn_is_on() is users
                assert not compat.onednn_is_on()
            assert compat.onednn_is_on() is users
    finally:
        compat.set_onednn(before)
    assert not compat.onednn_deterministic()


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


def test_a_span_is_there_where_a_profiler_is():
    with compat.span("outside"):
        pass
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler, compat.span("inside"):
        torch.ones(1)
    assert "trainc: inside" in [event.key for event in profiler.key_averages()]


def test_a_bound_of_clamp_that_is_nan():
    x, nan = torch.tensor([1.0, -2.0]), float("nan")
    assert torch.clamp(x, min=nan).equal(x) == torch.clamp(x, max=nan).equal(x) == compat.CLAMP_SKIPS_NAN
    bound = torch.tensor(nan)
    for always in (torch.clamp(x, nan, 3.0), torch.clamp(x, 0.0, nan), torch.clamp_min(x, nan), torch.clamp(x, bound)):
        assert always.isnan().all()


@pytest.fixture
def group():
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    yield torch.distributed.group.WORLD
    torch.distributed.destroy_process_group()


def test_a_collective_in_a_step_is_told_in_words(group):
    """compat.REASON_OF_COLLECTIVES is what PyTorch's trace says of one."""
    import trainc

    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters())

    def body(x):
        model(x).sum().backward()
        torch.distributed.all_reduce(model.weight.grad)
        optimizer.step()
        optimizer.zero_grad()

    with pytest.raises(trainc.UserError, match=r"test_compat.py:\d+: processes talk to each other here"):
        trainc.train_step(body)(torch.ones(3, 2))
    assert model.weight.grad is None


def test_a_wrapper_for_several_processes_and_its_group(group):
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

    kind, seen = torch.nn.parallel.DistributedDataParallel, []

    class Asking(torch.nn.Linear):
        def forward(self, x):
            seen.append(compat.active_wrapper(kind))
            return super().forward(x)

    wrapper = kind(Asking(2, 2))
    wrapper(torch.ones(1, 2))
    assert seen == [wrapper] and compat.active_wrapper(kind) is None
    assert not compat.is_joinable_now(wrapper)
    with wrapper.join():
        assert compat.is_joinable_now(wrapper)
    assert compat.reduces_alone(wrapper)
    wrapper.register_comm_hook(None, allreduce_hook)
    assert compat.reduces_alone(wrapper)
    other = kind(Asking(2, 2))
    other.register_comm_hook(None, lambda state, bucket: allreduce_hook(state, bucket))
    assert not compat.reduces_alone(other)
    assert wrapper.bucket_bytes_cap == 25 << 20
    assert compat.communication_hooks(wrapper) == [(allreduce_hook, None)] and not compat.replicates_otherwise(wrapper)
    assert compat.replicates_otherwise(kind(Asking(2, 2), find_unused_parameters=True)) == "find_unused_parameters=True"
    builtin = kind(Asking(2, 2))
    builtin._register_builtin_comm_hook(torch.distributed.BuiltinCommHookType.ALLREDUCE)
    assert "builtin" in compat.replicates_otherwise(builtin)


def test_the_buckets_of_a_replicated_model(group):
    wrapper = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64), bucket_cap_mb=0.001)
    weight, bias = wrapper.module.parameters()
    assert compat.buckets_of(wrapper, [bias, weight]) == [[0, 1]]
    assert compat.buckets_of(wrapper, [weight, bias]) == [[0], [1]]
    default = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
    large = [torch.empty(1 << 18), torch.empty(1 << 18), torch.empty(1 << 18)]  # 1 MB, DDP's first bucket
    assert compat.buckets_of(default, large) == [[0], [1, 2]]


def test_the_buffers_of_a_replicated_model(group):
    kind = torch.nn.parallel.DistributedDataParallel
    wrapper = kind(torch.nn.BatchNorm1d(2))
    assert compat.syncs_buffers(wrapper) and not compat.syncs_buffers(kind(torch.nn.Linear(2, 2)))
    assert not compat.syncs_buffers(kind(torch.nn.BatchNorm1d(2), broadcast_buffers=False))
    synced = []
    wrapper._sync_buffers = lambda: synced.append(True)
    with torch.no_grad():
        wrapper(torch.ones(3, 2))  # after it DDP itself broadcasts nothing before the next
    compat.broadcast_buffers(wrapper)
    compat.broadcast_buffers(wrapper)
    assert synced == [True, True]  # in that call, and in the second


def test_where_the_processes_of_a_group_meet(group):
    compat.group_store(group).set("key", "value")
    assert compat.group_store(group).get("key") == b"value"
    assert compat.group_named(compat.group_name(group)) is group
    assert compat.group_timeout(group).total_seconds() > 0


def test_the_class_of_a_sharded_module(group):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    sharded = fully_shard(torch.nn.Linear(2, 2), mesh=init_device_mesh("cpu", (1,)))
    assert type(sharded) is not torch.nn.Linear and compat.unsharded_class(type(sharded)) is torch.nn.Linear


def test_a_table_of_hooks_that_is_there_is_filled_and_autograd_does_not_run_it():
    class Two(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.sin(), x.cos()

        @staticmethod
        def backward(ctx, a, b):
            return a + b

    x, called = torch.ones(2, requires_grad=True), []
    result, _ = Two.apply(x)
    table = result._backward_hooks = collections.OrderedDict()
    result.register_hook(called.append)
    result.retain_grad()
    assert len(table) == 1 and result.retains_grad and result.grad_fn is result.grad_fn
    result.sum().backward()
    assert not called and torch.equal(result.grad, torch.ones(2))
    result.mul_(2)
    assert result._backward_hooks is None  # it has another history
    assert callable(compat.AUTOGRAD_ENGINE.original())


def test_what_dynamo_takes_out_of_its_graphs_has_examples():
    seen = []
    torch.compile(lambda x: x + 1, backend=lambda graph, _: seen.append(graph.graph) or graph.forward)(torch.ones(2))
    assert all(compat.EXAMPLE in node.meta for node in seen[0].nodes if node.op != "output")
