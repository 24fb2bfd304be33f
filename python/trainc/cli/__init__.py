"""The command `trainc`."""

from trainc.cli.commands import main

__all__ = ["main"]
