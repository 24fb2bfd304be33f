"""Small networks of the kinds that people write themselves, beside those of `transformers` (models.py): diffusion, convolutional
families, graphs, packed sequences, mixture of experts, state spaces, adapters, parametrisations, teachers."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable

import torch
from models import Case
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations, rnn

Tensor = torch.Tensor


def itself(loss: Tensor) -> Tensor:
    return loss


def sinusoids(times: Tensor, width: int) -> Tensor:
    rates = torch.exp(-math.log(1e4) * torch.arange(width // 2, dtype=times.dtype) / (width // 2))
    angles = times[:, None] * rates
    return torch.cat([angles.sin(), angles.cos()], 1)


class TimedResidual(nn.Module):
    """The block of a diffusion U-Net: two convolutions, the time added between them."""

    def __init__(self, inward: int, outward: int, time: int):
        super().__init__()
        self.first, self.second = nn.GroupNorm(4, inward), nn.GroupNorm(4, outward)
        self.enter, self.leave = nn.Conv2d(inward, outward, 3, padding=1), nn.Conv2d(outward, outward, 3, padding=1)
        self.time = nn.Linear(time, outward)
        self.shortcut = nn.Conv2d(inward, outward, 1) if inward != outward else nn.Identity()

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        h = self.enter(F.silu(self.first(x))) + self.time(F.silu(time))[:, :, None, None]
        return self.shortcut(x) + self.leave(F.silu(self.second(h)))


class ImageAttention(nn.Module):
    def __init__(self, width: int, heads: int):
        super().__init__()
        self.norm, self.heads = nn.GroupNorm(4, width), heads
        self.qkv, self.out = nn.Conv2d(width, 3 * width, 1), nn.Conv2d(width, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        b, c, h, w = x.shape
        q, k, v = self.qkv(self.norm(x)).reshape(b, 3, self.heads, c // self.heads, h * w).transpose(3, 4).unbind(1)
        y = F.scaled_dot_product_attention(q, k, v)
        return x + self.out(y.transpose(2, 3).reshape(b, c, h, w))


class DiffusionUNet(nn.Module):
    def __init__(self, width: int = 16):
        super().__init__()
        self.width, time = width, 2 * width
        self.time = nn.Sequential(nn.Linear(width, time), nn.SiLU(), nn.Linear(time, time))
        self.enter = nn.Conv2d(3, width, 3, padding=1)
        self.high, self.low = TimedResidual(width, width, time), TimedResidual(width, 2 * width, time)
        self.down, self.up = nn.Conv2d(width, width, 3, 2, 1), nn.Conv2d(2 * width, 2 * width, 3, padding=1)
        self.middle, self.attention = TimedResidual(2 * width, 2 * width, time), ImageAttention(2 * width, 2)
        self.last, self.norm = TimedResidual(3 * width, width, time), nn.GroupNorm(4, width)
        self.leave = nn.Conv2d(width, 3, 3, padding=1)

    def forward(self, noisy: Tensor, times: Tensor, noise: Tensor) -> Tensor:
        time = self.time(sinusoids(times, self.width))
        high = self.high(self.enter(noisy), time)
        x = self.middle(self.attention(self.low(self.down(high), time)), time)
        x = self.up(F.interpolate(x, scale_factor=2.0, mode="nearest"))
        x = self.last(torch.cat([x, high], 1), time)
        return F.mse_loss(self.leave(F.silu(self.norm(x))), noise)


def unet_diffusion() -> Case:
    def batch():
        return {"noisy": torch.randn(2, 3, 24, 24), "times": 99 * torch.rand(2), "noise": torch.randn(2, 3, 24, 24)}

    return Case(DiffusionUNet(), [batch() for _ in range(4)], itself)


class ConvNextBlock(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.depthwise, self.norm = nn.Conv2d(width, width, 7, padding=3, groups=width), nn.LayerNorm(width, eps=1e-6)
        self.widen, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.scale = nn.Parameter(0.1 * torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        y = self.narrow(F.gelu(self.widen(self.norm(self.depthwise(x).permute(0, 2, 3, 1)))))
        return x + (self.scale * y).permute(0, 3, 1, 2)


class ChannelNorm(nn.LayerNorm):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class Classifier(nn.Module):
    """`body` gives channels, which are averaged over places."""

    def __init__(self, body: nn.Module, width: int):
        super().__init__()
        self.body, self.drop, self.head = body, nn.Dropout(0.2), nn.Linear(width, 10)

    def forward(self, pixels: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(self.head(self.drop(self.body(pixels).mean((2, 3)))), labels, label_smoothing=0.1)


def classified(body: nn.Module, width: int, side: int = 32, batch: int = 4) -> Case:
    batches = [{"pixels": torch.randn(batch, 3, side, side), "labels": torch.randint(0, 10, (batch,))} for _ in range(4)]
    return Case(Classifier(body, width), batches, itself)


def convnext() -> Case:
    stem = nn.Sequential(nn.Conv2d(3, 24, 4, 4), ChannelNorm(24))
    down = nn.Sequential(ChannelNorm(24), nn.Conv2d(24, 40, 2, 2))
    return classified(nn.Sequential(stem, ConvNextBlock(24), down, ConvNextBlock(40), ChannelNorm(40)), 40)


class MBConv(nn.Module):
    """EfficientNet's block: widened, depthwise, squeezed and excited, narrowed."""

    def __init__(self, inward: int, outward: int, stride: int, kernel: int = 3, expand: int = 4):
        super().__init__()
        width = inward * expand
        self.widen = nn.Sequential(nn.Conv2d(inward, width, 1, bias=False), nn.BatchNorm2d(width, eps=1e-3), nn.SiLU())
        convolution = nn.Conv2d(width, width, kernel, stride, kernel // 2, groups=width, bias=False)
        self.depthwise = nn.Sequential(convolution, nn.BatchNorm2d(width, eps=1e-3), nn.SiLU())
        squeeze = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(width, inward // 4, 1), nn.SiLU())
        self.excite = nn.Sequential(squeeze, nn.Conv2d(inward // 4, width, 1), nn.Sigmoid())
        self.narrow = nn.Sequential(nn.Conv2d(width, outward, 1, bias=False), nn.BatchNorm2d(outward, eps=1e-3))
        self.residual = inward == outward and stride == 1

    def forward(self, x: Tensor) -> Tensor:
        y = self.depthwise(self.widen(x))
        y = self.narrow(y * self.excite(y))
        return x + y if self.residual else y


def efficientnet() -> Case:
    stem = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1, bias=False), nn.BatchNorm2d(16, eps=1e-3), nn.SiLU())
    return classified(nn.Sequential(stem, MBConv(16, 16, 1), MBConv(16, 24, 2, kernel=5), MBConv(24, 24, 1)), 24)


class Vae(nn.Module):
    draws = True  # or else the batch's own noise is taken

    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Conv2d(1, 8, 4, 2, 1), nn.LeakyReLU(0.2), nn.Conv2d(8, 16, 4, 2, 1), nn.LeakyReLU(0.2))
        self.moments, self.enter = nn.Linear(16 * 49, 2 * 11), nn.Linear(11, 16 * 49)
        self.decoder = nn.Sequential(nn.ConvTranspose2d(16, 8, 4, 2, 1), nn.ReLU(), nn.ConvTranspose2d(8, 1, 4, 2, 1))

    def forward(self, pixels: Tensor, noise: Tensor) -> Tensor:
        mean, log_variance = self.moments(self.encoder(pixels).flatten(1)).chunk(2, 1)
        drawn = torch.randn_like(mean) if self.draws else noise
        decoded = self.decoder(self.enter(mean + torch.exp(0.5 * log_variance) * drawn).view(-1, 16, 7, 7))
        divergence = -0.5 * (1 + log_variance - mean.square() - log_variance.exp()).sum(1).mean()
        return F.binary_cross_entropy_with_logits(decoded, pixels, reduction="sum") / len(pixels) + divergence


def vae() -> Case:
    return Case(Vae(), [{"pixels": torch.rand(5, 1, 28, 28), "noise": torch.randn(5, 11)} for _ in range(4)], itself)


class DitBlock(nn.Module):
    """Transformer whose norms are shifted, scaled and gated by the condition (adaLN)."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads, self.modulation = heads, nn.Linear(width, 6 * width)
        self.first, self.second = (nn.LayerNorm(width, elementwise_affine=False, eps=1e-6) for _ in range(2))
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(approximate="tanh"), nn.Linear(4 * width, width))

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        shift, scale, gate, shift2, scale2, gate2 = self.modulation(F.silu(condition))[:, None].chunk(6, -1)
        q, k, v = self.qkv(self.first(x) * (1 + scale) + shift).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        x = x + gate * self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + gate2 * self.mlp(self.second(x) * (1 + scale2) + shift2)


class Dit(nn.Module):
    def __init__(self, width: int = 48):
        super().__init__()
        self.width = width
        self.patches, self.places = nn.Conv2d(4, width, 2, 2), nn.Parameter(0.02 * torch.randn(1, 64, width))
        self.time, self.labels = nn.Linear(width, width), nn.Embedding(11, width)
        self.blocks = nn.ModuleList(DitBlock(width, 4) for _ in range(2))
        self.norm, self.leave = nn.LayerNorm(width, elementwise_affine=False, eps=1e-6), nn.Linear(width, 16)

    def forward(self, noisy: Tensor, times: Tensor, labels: Tensor, noise: Tensor) -> Tensor:
        condition = self.time(sinusoids(times, self.width)) + self.labels(labels)
        x = self.patches(noisy).flatten(2).transpose(1, 2) + self.places
        for block in self.blocks:
            x = block(x, condition)
        x = self.leave(self.norm(x)).view(-1, 8, 8, 2, 2, 4)
        return F.mse_loss(torch.einsum("nhwpqc->nchpwq", x).reshape(noisy.shape), noise)


def dit() -> Case:
    def batch():
        return {"noisy": torch.randn(3, 4, 16, 16), "times": 99 * torch.rand(3), "labels": torch.randint(0, 11, (3,)),
                "noise": torch.randn(3, 4, 16, 16)}  # fmt: skip

    return Case(Dit(), [batch() for _ in range(4)], itself)


class Gcn(nn.Module):
    """Messages along edges, each divided by the degrees of its ends, added up at their targets."""

    def __init__(self):
        super().__init__()
        self.layers, self.head = nn.ModuleList([nn.Linear(13, 32), nn.Linear(32, 32)]), nn.Linear(32, 5)

    def forward(self, features: Tensor, edges: Tensor, labels: Tensor) -> Tensor:
        source, target = edges
        ones = torch.ones(edges.shape[1], dtype=features.dtype)
        degree = torch.zeros(len(features), dtype=features.dtype).index_add(0, target, ones).clamp(min=1)
        weight = (degree[source] * degree[target]).rsqrt()
        x = features
        for layer in self.layers:
            h = layer(x)
            x = F.relu(h + torch.zeros_like(h).index_add(0, target, h[source] * weight[:, None]))
        return F.cross_entropy(self.head(x), labels)


class Gat(nn.Module):
    """Attention over a node's edges: a softmax by scatters."""

    def __init__(self, heads: int = 3, width: int = 8):
        super().__init__()
        self.heads, self.project = heads, nn.Linear(13, heads * width, bias=False)
        self.of_source, self.of_target = (nn.Parameter(0.1 * torch.randn(heads, width)) for _ in range(2))
        self.head = nn.Linear(heads * width, 5)

    def forward(self, features: Tensor, edges: Tensor, labels: Tensor) -> Tensor:
        source, target = edges
        h = self.project(features).view(len(features), self.heads, -1)
        scores = F.leaky_relu((h * self.of_source).sum(-1)[source] + (h * self.of_target).sum(-1)[target], 0.2)
        places = target[:, None].expand_as(scores)
        empty = torch.full((len(features), self.heads), -torch.inf, dtype=h.dtype)
        most = empty.scatter_reduce(0, places, scores.detach(), "amax")
        exponent = torch.exp(scores - most[target])
        total = torch.zeros(len(features), self.heads, dtype=h.dtype).scatter_add(0, places, exponent)
        messages = h[source] * (exponent / total[target])[..., None]
        return F.cross_entropy(self.head(F.elu(torch.zeros_like(h).index_add(0, target, messages)).flatten(1)), labels)


def _graph(model: nn.Module) -> Case:
    def batch():
        return {"features": torch.randn(40, 13), "edges": torch.randint(0, 40, (2, 150)), "labels": torch.randint(0, 5, (40,))}

    return Case(model, [batch() for _ in range(4)], itself)


def gcn() -> Case:
    return _graph(Gcn())


def gat() -> Case:
    return _graph(Gat())


class Packed(nn.Module):
    """Sequences of several lengths, both ways."""

    LENGTHS = (9, 7, 7, 2)

    def __init__(self, kind: type[nn.RNNBase]):
        super().__init__()
        self.embedding, self.head = nn.Embedding(50, 20), nn.Linear(2 * 24, 6)
        self.layers = kind(20, 24, num_layers=2, bidirectional=True, batch_first=True)

    def forward(self, ids: Tensor, labels: Tensor) -> Tensor:
        packed = rnn.pack_padded_sequence(self.embedding(ids), self.LENGTHS, batch_first=True)
        hidden, _ = rnn.pad_packed_sequence(self.layers(packed)[0], batch_first=True)
        return F.cross_entropy(self.head(hidden.sum(1)), labels)


def _packed(kind: type[nn.RNNBase]) -> Case:
    batches = [{"ids": torch.randint(0, 50, (4, 9)), "labels": torch.randint(0, 6, (4,))} for _ in range(4)]
    return Case(Packed(kind), batches, itself)


def gru_packed() -> Case:
    return _packed(nn.GRU)


def lstm_packed() -> Case:
    return _packed(nn.LSTM)


class Experts(nn.Module):
    """Each token goes to its best two of some experts. `sparse`: an expert sees its own tokens alone, whose number is data."""

    def __init__(self, sparse: bool, width: int = 24, count: int = 4):
        super().__init__()
        self.sparse, self.router = sparse, nn.Linear(width, count, bias=False)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 2 * width), nn.SiLU(), nn.Linear(2 * width, width)) for _ in range(count)
        )

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        chances = self.router(x).softmax(-1)
        weights, chosen = chances.topk(2, -1)
        weights = weights / weights.sum(-1, keepdim=True)
        y = torch.zeros_like(x)
        for i, expert in enumerate(self.experts):
            if self.sparse:
                token, place = torch.where(chosen == i)
                y = y.index_add(0, token, expert(x[token]) * weights[token, place, None])
            else:
                y = y + expert(x) * (weights * (chosen == i)).sum(-1, keepdim=True)
        share = F.one_hot(chosen, len(self.experts)).to(x.dtype).sum(1).mean(0)
        return y, len(self.experts) * (share * chances.mean(0)).sum()


