"""Tracing a module's forward: the settings it runs under, where each operation came from."""

from __future__ import annotations

import contextlib
import functools
import logging
import operator
import sys
import types
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from trainc.base.errors import NotCompiled, SideEffect
from trainc.base.patches import patched
from trainc.torch import compat
from trainc.torch.capture import caught, checkpoints
from trainc.torch.capture.structure import Flattener, unflatten
from trainc.torch.compat import proxy_tensor
from trainc.torch.graph import wire
from trainc.torch.graph.wire import is_internal_file
from trainc.torch.guards.reads import Reads
from trainc.torch.guards.state import ModuleState, Snapshot
from trainc.torch.guards.watch import Watched
from trainc.torch.numbers import Program
from trainc.torch.trust import is_trusted_file


class FlatCall(torch.nn.Module):
    """A model's call as a function of tensors alone: (the model's tensors..., the arguments' tensors...) -> result's tensors.
    It holds the model out of sight of AOTAutograd, which would take its parameters for constants."""

    def __init__(
        self, state: ModuleState, structure: tuple, before: Snapshot, watched: Watched, reads: Reads,
        dress: Callable[[Sequence[torch.Tensor]], None], originals: Sequence[torch.Tensor], numbers: Program | None = None,
        in_backward: Callable[[], Watched] | None = None,
    ):  # fmt: skip
        """`originals`: the call's own tensors. `in_backward` makes what watches the program's own backward, where it has one: it
        runs at another time than forward, and may find other values then. None: `watched` does."""
        super().__init__()
        self._hidden = [state, before, watched, reads, dress, numbers, in_backward]
        self._leaves = [t.is_leaf and t.requires_grad for t in originals]
        self._have_histories = [not t.is_leaf for t in originals[: len(state.tensors())]]
        self._until_traced, self._first = contextlib.ExitStack(), True
        self._structure = structure
        self.result: tuple = ()  # the structure of what forward returns

    @contextlib.contextmanager
    def watched(self):
        """While PyTorch runs `forward`, twice and then its backward. The second time does what the first did, and to watch it
        costs as much again: only where the first ran code that has to be watched in the backward, or logged something."""
        with self._until_traced:
            yield

    def forget(self) -> None:
        """Lets go of the model, which must not live, nor its old tensors, as long as what was compiled."""
        self._hidden.clear()

    def forward(self, *flat: torch.Tensor) -> tuple[torch.Tensor, ...]:
        state, before, watched, reads, dress, numbers, in_backward = self._hidden
        dress(flat)
        before.restore_attributes()  # a trace runs forward twice, and each time it is the first
        reads.restore()
        count = len(state.tensors())
        args, kwargs = unflatten(self._structure, list(flat[count:]), numbers)
        learns, modes = [t.requires_grad for t in flat], ambient()
        histories = [t.grad_fn for t in flat]  # a trace's own inputs are no leaves
        first, self._first = self._first, False
        if not first and (watched.logged or reads.own_backward):
            watched.logged = None
            self._until_traced.enter_context(watched.active())
        with contextlib.ExitStack() as stack:
            stack.enter_context(state.swapped(list(flat[:count])))
            stack.enter_context(checkpoints.of_program(flat))
            if numbers is not None:
                stack.enter_context(numbers.in_place())
            if first:
                stack.enter_context(watched.active())
            elif watched.warned:  # the first run has shown it
                stack.enter_context(warnings.catch_warnings())
                warnings.simplefilter("ignore")
            result = compat.uncompiled_call(state.root)(*args, **kwargs)
        watched.check()
        caught.now().check()
        check_ambient(modes, "forward")
        if not first and reads.own_backward and in_backward is not None:
            self._until_traced.close()
            self._until_traced.enter_context(in_backward().active())
        if learns != [t.requires_grad for t in flat]:
            raise SideEffect("forward changes whether one of its arguments, or of its own tensors, wants a gradient")
        changed = [t.grad_fn is not old for t, old in zip(flat, histories, strict=True)]
        if any(map(operator.and_, changed, self._leaves)):  # numbers come behind
            raise NotCompiled("forward writes a leaf that wants a gradient, which PyTorch refuses", in_pytorch=True)
        if any(map(operator.and_, changed, self._have_histories)):
            # what it was before would be an input of the compiled call, whose backward would go through that call's graph again
            raise NotCompiled("forward writes a buffer that has a history of autograd's: write it under no_grad", in_pytorch=True)
        after = Flattener()
        if after.flatten((args, kwargs)) != self._structure or any(
            a is not b for a, b in zip(after.tensors, flat[count:], strict=False)
        ):
            raise SideEffect("forward changes a list or dictionary among its arguments")
        check_attributes(flat, "forward")
        flattener = Flattener(known=reads.knows)
        self.result = flattener.flatten(result)
        check_attributes(flattener.tensors, "forward")
        _check_made(flattener.tensors, flat)
        return tuple(flattener.tensors)


