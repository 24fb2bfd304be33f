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
from transformers.backbone_utils import BackboneConfigMixin

VOCABULARY = 256
LENGTH = 16  # of a text
IMAGE = 64  # pixels a side
FRAMES = 4  # of a video
QUERIES = 32  # of a detector: a small image has few places

_WIDTH = re.compile(r"(size|sizes|dim|dims|dimension|channels|width|widths|units|filters|rank|d_model|d_ff|d_kv|n_embd|n_inner)$"
                    r"|^dim_|_dim_|hidden_size|embed_dim|channel_list$|bottleneck_features$|pos_feats$")  # fmt: skip
_NO_WIDTH = re.compile(r"image|img|spec_|patch(?!_embeds)|window|kernel|chunk|block|vocab|codebook(?!_dim$)|crop|cache|grid|pool"
                       r"|input_size|group|context|token|num_channels|feature_size|output_size|mel|audio|batch|sample|memory|state"
                       r"|type|position")  # fmt: skip
_ALIKE = re.compile(r"groups$|input_size$")  # a width where it is as wide as the model: one channel a group, an adapter's input
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
            "mlp_layer_types": ["dense", "sparse"], "image_token_id": VOCABULARY - 1,
            "image_token_index": VOCABULARY - 1}  # fmt: skip
LEAST = 8  # a number below this is no width
MOST_EXPERTS = 16


@dataclasses.dataclass(frozen=True)
class Variant:
    """How far a configuration is from its defaults."""

    divisor: int  # of widths
    layers: int | None  # of each stack; None: as many as by default
    image: int | None  # pixels a side; None: as by default
    heads: bool = False  # whether there are fewer heads of the default's width, not narrower ones
    told: bool = True  # whether a part keeps what the whole tells it, or has its own class's defaults


# The first nine differ in each way: what fails alike in all of them fails in the others, too (make.py).
VARIANTS = (Variant(8, 2, IMAGE), Variant(16, 2, IMAGE), Variant(8, 2, IMAGE, heads=True), Variant(8, 4, IMAGE),
            Variant(8, 2, None), Variant(8, None, IMAGE), Variant(4, 2, IMAGE), Variant(1, 2, IMAGE),
            Variant(8, 2, IMAGE, told=False), Variant(32, 2, IMAGE), Variant(2, 2, IMAGE), Variant(1, 2, None),
            Variant(8, None, None), Variant(1, None, None))  # fmt: skip


def model_types() -> list[str]:
    return sorted(CONFIG_MAPPING)


