"""JAX runs on the CPU in these tests."""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")
