"""Skipped as a whole where TensorFlow is not installed: `make test-tensorflow` brings it. (The folder has not its room's name:
where there is no TensorFlow, Python would take it for that.)"""

import importlib.util
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ["KERAS_BACKEND"] = "tensorflow"

collect_ignore_glob = [] if importlib.util.find_spec("tensorflow") else ["test_*.py"]
