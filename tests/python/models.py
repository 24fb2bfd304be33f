"""Small configurations of the models that people train, each with its batches. `build(name)` gives a fresh one from a seed."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import torch
from torch import nn


@dataclasses.dataclass
class Case:
    """A model and what trains it: `batches[i]` are keyword arguments of its forward; `loss` takes what the forward returned."""

    model: nn.Module
    batches: list[dict[str, torch.Tensor]]
    loss: Callable = lambda output: output.loss

    def step_loss(self, step: int, model: Callable | None = None) -> torch.Tensor:
        return self.loss((self.model if model is None else model)(**self.batches[step % len(self.batches)]))


def train(case: Case, model: Callable, optimizer: torch.optim.Optimizer, steps: int, bf16: bool = False) -> list[float]:
    """The losses of `steps` training steps, under bf16 autocast if asked for."""
    torch.manual_seed(7)  # dropout's masks
    found = []
    for step in range(steps):
        with torch.autocast(torch.get_default_device().type, torch.bfloat16, enabled=bf16):
            loss = case.step_loss(step, model)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        found.append(loss.item())
    return found


def _tokens(vocabulary: int, batch: int, length: int, count: int = 4) -> list[torch.Tensor]:
    return [torch.randint(4, vocabulary, (batch, length)) for _ in range(count)]


def gpt2(width: int = 96, layers: int = 2, batch: int = 4) -> Case:
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(
        GPT2Config(vocab_size=509, n_positions=64, n_embd=width, n_layer=layers, n_head=4, bos_token_id=0, eos_token_id=0)
    )
    return Case(model, [{"input_ids": ids, "labels": ids} for ids in _tokens(509, batch, 32)])


def wide_gpt2() -> Case:
    """Wide enough, and with rows enough, for products of float32 on AMX tiles."""
    return gpt2(width=256, layers=1, batch=8)


def roberta() -> Case:
    from transformers import RobertaConfig, RobertaForSequenceClassification

    config = RobertaConfig(
        vocab_size=509,
        hidden_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=200,
        max_position_embeddings=66,
        num_labels=3,
        pad_token_id=1,
    )
    batches = []
    for ids in _tokens(509, 4, 24):
        mask = torch.ones_like(ids)
        mask[1, 17:] = 0
        mask[3, 9:] = 0
        ids = torch.where(mask.bool(), ids, 1)
        batches.append({"input_ids": ids, "attention_mask": mask, "labels": torch.randint(0, 3, (4,))})
    return Case(RobertaForSequenceClassification(config), batches)


def bert() -> Case:
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(
        vocab_size=509,
        hidden_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=200,
        max_position_embeddings=64,
    )
    batches = []
    for ids in _tokens(509, 4, 24):
        masked = torch.rand(ids.shape) < 0.15
        batches.append(
            {
                "input_ids": torch.where(masked, 3, ids),
                "attention_mask": torch.ones_like(ids),
                "labels": torch.where(masked, ids, -100),
            }
        )
    return Case(BertForMaskedLM(config), batches)


def llama() -> Case:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=509,
        hidden_size=96,
        intermediate_size=200,
        num_hidden_layers=2,
        num_attention_heads=6,
        num_key_value_heads=2,
        max_position_embeddings=64,
    )
    return Case(LlamaForCausalLM(config), [{"input_ids": ids, "labels": ids, "use_cache": False} for ids in _tokens(509, 4, 24)])


def vit() -> Case:
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        hidden_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=200,
        image_size=32,
        patch_size=8,
        num_labels=10,
        hidden_dropout_prob=0.1,
        attention_probs_dropout_prob=0.1,
    )
    batches = [{"pixel_values": torch.randn(4, 3, 32, 32), "labels": torch.randint(0, 10, (4,))} for _ in range(4)]
    return Case(ViTForImageClassification(config), batches)


def resnet50() -> Case:
    from transformers import ResNetConfig, ResNetForImageClassification

    config = ResNetConfig(num_labels=10)  # the defaults are ResNet-50's layers
    return Case(ResNetForImageClassification(config), _images())


def resnet14() -> Case:
    """One bottleneck of each width that ResNet-50 has."""
    from transformers import ResNetConfig, ResNetForImageClassification

    return Case(ResNetForImageClassification(ResNetConfig(num_labels=10, depths=[1, 1, 1, 1])), _images())


def _images() -> list[dict[str, torch.Tensor]]:
    return [{"pixel_values": torch.randn(4, 3, 64, 64), "labels": torch.randint(0, 10, (4,))} for _ in range(4)]


class LstmLanguageModel(nn.Module):
    def __init__(self, vocabulary: int = 509, width: int = 96):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.lstm = nn.LSTM(width, width, num_layers=2, dropout=0.1, batch_first=True)
        self.drop = nn.Dropout(0.1)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        hidden, _ = self.lstm(self.drop(self.embedding(input_ids)))
        logits = self.head(self.drop(hidden))
        return nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), input_ids[:, 1:].flatten())


def lstm() -> Case:
    return Case(LstmLanguageModel(), [{"input_ids": ids} for ids in _tokens(509, 4, 16)], loss=lambda loss: loss)


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(50, 130), nn.ReLU(), nn.LayerNorm(130), nn.Dropout(0.2), nn.Linear(130, 67), nn.Tanh(), nn.Linear(67, 10)
        )

    def forward(self, features: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(self.layers(features), labels)


def mlp() -> Case:
    batches = [{"features": torch.randn(33, 50), "labels": torch.randint(0, 10, (33,))} for _ in range(4)]
    return Case(Mlp(), batches, loss=lambda loss: loss)


def _normalised(inward: int, outward: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(inward, outward, 3, stride, 1, bias=False), nn.BatchNorm2d(outward))


class Residual(nn.Module):
    def __init__(self, inward: int, outward: int, stride: int):
        super().__init__()
        self.first, self.second = _normalised(inward, outward, stride), _normalised(outward, outward)
        self.shortcut = nn.Sequential(nn.Conv2d(inward, outward, 1, stride, bias=False), nn.BatchNorm2d(outward))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.shortcut(x) + self.second(torch.relu(self.first(x))))


class ResNet(nn.Module):
    """Few channels, but places as many as a real one has: sums over channels are as long."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 7, 2, 3, bias=False), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
        self.blocks = nn.Sequential(Residual(16, 16, 1), Residual(16, 24, 2), Residual(24, 32, 2))
        self.head = nn.Linear(32, 10)

    def forward(self, pixels: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(self.head(self.blocks(self.stem(pixels)).mean((2, 3))), labels)


class UNet(nn.Module):
    """Down and up again, with what was seen on the way: group norm, SiLU, a transposed convolution, concatenations."""

    def __init__(self):
        super().__init__()

        def block(inward, outward):
            return nn.Sequential(nn.Conv2d(inward, outward, 3, padding=1), nn.GroupNorm(4, outward), nn.SiLU())

        self.enter, self.down = block(3, 16), nn.Sequential(nn.Conv2d(16, 24, 3, 2, 1), block(24, 24))
        self.bottom = nn.Sequential(nn.Conv2d(24, 32, 3, 2, 1), block(32, 32))
        self.up, self.middle = nn.ConvTranspose2d(32, 24, 2, 2), block(48, 24)
        self.widen, self.last = nn.Conv2d(24, 16, 1), block(32, 16)
        self.leave = nn.Conv2d(16, 3, 3, padding=1)

    def forward(self, noisy: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
        high = self.enter(noisy)
        low = self.down(high)
        x = self.middle(torch.cat([low, self.up(self.bottom(low))], 1))
        x = nn.functional.interpolate(self.widen(x), scale_factor=2, mode="nearest")
        return nn.functional.mse_loss(self.leave(self.last(torch.cat([high, x], 1))), noise)


def resnet() -> Case:
    batches = [{"pixels": torch.randn(4, 3, 112, 112), "labels": torch.randint(0, 10, (4,))} for _ in range(4)]
    return Case(ResNet(), batches, loss=lambda loss: loss)


def unet() -> Case:
    batches = [{"noisy": torch.randn(2, 3, 48, 48), "noise": torch.randn(2, 3, 48, 48)} for _ in range(4)]
    return Case(UNet(), batches, loss=lambda loss: loss)


# Of images: long sums over places. Too much work for the tests that train every model in every way.
IMAGES: dict[str, Callable[[], Case]] = {"resnet": resnet, "resnet14": resnet14, "unet": unet}

BUILDERS: dict[str, Callable[[], Case]] = {
    "mlp": mlp,
    "gpt2": gpt2,
    "roberta": roberta,
    "bert": bert,
    "llama": llama,
    "vit": vit,
    "resnet50": resnet50,
    "lstm": lstm,
}
NAMES = list(BUILDERS)


def build(name: str, seed: int = 0, dropout: bool = True, dtype: torch.dtype = torch.float32) -> Case:
    """A fresh model with the same weights and batches each time, in training mode. Without dropout nothing is drawn."""
    import networks  # which are made of this file's `Case`

    torch.manual_seed(seed)
    case = {**BUILDERS, **IMAGES, **networks.BUILDERS, "wide_gpt2": wide_gpt2}[name]()
    case.model.train()
    if not dropout:
        _switch_dropout_off(case.model)
    if dtype is not torch.float32:
        case.model.to(dtype)
        case.batches = [
            {k: v.to(dtype) if torch.is_tensor(v) and v.is_floating_point() else v for k, v in b.items()} for b in case.batches
        ]
    return case


def _switch_dropout_off(model: nn.Module) -> None:
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        elif isinstance(module, nn.LSTM):
            module.dropout = 0.0
        elif hasattr(module, "draws"):
            module.draws = False
        for name in ("dropout_prob", "attention_dropout"):  # Hugging Face attention hands a number to the functional form
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, 0.0)