def small(default: PreTrainedConfig, variant: Variant) -> PreTrainedConfig:
    """A configuration like this one, as small as the variant says. Raises what its class raises."""
    kind, given, settings = type(default), {}, _settings(default)
    tokens = iter(range(1, VOCABULARY))
    stages = {len(value) for key, value in settings.items() if _DEPTHS.search(key) and isinstance(value, (list, tuple))}
    stacks = {key: value for key, value in settings.items() if _LAYERS.search(key) and isinstance(value, int) and value > 1}
    stacks = {key: value for key, value in stacks.items() if value not in stages}  # as many as there are depths
    for key, value in vars(default).items():
        if key.startswith("_"):
            continue
        if isinstance(value, PreTrainedConfig):
            part = _BACKBONE(out_indices=value.out_indices) if value.model_type == "timm_backbone" else value
            given[key] = small(part if variant.told else type(part)(), variant)
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
            given[key] = min(value, 1.0) if variant.divisor > 1 or key.startswith("depth") else value
        elif _DEPTHS.search(key) and isinstance(value, (list, tuple)) and variant.layers:
            given[key] = type(value)(min(item, variant.layers) for item in value)
        elif key in ("rope_parameters", "rope_scaling") and isinstance(value, dict):
            given[key] = value if variant.heads else _sections(value, variant.divisor)
        elif _ALIKE.search(key) and value == getattr(default, "hidden_size", None):
            given[key] = _divided(value, variant.divisor)
        elif isinstance(value, (list, tuple)) and len(value) in stacks.values() and variant.layers:
            given[key] = _shortened(value, variant.layers)
        elif key == "num_queries" and isinstance(value, int):
            given[key] = min(value, QUERIES)
        elif key in ("num_frames", "frames_per_clip") and isinstance(value, int) and variant.image:
            given[key] = min(value, FRAMES)
        elif key in ("image_size", "crop_size", "max_img_size") and variant.image:
            given[key] = _image(default, value, variant.image)
        elif variant.heads and _HEADS.search(key):
            counted = isinstance(value, int) and not isinstance(value, bool)
            given[key] = max(1, value // variant.divisor) if counted else value
        elif variant.heads and _OF_HEAD.search(key):
            continue
        elif key.endswith("intermediate_size") and isinstance(value, int) and value % variant.divisor:
            given[key] = value // variant.divisor // LEAST * LEAST  # nothing else is as wide; grouped products want whole vectors
        elif _WIDTH.search(key) and not _NO_WIDTH.search(key):
            given[key] = _divided(value, variant.divisor)
    given = {key: value for key, value in given.items() if value is not vars(default)[key]}
    plain = kind()
    if isinstance(default, BackboneConfigMixin) and default.out_indices != plain.out_indices:
        given |= _taken(default, given)
    told = {key: value for key, value in settings.items() if value != vars(plain).get(key)}  # by what it is a part of
    if (text := given.get("text_config")) is not None:
        for other in given.values():  # what a tower gives is as wide as the text
            if isinstance(other, PreTrainedConfig) and hasattr(other, "out_hidden_size"):
                other.out_hidden_size = text.hidden_size
    return _completed(kind(**{**told, **given}))


def variants(kind: type[PreTrainedConfig]) -> Iterator[tuple[Variant, PreTrainedConfig | Exception]]:
    for variant in VARIANTS:
        try:
            yield variant, small(kind(), variant)
        except Exception as error:  # of the class: another variant may do
            yield variant, error


_BACKBONE = CONFIG_MAPPING["resnet"]  # in the place of one of `timm`, which is not here


def _settings(config: PreTrainedConfig) -> dict[str, Any]:
    """What it can be told, but for its parts; the rest it makes of these."""
    names = {field.name for field in dataclasses.fields(config)} | vars(config).keys() - vars(type(config)()).keys()
    found = {name: vars(config).get(name) for name in names if name != "per_layer_config" and not name.startswith("_")}
    return {name: value for name, value in found.items() if not isinstance(value, PreTrainedConfig)}


def _taken(default: PreTrainedConfig, given: dict[str, Any]) -> dict[str, Any]:
    """Which stages' results a backbone gives: so many of the last ones, where layers are stages, and fewer than by default."""
    stages, count = default.out_indices, len(default.stage_names)
    if (layers := given.get("num_hidden_layers")) is None or count != default.num_hidden_layers + 1:
        return {"out_indices": stages}
    layers = max(layers, len(stages))
    return {"num_hidden_layers": layers, "out_indices": list(range(layers + 1 - len(stages), layers + 1))}


def _completed(config: PreTrainedConfig) -> PreTrainedConfig:
    """With what its class leaves to who writes it down: the width of a head, and of the parts of one that is turned by several
    positions."""
    names = {"hidden_size": "hidden_size", "num_attention_heads": "num_attention_heads", **type(config).attribute_map}
    width, heads = (vars(config).get(names[name]) for name in ("hidden_size", "num_attention_heads"))
    if not isinstance(width, int) or not isinstance(heads, int):
        return config
    if vars(config).get("head_dim", 0) is None:
        config.head_dim = width // heads
    rope = getattr(config, "rope_parameters", None)
    if (
        "mrope_section" in getattr(config, "ignore_keys_at_rope_validation", ())
        and isinstance(rope, dict)
        and "rope_theta" in rope
    ):
        turned = int((vars(config).get("head_dim") or width // heads) * rope.get("partial_rotary_factor", 1.0)) // 2
        rope.setdefault("mrope_section", [turned - 2 * (turned * 3 // 8), turned * 3 // 8, turned * 3 // 8])
    return config


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
    """So many items: the kinds among them in turn."""
    kinds = [item for place, item in enumerate(value) if item not in value[:place]]
    return type(value)(kinds[place % len(kinds)] for place in range(count))


def _image(default: PreTrainedConfig, value: Any, image: int) -> Any:
    patch = getattr(default, "patch_size", None)
    side = 4 * patch if isinstance(patch, int) and image % patch else image
    if isinstance(value, (list, tuple)):
        return type(value)(min(item, side) for item in value)
    return min(value, side) if isinstance(value, int) else value
