"""`trainc run`: programs train to eager's losses without a line of their own, and run as Python runs them."""

from __future__ import annotations

import os
import pickle
import re
import signal
import subprocess
import sys
import threading
import time
import traceback
import types
import warnings
import zipfile

import forked
import pytest
from loss_rule import relative
from programs import PROGRAMS

from trainc.cli import script

TRAINC = [sys.executable, "-m", "trainc", "run"]
FORKED = ["-m", "trainc", "run"]  # where it is no matter how a process starts


def run(*words, cwd, **options) -> subprocess.CompletedProcess:
    return subprocess.run([*map(str, words)], cwd=cwd, capture_output=True, text=True, timeout=300, **options)


def losses_of(text: str) -> list[float]:
    return [float(word) for line in re.findall(r"^loss (.*)$", text, re.MULTILINE) for word in line.split()]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_train_as_eager(tmp_path, name):
    text, compiled = PROGRAMS[name]
    (tmp_path / "train.py").write_text(text)
    eager = forked.run(["train.py"], cwd=tmp_path)
    assert eager.returncode == 0, eager.stderr
    found = forked.run([*FORKED, "--explain", "train.py"], cwd=tmp_path)
    assert found.returncode == 0, found.stderr
    assert sorted(re.findall(r"^(\w+): compiled for \d+ signatures?$", found.stderr, re.MULTILINE)) == compiled, found.stderr
    wanted, got = losses_of(eager.stdout), losses_of(found.stdout)
    assert len(wanted) >= 4 and len(got) == len(wanted), found.stdout
    assert max(relative(got, wanted)) < (2e-3 if "autocast" in text else 1e-5), (got, wanted)
    assert "runs in PyTorch" not in found.stderr and "torch.compile's tracer" not in found.stderr, found.stderr


def test_what_compiles_itself_is_left_and_said(tmp_path):
    (tmp_path / "train.py").write_text(PROGRAMS["compiles_with_torch"][0])
    found = forked.run([*FORKED, "train.py"], cwd=tmp_path)
    assert "nothing was compiled: the program compiles Net itself, which stays as it is" in found.stderr


# ---- as Python runs it --------------------------------------------------------------------------------------------------

SHOWS = """
import os, sys
main = sys.modules["__main__"]
print(sys.argv, repr(sys.path[0]), __name__, globals().get("__file__"), __spec__ and __spec__.name, vars(main) is globals())
print(__package__, __builtins__ is __import__("builtins"), "__cached__" in globals(), type(__loader__).__name__)
"""


@pytest.mark.parametrize("kind", ["file", "path", "link", "module", "package", "folder", "archive", "code", "stdin", "pipe"])
def test_a_program_finds_what_python_gives_it(tmp_path, kind):
    (tmp_path / "sub").mkdir()
    for file in ("show.py", "sub/show.py", "sub/__main__.py"):
        (tmp_path / file).write_text(SHOWS)
    (tmp_path / "link.py").symlink_to(tmp_path / "sub" / "show.py")
    with zipfile.ZipFile(tmp_path / "archive.pyz", "w") as archive:
        archive.write(tmp_path / "sub" / "__main__.py", "__main__.py")
    os.mkfifo(tmp_path / "pipe")
    words = {
        "file": ["show.py"], "path": ["sub/../sub/show.py"], "link": ["link.py"], "module": ["-m", "sub.show"],
        "package": ["-m", "sub"], "folder": ["sub"], "archive": ["archive.pyz"], "code": ["-c", SHOWS], "stdin": ["-"],
        "pipe": ["pipe"],
    }[kind]  # fmt: skip
    words += ["a", "-m", "--steps", "3", "--"]

    def shown(*before):
        if kind == "pipe":
            threading.Thread(target=(tmp_path / "pipe").write_text, args=[SHOWS], daemon=True).start()
        return run(*before, *words, cwd=tmp_path, input=SHOWS)

    wanted, found = shown(sys.executable), shown(*TRAINC)
    assert wanted.returncode == 0, wanted.stderr
    assert found.stdout == wanted.stdout


@pytest.mark.parametrize(
    "code, ends",
    [
        ("import sys; sys.exit(3)", 3), ("raise SystemExit('no')", 1), ("raise SystemExit", 0), ("1 / 0", 1),
        ("import os; os._exit(7)", 7), ("raise KeyboardInterrupt", -signal.SIGINT), ("def f(:", 1),
    ],
)  # fmt: skip
def test_it_ends_as_under_python(tmp_path, code, ends):
    (tmp_path / "end.py").write_text(code)
    wanted, found = run(sys.executable, "end.py", cwd=tmp_path), run(*TRAINC, "--eager", "end.py", cwd=tmp_path)
    assert wanted.returncode == found.returncode == ends
    assert found.stderr == wanted.stderr


