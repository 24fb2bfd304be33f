"""Processes with JAX alone: no PyTorch, threads of our own, the cache."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

HERE = str(Path(__file__).parent)
WITHOUT_TORCH = """
import sys

class Without:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "functorch"):
            raise ModuleNotFoundError(f"no {name}", name=name)

sys.meta_path.insert(0, Without())
import warnings, jax, jax.numpy as jnp, numpy as np, jax_steps, trainc
from trainc.base import records
trainc.config.fallback = False
"""


def run(program, without_torch=True, **environment):
    """What a process prints."""
    text = (WITHOUT_TORCH if without_torch else "") + textwrap.dedent(program)
    paths = os.pathsep.join([HERE, os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", text], capture_output=True, text=True, timeout=300,
        env={**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": paths, **environment},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


STEP = """
    def adam(state, key, x, y):
        return jax_steps.adam(state, key, x, y)
    step = trainc.jit(adam, donate_argnums=0)
    state = jax_steps.adam_state(jax_steps.weights())
    losses = []
    for i in range(3):
        state, loss = step(state, jax.random.key(1), *jax_steps.batch(i))
        losses.append(float(loss).hex())
    print(*losses)
"""


def test_a_step_without_pytorch_and_from_the_cache(tmp_path):
    cache = {"TRAINC_CACHE": "1", "TRAINC_CACHE_DIR": str(tmp_path / "cache")}
    told = STEP + "    print(records.of(step)[0].forward.from_cache)\n"
    first = run(told, **cache).split()
    assert first[-1] == "False"
    moved = run("\n\n\n" + told, **cache).split()
    assert moved == [*first[:-1], "True"]


def test_a_stored_plan_names_the_lines_of_this_program(tmp_path):
    told = """
        step = trainc.jit(lambda x: jnp.sin(x) + 1)
        step(jnp.ones(3))
        steps = records.report_of(records.of(step)[0].forward)["steps"]
        print(records.of(step)[0].forward.from_cache, *{origin.split()[0] for step in steps for origin in step["origins"]})
    """
    cache = {"TRAINC_CACHE": "1", "TRAINC_CACHE_DIR": str(tmp_path / "cache")}
    (cold, line), (warm, moved) = (run(before + told, **cache).split() for before in ("", "\n\n\n"))
    assert (cold, warm) == ("False", "True")
    assert line.startswith("<string>:") and int(moved.removeprefix("<string>:")) == int(line.removeprefix("<string>:")) + 3


def test_pytorch_beside_it_changes_no_bit():
    imports = "import torch, jax, jax.numpy as jnp, jax_steps, trainc\nfrom trainc.base import records\n"
    assert run(imports + textwrap.dedent(STEP), without_torch=False) == run(STEP)


def test_the_door_of_pytorch_imports_no_jax():
    assert run("""
        import sys, torch, trainc
        model = trainc.compile(torch.nn.Linear(3, 2))
        model(torch.ones(2, 3)).sum().backward()
        print([name for name in sys.modules if name.partition(".")[0] in ("jax", "jaxlib")])
    """, without_torch=False).strip() == "[]"  # fmt: skip


def test_threads_that_call_at_once():
    told = run("""
        import threading
        step = trainc.jit(lambda x, y: (jnp.tanh(x @ y) @ y.T).sum(0))
        inputs = [(jnp.ones((64, 128)) * i / 7, jnp.ones((128, 256)) / 100) for i in range(6)]
        wanted = [np.asarray(step(*each)) for each in inputs]
        wrong = []

        def calls(i):
            for _ in range(40):
                if not np.array_equal(np.asarray(step(*inputs[i])), wanted[i]):
                    wrong.append(i)

        threads = [threading.Thread(target=calls, args=(i,)) for i in range(6)]
        [t.start() for t in threads], [t.join() for t in threads]
        print(wrong, len(records.of(step)))
    """)
    assert told.strip() == "[] 1"


@pytest.mark.parametrize("rows", [3, 4096])  # on one thread, on several
def test_denormals_are_kept_whatever_the_thread_does(rows):
    """XLA flushes them to zero on the thread that calls the plan."""
    told = run(f"""
        step = trainc.jit(lambda x: (x * np.float32(0.5), (x * 0.25).sum(1)))
        x = jnp.full(({rows}, 64), 1e-38, jnp.float32)
        halves, sums = step(x)
        print(bool((np.asarray(halves) == np.float32(1e-38) * np.float32(0.5)).all() and (np.asarray(halves) > 0).all()))
        print(bool((np.asarray(sums) > 0).all()))
    """)
    assert told.split() == ["True", "True"]


def test_several_devices_are_jaxs():
    told = run("""
        trainc.config.fallback = True
        from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
        mesh = Mesh(np.array(jax.devices()), ("d",))
        f = jax.shard_map(lambda x: jax.lax.psum(x, "d"), mesh=mesh, in_specs=P("d"), out_specs=P())
        ours = trainc.jit(f)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            print(np.asarray(ours(jnp.arange(4.0))).tolist())
        print(records.of(ours)[0].route, [str(w.message) for w in caught])
        x = jax.device_put(jnp.arange(8.0), NamedSharding(mesh, P("d")))
        print(np.asarray(trainc.jit(lambda x: x * 2)(x)).tolist())
    """, XLA_FLAGS="--xla_force_host_platform_device_count=2")  # fmt: skip
    lines = told.splitlines()
    assert lines[0] == "[2.0, 4.0]" and lines[1].startswith("eager") and "several devices" in lines[1]
    assert lines[2] == str([2.0 * i for i in range(8)])


@pytest.mark.parametrize("parts", [False, True])
def test_arguments_that_lie_on_several_devices(parts):
    """Their shardings are none of a trace's: what XLA makes of a call is known where it is lowered. With a typed key, an argument
    that nothing reads, donated memory and a large constant; the same trace serves arguments on one device, by its plan."""
    told = run(f"""
        trainc.config.fallback = True
        from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
        mesh = Mesh(np.array(jax.devices()), ("d",))
        table = np.random.default_rng(0).normal(size=(128, 128)).astype(np.float32)
        def step(state, x, key, unread):
            w = state["w"] - 0.1 * jnp.tanh(x @ state["w"] + table) + jax.random.normal(key, (128, 128))
            w = jnp.linalg.qr(w)[0] @ x if {parts} else w
            return {{"w": jnp.sin(w) * jnp.exp(w @ x) + w @ w.T + jnp.cumsum(w, 1), "n": state["n"] + 1}}
        sharded = NamedSharding(mesh, P("d"))
        def arguments(place):
            put = lambda a: jax.device_put(a, place) if place is not None else a
            state = {{"w": put(jnp.ones((128, 128)) * 0.01), "n": jnp.int32(0)}}
            return state, put(jnp.eye(128)), jax.random.key(3), (put(jnp.ones((128, 4))), jax.random.key(4))
        ours, theirs = trainc.jit(step, donate_argnums=0), jax.jit(step, donate_argnums=0)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for place in (sharded, None, sharded):
                a, b = ours(*arguments(place)), theirs(*arguments(place))
                print([jax.tree.all(jax.tree.map(lambda p, q: p.sharding.is_equivalent_to(q.sharding, p.ndim), a, b)),
                       bool(np.allclose(a["w"], b["w"], rtol=1e-4, atol=1e-4)), int(a["n"])])
        print(sum("several devices (2)" in str(w.message) for w in caught))
        print([record.route for record in records.of(ours)], bool(records.of(ours)[0].forward or records.of(ours)[0].parts))
    """, XLA_FLAGS="--xla_force_host_platform_device_count=2")  # fmt: skip
    *calls, warned, routes = told.splitlines()
    assert calls == ["[True, True, 1]"] * 3
    if not parts:  # JAX does not trace the parts again of values on a mesh: the whole function is its own, for that reason
        assert warned == "1" and routes.startswith("['compiled', 'eager'") and routes.endswith("True"), told


def test_a_stored_executable_of_xlas_calls_no_other_plan(tmp_path):
    """JAX's own cache on disk keeps the call of a plan that another process does not know before it has compiled it."""
    settings = {"JAX_COMPILATION_CACHE_DIR": str(tmp_path), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
                "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1"}  # fmt: skip
    for by in (2, 3, 2):
        told = run(f"print(trainc.jit(lambda x: x * {by})(jnp.ones(3)).tolist())", **settings)
        assert told.strip() == str([float(by)] * 3)


def test_ctrl_c_comes_after_the_call():
    told = run("""
        import os, signal, threading
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
        step = trainc.jit(lambda x: jax.lax.fori_loop(0, 3, lambda i, c: jnp.tanh(c @ c), x))
        x = jnp.ones((700, 700)) / 700
        step(x).block_until_ready()
        threading.Timer(0.01, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        try:
            for _ in range(1000):
                step(x).block_until_ready()
            print("never")
        except KeyboardInterrupt:
            print("interrupted", bool(np.isfinite(np.asarray(step(x))).all()))
    """)
    assert told.strip() == "interrupted True"
