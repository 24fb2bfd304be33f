"""Programs run as `python` runs them, in processes that begin with PyTorch imported: forked from one that has done nothing else,
as its import is most of what a small program takes. Not for programs whose start is what is tested. What PyTorch may read of the
environment is as the program gets it: processes of another environment are forked from another one."""

from __future__ import annotations

import atexit
import builtins
import contextlib
import functools
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import types

import torch

# Nothing reads them but trainc, tests, gloo when a group is made, and Python for its path, which is made anew below.
LATER = ("TRAINC_", "PYTEST_", "GLOO_SOCKET_IFNAME", "PYTHONPATH")


class Process:
    """What a test needs of subprocess.Popen."""

    def __init__(self, words: list[str], said: str, complained: str, cwd: str | None, env: dict[str, str] | None):
        env = dict(os.environ if env is None else env)
        if torch.version.cuda is not None:  # CUDA is not for processes that were forked
            with open(said, "a") as out, open(complained, "a") as err:
                own = subprocess.Popen([sys.executable, *words], stdout=out, stderr=err, cwd=cwd, env=env, start_new_session=True)
            self.pid, self._ask = own.pid, lambda _: own.poll()
        else:
            self._ask = _parent(tuple(sorted(item for item in env.items() if not item[0].startswith(LATER))))
            asked = {"words": words, "said": said, "complained": complained, "cwd": cwd or os.getcwd(), "env": env}
            self.pid = self._ask(asked)
        self.returncode = None

    def poll(self) -> int | None:
        if self.returncode is None:
            self.returncode = self._ask({"pid": self.pid})
        return self.returncode

    def wait(self, timeout: float = float("inf")) -> int:
        end = time.monotonic() + timeout
        while self.poll() is None:
            if time.monotonic() > end:
                raise subprocess.TimeoutExpired(str(self.pid), timeout)
            time.sleep(0.01)
        return self.returncode

    def kill(self) -> None:
        """Also what it forked, whether it is over or not."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)


def start(words: list, said: str, complained: str, cwd=None, env=None) -> Process:
    """`words`: what stands behind `python`: a file, -c and a program or -m and a module, and what it gets. `said` and
    `complained`: the files of its stdout and stderr, which may be the same."""
    return Process([*map(str, words)], str(said), str(complained), cwd and str(cwd), env)


def run(words: list, cwd=None, env=None, timeout: float = 300) -> subprocess.CompletedProcess:
    """As subprocess.run([sys.executable, *words], capture_output=True, text=True)."""
    with tempfile.TemporaryDirectory() as folder:
        files = [os.path.join(folder, name) for name in ("said", "complained")]
        process = start(words, *files, cwd, env)
        try:
            process.wait(timeout)
        finally:
            process.kill()
            process.wait()
        texts = []
        for file in files:
            with open(file) as text:
                texts.append(text.read())
    return subprocess.CompletedProcess(words, process.returncode, *texts)


@functools.cache
def _parent(environment: tuple):
    """Asks the process from which those of this environment are forked; it ends when this one does."""
    path = {"PYTHONPATH": os.environ["PYTHONPATH"]} if "PYTHONPATH" in os.environ else {}
    parent = subprocess.Popen(
        [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**dict(environment), **path}
    )

    @atexit.register
    def end() -> None:
        parent.stdin.close()
        parent.wait()

    def ask(question: dict):
        print(json.dumps(question), file=parent.stdin, flush=True)
        return json.loads(parent.stdout.readline())

    return ask


# ---- in that process ------------------------------------------------------------------------------------------------


def forked() -> dict:
    """What a process is to run, in that process."""
    import torch._dynamo
    import torch.distributed.fsdp  # noqa: F401

    assert "trainc" not in sys.modules
    questions, answers = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
    for line in questions:
        asked = json.loads(line)
        if "pid" in asked:
            pid, status = os.waitpid(asked["pid"], os.WNOHANG)
            answer = os.waitstatus_to_exitcode(status) if pid else None
        elif not (answer := os.fork()):
            os.setpgid(0, 0)  # here and in the parent, as either may run first
            questions.close()
            answers.close()
            return asked
        else:
            os.setpgid(answer, answer)  # its group is what is killed, from the moment its number is known
        print(json.dumps(answer), file=answers, flush=True)
    sys.exit()


def become(asked: dict) -> tuple[str, str]:
    """The program and its name, once all is as Python makes it."""
    for place, file in enumerate((os.devnull, asked["said"], asked["complained"])):
        opened = os.open(file, os.O_RDWR if place == 0 else os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(opened, place)
        os.close(opened)
    os.chdir(asked["cwd"])
    before, after = (each.get("PYTHONPATH", "").split(os.pathsep) for each in (os.environ, asked["env"]))
    os.environ.clear()
    os.environ.update(asked["env"])
    first, *others = asked["words"]
    rest = [entry for entry in sys.path[1:] if entry not in before]
    folder = {"-c": "", "-m": os.getcwd()}.get(first, os.path.dirname(os.path.realpath(first)))
    sys.path[:] = [folder, *filter(None, after), *rest]
    sys.argv[:] = [first, *others[1:]] if first in ("-c", "-m") else asked["words"]
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    vars(main)["__builtins__"] = builtins
    if first == "-c":
        return others[0], "<string>"
    if first == "-m":  # as the interpreter itself does it
        return f"import runpy; runpy._run_module_as_main({others[0]!r})", "<string>"
    main.__file__ = os.path.abspath(first)
    with open(first) as file:
        return file.read(), main.__file__


if __name__ == "__main__":
    own = sys.modules["__main__"]
    program = become(forked())
    exec(compile(*program, "exec", dont_inherit=True), vars(sys.modules["__main__"]))
