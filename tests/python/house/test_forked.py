"""Processes that are forked (forked.py) find what those that Python starts find."""

from __future__ import annotations

import os
import subprocess
import sys

import forked
import pytest

PROGRAM = """
import os, sys, threading
main = sys.modules["__main__"]
print(sys.argv, sys.path, __name__, vars(main) is globals(), globals().get("__file__"), os.getcwd(), "trainc" in sys.modules)
print(sorted(os.environ.items()), sys.stdin.read(), threading.active_count(), os.getpgid(0) == os.getpid())
print("complains", file=sys.stderr)
"""


@pytest.mark.parametrize("kind", ["file", "code", "module"])
def test_it_finds_what_python_gives_a_program(tmp_path, kind):
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "show.py").write_text(PROGRAM + "sys.exit(3)")
    words = {
        "file": ["sub/show.py", "a", "b"], "code": ["-c", PROGRAM + "sys.exit(3)", "a"], "module": ["-m", "sub.show", "a"],
    }[kind]  # fmt: skip
    given = {"env": {**os.environ, "TRAINC_LOG": "none", "PYTHONPATH": f"{tmp_path}:{tmp_path}/other"}, "cwd": tmp_path}
    found = forked.run(words, **given)
    command = [sys.executable, *words]
    wanted = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, start_new_session=True, **given
    )
    assert (found.returncode, found.stdout, found.stderr) == (wanted.returncode, wanted.stdout, wanted.stderr)


def test_it_ends_as_python_ends():
    assert forked.run(["-c", "import atexit; atexit.register(print, 'last')"]).stdout == "last\n"
    failed = forked.run(["-c", "1 / 0"])
    assert failed.returncode == 1 and failed.stderr.endswith("ZeroDivisionError: division by zero\n")
    assert forked.run(["-c", "import os; os.abort()"]).returncode == -6
    with pytest.raises(subprocess.TimeoutExpired):
        forked.run(["-c", "import time; time.sleep(60)"], timeout=0.1)