def _check_made(results: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]) -> None:
    """NotCompiled where the program has made a result that is another kind of tensor than what a plan gives."""
    given = {id(t) for t in inputs}
    for t in results:
        if id(t) in given or not isinstance(t, compat.FunctionalTensor):
            continue
        if t.requires_grad and t.is_leaf and not compat.is_view(t):  # autograd would put its gradient there
            raise NotCompiled("forward gives a tensor that it has made to want a gradient of its own", in_pytorch=True)
        if t.is_inference() and not torch.is_inference_mode_enabled():
            raise NotCompiled("forward gives a tensor that it has made in inference mode", in_pytorch=True)


def dispatch_modes() -> tuple:
    """What decides how operations are done: whether gradients are on (the first), and autocast."""
    return (
        torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.is_autocast_enabled("cpu"),
        torch.get_autocast_dtype("cpu"), torch.is_autocast_cache_enabled(),
        torch.is_autocast_enabled("cuda"),  # a model on the CPU may ask for it
        torch.get_autocast_dtype("cuda"),
    )  # fmt: skip


def packs_saved_tensors() -> bool:
    """Whether hooks of the program's own pack what autograd saves from now on, and may give back another thing: what a plan saves
    are no tensors of the program's. (PyTorch's checkpoints and `save_on_cpu` give back the same.)"""
    hooks = compat.saved_tensors_hooks(True)
    codes = [getattr(hook, "__code__", None) for hook in hooks or ()]
    return any(code is None or not is_trusted_file(code.co_filename) for code in codes)


def set_modes(modes: tuple) -> None:
    """They are what `dispatch_modes` has told, but for inference mode, which is left by whoever has entered it."""
    gradients, _, cpu, cpu_dtype, cache, cuda, cuda_dtype = modes
    torch.set_grad_enabled(gradients)
    torch.set_autocast_enabled("cpu", cpu)
    torch.set_autocast_dtype("cpu", cpu_dtype)
    torch.set_autocast_cache_enabled(cache)
    torch.set_autocast_enabled("cuda", cuda)
    torch.set_autocast_dtype("cuda", cuda_dtype)


def ambient() -> tuple:
    """What the program could leave otherwise than it found it: how operations outside of it are done."""
    return (*dispatch_modes(), torch.is_anomaly_enabled())


def check_ambient(before: tuple, subject: str) -> None:
    """SideEffect, and all is as `before`, where the program left it otherwise."""
    if ambient() == before:
        return
    *modes, anomaly = before
    set_modes(tuple(modes))
    torch.autograd.set_detect_anomaly(anomaly)
    raise SideEffect(f"{subject} changes whether gradients are on, or autocast, for what follows it")


def check_attributes(tensors: Sequence[torch.Tensor], subject: str) -> None:
    """SideEffect where the program has put an attribute on one of these, its inputs or results: the trace's tensors have it, and
    its own would not."""
    for tensor in tensors:
        if isinstance(tensor, compat.FunctionalTensor) and (own := _tags(tensor)):
            raise SideEffect(f"{subject} sets the attribute `{min(own)}` of a tensor", in_pytorch=True)


