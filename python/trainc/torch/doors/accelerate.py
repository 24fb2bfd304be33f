"""accelerate keeps a closed list of Dynamo backends; Hugging Face's Trainer asks it. `import trainc` adds "trainc" to it,
at once where accelerate is loaded, else when it is. Its optimizers wrap PyTorch's."""

from __future__ import annotations

import sys
from typing import Any

_MODULE = "accelerate.utils.dataclasses"


def register() -> None:
    module = sys.modules.get(_MODULE)
    if module is not None:
        _add(module)
    elif not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


def inner_optimizer(optimizer: Any) -> Any:
    """The optimizer within accelerate's wrapper; any other itself."""
    while type(optimizer).__module__.partition(".")[0] == "accelerate" and hasattr(optimizer, "optimizer"):
        optimizer = optimizer.optimizer
    return optimizer


def _add(module) -> None:
    backends = getattr(module, "DynamoBackend", None)
    if backends is None or "TRAINC" in backends.__members__:
        return
    member = str.__new__(backends, "TRAINC") if issubclass(backends, str) else object.__new__(backends)
    member._name_, member._value_ = "TRAINC", "TRAINC"
    backends._member_map_["TRAINC"] = member
    backends._member_names_.append("TRAINC")
    backends._value2member_map_["TRAINC"] = member


class _Finder:
    """Lets the other finders find accelerate's module and adds to it once it has run."""

    def find_spec(self, name, path, target=None):
        if name != _MODULE:
            return None
        import importlib.util  # here, for `import trainc` is to take no time

        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return None
        run = spec.loader.exec_module

        def exec_module(module):
            run(module)
            _add(module)

        spec.loader.exec_module = exec_module
        return spec
