"""Models of `transformers` that train, one of each architecture, small (configurations.py), with their batches (inputs.py)."""

from __future__ import annotations

import dataclasses
import inspect
import signal
from collections.abc import Iterable, Iterator
from typing import Any

import configurations
import inputs
import torch
from torch import nn
from transformers import CONFIG_MAPPING
from transformers.models.auto import modeling_auto

# Which of an architecture's classes stands for it: the first of these tasks that it has (those with a loss of their own first).
TASKS = ("CAUSAL_LM", "SEQ_TO_SEQ_CAUSAL_LM", "MASKED_LM", "IMAGE_TEXT_TO_TEXT", "SPEECH_SEQ_2_SEQ", "IMAGE_CLASSIFICATION",
         "AUDIO_CLASSIFICATION", "VIDEO_CLASSIFICATION", "SEMANTIC_SEGMENTATION", "DEPTH_ESTIMATION",
         "ZERO_SHOT_IMAGE_CLASSIFICATION", "OBJECT_DETECTION", "SEQUENCE_CLASSIFICATION", "IMAGE_TO_IMAGE", "BACKBONE",
         "")  # fmt: skip
MOST_PARAMETERS = (3_000_000, 30_000_000)  # the second where no smaller model can be had


LONGEST = 20  # seconds of a step of eager PyTorch's
PATIENCE = 9  # attempts that end in the same way: others would, too
LESSER = 4  # models that train by a part of what they may want


class CannotMake(Exception):
    """No variant of this architecture can be built and trained by eager PyTorch; each with its reason."""


@dataclasses.dataclass
class Made:
    """`batch` are keyword arguments of the forward of `model()`, whose weights come from a seed."""

    kind: type[nn.Module]
    config: Any
    variant: configurations.Variant
    batch: dict[str, torch.Tensor]
    whole: bool = True  # whether the batch is all that the model may want

    def model(self, seed: int = 0) -> nn.Module:
        torch.manual_seed(seed)
        return self.kind(self.config).train()


def classes(model_type: str) -> Iterator[type[nn.Module]]:
    """The architecture's classes, in the order of TASKS."""
    config = CONFIG_MAPPING[model_type]
    for task in TASKS:
        try:
            kind = getattr(modeling_auto, _mapping(task))[config]
        except (KeyError, ImportError, ValueError):  # of another task; or it needs a package that is not here
            continue
        yield from kind if isinstance(kind, (list, tuple)) else (kind,)


def _mapping(task: str) -> str:
    return f"MODEL_FOR_{task}_MAPPING" if task else "MODEL_MAPPING"


def task(model_type: str) -> str:
    """The first of TASKS that the architecture has a class for, whether that can be made or not."""
    return next(task for task in TASKS if model_type in getattr(modeling_auto, f"{_mapping(task)}_NAMES"))


def architectures() -> list[str]:
    """Types of models that have a class of one of the TASKS."""
    known = {name for task in TASKS for name in getattr(modeling_auto, f"{_mapping(task)}_NAMES")}
    return [name for name in configurations.model_types() if name in known]


def make(model_type: str, seed: int = 0) -> Made:
    """Raises CannotMake."""
    reasons: list[str] = []
    for kind in classes(model_type):
        lesser: list[Made] = []  # trained by a part of what they may want: another variant may do with all
        for variant, config in _small_first(kind, configurations.variants(CONFIG_MAPPING[model_type]), reasons):
            if len(lesser) >= LESSER:
                break
            try:
                made = _made(kind, variant, config, seed)
            except Exception as error:  # of the model, which this variant or this batch does not suit
                reasons.append(_told(kind, variant, error))
                if isinstance(error, TimeoutError) or sum(reason.endswith(str(error)[:100]) for reason in reasons) >= PATIENCE:
                    break
                continue
            if made.whole:
                return made
            lesser.append(made)
        if lesser:
            return lesser[0]
    raise CannotMake("; ".join(dict.fromkeys(reasons)))


def _small_first(kind: type[nn.Module], variants: Iterable[tuple], reasons: list[str]) -> Iterator[tuple]:
    """Those with few parameters as they come, then those with more."""
    large: list[tuple[int, configurations.Variant, Any]] = []
    for variant, config in variants:
        try:
            if isinstance(config, Exception):
                raise config
            count = _parameters(kind, config)
        except Exception as error:  # of the configuration
            reasons.append(_told(kind, variant, error))
            continue
        if count <= MOST_PARAMETERS[0]:
            yield variant, config
        else:
            large.append((count, variant, config))
    for count, variant, config in sorted(large, key=lambda each: each[0]):
        if count <= MOST_PARAMETERS[1]:
            yield variant, config
        else:
            reasons.append(_told(kind, variant, ValueError(f"{count / 1e6:.0f} million parameters")))


def _parameters(kind: type[nn.Module], config: Any) -> int:
    with torch.device("meta"):
        return sum(p.numel() for p in kind(config).parameters())


def _made(kind: type[nn.Module], variant: configurations.Variant, config: Any, seed: int) -> Made:
    made = Made(kind, config, variant, {})
    model = made.model()
    wanted, errors = next(inputs.batches(model, seed)).keys(), []
    for batch in _tried(model, seed):
        waiting = [batch]
        for each in waiting:
            if (error := _error_of(model, each)) is None:
                made.batch, made.whole = each, wanted <= each.keys()
                return made
            if isinstance(error, TimeoutError):
                raise error
            waiting += inputs.adapted(model, each, error) if len(waiting) < 6 else []
            errors.append(error)
    raise errors[0]  # of the batch with most of what the model may want


def _tried(model: nn.Module, seed: int) -> list[dict[str, Any]]:
    """Batches, the most wanted first."""
    given = list(inputs.batches(model, seed))
    tried: list[dict[str, Any]] = []
    for each in given:
        labelled = inputs.labelled(model, each, seed)
        tried += [each] if labelled is None else [labelled, each]
    if "use_cache" in inspect.signature(model.forward).parameters:
        tried += [{**each, "use_cache": False} for each in tried]
    return tried


def _error_of(model: nn.Module, batch: dict[str, Any]) -> Exception | None:
    """What keeps eager PyTorch from a step with it: an error, or that it takes too long (VITS makes a sound of as many samples as
    its weights say, and those are random)."""

    def late(*_: Any) -> None:
        raise TimeoutError(f"a step takes eager PyTorch more than {LONGEST} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(LONGEST)
    try:
        loss = inputs.loss_of(model(**batch))
        loss.backward()
    except Exception as error:
        return error
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    return None if torch.isfinite(loss) else ValueError("the loss is not finite")


def _told(kind: type[nn.Module], variant: configurations.Variant, error: Exception) -> str:
    return f"{kind.__name__} {dataclasses.astuple(variant)}: {type(error).__name__}: {str(error)[:100]}"
