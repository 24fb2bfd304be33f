"""Which architectures are one and the same but for their names: many of transformers' files are copies of each other."""

from __future__ import annotations

import ast
import hashlib
import inspect
import json
import re
import sys
import textwrap
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedConfig

_NAMES = ("model_type", "architectures", "transformers_version", "_name_or_path")


def fingerprint(model: nn.Module, batch: Mapping[str, Any]) -> str:
    """Of the source of all classes that the model is made of, of the functions beside them, of its configuration and its batch's
    shapes; names that come from the architecture's own left out."""
    kinds = dict.fromkeys(kind for module in model.modules() for kind in type(module).__mro__ if _is_of_models(kind.__module__))
    files = dict.fromkeys(kind.__module__ for kind in kinds)
    functions = [f for file in files for f in vars(sys.modules[file]).values() if inspect.isfunction(f) and f.__module__ == file]
    parts = [_plain(inspect.getsource(thing)) for thing in (*kinds, *functions)]
    parts.append(json.dumps(_settings(model.config.to_dict()), sort_keys=True, default=str))
    parts.append(str([(name, getattr(value, "shape", value)) for name, value in batch.items()]))
    parts.append(str([tuple(parameter.shape) for parameter in model.parameters()]))
    text = "\n".join(sorted(_without(part, _own_names(model.config)) for part in parts))
    return hashlib.sha256(f"{torch.__version__}\n{text}".encode()).hexdigest()[:16]


def _is_of_models(module: str) -> bool:
    return module.startswith("transformers.models.")


def _plain(source: str) -> str:
    """Without comments and what documents it."""
    tree = ast.parse(textwrap.dedent(source))
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            node.body = [each for each in node.body if not _is_text(each)] or [ast.Pass()]
            node.decorator_list = [each for each in node.decorator_list if "docstring" not in ast.unparse(each)]
    return ast.unparse(tree)


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _settings(config: Any) -> Any:
    if isinstance(config, dict):
        return {key: _settings(value) for key, value in config.items() if key not in _NAMES}
    return [_settings(item) for item in config] if isinstance(config, (list, tuple)) else config


def _own_names(config: PreTrainedConfig) -> re.Pattern:
    within = [config, *(value for value in vars(config).values() if isinstance(value, PreTrainedConfig))]
    names = {type(each).__name__.removesuffix("Config") for each in within} | {
        each.model_type.replace("-", "_") for each in within
    }
    names |= {name.lower() for name in names}
    return re.compile("|".join(sorted(map(re.escape, names - {""}), key=len, reverse=True)))


def _without(text: str, names: re.Pattern) -> str:
    return names.sub("", text)
