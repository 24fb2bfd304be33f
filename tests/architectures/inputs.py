"""What a model of `transformers` is called with: random values of the kinds and shapes that its configuration and the names of
its forward's parameters say."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from configurations import LENGTH
from torch import nn
from transformers import PreTrainedConfig

Kind = Callable[[PreTrainedConfig, torch.Generator], torch.Tensor]
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
    told = getattr(model, "main_input_name", "input_ids")
    mains = [name for name in ([told] if isinstance(told, str) else told) if name in parameters] or ["input_ids"]
    known = _KINDS.keys() | _IN_PATCHES
    needed = [name for name, p in parameters.items() if name in known and (name in mains or p.default is p.empty)] or mains
    wanted, few = (
        [name for name, others in table.items() if name in parameters and {*mains, *needed} & {*others} and name not in needed]
        for table in (_BESIDE, _FEW)
    )
    kinds = {**_KINDS, **_IN_PATCHES} if {"image_grid_thw", "grid_thw"} & parameters.keys() else _KINDS
    for names in dict.fromkeys(((*needed, *wanted), (*needed, *wanted, *few), tuple(needed))):
        generator = torch.Generator().manual_seed(seed)
        yield {name: kinds[name](model.config, generator) for name in names}


_PLACES = re.compile(r"features and (image |audio |video )?tokens do not match.*features:? *(\d+)", re.IGNORECASE | re.DOTALL)
_CHANNELS = re.compile(r"expected input\[.*\] to have (\d+) channels")


def adapted(model: nn.Module, given: Mapping[str, torch.Tensor], error: Exception) -> list[dict[str, torch.Tensor]]:
    """Other batches, as the model's `error` about this one asks for: with as many places in the text as there are features of
    images (or sounds), with several images a text or pairs of them, with features before times, with a sound's channel."""
    text = str(error)
    found, channels = _PLACES.search(text), _CHANNELS.search(text)
    if found and "input_ids" in given and (token := find(model.config, *_PLACED)) is not None:
        told, width = int(found[2]) // BATCH, find(model.config.get_text_config(), "hidden_size", "d_model", default=1)
        return [_with_places(given, token, count) for count in dict.fromkeys((told, told // width)) if 0 < count < 10 * LENGTH]
    if "`mm_token_type_ids` is missing" in text and "input_ids" in given:  # which tokens are images'
        return [{**given, "mm_token_type_ids": (given["input_ids"] == find(model.config, *_PLACED)).long()}]
    if "expected 5, got 4" in text and "pixel_values" in given:
        return [{**given, "pixel_values": given["pixel_values"][:, None]}]
    if "shape (batch_size, 2, num_channels" in text and given["pixel_values"].dim() == 4:
        return [{**given, "pixel_values": torch.stack([given["pixel_values"], given["pixel_values"].flip(0)], 1)}]
    mono = "must be mono" in text or channels and channels[1] == "1"
    if mono and "input_values" in given and given["input_values"].dim() == 2:
        return [{**given, "input_values": given["input_values"][:, None]}]
    if "range of [-3, 2], but got 3" in text and "input_features" in given:
        return [{**given, "input_features": given["input_features"][:, None]}]
    if channels and "input_features" in given and int(channels[1]) in given["input_features"].shape[1:]:
        return [{**given, "input_features": given["input_features"].transpose(1, 2).contiguous()}]
    return []


_PLACED = ("image_token_id", "image_token_index", "audio_token_id", "audio_token_index")


def _with_places(given: Mapping[str, torch.Tensor], token: int, count: int) -> dict[str, torch.Tensor]:
    ids = torch.cat([given["input_ids"][:, :1], torch.full((BATCH, count), token), given["input_ids"][:, 1:]], 1)
    return {name: ids if value is given["input_ids"] else value for name, value in given.items()}


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
    side = find(config, "image_size", "crop_size", "max_img_size", default=64)
    sides = tuple(side) if isinstance(side, (list, tuple)) else (side, side)
    shape: tuple[int, ...] = (BATCH, find(config, "num_channels", "in_channels", "in_chans", default=3), *sides)
    if (frames := find(config, "num_frames", "frames_per_clip")) is not None:
        shape = (shape[0], frames, *shape[1:])
    return torch.randn(shape, generator=generator)


SIDE = 4  # of an image that comes as patches


def _patches(config: PreTrainedConfig, generator: torch.Generator) -> torch.Tensor:
    """Those of all images, each flattened, with its times."""
    patch, channels = find(config, "patch_size", default=14), find(config, "in_channels", "in_chans", "num_channels", default=3)
    width = channels * find(config, "temporal_patch_size", default=1) * patch * patch
    return torch.randn(BATCH * SIDE * SIDE, width, generator=generator)


def _grids(config: PreTrainedConfig, generator: torch.Generator) -> torch.Tensor:
    """Times, rows and columns of each image."""
    return torch.tensor([[1, SIDE, SIDE]] * BATCH)


def _sizes(config: PreTrainedConfig, generator: torch.Generator) -> torch.Tensor:
    return torch.tensor([_image(config, generator).shape[-2:]] * BATCH)


def _sound(config: PreTrainedConfig, generator: torch.Generator) -> torch.Tensor:
    if (bins := find(config, "num_mel_bins")) is not None and (length := find(config, "max_length")) is not None:
        return torch.randn(BATCH, length, bins, generator=generator)  # a spectrogram under the name of a sound
    channels = find(config, "audio_channels")
    return torch.randn((BATCH, SAMPLES) if channels is None else (BATCH, channels, SAMPLES), generator=generator)


def _features(config: PreTrainedConfig, generator: torch.Generator) -> torch.Tensor:
    bins = find(
        config, "feature_projection_input_dim", "num_mel_bins", "feature_size", "input_dim", "num_mel_channels", default=80
    )
    if (positions := find(config, "max_source_positions")) is not None and hasattr(config, "encoder_layers"):
        return torch.randn(BATCH, bins, 2 * positions, generator=generator)
    return torch.randn(BATCH, 64, bins, generator=generator)


def _ones(config: PreTrainedConfig, generator: torch.Generator) -> torch.Tensor:
    return torch.ones(BATCH, LENGTH, dtype=torch.int64)


def _boxes(config: PreTrainedConfig, generator: torch.Generator) -> torch.Tensor:
    """Of words on a page: left, top, right, bottom."""
    corners = torch.randint(0, 64, (BATCH, LENGTH, 2, 2), generator=generator)
    return corners.sort(dim=2).values.flatten(2)


def _frames(config: PreTrainedConfig, generator: torch.Generator) -> torch.Tensor:
    return torch.randn(BATCH, 64, find(config, "input_feat_size", default=128), generator=generator)


def _embedded(config: PreTrainedConfig, generator: torch.Generator) -> torch.Tensor:
    return torch.randn(BATCH, LENGTH, find(config.get_text_config(), "hidden_size", "d_model", default=64), generator=generator)


def _encoded(config: PreTrainedConfig, generator: torch.Generator) -> torch.Tensor:
    return torch.randn(BATCH, LENGTH, find(config, "encoder_hidden_size", "hidden_size", default=64), generator=generator)


def _course(width: str = "") -> Kind:
    """What is known of an agent at each time: so wide, or one number."""

    def course(config: PreTrainedConfig, generator: torch.Generator) -> torch.Tensor:
        return torch.randn(BATCH, LENGTH, find(config, width) if width else 1, generator=generator)

    return course


def _series(past: bool, width: str = "", observed: bool = False) -> Kind:
    """Numbers in time, or what is known of these times: `width` says how much."""

    def series(config: PreTrainedConfig, generator: torch.Generator) -> torch.Tensor:
        ahead = find(config, "prediction_length", default=8)
        length = (find(config, "context_length") or ahead) + max(find(config, "lags_sequence") or [0]) if past else ahead
        shape = (BATCH, length, find(config, width)) if width else (BATCH, length)
        return torch.ones(shape) if observed else torch.rand(shape, generator=generator)

    return series


_KINDS: dict[str, Kind] = {
    "input_ids": _ids, "decoder_input_ids": _ids, "attention_mask": _ones, "pixel_values": _image, "pixel_values_videos": _image,
    "input_values": _sound, "input_features": _features, "bbox": _boxes, "audio_mel": _frames,
    "input_features_mask": lambda config, generator: torch.ones(_features(config, generator).shape[:2], dtype=torch.int64),
    "high_res_pixel_values": _image, "image_sizes": _sizes,
    "audio_mel_mask": lambda config, generator: torch.zeros(BATCH, 64, dtype=torch.bool),
    "past_values": _series(True), "past_time_features": _series(True, "num_time_features"),
    "past_observed_mask": _series(True, observed=True), "future_values": _series(False),
    "future_time_features": _series(False, "num_time_features"),
    "inputs_embeds": _embedded, "query_embeds": _embedded, "encoder_hidden_states": _encoded,
    "task_inputs": lambda config, generator: torch.randn(BATCH, find(config, "task_seq_len", default=77), generator=generator),
    "states": _course("state_dim"), "actions": _course("act_dim"), "rewards": _course(), "returns_to_go": _course(),
    "timesteps": lambda config, generator: torch.arange(LENGTH).expand(BATCH, LENGTH),
}  # fmt: skip
_IN_PATCHES: dict[str, Kind] = {"pixel_values": _patches, "hidden_states": _patches, "image_grid_thw": _grids, "grid_thw": _grids}
# What models with one of these main inputs may want, though it has a default: images, sounds, what belongs to the main input.
_BESIDE = {
    "decoder_input_ids": ("input_features", "input_values", "input_ids"), "pixel_values": ("input_ids",),
    "high_res_pixel_values": ("input_ids",), "image_grid_thw": ("input_ids", "pixel_values"),
    "grid_thw": ("hidden_states", "pixel_values"), "bbox": ("input_ids",), "input_features": ("input_ids",),
    "input_values": ("input_ids",), "input_features_mask": ("input_features",), "audio_mel_mask": ("audio_mel",),
    "past_time_features": ("past_values",), "past_observed_mask": ("past_values",), "future_values": ("past_values",),
    "future_time_features": ("past_values",), "encoder_hidden_states": ("query_embeds",), "actions": ("states",),
    "rewards": ("states",), "returns_to_go": ("states",), "timesteps": ("states",),
}  # fmt: skip
_FEW = {"image_sizes": ("input_ids",)}  # and what only some of them can do with