class MixtureOfExperts(nn.Module):
    def __init__(self, sparse: bool):
        super().__init__()
        self.enter, self.norm, self.experts, self.head = nn.Linear(10, 24), nn.LayerNorm(24), Experts(sparse), nn.Linear(24, 7)

    def forward(self, features: Tensor, labels: Tensor) -> Tensor:
        x = self.enter(features)
        y, balance = self.experts(self.norm(x))
        return F.cross_entropy(self.head(x + y), labels) + 0.01 * balance


def _experts(sparse: bool) -> Case:
    batches = [{"features": torch.randn(33, 10), "labels": torch.randint(0, 7, (33,))} for _ in range(4)]
    return Case(MixtureOfExperts(sparse), batches, itself)


def moe() -> Case:
    return _experts(sparse=False)


def moe_sparse() -> Case:
    return _experts(sparse=True)


class Mamba(nn.Module):
    """A selective state space: the scan's coefficients come from the input."""

    def __init__(self, width: int = 16, state: int = 4, rank: int = 3):
        super().__init__()
        self.embedding, self.head, inner = nn.Embedding(40, width), nn.Linear(width, 40), 2 * width
        self.norm, self.enter = nn.RMSNorm(width), nn.Linear(width, 2 * inner, bias=False)
        self.leave = nn.Linear(inner, width, bias=False)
        self.convolution = nn.Conv1d(inner, inner, 4, padding=3, groups=inner)
        self.sizes = (rank, state, state)
        self.select, self.step = nn.Linear(inner, sum(self.sizes), bias=False), nn.Linear(rank, inner)
        self.log_decay = nn.Parameter(torch.arange(1.0, state + 1).log().repeat(inner, 1))
        self.skip = nn.Parameter(torch.ones(inner))

    def forward(self, ids: Tensor) -> Tensor:
        embedded = self.embedding(ids)
        x, gate = self.enter(self.norm(embedded)).chunk(2, -1)
        x = F.silu(self.convolution(x.transpose(1, 2))[..., : ids.shape[1]].transpose(1, 2))
        rank, inward, outward = self.select(x).split(self.sizes, -1)
        step = F.softplus(self.step(rank))
        decay = torch.exp(-step[..., None] * self.log_decay.exp())
        drive = step[..., None] * inward[:, :, None] * x[..., None]
        state, found = torch.zeros_like(drive[:, 0]), []
        for t in range(ids.shape[1]):
            state = decay[:, t] * state + drive[:, t]
            found.append((state * outward[:, t, None]).sum(-1))
        y = (torch.stack(found, 1) + self.skip * x) * F.silu(gate)
        logits = self.head(embedded + self.leave(y))
        return F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


