"""The source of a function, from which it is told what the function can reach."""

from __future__ import annotations

import importlib.util
import inspect
import types

import pytest
import torch

from trainc.torch.guards import code


def functions_of(module: types.ModuleType) -> list[types.CodeType]:
    owners = [module, *(value for value in vars(module).values() if isinstance(value, type))]
    found = (inspect.unwrap(value) for owner in owners for value in vars(owner).values() if callable(value))
    outer = [function.__code__ for function in found if isinstance(function, types.FunctionType)]
    return [each for one in outer if one.co_filename == module.__file__ for each in (one, *code._inner(one))]


@pytest.mark.parametrize(
    "module", [torch.nn.functional, torch.nn.modules.module, torch.nn.modules.activation, inspect], ids=lambda m: m.__name__
)
def test_it_is_the_source_that_inspect_finds(module):
    codes = functions_of(module)
    assert len(codes) > 5
    for each in codes:
        assert code._source(each) == inspect.getsource(each)


def test_it_is_that_of_the_file_as_it_is_now(tmp_path):
    file = tmp_path / "rewritten.py"
    narrow, wide = "return getattr(x, 'a')", "return getattr(x, name)"
    texts = [f"import {module}\n\n\ndef f(x, name):\n    {body}\n" for module, body in (("sys", narrow), ("os", wide))]
    for text, found in zip(texts, [(False, False), (True, False)], strict=True):
        file.write_text(text)
        spec = importlib.util.spec_from_file_location("rewritten", file)
        module = importlib.util.module_from_spec(spec)
        exec(compile(text, str(file), "exec"), module.__dict__)
        assert code._source(module.f.__code__) == text[text.index("def") :]
        assert code._reads_any_attribute(module.f.__code__, {"getattr"}) == found


def test_what_has_no_source_may_read_anything():
    space: dict = {}
    exec("def f(x): return getattr(x, 'a')", space)
    with pytest.raises(OSError):
        code._source(space["f"].__code__)
    assert code._reads_any_attribute(space["f"].__code__, {"getattr"}) == (True, True)
