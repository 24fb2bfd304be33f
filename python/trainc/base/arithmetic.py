"""The state of the process's arithmetic that decides numbers."""

try:
    from trainc._core import flushes_denormals
except ImportError:  # the package without its compiler: no constant is folded

    def flushes_denormals() -> bool:
        """Whether denormal numbers count as zero on this thread (`torch.set_flush_denormal`)."""
        return False


__all__ = ["flushes_denormals"]
