"""What a model of `transformers` is called with: random values of the kinds and shapes that its configuration and the names of
its forward's parameters say."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from configurations import LENGTH
from torch import nn
from transformers import PreTrainedConfig

BATCH = 2
SAMPLES = 4000  # of a sound


def find(config: PreTrainedConfig, *names: str, default: Any = None) -> Any:
    """The first of these attributes that the configuration or one within it has."""
    waiting = [config]
    while waiting:
        each = waiting.pop(0)
        for name in names:
            if (value := getattr(each, name, None)) is not None:
                return value
        waiting += [value for value in vars(each).values() if isinstance(value, PreTrainedConfig)]
    return default


def batches(model: nn.Module, seed: int) -> Iterator[dict[str, torch.Tensor]]:
    """Keyword arguments of the model's forward: all that it may want to have, then the fewest."""
    parameters = inspect.signature(model.forward).parameters
    main = getattr(model, "main_input_name", "input_ids")
    needed = [name for name, p in parameters.items() if name in _KINDS and (name == main or p.default is p.empty)] or [main]
    wanted = [name for name, others in _BESIDE.items() if name in parameters and main in others and name not in needed]
    for names in ([*needed, *wanted], needed) if wanted else (needed,):
        generator = torch.Generator().manual_seed(seed)
        yield {name: _KINDS[name](model.config, generator) for name in names}


def labelled(model: nn.Module, given: Mapping[str, torch.Tensor], seed: int) -> dict[str, torch.Tensor] | None:
    """The batch with labels, where the model takes labels of a kind that its name tells."""
    if "labels" not in inspect.signature(model.forward).parameters:
        return None
    name = type(model).__name__
    if "input_ids" in given and name.endswith(("LMHeadModel", "ForCausalLM", "ForMaskedLM", "ForConditionalGeneration")):
        return {**given, "labels": given["input_ids"]}
    if name.endswith("Classification") and "Token" not in name:
        generator = torch.Generator().manual_seed(seed)
        return {**given, "labels": torch.randint(0, model.config.num_labels, (BATCH,), generator=generator)}
    return None


def loss_of(output: Any) -> torch.Tensor:
    """The model's own loss, or else a number that each of its results has a part in."""
    own = getattr(output, "loss", None)
    return own if isinstance(own, torch.Tensor) and own.requires_grad and own.dim() == 0 else sum(_parts(output))


def _parts(output: Any) -> list[torch.Tensor]:
    if isinstance(output, torch.Tensor):
        return [output.float().square().mean()] if output.requires_grad and output.numel() else []
    items = output.values() if isinstance(output, Mapping) else output if isinstance(output, (list, tuple)) else ()
    return [part for item in items for part in _parts(item)]


def _ids(config: PreTrainedConfig, generator: torch.Generator) -> torch.Tensor:
    size = find(config.get_text_config(), "vocab_size", default=find(config, "vocab_size", default=64))
    low = min(64, size // 2)  # special tokens have the first numbers
    return torch.randint(low, size, (BATCH, LENGTH), generator=generator)


def _image(config: PreTrainedConfig, generator: torch.Generator) -> torch.Tensor:
    side = find(config, "image_size", default=64)
    sides = tuple(side) if isinstance(side, (list, tuple)) else (side, side)
    shape: tuple[int, ...] = (BATCH, find(config, "num_channels", "in_channels", "in_chans", default=3), *sides)
    if (frames := find(config, "num_frames")) is not None:
        shape = (shape[0], frames, *shape[1:])
    return torch.randn(shape, generator=generator)


def _sound(config: PreTrainedConfig, generator: torch.Generator) -> torch.Tensor:
    channels = find(config, "audio_channels")
    return torch.randn((BATCH, SAMPLES) if channels is None else (BATCH, channels, SAMPLES), generator=generator)


def _features(config: PreTrainedConfig, generator: torch.Generator) -> torch.Tensor:
    bins = find(config, "num_mel_bins", "feature_size", "input_dim", "num_mel_channels", default=80)
    if (positions := find(config, "max_source_positions")) is not None and hasattr(config, "encoder_layers"):
        return torch.randn(BATCH, bins, 2 * positions, generator=generator)
    return torch.randn(BATCH, 64, bins, generator=generator)


def _ones(config: PreTrainedConfig, generator: torch.Generator) -> torch.Tensor:
    return torch.ones(BATCH, LENGTH, dtype=torch.int64)


_KINDS: dict[str, Callable[[PreTrainedConfig, torch.Generator], torch.Tensor]] = {
    "input_ids": _ids, "decoder_input_ids": _ids, "attention_mask": _ones, "pixel_values": _image, "pixel_values_videos": _image,
    "input_values": _sound, "input_features": _features,
}  # fmt: skip
# What models with one of these main inputs may need, though it has a default.
_BESIDE = {"decoder_input_ids": ("input_features", "input_values", "input_ids"), "pixel_values": ("input_ids",)}