def _tags(tensor: torch.Tensor) -> set[str]:
    """Attributes that the program has put on a trace's tensor; `persistent` of a buffer is there (disguise.dress)."""
    own = vars(tensor).keys() - compat.FUNCTIONAL_TENSOR_ATTRIBUTES
    return own - {"persistent"} if isinstance(tensor, torch.nn.Buffer) else own


_SILENT = logging.Logger("silent", logging.CRITICAL + 1)


@contextlib.contextmanager
def tracing(compiling: bool = True):
    """torch.compiler.is_compiling() holds, if `compiling`; what the program gave to torch.compile runs as the program wrote it;
    operations remember the user's line; checkpointed ones are marked; errors that the program catches are looked for."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(patched(*compat.COMPILING_FLAG, compiling))
        stack.enter_context(patched(*compat.STANCE, compat.DynamoStance("force_eager")))
        stack.enter_context(patched(*compat.NODE_OF_CALL, _create_node_with_origin))
        stack.enter_context(checkpoints.marked())
        stack.enter_context(caught.looked_for())
        stack.enter_context(patched(*compat.CAUSAL_MASK_LOOK, _causal_where_said))
        stack.enter_context(patched(*compat.FAKE_TENSOR_LOG, _SILENT))
        stack.enter_context(_masks_as_eager_has_them())
        yield


@contextlib.contextmanager
def tensors_forgotten() -> Iterator[None]:
    """Fake tensors that are made meanwhile do not remember afterwards what they stand for: the graphs that are kept hold them."""
    make, made = compat.FAKE_MODE_MADE.original(), []

    def making(mode: compat.FakeTensorMode, *args: Any, **kwargs: Any) -> None:
        make(mode, *args, **kwargs)
        made.append(mode)

    try:
        with patched(*compat.FAKE_MODE_MADE, making):
            yield
    finally:
        for mode in made:
            compat.forget_tensors(mode)


_has_effects = compat.EFFECT_TOKENS.original()


def without_tokens() -> contextlib.AbstractContextManager:
    """PyTorch hands a token from each operation with effects to the next, so that no compiler changes their order. A plan keeps
    it anyhow (wire.has_effect): such an operation is a node like others."""
    return patched(*compat.EFFECT_TOKENS, _wants_token)


_acts = functools.cache(wire.has_effect)


def _wants_token(operator: Any, *call: Any) -> bool:
    wants = _has_effects(operator, *call)
    if wants and (not isinstance(operator, compat.OpOverload) or compat.takes_objects(operator)):
        return True
    if wants or _acts(operator):  # it is no dead code where nobody reads it, or where it gives nothing
        torch.fx.node.has_side_effect(operator)
    return False


def _causal_where_said(mask: torch.Tensor | None, is_causal: bool | None = None, size: int | None = None) -> bool:
    """PyTorch's transformer layers look into a mask to find that it is the causal one, which only chooses a faster kernel. A
    trace knows no values: the mask is applied, whatever it holds."""
    return is_causal is True


@contextlib.contextmanager
def _masks_as_eager_has_them():
    """Under a compiler, Hugging Face's models write out the causal mask, or one that hides nothing, which eager leaves to
    attention's own flag: whether there is padding could be read off values. Where no padding is given, nothing is to be read,
    and on a GPU it decides which fused attention is called, how fast it is (half of the products), and which masks its dropout
    draws."""
    module = sys.modules.get("transformers.masking_utils")
    asks = getattr(module, "is_tracing", None)
    if asks is None or not torch.cuda.is_initialized():
        yield
        return
    with patched(module, "is_tracing", lambda tensor=None: tensor is not None and asks(tensor)):
        yield


@contextlib.contextmanager
def inside(code: Any):
    """Operations traced below a call of `code` remember their lines as those below `FlatCall.forward` do."""
    _here.add(id(code))
    _known.add(id(code))
    try:
        yield
    finally:
        _here.discard(id(code))


def calls_program(code: Any) -> bool:
    """Whether this code of ours calls the program that is traced: below it is who calls the model."""
    return id(code) in _here


def has_called_program(code: Any) -> bool:
    """Whether it has done so in a trace, which may be over."""
    return id(code) in _known


@contextlib.contextmanager
def recurrent_layers():
    """LSTM, GRU and RNN as their elementwise and matrix operations, with eager's dropout between layers."""
    # With oneDNN a layer is one opaque call, which drops what its backward needs.
    with compat.without_onednn(), patched(*compat.RECURRENT_LAYERS, _layer_by_layer):
        yield


