"""trainc: compiles the training step that you have.

    model, optimizer = trainc.compile(model, optimizer)

`import trainc` stays cheap: PyTorch is loaded by the first call that needs it.
"""

from trainc import config
from trainc.errors import InternalError, UserError

__version__ = "0.1.0"
__all__ = ["InternalError", "UserError", "__version__", "compile", "config", "explain"]


def compile(model, optimizer=None, *, tune="fast", memory=None, fuse_step=False, verify=False):
    """Compiles `model` (an `nn.Module`) and its optimizer in place; returns both, or the model alone without an optimizer.

    The model is compiled when it is first called, once per signature of its arguments. The objects are the ones given:
    `state_dict`, `deepcopy`, `pickle` and the training loop see the plain module and optimizer.
    """
    from trainc.door import compile_objects

    return compile_objects(model, optimizer, tune=tune, memory=memory, fuse_step=fuse_step, verify=verify)


def explain(model, file=None):
    """What was compiled for `model`, what runs in PyTorch and why."""
    from trainc.report import explain as explain_model

    return explain_model(model, file)


def _register_with_accelerate() -> None:
    from trainc.accelerate import register

    register()


_register_with_accelerate()
