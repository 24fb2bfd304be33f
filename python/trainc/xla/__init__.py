"""What JAX and TensorFlow have in common: programs as StableHLO, which is read with jaxlib's MLIR, and plans that XLA calls."""