def test_what_is_not_there(tmp_path):
    found = run(*TRAINC, "missing.py", cwd=tmp_path)
    assert found.returncode == 2 and "can't open file" in found.stderr and "Traceback" not in found.stderr
    assert run(*TRAINC, cwd=tmp_path).returncode == 2
    found = run(*TRAINC, "-m", "missing_module", cwd=tmp_path)
    assert found.returncode == 1 and "No module named missing_module" in found.stderr
    found = run(*TRAINC, "--memory", "much", "missing.py", cwd=tmp_path)
    assert found.returncode == 2 and "is no size" in found.stderr and "Traceback" not in found.stderr


@pytest.mark.parametrize(("error", "own"), [(KeyboardInterrupt, 0), (ValueError, 1)])
def test_a_ctrl_c_inside_trainc_shows_only_the_users_frames(error, own):
    code = compile("def inside(error): raise error", script.PACKAGE + "inside.py", "exec")
    names: dict = {}
    exec(code, names)
    with pytest.raises(error) as raised:
        names["inside"](error)
    shown = traceback.extract_tb(script.users(raised.value, raised.value.__traceback__))
    assert sum(frame.filename.startswith(script.PACKAGE) for frame in shown) == own
    assert shown[0].filename == __file__


def test_ctrl_c(tmp_path):
    (tmp_path / "wait.py").write_text("import time\nprint('here', flush=True)\ntime.sleep(100)\n")
    process = subprocess.Popen(
        [*TRAINC, "wait.py"], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's background jobs ignore it
    )  # fmt: skip
    process.stdout.readline()
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGINT
    assert said.rstrip().endswith("KeyboardInterrupt") and "trainc" not in said.replace(str(tmp_path), "")


FAILS = """
import torch
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a = torch.nn.Linear(4, 4)
    def forward(self, x):
        return self.a(x)
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for width in (4, 4, 5):
    model(torch.ones(2, width)).sum().backward()
    optimizer.step()
"""


def test_a_traceback_shows_the_programs_frames(tmp_path):
    (tmp_path / "train.py").write_text(FAILS)
    wanted, found = run(sys.executable, "train.py", cwd=tmp_path), run(*TRAINC, "train.py", cwd=tmp_path)
    shown = re.findall(r'File "(.*)", line (\d+), in (.*)', found.stderr)
    package = os.path.dirname(os.path.dirname(__import__("trainc").__file__))
    assert found.returncode == 1 and not any(path.startswith(package) for path, _, _ in shown), found.stderr
    own = [entry for entry in shown if entry[0].endswith("train.py")]
    assert own == [entry for entry in re.findall(r'File "(.*)", line (\d+), in (.*)', wanted.stderr) if "train.py" in entry[0]]
    assert found.stderr.rstrip().splitlines()[-1] == wanted.stderr.rstrip().splitlines()[-1]
    assert "failed while attempting" not in found.stderr


def test_the_programs_own_excepthook_is_called(tmp_path):
    hook = "sys.excepthook = lambda k, v, t: print('mine', [f.name for f in traceback.extract_tb(t)])"
    (tmp_path / "train.py").write_text(f"import sys, traceback\n{hook}\n1 / 0\n")
    found = run(*TRAINC, "train.py", cwd=tmp_path)
    assert found.returncode == 1 and found.stdout == "mine ['<module>']\n" and "Traceback" not in found.stderr


WORKERS = """
import torch
from torch.utils.data import DataLoader, Dataset
class Numbers(Dataset):
    def __len__(self):
        return 8
    def __getitem__(self, i):
        return torch.full((4,), float(i))
def collate(rows):
    return torch.stack(rows) / 8
if __name__ == "__main__":
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x in DataLoader(Numbers(), 4, num_workers=1, collate_fn=collate, multiprocessing_context="spawn"):
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print("loss", loss.item())
"""


def test_spawned_workers_find_the_programs_functions(tmp_path):
    (tmp_path / "train.py").write_text(WORKERS)
    wanted, found = run(sys.executable, "train.py", cwd=tmp_path), run(*TRAINC, "train.py", cwd=tmp_path)
    assert found.returncode == 0, found.stderr
    assert max(relative(losses_of(found.stdout), losses_of(wanted.stdout))) < 1e-6


