"""The front end for PyTorch, in rooms: each may import those that docs/README.md lists for it."""

# First of all: when PyTorch has been imported, `trainc run` imports modules of ours (cli/around.py), and none may be half done.
import torch  # noqa: F401
