"""What is to happen when the program imports a module, which is not imported for that."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any


def when_imported(name: str, action: Callable[[Any], None]) -> None:
    """`action(module)`: now where the program has imported it, else once it has run."""
    module = sys.modules.get(name)
    if module is not None:
        action(module)
    elif not any(isinstance(finder, _Finder) and finder.name == name for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder(name, action))


class _Finder:
    """Lets the other finders find the module, and adds to it once it has run. It stays until then: a program may look whether
    there is such a module (`importlib.util.find_spec`) before it imports it."""

    def __init__(self, name: str, action: Callable[[Any], None]):
        self.name, self._action = name, action
        self._here = threading.local()  # in a thread that asks the other finders: `looks`

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name != self.name or getattr(self._here, "looks", False):
            return None
        import importlib.util  # here, for `import trainc` is to take no time

        self._here.looks = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._here.looks = False
        if spec is None or spec.loader is None:
            return None
        run = spec.loader.exec_module

        def exec_module(module: Any) -> None:
            run(module)
            if module.__name__ == name and self in sys.meta_path:  # an archive has one loader for all of its modules
                sys.meta_path.remove(self)
                self._action(module)

        spec.loader.exec_module = exec_module
        return spec


__all__ = ["when_imported"]