_rnn_helper = compat.RECURRENT_LAYERS.original()


def _layer_by_layer(
    input: torch.Tensor, hidden: Any, params: list, has_biases: bool, num_layers: int, dropout: float, train: bool,
    bidirectional: bool, batch_first: bool, layer_fn: Any,
) -> tuple[torch.Tensor, list]:  # fmt: skip
    """torch's decomposition never drops anything (torch 2.13 asks `num_layers < i - 1` where it means `i < num_layers - 1`):
    it does one layer here, and the dropout is ours, drawn where eager draws it, over steps first and batch second."""
    input = input.transpose(0, 1) if batch_first else input
    directions = 2 if bidirectional else 1
    final_hiddens: list = []
    narrow = _autocast_of_layer(input)
    for layer in range(num_layers):
        if layer and train and dropout:
            input = torch.dropout(input, dropout, train=True)
        own = slice(layer * directions, (layer + 1) * directions)
        input, final = _rnn_helper(input, hidden[own], params[own], has_biases, 1, 0.0, train, bidirectional, False, layer_fn)
        final_hiddens += final
    plain = isinstance(layer_fn, types.FunctionType) and layer_fn.__name__ == "one_layer_lstm"  # no packed sequences
    if narrow is not None and plain and hidden[0][0].shape == hidden[0][1].shape:  # no projections
        # An LSTM's layer is one call of oneDNN's in eager, which autocast knows, unlike the operations that it is made of here.
        input = input.to(narrow)
        final_hiddens = [tuple([state.to(narrow) for state in states]) for states in final_hiddens]
    return input.transpose(0, 1) if batch_first else input, final_hiddens


def _autocast_of_layer(input: torch.Tensor) -> torch.dtype | None:
    """What autocast makes of oneDNN's recurrent layer; None where eager would not call it."""
    if input.device.type != "cpu" or input.dtype is torch.float64 or not torch.is_autocast_enabled("cpu"):
        return None
    with compat.users_onednn():
        return torch.get_autocast_dtype("cpu") if compat.onednn_enabled() else None


_create_node = proxy_tensor.PythonKeyTracer.create_node
_known = {id(FlatCall.forward.__code__)}
_here = {*_known}  # what calls the user's code while it is traced; hashing code itself takes microseconds


def _create_node_with_origin(tracer: Any, *args: Any, **kwargs: Any) -> torch.fx.Node:
    node = _create_node(tracer, *args, **kwargs)
    if node.op == "call_function":
        if caught.may_raise(node):
            caught.now().look(node, _frames_of_program())
        if not node.stack_trace:
            node.stack_trace = _users_line()
    return node


def _users_line() -> str | None:
    """The line of the program's that is running, as PyTorch writes it."""
    frame = sys._getframe(1)
    while frame is not None and id(frame.f_code) not in _here and is_internal_file(frame.f_code.co_filename):
        frame = frame.f_back
    if frame is not None and id(frame.f_code) not in _here and _inside_forward(frame):
        return f'  File "{frame.f_code.co_filename}", line {frame.f_lineno}, in {frame.f_code.co_name}\n'
    return None


def _inside_forward(frame: Any) -> bool:
    """Whether the frame was called by the traced forward; the user's own call of the model lies outside."""
    while frame is not None:
        if id(frame.f_code) in _here:
            return True
        frame = frame.f_back
    return False


def _frames_of_program() -> list[types.FrameType]:
    """What runs, up to what calls the program; none where it was not called by the traced forward."""
    frame, found = sys._getframe(1), []
    while frame is not None and id(frame.f_code) not in _here:
        found.append(frame)
        frame = frame.f_back
    return [] if frame is None else found
