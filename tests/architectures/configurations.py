"""Small configurations of the architectures of `transformers`, by rule from each one's defaults.

Widths are divided by one number, so that what is a product or a sum of others stays one (hidden size = heads * head size); counts
of layers and vocabularies are small. Where a model cannot be built so, less is made smaller: `variants` gives all attempts.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from typing import Any

from transformers import CONFIG_MAPPING, PreTrainedConfig

VOCABULARY = 256
LENGTH = 16  # of a text
IMAGE = 64  # pixels a side

_WIDTH = re.compile(r"(size|sizes|dim|dims|dimension|channels|width|widths|units|filters|rank|d_model|d_ff|d_kv|n_embd|n_inner)$"
                    r"|^dim_|_dim_|hidden_size|embed_dim")  # fmt: skip
_NO_WIDTH = re.compile(r"image|patch|window|kernel|chunk|block|vocab|codebook|crop|cache|grid|pool|input_size|group|context|token"
                       r"|num_channels|feature_size|output_size|mel|audio|batch|sample|memory|state|type|position")  # fmt: skip
_LAYERS = re.compile(r"^(num_hidden_layers|num_layers|n_layers?|depth|(encoder|decoder|num_encoder|num_decoder)_layers"
                     r"|num_hidden_groups|(text|vision|audio)_layers)$")  # fmt: skip
_DEPTHS = re.compile(r"depths$|repeats$|^(layers|stage_num_blocks|num_layers|num_blocks)$")  # of each stage, where it is a list
_HEADS = re.compile(r"heads?$")
_OF_HEAD = re.compile(r"head_(dim|size)$|^(qk|v)_(nope_|rope_)?head_dim$|^kv_channels$|^d_kv$")
_EXPERTS = re.compile(r"(?<!shared_)(?<!tok_)experts$")
_VOCABULARY = re.compile(r"vocab(ulary)?(_size)?(_per_layer_input)?$")
_TOKEN = re.compile(r"_token_(id|index)$|_token_ids$")
_FACTOR = re.compile(r"(width|depth)_(coefficient|multiplier)$")  # of a larger member of a family
# What is None by default and must be told.
_MISSING = {"prediction_length": 8, "n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2,
            "image_token_id": VOCABULARY - 1, "image_token_index": VOCABULARY - 1}  # fmt: skip
LEAST = 8  # a number below this is no width
MOST_EXPERTS = 16


@dataclasses.dataclass(frozen=True)
class Variant:
    """How far a configuration is from its defaults."""

    divisor: int  # of widths
    layers: int | None  # of each stack; None: as many as by default
    image: int | None  # pixels a side; None: as by default
    heads: bool = False  # whether there are fewer heads of the default's width, not narrower ones


VARIANTS = (Variant(8, 2, IMAGE), Variant(16, 2, IMAGE), Variant(32, 2, IMAGE), Variant(8, 2, IMAGE, heads=True),
            Variant(8, 4, IMAGE), Variant(8, 2, None), Variant(8, None, IMAGE), Variant(4, 2, IMAGE), Variant(2, 2, IMAGE),
            Variant(1, 2, IMAGE), Variant(1, 2, None), Variant(8, None, None), Variant(1, None, None))  # fmt: skip


def model_types() -> list[str]:
    return sorted(CONFIG_MAPPING)


def small(kind: type[PreTrainedConfig], variant: Variant) -> PreTrainedConfig:
    """A configuration of this class, as small as the variant says. Raises what the class raises."""
    default = kind()
    given = {}
    tokens = iter(range(1, VOCABULARY))
    stacks = {key: value for key, value in vars(default).items() if _LAYERS.search(key) and isinstance(value, int) and value > 1}
    for key, value in vars(default).items():
        if key.startswith("_"):
            continue
        if isinstance(value, PreTrainedConfig):
            given[key] = small(_BACKBONE if value.model_type == "timm_backbone" else type(value), variant)
        elif value is None and key in _MISSING:
            given[key] = _MISSING[key]
        elif key == "use_timm_backbone":
            given |= {key: False, "backbone": None}
        elif key in stacks:
            given[key] = min(value, variant.layers or value)
        elif _VOCABULARY.search(key) and isinstance(value, int):
            given[key] = min(value, VOCABULARY)
        elif _TOKEN.search(key) and isinstance(value, int) and not isinstance(value, bool) and value >= 0:
            given[key] = next(tokens)
        elif _EXPERTS.search(key) and isinstance(value, int):
            given[key] = min(value, MOST_EXPERTS)
        elif _FACTOR.search(key) and isinstance(value, float):
            given[key] = min(value, 1.0)
        elif _DEPTHS.search(key) and isinstance(value, (list, tuple)) and variant.layers:
            given[key] = type(value)(min(item, variant.layers) for item in value)
        elif key in ("rope_parameters", "rope_scaling") and isinstance(value, dict):
            given[key] = value if variant.heads else _sections(value, variant.divisor)
        elif isinstance(value, (list, tuple)) and len(value) in stacks.values() and variant.layers:
            given[key] = _shortened(value, variant.layers)
        elif key == "image_size" and variant.image:
            given[key] = _image(default, value, variant.image)
        elif variant.heads and _HEADS.search(key):
            given[key] = max(1, value // variant.divisor) if isinstance(value, int) else value
        elif variant.heads and _OF_HEAD.search(key):
            continue
        elif _WIDTH.search(key) and not _NO_WIDTH.search(key):
            given[key] = _divided(value, variant.divisor)
    given = {key: value for key, value in given.items() if value is not vars(default)[key]}
    if (text := given.get("text_config")) is not None:
        for other in given.values():  # what a tower gives is as wide as the text
            if isinstance(other, PreTrainedConfig) and hasattr(other, "out_hidden_size"):
                other.out_hidden_size = text.hidden_size
    return kind(**given)


def variants(kind: type[PreTrainedConfig]) -> Iterator[tuple[Variant, PreTrainedConfig | Exception]]:
    for variant in VARIANTS:
        try:
            yield variant, small(kind, variant)
        except Exception as error:  # of the class: another variant may do
            yield variant, error


_BACKBONE = CONFIG_MAPPING["resnet"]  # in the place of one of `timm`, which is not here


def _divided(value: Any, divisor: int) -> Any:
    if isinstance(value, (list, tuple)):
        return type(value)(_divided(item, divisor) for item in value)
    if isinstance(value, bool) or not isinstance(value, int) or value < LEAST:
        return value
    return value // divisor if value % divisor == 0 and value // divisor >= 2 else value


def _sections(rope: dict, divisor: int) -> dict:
    """Parts of a head, which together are as wide as it is."""
    return {
        key: _sections(value, divisor) if isinstance(value, dict)
        else [max(1, n // divisor) for n in value] if key == "mrope_section" and value
        else value
        for key, value in rope.items()
    }  # fmt: skip


def _shortened(value: list | tuple, count: int) -> list | tuple:
    """So many items, each kind among them as long as there is room."""
    kinds = [item for place, item in enumerate(value) if item not in value[:place]][:count]
    return type(value)(kinds + list(value[: count - len(kinds)]))


def _image(default: PreTrainedConfig, value: Any, image: int) -> Any:
    patch = getattr(default, "patch_size", None)
    side = 4 * patch if isinstance(patch, int) and image % patch else image
    if isinstance(value, (list, tuple)):
        return type(value)(min(item, side) for item in value)
    return min(value, side) if isinstance(value, int) else value
