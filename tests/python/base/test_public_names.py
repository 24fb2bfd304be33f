"""What is public has a docstring: every name of the package, every switch, whatever a user gets back."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path

import pytest

import trainc
from trainc import jax
from trainc.base import config, messages
from trainc.base.memory import Memory
from trainc.base.page.report import Report
from trainc.base.report import Explanation, Remark, Totals

ROOT = Path(__file__).resolve().parents[3]
RETURNED = [Explanation, Totals, Remark, Memory, Report]


def undocumented(thing: object, name: str) -> list[str]:
    """`thing` and, of a class, its own public methods and properties."""
    found = [] if len(thing.__doc__ or "") > 15 else [name]
    members = vars(thing).items() if isinstance(thing, type) and thing.__module__.startswith("trainc.") else ()
    for member, value in members:
        if not member.startswith("_") and (inspect.isfunction(value) or isinstance(value, property)):
            found += undocumented(value, f"{name}.{member}")
    return found


def test_every_public_name_has_a_docstring():
    named = {name: getattr(trainc, name) for name in trainc.__all__ if name != "__version__"}
    named |= {f"jax.{name}": getattr(jax, name) for name in jax.__all__} | {each.__name__: each for each in RETURNED}
    named |= {each.__name__: each for each in (messages.TraincWarning, messages.RecompileWarning)}
    assert [missing for name, thing in named.items() for missing in undocumented(thing, name)] == []


@pytest.mark.parametrize("room", ["huggingface", "lightning"])
def test_the_callbacks_have_docstrings(room):
    """By their text: their frameworks need not be installed."""
    tree = ast.parse((ROOT / "python" / "trainc" / "trainers" / f"{room}.py").read_text())
    assert ast.get_docstring(tree)
    assert all(ast.get_docstring(node) for node in tree.body if isinstance(node, ast.ClassDef))


def test_every_switch_says_what_it_does():
    body = ast.parse(Path(config.__file__).read_text()).body
    switches = {}
    for node, after in zip(body, [*body[1:], None], strict=True):
        if isinstance(node, ast.AnnAssign):
            is_text = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) and isinstance(after.value.value, str)
            switches[node.target.id] = after.value.value if is_text else ""
    assert {"fallback", "cache", "log"} <= set(switches) and [name for name, text in switches.items() if not text] == []


def test_a_name_without_one_is_seen():
    class Bare:
        """Has one, of some length."""

        def method(self): ...

    Bare.__module__ = "trainc.made_up"
    assert undocumented(Bare, "Bare") == ["Bare.method"]


def test_the_version_stands_in_one_place():
    assert re.fullmatch(r"\d+\.\d+\.\d+(-[\w.]+)?", trainc.__version__)  # semver.org
    for file in ("pyproject.toml", "CMakeLists.txt"):
        assert trainc.__version__ not in (ROOT / file).read_text()
    newest = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest[1] == trainc.__version__
