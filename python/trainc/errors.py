"""The two owners of an error: the user's (`UserError`) and ours (`InternalError`, which becomes a fallback with one warning)."""

try:
    from trainc._core import InternalError, UserError
except ImportError:  # the package without its compiler: capture and the interpreter still work

    class UserError(ValueError):
        """Something that the user can put right; the message says how."""

    class InternalError(RuntimeError):
        """A fault of trainc's own; names the operation and the line of the model."""


class SideEffect(Exception):
    """Tracing changed something of the user's program that a compiled call would not change again."""


class NotCompiled(Exception):
    """This call cannot be captured; the message is the reason, in the user's terms."""


__all__ = ["InternalError", "NotCompiled", "SideEffect", "UserError"]
