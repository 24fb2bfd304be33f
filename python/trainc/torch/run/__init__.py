"""Running plans on tensors: executables, the two engines, memory for results, calls that PyTorch answers."""
