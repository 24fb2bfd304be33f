"""trainc: compiles the training step that you have.

    model, optimizer = trainc.compile(model, optimizer)

`import trainc` stays cheap: PyTorch is loaded by the first call that needs it.
"""

import functools

from trainc.base import config
from trainc.base.errors import InternalError, UserError, VerifyError
from trainc.base.messages import RecompileWarning, TraincWarning, VerifyWarning

__version__ = "0.1.0"
__all__ = [
    "InternalError", "RecompileWarning", "TraincWarning", "UserError", "VerifyError", "VerifyWarning", "__version__", "compile",
    "config", "explain", "function", "jit", "profile", "report", "train_step",
]  # fmt: skip


def compile(model, optimizer=None, *, tune="fast", memory=None, fuse_step=False, verify=False):
    """Compiles `model` (an `nn.Module`) and its optimizer in place; returns both, or the model alone without an optimizer.

    Tensors of any shape, strides and dtype are taken, results have eager's; what has no kernel (`trainc operations` lists those
    that have) is run by PyTorch. UserError where an argument is none of these kinds: nothing has been changed then.

    Of a Keras model, after `model.compile(...)`: on JAX and TensorFlow the steps of `fit` and `evaluate` go through `trainc.jit`
    and `trainc.function`; on PyTorch the model's forward and backward in these steps are compiled, and Keras's own loss and
    optimizer run in PyTorch.

    The model is compiled when it is first called, once per signature of its arguments. The objects are the ones given:
    `state_dict`, `deepcopy`, `pickle` and the training loop see the plain module and optimizer.

    `tune`: "fast" decides by a cost model alone, so that compiling takes seconds; "max" measures how to cut up each matrix
    product and convolution (a minute or so for GPT-2, once: the answers are kept on disk with the plans), which changes no bit,
    and whether PyTorch's own operator is faster, and as accurate against float64, which changes the order of its sums
    (`trainc.config.framework_calls = False`: not asked; `explain` lists the calls). On a GPU it measures the algorithms that
    cuBLASLt has for each large product, and a kernel beside them; they add up in different orders.

    `memory`: the most that training may need, as a size ("4GB", or bytes as an int) or as a share (0 to 1) of what it would
    need without: the model's tensors, gradients, optimizer state, the batch, and what the step itself needs. It is met by
    computing again in the backward what costs least time; results are the same to the bit. UserError at the first call where it
    cannot be met, with the smallest that can. What PyTorch runs (extern operations) may take memory of its own beside it.

    `fuse_step`: the backward waits for `optimizer.step()` and runs as one plan with it, which makes each gradient, updates its
    parameter and forgets it: the memory of `train_step` in a loop that stays as it is, and the same results to the bit. Where
    something reads a gradient between `backward()` and `step()` (clipping, another backward), the step is an ordinary one.
    Afterwards the gradients are gone: UserError where one is read, or added to without `zero_grad()`. It takes PyTorch's Adam,
    AdamW, SGD, RMSprop, Adagrad, Adamax, NAdam, RAdam, Adadelta, ASGD and Rprop.

    `verify`: the first steps (3 for True; or a number of them) also run in PyTorch, from the same state, inputs and random draws;
    results, gradients and updates are compared by the bounds of docs/numerics.md, and one step is all that happens to the
    program. Where they agree, `explain` has a line. Where they part, a `VerifyWarning` names the operation and the line, with a
    file that `trainc bug-report FILE` runs again, and training goes on in PyTorch from eager's numbers (`VerifyError` instead,
    where `trainc.config.fallback` is off). These steps take several times the time and twice the memory, and with `fuse_step` the
    backward and the step run apart in them.
    """
    if _is_keras(model) and optimizer is None:
        return _compile_keras(model, tune, memory, fuse_step or verify)
    from trainc.torch.doors.door import compile_objects

    return compile_objects(model, optimizer, tune=tune, memory=memory, fuse_step=fuse_step, verify=verify)


def _compile_keras(model, tune, memory, more):
    from trainc.keras.model import backend, compile_call, compile_model

    if more:
        raise UserError("trainc.compile of a Keras model: fuse_step and verify are not there")
    if backend() == "jax":
        from trainc.jax.door import jit as jit_function

        return compile_model(model, functools.partial(jit_function, tune=tune, memory=memory, donate_argnums=0))
    if backend() == "tensorflow":
        from trainc.tensorflow.door import function as compile_function

        return compile_model(model, functools.partial(compile_function, tune=tune, memory=memory, autograph=False))
    if backend() != "torch":
        raise UserError(f"trainc.compile of a Keras model is for Keras on JAX, TensorFlow or PyTorch, not on {backend()}")
    if memory is not None:
        raise UserError("trainc.compile of a Keras model on PyTorch: memory= is not there: leave it out")
    from trainc.torch.doors.keras_call import compile_call as compile_on_torch

    return compile_call(model, functools.partial(compile_on_torch, tune=tune))


def _is_keras(model) -> bool:
    return any(base.__module__.partition(".")[0] == "keras" for base in type(model).__mro__)


