"""The two owners of an error: the user's (`UserError`) and ours (`InternalError`, which becomes a fallback with one warning)."""

try:
    from trainc._core import InternalError, UserError
except ImportError:  # the package without its compiler: capture and the interpreter still work

    class UserError(ValueError):
        pass

    class InternalError(RuntimeError):
        pass


UserError.__module__ = InternalError.__module__ = "trainc"  # where users find them
UserError.__doc__ = "A ValueError that the user can put right; the message says how. Nothing has been changed when it is raised."
InternalError.__doc__ = (
    "A fault of trainc's own; names the operation and the line of the model. It becomes a warning, and PyTorch runs what was to "
    "be compiled, unless trainc.config.fallback is off."
)


class VerifyError(RuntimeError):
    """`verify=`: a compiled step's numbers are not PyTorch's, and `trainc.config.fallback` is off. (Else the same is a
    `VerifyWarning`, and PyTorch goes on.)"""

    __module__ = "trainc"


class SideEffect(Exception):
    """Tracing changed something of the user's program that a compiled call would not change again."""

    def __init__(self, message: str, in_pytorch: bool = False):
        super().__init__(message)
        self.in_pytorch = in_pytorch  # whether torch.compile's tracer would lose it, too


class NotCompiled(Exception):
    """This call cannot be captured; the message is the reason, in the user's terms."""

    def __init__(self, message: str, in_pytorch: bool = False):
        super().__init__(message)
        self.in_pytorch = in_pytorch  # whether torch.compile's tracer would not do what the program does


class RefusedByEager(NotCompiled):
    """Eager itself raises an error in this call: `error`."""

    def __init__(self, message: str, error: Exception):
        super().__init__(message)
        self.error = error


class DependsOnData(NotCompiled):
    """The program looks at a tensor's values to know what to do next: it is compiled in parts, around that."""


__all__ = ["DependsOnData", "InternalError", "NotCompiled", "RefusedByEager", "SideEffect", "UserError", "VerifyError"]
