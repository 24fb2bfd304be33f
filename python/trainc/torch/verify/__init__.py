"""`trainc.compile(..., verify=)`: the first steps run in PyTorch, too, and the numbers of both are compared."""