def train_step(fn, *, tune="fast", memory=None, verify=False):
    """`fn(*batch)`, the body of a training loop (forward, loss, `backward()`, `clip_grad_norm_`, `optimizer.step()`,
    `zero_grad()`), as one compiled plan: parameters and optimizer state are updated in place, and gradients never all exist at
    once.

    The returned function takes the same batch (tensors of any shape and dtype, numbers and containers of them) and returns what
    `fn` returns, tensors without autograd history. Models and optimizers (of the kinds that `fuse_step` takes) are found among
    the variables that `fn` uses. `.grad` is None afterwards. A learning rate scheduler may step inside or outside. What cannot
    be captured (a printed or branched-on value, an optimizer of another kind, a change of a variable) is a `UserError` that
    names the line.

    A batch of another shape is traced anew once, with its sizes as symbols; further shapes are compiled without a trace. A
    second trace is warned of (`RecompileWarning`), with the argument and the dimension that changed; more than
    `trainc.config.max_signatures` of them are a `UserError`.

    `memory`: as for `trainc.compile`, for each shape.

    `verify`: as for `trainc.compile`, of the step's graph: what it gives, parameters and optimizer state after it. (The body
    itself does not run again: a second `optimizer.step()` would be one.)
    """
    from trainc.torch.doors.step import TrainStep

    return TrainStep(fn, tune, memory, verify)


def jit(fun=None, /, *, tune="fast", memory=None, **arguments):
    """`jax.jit` with trainc's compiler: `step = trainc.jit(step, donate_argnums=0)`, or `@trainc.jit`.

    `arguments`: those of `jax.jit` (`donate_argnums`, `donate_argnames`, `static_argnums`, `static_argnames`, ...), which mean
    what they mean there; so do `.lower` and `.trace`. The whole function (loss, gradients, update) becomes one plan for each
    signature of its arguments, kept on disk, which XLA calls with its own arrays. Called within a function that JAX traces (jit,
    grad, vmap) it is JAX's.

    Around what cannot be compiled (an effect such as `jax.debug.print`, an operation that the compiler does not know) the
    function is compiled in parts, the bodies of loops that hold such too, with one warning that names it. Several devices, and
    what leaves nothing worth a plan, leave the whole function to XLA. An error where `trainc.config.fallback` is off.

    `tune`: as for `trainc.compile`; "max" measures how kernels are cut up, and no operator takes their place. `memory`: None; a
    limit is a UserError, it is not there.
    """
    from trainc.jax.door import jit as jit_function

    return jit_function(fun, tune=tune, memory=memory, **arguments)


def function(fun=None, /, *, tune="fast", memory=None, **arguments):
    """`tf.function` with trainc's compiler: `step = trainc.function(step)`, or `@trainc.function`.

    `arguments`: those of `tf.function` (`input_signature`, `autograph`, `reduce_retracing`, `jit_compile`, ...). The whole
    function (forward, gradients of its own `GradientTape`, updates of variables) becomes one plan for each signature of its
    arguments, kept on disk, which TensorFlow's XLA calls with its own tensors; variables are updated where they lie. Results are
    those of `tf.function(jit_compile=True)`; random numbers, too, where a seed decides them.

    What XLA or the compiler cannot do (`tf.print`, `tf.py_function`, shapes that depend on a tensor's values)
    leaves the whole function to `tf.function(fun, **arguments)`, with one warning that names it; an error where
    `trainc.config.fallback` is off. So do a GPU, a distribution strategy, and a `GradientTape` around the call; within another
    `tf.function` it is TensorFlow's without a word.

    `tune`: as for `trainc.jit`. `memory`: None; a limit is a UserError, it is not there.
    """
    from trainc.tensorflow.door import function as compile_function

    return compile_function(fun, tune=tune, memory=memory, **arguments)


def explain(model, file=None, *, batch=None):
    """What was compiled for `model` (or a train_step, an optimizer, or what `jit` gave), what its framework runs and why, and the
    memory of a step. Returns an Explanation: `str()` of it is the text, which goes to `file`, too (a path, or something with
    `write`); `totals` (FLOP and bytes a step), `memory` (bytes), `externs` and `remarks` have the figures. A notebook shows it to
    unfold. UserError for what is none of these.

    `batch`: the arguments of a call (a tuple; a dict of keywords; or one tensor), for which the model is compiled first, but not
    run: the peak of the first step is told before it.
    """
    explained = getattr(model, "trainc_explained", None)
    if explained is not None:
        from trainc.base.report import written

        return written(explained(batch), file)
    from trainc.torch.doors.explain import explain as explain_model

    return explain_model(model, file, batch)


def report(model, path, *, batch=None):
    """Writes what `explain` tells as a page to look at ("report.html", one file that needs no network) or as a trace for Perfetto
    ("trace.json"), with the times of the last step that ran within `trainc.profile()`. It runs no step.

    `model`: a model, an optimizer, what `train_step` or `jit` returned; or several of PyTorch's in a tuple, the model first.
    `batch`: as for `explain`. Returns a Report, whose `as_dict()` has the figures: seconds, FLOP, bytes. UserError where `path`
    is neither .html nor .json, or cannot be written.
    """
    explained = getattr(model, "trainc_explained", None)
    if explained is not None:
        from trainc.base.page.report import Report

        return Report.of([explained(batch)], path)
    from trainc.torch.doors.report import report as write_report

    return write_report(model, path, batch)


def profile(*_models):
    """Within `with trainc.profile():` compiled plans time their kernels; `report` and `explain` tell what the last step took.

    It takes some tens of nanoseconds a kernel, of all models of the process: naming them is allowed, and changes nothing.
    """
    from trainc.base.timing import timing

    return timing()


def _register_with_accelerate() -> None:
    from trainc.base.accelerate import register

    register()


_register_with_accelerate()
