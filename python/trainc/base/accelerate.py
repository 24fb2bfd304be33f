"""accelerate keeps a closed list of Dynamo backends; Hugging Face's Trainer asks it. `import trainc` adds "trainc" to it,
at once where accelerate is loaded, else when it is. Its optimizers wrap PyTorch's."""

from __future__ import annotations

from typing import Any

from trainc.base.on_import import when_imported

_MODULE = "accelerate.utils.dataclasses"


def register() -> None:
    when_imported(_MODULE, _add)


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
