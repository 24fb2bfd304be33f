"""Tests of TensorFlow skip themselves where it is not installed: `make test-tensorflow` brings it. (The folder has not its room's
name: where there is no TensorFlow, Python would take it for that.)"""

import importlib.util
import os

if importlib.util.find_spec("tensorflow"):  # else what this process and its children have of Keras is JAX's
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    os.environ["KERAS_BACKEND"] = "tensorflow"
