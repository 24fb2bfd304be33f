"""Shared by the Python tests: the engines, and a clean slate of what trainc says once."""

import os
import warnings

os.environ["TRAINC_CACHE"] = "0"  # here and in processes that tests start: test_cache.py turns it on, in directories of its own

import pytest
import torch

from trainc import config, messages


def pytest_configure():
    """`TRAINC_DEVICE=cuda make test` on a machine without a GPU says so at once, instead of failing test by test."""
    if os.environ.get("TRAINC_DEVICE") == "cuda":
        from trainc import _core

        try:
            _core.device()
        except ValueError as error:
            pytest.exit(f"no tests were run: {error}", returncode=2)


def _engines():
    return ["interpreter", "core"] if config.engine_name() == "core" else ["interpreter"]


@pytest.fixture(params=_engines())
def engine(request, monkeypatch):
    """Runs a test of capture with each engine that is there."""
    monkeypatch.setattr(config, "engine", request.param)
    return request.param


@pytest.fixture(autouse=True)
def clean_slate():
    torch.manual_seed(0)
    messages._said.clear()
    torch._dynamo.reset()
    yield


@pytest.fixture
def strict(monkeypatch):
    """A fallback is an error, and so is any warning of trainc's."""
    monkeypatch.setattr(config, "fallback", False)
    with warnings.catch_warnings():
        warnings.simplefilter("error", messages.TraincWarning)
        yield


def gradients(model):
    return {name: None if p.grad is None else p.grad.clone() for name, p in model.named_parameters()}


def assert_same(got, wanted, tolerance=1e-5):
    """Tensors (also in dictionaries) equal to within the rounding of another order of sums."""
    if isinstance(wanted, dict):
        assert got.keys() == wanted.keys()
        for key in wanted:
            assert_same(got[key], wanted[key], tolerance)
    elif wanted is None or got is None:
        assert got is None and wanted is None
    else:
        torch.testing.assert_close(got, wanted, rtol=tolerance, atol=tolerance)
