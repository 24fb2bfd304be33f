"""What is to happen when the program imports a module (base/on_import.py)."""

import importlib
import importlib.util
import sys
import zipfile

import pytest

from trainc.base.on_import import when_imported


@pytest.fixture
def module(tmp_path, monkeypatch):
    """The name of a module that nobody has imported, which says when it has run."""
    (tmp_path / "awaited.py").write_text("import sys\nif hasattr(sys, 'awaited_fails'):\n    raise ValueError\nready = True\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    yield "awaited"
    sys.modules.pop("awaited", None)


def test_it_happens_once_after_the_module_has_run(module):
    seen = []
    when_imported(module, lambda found: seen.append(found.ready))
    when_imported(module, lambda found: seen.append("twice"))
    assert not seen
    importlib.import_module(module)
    importlib.import_module(module)
    assert seen == [True]
    when_imported(module, lambda found: seen.append("at once"))
    assert seen == [True, "at once"]


def test_a_program_may_look_whether_it_is_there(module):
    """As transformers does for PyTorch and JAX."""
    seen = []
    when_imported(module, lambda found: seen.append(found.ready))
    for _ in range(2):
        assert importlib.util.find_spec(module) is not None
    assert not seen
    importlib.import_module(module)
    assert seen == [True]


def test_a_module_that_fails_may_be_imported_again(module, monkeypatch):
    seen = []
    when_imported(module, lambda found: seen.append(found.ready))
    monkeypatch.setattr(sys, "awaited_fails", True, raising=False)
    with pytest.raises(ValueError):
        importlib.import_module(module)
    monkeypatch.delattr(sys, "awaited_fails")
    importlib.import_module(module)
    assert seen == [True]


def test_of_an_archive_it_is_the_module_itself(tmp_path, monkeypatch):
    """All modules of an archive have one loader."""
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as archive:
        archive.writestr("packed/__init__.py", "import packed.part, beside\nready = True\n")
        archive.writestr("packed/part.py", "")
        archive.writestr("beside.py", "")
    monkeypatch.syspath_prepend(tmp_path / "all.zip")
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    seen = []
    when_imported("packed", lambda found: seen.append((found.__name__, found.ready)))
    try:
        assert importlib.util.find_spec("packed") is not None
        importlib.import_module("beside")
        assert not seen
        importlib.import_module("packed")
        assert seen == [("packed", True)]
    finally:
        for name in ("packed", "packed.part", "beside"):
            sys.modules.pop(name, None)


def test_what_is_not_there_is_not_found(monkeypatch):
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    when_imported("no_such_module", lambda found: None)
    assert importlib.util.find_spec("no_such_module") is None