def mamba() -> Case:
    return Case(Mamba(), [{"ids": torch.randint(0, 40, (3, 12))} for _ in range(4)], itself)


class Lora(nn.Module):
    """A frozen layer, and a product of two narrow ones beside it."""

    def __init__(self, base: nn.Linear, rank: int = 4, alpha: float = 8.0):
        super().__init__()
        self.base, self.drop, self.scale = base.requires_grad_(False), nn.Dropout(0.1), alpha / rank
        self.down = nn.Parameter(torch.randn(rank, base.in_features) / base.in_features**0.5)
        self.up = nn.Parameter(0.1 * torch.randn(base.out_features, rank))

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + F.linear(F.linear(self.drop(x), self.down), self.up) * self.scale


class FeatureClassifier(nn.Module):
    def __init__(self, body: nn.Module):
        super().__init__()
        self.body = body

    def forward(self, features: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(self.body(features), labels)


def _features(body: nn.Module, *shape: int) -> Case:
    batches = [{"features": torch.randn(9, *shape), "labels": torch.randint(0, 10, (9,))} for _ in range(4)]
    return Case(FeatureClassifier(body), batches, itself)


def lora() -> Case:
    layers = [Lora(nn.Linear(30, 40)), nn.GELU(), nn.LayerNorm(40).requires_grad_(False), Lora(nn.Linear(40, 10))]
    return _features(nn.Sequential(*layers), 30)


def weight_norm() -> Case:
    first, second = (parametrizations.weight_norm(nn.Conv1d(n, 16, 3, padding=d, dilation=d)) for n, d in ((4, 1), (16, 2)))
    return _features(nn.Sequential(first, nn.ELU(), second, nn.ELU(), nn.Flatten(), nn.Linear(16 * 19, 10)), 4, 19)


def spectral_norm() -> Case:
    convolution = parametrizations.spectral_norm(nn.Conv2d(3, 8, 3, 2, 1))
    head = parametrizations.spectral_norm(nn.Linear(8 * 25, 10))
    return _features(nn.Sequential(convolution, nn.LeakyReLU(0.1), nn.Flatten(), head), 3, 9, 9)


class Teacher(nn.Module):
    """A student that follows a slow copy of itself, as BYOL and DINO have; `follow` is called after each step."""

    def __init__(self):
        super().__init__()
        self.student = nn.Sequential(nn.Linear(20, 48), nn.BatchNorm1d(48), nn.ReLU(), nn.Linear(48, 16))
        self.predictor, self.teacher = nn.Linear(16, 16), copy.deepcopy(self.student).requires_grad_(False)

    def forward(self, one: Tensor, other: Tensor) -> Tensor:
        predicted = F.normalize(self.predictor(self.student(one)), dim=-1)
        with torch.no_grad():
            wanted = F.normalize(self.teacher(other), dim=-1)
        return 2 - 2 * (predicted * wanted).sum(-1).mean()

    @torch.no_grad()
    def follow(self) -> None:
        for slow, fast in zip(self.teacher.parameters(), self.student.parameters(), strict=True):
            slow.lerp_(fast, 0.01)


def teacher() -> Case:
    return Case(Teacher(), [{"one": torch.randn(11, 20), "other": torch.randn(11, 20)} for _ in range(4)], itself)


_ALL = (unet_diffusion, convnext, efficientnet, vae, dit, gcn, gat, gru_packed, lstm_packed, moe, moe_sparse, mamba, lora,
        weight_norm, spectral_norm, teacher)  # fmt: skip
BUILDERS: dict[str, Callable[[], Case]] = {build.__name__: build for build in _ALL}
