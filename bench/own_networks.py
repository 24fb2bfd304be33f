"""Networks of cases.py that transformers does not have."""

from __future__ import annotations

from types import SimpleNamespace

import torch
from torch import Tensor, nn


def _twice(inward: int, outward: int) -> nn.Sequential:
    """Two 3x3 convolutions, each normalised."""
    layers: list[nn.Module] = []
    for channels in (inward, outward):
        layers += [nn.Conv2d(channels, outward, 3, padding=1, bias=False), nn.BatchNorm2d(outward), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers)


class UNet(nn.Module):
    """Segmentation (Ronneberger et al. 2015, https://arxiv.org/abs/1505.04597, with padding and BatchNorm as all
    implementations of today have them): `width` channels at full size, doubled at each of `depth` halvings."""

    def __init__(self, width: int = 64, depth: int = 4, labels: int = 2):
        super().__init__()
        widths = [width << level for level in range(depth + 1)]
        self.enter = _twice(3, width)
        self.down = nn.ModuleList(nn.Sequential(nn.MaxPool2d(2), _twice(w, 2 * w)) for w in widths[:-1])
        self.up = nn.ModuleList(nn.ConvTranspose2d(2 * w, w, 2, 2) for w in reversed(widths[:-1]))
        self.join = nn.ModuleList(_twice(2 * w, w) for w in reversed(widths[:-1]))
        self.leave = nn.Conv2d(width, labels, 1)

    def forward(self, pixel_values: Tensor, labels: Tensor) -> SimpleNamespace:
        """`pixel_values` [N, 3, H, W] f32, `labels` [N, H, W] i64; `.loss` and `.logits` [N, labels, H, W]."""
        seen = [self.enter(pixel_values)]
        for down in self.down:
            seen.append(down(seen[-1]))
        x = seen.pop()
        for up, join in zip(self.up, self.join, strict=True):
            x = join(torch.cat([seen.pop(), up(x)], 1))
        logits = self.leave(x)
        return SimpleNamespace(loss=nn.functional.cross_entropy(logits, labels), logits=logits)


class LSTMLanguageModel(nn.Module):
    """The "medium" model of Zaremba et al. 2014 (https://arxiv.org/abs/1409.2329): two layers of 650, dropout 0.5."""

    def __init__(self, vocabulary: int = 10000, width: int = 650, layers: int = 2, dropout: float = 0.5):
        super().__init__()
        self.embedding, self.drop = nn.Embedding(vocabulary, width), nn.Dropout(dropout)
        self.lstm = nn.LSTM(width, width, layers, batch_first=True, dropout=dropout)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, input_ids: Tensor, labels: Tensor) -> SimpleNamespace:
        """`input_ids` and `labels` (the next words) [N, T] i64; `.loss` and `.logits` [N, T, vocabulary]."""
        hidden, _ = self.lstm(self.drop(self.embedding(input_ids)))
        logits = self.head(self.drop(hidden))
        return SimpleNamespace(loss=nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten()), logits=logits)


class Perceptron(nn.Module):
    """Layers of one width with ReLU between them."""

    def __init__(self, width: int = 256, layers: int = 3):
        super().__init__()
        deep = [m for _ in range(layers - 1) for m in (nn.Linear(width, width), nn.ReLU())]
        self.layers = nn.Sequential(*deep, nn.Linear(width, width))

    def forward(self, x: Tensor, labels: Tensor) -> SimpleNamespace:
        """`x` [N, width] f32, `labels` [N] i64; `.loss` and `.logits` [N, width]."""
        logits = self.layers(x)
        return SimpleNamespace(loss=nn.functional.cross_entropy(logits, labels), logits=logits)
