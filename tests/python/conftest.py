"""Shared by the Python tests: the engines, and a clean slate of what trainc says once."""

import os
import sys
import warnings
import zlib

# Processes that tests start find what lies beside this file, and the tests that they are of.
os.environ["PYTHONPATH"] = os.pathsep.join([os.path.dirname(__file__), *filter(None, [os.environ.get("PYTHONPATH")])])
os.environ["TRAINC_CACHE"] = "0"  # here and in processes that tests start: test_cache.py turns it on, in directories of its own
# Several test processes share the cores: PyTorch's threads that spin at a barrier keep the others from the work they wait for,
# and a training step takes ten times as long.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("KERAS_BACKEND", "jax")

import pytest
import torch
from torch import nn

import trainc
from trainc import _core
from trainc.base import config, messages
from trainc.torch import compat, device

# Files whose tests look at something that is made once: with several test processes they run in one of them. (xdist's own groups
# do nothing with pytest 9.2, whose node ids cannot be changed.)
TOGETHER = {
    "test_ambient", "test_amx", "test_build", "test_ddp", "test_demo", "test_determinism", "test_device", "test_distributed",
    "test_checkpoints_of_ranks", "test_failures", "test_fsdp", "test_models", "test_programs_of_ranks", "test_reducing",
}  # fmt: skip
# Files of which it is made for each model, the first parameter: eager's losses.
TOGETHER_BY_PARAMETER = {"test_networks", "test_training"}


def pytest_xdist_make_scheduler(config, log):
    from xdist.scheduler import LoadScopeScheduling

    class Found(list):
        """The tests of a process, each of which knows its place."""

        def __init__(self, tests):
            super().__init__(tests)
            self.places = {test: place for place, test in enumerate(tests)}

        def index(self, test):
            return self.places[test]

    class Together(LoadScopeScheduling):
        """What is over it forgets: xdist counts a process's tests anew, over all that it was ever given, whenever one is over."""

        def add_node_collection(self, node, collection):
            super().add_node_collection(node, collection)
            if node in self.registered_collections:
                self.registered_collections[node] = Found(collection)

        def mark_test_complete(self, node, item_index, duration=0):
            scope = self._split_scope(self.registered_collections[node][item_index])
            super().mark_test_complete(node, item_index, duration)
            if all(self.assigned_work[node][scope].values()):
                del self.assigned_work[node][scope]

        def _split_scope(self, nodeid):
            path, _, test = nodeid.partition("::")
            name = os.path.basename(path).removesuffix(".py")
            if name in TOGETHER_BY_PARAMETER and "[" in test:
                return path + test[test.index("[") :].partition("-")[0].rstrip("]")
            return path if name in TOGETHER else nodeid

    return Together(config, log)


def pytest_addoption(parser):
    parser.addoption("--every-case", action="store_true", help="run every test and every case of it (make test-every)")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Of `@pytest.mark.sampled(n)`, a family of cases that are alike, one in n is run, always the same ones; of what is
    `@pytest.mark.thorough` nothing. Whoever names tests or files, or asks for every case, gets every case."""
    if config.option.every_case or config.option.keyword or config.args_source is pytest.Config.ArgsSource.ARGS:
        return
    families: dict[str, list] = {}
    for test in items:
        families.setdefault(test.nodeid.partition("[")[0], []).append(test)
    left_out = {test for test in items if test.get_closest_marker("thorough")}
    for tests in families.values():
        if mark := tests[0].get_closest_marker("sampled"):
            in_no_order = sorted(tests, key=lambda test: zlib.crc32(test.nodeid.encode()))
            left_out.update(in_no_order[-(-len(tests) // mark.args[0]) :])
    if left_out:
        config.hook.pytest_deselected(items=[test for test in items if test in left_out])
        items[:] = [test for test in items if test not in left_out]


def pytest_configure(config):
    """`TRAINC_DEVICE=cuda make test` on a machine without a GPU says so at once, instead of failing test by test."""
    config.addinivalue_line("markers", "sampled(n): a family of cases alike, of which `make test` runs one in n")
    config.addinivalue_line("markers", "thorough: what `make test-every` runs, and `make test` does not")
    if device.asked() == "cuda":
        try:
            print(f"tests that train put their tensors on {_core.device('cuda:0')}")
        except ValueError as error:
            pytest.exit(f"no tests were run: {error}", returncode=2)


# Tests of what a training loop does, wherever its tensors lie. The others are about the CPU, the compiler's stages, or say
# themselves on which device they run.
ANYWHERE = {
    "test_autograd", "test_deferred", "test_determinism", "test_doors", "test_gradients", "test_guards", "test_optimizer",
    "test_recompile", "test_step", "test_training",
}  # fmt: skip


@pytest.fixture(autouse=True)
def on_the_device(request):
    """`TRAINC_DEVICE=cuda`: what these tests make, they make on the GPU."""
    if device.asked() != "cuda" or request.module.__name__ not in ANYWHERE:
        yield
        return
    torch.set_default_device("cuda")
    yield
    torch.set_default_device(None)


def _engines():
    return ["interpreter", "core"] if config.engine_name() == "core" else ["interpreter"]


@pytest.fixture(params=_engines())
def engine(request, monkeypatch):
    """Runs a test of capture with each engine that is there."""
    monkeypatch.setattr(config, "engine", request.param)
    return request.param


@pytest.fixture
def core(monkeypatch):
    """For tests of kernels and of limits, of which the interpreter knows nothing."""
    monkeypatch.setattr(config, "engine", "core")


@pytest.fixture
def without_tiles(monkeypatch):
    """On a CPU with AMX, the level below: there products are summed alike in kernels that shapes share."""
    if _core.machine_cpu_level() == "amx":
        monkeypatch.setenv("TRAINC_CPU", "avx512_bf16")


@pytest.fixture(autouse=True)
def clean_slate():
    torch.manual_seed(0)
    messages._said.clear()
    torch._dynamo.reset()
    yield
    left, modes = sys.getprofile(), compat.count_dispatch_modes()
    sys.setprofile(None)
    assert left is None and not modes, "a trace has left its watch, or a mode of PyTorch's"


@pytest.fixture
def strict(monkeypatch):
    """A fallback is an error, and so is any warning of trainc's."""
    monkeypatch.setattr(config, "fallback", False)
    with warnings.catch_warnings():
        warnings.simplefilter("error", messages.TraincWarning)
        yield


def _through_dynamo(model):
    from trainc.torch.doors.backend import backend

    return torch.compile(model, backend=backend)


# The ways to a compiled model, of a model; what torch.compile gives names its parameters "_orig_mod.".
DOORS = {"trainc": trainc.compile, "torch": _through_dynamo}


class Calls(nn.Module):
    """A model whose forward is a function."""

    def __init__(self, run):
        super().__init__()
        self.run = run

    def forward(self, *given):
        return self.run(*given)


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