DISTRIBUTED = """
import sys, torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
dist.init_process_group("gloo")
torch.manual_seed(0)
inner = DDP(torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1)))
model = torch.nn.Sequential(inner, torch.nn.Linear(1, 1)) if sys.argv[1] == "deeper" else inner
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for i in range(4):
    loss = model(torch.full((3, 4), i / 4.0)).sub(1).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("loss", loss.item(), flush=True)
dist.destroy_process_group()
"""


@pytest.mark.sampled(2)
@pytest.mark.parametrize("where", ["outermost", "deeper"])
def test_under_torchrun(tmp_path, where):
    (tmp_path / "train.py").write_text(DISTRIBUTED)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=1"]
    wanted = run(*torchrun, "train.py", where, cwd=tmp_path)
    found = run(*torchrun, "-m", "trainc", "run", "--explain", "train.py", where, cwd=tmp_path)
    assert found.returncode == 0, found.stderr
    assert len(losses_of(found.stdout)) == 4
    assert max(relative(losses_of(found.stdout), losses_of(wanted.stdout))) < 1e-6
    refused = re.findall(r"^trainc run: Sequential runs in PyTorch: .*DistributedDataParallel.*$", found.stderr, re.MULTILINE)
    assert len(refused) == (1 if where == "deeper" else 0), found.stderr
    assert ("compiled for 1 signature" in found.stderr) == (where == "outermost"), found.stderr


def test_options(tmp_path):
    (tmp_path / "train.py").write_text(PROGRAMS["epochs"][0])
    plain = forked.run([*FORKED, "train.py"], cwd=tmp_path)
    assert forked.run([*FORKED, "--memory", "1.0", "train.py"], cwd=tmp_path).stdout == plain.stdout
    tight = forked.run([*FORKED, "--memory", "100B", "train.py"], cwd=tmp_path)
    assert tight.returncode == 1 and "memory='100B' cannot be met" in tight.stderr, tight.stderr
    last = re.findall(r'File ".*[/"](.*)", line', tight.stderr)[-1]
    assert last == "train.py", tight.stderr  # no frames of what found it out
    eager = forked.run(["train.py"], cwd=tmp_path)
    assert forked.run([*FORKED, "--eager", "train.py"], cwd=tmp_path).stdout == eager.stdout


@pytest.mark.parametrize("name", ["compiles_with_torch", "compiles_with_trainc"])
def test_eager_compiles_nothing(tmp_path, name):
    text = PROGRAMS[name][0].replace('backend="aot_eager"', "backend=lambda gm, _: print('graph') or gm.forward")
    (tmp_path / "train.py").write_text(text)
    found = forked.run([*FORKED, "--eager", "train.py"], cwd=tmp_path)
    plain = re.sub(r"torch\.compile\(model.*\)$", "model", text, flags=re.MULTILINE)
    plain = plain.replace("trainc.compile(model, torch", "(model, torch").replace("import trainc", "")
    (tmp_path / "plain.py").write_text(plain)
    assert found.stdout == forked.run(["plain.py"], cwd=tmp_path).stdout


PENALTY = """
import torch
class Critic(torch.nn.Sequential):
    pass
torch.manual_seed(0)
critic = Critic(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
optimizer = torch.optim.Adam(critic.parameters())
for i in range(4):
    x = torch.randn(5, 4, requires_grad=True)
    out = critic(x)
    slope, = torch.autograd.grad(out.sum(), x, create_graph=True)
    loss = out.mean() + (slope.norm(2, 1) - 1).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("loss", loss.item())
"""


def test_gradients_of_gradients(tmp_path):
    (tmp_path / "train.py").write_text(PENALTY)
    found = forked.run([*FORKED, "train.py"], cwd=tmp_path)
    assert found.returncode == 0 and "gradients of its gradients" in found.stderr, found.stderr
    eager = forked.run(["train.py"], cwd=tmp_path)
    assert found.stdout == eager.stdout
    found = forked.run([*FORKED, "--leave", "Critic", "train.py"], cwd=tmp_path)
    assert found.returncode == 0, found.stderr
    assert found.stdout == eager.stdout


def test_nothing_to_compile_is_said(tmp_path):
    (tmp_path / "train.py").write_text("print('nothing')\n")
    found = forked.run([*FORKED, "train.py"], cwd=tmp_path)
    assert found.stdout == "nothing\n" and "nothing was compiled: no optimizer was made" in found.stderr
    (tmp_path / "train.py").write_text(FAILS.replace("model(torch", "model.forward(torch").replace(", 5)", ")"))
    found = forked.run([*FORKED, "train.py"], cwd=tmp_path)
    assert found.returncode == 0 and "model(x) is compiled, model.forward(x)" in found.stderr, found.stderr


