"""`jax.jit` of a whole program: by `install`, and in a program that knows nothing of trainc."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import jax_steps
import numpy as np
import pytest

import trainc
from trainc.base import records
from trainc.jax import door, install, uninstall
from trainc.jax.everywhere import LEAST

HERE = Path(__file__).parent


@pytest.fixture
def installed(strict):
    install()
    yield
    uninstall()


def test_what_is_large_is_compiled(installed):
    @jax.jit
    def small(x):
        return x * 2 + 1

    @jax.jit
    def large(x):
        for _ in range(LEAST):
            x = jnp.sin(x)
        return x

    x = jnp.linspace(-1, 1, 7)
    np.testing.assert_array_equal(small(x), x * 2 + 1)
    assert not records.of(small)
    wanted = x
    for _ in range(LEAST):
        wanted = jnp.sin(wanted)
    np.testing.assert_allclose(large(x), wanted, rtol=1e-6)
    assert [r.route for r in records.of(large)] == ["compiled"]


def test_functions_within_count(installed):
    def inner(x):
        for _ in range(LEAST):
            x = jnp.cos(x)
        return x

    outer = jax.jit(jax.checkpoint(inner))
    outer(jnp.ones(3))
    assert [r.route for r in records.of(outer)] == ["compiled"]


def test_jit_takes_what_jaxs_takes(installed):
    step = jax.jit(donate_argnums=0)(jax_steps.sgd)
    assert isinstance(step, door.Jitted) and step._cache_size() == 0 and "jit" in jax.jit.__doc__
    losses = []
    for jit in (jax.jit, None):
        uninstall() if jit is None else None
        state, run, losses_of = jax_steps.weights(), (jit or jax.jit)(jax_steps.sgd, donate_argnums=0), []
        for i in range(4):
            state, loss = run(state, *jax_steps.batch(i))
            losses_of.append(float(loss))
        losses.append(losses_of)
    np.testing.assert_allclose(*losses, rtol=1e-5)


def test_uninstall(installed):
    uninstall()
    assert not isinstance(jax.jit(lambda x: x), door.Jitted)


NOT_THERE = 'import sys; assert "jax" not in sys.modules and "trainc.jax.door" not in sys.modules'
PROGRAM = """
import jax, jax_steps
from jax import jit
step = jit(jax_steps.sgd)
print(type(step).__module__, *(float(step(jax_steps.weights(), *jax_steps.batch(i))[1]).hex() for i in range(2)))
"""


def program(tmp_path, **environment):
    """What a program prints in a process that reads `trainc_jax.pth` as an installed package has it."""
    shutil.copy(Path(trainc.__file__).parents[1] / "trainc_jax.pth", tmp_path)
    start = f"import site; site.addsitedir({str(tmp_path)!r})\n"
    paths = os.pathsep.join([str(HERE), *sys.path])
    return subprocess.run(
        [sys.executable, "-c", start + NOT_THERE + PROGRAM], capture_output=True, text=True, timeout=300,
        env={**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": paths, **environment},
    )  # fmt: skip


def test_a_program_that_is_not_changed(tmp_path):
    plain, ours = program(tmp_path), program(tmp_path, TRAINC_JAX="1")
    assert plain.returncode == 0, plain.stderr
    assert ours.returncode == 0, ours.stderr
    (kind, *wanted), (our_kind, *got) = plain.stdout.split(), ours.stdout.split()
    assert kind.startswith("jaxlib") and our_kind == "trainc.jax.door"
    np.testing.assert_allclose([float.fromhex(x) for x in got], [float.fromhex(x) for x in wanted], rtol=1e-5)


def test_an_installation_that_fails_leaves_jax(tmp_path):
    (tmp_path / "trainc_broken.py").write_text(
        "import trainc.jax\nclass Door:\n  def find_spec(self, name, path=None, target=None):\n"
        "    if name == 'trainc.jax.door': raise ImportError('no door')\nimport sys; sys.meta_path.insert(0, Door())\n"
    )
    (tmp_path / "a_broken.pth").write_text("import trainc_broken\n")
    done = program(tmp_path, TRAINC_JAX="1", PYTHONPATH=os.pathsep.join([str(tmp_path), str(HERE), *sys.path]))
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("jaxlib") and "jax.jit stays JAX's: no door" in done.stderr


def test_trainc_run(tmp_path):
    (tmp_path / "train.py").write_text(PROGRAM)
    paths = os.pathsep.join([str(HERE), *sys.path])
    for words, kind in (([], "trainc.jax.door"), (["--eager"], "jaxlib")):
        done = subprocess.run(
            [sys.executable, "-m", "trainc", "run", "--explain", *words, "train.py"],
            cwd=tmp_path, capture_output=True, text=True, timeout=300,
            env={**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": paths},
        )  # fmt: skip
        assert done.returncode == 0 and done.stdout.startswith(kind), done.stderr
        assert ("sgd: compiled for 1 signature" in done.stderr) == (not words) and "nothing was compiled" not in done.stderr
