"""The TensorFlow door: functions that TensorFlow traces, compiled by trainc, called by its XLA. Imports no PyTorch, no JAX."""