ON_JAX = """
import sys, jax, jax.numpy as jnp
step = jax.jit(lambda w, x: w - 0.1 * jax.grad(lambda w: jnp.square(x @ w).mean())(w))
print(step(jnp.ones(3), jnp.ones((2, 3))), "torch" in sys.modules)
"""


@pytest.mark.parametrize("options", [[], ["--eager"], ["--explain"]])
def test_a_program_that_does_not_import_pytorch_does_not_wait_for_it(tmp_path, options):
    (tmp_path / "train.py").write_text(ON_JAX)
    found = run(*TRAINC, *options, "train.py", cwd=tmp_path)
    assert found.returncode == 0, found.stderr
    assert found.stdout == run(sys.executable, "train.py", cwd=tmp_path).stdout and "False" in found.stdout


BY_TRAINC = """
import sys, trainc
assert "torch" not in sys.modules
try:
    trainc.compile(1)  # PyTorch's first import is trainc's
except ValueError as error:
    print(error)
import torch
model = torch.nn.Sequential(torch.nn.Linear(2, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model(torch.ones(1, 2)).sum().backward()
print(torch.compiler.get_stance() if hasattr(torch.compiler, "get_stance") else "", trainc.compile(model) is model)
"""


@pytest.mark.parametrize("options", [["--explain"], ["--eager"]])
def test_the_programs_first_import_of_pytorch_is_trainc_s(tmp_path, options):
    (tmp_path / "train.py").write_text(BY_TRAINC)
    found = run(*TRAINC, *options, "train.py", cwd=tmp_path)
    assert found.returncode == 0, found.stderr
    assert ("compiled for 1 signature" in found.stderr) == (options == ["--explain"]), found.stderr


def test_a_failure_of_ours_leaves_the_program_alone(monkeypatch):
    import torch

    from trainc.torch.doors import trained

    def fail(*_, **__):
        raise AssertionError("ours")

    model = torch.nn.Sequential(torch.nn.Linear(2, 2))
    with trained.Compiling() as compiling:
        monkeypatch.setattr(trained, "compile_objects", fail)
        torch.optim.SGD(model.parameters(), lr=0.1)
        with pytest.warns(UserWarning, match="Sequential runs in PyTorch; AssertionError: ours"):
            assert torch.equal(model(torch.ones(1, 2)), model[0](torch.ones(1, 2)))
        assert compiling.refused == 1
        monkeypatch.setattr(trained, "_modules", fail)
        with pytest.warns(UserWarning, match="what SGD trains runs in PyTorch"):
            torch.optim.SGD(torch.nn.Linear(2, 2).parameters(), lr=0.1)


@pytest.mark.parametrize("stderr", ["none", "closed", "plain"])
def test_a_program_may_do_with_stderr_what_it_likes(tmp_path, monkeypatch, stderr):
    import torch

    import trainc

    closed = (tmp_path / "log.txt").open("w")
    closed.close()
    written = []
    plain = types.SimpleNamespace(write=written.append, flush=lambda: None)  # a logger of the program's: no isatty
    monkeypatch.setattr(sys, "stderr", {"none": None, "closed": closed, "plain": plain}[stderr])
    monkeypatch.setattr(trainc.config, "fallback", False)
    monkeypatch.setattr(trainc.config, "log", "info")
    monkeypatch.setattr(trainc.config, "cache", False)
    model = trainc.compile(torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Tanh()))
    model(torch.ones(1, 2)).sum().backward()
    assert [each.route for each in trainc.explain(model).compilations] == ["compiled"]
    assert bool(written) == (stderr == "plain")


def test_a_warning_that_cannot_be_shown(tmp_path, monkeypatch):
    from trainc.base import messages

    def show(*_, **__):
        raise ValueError("I/O operation on closed file")

    monkeypatch.setattr(warnings, "warn", show)
    with pytest.raises(ValueError):
        messages.warn("this")
    closed = (tmp_path / "log.txt").open("w")
    closed.close()
    monkeypatch.setattr(sys, "stderr", closed)
    messages.warn("this")


