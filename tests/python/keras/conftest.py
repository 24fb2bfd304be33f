"""Keras on JAX, on the CPU; without Keras these tests are skipped."""

import os

os.environ.setdefault("KERAS_BACKEND", "jax")
os.environ.setdefault("JAX_PLATFORMS", "cpu")
