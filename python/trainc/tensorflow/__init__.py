"""The TensorFlow door: functions that TensorFlow traces, compiled by trainc, and called by its XLA. Imports no PyTorch, no JAX."""