def test_eager_compiles_nothing_of_trainers():
    """Their callbacks do not go through trainc.compile."""
    import torch

    from trainc.cli.compiling import eager
    from trainc.torch.doors import door

    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters())
    with eager():
        door.compile_objects(model, optimizer, tune="fast", memory=None, fuse_step=False, verify=False)
        door.compile_optimizer(optimizer)
    assert model._compiled_call_impl is None and "step" not in vars(optimizer)
    door.compile_objects(model, optimizer, tune="fast", memory=None, fuse_step=False, verify=False)
    assert model._compiled_call_impl is not None and "step" in vars(optimizer)


def test_the_end_is_told_once_and_fails_nothing(monkeypatch, capsys):
    import torch

    from trainc.cli import compiling

    def train(**options):
        with compiling.Compiling(explain=True, **options) as found:
            for _ in range(2):
                model = torch.nn.Sequential(torch.nn.Linear(2, 2))
                torch.optim.SGD(model.parameters())
                model(torch.ones(1, 2))
        return found, capsys.readouterr().err

    monkeypatch.setattr(compiling, "MOST", 1)
    found, said = train()
    assert len(found._kept) == 1 and said.count("Sequential: compiled for 1 signature") == 1
    assert "2 models were compiled; the first 1 are told of" in said
    monkeypatch.setattr(compiling.trainc, "explain", lambda model: 1 / 0)
    assert "what was compiled cannot be told; ZeroDivisionError" in train()[1]
    processes = iter([1, 2])
    monkeypatch.setattr(os, "getpid", lambda: next(processes, 2))
    assert train()[1] == ""  # of a process that was forked


def test_the_end_without_pytorch_fails_nothing(monkeypatch, capsys):
    from trainc.cli import around

    monkeypatch.setattr(around, "when_imported", lambda name, action: None)
    monkeypatch.setattr(around.on_import, "watch", lambda: None)
    with around.compiling(True, "fast", None, [], None):
        pass
    assert "nothing was compiled: no optimizer was made" in capsys.readouterr().err
    monkeypatch.setattr(around.on_import, "compiled", lambda: 1 / 0)
    with around.compiling(True, "fast", None, [], None):
        pass
    assert "what was compiled cannot be told; ZeroDivisionError" in capsys.readouterr().err


def test_all_is_put_back():
    import torch

    from trainc.cli.compiling import Compiling

    before = torch.optim.Optimizer.__init__, torch.autograd.backward, torch.nn.Module.__call__
    seen = {}
    with Compiling():
        model = torch.nn.Sequential(torch.nn.Linear(2, 2))
        torch.optim.SGD(model.parameters())
        seen["scout"] = model._compiled_call_impl
        assert pickle.loads(pickle.dumps(model._compiled_call_impl)) is None  # of a module that writes its own state
    assert seen["scout"] is not None and model._compiled_call_impl is None
    assert before == (torch.optim.Optimizer.__init__, torch.autograd.backward, torch.nn.Module.__call__)


# ---- the report -------------------------------------------------------------------------------------------------------

TWO_MODELS = """
import os, torch
os.chdir("elsewhere")

class Net(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.a = torch.nn.Linear(8, width)

    def forward(self, x):
        return self.a(x).relu()

def train(width, optimizer):
    model = Net(width)
    optimizer = optimizer(model.parameters(), lr=0.1)
    for _ in range(2):
        model(torch.randn(4, 8)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

train(3, torch.optim.SGD)
train(5, torch.optim.AdamW)
"""


def test_it_writes_a_report_of_each_model(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "train.py").write_text(TWO_MODELS)
    found = forked.run([*FORKED, "--report", "report.html", "train.py"], cwd=tmp_path)
    assert found.returncode == 0, found.stderr
    pages = {path.name: path.read_text() for path in tmp_path.glob("*.html")}
    assert sorted(pages) == ["report-2.html", "report.html"]  # where it was called, whatever the program does
    for page, name in ((pages["report.html"], "SGD step"), (pages["report-2.html"], "AdamW step")):
        assert name in page and "No step was timed" not in page and "train.py:" in page
    assert re.search(r"trainc run: Net: report in .*report-2\.html$", found.stderr, re.MULTILINE)


@pytest.mark.parametrize("name, why", [("a.pdf", "neither"), ("none/a.html", "there is no folder")])
def test_a_report_that_cannot_be_is_refused_before_the_program_runs(tmp_path, name, why):
    (tmp_path / "train.py").write_text("print('it ran')")
    found = run(*TRAINC, "--report", name, "train.py", cwd=tmp_path)
    assert found.returncode == 2 and why in found.stderr and "it ran" not in found.stdout
