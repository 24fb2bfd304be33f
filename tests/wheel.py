"""A wheel, as `make wheel` makes it, in a fresh environment and from another directory: what it links is on every machine or in
it, it is imported quickly and without PyTorch, and trains as eager does.

    python tests/wheel.py dist/trainc-*.whl
"""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import sysconfig
import tempfile
import time
import zipfile
from pathlib import Path

# What every Linux has (auditwheel's policy), beside what the wheel brings along.
SYSTEM = {"libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1", "libz.so.1", "libstdc++.so.6", "libgcc_s.so.1",
          "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"}  # fmt: skip
GLIBC = 34  # 2.34: as old a one as Debian 12's LLVM can do with

IMPORTS = "import sys, trainc, trainc._core; assert 'torch' not in sys.modules; print(trainc.__file__)"
TRAINS = {"torch": """
import copy, torch, trainc
torch.manual_seed(0)
eager = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 1))
model = copy.deepcopy(eager)
models = [(eager, torch.optim.AdamW(eager.parameters())), trainc.compile(model, torch.optim.AdamW(model.parameters()))]
for step in range(5):
    x, losses = torch.randn(4, 8), []
    for net, optimizer in models:
        loss = net(x).square().mean()
        loss.backward(); optimizer.step(); optimizer.zero_grad()
        losses.append(loss.item())
    assert abs(losses[0] - losses[1]) <= 2e-6 * abs(losses[0]), losses
assert [c.route for c in trainc.explain(model).compilations] == ["compiled"]
print(*losses)
""", "jax": """
import jax, jax.numpy as jnp, trainc
def step(w, x, y):
    loss, slope = jax.value_and_grad(lambda w: jnp.mean((jnp.tanh(x @ w) - y) ** 2))(w)
    return w - 0.1 * slope, loss
x, y = jax.random.normal(jax.random.key(0), (4, 8)), jax.random.normal(jax.random.key(1), (4, 3))
w = jax.random.normal(jax.random.key(2), (8, 3))
ours, eager, compiled, losses = w, w, trainc.jit(step), []
for _ in range(5):
    ours, loss = compiled(ours, x, y)
    eager, wanted = step(eager, x, y)
    assert abs(loss - wanted) <= 2e-6 * abs(wanted), (loss, wanted)
    losses += [float(loss)]
assert [c.route for c in trainc.explain(compiled).compilations] == ["compiled"]
print(*losses)
"""}  # fmt: skip


def needed(wheel: Path, folder: Path) -> set[str]:
    """The libraries that the compiled module links, less those that lie in the wheel."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    module = next(folder.glob("trainc/_core*.so"))
    told = subprocess.run(["readelf", "-d", str(module)], capture_output=True, text=True, check=True).stdout
    brought = {path.name for path in folder.glob("trainc.libs/*")}
    return set(re.findall(r"\(NEEDED\).*\[(.*)\]", told)) - brought


def main(wheel: Path) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "elsewhere").mkdir()
        strangers = needed(wheel, folder / "unpacked") - SYSTEM
        assert not strangers, f"{wheel.name} links {strangers}, which is not on every machine"
        asked = [int(minor) for minor in re.findall(r"manylinux_2_(\d+)", wheel.name)]
        assert asked and min(asked) <= GLIBC, f"{wheel.name} needs a newer glibc than 2.{GLIBC}"
        subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
        python = folder / "venv" / "bin" / "python"

        def run(*words: str | Path) -> str:
            done = subprocess.run([python, *words], cwd=folder / "elsewhere", capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
            return done.stdout

        # PyTorch or JAX, and NumPy, of this environment, so that they are not installed again; its own trainc is not among them.
        site = run("-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip()
        (Path(site) / "packages.pth").write_text(sysconfig.get_path("purelib") + "\n")
        run("-m", "pip", "install", "--quiet", "--no-deps", wheel.resolve())
        assert run("-c", IMPORTS).startswith(site)
        begin = time.perf_counter()
        run("-c", "import trainc")
        seconds = time.perf_counter() - begin
        framework = next((name for name in TRAINS if importlib.util.find_spec(name)), None)
        trained = f"{framework}'s losses {run('-c', TRAINS[framework]).strip()}" if framework else "no framework to train with"
        said = run("-m", "trainc", "info").splitlines()
        print(f"{wheel.name}: imported in {seconds:.2f} s with Python's own start; {trained}; {', '.join(said[:2])}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
