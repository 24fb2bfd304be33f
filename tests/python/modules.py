"""Small modules whose Python is what several tests are about."""

import torch
from torch import nn


class Branches(nn.Module):
    """Two computations, chosen by the number of rows."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        h = self.layer(x)
        return h * 2 if x.shape[0] > 10 else h + x.shape[0]


class Asserted(Branches):
    """Asks its values. (In a test's own file pytest would rewrite the `assert`.)"""

    def forward(self, x):
        h = self.layer(x)
        assert h.isfinite().all(), "not finite"
        return h * 2


class ValueBranches(Branches):
    """Two computations, chosen by what is computed."""

    def forward(self, x):
        h = self.layer(x)
        if h.sum() > 0:
            return h * 2
        return h - 1


class Constant(Branches):
    """Takes the number of rows for a constant."""

    def forward(self, x):
        return self.layer(x) * torch.tensor([float(i) for i in range(int(x.shape[0]))]).unsqueeze(1)


class Attention(nn.Module):
    """Hands out its keys and values, as models with a cache do."""

    def __init__(self):
        super().__init__()
        self.project, self.out = nn.Linear(64, 192), nn.Linear(64, 64)

    def forward(self, x, past=None):
        heads = [t.view(2, -1, 4, 16).transpose(1, 2) for t in self.project(x).split(64, -1)]
        query, key, value = heads
        key = torch.cat([torch.empty(2, 4, 0, 16) if past is None else past, key], 2)
        value = torch.cat([torch.empty(2, 4, 0, 16), value], 2)
        y = nn.functional.scaled_dot_product_attention(query, key[:, :, -x.shape[1] :], value)
        return self.out(y.transpose(1, 2).reshape(x.shape)).square().mean(), key, value
